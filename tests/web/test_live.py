"""Server-sent events: pages that change by themselves, and each event for programs."""

import asyncio
from typing import Any

import orjson
import pytest

from coordinator.web import live, live_hub
from coordinator.web.live_hub import Fragments, Hearer, Live, Shown
from shared.bus import Message
from shared.errors import LedgerDownError
from tests.support.servers import eventually
from tests.support.web import Web

WAIT_S = 30.0


class Stream:
    """Reads a stream of events."""

    def __init__(self, content: Any) -> None:
        self._content = content

    async def next(self, kind: str) -> Any:
        """Return the data of the next event of this kind."""
        async with asyncio.timeout(WAIT_S):
            while True:
                name, data = "", b""
                while line := (await self._content.readline()).rstrip(b"\n"):
                    if line.startswith(b"event: "):
                        name = line[7:].decode()
                    elif line.startswith(b"data: "):
                        data = line[6:]
                if name == kind:
                    return orjson.loads(data) if data.startswith(b"{") else data.decode()
                assert name or not self._content.at_eof(), f"the stream ended without {kind}"

    async def fragment(self, which: str) -> str:
        """Return the HTML of the next fragment with this id."""
        while (found := await self.next("fragment"))["id"] != which:
            pass
        html: str = found["html"]
        return html


async def test_a_page_is_sent_whole_and_then_what_changed(site: Web) -> None:
    async with site.client.get("/live/overview") as answer:
        assert answer.content_type == "text/event-stream"
        stream = Stream(answer.content)
        assert "Nothing runs." in await stream.fragment("running")
        job_id = await site.submit()
        await site.claim(job_id)
        site.context.live.touch()
        assert str(job_id) in await stream.fragment("running")
    await eventually(lambda: site.context.live.streams == 0)


