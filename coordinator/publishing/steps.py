"""The steps of a publication: images, then the post that asked; each once, whoever goes on after a crash.

The post is looked at first, and again before it is updated: nothing comes to one in the trash (an update that sets a
status would fetch it back), and where `replace` is off, nobody's text or featured image is replaced but our own. Each
image is uploaded under a slug that is the same for every repeat and is looked for before; then the post is updated, and
what the site kept is held against what was sent. The id that the site gave is stored after each step, so that the next
try begins at the next one, and doubles nothing. A text that is older than what a newer job brought to the same post is
not published any more. Whoever was held up so long that another try began does nothing more.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from coordinator.artifacts import ArtifactStore, MissingContentError
from coordinator.ledger.publications import PublicationRow, Publications
from coordinator.publishing.article import digest, is_empty, is_same, render
from coordinator.publishing.smaller import MOST_BYTES, smaller
from coordinator.publishing.verdicts import AgainError, DeniedError, FailedError, TooLargeError
from coordinator.publishing.wordpress import Media, Upload, WordPress
from shared.failpoints import Failpoint, reach

_log = structlog.get_logger()

_SIZES_TRIES: Final = 3
"""A site that can't make an image's smaller sizes so often goes without them."""

_ENDINGS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
    "image/avif": "avif",
}
"""What is uploaded, and under which ending; a site goes by it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Publishes on one site."""

    publications: Publications
    store: ArtifactStore
    wordpress: WordPress
    shrinking: asyncio.Lock  # whoever makes an image smaller holds it, and so much memory only once

    async def publish(self, row: PublicationRow) -> None:
        """Do each step that is not done; raises FailedError, AgainError, SiteError."""
        if row.superseded:
            msg = "superseded: the job was begun anew, or a newer one's result is for the same post"
            raise FailedError(msg)
        if row.post is None or not (row.post.isascii() and row.post.isdigit()):
            msg = f"the job's label wordpress_post is {row.post!r}, not the number of a post"
            raise FailedError(msg[:300])
        try:
            await self._steps(row, row.post)
        except DeniedError as error:
            await self.wordpress.check()  # SiteError: it is the user, and so for every post
            msg = f"{error} (the user may do all that is needed: it is this post)"
            raise FailedError(msg) from error

    async def _steps(self, row: PublicationRow, post: str) -> None:
        await self._there(post)
        images = [file for file in row.artifacts if file["media_type"] in _ENDINGS]
        media = {file["name"]: await self._media(row, post, file) for file in images}
        fields = await self._fields(row, media)
        if not fields:
            msg = "nothing to publish: the result has no text, and no image that becomes the post's"
            raise FailedError(msg)
        fields = await self._unwritten(row, fields, await self._there(post))
        await self._still(row)
        if "content" in fields:
            await self._keep(row, "text", {"sha256": await asyncio.to_thread(digest, fields["content"])})
        reach(Failpoint.POST_UNSENT)
        kept = await self.wordpress.update(post, fields)
        reach(Failpoint.POST_UNNOTED)
        lost = await asyncio.to_thread(_lost, fields, kept)
        if lost:
            msg = f"the site took the update of post {post}, and did not keep: {', '.join(lost)}"
            raise FailedError(msg)
        await self._keep(row, "post", {"id": kept["id"], "url": kept.get("link")})

    async def _there(self, post: str) -> dict[str, Any]:
        """Return the post as it is now; FailedError if it is in the trash."""
        found = await self.wordpress.post(post)
        if found.get("status") == "trash":
            msg = f"post {post} is in the trash"
            raise FailedError(msg)
        return found

    async def _unwritten(
        self, row: PublicationRow, fields: Mapping[str, Any], there: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields that replace nothing of anybody else; FailedError if the text would."""
        left = dict(fields)
        if self.wordpress.site.replace is not False:
            return left
        done = [step for steps in await self.publications.steps_of(row.job_id) for step in steps.items()]
        text = _raw(there)
        ours = {known["sha256"] for name, known in done if name == "text"}
        if "content" in left and not is_empty(text) and digest(text) not in {*ours, digest(left["content"])}:
            msg = "the post has a text by now that is not replaced (the site's setting `replace` is off)"
            raise FailedError(msg)
        media = {known["id"] for name, known in done if name.startswith("media:")}
        if there.get("featured_media") and there["featured_media"] not in media:
            left.pop("featured_media", None)
        if not left:
            msg = "the post has a featured image by now that is not replaced (the site's setting `replace` is off)"
            raise FailedError(msg)
        return left

    async def _media(self, row: PublicationRow, post: str, file: dict[str, Any]) -> Media:
        """Return the attachment that this file is on the site: as stored, found, or uploaded now."""
        step = f"media:{file['sha256']}"
        done = row.steps.get(step)
        found = Media(done["id"], done["url"], whole=done["whole"]) if done else None
        if found is None:
            found = await self._found_or_uploaded(row, post, file)
            reach(Failpoint.MEDIA_UNSTORED)
            await self._keep_media(row, step, found, tries=0)
        if found.whole and found.url is not None:
            return found
        tries = done.get("tries", 0) + 1 if done else 1
        try:
            found = await self.wordpress.finish(found.id)
        except AgainError:
            if tries < _SIZES_TRIES:
                await self._keep_media(row, step, found, tries=tries)
                raise
            _log.warning("image without its smaller sizes", job_id=str(row.job_id), media=found.id, source=row.source)
        await self._keep_media(row, step, Media(found.id, found.url, whole=found.url is not None), tries=tries)
        return found

    async def _found_or_uploaded(self, row: PublicationRow, post: str, file: dict[str, Any]) -> Media:
        slug = f"tandem-{row.job_id}-{file['sha256'][:12]}"
        found = await self.wordpress.find(slug)
        if found is not None:
            return found
        name = f"{slug}.{_ENDINGS[file['media_type']]}"
        upload = Upload(slug, name, file["media_type"], file["size"], await self._md5(file["sha256"]), post)
        await self._still(row)
        reach(Failpoint.MEDIA_UNSENT)
        try:
            return await self.wordpress.upload(upload, self._content(file["sha256"]))
        except TooLargeError as error:
            return await self._upload_smaller(upload, file["sha256"], error)

    async def _upload_smaller(self, upload: Upload, sha256: str, error: TooLargeError) -> Media:
        """Upload what is too large for a web server once more, as a JPEG for the screen; raises `error` if it can't."""
        if upload.size > MOST_BYTES:
            raise error
        async with self.shrinking:
            jpeg = await asyncio.to_thread(smaller, b"".join([chunk async for chunk in self._content(sha256)]))
        if jpeg is None or len(jpeg) >= upload.size:
            raise error
        md5 = hashlib.md5(jpeg, usedforsecurity=False).hexdigest()
        less = replace(upload, name=f"{upload.slug}.jpg", media_type="image/jpeg", size=len(jpeg), md5=md5)
        return await self.wordpress.upload(less, _once(jpeg))

    async def _still(self, row: PublicationRow) -> None:
        """Make sure that this try counts: whoever was stopped here must not go on beside another."""
        await self._keep(row, "try", {"number": row.attempts})

    async def _keep_media(self, row: PublicationRow, step: str, media: Media, *, tries: int) -> None:
        await self._keep(row, step, {"id": media.id, "url": media.url, "whole": media.whole, "tries": tries})

    async def _keep(self, row: PublicationRow, step: str, known: Mapping[str, Any]) -> None:
        """Keep what was done; AgainError if this try is not the one that counts any more."""
        if not await self.publications.step(row, step, known):
            msg = "another try began meanwhile"
            raise AgainError(msg)

    async def _fields(self, row: PublicationRow, media: Mapping[str, Media]) -> dict[str, Any]:
        """Return what the post is to hold."""
        site = self.wordpress.site
        fields: dict[str, Any] = {}
        text = (row.result or {}).get("text")
        if isinstance(text, str) and text.strip():
            urls = {name: one.url for name, one in media.items() if one.url}
            fields["content"] = await asyncio.to_thread(render, text, urls)
            if site.status is not None:
                fields["status"] = site.status
        if site.featured and media:
            fields["featured_media"] = next(iter(media.values())).id
        return fields

    async def _md5(self, sha256: str) -> str:
        made = hashlib.md5(usedforsecurity=False)
        async for chunk in self._content(sha256):
            made.update(chunk)
        return made.hexdigest()

    async def _content(self, sha256: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.store.read(sha256):
                yield chunk
        except MissingContentError as error:
            msg = f"the file {sha256} is gone from the store"
            raise FailedError(msg) from error


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _raw(post: Mapping[str, Any]) -> str:
    """Return a post's text as the site has it."""
    content = post.get("content")
    raw = content.get("raw") if isinstance(content, Mapping) else None
    return raw if isinstance(raw, str) else ""


def _lost(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """Return which of the fields that were sent the site does not have: it answers 200 all the same."""
    lost = []
    if "content" in sent:
        lost += ["content"] * (not is_same(sent["content"], _raw(kept)))
    if "status" in sent:
        fine = {sent["status"], "future"} if sent["status"] == "publish" else {sent["status"]}
        lost += [f"status (it is {kept.get('status')})"] * (kept.get("status") not in fine)
    elif kept.get("status") == "trash":
        lost.append("anything: it is in the trash")
    if "featured_media" in sent and kept.get("featured_media") != sent["featured_media"]:
        lost.append("featured_media")
    return lost
