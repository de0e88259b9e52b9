"""One WordPress site over its REST API: upload an image once, find it again, update a post, ask what the user may do.

Every call sends `Accept: application/json` (else a fatal error is a page), follows no redirect, looks in `context=edit`
(else a wrong password finds what anybody would: nothing), and takes for done only what `verdicts.content_of` does.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp

from coordinator.publishing.config import WordPressSite
from coordinator.publishing.verdicts import UNSURE_S, AgainError, Answer, DeniedError, MovedError, SiteError, content_of
from shared.errors import ConfigurationError

ASK_S: Final = 30.0
"""How long a small question may take."""

UPLOAD_S: Final = 120.0
"""How long an upload, or making an image's smaller sizes, may take."""

_READ_BYTES: Final = 8 * 1024 * 1024  # of an answer; a post's holds its text twice
_API_LINK: Final = re.compile(r'<([^<>]+)>\s*;\s*rel="?https://api\.w\.org/"?')
_ANYWHERE: Final = "?rest_route=/"


@dataclass(frozen=True, slots=True)
class Media:
    """An attachment on the site."""

    id: int
    url: str | None  # None: not told yet
    whole: bool  # all its sizes are made


@dataclass(frozen=True, slots=True)
class Upload:
    """A file to upload."""

    slug: str  # the same for every repeat
    name: str
    media_type: str
    size: int
    md5: str
    post: str


