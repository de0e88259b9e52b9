"""The shell around `transitions.py`: every command of this coordinator goes through one group-commit writer.

The writer takes what waits (at most `batch`), carries it out in one transaction (`batch.py`), answers each caller and
hands the effects on, in order. Several coordinators can run at once: the row locks decide. The callers are the
coordinator's desks and loops (intake, claims, heartbeats, reports, reaper ...).

What can go wrong, and what callers see: a command that Postgres or a transition can't take fails alone, with its own
error; when Postgres is away, every command that waited for that commit gets LedgerDownError, and may have been carried
out if it was the COMMIT that got no answer (all commands may be repeated); deadlocks are tried again and not seen.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import asyncpg
import structlog

from coordinator.ledger.batch import Committed, carry_out
from coordinator.ledger.database import CONNECT_S, down, is_away, open_pool
from coordinator.ledger.model import Answer, Command, Decided, Effect, Job
from shared.errors import LedgerDownError
from shared.failpoints import Failpoint, reach
from shared.lease import Policy
from shared.loops import worth_a_line

_log = structlog.get_logger()

CLOSE_S = 15.0
"""What waits when the ledger is closed is still carried out, for so long."""

_CONFLICT_TRIES = 20

# Every statement of the writer names its rows by primary key. Statistics that lag behind must not talk the planner into
# reading whole tables, and a plan that was made for an empty table is kept.
_BY_KEY = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"


class _Sink:
    """Where the answers of one caller gather; errors stand among them as values."""

    __slots__ = ("answers", "done", "left")

    def __init__(self, count: int) -> None:
        self.answers: list[Answer | Exception] = [_UNANSWERED] * count
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, index: int, answer: Answer | Exception) -> None:
        self.answers[index] = answer
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


_UNANSWERED = RuntimeError("unanswered")


@dataclass(slots=True)
class _Item:
    command: Command
    sink: _Sink
    index: int

    def answer(self, answer: Answer | Exception) -> None:
        self.sink.put(self.index, answer)


@dataclass(slots=True)
class _Counts:
    """What /status shows."""

    batches: int = 0
    commands: int = 0
    largest: int = 0
    last_commit_ms: float = 0.0
    conflicts: int = 0  # batches tried again after a deadlock
    races: int = 0  # commands decided again because another coordinator was first to admit
    bad_commands: int = 0
    outages: int = 0  # batches that found Postgres away
    callback_failures: int = 0


class Ledger:
    """The group-commit writer; `async with Ledger(...) as ledger`, then `do`, `do_each` or `do_many`."""

    def __init__(
        self,
        pool_or_dsn: asyncpg.Pool | str,
        policy: Policy,
        *,
        on_effects: Callable[[Sequence[Effect]], None],
        on_changes: Callable[[Job | None, Job], None] | None = None,
        on_decided: Callable[[Sequence[Decided], float], None] = lambda _decided, _took_s: None,
        batch: int = 500,
        waiting: int = 10_000,
    ) -> None:
        """`on_effects`, then `on_changes` (job before, job after), then `on_decided` (all of a commit, the seconds that
        it took) are called after each commit, on the loop; they must not block. `waiting`: more commands than this make
        their callers wait.
        """
        self._given = pool_or_dsn
        self._policy = policy
        self._on_effects = on_effects
        self._on_changes = on_changes
        self._on_decided = on_decided
        self._batch = batch
        self._queue: asyncio.Queue[_Item | None] = asyncio.Queue(waiting)
        self._pool: asyncpg.Pool | None = None
        self._connection: asyncpg.Connection | None = None
        self._writer: asyncio.Task[None] | None = None
        self._lanes: set[str] = set()
        self._away = 0  # batches in a row that found Postgres away
        self._closed = False
        self._counts = _Counts()

    async def __aenter__(self) -> Self:
        """Start the writer. With a dsn it opens its own pool; it connects at the first command."""
        given = self._given
        self._pool = await open_pool(given, min_size=0, max_size=1) if isinstance(given, str) else given
        self._writer = asyncio.create_task(self._write(), name="ledger writer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more, carry out what waits, and end."""
        self._closed = True
        assert self._writer is not None
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._queue.put(None)
                await asyncio.shield(self._writer)
        except TimeoutError:
            _log.warning("ledger closed with commands waiting", waiting=self._queue.qsize())
        finally:
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
            await self._disconnect()
            if isinstance(self._given, str) and self._pool is not None:
                self._pool.terminate()

    async def do(self, command: Command) -> Answer:
        """Carry a command out; when this returns, it is committed.

        Raises LedgerDownError when Postgres is away (it may or may not have been carried out; repeat it), and the
        command's own error when it can't be stored. A caller that is cancelled does not stop what was taken already.
        """
        (answer,) = await self.do_each((command,))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def do_many(self, commands: Iterable[Command]) -> list[Answer]:
        """Carry commands out, in their order among each other; the first error is raised after all are answered."""
        answers = []
        for answer in await self.do_each(commands):
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers

    async def do_each(self, commands: Iterable[Command]) -> list[Answer | Exception]:
        """Carry commands out; each gets its answer or its own error."""
        items = list(commands)
        if not items:
            return []
        sink = _Sink(len(items))
        for index, command in enumerate(items):
            if self._closed:
                raise LedgerDownError("the ledger is closed")
            await self._queue.put(_Item(command, sink, index))
        if self._writer is None or self._writer.done():  # it ended while this waited for room
            self._leave_none_waiting()
        await sink.done
        return sink.answers

    async def do_what_can(self, commands: Iterable[Command]) -> list[Answer | Exception]:
        """Carry commands out; one that can't be stored does not stop the others (the writer has logged it).

        Raises LedgerDownError when Postgres is away.
        """
        answers = await self.do_each(commands)
        for answer in answers:
            if isinstance(answer, LedgerDownError):
                raise answer
        return answers

    def status(self) -> dict[str, object]:
        """Return what /status shows of the writer."""
        counts = self._counts
        return {
            "waiting": self._queue.qsize(),
            "connected": self._alive(),
            "batches": counts.batches,
            "commands": counts.commands,
            "largest_batch": counts.largest,
            "last_commit_ms": round(counts.last_commit_ms, 2),
            "conflicts": counts.conflicts,
            "races": counts.races,
            "bad_commands": counts.bad_commands,
            "outages": counts.outages,
            "callback_failures": counts.callback_failures,
        }

    # ---- the writer

    async def _write(self) -> None:
        items: list[_Item] = []
        last = False
        try:
            while not last:
                items, last = await self._take()
                self._counts.largest = max(self._counts.largest, len(items))
                await self._carry_out(items)
        finally:  # whatever ends the writer, nobody waits for ever
            self._closed = True
            _answer_all(items, "the ledger is closed")
            self._leave_none_waiting()

    async def _take(self) -> tuple[list[_Item], bool]:
        """Wait for a command, and take those that wait with it; the second value says that it was the last batch."""
        item = await self._queue.get()
        await asyncio.sleep(0)  # those that were about to come in this turn of the loop come along
        items: list[_Item] = []
        while item is not None:
            if not item.sink.done.cancelled():
                items.append(item)
            if len(items) >= self._batch or self._queue.empty():
                return items, False
            item = self._queue.get_nowait()
        return items, True

    async def _carry_out(self, items: list[_Item]) -> None:
        """Commit these and answer each; what must be decided again goes round again."""
        tries = 0
        while items:
            try:
                started = time.perf_counter()
                connection = await self._connected()
                committed = await carry_out(connection, [item.command for item in items], self._policy, self._lanes)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
                tries += 1
                self._counts.conflicts += 1
                if tries >= _CONFLICT_TRIES:
                    return _answer_all(items, str(down(error)))
                await asyncio.sleep(random.uniform(0, 0.01) * tries)  # noqa: S311 - spreads retries
            except Exception as error:  # noqa: BLE001 - whatever one command brings up, it must not stop the others
                return await self._failed(items, error)
            else:
                self._away = 0
                self._counts.batches += 1
                took_s = time.perf_counter() - started
                self._counts.last_commit_ms = took_s * 1000
                items = self._answered(items, committed, took_s)
        return None

    async def _failed(self, items: list[_Item], error: Exception) -> None:
        if is_away(error) or not self._alive():
            self._counts.outages += 1
            self._away += 1
            if worth_a_line(self._away):
                text = f"{type(error).__name__}: {error}"
                _log.warning("ledger away", commands=len(items), failures=self._away, error=text)
            await self._disconnect()
            _answer_all(items, str(down(error)))
        elif len(items) == 1:
            self._counts.bad_commands += 1
            command = items[0].command
            _log.error("command failed", command=type(command).__name__, job_id=str(command.job_id), error=repr(error))
            items[0].answer(error)
        else:
            for item in items:
                await self._carry_out([item])

    def _answered(self, items: list[_Item], committed: Committed, took_s: float) -> list[_Item]:
        """Answer the callers, then hand on what changed and what must be done; returns those to decide again."""
        reach(Failpoint.COMMIT_UNHEARD)
        again = []
        for item, answer in zip(items, committed.answers, strict=True):
            if answer is None:
                again.append(item)
            else:
                item.answer(answer)
        self._counts.commands += len(items) - len(again)
        self._counts.races += len(again)
        try:
            if committed.effects:
                self._on_effects(committed.effects)
            if self._on_changes is not None:
                for _, before, after, _ in committed.decided:
                    if after is not None and after is not before:
                        self._on_changes(before, after)
            self._on_decided(committed.decided, took_s)
        except Exception as error:  # noqa: BLE001 - it is committed: the reconciler does what was missed
            self._counts.callback_failures += 1
            _log.error("effects not handed on", error=repr(error))
        return again

    # ---- its connection

    async def _connected(self) -> asyncpg.Connection:
        if not self._alive():
            await self._disconnect()
            assert self._pool is not None
            self._connection = await self._pool.acquire(timeout=CONNECT_S)
            await self._connection.execute(_BY_KEY)
        return self._connection

    def _alive(self) -> bool:
        try:
            return self._connection is not None and not self._connection.is_closed()
        except asyncpg.InterfaceError:
            return False  # the pool has taken a connection back that was lost

    async def _disconnect(self) -> None:
        """Let go of the connection, whatever state it is in: the next one is a new one."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pool is not None:
            with suppress(asyncpg.InterfaceError):  # the pool has taken it back already
                connection.terminate()
                await self._pool.release(connection)

    def _leave_none_waiting(self) -> None:
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None:
                _answer_all([item], "the ledger is closed")


def _answer_all(items: Iterable[_Item], reason: str) -> None:
    """Answer LedgerDownError to those that have no answer yet."""
    for item in items:
        if item.sink.answers[item.index] is _UNANSWERED:
            item.answer(LedgerDownError(reason))
