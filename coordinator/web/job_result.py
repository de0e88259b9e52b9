"""What came out of a job, made ready to be looked at: its text, and its files with previews.

Nothing of it becomes HTML but Markdown, and that sanitised (`markdown.py`).
"""

import asyncio
from typing import Any, Final

import orjson
from markupsafe import Markup

from coordinator.artifacts import MissingContentError, StoreDownError, artifact_url
from coordinator.ledger import views
from coordinator.web.context import WebContext
from coordinator.web.markdown import MOST, render_markdown

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif", "image/avif"})
_TEXTS: Final = frozenset({"text/plain", "text/markdown", "text/csv", "application/json"})
_MOST_FILES: Final = 20  # with a preview
_MOST_BYTES: Final = 64 * 1024  # of a file's text


async def result_of(context: WebContext, job: views.Row) -> dict[str, Any]:
    """Return the `text` (Markdown, rendered), its `source`, the `rest` as JSON, and `files` with their previews."""
    result = dict(job["result"] or {})
    text = result.pop("text", None)
    source = text if isinstance(text, str) else None
    if text is not None and source is None:
        result["text"] = text
    files = [await _file(context, job, one, preview=n < _MOST_FILES) for n, one in enumerate(job["artifacts"])]
    return {
        "text": await _rendered(source) if source is not None and _is_markdown(job) else None,
        "source": source[:MOST] if source is not None else None,
        "is_cut": source is not None and len(source) > MOST,
        "rest": pretty(result) if result else None,
        "files": files,
    }


def pretty(value: Any) -> str:
    """Return JSON for people."""
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()[:MOST]


def _is_markdown(job: views.Row) -> bool:
    return bool(job["kind"] == "article" and job["spec"].get("format", "markdown") == "markdown")


async def _rendered(source: str) -> Markup:
    return await asyncio.to_thread(render_markdown, source)


async def _file(context: WebContext, job: views.Row, file: views.Row, *, preview: bool) -> dict[str, Any]:
    shown = {**file, "href": artifact_url("", job["id"], file["name"]), "is_image": False, "text": None, "html": None}
    if not preview or file["trimmed_at"] is not None:
        return shown
    shown["is_image"] = file["media_type"] in _IMAGES
    if file["media_type"] in _TEXTS:
        text = await _read(context, file)
        if text is not None and file["media_type"] == "text/markdown":
            shown["html"] = await _rendered(text)
        elif text is not None and file["media_type"] == "application/json":
            shown["text"] = _as_json(text)
        else:
            shown["text"] = text
    return shown


def _as_json(text: str) -> str:
    try:
        return pretty(orjson.loads(text))
    except orjson.JSONDecodeError:  # cut short, or none
        return text


async def _read(context: WebContext, file: views.Row) -> str | None:
    """Return the beginning of a file; None if it can't be read now."""
    try:
        chunks = [chunk async for chunk in context.store.read(file["sha256"], 0, _MOST_BYTES)]
    except (MissingContentError, StoreDownError):
        return None
    return b"".join(chunks).decode("utf-8", "replace")
