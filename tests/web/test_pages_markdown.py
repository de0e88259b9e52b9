"""What a generator wrote is shown as text with a form, never as anything that acts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.web.markdown import MOST, render_markdown

TAGS = {
    *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s"),
    *("strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}


def test_markdown_is_shown_with_its_form() -> None:
    html = render_markdown(
        "# Bees\n\nThey *hum*, `x < y`:\n\n| a | b |\n|---|---|\n| 1 | ~~2~~ |\n\n1. [more](https://example.org/?a=1&b=2)"
    )
    for part in ("<h1>Bees</h1>", "<em>hum</em>", "<code>x &lt; y</code>", "<td>1</td>", "<s>2</s>", "<ol>"):
        assert part in html
    assert '<a href="https://example.org/?a=1&amp;b=2" rel="noopener noreferrer nofollow">more</a>' in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](JaVaScRiPt:alert(1))",
        "<javascript:alert(1)>",
        "<style>body{display:none}</style>",
        "<svg/onload=alert(1)>",
        '```"><script>alert(1)</script>\ncode\n```',
        '[x](https://example.org "\\"><script>alert(1)</script>")',
        "![<script>alert(1)</script>](https://example.org/pixel.png)",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "[sign in](/login)",
    ],
)
def test_nothing_in_it_acts(text: str) -> None:
    _acts_not(render_markdown(text))


def test_an_image_is_its_description() -> None:
    html = render_markdown("![A <b>bee</b>](https://example.org/bee.png)")
    assert html.strip() == "<p><em>[image: A &lt;b&gt;bee&lt;/b&gt;]</em></p>"


def test_a_long_text_is_cut() -> None:
    assert len(render_markdown("a" * (2 * MOST))) < MOST + 100


@given(st.text(alphabet=st.sampled_from("<>\"'=&;:/()[]!`*_# \n\tabcjonsrcipt\x00\ufffd\u2028"), max_size=200))
def test_no_text_makes_a_tag_that_is_not_known(text: str) -> None:
    _acts_not(render_markdown(text))


def _acts_not(html: str) -> None:
    tags = re.findall(r"<\s*/?\s*([a-zA-Z][^\s/>]*)([^>]*)>", html)
    for name, attributes in tags:
        assert name in TAGS, html
        assert not re.search(r"(?i)(?:^|\s)(?:on\w+|style|src|id|class)\s*=", re.sub(r'"[^"]*"', "", attributes)), html
        assert not re.search(r'(?i)href\s*=\s*"\s*(?!https?:|mailto:)', attributes), html


def test_a_text_that_was_rendered_is_not_rendered_again() -> None:
    text = "*Once* " * 100
    assert render_markdown(text) is render_markdown(text)
    assert render_markdown("a" * MOST) is render_markdown("a" * MOST + "b"), "no more is kept than is shown"
