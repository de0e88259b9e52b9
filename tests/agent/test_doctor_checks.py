"""What the doctor says of the way to the server and of the machine: each fault by its step, with its cure."""

import asyncio
import errno
import socket
import ssl
import struct
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from agent.connection import tls_context
from agent.doctor import examine
from agent.doctor_link import examine_link, local_network_cure
from agent.doctor_machine import examine_machine, examine_versions
from agent.settings import AgentSettings
from agent.sntp import skew_s
from shared.nkey import new_seed
from shared.rules import Rules
from tests.support.agent_world import settings_for
from tests.support.certificates import certificate
from tests.support.fake_mac import CUSTOM_MACBOOK, CUSTOM_MINI, FakeMac
from tests.support.servers import own_servers


@pytest.fixture(name="mac")
def mac_on_path(tmp_path, monkeypatch):
    fakes = FakeMac(tmp_path / "mac")
    monkeypatch.setenv("PATH", fakes.path)
    return fakes


def trusting(file):
    context = ssl.create_default_context()
    context.load_verify_locations(file)
    return context


# ---- the way to the server


async def test_a_good_way_is_said_with_the_servers_version(servers, far):
    seed = servers.nats.identities.add_agent("mini")
    found = await examine_link(servers.nats.url, seed=seed, tls=None)
    assert (found.ok, found.said.startswith("name, TCP, key are right, not encrypted, nats-server 2.")) == (True, True)


async def test_a_name_that_is_none(far):
    found = await examine_link("nats://nowhere.invalid:4222", seed=None, tls=None)
    assert (found.ok, found.said.startswith("name: nowhere.invalid: ")) == (False, True)
    assert "DNS" in found.todo


async def test_a_port_where_nothing_listens():
    found = await examine_link("nats://127.0.0.1:1", seed=None, tls=None)
    assert found.said == f"TCP: 127.0.0.1 port 1: Connection refused (errno {errno.ECONNREFUSED})"
    assert "nothing listens there" in found.todo


def refusing(number):
    async def connect(host, port):
        raise OSError(number, "No route to host")

    return connect


@pytest.mark.parametrize("number", [65, errno.EHOSTUNREACH])
async def test_errno_65_on_a_private_address_is_macos_local_network_permission(mac, number):
    found = await examine_link("nats://192.168.1.10:4222", seed=None, tls=None, connect=refusing(number))
    assert found.said == f"TCP: 192.168.1.10 port 4222: No route to host (errno {number})"
    assert "Privacy & Security > Local Network" in found.todo


@pytest.mark.parametrize("address", ["203.0.113.7", "192.168.1.1", "127.0.0.1"])  # the internet, the router, loopback
async def test_errno_65_elsewhere_is_none(mac, address):
    found = await examine_link(f"nats://{address}:4222", seed=None, tls=None, connect=refusing(65))
    assert "Local Network" not in found.todo
    assert "check the network" in found.todo


@pytest.mark.parametrize(("url", "is_it"), [("http://192.168.1.9:11434", True), ("http://127.0.0.1:11434", False)])
async def test_errno_65_of_a_backend_is_that_permission_too(mac, url, is_it):
    cure = await local_network_cure(url, connect=refusing(65))
    assert ("Local Network" in (cure or "")) is is_it


async def test_errno_65_is_nothing_of_macos_on_linux(monkeypatch):
    found = await examine_link("nats://192.168.1.10:4222", seed=None, tls=None, connect=refusing(errno.EHOSTUNREACH))
    assert "Local Network" not in found.todo


async def test_a_firewall_that_drops(monkeypatch):
    async def connect(host, port):
        raise TimeoutError

    found = await examine_link("nats://203.0.113.7:4222", seed=None, tls=None, connect=connect)
    assert "no answer within" in found.said
    assert "wss://" in found.todo


@asynccontextmanager
async def port_that_says(greeting):
    async def greet(_, writer):
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"INFO {broken\r\n"])
async def test_another_program_answers(greeting):
    async with port_that_says(greeting) as port:
        found = await examine_link(f"nats://127.0.0.1:{port}", seed=None, tls=None)
    assert found.said == "TCP: connected, but no NATS server answers"


