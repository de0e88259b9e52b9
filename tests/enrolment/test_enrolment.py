"""A Mac joins by one line, once; is nobody else; and is cut off at a word."""

import asyncio
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from agent import join as agent_join
from agent.join import to_toml
from agent.settings import load_settings
from coordinator.nats_users import NotReloadedError, OwnServer
from shared.bus import Bus, BusDown, Denied
from shared.client import Client
from shared.joining import invitation_id, invitation_key, line_of, parse_line, seal
from shared.nkey import new_seed, public_key
from shared.states import JobState
from tests.support.fake_mac import FakeMac
from tests.support.fake_ollama import FakeOllama
from tests.support.fake_server import running as serving
from tests.support.processes import UpProcess, clean_environment, tandem, tandem_up
from tests.support.servers import QUICK_S, own_servers
from tests.support.world import eventually_async

AGENT = (sys.executable, "-c", "from agent.cli import main; main()")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up() -> AsyncIterator[UpProcess]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data", TANDEM_PRESENCE_S="1", TANDEM_LEASE_TTL_S="600") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


async def invite(up: UpProcess, worker: str, *flags: str) -> str:
    status, out, error = await tandem("workers", "invite", worker, "--json", "--data", str(up.data), *flags)
    assert status == 0, error
    return json.loads(out)["line"]


async def join(line: str, folder: Path, *flags: str, stdin: str = "") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(*AGENT, "join", line, "--folder", str(folder), *flags),
        env=clean_environment() | {"COLUMNS": "200"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


async def running_agent(folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*AGENT, "run", "--config", str(folder / "agent.toml")),
        env=clean_environment(),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def client_of(up: UpProcess, role: str = "admin") -> Client:
    return Client(up.connection["http"], up.connection["tokens"][role])


def bus_of(up: UpProcess, worker: str, seed: str) -> Bus:
    return Bus(
        up.connection["nats"],
        seed=seed,
        name=f"agent-{worker}-test",
        inbox_prefix=f"_INBOX.{worker}",
        js_prefix="JSJ.API",
        reconnect_delays_s=QUICK_S,
    )


async def test_a_mac_joins_works_and_is_cut_off(up: UpProcess, tmp_path: Path) -> None:
    folder = tmp_path / "mac"
    flags = ("--executor", "sketch", "--set", f"data={tmp_path / 'agent'}")

    status, out, _ = await tandem("workers", "invite", "mini", "--data", str(up.data))
    assert status == 0
    assert out.startswith("tandem-agent join 'http://127.0.0.1:")
    line = out.split("'")[1]
    status, said = await join(line, folder, *flags)
    assert status == 0, said

    settings = load_settings(folder / "agent.toml")
    assert (settings.worker, settings.nats) == ("mini", up.connection["nats"])
    assert settings.read_seed()
    assert stat.S_IMODE((folder / "mini.seed").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "agent.toml").stat().st_mode) == 0o600
    agent = await running_agent(folder)
    try:
        async with client_of(up, "publisher") as client, client_of(up) as admin:
            sent = await client.submit({"kind": "article", "spec": {"prompt": "A walk", "simulate": {"seconds": 600}}})

            async def works() -> bool:
                return (await admin.job(sent.id)).state is JobState.PROCESSING

            await eventually_async(works)

            status, out, error = await tandem("workers", "revoke", "mini", "--data", str(up.data))

            assert (status, out) == (0, "mini revoked; 1 job goes to others\n"), error
            job = await admin.job(sent.id)
            assert job.state is JobState.PENDING
            assert [(a.outcome, a.error["code"]) for a in job.attempts] == [("released", "worker_revoked")]
            assert await admin.workers() == []
            await admin.cancel(sent.id)
    finally:
        await ended(agent)
    assert not (up.data / "identities" / "agents" / "mini.pub").exists()


