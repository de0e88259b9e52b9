"""What the log says of a key that the server refuses: one line with its cure, and none of asyncio's own."""

import logging
import ssl

import pytest
from structlog.testing import capture_logs

from shared.bus import Bus
from shared.nkey import new_seed
from tests.support.certificates import certificate
from tests.support.servers import eventually, own_servers


class Heard(logging.Handler):
    """Keeps what asyncio says."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


@pytest.fixture(name="asyncio_log")
def what_asyncio_logs():
    heard, logger = Heard(), logging.getLogger("asyncio")
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)


async def test_a_key_that_is_revoked_is_said_with_its_cure_and_without_noise(tmp_path, asyncio_log):
    cert, key = certificate(tmp_path)
    tls = ssl.create_default_context(cafile=str(cert))
    async with own_servers(tls=(cert, key)) as servers:
        with capture_logs() as logged:
            async with Bus(servers.nats.url, name="agent-mini", seed=new_seed(), tls=tls, reconnect_delays_s=(0.01,)):
                failed = lambda: [one for one in logged if one["event"] == "bus connect failed"]  # noqa: E731
                await eventually(lambda: len(failed()) > 3)
    assert {one["log_level"] for one in failed()} == {"error"}
    assert all("revoked or replaced" in one["todo"] and "tandem-agent join" in one["todo"] for one in failed())
    assert [one["failures"] for one in failed()][:3] == [1, 2, 4]
    assert asyncio_log.said == []