async def test_a_certificate_is_judged(tmp_path):
    good = certificate(tmp_path)
    async with own_servers(tls=good) as servers:
        seed, url = servers.nats.identities.add_agent("mini"), servers.nats.url.replace("nats://", "tls://")
        servers.nats.reload()
        async with servers.open("agent:mini", tls=trusting(good[0]), url=url):
            pass  # the server knows the identity by now
        found = await examine_link(url, seed=seed, tls=trusting(good[0]))
        assert (found.ok, found.said.startswith("name, TCP, TLS, key are right")) == (True, True), found
        found = await examine_link(url, seed=seed, tls=None)
        assert (found.ok, "self-signed" in found.said, "ca_file" in found.todo) == (False, True, True)
        named = url.replace("127.0.0.1", "localhost")
        found = await examine_link(named, seed=seed, tls=trusting(good[0]))
        assert (found.ok, "write the name" in found.todo) == (False, True), found


async def test_a_certificate_that_is_over_points_at_the_clock_too(tmp_path):
    over = certificate(tmp_path, ends=datetime.now(UTC) - timedelta(days=1))
    async with own_servers(tls=over) as servers:
        found = await examine_link(servers.nats.url, seed=new_seed(), tls=trusting(over[0]))
    assert (found.said, "clock" in found.todo) == ("TLS: certificate: certificate has expired", True)


async def test_tls_that_the_server_does_not_speak(servers, far):
    found = await examine_link(servers.nats.url.replace("nats:", "tls:"), seed=new_seed(), tls=None)
    assert found.said == "TLS: the server speaks none"
    assert found.todo.startswith("have the server speak TLS: `tandem up --listen NAME`")
    assert found.todo.endswith("only if it is on this very machine (127.0.0.1)")


async def test_a_key_that_the_server_does_not_know(servers, far):
    found = await examine_link(servers.nats.url, seed=new_seed(), tls=None)
    assert (found.ok, found.said.lower().startswith("key: ")) == (False, True)
    assert "authorization violation" in found.said.lower()
    assert "invited again" in found.todo


async def test_a_key_of_another_worker_fails_at_the_rights(servers, far, tmp_path):
    settings = settings_for(servers, "mini", tmp_path, executors={"sketch": {}}, time_server="")
    faults = [one for one in await examine(settings.model_copy(update={"worker": "other"})) if not one.ok]
    assert [(one.what, one.said) for one in faults] == [("coordinator", "the server refuses this worker's subjects")]


async def test_a_way_that_fails_beside_one_that_works_is_no_fault(servers, far, tmp_path):
    """As on a network that blocks 4222, or with one of three nodes down: the agent works."""
    far.answer_lease = lambda _: {"lease": "lost", "reason": "stale"}
    settings = settings_for(servers, "mini", tmp_path, executors={"sketch": {}}, time_server="")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # longer than the doctor waits for a connection
        blocked = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        found = {
            one.what: one for one in await examine(settings.model_copy(update={"nats": f"{blocked},{settings.nats}"}))
        }
    assert all(one.ok for one in found.values())
    assert found[f"server {blocked}"].said.startswith("not this way, another works (TCP: connected, but no NATS server")
    assert found["coordinator"].said == "answers this worker"
    found = await examine(settings.model_copy(update={"nats": "nats://127.0.0.1:1,nats://127.0.0.1:2"}))
    assert [one.what for one in found if not one.ok] == ["server nats://127.0.0.1:1", "server nats://127.0.0.1:2"]


async def test_a_coordinator_that_is_too_far_from_this_version_is_a_fault(servers, far, tmp_path):
    far.answer_lease = lambda _: {"lease": "lost", "reason": "stale", "version": "99.0.0"}
    settings = settings_for(servers, "mini", tmp_path, executors={"sketch": {}}, time_server="")
    (fault,) = (one for one in await examine(settings) if not one.ok)
    assert (fault.what, "the coordinator 99.0.0" in fault.said) == ("both versions", True)
    assert fault.todo.startswith("upgrade the agent first")


@pytest.mark.parametrize(
    ("agents", "coordinators", "ok", "todo"),
    [
        ("0.2.0", "0.2.7", True, ""),
        ("0.2.0", "0.3.0.dev1+local", True, ""),
        ("0.2.0", None, True, ""),  # 0.1.0 did not say
        ("0.3.0", None, False, "upgrade the coordinator first"),
        ("0.2.0", "0.4.0", False, "upgrade the agent first"),
        ("1.0.0", "0.9.0", False, "upgrade the coordinator first"),
        ("0.2.0", "what", False, "upgrade the coordinator first"),
    ],
)
def test_which_versions_work_together(monkeypatch, agents, coordinators, ok, todo):
    monkeypatch.setattr("importlib.metadata.version", lambda _: agents)
    found = examine_versions(coordinators)
    assert found.ok == ok
    assert ok or found.todo.startswith(todo)


# ---- the machine


