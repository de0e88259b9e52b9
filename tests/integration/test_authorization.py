"""Who may say and hear what: nats.conf with a real server, each role's rights used, and each limit tried."""

import asyncio
import json

import pytest

from shared.bus import Bus, BusError, Denied, Message
from shared.streams import (
    ensure_intake_consumers,
    ensure_lane_consumer,
    ensure_results_consumer,
    last_message_seq,
    remove_message,
    work_subjects,
)
from tests.support.servers import TandemServers, eventually, own_servers

LANE = "article.any"
WORK = "tandem.work.article.any.1"
ADMIN = [
    "STREAM.CREATE.X", "STREAM.UPDATE.WORK", "STREAM.DELETE.WORK", "STREAM.PURGE.WORK", "STREAM.RESTORE.X",
    "STREAM.SNAPSHOT.WORK", "STREAM.MSG.DELETE.RESULTS", "CONSUMER.DELETE.WORK.article--any",
    "CONSUMER.PAUSE.WORK.article--any",
]  # fmt: skip
LOOK = [
    "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.WORK", "STREAM.MSG.GET.WORK", "STREAM.MSG.DELETE.WORK",
    "DIRECT.GET.WORK", "CONSUMER.NAMES.WORK", "CONSUMER.INFO.WORK.article--any",
    "CONSUMER.CREATE.WORK.mine.tandem.work.article.any.*", "CONSUMER.CREATE.WORK",
]  # fmt: skip


async def says(bus: Bus, subject: str, data: bytes = b"") -> None:
    await bus.publish(subject, data)
    await bus.flush()
    assert not bus.denials


async def may_not_say(bus: Bus, *subjects: str) -> None:
    for subject in subjects:
        bus.denials.clear()
        await bus.publish(subject, b"{}")
        await bus.flush()
        assert list(bus.denials) == [f"publish to {subject}"]


async def may_not_hear(bus: Bus, *subjects: str) -> None:
    for subject in subjects:
        with pytest.raises(Denied):
            await bus.subscribe(subject, lambda _: None)


# ---- an agent


