"""Attempts whose work goes on in a backend while this process dies, on disk, so that the next process takes them up.

    data/journal/<job>.<epoch>.json   from the start of the executor until its result is spooled, or it is idle

Only for executors that find their own work again by the attempt's name (`Adopting`); the work of any other ends with
the process, and the coordinator gives the job to somebody else. Called by the runner, and read by `service` at start.
Upload tokens lie here, so everything is the owner's alone. A job that kills each process that holds it must not be
taken up for ever: `MOST_TRIES`.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import structlog
from pydantic import ValidationError

from agent.executors.base import Executor, RunnableJob
from agent.leases import Attempt
from shared.private_file import replace_private
from shared.wire import Granted, GrantedJob, Open

MOST_TRIES = 3
_log = structlog.get_logger()


@runtime_checkable
class Adopting(Protocol):
    """What an executor has if running an attempt again finds the work that is going on, or its result."""

    async def abandon(self, job_id: str, epoch: int) -> None:
        """Stop what is left of an attempt that is no longer ours, and wait until it has stopped, in bounded time.

        Never raises for a backend that is away.
        """


class Claimed(Open):
    """An attempt as it is kept."""

    granted: Granted
    delivery: str
    executor: str
    granted_at: float  # wall clock, since it must outlast a reboot; the ledger's deadline decides
    tries: int = 0  # how often it was taken up

    @property
    def name(self) -> str:
        """What its file is called."""
        return _name(str(self.granted.job.id), self.granted.epoch)


class Journal:
    """The folder. `load` before anything else."""

    def __init__(self, root: Path, wall: Callable[[], float] = time.time) -> None:
        """`wall` is the time of day in seconds."""
        self._root, self._wall = root, wall
        self._kept: set[str] = set()
        self.dropped: list[Claimed] = []
        """What `load` found and gave up: its work may still go on in a backend, for nobody."""

    def load(self) -> list[Claimed]:
        """Return what an earlier process left, counted as one more try, and forget the rest; blocking, at start."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        found: list[Claimed] = []
        for path in sorted(path for path in self._root.iterdir() if path.is_file()):
            try:
                claimed = Claimed.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                _log.warning("journal entry can't be read", path=str(path), error=str(error)[:200])
                path.unlink()
                continue
            claimed = claimed.model_copy(update={"tries": claimed.tries + 1})
            if path.suffix != ".json":
                path.unlink()
                continue
            if claimed.tries > MOST_TRIES or self.left_s(claimed) <= 0:
                path.unlink()
                self.dropped.append(claimed)
                continue
            try:
                replace_private(path, _encoded(claimed))
            except OSError as error:  # a full disk must not keep the agent from delivering what fills it
                _log.warning("journal entry can't be counted", path=str(path), error=str(error))
            self._kept.add(claimed.name)
            found.append(claimed)
        return found

    def left_s(self, claimed: Claimed) -> float:
        """Return how much of the attempt's time is left."""
        return claimed.granted.deadline_s - max(0.0, self._wall() - claimed.granted_at)

    async def keep(self, attempt: Attempt, job: RunnableJob, executor: Executor) -> None:
        """Keep an attempt that its executor could take up again; OSError when the disk refuses."""
        name = _name(job.id, job.epoch)
        if not isinstance(executor, Adopting) or name in self._kept:
            return
        claimed = Claimed(
            granted=_granted(attempt, job, attempt.deadline_at - attempt.now()),
            delivery=attempt.delivery,
            executor=executor.name,
            granted_at=self._wall(),
        )
        self._kept.add(name)
        await asyncio.to_thread(replace_private, self._root / f"{name}.json", _encoded(claimed))

    async def forget(self, job_id: str, epoch: int) -> None:
        """Keep it no more."""
        name = _name(job_id, epoch)
        if name in self._kept:
            self._kept.discard(name)
            await asyncio.to_thread((self._root / f"{name}.json").unlink, missing_ok=True)


def _name(job_id: str, epoch: int) -> str:
    return f"{job_id}.{epoch}"


def _encoded(claimed: Claimed) -> bytes:
    return claimed.model_dump_json(by_alias=True).encode()


def _granted(attempt: Attempt, job: RunnableJob, deadline_s: float) -> Granted:
    """Return the grant as it would be given now."""
    spec: dict[str, Any] = dict(job.spec)
    return Granted(
        epoch=attempt.epoch,
        attempt=job.attempt,
        lease_ttl_s=0,
        heartbeat_s=attempt.heartbeat_s,
        deadline_s=deadline_s,
        no_progress_s=job.no_progress_s,
        failures=None if job.failures is None else list(job.failures),
        upload=attempt.upload,
        job=GrantedJob(id=attempt.job_id, kind=job.kind, model=job.model, spec=spec, labels=dict(job.labels)),
    )
