"""What an answer of WordPress means: done, again later, never, or ask the site how it stands. Pure functions.

Each rule is from traffic with real sites (WordPress 6.1 to 7.1). An answer counts as done only if it is 200 or 201 and
JSON: with plain permalinks a POST to `/wp-json/` is answered 200 with the home page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import orjson

from coordinator.retry_after import asked_s
from shared.errors import TandemError

MOST_ASKED_S: Final = 3600.0
"""A site may ask to be left alone for so long."""

UNSURE_S: Final = 60.0
"""After an answer that leaves open what was done, nobody asks before: PHP's time (30 s) is over then."""

FEW: Final = 4
"""So often is tried what does not get better by waiting."""

_DENIED = (401, 403)
_LEFT_OPEN = (408, 500, 502, 504)
_BUSY = (425, 429, 503)
_TOO_LARGE = 413
_MISMATCH = 412


class PublishingError(TandemError):
    """Something could not be published; the subclasses say what is to be done."""


class FailedError(PublishingError):
    """It can't be published as it is."""


class TooLargeError(FailedError):
    """The web server takes no file of this size."""


class AgainError(PublishingError):
    """It is to be tried again, not before `after_s`; `few`: only a few times."""

    def __init__(self, why: str, *, after_s: float = 0.0, few: bool = False) -> None:
        super().__init__(why)
        self.after_s = after_s
        self.few = few


class DeniedError(PublishingError):
    """The site refused: because of the user, or of this one post; a check of the user tells."""


class MovedError(AgainError):
    """The REST API is not where it was thought to be: look for it, then try again."""


class SiteError(PublishingError):
    """Nothing can be published on this site, until a person mends it."""


@dataclass(frozen=True)  # no slots: what is read once is kept
class Answer:
    """What the site said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def json(self) -> Any:
        """The body's JSON, also behind warnings that PHP shows; None if there is none. First asked for in a thread."""
        for start in (0, self.body.find(b'{"')):
            try:
                return orjson.loads(self.body[start:]) if start >= 0 else None
            except orjson.JSONDecodeError:
                continue
        return None

    @property
    def attachment(self) -> int | None:
        """The attachment that this upload made, even if the answer is an error."""
        found = self.headers.get("X-WP-Upload-Attachment-ID", "")
        return int(found) if found.isascii() and found.isdigit() else None


def content_of(answer: Answer, now: datetime) -> Any:
    """Return what a good answer holds, an object with an id or a list; raises a PublishingError for every other."""
    body = answer.json
    error = body if isinstance(body, dict) else {}
    if answer.status in (200, 201):
        if isinstance(body, list) or isinstance(error.get("id"), int):
            return body
        msg = f"answered {answer.status} without JSON: the REST API is somewhere else"
        raise MovedError(msg)
    code = str(error.get("code", ""))[:80]
    why = f"{answer.status} {code}: {str(error.get('message', ''))[:200]}" if code else str(answer.status)
    raise _fault(answer, code, why, now)


def _fault(answer: Answer, code: str, why: str, now: datetime) -> PublishingError:
    status = answer.status
    if 300 <= status < 400:  # noqa: PLR2004
        return MovedError(f"{status}: redirects to {answer.headers.get('Location', 'nowhere')[:200]}")
    if status in _DENIED:
        return DeniedError(why)
    if status == _TOO_LARGE:
        return TooLargeError(f"{why}: the web server takes no file of this size")
    if status == _MISMATCH:  # cut or changed on its way; nothing was stored
        return AgainError(why, few=True)
    if code == "rest_no_route" or (status == 404 and not code):  # noqa: PLR2004
        return MovedError(why)
    if code == "rest_upload_sideload_error":  # a file type that the site refuses, in its own language; or no room
        return FailedError(why) if "file type" in why else AgainError(why, few=True)
    if code == "rest_upload_unknown_error":
        return FailedError(why)
    if status in _BUSY:
        return AgainError(why, after_s=_left_alone_s(answer, now))
    if status in _LEFT_OPEN or status > 500:  # noqa: PLR2004
        return AgainError(why, after_s=UNSURE_S)
    return FailedError(why)


def _left_alone_s(answer: Answer, now: datetime) -> float:
    return min(max(asked_s(answer.headers.get("Retry-After"), now) or 0.0, 0.0), MOST_ASKED_S)
