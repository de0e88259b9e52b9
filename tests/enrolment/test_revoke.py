"""A worker that is cut off stays cut off: whatever its Mac asks meanwhile, and whatever NATS makes of its users."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator import nats_users
from coordinator.embedded import EmbeddedNats
from coordinator.enrolment import Enrolment, NoInvitationError, NotEnrolledError, Welcome, _warnings
from coordinator.ledger.invitations import Invitations
from coordinator.ledger.model import Grant
from coordinator.nats_users import NatsUsers, NotReloadedError, OurServer, OwnServer
from coordinator.workers import Directory
from shared.bus import Bus, Denied
from shared.joining import JoinLine, invitation_id, invitation_key, parse_line, seal
from shared.nkey import new_seed, public_key
from tests.support.ledger import Desk, claim
from tests.support.servers import own_servers
from tests.support.web import Web
from tests.web.conftest import guarded, web_database, web_dsn

__all__ = ["guarded", "web_database", "web_dsn"]

KEY = public_key(new_seed())


class Interrupted(OurServer):
    """A server whose users change slowly enough for something else to happen: `before` or `after` a change."""

    def __init__(self, nats: EmbeddedNats) -> None:
        super().__init__(nats)
        self.before_add = self.after_remove = _nothing
        self.removed = asyncio.Event()

    async def add(self, worker: str, public_key: str) -> None:
        await self.before_add()
        await super().add(worker, public_key)

    async def remove(self, worker: str) -> bool:
        known = await super().remove(worker)
        self.removed.set()
        await self.after_remove()
        return known


async def _nothing() -> None:
    pass


def enrolment_of(desk: Desk, users: NatsUsers, **more: Any) -> Enrolment:
    given = {"invitations": Invitations(desk.pool), "directory": Directory(desk.queries, 10.0), **more}
    return Enrolment(
        users, ledger=desk.ledger, queries=desk.queries, url=lambda: "https://x.example", nats="", ca=None, **given
    )


async def invited(enrolment: Enrolment, worker: str) -> JoinLine:
    return parse_line((await enrolment.invite(worker, actor="ann", good_s=60, replace=False)).line)


async def join(enrolment: Enrolment, line: JoinLine, key: str = KEY) -> Welcome:
    shown = seal(invitation_key(line.secret), "join", line.worker, key)
    return await enrolment.join(invitation_id(line.secret), key, shown)


async def test_a_join_that_is_repeated_while_its_worker_is_cut_off_lets_nobody_in(
    desk: Desk, nats_server: EmbeddedNats
) -> None:
    users = Interrupted(nats_server)
    enrolment = enrolment_of(desk, users)
    line = await invited(enrolment, "again")
    await join(enrolment, line)

    async def again() -> None:
        with pytest.raises(NoInvitationError):
            await join(enrolment, line)

    users.after_remove = again
    await enrolment.revoke("again", actor="ann")

    assert "again" not in users.agents()


async def test_nobody_joins_with_a_publishers_key(desk: Desk, nats_server: EmbeddedNats) -> None:
    """NATS would refuse its users, all of them, for as long as two have one key."""
    enrolment = enrolment_of(desk, OurServer(nats_server))
    await enrolment.add_publisher("keyholder", KEY, actor="ann", replace=False)
    line = await invited(enrolment, "late-comer")

    with pytest.raises(NoInvitationError):
        await join(enrolment, line)

    await enrolment.revoke_publisher("keyholder", actor="ann")
    await join(enrolment, line)  # the line was not used up
    await enrolment.revoke("late-comer", actor="ann")


@pytest.mark.parametrize("role", ["coordinator", "provisioner", "watcher"])
async def test_nobody_joins_with_a_key_of_the_coordinators_own(
    desk: Desk, nats_server: EmbeddedNats, role: str
) -> None:
    enrolment = enrolment_of(desk, OurServer(nats_server))
    line = await invited(enrolment, "poser")
    with pytest.raises(NoInvitationError):
        await join(enrolment, line, public_key(getattr(nats_server.identities, role)))
    await join(enrolment, line)
    await enrolment.revoke("poser", actor="ann")


async def test_a_join_that_is_under_way_is_over_before_its_worker_is_cut_off(
    desk: Desk, nats_server: EmbeddedNats
) -> None:
    users = Interrupted(nats_server)
    enrolment = enrolment_of(desk, users)
    line = await invited(enrolment, "passing")
    revoking: list[asyncio.Task[int]] = []

    async def revoke() -> None:
        revoking.append(asyncio.create_task(enrolment.revoke("passing", actor="ann")))
        await asyncio.wait({asyncio.create_task(users.removed.wait()), *revoking}, timeout=0.2)

    users.before_add = revoke
    await join(enrolment, line)
    await revoking[0]

    assert "passing" not in users.agents()


async def test_the_line_is_void_though_nats_could_not_be_told(desk: Desk, nats_server: EmbeddedNats) -> None:
    enrolment = enrolment_of(desk, OwnServer(nats_server.folder, ("false",), nats_server.url))
    line = await invited(enrolment, "void")

    with pytest.raises(NotReloadedError, match="ended with 1"):
        await enrolment.revoke("void", actor="ann")

    with pytest.raises(NoInvitationError):
        await join(enrolment, line)


async def test_a_name_that_nobody_has_is_not_called_revoked(desk: Desk, nats_server: EmbeddedNats) -> None:
    enrolment = enrolment_of(desk, OurServer(nats_server))

    with pytest.raises(NotEnrolledError, match=r"^nosuch is not enrolled, and has no open line$"):
        await enrolment.revoke("nosuch", actor="ann")

    await invited(enrolment, "called")
    assert await enrolment.revoke("called", actor="ann") == 0  # its line was open
    line = await invited(enrolment, "keyed")
    await join(enrolment, line)
    await desk.pool.execute("DELETE FROM invitation")
    assert await enrolment.revoke("keyed", actor="ann") == 0  # it had a key
    for worker in ("called", "keyed"):
        with pytest.raises(NotEnrolledError):
            await enrolment.revoke(worker, actor="ann")


async def test_who_is_cut_off_at_the_second_try_was_enrolled(desk: Desk, nats_server: EmbeddedNats) -> None:
    """The first took the key out of the file, and NATS was not told."""
    reload = nats_server.folder / "reload"
    reload.write_text("exit 1")
    users = OwnServer(nats_server.folder, ("sh", str(reload)), nats_server.url)
    enrolment = enrolment_of(desk, users)
    nats_server.identities.add_agent("twice", KEY)
    with pytest.raises(NotReloadedError):
        await enrolment.revoke("twice", actor="ann")
    reload.write_text(f"kill -HUP {nats_server.pid}")

    assert await enrolment.revoke("twice", actor="ann") == 0


async def test_what_is_granted_while_its_worker_is_cut_off_goes_to_others_too(
    desk: Desk, nats_server: EmbeddedNats
) -> None:
    first, late = await desk.held("late", 1), await desk.offered(2)

    class Late(Invitations):
        """Between the two a claim that was sent before the connection ended is granted."""

        async def forget_worker(self, worker: str, *, actor: str) -> bool:
            assert isinstance(await desk.do(claim(late, worker, 2)), Grant)
            return await super().forget_worker(worker, actor=actor)

    enrolment = enrolment_of(desk, OurServer(nats_server), invitations=Late(desk.pool))

    assert await enrolment.revoke("late", actor="ann") == 2
    assert [(await desk.row(job_id))["state"] for job_id in (first, late)] == ["pending", "pending"]


async def test_a_server_that_refuses_its_configuration_is_not_thought_to_have_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal arrives, `nats-server --signal reload` and `kill -HUP` say that all is well, and nothing changes."""
    monkeypatch.setattr(nats_users, "RELOAD_S", 1.0)
    async with own_servers() as servers:
        users = OwnServer(servers.nats.folder, ("kill", "-HUP", str(servers.nats.pid)), servers.nats.url)
        await users.add("mini", KEY)
        conf = servers.nats.folder / "nats.conf"
        sound = conf.read_text()
        conf.write_text(sound + "\nno_such_setting: 1\n")

        with pytest.raises(NotReloadedError, match=servers.nats.url):
            await users.remove("mini")

        conf.write_text(sound)
        await users.remove("mini")


