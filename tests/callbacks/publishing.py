"""A world whose source has a WordPress site, and what tests of the publisher do in it."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import SecretStr

from coordinator.publishing.config import WordPressSite
from coordinator.publishing.publisher import TAKEN_S
from tests.support.fake_wordpress import PASSWORD, FakeWordPress, fake_wordpress
from tests.support.servers import own_servers
from tests.support.world import World, eventually_async
from tests.support.world import world as open_world

TEXT = "# Harbour\n\nThe *harbour* at dawn.\n\n![boats](hero.png)"


def wordpress(site: FakeWordPress, **more: Any) -> dict[str, WordPressSite]:
    """Return the setting that has the source `local` publish there."""
    return {"local": WordPressSite(url=site.url, user="tandem", app_password=SecretStr(PASSWORD), **more)}


def picture(colour: str = "navy", size: int = 64) -> bytes:
    made = io.BytesIO()
    Image.effect_noise((size, size), 90).convert("RGB").save(made, "PNG", comment=colour)
    return made.getvalue()


@asynccontextmanager
async def publishing(dsn: str, folder: Path, **more: Any) -> AsyncIterator[tuple[World, FakeWordPress]]:
    async with (
        fake_wordpress() as site,
        own_servers() as servers,
        open_world(servers, dsn, folder, wordpress=wordpress(site, **more)) as world,
    ):
        yield world, site


async def made(
    world: World, post: int | None, *, text: str | None = TEXT, images: dict[str, bytes] | None = None, **more: Any
) -> str:
    """Have an article written for this post, with these images; return the job's id once it is completed."""
    job = await world.submit(labels={} if post is None else {"wordpress_post": str(post)}, **more)
    mini = await world.puppet("mini")
    held = await mini.take()
    files = [await held.upload(name, content, "image/png") for name, content in (images or {}).items()]
    await held.report(result={"text": text} if text is not None else {"words": 0}, artifacts=files)
    await held.verdict("accepted")
    return str(job["id"])


async def told(world: World, job_id: str) -> dict[str, Any] | None:
    """Return the job's newest publication."""
    async with world.http.get(f"/v1/jobs/{job_id}/publications") as answer:
        assert answer.status == 200
        found = (await answer.json())["publications"]
    return found[-1] if found else None


async def tried(world: World, job_id: str, attempts: int = 1) -> dict[str, Any]:
    """Return the job's publication once so many tries have failed, and it waits for the next one."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        one = await told(world, job_id)
        if one is not None and one["attempts"] >= attempts and one["error"] and await idle(world):
            found.append(one)
        return bool(found)

    await eventually_async(look)
    return found[0]


async def until(world: World, job_id: str, end: str = "published_at") -> dict[str, Any]:
    """Return the job's publication once it has come to this end, whatever pauses lie in between."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        one = await told(world, job_id)
        if one is not None and one["next_at"] is not None and await idle(world):
            await world.move_clock(TAKEN_S + 1)
            await world.coordinator.publisher.once()
        found.update(one or {})
        return one is not None and one["next_at"] is None

    await eventually_async(look)
    assert found[end] is not None, found["error"]
    return found


async def idle(world: World) -> bool:
    return not world.coordinator.publisher._running


async def anew(world: World, job_id: str, text: str) -> None:
    """Have a completed job done again, with this text."""
    await world.act(job_id, "retry")
    mini = await world.puppet("mini")
    await (await mini.take()).report(result={"text": text})
    await world.until(job_id, "completed")


async def all_published(world: World, job_id: str, many: int) -> bool:
    """Say whether a job has so many publications, and all are done."""
    found = (await world.job(job_id))["publications"]
    return len(found) == many and all(one["published_at"] for one in found)
