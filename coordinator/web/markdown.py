"""What a generator wrote, as HTML that is safe to show: Markdown without HTML in it, sanitised once more. Pure.

No images: one from elsewhere would tell its owner who looks at this page. Their descriptions are shown.
"""

from collections.abc import Sequence
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

MOST: Final = 100_000
"""Characters of a text that are rendered: a page is no place for more, and rendering takes its time."""

_TAGS: Final = {
    *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s"),
    *("strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
_ATTRIBUTES: Final[dict[str, set[str]]] = {"a": {"href", "title"}, "ol": {"start"}}
_SCHEMES: Final = {"http", "https", "mailto"}


def _image(self: RendererProtocol, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    described: Any = self
    text = described.renderInlineAsText(tokens[index].children or [], options, env)
    return f"<em>[image: {escapeHtml(text)}]</em>"


def _only_whole_addresses(_: str, name: str, value: str) -> str | None:
    """Drop a link that would lead to a page of our own."""
    return value if name != "href" or value.partition(":")[0].lower() in _SCHEMES else None


def _renderer() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.add_render_rule("image", _image)
    return made


_RENDERER: Final = _renderer()


def render_markdown(text: str) -> Markup:
    """Return the text as HTML; takes up to a second for a long one: call it in a thread."""
    html = _RENDERER.render(text[:MOST])
    clean = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        attribute_filter=_only_whole_addresses,
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # noqa: S704 - sanitised just now
