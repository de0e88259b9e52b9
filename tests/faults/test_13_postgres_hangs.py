"""Fault 13: Postgres answers nothing more, and nobody is told: a coordinator that is stopped then ends all the same."""

import signal
from pathlib import Path

import aiohttp
import pytest

from tests.support.coordinator_process import coordinator_process, json_lines
from tests.support.proxy import proxied
from tests.support.servers import eventually, own_servers

pytestmark = [pytest.mark.fault(13), pytest.mark.timeout(120)]


async def test_a_coordinator_ends_while_postgres_hangs(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        assert servers.postgres is not None
        async with (
            proxied(servers.postgres.dsn) as (proxy, dsn),
            coordinator_process(servers, dsn, tmp_path / "one") as coordinator,
            aiohttp.ClientSession(coordinator.url) as http,
        ):
            proxy.black_hole()
            async with http.get("/v1/jobs") as answer:  # this connection of the pool hangs
                assert answer.status == 503
            await eventually(lambda: any("ledger" in line.get("event", "") for line in json_lines(coordinator.log)))

            coordinator.process.send_signal(signal.SIGTERM)

            assert await coordinator.process.wait() == 0
