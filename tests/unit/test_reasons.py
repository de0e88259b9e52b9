"""Why a worker gets nothing, from what it announced of itself."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from coordinator.ledger.queries import Queries, WorkerRow
from coordinator.reasons import Reasons
from coordinator.workers import Directory
from shared.states import WorkerState
from shared.wire import Presence

ARTICLES = {"kind": "article", "models": ["llama3.1:8b"], "executor": "ollama"}
IMAGES = {"kind": "image", "models": ["flux"], "executor": "comfyui"}
WORK = frozenset({"article.llama3-1-8b"})


def reasons(*, wanted: WorkerState = WorkerState.READY, age_s: float = 1.0, **said: Any) -> Reasons:
    """Return those of a world with one worker, `mini`."""
    presence = Presence.model_validate({"instance": "i", "capabilities": [ARTICLES], **said})
    now = datetime.now(UTC)
    row = WorkerRow("mini", None, "i", frozenset(), now, now, presence, wanted, age_s)
    directory = Directory(cast("Queries", None), presence_s=10.0, rows={"mini": row})
    return Reasons(directory, lambda _: False)


def test_nothing_stands_in_the_way_of_a_worker_that_serves_a_lane_with_work():
    assert reasons().of_worker("mini", WORK) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"wanted": WorkerState.PAUSED}, "told to be paused"),
        ({"state": "unhealthy"}, "unhealthy"),
        ({"facts": {"not_pulling": "no space for results"}}, "no space for results"),
        ({"age_s": 600.0}, "away 10 min"),
    ],
)
def test_what_stands_in_the_way_of_all_its_lanes_is_the_one_reason(how, why):
    assert reasons(**how).of_worker("mini", WORK) == [why]


def test_a_backend_that_is_down_is_named_beside_the_lanes_that_are_served():
    assert reasons(down=[IMAGES]).of_worker("mini", WORK) == ["backend down: image, flux"]
    assert reasons(down=[IMAGES], capabilities=[]).of_worker("mini", WORK) == [
        "backend down: image, flux",
        "no lane that it serves has work",
    ]


def test_a_worker_that_nobody_heard_of_never_announced_itself():
    assert reasons().of_worker("studio", WORK) == ["never announced itself"]