async def test_agent_does_its_work(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
        seen: list[Message] = []

        async def answer(message: Message) -> None:
            seen.append(message)
            await coordinator.respond(message, b"yes")

        for subject in ("tandem.claim.*", "tandem.lease.*", "tandem.presence.*"):
            await coordinator.subscribe(subject, answer, queue="coordinators")
        await coordinator.subscribe("$JS.ACK.WORK.>", seen.append, queue="coordinators")
        control: asyncio.Queue[Message] = asyncio.Queue()
        await agent.subscribe("tandem.control.mini", control.put_nowait)

        await coordinator.js_publish(WORK, b"{}")
        delivery = await agent.pull_one("WORK", "article--any", expires_s=5, group="workers", priority=0)
        assert delivery is not None
        for subject in ("tandem.claim.mini", "tandem.lease.mini", "tandem.presence.mini"):
            assert (await agent.request(subject, b"{}", timeout_s=5)).data == b"yes"
        await agent.publish(delivery.reply, b"+WPI", headers={"Tandem-Job": "1", "Tandem-Epoch": "1"})
        await eventually(lambda: len(seen) == 4)
        assert seen[-1].headers["Tandem-Job"] == "1"
        ack = await agent.js_publish("tandem.report.mini.1", b"{}", msg_id="1:1")
        assert ack.stream == "REPORTS"
        await coordinator.publish("tandem.control.mini", b"revoke")
        assert (await asyncio.wait_for(control.get(), 5)).data == b"revoke"


async def test_agent_can_not_speak_as_another(servers: TandemServers):
    async with servers.open("agent:mini") as agent, servers.open("agent:book"):
        await may_not_say(
            agent, "tandem.claim.book", "tandem.lease.book", "tandem.presence.book", "tandem.report.book.1",
            "tandem.report.mini", "tandem.report.mini.1.2", "tandem.control.book", "tandem.control.mini",
            "_INBOX.book.x", "_INBOX.coordinator.x", "_R_.x",
        )  # fmt: skip


async def test_agent_can_not_hear_another(servers: TandemServers):
    async with servers.open("agent:mini") as agent, servers.open("agent:book"):
        await may_not_hear(
            agent, "tandem.control.book", "tandem.control.*", "tandem.>", ">", "_INBOX.book.>", "_INBOX.>", "_R_.>",
            "tandem.claim.mini", "tandem.claim.*", "tandem.work.>", "$JS.ACK.>", "$JS.ACK.WORK.>", "$SYS.>",
        )  # fmt: skip


async def test_agent_reaches_no_administration(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
        await coordinator.js_publish(WORK, b"{}")
        for prefix in ("$JS.API", "JSJ.API"):
            await may_not_say(agent, *(f"{prefix}.{suffix}" for suffix in ADMIN + LOOK))
        await may_not_say(
            agent, "JSJ.API.CONSUMER.MSG.NEXT.SUBMIT.intake", "JSJ.API.CONSUMER.MSG.NEXT.REPORTS.reports",
            "JSJ.API.CONSUMER.MSG.NEXT.RESULTS.results-cms", "$JS.API.CONSUMER.MSG.NEXT.WORK.article--any",
        )  # fmt: skip
        assert await work_subjects(coordinator) == {WORK}


async def test_agent_can_not_submit_dispatch_or_publish_results(servers: TandemServers):
    async with servers.open("agent:mini") as agent:
        await may_not_say(
            agent, "tandem.submit.mini", "tandem.submit.cms", WORK, "tandem.result.cms.article.1", "tandem.event.1.x",
            "$JS.ACK.SUBMIT.intake.1.1.1.1.0", "$JS.ACK.REPORTS.reports.1.1.1.1.0",
        )  # fmt: skip


# ---- a publisher


async def test_publisher_submits_and_takes_its_results(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("publisher:cms") as publisher:
        assert (await publisher.js_publish("tandem.submit.cms", b"{}", msg_id="cms/1")).stream == "SUBMIT"
        await ensure_results_consumer(coordinator, "cms")
        await coordinator.js_publish("tandem.result.cms.article.1", b"done")
        result = await publisher.pull_one("RESULTS", "results-cms", expires_s=5)
        assert result is not None
        await publisher.ack(result)


async def test_publisher_can_not_do_more(servers: TandemServers):
    async with servers.open("publisher:cms") as publisher, servers.open("publisher:shop"):
        await may_not_say(
            publisher, "tandem.submit.shop", "tandem.submit.cms.x", "tandem.claim.cms", "tandem.claim.mini",
            "tandem.report.cms.1", WORK, "tandem.result.cms.article.1", "tandem.control.mini", "_INBOX.shop.x",
            "JSJ.API.CONSUMER.MSG.NEXT.RESULTS.results-shop", "JSJ.API.CONSUMER.MSG.NEXT.WORK.article--any",
            "$JS.ACK.RESULTS.results-shop.1.1.1.1.0", "$JS.ACK.WORK.article--any.1.1.1.1.0",
            *(f"{prefix}.{suffix}" for prefix in ("$JS.API", "JSJ.API") for suffix in ADMIN + LOOK),
        )  # fmt: skip
        await may_not_hear(publisher, "tandem.result.>", "tandem.submit.*", "_INBOX.shop.>", "_INBOX.>", ">", "$SYS.>")


# ---- the coordinator


async def test_coordinator_does_its_work_without_the_provisioner(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("agent:mini") as agent:
        await ensure_intake_consumers(bus)
        await ensure_lane_consumer(bus, LANE, ack_wait_s=90)
        await ensure_results_consumer(bus, "cms")
        for subject in ("tandem.control.mini", "tandem.event.1.state"):
            await says(bus, subject)
        assert (await bus.js_publish("tandem.submit.http", b"{}")).stream == "SUBMIT"
        assert (await bus.js_publish("tandem.result.cms.article.1", b"{}")).stream == "RESULTS"
        async with bus.consume("SUBMIT", "intake", batch=1, queue_max=1) as submissions:
            await bus.ack(await asyncio.wait_for(anext(submissions), 5))
        await agent.js_publish("tandem.report.mini.1", b"{}")
        async with bus.consume("REPORTS", "reports", batch=1, queue_max=1) as reports:
            await bus.ack(await asyncio.wait_for(anext(reports), 5))
        seq = (await bus.js_publish(WORK, b"{}")).seq
        assert await last_message_seq(bus, WORK) == seq
        assert await remove_message(bus, "WORK", seq)
        assert not bus.denials


async def test_coordinator_can_not_change_streams_or_read_what_is_not_its_own(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        await may_not_say(bus, *(f"$JS.API.{suffix}" for suffix in ADMIN), "tandem.claim.mini", "tandem.report.mini.1")
        await may_not_hear(bus, ">", "_INBOX.>", "_INBOX.provisioner.>", "tandem.work.>", "$JS.API.>", "$SYS.>")


async def test_two_coordinators_share_identity_and_claims(servers: TandemServers):
    async with (
        servers.open("coordinator") as first,
        servers.open("coordinator") as second,
        servers.open("agent:mini") as agent,
    ):
        answered = {first: 0, second: 0}
        for bus in answered:

            async def answer(message: Message, bus: Bus = bus) -> None:
                answered[bus] += 1
                await bus.respond(message, b"")

            await bus.subscribe("tandem.claim.*", answer, queue="coordinators")
        for _ in range(60):
            await agent.request("tandem.claim.mini", b"", timeout_s=5)
        assert sum(answered.values()) == 60
        assert all(answered.values())


# ---- the provisioner and the watcher


async def test_provisioner_only_administers(servers: TandemServers):
    async with servers.open("provisioner") as bus:
        assert (await bus.api("STREAM.INFO.WORK"))["config"]["name"] == "WORK"
        await may_not_say(bus, WORK, "tandem.submit.cms", "tandem.control.mini", "$JS.ACK.WORK.a.1.1.1.1.0")
        await may_not_hear(bus, ">", "tandem.>", "_INBOX.coordinator.>", "tandem.claim.*")


async def test_watcher_hears_an_agent_go_and_nothing_else(servers: TandemServers):
    async with servers.open("watcher") as watcher:
        gone: asyncio.Queue[Message] = asyncio.Queue()
        await watcher.subscribe("$SYS.ACCOUNT.AGENTS.DISCONNECT", gone.put_nowait)
        await may_not_hear(
            watcher, ">", "$SYS.>", "$SYS.ACCOUNT.>", "$SYS.ACCOUNT.JOBS.DISCONNECT", "$SYS.ACCOUNT.AGENTS.CONNECT",
            "tandem.>", "_INBOX.>",
        )  # fmt: skip
        await may_not_say(watcher, "$SYS.REQ.SERVER.PING", "tandem.submit.cms", WORK)
        async with servers.open("agent:mini"):
            pass
        while True:
            event = json.loads((await asyncio.wait_for(gone.get(), 10)).data)
            if event["client"].get("name") == "agent:mini":
                break
        assert event["client"]["user"] == servers.nats.identities.agents["mini"]
        assert event["reason"] == "Client Closed"


# ---- who it was


async def test_server_stamps_claims_heartbeats_and_questions_with_the_authenticated_sender(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        mine = servers.nats.identities.agents["mini"]
        heard: list[Message] = []
        for subject in ("tandem.claim.*", "tandem.lease.*", "tandem.presence.*", "$JS.ACK.WORK.>"):
            await coordinator.subscribe(subject, heard.append, queue="coordinators")
        forged = {"Nats-Request-Info": json.dumps({"acc": "AGENTS", "user": servers.nats.identities.coordinator})}
        for subject in (
            "tandem.claim.mini",
            "tandem.lease.mini",
            "tandem.presence.mini",
            "$JS.ACK.WORK.article--any.1.1.1.1.0",
        ):
            heard.clear()
            await agent.publish(subject, b"+WPI")
            await agent.publish(subject, b"+WPI", headers=forged)
            await agent.publish(subject, b"+WPI", headers={**forged, "Tandem-Job": "1"})
            await eventually(lambda: len(heard) == 3)
            assert [message.sender for message in heard] == [mine] * 3
            assert [message.subject for message in heard] == [subject] * 3


async def test_message_without_a_stamp_has_no_sender(servers: TandemServers):
    async with servers.open("coordinator") as coordinator:
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await coordinator.subscribe("tandem.event.>", heard.put_nowait)
        await coordinator.publish("tandem.event.1.x", b"")
        assert (await asyncio.wait_for(heard.get(), 5)).sender is None


@pytest.mark.parametrize("info", ["", "{", "[]", "{}", '{"user": 5}', '{"user": ""}'])
def test_stamp_that_can_not_be_read_names_nobody(info: str):
    assert Message("s", headers={"Nats-Request-Info": info}).sender is None


async def test_answer_sent_to_a_subject_that_is_no_inbox_becomes_no_message_of_another(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        claims: list[Message] = []

        async def answer(message: Message) -> None:
            claims.append(message)
            await coordinator.respond(message, b"{}")

        await coordinator.subscribe("tandem.claim.*", answer)
        await agent.publish("tandem.claim.mini", b"{}", reply="tandem.claim.book")
        await eventually(lambda: len(claims) == 1)
        for bus in (coordinator, agent, coordinator):
            await bus.flush()
        assert [message.subject for message in claims] == ["tandem.claim.mini"]


# ---- identities


async def test_unknown_key_is_turned_away(servers: TandemServers):
    from shared.nkey import new_seed  # noqa: PLC0415

    for seed in (new_seed(), None):
        async with Bus(servers.nats.url, name="stranger", seed=seed, reconnect_delays_s=(0.02,)) as bus:
            with pytest.raises(BusError):
                await bus.wait_connected(0.2)


async def test_new_agent_is_let_in_by_a_reload_that_disturbs_nobody():
    async with (
        own_servers() as servers,
        servers.open("coordinator") as coordinator,
        servers.open("agent:mini") as mini,
        servers.open("agent:newcomer") as newcomer,
    ):
        await may_not_say(newcomer, "tandem.claim.mini")
        await mini.flush()
        await coordinator.flush()
        assert (mini.connections, coordinator.connections) == (1, 1)


async def test_agent_known_by_its_public_key_only_is_let_in():
    from shared.nkey import new_seed, public_key  # noqa: PLC0415

    async with own_servers() as servers:
        seed = new_seed()
        assert servers.nats.identities.add_agent("far", public_key(seed)) is None
        servers.nats.reload()
        async with Bus(
            servers.nats.url, name="far", seed=seed, inbox_prefix="_INBOX.far", reconnect_delays_s=(0.02,)
        ) as bus:
            await bus.wait_connected(10)
            await may_not_say(bus, "tandem.claim.mini")
