"""An article as a site stores it: Markdown to HTML that no reader has to fear, and whether the site kept it. Pure.

HTML in the text stays text. An image is shown if it is one of the job's own files, by its name; one from elsewhere
would be on the site's pages what its owner makes of it, so that only its description stays.
"""

import hashlib
import re
from collections.abc import Mapping
from html import unescape
from typing import Final

import nh3

from coordinator import markdown

_TAGS: Final = {*markdown.TAGS, "img"}
_ATTRIBUTES: Final = {**markdown.ATTRIBUTES, "img": {"src", "alt"}}
_MORE: Final = re.compile(
    r"<(?:img|video|audio|iframe|embed|object|svg|form)\b|<!--\s*wp:(?!(?:paragraph|heading)\b)", re.IGNORECASE
)
"""What a post holds besides text: the plugin `deploy/cms/wordpress` has the same."""


def render(text: str, urls: Mapping[str, str]) -> str:
    """Return Markdown as HTML; `urls` says where the job's files are. May take a second: call it in a thread."""
    return _clean(markdown.render(text, urls))


def is_same(sent: str, kept: str) -> bool:
    """Say whether what a site kept reads and looks as what it was sent; sites write tags and spaces their own way."""
    return _plain(sent) == _plain(kept)


def digest(html: str) -> str:
    """Return what tells one text from another, whoever wrote its tags; `is_same` has the same digest."""
    return hashlib.sha256(_plain(html).encode()).hexdigest()


def is_empty(html: str) -> bool:
    """Say whether a post holds nothing that anybody could miss."""
    return not unescape(nh3.clean(html, tags=set())).strip() and _MORE.search(html) is None


def _clean(html: str) -> str:
    return nh3.clean(html, tags=_TAGS, attributes=_ATTRIBUTES, url_schemes=set(markdown.SCHEMES), link_rel=None)


def _plain(html: str) -> str:
    return " ".join(_clean(html).split())
