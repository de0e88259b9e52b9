"""Where `replace` is off, what others put into a post meanwhile stays; our own text does not stand in the way."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.callbacks.publishing import all_published, anew, made, picture, publishing, until
from tests.support.fake_wordpress import FakeWordPress
from tests.support.world import World, eventually_async

Rig = tuple[World, FakeWordPress]


@pytest_asyncio.fixture(loop_scope="session")
async def careful(ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with publishing(ledger_dsn, tmp_path, replace=False) as made_rig:
        yield made_rig


def holding(text: str) -> dict[str, Any]:
    return {"content": {"raw": text, "rendered": text}}


@pytest.mark.parametrize("text", ["<p>By hand.</p>", '<img src="a.png">', "<!-- wp:latest-posts /-->"])
async def test_what_somebody_wrote_meanwhile_is_not_replaced(careful: Rig, text: str) -> None:
    world, site = careful
    post = site.draft(**holding(text))
    found = await until(world, await made(world, post), "failed_at")
    assert "has a text by now" in found["error"]
    assert (site.posts[post]["content"]["raw"], site.updates) == (text, [])


async def test_an_empty_block_is_no_text(careful: Rig) -> None:
    world, site = careful
    post = site.draft(**holding("<!-- wp:paragraph -->\n<p>&nbsp;</p>\n<!-- /wp:paragraph -->"))
    await until(world, await made(world, post, text="Ours"))
    assert site.posts[post]["content"]["raw"] == "<p>Ours</p>\n"


async def test_our_own_text_is_replaced_by_the_next_one_unless_somebody_changed_it(careful: Rig) -> None:
    world, site = careful
    post = site.draft()
    job_id = await made(world, post, text="First")
    await until(world, job_id)
    await anew(world, job_id, "Second")
    await eventually_async(lambda: all_published(world, job_id, 2))
    site.posts[post] |= holding("<p>Second, and better</p>")
    await anew(world, job_id, "Third")
    await eventually_async(lambda: _begun(world, job_id, 3))
    found = await until(world, job_id, "failed_at")
    assert "has a text by now" in found["error"]
    assert site.posts[post]["content"]["raw"] == "<p>Second, and better</p>"


async def test_an_update_whose_answer_was_lost_is_known_for_our_own(careful: Rig) -> None:
    world, site = careful
    site.post_troubles.append("stored, then dropped")
    await until(world, await made(world, site.draft(), images={"hero.png": picture()}))
    assert site.updates[0] == site.updates[1]


async def test_a_featured_image_that_somebody_chose_stays(careful: Rig) -> None:
    world, site = careful
    post = site.draft(featured_media=4711)
    await until(world, await made(world, post, images={"hero.png": picture()}))
    assert (site.posts[post]["featured_media"], len(site.updates)) == (4711, 1)
    only = await made(world, post, text=None, images={"hero.png": picture()})
    assert "has a featured image by now" in (await until(world, only, "failed_at"))["error"]


async def _begun(world: World, job_id: str, many: int) -> bool:
    return len((await world.job(job_id))["publications"]) == many
