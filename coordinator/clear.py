"""What of a coordinator's settings would cross a network in the clear; `settings.py` refuses it.

Not here: what is listened on, which takes a name's addresses (`web/access.py`), and other people's servers, which the
settings allow by name: callbacks and WordPress without TLS. Pure but for PGHOST, PGSSLMODE and PGSERVICE, which count
for Postgres. What is returned says what to do, and repeats no password.
"""

import os
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from shared.addresses import is_loopback

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


def clear_address(setting: str, look: Callable[[str], str | None], urls: str | None) -> str | None:
    """Return what `look` (of `shared.addresses`) finds wrong with a setting's URLs; None if nothing is."""
    try:
        return _fault(setting, look(urls)) if urls else None
    except ValueError as error:
        return f"{setting}: {error}"


def clear_postgres(dsn: str) -> str | None:
    """Return what is wrong with the ledger's DSN; None if nothing is."""
    try:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        named = [*parts.netloc.rpartition("@")[2].split(","), *",".join(query.get("host", [])).split(",")]
        hosts = [_host_of(place) for place in filter(None, named)]
    except ValueError:
        return "postgres: that is no URL"
    if found := {"service", "servicefile", "hostaddr"} & set(query):
        return f"postgres: {', '.join(sorted(found))}: not here; name host, database and sslmode in the URL itself"
    if "PGSERVICE" in os.environ:
        return "postgres: PGSERVICE is set: name host, database and sslmode in the URL itself"
    if query.get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1] in _SSLMODES:
        return None
    if not any(hosts):
        hosts = os.environ.get("PGHOST", "").split(",")
    return next((_fault("postgres", host) for host in hosts if not _is_here(host)), None)


def _host_of(place: str) -> str:
    """Return the host of HOST, HOST:PORT, or :PORT, which is this machine's: empty."""
    if place.startswith("/"):
        return place
    return unquote(urlsplit(f"//{place}").hostname or "")


def _is_here(host: str) -> bool:
    return not host or host.startswith("/") or is_loopback(host)


def _fault(setting: str, address: str | None) -> str | None:
    return None if address is None else f"{setting}: {address} is not encrypted, and {_CURES[setting]}"
