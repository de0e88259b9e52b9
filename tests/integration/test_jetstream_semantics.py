"""What DESIGN §1 rests on, asked of the real server. If an upgrade changes one of these, the design must be read again.

Each was first measured on nats-server 2.15.1 (facts/nats.md). Not what we wish JetStream did: what it does.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared import subjects
from shared.bus import ApiError, Bus, Message
from shared.streams import (
    SUBJECT_TAKEN,
    consumer_info,
    consumer_pending,
    ensure_lane_consumer,
    ensure_streams,
    last_message_seq,
    nak_seq,
    remove_message,
    work_subjects,
)
from tests.support.servers import TandemServers, eventually, own_servers

LANE = "article.any"
CONSUMER = "article--any"
LONG_S = 90.0
SHORT_S = 0.3


def work(job: int | str) -> str:
    return f"tandem.work.{LANE}.{job}"


async def pull(agent: Bus, *, priority: int = 0, expires_s: float = 10.0, no_wait: bool = False) -> Message | None:
    return await agent.pull_one(
        "WORK", CONSUMER, expires_s=expires_s, group="workers", priority=priority, no_wait=no_wait
    )


async def delivered(agent: Bus, **options) -> tuple[Message, subjects.Delivery]:
    message = await pull(agent, **options)
    assert message is not None
    delivery = subjects.parse_delivery(message.reply)
    assert delivery is not None
    return message, delivery


async def unacked(bus: Bus) -> int:
    info = await consumer_info(bus, "WORK", CONSUMER)
    assert info is not None
    return info["num_ack_pending"]


@asynccontextmanager
async def a_lane(servers: TandemServers, ack_wait_s: float = LONG_S) -> AsyncIterator[tuple[Bus, Bus, Bus]]:
    """A coordinator, a mini and a book around one lane."""
    async with (
        servers.open("coordinator") as coordinator,
        servers.open("agent:mini") as mini,
        servers.open("agent:book") as book,
    ):
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=ack_wait_s)
        yield coordinator, mini, book


# ---- JetStream does not fence


@pytest.mark.parametrize("settle", [b"+ACK", b"+TERM"])
async def test_late_settlement_of_a_redelivered_message_deletes_its_successors(servers: TandemServers, settle: bytes):
    async with a_lane(servers, SHORT_S) as (coordinator, mini, book):
        await coordinator.js_publish(work(1), b"{}")
        zombies, first = await delivered(mini)
        _, second = await delivered(book)
        assert (first.seq, first.number, second.number) == (second.seq, 1, 2)
        await mini.publish(zombies.reply, settle)
        async with asyncio.timeout(10):  # nobody answers it: the server takes it in its own time
            while await last_message_seq(coordinator, work(1)) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_late_nak_of_a_redelivered_message_takes_it_from_its_successor(servers: TandemServers):
    async with a_lane(servers, SHORT_S) as (coordinator, mini, book):
        await coordinator.js_publish(work(1), b"{}")
        zombies, _ = await delivered(mini)
        await delivered(book)
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=LONG_S)  # from here on only a nak can redeliver
        await coordinator.nak(zombies.reply)
        _, third = await delivered(book)
        assert third.number == 3


async def test_delivery_count_is_no_fence_since_a_new_consumer_counts_from_one(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _), servers.open("provisioner") as provisioner:
        await coordinator.js_publish(work(1), b"{}")
        _, first = await delivered(mini)
        await coordinator.nak(f"$JS.ACK.WORK.{CONSUMER}.1.{first.seq}.1.1.0")
        _, second = await delivered(mini)
        await provisioner.api(f"CONSUMER.DELETE.WORK.{CONSUMER}")
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=LONG_S)
        _, anew = await delivered(mini)
        assert [d.number for d in (first, second, anew)] == [1, 2, 1]
        assert anew.seq == first.seq


async def test_in_progress_answer_never_says_that_the_lease_is_lost(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        await coordinator.js_publish(work(1), b"{}")
        message, _ = await delivered(mini)
        held = await mini.request(message.reply, b"+WPI", timeout_s=5)
        await coordinator.ack(message.reply)
        gone = await mini.request(message.reply, b"+WPI", timeout_s=5)
        assert (held.data, held.status) == (gone.data, gone.status) == (b"", None)


# ---- one message is both heartbeats


async def test_in_progress_with_headers_extends_ack_wait_and_is_heard_by_the_queue_group(servers: TandemServers):
    async with a_lane(servers, ack_wait_s=0.5) as (coordinator, mini, book), servers.open("coordinator") as second:
        heard: list[Message] = []
        for bus in (coordinator, second):
            await bus.subscribe(subjects.HEARTBEATS, heard.append, queue=subjects.COORDINATORS)
        await coordinator.js_publish(work(1), b"{}")
        message, delivery = await delivered(mini)
        other = asyncio.create_task(pull(book, expires_s=1.5))  # would get it, were one beat not honoured
        beats = 0
        while not other.done():
            await mini.publish(message.reply, b"+WPI", headers={"Tandem-Job": "1", "Tandem-Epoch": str(beats)})
            beats += 1
            await asyncio.wait([other], timeout=0.1)
        assert await other is None
        for bus in (mini, coordinator, second):
            await bus.flush()
        assert [message.headers["Tandem-Epoch"] for message in heard] == [str(beat) for beat in range(beats)]
        assert {message.data for message in heard} == {b"+WPI"}
        assert {message.sender for message in heard} == {servers.nats.identities.agents["mini"]}
        assert all(subjects.parse_delivery(message.subject) == delivery for message in heard)
        assert await unacked(coordinator) == 1


async def test_in_progress_with_a_tail_is_ignored(servers: TandemServers):
    async with a_lane(servers, ack_wait_s=0.5) as (coordinator, mini, book):
        await coordinator.js_publish(work(1), b"{}")
        message, _ = await delivered(mini)
        other = asyncio.create_task(pull(book))
        while not other.done():
            await mini.publish(message.reply, b'+WPI {"stage": "generating_text"}')
            await asyncio.wait([other], timeout=0.1)
        assert (await other) is not None


async def test_every_kind_of_ack_is_heard(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        heard: list[bytes] = []
        await coordinator.subscribe(subjects.HEARTBEATS, lambda message: heard.append(message.data))
        await coordinator.js_publish(work(1), b"{}")
        message, _ = await delivered(mini)
        await mini.publish(message.reply, b"+WPI")
        await mini.flush()
        await coordinator.nak(message, 5)
        await coordinator.term(message, "why")
        await coordinator.flush()
        assert heard == [b"+WPI", b'-NAK {"delay":5000000000}', b"+TERM why"]


# ---- the delivery's subject


async def test_delivery_is_named_in_the_first_form(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        await coordinator.js_publish(work(1), b"{}")
        await coordinator.js_publish(work(2), b"{}")
        message, _ = await delivered(mini)
        tokens = message.reply.split(".")
        assert tokens[:6] == ["$JS", "ACK", "WORK", CONSUMER, "1", "1"]
        assert (len(tokens), tokens[8]) == (9, "1")  # one more is pending


# ---- one message per job


async def test_second_dispatch_of_a_job_is_refused_also_after_a_restart_and_a_kill():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with a_lane(servers) as (coordinator, _, _):
            await coordinator.js_publish(work(1), b"{}")
            for down in (None, servers.nats.stop, servers.nats.kill):
                if down is not None:
                    connections = coordinator.connections
                    await down()
                    await servers.nats.start()
                    await eventually(lambda: coordinator.connections > connections and coordinator.connected)  # noqa: B023
                with pytest.raises(ApiError) as caught:
                    await coordinator.js_publish(work(1), b"{}")
                assert caught.value.err_code == SUBJECT_TAKEN
            assert await work_subjects(coordinator) == {work(1)}


async def test_second_dispatch_is_refused_while_the_first_is_out_and_taken_once_it_is_acked(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        await coordinator.js_publish(work(1), b"{}")
        message, _ = await delivered(mini)
        with pytest.raises(ApiError) as caught:
            await coordinator.js_publish(work(1), b"{}")
        assert caught.value.err_code == SUBJECT_TAKEN
        await coordinator.ack(message)
        await coordinator.js_publish(work(1), b"{}")


async def test_refusal_leaves_other_jobs_alone(servers: TandemServers):
    async with a_lane(servers) as (coordinator, _, _):
        await coordinator.js_publish(work(1), b"{}")
        outcomes = await asyncio.gather(
            *(coordinator.js_publish(work(job), b"{}") for job in (1, 2, 1, 3)), return_exceptions=True
        )
        assert [isinstance(outcome, ApiError) for outcome in outcomes] == [True, False, True, False]


# ---- who gets the next job


async def test_waiting_pull_of_the_lower_number_wins_whoever_asked_first(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, book):
        books = asyncio.create_task(pull(book, priority=1))
        await waiting(coordinator, 1)
        minis = asyncio.create_task(pull(mini, priority=0))
        await waiting(coordinator, 2)
        await coordinator.js_publish(work(1), b"{}")
        assert (await minis).subject == work(1)
        assert not books.done()
        await coordinator.js_publish(work(2), b"{}")  # the mini has no pull open now
        assert (await books).subject == work(2)


async def test_pull_of_nobody_present_takes_nothing(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        async with servers.open("agent:sleepy") as sleepy:
            asleep = asyncio.create_task(pull(sleepy))
            await waiting(coordinator, 1)
            asleep.cancel()
            await asyncio.gather(asleep, return_exceptions=True)
        await coordinator.js_publish(work(1), b"{}")
        assert (await pull(mini)).subject == work(1)


async def test_pull_without_the_group_is_refused(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        await coordinator.js_publish(work(1), b"{}")
        assert await mini.pull_one("WORK", CONSUMER, expires_s=5) is None
        assert await unacked(coordinator) == 0


async def waiting(coordinator: Bus, pulls: int) -> None:
    async with asyncio.timeout(10):
        while (await coordinator.api(f"CONSUMER.INFO.WORK.{CONSUMER}"))["num_waiting"] != pulls:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# ---- settling by sequence


async def test_forged_nak_by_sequence_hands_out_at_once_and_leaves_others_out(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, book):
        one = (await coordinator.js_publish(work(1), b"{}")).seq
        two = (await coordinator.js_publish(work(2), b"{}")).seq
        await delivered(mini)
        await delivered(mini)
        await nak_seq(coordinator, CONSUMER, two)
        _, again = await delivered(book)
        assert (again.seq, again.number) == (two, 2)
        assert await pull(book, no_wait=True) is None
        assert await last_message_seq(coordinator, work(1)) == one


async def test_forged_nak_of_what_is_not_out_does_nothing(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        seq = (await coordinator.js_publish(work(1), b"{}")).seq
        await nak_seq(coordinator, CONSUMER, seq)
        await nak_seq(coordinator, CONSUMER, seq + 100)
        await coordinator.flush()
        _, first = await delivered(mini)
        assert first.number == 1
        assert await pull(mini, no_wait=True) is None


async def test_delayed_nak_waits_also_longer_than_ack_wait(servers: TandemServers):
    async with a_lane(servers, SHORT_S) as (coordinator, mini, book):
        await coordinator.js_publish(work(1), b"{}")
        message, _ = await delivered(mini)
        await coordinator.nak(message, 4 * SHORT_S)
        await coordinator.flush()
        assert await pull(book, expires_s=2 * SHORT_S) is None
        _, second = await delivered(book)
        assert second.number == 2


async def test_removal_by_sequence_names_exactly_one_message(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        old = (await coordinator.js_publish(work(1), b"{}")).seq
        message, _ = await delivered(mini)
        await coordinator.ack(message)
        new = (await coordinator.js_publish(work(1), b"{}")).seq
        other = (await coordinator.js_publish(work(2), b"{}")).seq
        assert await remove_message(coordinator, "WORK", old) is False
        assert await work_subjects(coordinator) == {work(1), work(2)}
        assert await remove_message(coordinator, "WORK", new) is True
        assert await work_subjects(coordinator) == {work(2)}
        assert await last_message_seq(coordinator, work(2)) == other
        assert await consumer_pending(coordinator, CONSUMER) == 1


async def test_confirmed_ack_is_done_when_it_is_answered(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        for _ in range(50):
            await coordinator.js_publish(work(1), b"{}")  # refused with 10077, if the ack before it were not done
            message, _ = await delivered(mini)
            await coordinator.ack(message)


async def test_ack_of_a_message_that_is_gone_is_answered_like_any(servers: TandemServers):
    async with a_lane(servers) as (coordinator, mini, _):
        await coordinator.js_publish(work(1), b"{}")
        message, _ = await delivered(mini)
        await coordinator.ack(message)
        await coordinator.ack(message)


# ---- after a loss


async def test_stream_made_anew_begins_above_what_was_and_old_acks_hit_nothing():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with a_lane(servers) as (coordinator, mini, _):
            await coordinator.js_publish(work(1), b"{}")
            old, delivery = await delivered(mini)
            await servers.nats.wipe()
            async with servers.open("provisioner") as provisioner:
                assert "WORK" in await ensure_streams(provisioner, first_seq=delivery.seq + 1)
            await coordinator.wait_connected(10)
            await ensure_lane_consumer(coordinator, LANE, ack_wait_s=LONG_S)
            seq = (await coordinator.js_publish(work(1), b"{}")).seq
            assert seq == delivery.seq + 1
            await mini.wait_connected(10)
            await delivered(mini)
            await coordinator.ack(old)
            assert await last_message_seq(coordinator, work(1)) == seq


async def test_without_a_first_sequence_an_old_ack_hits_a_new_message():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with a_lane(servers) as (coordinator, mini, _):
            await coordinator.js_publish(work(1), b"{}")
            old, _ = await delivered(mini)
            await servers.reset_streams(first_seq=1)
            await ensure_lane_consumer(coordinator, LANE, ack_wait_s=LONG_S)
            await coordinator.js_publish(work(2), b"{}")
            await delivered(mini)
            await coordinator.ack(old)
            assert await work_subjects(coordinator) == set()


async def test_messages_and_deliveries_survive_a_kill_of_the_server():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with a_lane(servers) as (coordinator, _, _):
            for job in range(20):
                await coordinator.js_publish(work(job), b"{}")
            await servers.nats.kill()
            await servers.nats.start()
            await coordinator.wait_connected(10)
            assert await work_subjects(coordinator) == {work(job) for job in range(20)}


async def test_result_published_twice_is_stored_once_also_after_a_restart():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with servers.open("coordinator") as bus:
            first = await bus.js_publish("tandem.result.cms.article.1", b"{}", msg_id="1:1")
            await servers.nats.stop()
            await servers.nats.start()
            await bus.wait_connected(10)
            second = await bus.js_publish("tandem.result.cms.article.1", b"{}", msg_id="1:1")
            assert (first.duplicate, second.duplicate, second.seq) == (False, True, first.seq)
