"""From an entry of the history to the files of a product, each proven by its content. Called by `comfyui`."""

import asyncio
from pathlib import Path

from agent.executors import comfyui_outcome as outcomes
from agent.executors import images
from agent.executors.base import ProductFile, RunnableJob
from agent.executors.comfyui_client import Client, ImageRef, NoAnswer, TooLarge
from agent.executors.comfyui_graph import Graph
from agent.executors.comfyui_outcome import Fault
from agent.executors.comfyui_prompt import Entry, Failed
from agent.executors.images import Picture
from agent.executors.verdicts import Finding, Verdict
from agent.made import MOST_FILES

_TRIES = 3
_AGAIN_S = 1.0


def refs_of(graph: Graph, entry: Entry) -> list[ImageRef]:
    """Return where the images are; Failed if the prompt ended badly, or saved something else than it should."""
    fault = outcomes.ending(entry)
    if fault is not None:
        raise Failed(fault)
    refs = outcomes.images(entry, graph.outputs)
    if not refs:
        raise Failed(outcomes.fault_of("output_missing: it ended well, but saved no image"))
    if len(refs) > MOST_FILES:
        raise _failed(Verdict.FAIL, "too_many_images", f"{len(refs)} images; at most {MOST_FILES}")
    if graph.count is not None and len(refs) != graph.count:
        raise _failed(Verdict.UNKNOWN, "images_missing", f"{len(refs)} images instead of {graph.count}")
    return refs


async def fetch(client: Client, ref: ImageRef, path: Path, most_bytes: int) -> Picture:
    """Fetch a file and decode it; Failed if there is none, or it is no picture."""
    for number in range(1, _TRIES + 1):
        try:
            if not await client.download(ref, path, most_bytes):
                raise _failed(
                    Verdict.RETRY, "file_gone", f"{ref.filename} is in the history, but no more on the server"
                )
            return await asyncio.to_thread(images.look, path)
        except TooLarge as error:
            raise _failed(Verdict.FAIL, "too_large", str(error)) from None
        except images.NotAnImageError as error:
            raise _failed(Verdict.UNKNOWN, "no_image", f"{ref.filename}: {error}") from None
        except NoAnswer:
            if number == _TRIES:
                raise
            await asyncio.sleep(_AGAIN_S)
    raise AssertionError


async def collect(
    client: Client, job: RunnableJob, graph: Graph, entry: Entry, *, most_bytes: int, keep_metadata: bool
) -> list[ProductFile]:
    """Return the product's files in the workspace; Failed for what is no result, whatever the server calls it."""
    files = []
    for number, ref in enumerate(refs_of(graph, entry), 1):
        raw = job.workspace / f"raw-{number}"
        picture = await fetch(client, ref, raw, most_bytes)
        _check(ref, picture, graph)
        kept = keep_metadata or picture.format == "PNG"
        path = job.workspace / f"image-{number}.{picture.suffix if kept else 'png'}"
        await asyncio.to_thread(images.publish, raw, path, picture, keep_metadata=keep_metadata)
        raw.unlink()
        files.append(ProductFile(path, picture.media_type if kept else "image/png"))
    return files


def _check(ref: ImageRef, picture: Picture, graph: Graph) -> None:
    if picture.flat:  # what a Mac's GPU answers when the numbers went wrong, with success
        raise _failed(Verdict.UNKNOWN, "flat_image", f"{ref.filename} is one flat colour")
    if graph.size is not None and picture.size != graph.size:
        asked, got = ("x".join(map(str, size)) for size in (graph.size, picture.size))
        raise _failed(Verdict.UNKNOWN, "wrong_size", f"{ref.filename} is {got} instead of {asked}")


def _failed(verdict: Verdict, code: str, text: str) -> Failed:
    return Failed(Fault(Finding(verdict, code), text))
