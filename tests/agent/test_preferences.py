"""Which work goes where: the loaded model's first, for a while; and the agent of the better rank is asked first."""

from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from agent.executors.ollama import OllamaExecutor
from agent.puller import FAIR_RUN, Lanes
from shared.streams import consumer_info
from shared.wire import LaneOffer
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import agent, settings_for
from tests.support.comfyui_rig import Time
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_server import Script, running
from tests.support.servers import eventually, own_servers
from tests.support.text_rig import QUICK, CountingClock
from tests.support.world import eventually_async
from tests.support.world import world as open_world

WAIT_S = 60
LONG_PULL_S = 10


@pytest_asyncio.fixture(loop_scope="session", name="world")
async def own_world(ledger_dsn, tmp_path):
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path) as made:
        yield made


# ---- warm models first


class Desk:
    """Lanes of models, of which some are loaded, and the clock by which they wait."""

    def __init__(self, *slugs, warm=(), wait_s=WAIT_S):
        self.warm, self.now = set(warm), Time()
        self.lanes = Lanes(is_warm=lambda offer: offer.slug in self.warm, now=self.now, warm_wait_s=wait_s)
        self.lanes.offers = [LaneOffer(kind="article", slug=slug, consumer=slug) for slug in slugs]

    def served(self, slug, times=1):
        for _ in range(times):
            self.lanes.asked(slug)
            self.lanes.gave(slug)


def test_the_lanes_of_loaded_models_go_first():
    assert Desk("a", "b", "c", warm="c").lanes.ordered() == ["c", "a", "b"]
    assert Desk("a", "b", "c", warm="bc").lanes.ordered() == ["b", "c", "a"]
    assert Desk("a", "b", "c").lanes.ordered() == ["a", "b", "c"]


def test_no_lane_waits_longer_for_a_loaded_model_than_is_set():
    desk = Desk("a", "b", "c", warm="c")
    assert desk.lanes.ordered() == ["c", "a", "b"]
    desk.now.s += 10
    desk.lanes.asked("a")  # in vain: nothing waited there
    desk.now.s += WAIT_S - 10.5
    desk.served("c")
    assert desk.lanes.ordered() == ["c", "a", "b"]
    desk.now.s += 1
    assert desk.lanes.ordered() == ["b", "c", "a"]
    desk.now.s += 10
    assert desk.lanes.ordered() == ["b", "a", "c"]  # who waits longer goes first
    desk.served("b")
    desk.served("a")
    assert desk.lanes.ordered() == ["a", "c", "b"]  # a: its model was just used


def test_a_loaded_model_keeps_its_work_however_many_jobs_there_are():
    desk = Desk("a", "b", "c", warm="a")
    desk.served("a", FAIR_RUN + 3)
    assert desk.lanes.ordered()[0] == "a"


def test_loaded_models_take_turns():
    desk = Desk("a", "b", "c", warm="ab")
    desk.served("a", FAIR_RUN)
    assert desk.lanes.ordered() == ["b", "a", "c"]


def test_a_lane_that_comes_anew_has_not_waited():
    desk = Desk("a", "b", warm="a")
    desk.lanes.ordered()
    desk.now.s += WAIT_S - 1
    desk.served("a")
    desk.lanes.offers = [*desk.lanes.offers, LaneOffer(kind="article", slug="new", consumer="new")]
    assert desk.lanes.ordered() == ["a", "b", "new"]
    desk.now.s += 1
    assert desk.lanes.ordered() == ["b", "a", "new"]


def test_without_a_limit_the_loaded_model_always_goes_first():
    desk = Desk("a", "b", warm="b", wait_s=0)
    desk.lanes.ordered()
    desk.now.s += 1e6
    assert desk.lanes.ordered() == ["b", "a"]


@pytest.mark.parametrize(
    ("waited_s", "order"),
    [(0, ["tiny", "tiny", "tiny", "llama3.1:8b"]), (WAIT_S + 1, ["tiny", "llama3.1:8b", "tiny", "tiny"])],
)
async def test_an_agent_takes_the_work_of_its_loaded_model_first_for_a_while(world, tmp_path, waited_s, order):
    clock = CountingClock()
    async with ollama_in(world, tmp_path, clock) as server:
        server.scripts.append(Script(hang_after=1))
        first = await world.submit()  # from a third lane; a loaded model does it
        await eventually(lambda: server.words_sent)
        jobs = [first] + [await world.submit(model=model) for model in ("llama3.1:8b", "tiny", "tiny")]
        await eventually_async(lambda: offered(world, "article--llama3-1-8b", 1))
        await eventually_async(lambda: offered(world, "article--tiny", 2))
        clock.moved_s += waited_s
        server.resume.set()
        for job in jobs:
            await world.until(job["id"], "completed")
        assert [request.body["model"].removesuffix(":latest") for request in server.real] == order


@asynccontextmanager
async def ollama_in(world, folder, clock):
    """Run an agent with a server that has one of its two models loaded."""
    settings = settings_for(world.servers, "mini", folder / "agent", warm_wait_s=WAIT_S)
    world.servers.nats.reload()
    async with running(FakeOllama()) as server:
        server.loaded["tiny:latest"] = {}
        executor = OllamaExecutor.from_settings({"url": server.url, "models": ["llama3.1:8b", "tiny"], **QUICK})
        async with agent(settings, executor, clock=clock):
            await eventually(executor.warm)
            yield server


async def offered(world, consumer, count):
    """Whether so many messages of a lane wait to be pulled."""
    info = await consumer_info(world.coordinator.bus, "WORK", consumer)
    return info is not None and info["num_pending"] == count


# ---- rank


async def test_the_agent_of_the_better_rank_gets_all_work_while_it_has_a_free_slot(world, tmp_path):
    mini, macbook = StringExecutor(), StringExecutor()
    both = {"linger_s": LONG_PULL_S}
    async with AsyncExitStack() as stack:
        for name, rank, executor in (("macbook", 1, macbook), ("mini", 0, mini)):  # the worse one waits longer
            settings = settings_for(world.servers, name, tmp_path / name, rank=rank, **both)
            world.servers.nats.reload()
            await stack.enter_async_context(agent(settings, executor))
        for _ in range(5):
            await eventually_async(lambda: pulls(world, 2))
            job = await world.submit()
            (await mini.next()).finish()
            await world.until(job["id"], "completed")
        await eventually_async(lambda: pulls(world, 2))
        await world.submit()
        busy = await mini.next()
        await eventually_async(lambda: pulls(world, 1))
        job = await world.submit()
        (await macbook.next()).finish()  # what the better one leaves
        await world.until(job["id"], "completed")
        busy.finish()
        await eventually_async(lambda: pulls(world, 2))
        job = await world.submit()
        (await mini.next()).finish()
        await world.until(job["id"], "completed")
    assert (mini.started, macbook.started) == (7, 1)


async def pulls(world, count):
    """Whether so many pulls wait on the lane."""
    info = await consumer_info(world.coordinator.bus, "WORK", "article--any")
    return info is not None and info["num_waiting"] == count
