"""The GPU and the memory that generators share: one job at a time, models unloaded when memory is short."""

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from agent.executors.base import BackendDown, RunnableJob, Transient
from agent.executors.http import Found, HttpExecutor, HttpSettings
from agent.executors.memory import WAITING, Gpu, Reading, meminfo, read_memory, vm_stat
from agent.executors.registry import Registry
from agent.executors.verdicts import OUT_OF_MEMORY
from agent.puller import Lanes
from shared.wire import Capability, LaneOffer
from tests.support.agent_executor import StringExecutor
from tests.support.fake_mac import FakeMac
from tests.support.servers import eventually
from tests.support.text_rig import CountingClock, Told

GIB = 2**30


class Generator(HttpExecutor):
    """A generator that has a backend; its jobs wait for the test."""

    name: ClassVar[str] = "generator"

    def __init__(self, name, kind, *, gpu=True, need_bytes=None):
        super().__init__(HttpSettings(url="http://127.0.0.1:1", gpu=gpu, retry_s=0.05, look_s=0.05))
        self.name = name
        self.jobs = StringExecutor((kind,))
        self.need = need_bytes
        self.unloads = 0
        self.probing = asyncio.Event()
        self.probe_may_end = asyncio.Event()
        self.probe_may_end.set()
        self.breaks = False
        self.dead = False
        self.model = "m"

    @classmethod
    def from_settings(cls, table):
        raise NotImplementedError

    async def look(self):
        able = [Capability(kind=kind, models=[self.model], executor=self.name) for kind in self.jobs.kinds]
        return Found(capabilities=able, warm=["m"])

    async def generate_a_little(self):
        self.probing.set()
        await self.probe_may_end.wait()
        if self.dead:
            raise BackendDown("probe", "no tiny generation")

    async def work(self, job, progress):
        return await self.jobs.run(job, progress)

    async def next(self):
        return await self.jobs.next()

    async def unload(self):
        self.unloads += 1
        if self.breaks:
            raise RuntimeError

    async def need_bytes(self, _job):
        return self.need


def job(kind, name="j"):
    return RunnableJob(
        id=name, epoch=1, attempt=1, kind=kind, model=None, spec={}, labels={}, open_workspace=lambda: None
    )


@asynccontextmanager
async def machine(*executors, jobs=1, available=64 * GIB):
    """Run executors on one machine of 64 GiB."""

    async def read():
        return None if available is None else Reading(64 * GIB, available)

    clock = CountingClock()
    async with Registry(executors, clock.now, gpu=Gpu(executors, jobs=jobs, read=read)) as registry:
        registry.clock = clock
        await eventually(lambda: all(registry.is_up(executor) for executor in executors))
        yield registry


def begin(registry, executor, name="j", told=None):
    kind = getattr(executor, "jobs", executor).kinds[0]
    work = registry.run(executor, job(kind, name), told or Told())
    return asyncio.create_task(work, name=f"run {name}")


async def test_one_job_at_a_time_uses_the_gpu_and_the_others_wait_in_order():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        assert registry.can_begin("article", "m")
        first = begin(registry, text)
        running = await text.next()
        told = Told()
        second = begin(registry, image, "k", told)
        await eventually(lambda: told.stages == [WAITING])
        assert image.jobs.started == 0
        assert not registry.can_begin("image", "m")
        assert registry.serves("image", "m")
        running.finish("one")
        assert (await first).result == {"text": "one"}
        (await image.next()).finish("two")
        assert (await second).result == {"text": "two"}
        assert registry.can_begin("image", "m")


async def test_more_at_once_if_the_settings_allow_it():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image, jobs=2) as registry:
        works = [begin(registry, text), begin(registry, image)]
        (await text.next()).finish()
        (await image.next()).finish()
        await asyncio.gather(*works)


