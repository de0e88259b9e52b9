"""A coordinator dies around a step of a publication; another one goes on. On the site nothing is lost or doubled."""

from typing import Any

import pytest

from coordinator.publishing.publisher import TAKEN_S
from shared.failpoints import Failpoint
from tests.callbacks.publishing import until, wordpress
from tests.crash.failpoint_rig import Rig
from tests.support.fake_wordpress import PASSWORD, fake_wordpress

MET = {  # what the site had got when the coordinator died: uploads, updates
    Failpoint.RESULT_UNMARKED: (0, 0),
    Failpoint.MEDIA_UNSENT: (0, 0),
    Failpoint.MEDIA_UNSTORED: (1, 0),
    Failpoint.POST_UNSENT: (2, 0),
    Failpoint.POST_UNNOTED: (2, 1),
}


JOB = {"kind": "image", "key": "one", "spec": {"prompt": "A harbour", "width": 64, "height": 64, "n": 2}}


@pytest.mark.parametrize("point", list(MET))
async def test_a_publication_outlives_its_coordinator(rig: Rig, point: Failpoint) -> None:
    async with fake_wordpress() as site:
        post = site.draft()
        setting: dict[str, Any] = {"local": {"url": site.url, "user": "tandem", "app_password": PASSWORD}}
        async with rig.dying_coordinator(point, wordpress=setting) as process:
            await rig.ready()
            async with rig.agent():
                answer = await rig.post("/v1/jobs", {**JOB, "labels": {"wordpress_post": str(post)}})
                assert answer is not None
                await process.died()
        assert (site.uploads, len(site.updates)) == MET[point]
        await rig.restart(wordpress=wordpress(site))
        await rig.world.move_clock(TAKEN_S)
        rig.world.coordinator.publisher.wake()
        found = await until(rig.world, answer[1]["id"])
        assert len(site.media) == site.uploads == 2
        assert site.posts[post]["featured_media"] == min(site.media)
        assert len({str(update) for update in site.updates}) == 1
        assert {step["id"] for step in found["steps"].values() if "id" in step} == {post, *site.media}
