"""A peer that is gone without a word: packets vanish, no FIN, no RST. The bus notices by its own pings and aborts.

nats-py alone took 33 s over TLS, and never came back with unsent data in its buffer (facts/nats.md §6).
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus import Bus, BusDown, BusTimeout, Message
from tests.support.certificates import certificate
from tests.support.proxy import Proxy
from tests.support.servers import TandemServers, eventually, own_servers

BACK_WITHIN_S = 5.0
"""Below any of nats-py's own timeouts, far above what it takes (two ping rounds of 50 ms)."""


@asynccontextmanager
async def behind_a_proxy(folder: Path, *, tls: bool) -> AsyncIterator[tuple[TandemServers, Proxy, Bus]]:
    files = certificate(folder) if tls else None
    async with own_servers(tls=files) as servers, Proxy("127.0.0.1", servers.nats.port) as proxy:
        context = ssl.create_default_context(cafile=str(files[0])) if files else None
        scheme = "tls" if tls else "nats"
        async with servers.open(
            "coordinator",
            url=f"{scheme}://127.0.0.1:{proxy.port}",
            tls=context,
            ping_interval_s=0.05,
            max_outstanding_pings=2,
        ) as bus:
            yield servers, proxy, bus


async def back_with_its_subscription(bus: Bus, heard: "asyncio.Queue[Message]") -> None:
    async with asyncio.timeout(BACK_WITHIN_S):
        await eventually(lambda: bus.connections == 2)
        await bus.publish("tandem.event.a.b", b"after")
        assert (await heard.get()).data == b"after"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_silent_link_is_aborted_and_replaced(tmp_path: Path, *, tls: bool):
    async with behind_a_proxy(tmp_path, tls=tls) as (_, proxy, bus):
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await bus.subscribe("tandem.event.>", heard.put_nowait)
        proxy.black_hole()
        await eventually(lambda: not bus.connected)
        proxy.heal()
        await back_with_its_subscription(bus, heard)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_silent_link_with_unsent_data_is_aborted_and_replaced(tmp_path: Path, *, tls: bool):
    async with behind_a_proxy(tmp_path, tls=tls) as (_, proxy, bus):
        heard: asyncio.Queue[Message] = asyncio.Queue()
        await bus.subscribe("tandem.event.>", heard.put_nowait)
        proxy.black_hole(swallow=False)

        async def flood() -> None:  # until the buffers of both kernels, and the bus's own, are full
            while True:
                await bus.publish("tandem.event.x.y", bytes(1024 * 1024))

        with pytest.raises(BusDown):
            await asyncio.wait_for(flood(), BACK_WITHIN_S)
        proxy.heal()
        await back_with_its_subscription(bus, heard)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_bus_behind_a_silent_link_closes_promptly(tmp_path: Path, *, tls: bool):
    async with behind_a_proxy(tmp_path, tls=tls) as (servers, proxy, _):
        scheme = "tls" if tls else "nats"
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem")) if tls else None
        bus = servers.bus("coordinator", url=f"{scheme}://127.0.0.1:{proxy.port}", tls=context, stuck_s=0.1)
        async with asyncio.timeout(BACK_WITHIN_S):
            async with bus:
                await bus.wait_connected(5)
                proxy.black_hole(swallow=False)
                await bus.publish("tandem.event.x.y", bytes(1024 * 1024))
            assert not bus.connected


async def test_request_over_a_silent_link_ends_with_it_as_unknown(tmp_path: Path):
    async with behind_a_proxy(tmp_path, tls=False) as (_, proxy, bus):
        await bus.subscribe("tandem.event.>", lambda _: None)
        proxy.black_hole()
        with pytest.raises(BusTimeout):
            await asyncio.wait_for(bus.request("tandem.event.a.b", b"", timeout_s=600), BACK_WITHIN_S)


async def test_connecting_into_a_hole_is_given_up_and_tried_again():
    async with own_servers() as servers, Proxy("127.0.0.1", servers.nats.port) as proxy:
        proxy.black_hole()
        async with servers.bus("coordinator", url=f"nats://127.0.0.1:{proxy.port}", connect_timeout_s=0.1) as bus:
            await eventually(lambda: proxy.accepted >= 2)
            proxy.heal()
            await bus.wait_connected(BACK_WITHIN_S)


async def test_server_that_offers_no_tls_is_refused_when_tls_is_wanted():
    async with own_servers() as servers:
        url = servers.nats.url.replace("nats://", "tls://")
        async with servers.bus("coordinator", url=url) as bus:
            with pytest.raises(BusDown):
                await bus.wait_connected(0.3)
            assert bus.connections == 0


async def test_certificate_that_is_not_trusted_is_refused(tmp_path: Path):
    async with own_servers(tls=certificate(tmp_path)) as servers, servers.bus("coordinator") as bus:
        with pytest.raises(BusDown):
            await bus.wait_connected(0.3)
        assert bus.connections == 0


async def test_latency_and_narrowness_are_no_outage(tmp_path: Path):
    async with own_servers() as servers:
        await servers.reset_streams()
        async with Proxy("127.0.0.1", servers.nats.port, delay_s=0.02, bytes_per_s=4_000_000) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}"
            async with servers.open("coordinator", url=url, ping_interval_s=0.5) as bus:
                ack = await bus.js_publish("tandem.work.article.any.1", bytes(60_000), timeout_s=10)
                assert ack.stream == "WORK"
                assert bus.connections == 1
