"""The bus over a real server: each outcome is honest, and nothing that happens to a connection is for ever."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from shared.backoff import RECONNECT_S, reconnect_delay_s
from shared.bus import ApiError, Bus, BusDown, BusTimeout, Denied, Message, NoResponders, TooLarge
from shared.errors import ConfigurationError
from shared.nkey import new_seed
from shared.streams import ensure_lane_consumer
from tests.support.proxy import Proxy
from tests.support.servers import TandemServers, eventually, own_servers

LANE = "article.any"
WORK = "tandem.work.article.any.{}"


async def test_request_is_answered_by_a_subscriber(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:

        async def answer(message: Message) -> None:
            await coordinator.respond(message, b"granted " + message.data)

        await coordinator.subscribe("tandem.claim.*", answer, queue="coordinators")
        reply = await agent.request("tandem.claim.mini", b"job", timeout_s=5)
        assert reply.data == b"granted job"


async def test_request_with_nobody_there_fails_at_once(servers: TandemServers):
    async with servers.open("agent:mini") as agent:
        with pytest.raises(NoResponders):
            await agent.request("tandem.claim.mini", b"", timeout_s=5)


async def test_request_without_an_answer_times_out(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        await coordinator.subscribe("tandem.claim.*", lambda _: None)
        with pytest.raises(BusTimeout):
            await agent.request("tandem.claim.mini", b"", timeout_s=0.05)


async def test_request_that_the_server_refuses_fails_at_once(servers: TandemServers):
    async with servers.open("agent:mini") as agent:
        with pytest.raises(Denied):
            await agent.request("tandem.claim.other", b"", timeout_s=30)


async def test_subscription_that_the_server_refuses_is_told(servers: TandemServers):
    async with servers.open("agent:mini") as agent:
        with pytest.raises(Denied):
            await agent.subscribe("tandem.control.other", lambda _: None)


async def test_headers_travel_and_line_breaks_in_them_do_no_harm(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await bus.subscribe("tandem.event.>", heard.put_nowait)
        await bus.publish("tandem.event.a.b", b"body", headers={"Tandem-Detail": "ä\r\nEvil: 1", "Tandem-Epoch": "3"})
        message = await asyncio.wait_for(heard.get(), 5)
        assert message.data == b"body"
        assert message.headers == {"Tandem-Detail": "ä  Evil: 1", "Tandem-Epoch": "3"}
        assert message.status is None


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0\r\n", "x" * 3000])
async def test_subject_that_would_break_the_protocol_is_refused_here(servers: TandemServers, subject: str):
    async with servers.open("coordinator") as bus:
        with pytest.raises(ValueError, match="not a subject"):
            await bus.publish(subject, b"")
        assert bus.connected


async def test_payload_too_large_with_its_headers_is_refused_here(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        with pytest.raises(TooLarge):
            await bus.publish("tandem.event.a.b", bytes(2 * 1024 * 1024 - 50), headers={"Name": "x" * 100})
        await bus.flush()
        assert bus.connections == 1


async def test_handler_that_raises_hurts_nobody(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        heard: list[bytes] = []

        def fail(message: Message) -> None:
            heard.append(message.data)
            raise RuntimeError("on purpose")

        async def fail_later(message: Message) -> None:
            fail(message)

        await bus.subscribe("tandem.event.>", fail)
        await bus.subscribe("tandem.event.>", fail_later)
        for number in range(3):
            await bus.publish("tandem.event.a.b", b"%d" % number)
        await eventually(lambda: len(heard) == 6)
        assert bus.connected
        assert bus.connections == 1


async def test_state_callback_that_raises_hurts_nobody(servers: TandemServers):
    async with servers.bus("coordinator") as bus:
        seen: list[bool] = []

        def fail(connected: bool) -> None:  # noqa: FBT001
            seen.append(connected)
            raise RuntimeError("on purpose")

        bus.on_state(fail)
        await bus.wait_connected(10)
        await bus.flush()
        assert seen == [True]


async def test_coroutine_handlers_run_beside_each_other_up_to_their_bound(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        running: set[bytes] = set()
        most = 0
        go_on = asyncio.Event()
        done: list[bytes] = []

        async def handle(message: Message) -> None:
            nonlocal most
            running.add(message.data)
            most = max(most, len(running))
            await go_on.wait()
            running.discard(message.data)
            done.append(message.data)

        await bus.subscribe("tandem.event.>", handle, concurrency=3)
        for number in range(10):
            await bus.publish("tandem.event.a.b", b"%d" % number)
        await eventually(lambda: len(running) == 3)
        await bus.flush()
        assert most == 3
        go_on.set()
        await eventually(lambda: len(done) == 10)


async def test_one_at_a_time_keeps_the_order(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        done: list[int] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            done.append(int(message.data))

        await bus.subscribe("tandem.event.>", handle, concurrency=1)
        for number in range(100):
            await bus.publish("tandem.event.a.b", b"%d" % number)
        await eventually(lambda: len(done) == 100)
        assert done == list(range(100))


async def test_closed_subscription_hears_nothing_and_leaves_no_handler_running(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        started = asyncio.Event()

        async def hang(_: Message) -> None:
            started.set()
            await asyncio.Event().wait()

        subscription = await bus.subscribe("tandem.event.>", hang)
        await bus.publish("tandem.event.a.b", b"")
        await asyncio.wait_for(started.wait(), 5)
        await subscription.close()
        started.clear()
        await bus.publish("tandem.event.a.b", b"")
        await bus.flush()
        assert not started.is_set()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("handle:")]


async def test_partial_of_a_coroutine_function_is_a_coroutine_handler(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        async def handle(tag: str, message: Message) -> None:
            await heard.put((tag, message.data))

        await bus.subscribe("tandem.event.>", functools.partial(handle, "tag"))
        await bus.publish("tandem.event.a.b", b"1")
        assert await asyncio.wait_for(heard.get(), 5) == ("tag", b"1")


async def test_subscribed_means_that_the_server_knows(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:

        async def answer(message: Message) -> None:
            await coordinator.respond(message, b"")

        for _ in range(200):  # nats-py's flush after subscribe lost 5 of 200 here (facts/nats.md §6)
            subscription = await coordinator.subscribe("tandem.claim.*", answer)
            await agent.request("tandem.claim.mini", b"", timeout_s=5)
            await subscription.close()
            await coordinator.flush()


async def test_answer_to_a_reply_subject_that_is_no_inbox_is_not_sent(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        await bus.respond(Message("tandem.claim.mini", reply="$JS.API.STREAM.INFO.WORK"), b"")
        await bus.flush()
        assert not bus.denials


# ---- offline


async def test_offline_calls_fail_at_once_and_nothing_is_kept_for_later():
    async with own_servers() as servers, Proxy("127.0.0.1", servers.nats.port) as proxy:
        await servers.reset_streams()
        url = f"nats://127.0.0.1:{proxy.port}"
        async with servers.open("coordinator") as coordinator, servers.open("agent:mini", url=url) as agent:
            await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: not agent.connected)
            for _ in range(20):
                with pytest.raises(BusDown):
                    await agent.pull_one("WORK", "article--any", expires_s=30, group="workers", priority=0)
            with pytest.raises(BusDown):
                await agent.publish("tandem.claim.mini", b"")
            with pytest.raises(BusDown):
                await agent.request("tandem.claim.mini", b"", timeout_s=5)
            proxy.refuse(refusing=False)
            await agent.wait_connected(10)
            for number in range(20):
                await coordinator.js_publish(WORK.format(number), b"{}")
            info = await coordinator.api("CONSUMER.INFO.WORK.article--any")
            assert info["num_waiting"] == 0
            assert info["num_ack_pending"] == 0


async def test_first_connection_is_tried_until_it_works():
    async with own_servers() as servers, Proxy("127.0.0.1", servers.nats.port) as proxy:
        proxy.refuse()
        async with servers.bus("coordinator", url=f"nats://127.0.0.1:{proxy.port}") as bus:
            with pytest.raises(BusDown):
                await bus.wait_connected(0.2)
            await eventually(lambda: proxy.accepted >= 3)
            proxy.refuse(refusing=False)
            await bus.wait_connected(10)


async def test_request_in_flight_when_the_link_breaks_ends_at_once_as_unknown():
    async with own_servers() as servers, Proxy("127.0.0.1", servers.nats.port) as proxy:
        url = f"nats://127.0.0.1:{proxy.port}"
        async with servers.open("coordinator") as coordinator, servers.open("agent:mini", url=url) as agent:
            asked = asyncio.Event()
            await coordinator.subscribe("tandem.claim.*", lambda _: asked.set())
            request = asyncio.create_task(agent.request("tandem.claim.mini", b"", timeout_s=600))
            await asyncio.wait_for(asked.wait(), 10)
            proxy.cut()
            with pytest.raises(BusTimeout):
                await asyncio.wait_for(request, 10)


# ---- reconnecting


async def test_subscriptions_survive_a_restart_of_the_server_and_state_is_told():
    async with own_servers() as servers, servers.open("coordinator") as bus:
        states: list[bool] = []
        bus.on_state(states.append)
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await bus.subscribe("tandem.event.>", heard.put_nowait)
        await servers.nats.restart()
        await eventually(lambda: bus.connections == 2)
        await bus.publish("tandem.event.a.b", b"after")
        assert (await asyncio.wait_for(heard.get(), 10)).data == b"after"
        assert states == [False, True]


async def test_subscription_made_or_closed_while_offline_counts_on_the_next_link():
    async with own_servers() as servers, servers.open("coordinator") as bus:
        closed_heard: list[Message] = []
        made_heard: asyncio.Queue[Message] = asyncio.Queue()
        closed = await bus.subscribe("tandem.event.>", closed_heard.append)
        await servers.nats.stop()
        await eventually(lambda: not bus.connected)
        await closed.close()
        await bus.subscribe("tandem.event.>", made_heard.put_nowait)
        await servers.nats.start()
        await bus.wait_connected(10)
        await bus.publish("tandem.event.a.b", b"1")
        assert (await asyncio.wait_for(made_heard.get(), 10)).data == b"1"
        assert closed_heard == []


async def test_client_that_the_server_closes_with_an_error_is_rebuilt():
    async with own_servers() as servers, servers.open("coordinator") as bus:
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await bus.subscribe("tandem.event.>", heard.put_nowait, queue="q")
        bus.live_link().send(b"PUB " + b"x" * 5000 + b" 0\r\n\r\n")  # control line over 4096 B: -ERR, closed
        await eventually(lambda: bus.connections == 2)
        await bus.publish("tandem.event.a.b", b"after")
        assert (await asyncio.wait_for(heard.get(), 10)).data == b"after"


async def test_revoked_and_restored_identity_is_back_with_its_subscriptions():
    async with (
        own_servers() as servers,
        servers.open("agent:mini") as agent,
        servers.open("coordinator") as coordinator,
    ):
        identities = servers.nats.identities
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await agent.subscribe("tandem.control.mini", heard.put_nowait)
        public = identities.agents["mini"]
        identities.remove_agent("mini")
        servers.nats.reload()
        await eventually(lambda: not agent.connected)
        identities.add_agent("mini", public)
        servers.nats.reload()
        await agent.wait_connected(10)
        await coordinator.publish("tandem.control.mini", b"hello again")
        assert (await asyncio.wait_for(heard.get(), 10)).data == b"hello again"
        assert agent.connections == 2


async def test_bytes_that_are_no_protocol_cost_the_link_and_not_the_bus():
    async with own_servers() as servers, servers.open("coordinator") as bus:
        first = bus.live_link()
        with pytest.raises(Exception, match="unknown protocol"):
            first.feed(b"<html>502 Bad Gateway\r\n")
        first.lose(ConnectionError("as the read loop does"))
        await eventually(lambda: bus.connections == 2)


async def test_link_cut_as_soon_as_it_is_up_backs_off_too():
    async with own_servers() as servers, servers.open("coordinator", reconnect_delays_s=(0.01, 0.02)) as bus:
        bus.on_state(lambda up: bus.live_link().lose(ConnectionError("at once")) if up else None)
        bus.live_link().lose(ConnectionError("first"))
        await eventually(lambda: bus.connections >= 6)


def test_reconnect_schedule_is_the_protocols():
    waits = [reconnect_delay_s(failures, 0) for failures in range(8)]
    assert waits == [1, 2, 5, 10, 30, 60, 60, 60]
    assert [reconnect_delay_s(failures, 1) for failures in (0, 5)] == [1.2, 72]
    assert tuple(RECONNECT_S) == (1, 2, 5, 10, 30, 60)


async def test_leaving_the_bus_leaves_no_task_and_no_connection():
    async with own_servers() as servers:
        before = asyncio.all_tasks()
        async with servers.open("coordinator") as bus:
            await bus.subscribe("tandem.event.>", lambda _: None)
            await bus.publish("tandem.event.a.b", b"")
        assert asyncio.all_tasks() == before
        assert not bus.connected
        with pytest.raises(BusDown):
            await bus.publish("tandem.event.a.b", b"")


@asynccontextmanager
async def refusing() -> AsyncIterator[tuple[str, list[int]]]:
    """Run a server on this loop that turns everybody away; yield its URL, and how often it did in a list."""
    refused = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload":1048576,"headers":true,"nonce":"abc","auth_required":true}\r\n')
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"-ERR 'Authorization Violation'\r\n")
                    break
        refused[0] += 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", refused


async def test_bus_closes_at_whatever_moment_of_a_handshake_it_is_told_to():
    seed = new_seed()
    async with refusing() as (url, _):
        for turns in range(60):
            async with asyncio.timeout(10), Bus(url, name="stranger", seed=seed, reconnect_delays_s=(0.02,)):
                for _ in range(turns):
                    await asyncio.sleep(0)


async def test_an_outage_is_logged_at_its_first_failure_and_at_each_doubling():
    async with refusing() as (url, refused):
        with capture_logs() as logged:
            async with Bus(url, name="stranger", seed=new_seed(), reconnect_delays_s=(0.001,)):
                await eventually(lambda: refused[0] > 20)
    failures = [entry["failures"] for entry in logged if entry["event"] == "bus connect failed"]
    assert failures[:5] == [1, 2, 4, 8, 16]
    assert len(failures) <= 6


@pytest.mark.parametrize("seed", ["", "SUnothing", "UDIB3I5FEVRLJRWYKLZTBQIOVEFKIT6NVZLK3MMRFVFZLUHSPLHEBPQZ"])
async def test_a_seed_that_is_none_is_refused_when_the_bus_is_made(seed: str):
    with pytest.raises(ConfigurationError, match="stranger"):
        Bus("nats://127.0.0.1:1", name="stranger", seed=seed)


# ---- pulling


async def test_pull_gets_one_message_or_none(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
        pull = functools.partial(agent.pull_one, "WORK", "article--any", group="workers", priority=0)
        assert await asyncio.wait_for(pull(expires_s=600, no_wait=True), 10) is None
        assert await pull(expires_s=0.05) is None
        await coordinator.js_publish(WORK.format("1"), b"{}")
        message = await pull(expires_s=5)
        assert message is not None
        assert message.subject == WORK.format("1")
        assert message.reply.startswith("$JS.ACK.WORK.article--any.1.")


async def test_pull_from_a_consumer_that_is_not_there_says_so(servers: TandemServers):
    async with servers.open("agent:mini") as agent:
        with pytest.raises(NoResponders):
            await agent.pull_one("WORK", "article--none", expires_s=30, group="workers", priority=0)


async def test_pull_that_is_not_ones_own_is_denied(servers: TandemServers):
    async with servers.open("agent:mini") as agent:
        with pytest.raises(Denied):
            await agent.pull_one("SUBMIT", "intake", expires_s=30)


async def test_cancelled_pull_takes_no_job_with_it(servers: TandemServers):
    async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
        pull = functools.partial(agent.pull_one, "WORK", "article--any", expires_s=30, group="workers", priority=0)
        for number in range(20):
            waiting = asyncio.create_task(pull())
            await eventually_waiting(coordinator, 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await agent.flush()
            await coordinator.js_publish(WORK.format(number), b"{}")
            message = await pull()
            assert message is not None
            assert message.subject == WORK.format(number)
            await coordinator.ack(message)


async def test_pull_ends_when_the_connection_does():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with servers.open("coordinator") as coordinator, servers.open("agent:mini") as agent:
            await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
            pull = functools.partial(agent.pull_one, "WORK", "article--any", expires_s=600, group="workers", priority=0)
            waiting = asyncio.create_task(pull())
            await eventually_waiting(coordinator, 1)
            await servers.nats.restart()
            assert await asyncio.wait_for(waiting, 10) is None
            await agent.wait_connected(10)
            await coordinator.wait_connected(10)
            await coordinator.js_publish(WORK.format("1"), b"{}")
            assert (await asyncio.wait_for(pull(), 10)) is not None


async def eventually_waiting(coordinator, pulls: int) -> None:
    async with asyncio.timeout(10):
        while (await coordinator.api("CONSUMER.INFO.WORK.article--any"))["num_waiting"] != pulls:
            pass


# ---- consuming


async def test_consuming_takes_everything_in_order_across_many_pulls(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("publisher:cms") as publisher:
        await asyncio.gather(*(publisher.js_publish("tandem.submit.cms", b"%d" % n) for n in range(500)))
        seen = set()
        async with bus.consume("SUBMIT", "intake", batch=32, queue_max=64) as messages:
            async for message in messages:
                seen.add(int(message.data))
                await bus.ack(message)
                if len(seen) == 500:
                    break
        info = await bus.api("CONSUMER.INFO.SUBMIT.intake")
        assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)


async def test_consuming_holds_no_more_than_it_may(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("publisher:cms") as publisher:
        await asyncio.gather(*(publisher.js_publish("tandem.submit.cms", b"%d" % n) for n in range(100)))
        async with bus.consume("SUBMIT", "intake", batch=8, queue_max=16) as messages:
            first = await anext(messages)
            assert first.data == b"0"
            await eventually(lambda: len(messages._queue) >= 8)
            for _ in range(5):
                await bus.flush()
            assert len(messages._queue) <= 16
            assert (await bus.api("CONSUMER.INFO.SUBMIT.intake"))["num_ack_pending"] <= 17


async def test_consuming_goes_on_after_expiry_and_takes_what_comes_later(servers: TandemServers):
    async with (
        servers.open("coordinator") as bus,
        servers.open("publisher:cms") as publisher,
        bus.consume("SUBMIT", "intake", batch=8, queue_max=16, expires_s=0.05) as messages,
    ):
        await eventually(lambda: messages._pull >= 4)
        await publisher.js_publish("tandem.submit.cms", b"late")
        assert (await asyncio.wait_for(anext(messages), 10)).data == b"late"


async def test_consuming_goes_on_after_a_restart_of_the_server():
    async with own_servers() as servers:
        await servers.reset_streams()
        async with (
            servers.open("coordinator") as bus,
            servers.open("publisher:cms") as publisher,
            bus.consume("SUBMIT", "intake", batch=8, queue_max=16, expires_s=600) as messages,
        ):
            await publisher.js_publish("tandem.submit.cms", b"before")
            await bus.ack(await asyncio.wait_for(anext(messages), 10))
            await servers.nats.restart()
            await eventually(lambda: publisher.connections == 2)
            await publisher.js_publish("tandem.submit.cms", b"after")
            assert (await asyncio.wait_for(anext(messages), 10)).data == b"after"


async def test_leaving_a_consumption_gives_the_next_message_to_another(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("publisher:cms") as publisher:
        async with bus.consume("SUBMIT", "intake", batch=8, queue_max=16, expires_s=600):
            pass
        await bus.flush()
        await publisher.js_publish("tandem.submit.cms", b"next")
        async with bus.consume("SUBMIT", "intake", batch=8, queue_max=16) as messages:
            assert (await asyncio.wait_for(anext(messages), 10)).data == b"next"


async def test_messages_are_taken_in_groups(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("publisher:cms") as publisher:
        await asyncio.gather(*(publisher.js_publish("tandem.submit.cms", b"%d" % n) for n in range(10)))
        taken: list[Message] = []
        async with bus.consume("SUBMIT", "intake", batch=8, queue_max=16) as messages:
            while len(taken) < 10:
                group = await asyncio.wait_for(messages.take(4), 10)
                assert 1 <= len(group) <= 4
                taken += group


# ---- JetStream


async def test_refusals_carry_their_number(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        await bus.js_publish(WORK.format("1"), b"{}")
        with pytest.raises(ApiError) as caught:
            await bus.js_publish(WORK.format("1"), b"{}")
        assert (caught.value.err_code, caught.value.code) == (10077, 503)


async def test_message_id_is_stored_once(servers: TandemServers):
    async with servers.open("publisher:cms") as bus:
        first = await bus.js_publish("tandem.submit.cms", b"{}", msg_id="cms/post-1")
        second = await bus.js_publish("tandem.submit.cms", b"{}", msg_id="cms/post-1")
        assert (first.stream, first.duplicate) == ("SUBMIT", False)
        assert (second.seq, second.duplicate) == (first.seq, True)


async def test_settling_only_works_on_deliveries(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        for settle in (bus.ack, bus.nak, functools.partial(bus.term, reason="x")):
            with pytest.raises(ValueError, match="not a delivery"):
                await settle("tandem.claim.mini")


# ---- the cutting of bytes


async def test_bytes_may_be_cut_anywhere():
    from shared.bus_link import Link  # noqa: PLC0415

    wire = (
        b"PING\r\n"
        b"MSG a.b 1 3\r\nabc\r\n"
        b"MSG a.b 1 re.ply 0\r\n\r\n"
        b'INFO {"x":1}\r\n'
        b"HMSG a.b 1 re.ply 23 27\r\nNATS/1.0\r\nName: val\r\n\r\nbody\r\n"
        b"HMSG a.b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
        b"+OK\r\n"
        b"PONG\r\n"
        b"MSG gone 9 2\r\nxx\r\n"
    )
    for size in (1, 2, 3, 5, 7, 11, 50, len(wire)):
        heard: list[Message] = []
        link = Link({1: heard.append}, on_lost=lambda _: None, on_denied=lambda *_: None)
        for start in range(0, len(wire), size):
            link.feed(wire[start : start + size])
        assert [(m.subject, m.data, m.reply) for m in heard] == [
            ("a.b", b"abc", ""),
            ("a.b", b"", "re.ply"),
            ("a.b", b"body", "re.ply"),
            ("a.b", b"", ""),
        ]
        assert heard[2].headers == {"Name": "val"}
        assert heard[3].status == 503
        assert link._out == [b"PONG\r\n"]