async def test_a_command_whose_children_hold_its_output_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_users, "RELOAD_S", 0.5)
    with pytest.raises(NotReloadedError, match="did not end within"):
        async with asyncio.timeout(60):
            await OwnServer(tmp_path, ("sh", "-c", "sleep 600; true"), "").add("own", KEY)


async def test_a_server_of_ours_that_stands_still_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_users, "RELOAD_S", 0.5)
    async with own_servers() as servers:
        os.kill(servers.nats.pid, signal.SIGSTOP)
        try:
            with pytest.raises(NotReloadedError, match="did not read its users"):
                await OurServer(servers.nats).add("mini", KEY)
        finally:
            os.kill(servers.nats.pid, signal.SIGCONT)


async def test_each_of_several_servers_must_have_read_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_users, "RELOAD_S", 2.0)
    async with own_servers() as one, own_servers() as other:
        ours, theirs = (servers.nats.folder / "identities" / "agents.conf" for servers in (one, other))
        both = f"cp '{ours}' '{theirs}' && kill -HUP {one.nats.pid} {other.nats.pid}"
        urls = f"{one.nats.url}, {other.nats.url}"

        await OwnServer(one.nats.folder, ("sh", "-c", both), urls).add("mini", KEY)

        only_one = OwnServer(one.nats.folder, ("kill", "-HUP", str(one.nats.pid)), urls)
        with pytest.raises(NotReloadedError) as refused:
            await only_one.remove("mini")
        assert other.nats.url in str(refused.value)
        assert one.nats.url not in str(refused.value)


