"""A coordinator dies around a callback; another one starts. The receiver is told, each time by the same webhook-id."""

import asyncio

import pytest

from coordinator.callbacks import TAKEN_S
from shared.failpoints import Failpoint
from tests.callbacks.receiver import receiving
from tests.callbacks.test_callbacks import LOCAL, until
from tests.crash.failpoint_rig import Rig


@pytest.mark.parametrize("point", [Failpoint.CALLBACK_UNSENT, Failpoint.CALLBACK_UNNOTED, Failpoint.RESULT_UNMARKED])
async def test_a_callback_outlives_its_coordinator(rig: Rig, point: Failpoint) -> None:
    async with receiving() as receiver:
        async with rig.dying_coordinator(point, callback_allow=["127.0.0.0/8"]):
            await rig.ready()
            receiver.secret = (rig.world.settings.secrets / "callback.key").read_text().strip()
            body = {"kind": "article", "spec": {"prompt": "A"}, "callback_url": receiver.url}
            answer = await rig.post("/v1/jobs", body)
            assert answer is not None
            job_id = answer[1]["id"]
            cancelling = asyncio.create_task(rig.post(f"/v1/jobs/{job_id}/cancel"), name="cancel")
        await cancelling
        heard = len(receiver.heard)
        assert heard == (1 if point is Failpoint.CALLBACK_UNNOTED else 0)
        await rig.restart(callback_allow=LOCAL)
        await rig.world.move_clock(TAKEN_S)
        rig.world.coordinator.callbacks.wake()
        await until(rig.world, job_id, "delivered_at")
        assert set(receiver.ids) == {f"{job_id}:0"}
        assert len(receiver.heard) == heard + 1
