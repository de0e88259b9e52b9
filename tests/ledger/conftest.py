from tests.support.ledger import desk, ledger_dsn, ledger_pool, ledger_template
from tests.support.servers import postgres_server

__all__ = ["desk", "ledger_dsn", "ledger_pool", "ledger_template", "postgres_server"]
