"""What a generator wrote, as HTML that is safe to show: Markdown without HTML in it, sanitised once more. Pure.

No images: one from elsewhere would tell its owner who looks at this page. Their descriptions are shown.
"""

from functools import lru_cache
from typing import Final

import nh3
from markupsafe import Markup

from coordinator.markdown import ATTRIBUTES, SCHEMES, TAGS, render

MOST: Final = 100_000
"""Characters of a text that are rendered: a page is no place for more, and rendering takes its time."""


def _only_whole_addresses(_: str, name: str, value: str) -> str | None:
    """Drop a link that would lead to a page of our own."""
    return value if name != "href" or value.partition(":")[0].lower() in SCHEMES else None


def render_markdown(text: str) -> Markup:
    """Return the text as HTML; takes up to a second for a long one that is new: call it in a thread."""
    return _rendered(text[:MOST])


@lru_cache(maxsize=32)
def _rendered(text: str) -> Markup:
    html = render(text, missing="[image: {}]")
    clean = nh3.clean(
        html,
        tags=set(TAGS),
        attributes=dict(ATTRIBUTES),
        url_schemes=set(SCHEMES),
        attribute_filter=_only_whole_addresses,
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # noqa: S704 - sanitised just now