async def test_those_who_see_the_same_share_what_is_drawn(guarded: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []

    async def draw(_: Any, which: str, may_act: bool) -> Fragments:  # noqa: FBT001
        drawn.append(may_act)
        return {"one": f"<p id='one'>{which} {len(drawn)}</p>"}

    monkeypatch.setitem(live.FRAGMENTS, "odd", draw)
    answers = [await _open(guarded, "/live/odd/x", token="viewer") for _ in range(5)]
    answers.append(await _open(guarded, "/live/odd/x", token="admin"))
    shown = [await Stream(answer.content).fragment("one") for answer in answers]
    assert len(set(shown[:5])) == 1
    assert shown[5] != shown[0]
    assert sorted(drawn) == [False, True]
    for answer in answers:
        answer.close()


async def _open(site: Web, path: str, *, token: str) -> Any:
    return await site.client.get(path, headers={"Authorization": f"Bearer t-{token}"})


async def test_streams_end_with_the_coordinator(site: Web) -> None:
    async with site.client.get("/live/overview") as page, site.client.get("/v1/events") as events:
        await Stream(page.content).fragment("running")
        await site.context.live.close()
        assert await Stream(page.content).next("bye") == "closing"
        assert await Stream(events.content).next("bye") == "closing"


async def test_a_stream_ends_with_its_session(guarded: Web) -> None:
    found = guarded.context.access.log_in("t-viewer")
    assert found is not None
    async with guarded.client.get("/live/overview", headers={"Cookie": f"tandem_session={found[1]}"}) as answer:
        stream = Stream(answer.content)
        await stream.fragment("running")
        guarded.context.access.log_out(found[1])
        assert await stream.next("bye") == "session"


async def test_more_than_so_many_streams_are_refused(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_hub, "MOST_STREAMS", 1)
    async with site.client.get("/live/overview") as answer:
        await Stream(answer.content).fragment("running")
        error = await site.call("GET", "/live/overview", expect=503)
        assert error["error"]["code"] == "too_many_streams"


@pytest.mark.parametrize("path", ["/live/nothing", "/live/overview/x", "/live/job/x"])
async def test_no_such_live_page(site: Web, path: str) -> None:
    await site.call("GET", path, expect=404)
    assert site.context.live.streams == 0


@pytest.mark.parametrize("path", ["/live/overview", "/v1/events"])
async def test_a_question_for_the_head_is_no_stream(site: Web, path: str) -> None:
    await site.call("HEAD", path)
    assert site.context.live.streams == 0


async def test_a_reader_of_events_that_missed_some_is_told(site: Web) -> None:
    async with site.client.get("/v1/events") as answer:
        stream = Stream(answer.content)
        await eventually(lambda: site.context.live.streams == 1)
        for _ in range(live_hub._MOST_HELD + 1):
            for hearer in site.context.live._hearers:
                hearer.tell({"job_id": "a"}, b"event: completed\ndata: {}\n\n")
        assert await stream.next("bye") == "missed"


async def test_a_wrong_filter_is_refused(site: Web) -> None:
    await site.call("GET", "/v1/events?job_id=x", expect=400)
    await site.call("GET", "/v1/events?job=x", expect=400)


async def test_who_does_not_read_is_dropped(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_WRITE_S", 0.05)
    monkeypatch.setattr(live_hub, "ROUND_S", 0.0)
    monkeypatch.setattr(live_hub, "CALM_S", 0.0)
    count = 0

    async def draw(*_: Any) -> Fragments:
        nonlocal count
        count += 1
        return {"big": f"<p id='big'>{count}{'x' * 500_000}</p>"}

    monkeypatch.setitem(live.FRAGMENTS, "big", draw)
    host, port = site.runner.addresses[0][:2]
    _, writer = await asyncio.open_connection(host, port, limit=1024)
    writer.write(f"GET /live/big HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    await eventually(lambda: count)
    await eventually(lambda: site.context.live.streams == 0)
    writer.close()


async def test_drawing_goes_on_after_the_ledger_was_away() -> None:
    down = False

    async def draw() -> Fragments:
        if down:
            raise LedgerDownError
        return {"one": "<p id='one'></p>"}

    shown = Shown(draw)
    seen, sent = await shown.after(0)
    assert b'"one"' in sent
    down = True
    shown.stale.set()
    seen, sent = await shown.after(seen)
    assert b"event: trouble" in sent
    assert b'"one"' not in sent
    down = False
    shown.stale.set()
    seen, sent = await shown.after(seen)
    assert sent == b'event: trouble\ndata: {"id":"","html":""}\n\n'


class Ear:
    """A subscription that is written down."""

    def __init__(self) -> None:
        self.heard: Any = None
        self.opened = 0

    async def subscribe(self, heard: Any) -> Any:
        self.heard, self.opened = heard, self.opened + 1
        return self

    async def close(self) -> None:
        self.heard = None

    def say(self, job_id: str, **more: Any) -> None:
        body = {"job_id": job_id, "type": "completed", **more}
        self.heard(Message(f"tandem.event.{job_id}.completed", orjson.dumps(body)))


async def test_it_listens_only_while_somebody_looks() -> None:
    ear = Ear()
    hub = Live(ear.subscribe)
    async with hub.hearing(None, None), hub.hearing(None, None):
        assert ear.heard is not None
    assert (ear.heard, ear.opened) == (None, 1)


async def test_a_publisher_hears_of_its_own_jobs_only() -> None:
    ear = Ear()
    hub = Live(ear.subscribe)
    async with hub.hearing("blog", None) as blog, hub.hearing(None, "b") as one, hub.hearing(None, None) as everything:
        ear.say("a", source="blog")
        ear.say("b", source="shop")
        ear.say("c")  # of a coordinator that does not name sources yet
        assert (await blog.heard(WAIT_S)).count(b"event: ") == 1
        assert b'"shop"' in await one.heard(WAIT_S)
        assert (await everything.heard(WAIT_S)).count(b"event: ") == 3


async def test_who_is_too_slow_for_the_events_learns_that_it_missed_some() -> None:
    hearer = Hearer(None, None)
    for _ in range(live_hub._MOST_HELD + 5):
        hearer.tell({"job_id": "a"}, b"x")
    assert hearer.missed
    assert len(await hearer.heard(WAIT_S)) == live_hub._MOST_HELD


async def test_an_event_of_one_job_leaves_the_pages_of_others_alone() -> None:
    async def draw() -> Fragments:
        return {}

    ear = Ear()
    hub = Live(ear.subscribe)
    keys = [("job", "a", False), ("job", "b", False), ("overview", "", True)]
    async with hub.looking(keys[0], draw) as a, hub.looking(keys[1], draw) as b, hub.looking(keys[2], draw) as all_jobs:
        ear.say("a")
        assert (a.stale.is_set(), b.stale.is_set(), all_jobs.stale.is_set()) == (True, False, True)
