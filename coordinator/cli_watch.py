"""`tandem watch`: how things stand, on a terminal, as it changes; once, where there is no terminal.

It asks again when `GET /v1/events` says that something happened, at most once a second, and after some seconds in any
case: heartbeats and what workers announce are no events. A coordinator that is away is asked for with backoff, and said
to be away. `cli_watch_picture.py` draws.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live

from coordinator import cli_show
from coordinator.cli_serve import Stops
from coordinator.cli_watch_picture import Picture, Seen
from coordinator.cli_where import Data, Json, Token, Url, ask, client_of, run
from shared.backoff import reconnect_delay_s
from shared.client import Client, JobLine, LaneLine, RefusedRequestError, RunningLine, WorkerLine
from shared.errors import UnreachableError

_ROUND_S: Final = 1.0
"""It asks no more often, and draws as often: times run on."""

_CALM_S: Final = 3.0  # and no less often
_AGAIN_S: Final = (1, 2, 5, 10)  # between attempts to reach one that is away; the last one repeats
_HEAR_AGAIN_S: Final = 5.0  # until it is asked anew for events that it ended or refused
_LATE, _FAILED = 5, 5
_FAILED_LATELY: Final = 100
"""The list of failed jobs is in the order of their submission: so many are looked at for those that failed last."""

_SERVER_ERROR: Final = 500


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(watch)


def watch(
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end; so it is without a terminal.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    data: Data = None,
) -> None:
    """Show what runs where, what waits and why, workers and failures, as it changes; Ctrl-C ends it."""
    out = cli_show.console()
    if not once and not json and out.is_terminal and not out.is_dumb_terminal:
        run(_until_stopped(out, lambda: client_of(url, token, data, "admin")))
        return
    seen = ask(url, token, data, lambda client: _Reader(client).read())
    if json:
        typer.echo(cli_show.as_json(seen.as_read))
    else:
        out.print(Picture(seen, url=seen.url, now=time.monotonic()))


@dataclass(slots=True)
class _Reader:
    """Asks one coordinator for everything that is shown."""

    client: Client
    _failed: list[JobLine] = field(default_factory=list)
    _failures: int = -1  # how many jobs were `failed` when these were asked for

    async def read(self, before: Seen | None = None) -> Seen:
        """Return how things stand; what the ledger knows as it was `before`, if that is away."""
        status = await self.client.status()
        read_at = time.monotonic()
        if not status["ledger"]["up"]:
            return _without_ledger(status, self.client.url, read_at, before)
        rejected = await self.client.rejected(_LATE)
        if status["jobs"]["failed"] != self._failures:
            found = (await self.client.jobs(state="failed", limit=_FAILED_LATELY)).jobs
            self._failed = sorted(found, key=lambda job: job.finished_at or job.created_at, reverse=True)[:_FAILED]
            self._failures = status["jobs"]["failed"]
        return Seen(
            url=self.client.url,
            read_at=read_at,
            now=datetime.fromisoformat(status["ledger"]["now"]),
            trouble=status["not_ready_because"],
            jobs=status["jobs"],
            running=[RunningLine.model_validate(one) for one in status["running"]],
            lanes=[LaneLine.model_validate(one) for one in status["lanes"]],
            workers=[WorkerLine.model_validate(one) for one in status["workers"]],
            failed=self._failed,
            late=rejected.results,
            as_read={**status, "failed": cli_show.plain(self._failed), "rejected": cli_show.plain(rejected)},
        )


def _without_ledger(status: dict[str, Any], url: str, read_at: float, before: Seen | None) -> Seen:
    trouble = [f"the ledger is away: {status['ledger']['error']}", *status["not_ready_because"]]
    if before is not None:
        return before.still(trouble)
    return Seen(url=url, read_at=read_at, now=datetime.now(UTC), trouble=trouble, as_read=status, is_old=True)


@dataclass(slots=True)
class _Board:
    """What is on the screen."""

    live: Live
    url: str
    seen: Seen | None = None
    away_since: datetime | None = None  # by this machine's clock
    why_away: str = ""

    def draw(self) -> None:
        """Show how things stand by now."""
        away = (self.away_since, self.why_away) if self.away_since else None
        self.live.update(Picture(self.seen, url=self.url, now=time.monotonic(), away=away), refresh=True)

    def show(self, seen: Seen) -> None:
        """Show what was just read."""
        self.seen, self.url, self.away_since = seen, seen.url, None
        self.draw()

    def away(self, why: str) -> None:
        """Say that there is nobody to read from."""
        self.away_since, self.why_away = self.away_since or datetime.now(UTC), why
        if self.seen is not None:
            self.seen = self.seen.still(self.seen.trouble)
        self.draw()

    async def turn(self) -> None:
        """Draw again and again: times run on, and the terminal may have another size."""
        while True:
            await asyncio.sleep(_ROUND_S)
            self.draw()


async def _until_stopped(out: Console, connect: Callable[[], Client]) -> None:
    """Show it until a signal comes; UnreachableError if nobody is there at the start."""
    stops = Stops()
    with stops.heard():
        async with stops.unless_stopped():
            await _watch(out, connect)


async def _watch(out: Console, connect: Callable[[], Client]) -> None:
    async with connect() as client:
        first = await _Reader(client).read()
    with Live(console=out, screen=True, auto_refresh=False) as live:  # what was there before comes back afterwards
        board = _Board(live, first.url)
        board.show(first)
        turning = asyncio.create_task(board.turn(), name="screen")
        try:
            await _for_ever(board, connect)
        finally:
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)


async def _for_ever(board: _Board, connect: Callable[[], Client]) -> None:
    failures = 0
    while True:
        was_away = board.away_since
        try:
            async with connect() as client:  # a `tandem up` that was started anew may be elsewhere
                await _follow(client, board)
        except UnreachableError as error:
            board.away(str(error))
        except RefusedRequestError as error:
            if error.status < _SERVER_ERROR:
                raise
            board.away(str(error))
        failures = failures + 1 if was_away == board.away_since else 0
        await asyncio.sleep(reconnect_delay_s(failures, 0, _AGAIN_S))


async def _follow(client: Client, board: _Board) -> None:
    """Read again and again, until the coordinator does not answer."""
    reader = _Reader(client)
    async with _news(client) as news:
        while True:
            news.clear()
            board.show(await reader.read(board.seen))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CALM_S):
                    await asyncio.sleep(_ROUND_S)
                    await news.wait()


@contextlib.asynccontextmanager
async def _news(client: Client) -> AsyncIterator[asyncio.Event]:
    """Lend what is set whenever something happened to a job."""
    news = asyncio.Event()

    async def listen() -> None:
        while True:
            with contextlib.suppress(UnreachableError, RefusedRequestError):
                async for _ in client.events():
                    news.set()
            await asyncio.sleep(_HEAR_AGAIN_S)

    listening = asyncio.create_task(listen(), name="events heard")
    try:
        yield news
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