async def test_what_uses_no_gpu_waits_for_nobody():
    text, remote, plain = (
        Generator("text", "article"),
        Generator("remote", "image", gpu=False),
        StringExecutor(("outline",)),
    )
    async with machine(text, remote, plain) as registry:
        first = begin(registry, text)
        running = await text.next()
        assert registry.can_begin("image", "m")
        assert registry.can_begin("outline", "any")
        works = [begin(registry, remote), begin(registry, plain)]
        (await remote.next()).finish()
        (await plain.next()).finish()
        await asyncio.gather(*works)
        running.finish()
        await first


async def test_a_job_that_is_cancelled_while_it_waits_leaves_the_queue():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        first = begin(registry, text)
        running = await text.next()
        told = Told()
        waiting = begin(registry, image, told=told)
        await eventually(lambda: told.stages)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        running.finish()
        await first
        third = begin(registry, image)
        (await image.next()).finish()
        await third


async def test_what_an_earlier_process_left_running_comes_before_jobs_and_probes():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        text.probe_may_end.clear()
        text.probing.clear()
        registry.clock.moved_s += 301
        await asyncio.wait_for(text.probing.wait(), 10)
        async with registry.going_on("image", "left", 1):
            assert text._proof is None  # it stood aside
            assert not registry.can_begin("article", "m")
            told = Told()
            other = begin(registry, text, "other", told)
            await eventually(lambda: told.stages == [WAITING])
            text.probing.clear()
            await text.once()
            assert not text.probing.is_set()
            taken_up = begin(registry, image, "left")
            running = await image.next()
            assert text.jobs.started == 0
        assert text.jobs.started == 0  # it has its turn: the block says no more
        running.finish()
        await taken_up
        (await text.next()).finish()
        await other


async def test_what_is_given_up_holds_the_gpu_until_it_has_stopped():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        async with registry.going_on("image", "left", 1), registry.going_on("image", "left", 2):
            work = begin(registry, text)
            await eventually(lambda: registry._gpu._none_left._waiters)
        (await text.next()).finish()
        await work
        assert registry.can_begin("image", "m")


async def test_what_goes_on_without_the_gpu_holds_up_nobody():
    text, remote = Generator("text", "article"), Generator("remote", "image", gpu=False)
    async with (
        machine(text, remote) as registry,
        registry.going_on("remote", "left", 1),
        registry.going_on("no longer configured", "left", 2),
    ):
        assert registry.can_begin("article", "m")
        await run_to_end(registry, text)


async def run_to_end(registry, executor):
    work = begin(registry, executor)
    (await executor.next()).finish()
    await work


@pytest.mark.parametrize(
    ("need_gib", "available_gib", "unloads"),
    [
        (None, 64 * 0.25 + 1, 0),
        (None, 64 * 0.25 - 1, 1),
        (20, 20 + 6.4 + 1, 0),
        (20, 20 + 6.4 - 1, 1),
        (0, 1, 0),  # its model is loaded already
    ],
)
async def test_anothers_models_are_unloaded_when_memory_is_short(need_gib, available_gib, unloads):
    need_bytes = None if need_gib is None else need_gib * GIB
    text, image = Generator("text", "article"), Generator("image", "image", need_bytes=need_bytes)
    async with machine(text, image, available=int(available_gib * GIB)) as registry:
        await run_to_end(registry, image)
        assert (text.unloads, image.unloads) == (unloads, 0)


async def test_the_other_way_round_too_and_not_what_is_elsewhere_or_down():
    text, image = Generator("text", "article"), Generator("image", "image")
    remote = Generator("remote", "video", gpu=False)
    async with machine(text, image, remote, available=GIB) as registry:
        await run_to_end(registry, text)
        assert (text.unloads, image.unloads, remote.unloads) == (0, 1, 0)
        text.probe_may_end.clear()
        registry.hold_back(text, "gone")
        await run_to_end(registry, image)
        assert (text.unloads, image.unloads) == (0, 1)


async def test_a_backend_whose_job_runs_keeps_its_models():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image, jobs=2, available=GIB) as registry:
        first = begin(registry, text)
        running = await text.next()
        await run_to_end(registry, image)
        assert text.unloads == 0
        running.finish()
        await first


