"""A database that goes away while the schema is looked at: said as it is, whatever library noticed it."""

import pytest

from coordinator.ledger.migrate import migrate
from shared.errors import LedgerDownError
from tests.support.proxy import Proxy


@pytest.mark.parametrize("size", [1, 50, 300, 500, 800])
async def test_a_connection_that_ends_in_the_middle_means_that_postgres_is_away(ledger_dsn, postgres_server, size):
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        proxy.cut_after(size)
        with pytest.raises(LedgerDownError, match="Postgres is away"):
            await migrate(ledger_dsn.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
        assert proxy.cuts == 1