async def test_a_connection_ends_with_the_key_and_others_stay(up: UpProcess, tmp_path: Path) -> None:
    for worker in ("first", "second"):
        assert (await join(await invite(up, worker), tmp_path, "--executor", "sketch"))[0] == 0
    seeds = {worker: (tmp_path / f"{worker}.seed").read_text().strip() for worker in ("first", "second")}
    async with bus_of(up, "first", seeds["first"]) as first, bus_of(up, "second", seeds["second"]) as second:
        await first.wait_connected(10)
        await second.wait_connected(10)
        connections = second.connections
        lost = asyncio.Event()
        first.on_state(lambda connected: None if connected else lost.set())

        assert (await tandem("workers", "revoke", "first", "--data", str(up.data)))[0] == 0

        async with asyncio.timeout(10):
            await lost.wait()
        assert (second.connected, second.connections) == (True, connections)
    async with bus_of(up, "first", seeds["first"]) as again:
        with pytest.raises(BusDown):
            await again.wait_connected(1.0)


async def test_who_joined_may_do_what_its_name_may_and_no_more(up: UpProcess, tmp_path: Path) -> None:
    assert (await join(await invite(up, "rights"), tmp_path, "--executor", "sketch"))[0] == 0
    async with bus_of(up, "rights", (tmp_path / "rights.seed").read_text().strip()) as bus:
        await bus.wait_connected(10)
        with pytest.raises(Denied):
            await bus.subscribe("tandem.control.mini", lambda _: None)
        await bus.subscribe("tandem.control.rights", lambda _: None)
        bus.denials.clear()
        await bus.publish("tandem.report.mini.1", b"{}")
        await bus.flush()
        assert list(bus.denials) == ["publish to tandem.report.mini.1"]


async def test_a_line_works_once_and_again_only_for_the_same_key(up: UpProcess, tmp_path: Path) -> None:
    line = await invite(up, "once")
    told = parse_line(line)
    key, mine, other = invitation_key(told.secret), public_key(new_seed()), public_key(new_seed())

    def shown(public: str) -> dict[str, str]:
        return {
            "invitation": invitation_id(told.secret),
            "public_key": public,
            "seal": seal(key, "join", "once", public),
        }

    async with aiohttp.ClientSession(up.connection["http"]) as session:

        async def post(body: dict[str, str]) -> int:
            async with session.post("/v1/join", json=body) as answer:
                return answer.status

        assert await post(shown(mine) | {"seal": seal(key, "join", "other", mine)}) == 404
        assert await post(shown(mine) | {"public_key": other}) == 404
        assert await post(shown(mine)) == 200
        assert await post(shown(mine)) == 200
        assert await post(shown(other)) == 404
        assert (up.data / "identities" / "agents" / "once.pub").read_text() == mine
        await tandem("workers", "revoke", "once", "--data", str(up.data))
        assert await post(shown(mine)) == 404


async def test_a_line_expires(up: UpProcess, tmp_path: Path) -> None:
    import asyncpg  # noqa: PLC0415 - only here is the ledger looked into

    line = await invite(up, "late")
    connection = await asyncpg.connect(up.connection["postgres"])
    await connection.execute("UPDATE invitation SET expires_at = tandem_now() WHERE worker = 'late'")
    await connection.close()

    status, said = await join(line, tmp_path, "--executor", "sketch")

    assert (status, "unknown, over, or used up" in said) == (1, True)
    assert not (tmp_path / "late.seed").exists()
    assert not (tmp_path / "agent.toml").exists()