@pytest.mark.parametrize("available", [None, GIB])
async def test_memory_that_cannot_be_read_or_freed_stops_no_job(available):
    text, image = Generator("text", "article"), Generator("image", "image")
    text.breaks = True
    async with machine(text, image, available=available) as registry:
        await run_to_end(registry, image)
        assert text.unloads == (0 if available is None else 1)


async def test_out_of_memory_unloads_everything_before_anything_else_runs():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        work = begin(registry, image)
        (await image.next()).fail(Transient(OUT_OF_MEMORY, "MPS backend out of memory"))
        with pytest.raises(Transient):
            await work
        assert (text.unloads, image.unloads) == (1, 1)
        work = begin(registry, image)
        (await image.next()).fail(Transient("stalled", "x"))
        with pytest.raises(Transient):
            await work
        assert (text.unloads, image.unloads) == (1, 1)


async def test_an_executor_can_have_the_memory_of_the_others_freed():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        work = begin(registry, image)
        running = await image.next()
        await image.surroundings.free_memory("out of memory")
        assert (text.unloads, image.unloads) == (1, 0)
        running.finish()
        await work


async def test_no_probe_begins_while_anothers_job_runs_and_one_that_runs_stands_aside():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        text.probing.clear()
        text.probe_may_end.clear()
        registry.clock.moved_s += 301
        await asyncio.wait_for(text.probing.wait(), 10)
        work = begin(registry, image)
        running = await image.next()
        assert text._proof is None  # it was stopped before the job began
        text.probing.clear()
        await text.once()
        assert not text.probing.is_set()
        running.finish()
        await work
        text.probe_may_end.set()
        await eventually(text.probing.is_set)


async def test_a_probe_of_what_uses_no_gpu_does_not_stand_aside():
    image, remote = Generator("image", "image"), Generator("remote", "article", gpu=False)
    async with machine(image, remote) as registry:
        remote.probing.clear()
        remote.probe_may_end.clear()
        registry.clock.moved_s += 301
        await asyncio.wait_for(remote.probing.wait(), 10)
        proof = remote._proof
        await run_to_end(registry, image)
        assert remote._proof is proof
        assert not proof.done()


async def test_a_backend_in_doubt_gets_a_turn_for_its_probe_among_the_jobs_of_another():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image) as registry:
        first = begin(registry, image)
        running = await image.next()
        registry.hold_back(text, "doubt")
        await eventually(lambda: text._turn_at is not None)
        text.probing.clear()
        text.probe_may_end.clear()
        registry.clock.moved_s += 31
        await eventually(lambda: registry._gpu._turns._waiters)
        second = begin(registry, image, "k")
        running.finish()
        await first
        await asyncio.wait_for(text.probing.wait(), 10)
        assert not registry.can_begin("image", "m")
        assert image.jobs.started == 1  # the second waits for the probe
        text.probe_may_end.set()
        (await image.next()).finish()
        await second
        await eventually(lambda: registry.is_up(text))


async def test_a_probe_that_has_its_turn_is_not_cut_off_by_a_job_beside_it():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image, jobs=2) as registry:
        first = begin(registry, image)
        running = await image.next()
        registry.hold_back(text, "doubt")
        await eventually(lambda: text._turn_at is not None)
        text.probing.clear()
        text.probe_may_end.clear()
        registry.clock.moved_s += 31
        await asyncio.wait_for(text.probing.wait(), 10)
        proof = text._proof
        running.finish()
        await first
        await run_to_end(registry, image)
        assert text._proof is proof
        assert not proof.done()
        text.probe_may_end.set()
        await eventually(lambda: registry.is_up(text))


async def test_a_backend_that_stays_dead_takes_its_turns_ever_more_seldom():
    text, image = Generator("text", "article"), Generator("image", "image")
    async with machine(text, image, jobs=2) as registry:
        work = begin(registry, image)
        running = await image.next()
        text.dead = True
        registry.hold_back(text, "doubt")
        await eventually(lambda: text._turn_at is not None)
        for pause_s in (31, 61, 121):
            text.probing.clear()
            registry.clock.moved_s += pause_s - 2
            await text.once()
            assert not text.probing.is_set()
            registry.clock.moved_s += 2
            await asyncio.wait_for(text.probing.wait(), 10)
            await eventually(lambda: registry._gpu._running[id(text)] == 0)
        running.finish()
        await work


