"""What `tandem audit` does: connects as the coordinator, looks or mends, and prints one line for each breach."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import typer

from coordinator import cli_show
from coordinator.artifact_stores import store_of
from coordinator.artifacts import ArtifactStore
from coordinator.audit import RULES, Breach, Limits, look
from coordinator.ledger.database import lent_pool
from coordinator.ledger.views import Pool
from coordinator.repair import repair
from coordinator.settings import CoordinatorSettings
from shared.bus import Bus


class _Reached(NamedTuple):
    pool: Pool
    bus: Bus
    store: ArtifactStore


async def audited(settings: CoordinatorSettings, *, results: int, json: bool) -> bool:
    """Audit and print; say whether no promise is broken. What was looked at goes to stderr."""
    async with _reached(settings) as (pool, bus, store):
        found = await look(pool, bus, store, _limits(settings, results))
    if json:
        typer.echo(cli_show.as_json([_plain(breach) for breach in found.breaches]))
    for breach in () if json else found.breaches:
        typer.echo(_line(breach))
    for line in found.covered:
        typer.echo(line, err=True)
    typer.echo(_count(len(found.breaches)), err=True)
    return not found.breaches


async def repaired(settings: CoordinatorSettings, *, results: int, json: bool) -> bool:
    """Repair and print; say whether nothing is left."""
    base_url = settings.public_url or f"http://{settings.http}"
    async with _reached(settings) as (pool, bus, store):
        ends = await repair(pool, bus, store, settings.policy(), base_url, _limits(settings, results))
    left = sum(not end.mended for end in ends)
    if json:
        outcomes = [{**_plain(e.breach), "outcome": "mended" if e.mended else "left", "what": e.what} for e in ends]
        typer.echo(cli_show.as_json(outcomes))
    for end in () if json else ends:
        typer.echo(f"{_line(end.breach)}\n  {'mended' if end.mended else 'left'}: {end.what}")
    typer.echo(f"{len(ends) - left} mended, {left} left" if ends else "no breach", err=True)
    return not left


def _limits(settings: CoordinatorSettings, results: int) -> Limits:
    return Limits(presence_s=settings.presence_s, quarantine=settings.quarantine(), results=results)


def _count(breaches: int) -> str:
    match breaches:
        case 0:
            return "no breach"
        case 1:
            return "1 breach"
        case _:
            return f"{breaches} breaches"


def _plain(breach: Breach) -> dict[str, Any]:
    return {**breach._asdict(), "promise": RULES[breach.rule][0]}


def _line(breach: Breach) -> str:
    where = f" epoch {breach.epoch}" if breach.epoch is not None else ""
    detail = f" ({breach.detail})" if breach.detail else ""
    return f"{breach.rule} (promise {RULES[breach.rule][0]}): {breach.job_id or '-'}{where}: {breach.text}{detail}"


@asynccontextmanager
async def _reached(settings: CoordinatorSettings) -> AsyncIterator[_Reached]:
    """Reach the ledger, the streams and the files as the coordinator does."""
    tls = ssl.create_default_context(cafile=str(settings.nats_ca)) if settings.nats_ca else None
    seed = settings.nats_seed.get_secret_value() if settings.nats_seed else None
    bus = Bus(settings.nats, name="tandem-audit", seed=seed, inbox_prefix="_INBOX.coordinator", tls=tls)
    store = store_of(settings)
    try:
        async with lent_pool(settings.postgres.get_secret_value(), max_size=4) as pool, bus:
            await bus.wait_connected(10.0)
            yield _Reached(pool, bus, store)
    finally:
        store.close()