async def test_who_has_joined_is_invited_again_only_to_get_a_new_key(up: UpProcess, tmp_path: Path) -> None:
    flags = ("--executor", "sketch", "--set", "rank=1", "--set", 'log_level="debug"')
    assert (await join(await invite(up, "twice"), tmp_path, *flags))[0] == 0
    before = (tmp_path / "twice.seed").read_text()

    status, _, error = await tandem("workers", "invite", "twice", "--data", str(up.data))
    assert (status, "--replace" in error) == (1, True)
    line = await invite(up, "twice", "--replace")
    status, said = await join("-", tmp_path, stdin=f"tandem-agent join '{line}'\n")
    assert status == 0, said

    after = (tmp_path / "twice.seed").read_text()
    assert after != before
    assert (up.data / "identities" / "agents" / "twice.pub").read_text() == public_key(after)
    assert tomllib.loads((tmp_path / "agent.toml").read_text())["rank"] == 1
    async with bus_of(up, "twice", before.strip()) as old:
        with pytest.raises(BusDown):
            await old.wait_connected(1.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--executor", "sketch", "--set", "ranq=1"), "ranq"),
        (("--executor", "dall-e"), "unknown executor 'dall-e'"),
        (("--executor", "sketch", "--set", "rank"), "not NAME=VALUE"),
    ],
)
async def test_wrong_settings_leave_the_line_good(up: UpProcess, tmp_path: Path, flags, said) -> None:
    line = await invite(up, "careful")

    status, out = await join(line, tmp_path, *flags)

    assert (status, said in out) == (2, True), out
    assert (await join(line, tmp_path, "--executor", "sketch"))[0] == 0
    await tandem("workers", "revoke", "careful", "--data", str(up.data))


async def test_hours_and_power_are_settings_that_flags_write(up: UpProcess, tmp_path: Path) -> None:
    line = await invite(up, "nightly")
    status, said = await join(line, tmp_path, "--executor", "sketch", "--hours", "22:00-25:00")
    assert (status, "rules.hours" in said) == (2, True), said
    flags = ("--hours", "mon-fri 22:00-07:00", "--hours", "sat,sun", "--on-mains", "--battery-above", "40")

    status, said = await join(line, tmp_path, "--executor", "sketch", *flags)

    assert status == 0, said
    rules = load_settings(tmp_path / "agent.toml").rules
    assert rules.hours == ("mon-fri 22:00-07:00", "sat,sun")
    assert (rules.on_mains, rules.battery_above) == (True, 40)


@pytest.mark.parametrize(("charge", "on_mains"), [(80, {"on_mains": True}), (None, {})])
async def test_a_person_is_asked_which_backends_and_when(
    up: UpProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, charge: int | None, on_mains: dict[str, bool]
) -> None:
    """On a terminal; here its answers come from a pipe, Enter the last. A mini is not asked for mains."""
    mac = FakeMac(tmp_path / "mac")
    mac.power("mains", charge)
    monkeypatch.setenv("PATH", mac.path)
    async with serving(FakeOllama()) as ollama:
        monkeypatch.setattr(agent_join, "_BACKENDS", (("ollama", {"url": ollama.url}, "Ollama"),))
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n22:00-7:00\n\n"))
        line = parse_line(await invite(up, f"asked-{charge}".lower()))
        await asyncio.to_thread(agent_join._join, line, tmp_path, [], {}, None, asks=True)

    table = tomllib.loads((tmp_path / "agent.toml").read_text())
    assert table["executors"] == {"ollama": {"url": ollama.url}}
    assert table["rules"] == {"hours": ["22:00-7:00"], **on_mains}
    assert load_settings(tmp_path / "agent.toml").rules.hours == ("22:00-07:00",)


async def test_only_an_administrator_invites_and_revokes(up: UpProcess) -> None:
    for role in ("viewer", "publisher"):
        token = up.connection["tokens"][role]
        for command in ("invite", "revoke"):
            status, _, error = await tandem(
                "workers", command, "mini", "--url", up.connection["http"], "--token", token
            )
            assert (status, "does not allow" in error) == (1, True)


async def test_guessing_is_slowed_down(up: UpProcess) -> None:
    body = {"invitation": "0" * 32, "public_key": public_key(new_seed()), "seal": "0" * 64}
    headers = {"X-Forwarded-For": "203.0.113.9"}
    async with aiohttp.ClientSession(up.connection["http"]) as session:
        found = []
        for _ in range(12):
            async with session.post("/v1/join", json=body, headers=headers) as answer:
                found.append(answer.status)
                waits = answer.headers.get("Retry-After")
    assert found[:10] == [404] * 10
    assert found[-1] == 429
    assert int(waits) >= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_somebody_elses_folder_is_refused(up: UpProcess, tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)

    status, said = await join(await invite(up, "foreign"), tmp_path, "--executor", "sketch")

    assert (status, "belongs to user 12345" in said) == (2, True)