def machine(**more):
    return AgentSettings(worker="mini", time_server="", **more)


async def found_of(settings):
    return {one.what: one for one in await examine_machine(settings)}


async def test_a_mini_that_sleeps_stays_off_and_logs_nobody_in(mac):
    mac.power("mains")
    mac.sleep_settings(CUSTOM_MINI.format(sleep=10, autorestart=0))
    found = await found_of(machine())
    assert {name for name, one in found.items() if not one.ok} == {"sleep", "power cut", "login"}
    assert "sudo pmset -a sleep 0" in found["sleep"].todo
    assert "sudo pmset -a autorestart 1" in found["power cut"].todo
    assert "automatically log in as" in found["login"].todo
    assert "FileVault" not in found["login"].todo
    mac.say("fdesetup", "status", "FileVault is On.\n")
    assert "needs FileVault off" in (await found_of(machine()))["login"].todo


async def test_a_mini_that_is_set_right(mac):
    mac.power("mains")
    mac.sleep_settings(CUSTOM_MINI.format(sleep=0, autorestart=1))
    mac.say("defaults", "read /Library/Preferences/com.apple.loginwindow autoLoginUser", "anna\n")
    assert all(one.ok for one in (await found_of(machine())).values())


async def test_a_macbook_may_sleep_and_is_told_what_that_means(mac):
    found = await found_of(machine())
    assert (found["sleep"].ok, "sleeps after 1 idle min on mains" in found["sleep"].said) == (True, True)
    assert "login" not in found
    mac.sleep_settings(CUSTOM_MACBOOK.format(sleep=0))
    assert (await found_of(machine()))["sleep"].said.startswith("stays awake on mains")


async def test_what_pmset_does_not_say_is_a_fault(mac):
    mac.say("pmset", "-g custom", None)
    assert not (await found_of(machine()))["sleep"].ok


async def test_rules_are_held_against_the_machine_and_unreadable_ones_are_named(mac):
    mac.power("battery", 20)
    rules = Rules(battery_above=50)
    found = (await found_of(machine(rules=rules)))["rules"]
    assert (found.ok, found.said) == (True, "20 %; works on battery above 50 %")
    mac.say("notifyutil", "-g com.apple.system.thermalpressurelevel", None)
    found = (await found_of(machine(rules=Rules(thermal="heavy"))))["rules"]
    assert (found.ok, "take thermal out of [rules]" in found.todo) == (False, True)


async def test_a_drain_that_is_longer_than_a_service_may_take():
    found = (await found_of(machine(drain_limit_s=26)))["drain"]
    assert (found.ok, found.todo) == (False, "set drain_limit_s to 25 at most")
    assert (await found_of(machine(drain_limit_s=25)))["drain"].ok


async def test_homebrews_python_is_a_fault(tmp_path, monkeypatch):
    """By where the environment's python leads."""
    assert (await found_of(machine()))["versions"].ok
    python = tmp_path / "python"
    python.symlink_to("/opt/homebrew/Cellar/python@3.12/3.12.7/bin/python3.12")
    monkeypatch.setattr(sys, "executable", str(python))
    found = (await found_of(machine()))["versions"]
    assert (found.ok, "Homebrew replaces this Python" in found.todo) == (False, True)


# ---- the clock


class TimeServer(asyncio.DatagramProtocol):
    def __init__(self, ahead_s, stratum):
        self.ahead_s, self.stratum = ahead_s, stratum

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        at = struct.pack("!d", 0.0)
        now = datetime.now(UTC).timestamp() + self.ahead_s + 2208988800
        at = struct.pack("!II", int(now), int((now % 1) * 2**32))
        self.transport.sendto(bytes([0x24, self.stratum]) + bytes(22) + data[40:48] + at + at, address)


@asynccontextmanager
async def time_server(ahead_s=0.0, stratum=2):
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: TimeServer(ahead_s, stratum), ("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 90.0])
async def test_the_clock_is_held_against_a_time_server(ahead_s):
    async with time_server(ahead_s) as port:
        skew = await skew_s("127.0.0.1", port=port)
    assert skew == pytest.approx(-ahead_s, abs=2)


async def test_a_time_server_that_has_no_time_or_does_not_answer_says_nothing():
    async with time_server(stratum=0) as port:
        assert await skew_s("127.0.0.1", port=port) is None
    assert await skew_s("127.0.0.1", port=port, within_s=0.2) is None
    assert await skew_s("nowhere.invalid", within_s=1) is None


def test_a_ca_file_is_read(tmp_path):
    assert tls_context(machine()) is None
