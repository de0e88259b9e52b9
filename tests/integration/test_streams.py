"""Streams and consumers are what PROTOCOL says, made once, mended when they differ, by those who may."""

import asyncio

import pytest

from shared.bus import ApiError, Denied
from shared.streams import (
    STREAMS,
    consumer_info,
    consumer_pending,
    ensure_intake_consumers,
    ensure_lane_consumer,
    ensure_results_consumer,
    ensure_streams,
    last_message_seq,
    nak_seq,
    remove_message,
    work_subjects,
)
from tests.support.servers import TandemServers, own_servers

LANE = "image.sdxl"


def work(number: int) -> str:
    return f"tandem.work.{LANE}.{number}"


async def test_missing_streams_are_made_with_their_first_sequence_and_only_once():
    async with own_servers() as servers, servers.open("provisioner") as bus, servers.open("coordinator") as coordinator:
        assert await ensure_streams(bus, first_seq=5001) == ["SUBMIT", "WORK", "REPORTS", "RESULTS"]
        assert await ensure_streams(bus, first_seq=9999) == []
        await ensure_lane_consumer(coordinator, LANE, ack_wait_s=90)
        assert (await coordinator.js_publish(work(1), b"{}")).seq == 5001


async def test_streams_are_what_the_protocol_says(servers: TandemServers):
    async with servers.open("provisioner") as bus:
        configs = {name: (await bus.api(f"STREAM.INFO.{name}"))["config"] for name in STREAMS}
    for config in configs.values():
        assert config["storage"] == "file"
        assert config["discard"] == "new"
        assert config["max_bytes"] > 0
    assert {name: config["retention"] for name, config in configs.items()} == {
        "SUBMIT": "workqueue",
        "WORK": "workqueue",
        "REPORTS": "workqueue",
        "RESULTS": "limits",
    }
    assert configs["WORK"]["max_msgs_per_subject"] == 1
    assert configs["WORK"]["discard_new_per_subject"] is True
    assert configs["RESULTS"]["max_age"] == 7 * 24 * 3600 * 10**9
    assert configs["RESULTS"]["duplicate_window"] >= 3600 * 10**9
    assert configs["REPORTS"]["duplicate_window"] <= 60 * 10**9


async def test_stream_that_differs_is_mended_and_keeps_its_messages(servers: TandemServers):
    async with servers.open("provisioner") as bus, servers.open("publisher:cms") as publisher:
        await publisher.js_publish("tandem.submit.cms", b"kept")
        config = (await bus.api("STREAM.INFO.SUBMIT"))["config"]
        await bus.api("STREAM.UPDATE.SUBMIT", {**config, "max_bytes": 1024, "discard": "old", "max_age": 10**12})
        assert await ensure_streams(bus, first_seq=1) == []
        info = await bus.api("STREAM.INFO.SUBMIT")
        assert {k: v for k, v in info["config"].items() if k in ("max_bytes", "discard", "max_age")} == {
            "max_bytes": STREAMS["SUBMIT"]["max_bytes"],
            "discard": "new",
            "max_age": 0,
        }
        assert info["state"]["messages"] == 1


async def test_streams_that_are_as_they_should_be_are_left_alone(servers: TandemServers):
    async with servers.open("provisioner") as bus:
        asked: list[str] = []
        api = bus.api

        async def note(suffix, *args, **kwargs):
            asked.append(suffix.split(".")[1])
            return await api(suffix, *args, **kwargs)

        bus.api = note
        await ensure_streams(bus, first_seq=1)
        assert set(asked) == {"INFO"}


