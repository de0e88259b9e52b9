"""Markdown as HTML, and what such HTML may hold: for pages of our own, and for posts in a CMS. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

TAGS: Final = frozenset(
    {
        *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s"),
        *("strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    }
)
"""What Markdown becomes, besides images."""

ATTRIBUTES: Final[Mapping[str, set[str]]] = MappingProxyType({"a": {"href", "title"}, "ol": {"start"}})
SCHEMES: Final = frozenset({"http", "https", "mailto"})

_NO_FILES: Final[Mapping[str, str]] = MappingProxyType({})


def render(text: str, urls: Mapping[str, str] = _NO_FILES, *, missing: str = "{}") -> str:
    """Return Markdown as HTML that is still to be sanitised; HTML in it stays text. May take a second.

    An image is shown if `urls` has its name; of another one only the description, in the words of `missing`.
    """
    html: str = _RENDERER.render(text, {"urls": urls, "missing": missing})
    return html


def _image(self: RendererProtocol, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    renderer: Any = self
    described = escapeHtml(renderer.renderInlineAsText(tokens[index].children or [], options, env))
    url = env["urls"].get(str(tokens[index].attrGet("src") or "").removeprefix("./"))
    if url:
        return f'<img src="{escapeHtml(url)}" alt="{described}">'
    return f"<em>{env['missing'].format(described)}</em>"


def _renderer() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.add_render_rule("image", _image)
    return made


_RENDERER: Final = _renderer()