@dataclass(slots=True)
class WordPress:
    """Speaks with one site, as its user. Every method raises a PublishingError."""

    site: WordPressSite
    session: aiohttp.ClientSession
    _root: str | None = None  # of the REST API, once it is found

    async def check(self) -> None:
        """Return if the user may do all that publishing needs; SiteError with what is wrong."""
        self._root = None
        try:
            user = await self._get("/wp/v2/users/me", {"context": "edit"})
        except (DeniedError, MovedError) as error:
            msg = f"{self.site.url} does not let {self.site.user!r} in: {error}"
            raise SiteError(msg) from error
        may = user.get("capabilities") if isinstance(user, dict) else None
        missing = [name for name in self._needed() if not (isinstance(may, Mapping) and may.get(name))]
        if missing:
            msg = f"{self.site.url}: {self.site.user!r} may not {', '.join(missing)}; make it an editor"
            raise SiteError(msg)

    async def find(self, slug: str) -> Media | None:
        """Return the attachment with this slug, the first one if there are several."""
        found = await self._get("/wp/v2/media", {"slug": slug, "context": "edit"})
        if not isinstance(found, list):
            msg = "answered a look-up with something else than a list"
            raise MovedError(msg)
        made = [_media(one) for one in found]
        return min(made, key=lambda media: media.id, default=None)

    async def upload(self, file: Upload, chunks: AsyncIterator[bytes]) -> Media:
        """Upload a file; whoever repeats that looks for its slug before. An error may leave it made all the same."""
        answer = await self._ask(
            "POST",
            "/wp/v2/media",
            {"slug": file.slug, "title": file.name, "post": file.post},
            body=chunks,
            headers={
                "Content-Type": file.media_type,
                "Content-Length": str(file.size),  # not chunked: not every web server hands that on
                "Content-Disposition": f'attachment; filename="{file.name}"',
                "Content-MD5": file.md5,  # a cut upload would be kept otherwise
            },
            limit_s=UPLOAD_S,
        )
        try:
            return _media(content_of(answer, _now()))
        except AgainError:
            if answer.attachment is None:
                raise
            return Media(answer.attachment, None, whole=False)  # PHP died on its smaller sizes; the file is there

    async def finish(self, media_id: int) -> Media:
        """Have the sizes made that are missing; harmless when none are."""
        answer = await self._ask(
            "POST",
            f"/wp/v2/media/{media_id}/post-process",
            {},
            json={"action": "create-image-subsizes"},
            limit_s=UPLOAD_S,
        )
        return _media(content_of(answer, _now()))

    async def post(self, post: str) -> dict[str, Any]:
        """Return a post as it stands there now."""
        return _object(await self._get(f"/wp/v2/{self.site.post_type}/{post}", {"context": "edit"}))

    async def update(self, post: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Set a post's fields and return the post as it then is; repeating it changes nothing."""
        answer = await self._ask("POST", f"/wp/v2/{self.site.post_type}/{post}", {}, json=fields, limit_s=UPLOAD_S)
        return _object(content_of(answer, _now()))

    def _needed(self) -> list[str]:
        kind = self.site.post_type if self.site.post_type in ("posts", "pages") else None
        needed = ["upload_files"]
        if kind is not None:
            needed.append(f"edit_others_{kind}")
            needed += [f"publish_{kind}"] * (self.site.status in ("publish", "private"))
        return needed

    async def _get(self, path: str, query: Mapping[str, str]) -> Any:
        return content_of(await self._ask("GET", path, query), _now())

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: AsyncIterator[bytes] | None = None,
        json: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        limit_s: float = ASK_S,
    ) -> Answer:
        """Ask once. AgainError when no whole answer comes: what was asked for may have been done."""
        if self._root is None:
            self._root = await self._find_root()
        answer = await self._send(method, address(self._root, path, query), body, json, headers or {}, limit_s)
        if 300 <= answer.status < 400 or await asyncio.to_thread(lambda: answer.json) is None:  # noqa: PLR2004
            self._root = None  # may have moved: permalinks are a setting
        return answer

    async def _find_root(self) -> str:
        """Return where the REST API is, as the home page's Link header says, else where it is on every site."""
        home = self.site.url.rstrip("/") + "/"
        answer = await self._send("HEAD", home, None, None, {}, ASK_S)
        if 300 <= answer.status < 400:  # noqa: PLR2004
            msg = f"{home} redirects to {answer.headers.get('Location', 'nowhere')[:200]}: is that the site's url?"
            raise MovedError(msg)
        found = _API_LINK.search(answer.headers.get("Link", ""))
        if found is None:
            return home + _ANYWHERE
        if not _has_origin(found[1], _origin(home)):
            msg = f"{home} has its REST API at {found[1][:200]}, where the password is not sent"
            raise MovedError(msg)
        return found[1]

    async def _send(
        self,
        method: str,
        url: str,
        body: AsyncIterator[bytes] | None,
        json: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        limit_s: float,
    ) -> Answer:
        try:
            known = base64.b64encode(f"{self.site.user}:{self.site.password()}".encode()).decode()
        except ConfigurationError as error:
            raise SiteError(str(error)) from error
        sent = {"Accept": "application/json", "Authorization": f"Basic {known}", "User-Agent": "tandem", **headers}
        try:
            async with (
                asyncio.timeout(limit_s),
                self.session.request(method, url, data=body, json=json, headers=sent, allow_redirects=False) as answer,
            ):
                read = bytearray()
                async for chunk in answer.content.iter_any():
                    read += chunk
                    if len(read) > _READ_BYTES:
                        break
                return Answer(answer.status, answer.headers, bytes(read))
        except TimeoutError:
            msg = f"no answer within {limit_s:g} s"
            raise AgainError(msg, after_s=UNSURE_S) from None
        except (aiohttp.ClientError, OSError) as error:
            raise AgainError(f"{type(error).__name__}: {error}"[:300], after_s=UNSURE_S) from error


def address(root: str, path: str, query: Mapping[str, str]) -> str:
    """Return the address of a route; the root's own query, with plain permalinks, already has a question mark."""
    route = root.rstrip("/") + path
    return route + (("&" if "?" in root else "?") + urlencode(query) if query else "")


def _object(found: Any) -> dict[str, Any]:
    if not (isinstance(found, dict) and isinstance(found.get("id"), int)):
        msg = "answered with something else than what was asked for"
        raise MovedError(msg)
    return found


def _media(answered: Any) -> Media:
    found = _object(answered)
    url, missing = found.get("source_url"), found.get("missing_image_sizes")
    return Media(found["id"], url if isinstance(url, str) else None, whole=not missing)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _has_origin(url: str, origin: tuple[str, str | None, int | None]) -> bool:
    try:
        return _origin(url) == origin
    except ValueError:  # no such port, or no such IPv6 address
        return False


def _now() -> datetime:
    return datetime.now(UTC)