async def test_coordinator_may_not_make_streams(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        with pytest.raises(Denied):
            await bus.api("STREAM.CREATE.MORE", {"name": "MORE", "subjects": ["more"]})


async def test_lane_consumer_is_prioritized_and_follows_the_lease(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        await ensure_lane_consumer(bus, LANE, ack_wait_s=90)
        await ensure_lane_consumer(bus, LANE, ack_wait_s=60)
        info = await consumer_info(bus, "WORK", "image--sdxl")
        assert info is not None
        config = info["config"]
        assert config["filter_subject"] == f"tandem.work.{LANE}.*"
        assert config["ack_wait"] == 60 * 10**9
        assert config["ack_policy"] == "explicit"
        assert config["max_deliver"] == -1
        assert "backoff" not in config
        assert config["priority_policy"] == "prioritized"
        assert config["priority_groups"] == ["workers"]


async def test_consumers_of_coordinators_and_sources_are_made_and_repeatable(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        for _ in range(2):
            await ensure_intake_consumers(bus)
            await ensure_results_consumer(bus, "cms")
        for stream, name in (("SUBMIT", "intake"), ("REPORTS", "reports"), ("RESULTS", "results-cms")):
            info = await consumer_info(bus, stream, name)
            assert info is not None
            assert info["config"]["ack_wait"] == 30 * 10**9
        assert await consumer_info(bus, "WORK", "article--none") is None
        assert await consumer_pending(bus, "article--none") == 0


async def test_source_takes_its_own_results(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("publisher:cms") as publisher:
        await ensure_results_consumer(bus, "cms")
        await bus.js_publish("tandem.result.other.article.1", b"not mine")
        await bus.js_publish("tandem.result.cms.article.2", b"mine", msg_id="2:1")
        message = await publisher.pull_one("RESULTS", "results-cms", expires_s=5)
        assert message is not None
        assert message.data == b"mine"
        await publisher.ack(message)
        assert await publisher.pull_one("RESULTS", "results-cms", expires_s=5, no_wait=True) is None


async def test_subjects_of_work_are_listed(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        assert await work_subjects(bus) == set()
        await ensure_lane_consumer(bus, LANE, ack_wait_s=90)
        await asyncio.gather(*(bus.js_publish(work(number), b"{}") for number in range(300)))
        assert await work_subjects(bus) == {work(number) for number in range(300)}
        assert await consumer_pending(bus, "image--sdxl") == 300


async def test_subjects_of_work_are_listed_page_by_page(servers: TandemServers):
    pages = [{"a": 1, "b": 1}, {"c": 1}, {"d": 1, "e": 1}]
    offsets = []

    class Paged:
        async def api(self, _suffix, body, **_):
            offsets.append(body["offset"])
            return {"state": {"subjects": pages[len(offsets) - 1]}, "total": 5}

    assert await work_subjects(Paged()) == {"a", "b", "c", "d", "e"}
    assert offsets == [0, 2, 3]


async def test_message_is_found_by_subject_and_removed_by_sequence(servers: TandemServers):
    async with servers.open("coordinator") as bus:
        await ensure_lane_consumer(bus, LANE, ack_wait_s=90)
        assert await last_message_seq(bus, work(1)) is None
        first = (await bus.js_publish(work(1), b"{}")).seq
        assert await last_message_seq(bus, work(1)) == first
        assert await remove_message(bus, "WORK", first) is True
        assert await remove_message(bus, "WORK", first) is False
        assert await remove_message(bus, "WORK", first + 1000) is False
        second = (await bus.js_publish(work(1), b"{}")).seq
        assert await remove_message(bus, "WORK", first) is False
        assert await last_message_seq(bus, work(1)) == second


async def test_removed_message_leaves_nothing_behind_at_its_consumer(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("agent:mini") as agent:
        await ensure_lane_consumer(bus, LANE, ack_wait_s=90)
        seq = (await bus.js_publish(work(1), b"{}")).seq
        message = await agent.pull_one("WORK", "image--sdxl", expires_s=5, group="workers", priority=0)
        assert message is not None
        await remove_message(bus, "WORK", seq)
        again = (await bus.js_publish(work(1), b"{}")).seq
        assert again > seq
        fresh = await agent.pull_one("WORK", "image--sdxl", expires_s=5, group="workers", priority=0)
        assert fresh is not None
        assert int(fresh.reply.split(".")[5]) == again


async def test_naks_by_sequence_hand_the_message_out_again(servers: TandemServers):
    async with servers.open("coordinator") as bus, servers.open("agent:mini") as agent:
        await ensure_lane_consumer(bus, LANE, ack_wait_s=90)
        seq = (await bus.js_publish(work(1), b"{}")).seq
        for count in (1, 2, 3):
            message = await agent.pull_one("WORK", "image--sdxl", expires_s=10, group="workers", priority=0)
            assert message is not None
            assert message.reply.startswith(f"$JS.ACK.WORK.image--sdxl.{count}.{seq}.")
            await nak_seq(bus, "image--sdxl", seq)


async def test_other_refusals_are_not_swallowed(servers: TandemServers):
    async with servers.open("provisioner") as bus:
        await bus.api("STREAM.DELETE.WORK")
        for call in (work_subjects(bus), last_message_seq(bus, work(1)), remove_message(bus, "WORK", 1)):
            with pytest.raises(ApiError):
                await call
