"""How much does not get out, as the overview says it."""

import re
from datetime import UTC, datetime

import pytest

from tests.support.web import Web

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def unpublished(site: Web, count: int, *, failed: bool = False, error: str | None = None) -> None:
    await site.pool.execute(
        "INSERT INTO publication (job_id, epoch, source, kind, asked_at, since, failed_at, next_at, error)"
        " SELECT gen_random_uuid(), 1, 'blog', 'article', $2, $2, $3, $4, $5 FROM generate_series(1, $1::int)",
        count,
        NOW,
        NOW if failed else None,
        None if failed else NOW,
        error,
    )


async def held_back(site: Web) -> str:
    """Return what the overview says; empty if it is hidden."""
    page = await site.call("GET", "/")
    found = re.search(r'<ul class="held-back" id="held-back"[^>]*?( hidden)?>(.*?)</ul>', page, re.DOTALL)
    assert found is not None
    text = re.sub(r"<[^>]*>|\s+", " ", found[2]).strip()
    assert bool(found[1]) == (not text)
    return " ".join(text.split())


async def test_nothing_is_said_while_everything_gets_out(site: Web) -> None:
    assert await held_back(site) == ""
    site.context.sparing.forget("held back")
    await unpublished(site, 3)  # not tried yet
    assert await held_back(site) == ""


@pytest.mark.parametrize(
    ("failed", "retried", "said"),
    [
        (1, 0, "1 result not published"),
        (2, 1, "2 results not published 1 publication to be tried again"),
        (0, 2, "2 publications to be tried again"),
        (60, 60, "100+ results not published yet"),
    ],
)
async def test_what_failed_is_told_from_what_is_tried_again(site: Web, failed: int, retried: int, said: str) -> None:
    await unpublished(site, failed, failed=True, error="404")
    await unpublished(site, retried, error="503")
    assert await held_back(site) == said


async def test_many_that_were_not_tried_yet_hide_none_that_failed(site: Web) -> None:
    await unpublished(site, 1, failed=True, error="404")
    await unpublished(site, 150)
    assert await held_back(site) == "100+ results not published yet"
