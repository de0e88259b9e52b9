"""What of a coordinator's settings would cross a network in the clear; `settings.py` refuses it.

Not here: what is listened on, which takes a name's addresses (`web/access.py`), and other people's servers, which the
settings allow by name: callbacks and WordPress without TLS. Pure but for PGSSLMODE, which counts for Postgres.
"""

import os
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from shared.addresses import in_the_clear, is_loopback

_SSLMODES: Final = ("require", "verify-ca", "verify-full")

_NATS: Final = "jobs cross the network: give NATS a certificate (tandem init makes one), and write tls:// or wss://"
_CURES: Final = {
    "nats": _NATS,
    "nats_public_url": _NATS,
    "public_url": "tokens cross the network: put Caddy before it, or set https; and set public_url to https://HOST",
    "artifacts_endpoint": "files cross the network: write https://, of a store with a certificate",
    "postgres": "prompts, results and invitations cross the network: add sslmode=verify-full to it, with"
    " sslrootcert=FILE if its authority is its own",
}


def clear_address(setting: str, urls: str | None) -> str | None:
    """Return what is wrong with a setting that holds URLs, and what to do; None if nothing is."""
    found = in_the_clear(urls or "")
    return None if found is None else _fault(setting, found)


def clear_postgres(dsn: str) -> str | None:
    """Return what is wrong with the ledger's DSN, without repeating it, and what to do; None if nothing is."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    if query.get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1] in _SSLMODES:
        return None
    places = parts.netloc.rpartition("@")[2] or query.get("host", [os.environ.get("PGHOST", "")])[-1]
    for place in filter(None, places.split(",")):
        host = unquote(urlsplit(f"//{place}").hostname or place) if not place.startswith("/") else place
        if not host.startswith("/") and not is_loopback(host):
            return _fault("postgres", host)
    return None


def _fault(setting: str, address: str) -> str:
    return f"{setting}: {address} is not encrypted, and {_CURES[setting]}"
