"""An agent with rules in a whole Tandem: what it takes and leaves, what it says of it, what an operator changes."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import psutil
import pytest
import pytest_asyncio

from agent.leases import Leases
from agent.rule_watch import RulesFile, RuleWatch
from agent.settings import load_settings
from shared import subjects
from shared.bus import Bus
from shared.rules import Reading, Rules
from shared.wire import LaneOffer
from tests.support.agent_executor import StringExecutor
from tests.support.agent_world import agent, settings_for
from tests.support.comfyui_rig import Time
from tests.support.fake_mac import FakeMac
from tests.support.servers import eventually, own_servers
from tests.support.world import world as open_world

QUICK = {"rules_s": 0.05, "presence_s": 0.2}
LONG_PULL_S = 10


@pytest.fixture(name="mac")
def mac_on_path(tmp_path, monkeypatch):
    tools = FakeMac(tmp_path / "mac")
    monkeypatch.setenv("PATH", tools.path)
    return tools


@pytest_asyncio.fixture(loop_scope="session", name="world")
async def own_world(ledger_dsn, tmp_path):
    async with own_servers() as servers, open_world(servers, ledger_dsn, tmp_path, presence_s=0.2) as made:
        yield made


def with_rules(world, folder, worker="macbook", **more):
    rules = Rules.model_validate(more.pop("rules", {}))
    settings = settings_for(world.servers, worker, folder / worker, rules=rules, **{**QUICK, **more})
    world.servers.nats.reload()
    return settings


async def says(world, reason, worker="macbook"):
    """Wait until the coordinator has heard why (None: nothing) a worker takes no work."""

    def heard():
        row = world.coordinator.directory.rows.get(worker)
        return row is not None and row.presence.facts.get("not_pulling") == reason

    await eventually(heard)


# ---- a rule closes and opens


async def test_on_battery_it_takes_nothing_and_says_so_until_it_is_on_mains(world, mac, tmp_path):
    executor = StringExecutor()
    mac.power("battery", 80)
    async with agent(with_rules(world, tmp_path, rules={"on_mains": True}), executor):
        await says(world, "on_battery")
        job = await world.submit()
        assert (await world.job(job["id"]))["state"] == "pending"
        assert not world.coordinator.directory.free("article.any")
        mac.power("mains", 81)
        await says(world, None)
        (await executor.next()).finish()
        await world.until(job["id"], "completed")


async def test_a_running_job_goes_on_when_a_rule_closes_and_nothing_new_begins(world, mac, tmp_path):
    executor = StringExecutor()
    async with agent(with_rules(world, tmp_path, rules={"on_mains": True}, slots=2), executor):
        running, later = await world.submit(), None
        generation = await executor.next()
        mac.power("battery", 99)
        await says(world, "on_battery")
        later = await world.submit()
        generation.finish()
        await world.until(running["id"], "completed")
        assert (await world.job(later["id"]))["state"] == "pending"
        assert executor.started == 1
        mac.power("mains", 99)
        (await executor.next()).finish()
        await world.until(later["id"], "completed")


async def test_a_rule_that_stops_gives_the_running_job_to_another_and_charges_nothing(world, mac, tmp_path):
    executor = StringExecutor()
    rules = {"battery_above": 30, "stops": ["battery_above"]}
    async with agent(with_rules(world, tmp_path, rules=rules), executor) as macbook:
        job = await world.submit()
        generation = await executor.next()
        mac.power("battery", 30)
        assert (await macbook.end()).how == "released"
        assert generation.cancelled.is_set()
        mini = await world.puppet("mini")
        held = await mini.take()
        assert (str(held.job_id), held.grant["epoch"], held.grant["attempt"]) == (job["id"], 2, 1)


async def test_what_is_not_readable_takes_no_running_job_away(world, mac, tmp_path):
    executor = StringExecutor()
    rules = {"battery_above": 30, "stops": ["battery_above"]}
    async with agent(with_rules(world, tmp_path, rules=rules), executor):
        job = await world.submit()
        generation = await executor.next()
        mac.say("pmset", "-g batt", None)
        await says(world, "power_unknown")
        mac.power("mains", 30)
        await says(world, None)
        generation.finish()
        assert (await world.until(job["id"], "completed"))["result_epoch"] == 1


async def test_what_is_not_readable_forbids_and_the_reason_says_so(world, mac, tmp_path):
    mac.say("ioreg", "-c IOHIDSystem -d 4 -r -k HIDIdleTime", None)
    async with agent(with_rules(world, tmp_path, rules={"idle_s": 60}), StringExecutor()):
        await says(world, "idle_unknown")
        mac.idle(5)
        await says(world, "user_active")
        mac.idle(61)
        await says(world, None)


# ---- caffeinate


async def test_the_mac_is_kept_awake_only_while_a_lease_is_held(world, mac, tmp_path):
    executor = StringExecutor()
    async with agent(with_rules(world, tmp_path), executor):
        assert mac.caffeinated == []
        for number in (1, 2):
            job = await world.submit()
            generation = await executor.next()
            await eventually(lambda number=number: len(mac.caffeinated) == number)
            child = psutil.Process(mac.caffeinated[-1])
            assert child.is_running()
            generation.finish()
            await world.until(job["id"], "completed")
            await eventually(lambda child=child: not child.is_running())
    assert [call.split()[:3] for call in mac.calls if call.startswith("caffeinate")] == [["caffeinate", "-i", "-w"]] * 2


# ---- who changes rules


async def test_what_the_coordinator_says_counts_instead_of_the_settings(far, mac, servers, tmp_path):
    settings = settings_for(servers, "mini", tmp_path / "mini", rules=Rules(on_mains=True), **QUICK)
    mac.power("battery", 50)
    executor = StringExecutor()
    far.rules = {"battery_above": 40}
    async with agent(settings, executor):
        await far.offer()
        (await executor.next()).finish()
        await far.report()
        assert far.presences[-1]["facts"]["rules"] == {"battery_above": 40, "by": "coordinator"}
        far.rules = {"battery_above": 60}
        await eventually(lambda: far.presences[-1]["facts"]["not_pulling"] == "battery_low")
        assert far.presences[-1]["facts"]["forbidden"] == ["50 %; works on battery above 60 %"]
        far.rules = {"phase_of_the_moon": "full"}  # a newer coordinator's: what stands goes on
        await eventually(lambda: "phase_of_the_moon" in far.presences[-1]["facts"].get("rules_fault", ""))
        assert far.presences[-1]["facts"]["not_pulling"] == "battery_low"
        far.rules = None
        await eventually(lambda: far.presences[-1]["facts"]["not_pulling"] == "on_battery")
        assert far.presences[-1]["facts"]["rules"] == {"on_mains": True, "by": "settings"}


async def test_rules_changed_on_the_page_stop_an_agent_which_says_why_until_its_own_count_again(world, mac, tmp_path):
    mac.power("battery", 50)
    executor = StringExecutor()
    async with agent(with_rules(world, tmp_path, rules={"battery_above": 40}), executor):
        await says(world, None)
        first = await world.submit()
        (await executor.next()).finish()
        await world.until(first["id"], "completed")

        await by_form(world, "/workers/macbook/rules", battery_above="60", sure="yes")
        await says(world, "battery_low")
        job = await world.submit()
        page = await world.page("/workers")
        assert '<span class="sub idle">battery_low</span>' in page
        assert "on battery above 60 % only" in page
        assert "50 %; works on battery above 60 %" in await world.page("/workers/macbook/rules")
        assert (await world.job(job["id"]))["state"] == "pending"

        await by_form(world, "/workers/macbook/rules/clear")
        (await executor.next()).finish()
        await world.until(job["id"], "completed")
        assert "on battery above 40 % only" in await world.page("/workers")
    assert executor.started == 2


async def test_rules_that_change_in_the_settings_file_count_without_a_restart(tmp_path):
    file = tmp_path / "agent.toml"

    def write(rules):
        file.write_text(f'worker = "mini"\n[executors.sketch]\n[rules]\n{rules}\n')

    write("on_mains = true")
    watch = RuleWatch(
        load_settings(file).rules,
        leases(),
        Time(),
        on_change=lambda: None,
        read=constant(Reading(mains=True, battery=10)),
        reload=RulesFile(file, lambda: load_settings(file).rules),
    )
    assert watch.reason() == "rules_not_read"
    await watch.once()
    assert watch.reason() is None
    write('battery_above = 50\nhours = ["08:00-09:00"]')
    watch.wall = lambda: datetime(2026, 1, 1, 12, tzinfo=UTC)
    await watch.once()
    assert watch.reason() == "outside_hours"
    write("battery_above = 5000")  # wrong: what stood there counts
    await watch.once()
    assert watch.rules.battery_above == 50
    file.unlink()
    await watch.once()
    assert watch.reason() == "outside_hours"


async def test_the_program_takes_changed_rules_from_its_file_while_it_runs(far, mac, servers, tmp_path):
    file, seed = tmp_path / "agent.toml", tmp_path / "mini.seed"
    seed.write_text(servers.nats.identities.add_agent("mini"))
    seed.chmod(0o600)
    plain = (
        f'worker = "mini"\nnats = "{servers.nats.url}"\nseed_file = "{seed}"\ndata = "{tmp_path / "data"}"\n'
        "rules_s = 0.05\n[executors.sketch]\n"
    )
    file.write_text(plain)
    mac.power("battery", 70)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "agent", "run", "--config", str(file)),
        env={"PATH": mac.path, "HOME": str(tmp_path)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: far.presences and far.presences[-1]["facts"]["not_pulling"] is None)
        file.write_text(plain + "[rules]\non_mains = true\n")
        await eventually(lambda: far.presences[-1]["facts"]["not_pulling"] == "on_battery")
        file.write_text(plain)
        await eventually(lambda: far.presences[-1]["facts"]["not_pulling"] is None)
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_a_change_is_told_once():
    reading, changes = [Reading(mains=True)], []

    async def read(_):
        return reading[0]

    watch = RuleWatch(
        Rules(on_mains=True), leases(), Time(), on_change=lambda: changes.append(watch.reason()), read=read
    )
    for mains in (True, True, False, False, True):
        reading[0] = Reading(mains=mains)
        await watch.once()
    assert changes == [None, "on_battery", None]


# ---- overflow


def test_overflow_leaves_a_lane_to_better_agents_until_they_are_busy_or_it_has_waited():
    time = Time()
    watch = RuleWatch(Rules(overflow=True, overflow_after_s=60), leases(), time, on_change=lambda: None)

    def offer(better_free, pending=1):
        made = LaneOffer(kind="article", slug="any", consumer="a", pending=pending, better_free=better_free)
        watch.offered([made])
        return made

    assert watch.may_take(offer(0))
    assert watch.may_take(offer(None))  # a coordinator that does not say: the ranks decide
    assert not watch.may_take(offer(1))
    time.s += 59
    assert not watch.may_take(offer(1))
    time.s += 1
    assert watch.may_take(offer(1))
    assert not watch.may_take(offer(1, pending=0))  # taken
    time.s += 59
    assert not watch.may_take(offer(1))
    assert (watch.rank(0), watch.rank(3)) == (1, 3)


async def test_the_macbook_steps_in_only_when_the_mini_cannot_keep_up(world, tmp_path):
    mini, macbook = StringExecutor(), StringExecutor()
    async with AsyncExitStack() as stack:
        second = with_rules(world, tmp_path, rules={"overflow": True, "overflow_after_s": 3600}, linger_s=LONG_PULL_S)
        await stack.enter_async_context(agent(second, macbook))
        first = with_rules(world, tmp_path, "mini", linger_s=LONG_PULL_S)
        await stack.enter_async_context(agent(first, mini))
        await free_says(world, 1)
        for _ in range(4):
            job = await world.submit()
            (await mini.next()).finish()
            await world.until(job["id"], "completed")
        await world.submit()
        busy = await mini.next()
        job = await world.submit()
        (await macbook.next()).finish()
        await world.until(job["id"], "completed")
        busy.finish()
    assert (mini.started, macbook.started) == (5, 1)


async def test_an_agent_that_leaves_work_to_others_does_it_all_when_it_is_alone(world, tmp_path):
    executor = StringExecutor()
    async with agent(with_rules(world, tmp_path, rules={"overflow": True}), executor):
        job = await world.submit()
        (await executor.next()).finish()
        await world.until(job["id"], "completed")


async def by_form(world, path, **fields):
    """Send a form of the page as a browser does."""
    csrf = re.search(r'name="csrf" value="(\w+)"', await world.page(path))[1]
    async with world.http.post(path, data={"csrf": csrf, **fields}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/workers")


async def free_says(world, count):
    """Wait until the coordinator would tell an agent of rank 1 that so many better slots are free."""
    lane = subjects.lane_of("article", None)
    await eventually(lambda: world.coordinator.directory.better_free(lane, 1) == count)


def leases():
    return Leases(Bus("nats://127.0.0.1:1", name="never opened"), "mini", "process", Time(), timeout_s=1)


def constant(reading):
    async def read(_):
        return reading

    return read