async def test_the_witness_may_say_and_hear_nothing(nats_server: EmbeddedNats) -> None:
    seed = nats_server.identities.add_witness()
    nats_server.reload()
    await nats_server.reloaded()
    async with Bus(nats_server.url, name="witness", seed=seed) as bus:
        await bus.wait_connected(10)
        for subject in (">", "_INBOX.>", "tandem.control.mini"):
            with pytest.raises(Denied):
                await bus.subscribe(subject, lambda _: None)
        for subject in ("anything", "tandem.claim.mini", "JSJ.API.CONSUMER.MSG.NEXT.WORK.article--any"):
            bus.denials.clear()
            await bus.publish(subject, b"{}")
            await bus.flush()
            assert list(bus.denials) == [f"publish to {subject}"]


def test_who_may_connect_is_read_without_a_file_being_written(tmp_path: Path) -> None:
    assert OwnServer(tmp_path, (), "").agents() == {}
    assert list(tmp_path.iterdir()) == []


async def test_a_coordinator_that_lets_nobody_join_says_so(guarded: Web) -> None:
    shown = {"invitation": "0" * 32, "public_key": KEY, "seal": "0" * 64}
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: guarded.call("POST", "/v1/join", json=shown, expect=409),
        lambda: guarded.call("POST", "/v1/invitations/mini", token="admin", expect=409),
        lambda: guarded.call("DELETE", "/v1/workers/mini", token="admin", expect=409),
        lambda: guarded.call("GET", "/v1/publishers", token="admin", expect=409),
        lambda: guarded.call("PUT", "/v1/publishers/blog", token="admin", json={"public_key": KEY}, expect=409),
        lambda: guarded.call("DELETE", "/v1/publishers/blog", token="admin", expect=409),
    ]
    for call in calls:
        assert (await call())["error"]["code"] == "unmanaged"


async def test_what_no_mac_would_send_is_refused_at_the_door(guarded: Web) -> None:
    good = {"invitation": "0" * 32, "public_key": KEY, "seal": "0" * 64}
    for name in good:
        for said in ("\0", "é", "x" * 129):
            await guarded.call("POST", "/v1/join", json=good | {name: said}, expect=422)


def test_a_line_is_warned_of_for_each_server_that_it_leads_to() -> None:
    assert _warnings("https://x.example", "tls://a.example:4222,tls://b.example:4222") == []
    found = _warnings("http://127.0.0.1:8420", "tls://a.example:4222, nats://localhost:4222")
    assert [warning.partition(" ")[0] for warning in found] == ["http://127.0.0.1:8420", "nats://localhost:4222"]
