"""The files that pages are made of besides HTML."""

import re

import pytest

from tests.support.web import Web


async def test_each_file_that_a_page_names_is_there_and_kept_by_the_browser(guarded: Web) -> None:
    page = await guarded.call("GET", "/login")
    named = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert [one.partition("?")[0] for one in named] == ["/static/icon.svg", "/static/tandem.css", "/static/tandem.js"]
    for address in named:
        async with guarded.client.get(address) as answer:
            assert answer.status == 200
            assert "immutable" in answer.headers["Cache-Control"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.content_type in ("image/svg+xml", "text/css", "text/javascript")
        async with guarded.client.get(address.partition("?")[0]) as answer:
            assert answer.headers["Cache-Control"] == "no-cache"  # another version may come under this name


@pytest.mark.parametrize("name", ["nothing.css", "..%2Fapp.py", "%2e%2e%2fapp.py", "tandem.css%00"])
async def test_nothing_else_is(site: Web, name: str) -> None:
    await site.call("GET", f"/static/{name}", expect=404)
