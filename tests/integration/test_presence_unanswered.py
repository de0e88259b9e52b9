"""An answer that NATS can't take any more is no fault of a handler: the agent announces itself again."""

from structlog.testing import capture_logs

from shared import subjects
from shared.bus import Message
from tests.support.servers import eventually, own_servers
from tests.support.world import world


async def test_presence_that_can_not_be_answered_is_left_alone(ledger_dsn, tmp_path):
    async with own_servers() as servers, world(servers, ledger_dsn, tmp_path) as made:
        await servers.nats.kill()
        await eventually(lambda: not made.coordinator.bus.connected)
        with capture_logs() as logs:
            await made.coordinator.presence._on_presence(Message(subjects.presence("mini"), b"{}", "_INBOX.mini.1"))
        assert "presence not answered" in [entry["event"] for entry in logs]
        await servers.nats.start()
