"""Input images of a workflow: fetched, checked, and uploaded to ComfyUI under their sha256.

A value of `inputs` that is {"url": "https://..."} or {"artifact": "<job id>/<name>"} is such an image. A publisher's
URL is not trusted: http and https only, so many bytes, so long, and what comes must be a picture. Called by `comfyui`.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from agent.executors import images
from agent.executors.base import Elsewhere, Permanent, Transient
from agent.executors.comfyui_client import Client
from agent.executors.comfyui_settings import ComfyUISettings

_OK = 200
_SERVER_FAULT = 500
_LATER = frozenset({408, 425, 429})
_MOST_REDIRECTS = 5
_BLOCK_BYTES = 64 * 1024
_KINDS = ({"url"}, {"artifact"})


def is_image(value: Any) -> bool:
    """Whether a value stands for an image that is fetched."""
    return isinstance(value, dict) and set(value) in _KINDS


class Inputs:
    """Replaces images by the names under which the server has them."""

    def __init__(self, session: Callable[[], aiohttp.ClientSession], client: Client, settings: ComfyUISettings) -> None:
        """`session` must send no token of its own: its requests go to strangers."""
        self._session, self._client, self._settings = session, client, settings

    async def put(self, values: Mapping[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
        """Return the values with every image uploaded; Permanent names each that is wrong."""
        faults = [fault for name, value in values.items() if is_image(value) and (fault := self._fault(name, value))]
        if faults:
            raise Permanent("bad_input", "; ".join(faults)[:2000], faults)
        return {
            name: await self._upload(name, value, folder()) if is_image(value) else value
            for name, value in values.items()
        }

    def _fault(self, name: str, value: Mapping[str, Any]) -> str | None:
        if "url" in value:
            try:
                url = URL(value["url"])
            except (TypeError, ValueError):
                return f"inputs.{name}: no URL"
            return None if url.scheme in ("http", "https") and url.host else f"inputs.{name}: no http or https URL"
        job_id, _, artifact = str(value["artifact"]).partition("/")
        try:
            uuid.UUID(job_id)
        except ValueError:
            return f"inputs.{name}: an artifact is <job id>/<name>"
        return None if artifact and "/" not in artifact else f"inputs.{name}: an artifact is <job id>/<name>"

    async def _upload(self, name: str, value: Mapping[str, Any], folder: Path) -> str:
        path = folder / f"input-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        if "url" in value:
            digest = await self._fetch(name, URL(value["url"]), {}, path)
        else:
            digest = await self._fetch(name, self._artifact(name, value["artifact"]), self._credentials(), path)
        try:
            picture = await asyncio.to_thread(images.look, path)
        except images.NotAnImageError as error:
            raise Permanent("bad_input", f"inputs.{name}: {error}") from None
        data = await asyncio.to_thread(path.read_bytes)
        return await self._client.upload(f"{digest}.{picture.suffix}", data, picture.media_type)

    def _artifact(self, name: str, artifact: str) -> URL:
        if self._settings.artifacts_url is None:
            text = f"inputs.{name}: artifacts_url is not set in this agent's settings of comfyui"
            raise Elsewhere("no_artifacts", text)
        job_id, _, file = artifact.partition("/")
        base = self._settings.artifacts_url.rstrip("/")
        return URL(f"{base}/v1/jobs/{job_id}/artifacts/{quote(file, safe='')}", encoded=True)

    def _credentials(self) -> dict[str, str]:
        token = self._settings.artifacts_token
        return {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}

    async def _fetch(self, name: str, url: URL, headers: dict[str, str], path: Path) -> str:
        """Write what is there to `path`; return its sha256. Redirects drop the token and stay with http and https."""
        timeout = aiohttp.ClientTimeout(total=self._settings.fetch_s)
        try:
            async with self._session().get(
                url, headers=headers, timeout=timeout, max_redirects=_MOST_REDIRECTS
            ) as response:
                self._check(name, response.status)
                return await self._save(name, response.content, path)
        except aiohttp.TooManyRedirects:
            raise Permanent("bad_input", f"inputs.{name}: more than {_MOST_REDIRECTS} redirects") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise Permanent("bad_input", f"inputs.{name}: {type(error).__name__}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Transient("input_unreachable", f"inputs.{name}: {type(error).__name__}") from None

    def _check(self, name: str, status: int) -> None:
        if status == _OK:
            return
        text = f"inputs.{name}: status {status}"
        raise (Transient if status >= _SERVER_FAULT or status in _LATER else Permanent)("input_unreachable", text)

    async def _save(self, name: str, content: aiohttp.StreamReader, path: Path) -> str:
        digest, size, most = hashlib.sha256(), 0, self._settings.most_input_bytes
        with path.open("wb") as file:
            async for block in content.iter_chunked(_BLOCK_BYTES):
                size += len(block)
                if size > most:
                    raise Permanent("bad_input", f"inputs.{name}: larger than {most} bytes")
                digest.update(block)
                file.write(block)
        return digest.hexdigest()