async def test_a_named_model_of_a_down_backend_does_not_keep_a_job_from_one_that_takes_any():
    text, other = Generator("text", "article"), Generator("other", "article")
    other.model = "*"
    async with machine(text, other) as registry:
        assert registry.find("article", "m") is text
        text.probe_may_end.clear()
        registry.hold_back(text, "gone")
        assert registry.find("article", "m") is other
        other.probe_may_end.clear()
        registry.hold_back(other, "gone too")
        assert registry.find("article", "m") is text


def test_lanes_that_would_wait_for_the_gpu_are_not_pulled_from():
    taken = set()
    lanes = Lanes(can_begin=lambda offer: offer.kind not in taken)
    lanes.offers = [
        LaneOffer(kind=kind, slug="any", consumer=f"{kind}--any") for kind in ("article", "image", "outline")
    ]
    lanes.gave("image--any")
    assert lanes.ordered() == ["image--any", "outline--any", "article--any"]
    taken |= {"article", "image"}
    assert lanes.ordered() == ["outline--any"]
    assert {lanes.next_linger() for _ in range(4)} == {"outline--any"}
    taken.add("outline")
    assert (lanes.ordered(), lanes.next_linger()) == ([], None)


# ---- the registry


async def test_a_job_without_a_model_is_run_by_any_of_its_kind_and_a_down_one_comes_last():
    text, other = Generator("text", "article"), Generator("other", "article")
    async with machine(text, other) as registry:
        assert registry.serves("article", "any")
        assert not registry.serves("image", "any")
        assert registry.find("article", None) is text
        assert registry.find("article", "M") is text
        assert registry.find("article", "n") is None
        text.probe_may_end.clear()
        changes = []
        registry.on_change.append(lambda: changes.append(1))
        registry.hold_back(text, "gone")
        assert changes
        assert registry.find("article", "m") is other
        other.probe_may_end.clear()
        registry.hold_back(other, "gone too")
        assert registry.capabilities() == []
        assert not registry.able()
        assert registry.warm() == []
        assert registry.find("article", "m") is not None  # known, but down: released, not failed
        text.probe_may_end.set()
        await eventually(lambda: registry.is_up(text))
        assert registry.warm() == ["m"]


async def test_executors_that_started_are_ended_when_a_later_one_can_not_start():
    text = Generator("text", "article")

    class Broken(StringExecutor):
        async def start(self):
            raise KeyError

    with pytest.raises(KeyError):
        async with Registry([text, Broken()], CountingClock().now):
            pass
    assert text._task.done()


# ---- reading memory

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            400000.
Pages inactive:                          300000.
Pages speculative:                         2000.
Pages throttled:                              0.
Pages wired down:                        200000.
Pages purgeable:                            500.
"Translation faults":                 123456789.
File-backed pages:                       150000.
"""


def test_vm_stat_is_read():
    reading = vm_stat(VM_STAT, 16 * GIB)
    assert reading == Reading(16 * GIB, (10000 + 300000 + 2000 + 500) * 16384)
    assert vm_stat("nonsense", 16 * GIB) is None


def test_meminfo_is_read():
    assert meminfo("MemTotal:  1024 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n") == Reading(2**20, 2**19)
    assert meminfo("MemTotal:  1024 kB\n") is None


async def test_a_mac_is_asked_by_vm_stat(tmp_path, monkeypatch):
    mac = FakeMac(tmp_path / "mac")
    mac.say("vm_stat", "", VM_STAT)
    monkeypatch.setenv("PATH", mac.path)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert (await read_memory()).available_bytes == (10000 + 300000 + 2000 + 500) * 16384
    mac.say("vm_stat", "", None)
    assert await read_memory() is None


async def test_this_machines_memory_can_be_read():
    reading = await read_memory()
    assert 0 < reading.available_bytes <= reading.total_bytes