async def test_a_folder_where_others_write_is_refused(up: UpProcess, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)  # noqa: PTH101 - no other way from a coroutine

    status, said = await join(await invite(up, "shared"), tmp_path, "--executor", "sketch")

    assert (status, "chmod 700" in said) == (2, True)


@pytest.mark.parametrize(
    "line",
    [
        "https://tandem.example.org",
        "https://tandem.example.org/join/mini",
        "https://tandem.example.org/join/mini#short",
        "https://tandem.example.org/join/MINI#" + "s" * 32,
        "https://tandem.example.org/x/join/mini#" + "s" * 32,
        "nats://tandem.example.org/join/mini#" + "s" * 32,
    ],
)
def test_what_is_no_line_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(ValueError, match="not a line") as refused:
        parse_line(line)
    assert "#s" not in str(refused.value)


async def test_an_answer_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    """Whoever stands between has no key: it can neither send the Mac elsewhere nor have it trust another CA."""

    async def answer(request: web.Request) -> web.Response:
        told = {"worker": "mini", "nats": "tls://evil.example.org:4222", "ca": ""}
        said = await request.json()
        return web.json_response(told | {"seal": seal(b"guessed", "welcome", "mini", said["public_key"])})

    app = web.Application()
    app.router.add_post("/v1/join", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        line = line_of(f"http://127.0.0.1:{runner.addresses[0][1]}", "mini", "s" * 32)
        status, said = await join(line, tmp_path, "--executor", "sketch")
    finally:
        await runner.cleanup()

    assert (status, "nothing was stored" in said) == (1, True)
    assert not (tmp_path / "agent.toml").exists()


async def test_a_server_of_ones_own_is_told_by_the_command_of_the_settings(tmp_path: Path) -> None:
    """As `nats_reload = ["nats-server", "--signal", "reload=PID"]`: here with the pid of a server that nobody owns."""
    async with own_servers() as servers:
        signal_it = ("kill", "-HUP", str(servers.nats.pid))
        users = OwnServer(servers.nats.folder, signal_it, servers.nats.url)
        seed = new_seed()
        await users.add("own", public_key(seed))
        async with Bus(servers.nats.url, seed=seed, name="own", inbox_prefix="_INBOX.own") as bus:
            await bus.wait_connected(10)
            lost = asyncio.Event()
            bus.on_state(lambda connected: None if connected else lost.set())
            await users.remove("own")
            async with asyncio.timeout(10):
                await lost.wait()
        with pytest.raises(NotReloadedError, match="ended with 3: no such unit"):
            await OwnServer(tmp_path, ("sh", "-c", "echo no such unit; exit 3"), "").add("own", public_key(seed))
        with pytest.raises(NotReloadedError, match="not-there"):
            await OwnServer(tmp_path, ("./not-there",), "").add("own", public_key(seed))


def test_settings_come_out_as_they_went_in() -> None:
    table = {
        "worker": "mini",
        "rank": 1,
        "presence_s": 2.5,
        "resend_s": [1, 2.5],
        "flag": True,
        "text": 'quoted "so" \\ and ü\n, a picture 🖼 and \x00\x1f\x7f\x80\u2028\ufeff',
        "🖼 \x7f": "🖼",
        "executors": {"sketch": {}, "comfyui": {"url": "http://x", "models": {"flux.1": {"files": {"a": "b"}}}}},
    }

    assert tomllib.loads(to_toml(table)) == table
    assert agent_join._given(["executors.sketch.note=a 🖼"]) == {"executors": {"sketch": {"note": "a 🖼"}}}
