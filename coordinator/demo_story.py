"""The demo's story: which posts come in, the two accidents, and what is waited for; the steps are told in `demo.py`.

It sees what the API shows (`Board`), does what a publisher, a crash and a closing lid would do, and keeps in
`demo_ending.Seen` what must be on record afterwards.
"""

import asyncio
import hashlib
import os
import signal
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

from coordinator import demo_ending
from coordinator.demo_model import MODEL
from coordinator.demo_screen import Screen
from coordinator.up import Up
from coordinator.up_agents import LocalAgent
from shared.client import Client, JobLine, RefusedRequestError, Submitted
from shared.errors import TandemError
from shared.states import SETTLED, JobState

KILLED, FROZEN = "macbook", "mini"

LOOK_S = 0.15
"""How often the jobs are looked at."""

_CHANCE_S = 15.0
_REAL_CHANCE_S = 60.0
_TRIES = 3
_FEW = 2
_EARLY = 0.25
"""Of the tokens that it may have: a real article that is no further will mostly go on for a while."""


class DemoError(TandemError):
    """The story did not go as it must; the message says where."""


@dataclass(slots=True)
class Posts:
    """The sample posts of demo_posts.toml."""

    parts: dict[str, list[dict[str, Any]]]
    twice: dict[str, Any]
    invalid: dict[str, Any]
    real: bool  # articles are written by a real model

    def in_the_middle(self, job: JobLine) -> bool:
        """Say whether its generator is at work, and will not be done at once."""
        posts = (post for part in self.parts.values() for post in part)
        spec: dict[str, Any] = next((post["spec"] for post in posts if post["key"] == job.key), {})
        if "simulate" not in spec:
            return job.stage == "generating_text" and (job.progress or 0) < _EARLY
        return 0.25 < (job.duration_s or 0) / float(spec["simulate"]["seconds"]) < 0.65  # noqa: PLR2004

    @classmethod
    def load(cls, *, real: bool) -> "Posts":
        """Read them; `real`: with what a base model can go on with in the place of each article's prompt."""
        raw = tomllib.loads((files("coordinator") / "demo_posts.toml").read_text(encoding="utf-8"))
        parts: dict[str, list[dict[str, Any]]] = {}
        twice: dict[str, Any] = {}
        for post in raw["post"]:
            part, again = post.pop("part"), post.pop("twice", False)
            post["labels"] = {"post": post["key"].split("-")[1]}
            if real and post["kind"] == "article":
                prompt = raw["real"]["prompts"][post["key"]]
                post |= {"model": MODEL, "spec": {"prompt": prompt, "options": raw["real"]["options"]}}
            parts.setdefault(part, []).append(post)
            twice = post if again else twice
        return cls(parts, twice, raw["invalid"], real)


@dataclass(slots=True)
class Board:
    """The jobs as the API shows them, looked at all the time; the story waits for what it sees here."""

    client: Client
    screen: Screen
    jobs: dict[UUID, JobLine] = field(default_factory=dict)
    _looked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            page = await self.client.jobs(limit=100)
            async with self._looked:
                self.jobs = {job.id: job for job in reversed(page.jobs)}
                self.screen.show(list(self.jobs.values()))
                self._looked.notify_all()
            await asyncio.sleep(LOOK_S)

    async def until(self, find: Callable[[], JobLine | None]) -> JobLine:
        """Return what `find` finds, as soon as it does."""
        async with self._looked:
            while (found := find()) is None:
                await self._looked.wait()
            return found

    async def all_settled(self, ids: Sequence[UUID]) -> None:
        """Return when each of these is settled."""
        async with self._looked:
            while not all(i in self.jobs and self.jobs[i].state in SETTLED for i in ids):
                await self._looked.wait()


@dataclass(slots=True)
class Story:
    """What is told, and what of it must be on record at the end."""

    up: Up
    client: Client  # admin: looks
    publisher: Client  # submits
    board: Board
    screen: Screen
    posts: Posts
    seen: demo_ending.Seen = field(default_factory=demo_ending.Seen)

    async def tell(self) -> None:
        """Tell it to the end."""
        first = await self._submit_first()
        await self._kill_in_the_middle(first)
        await self.board.all_settled(first)
        second = await self._submit("second", "two more posts come in")
        frozen = await self._freeze_before_report(second)
        third = await self._submit("third", "two more posts come in")
        if not frozen and not await self._freeze_before_report(third):
            msg = f"{FROZEN} could not be frozen between its upload and its report, twice"
            raise DemoError(msg)
        await self.board.all_settled(self.seen.submitted)

    # ---- submitting

    async def _submit_first(self) -> list[UUID]:
        ids = await self._submit("first", "posts come in from the CMS")
        again = await self.publisher.submit(self.posts.twice)
        self.seen.duplicate = again
        same = again.how == "same" and again.id in ids
        self.screen.say(
            f"{self.posts.twice['key']} comes a second time: {'the same job' if same else 'A NEW JOB'}", "news"
        )
        try:
            await self.publisher.submit(self.posts.invalid)
        except RefusedRequestError as error:
            self.seen.refused = str(error)
            self.screen.say(f"{self.posts.invalid['key']} is refused: {error}", "news")
        return ids

    async def _submit(self, part: str, what: str) -> list[UUID]:
        sent: list[Submitted] = [await self.publisher.submit(post) for post in self.posts.parts[part]]
        ids = [one.id for one in sent]
        self.seen.submitted += ids
        self.screen.say(f"{what}: {len(ids)} jobs submitted", "news")
        return ids

    # ---- the first accident

    async def _kill_in_the_middle(self, ids: Sequence[UUID]) -> None:
        """Kill macbook in the middle of a job, and start it again when another has taken over."""
        for _ in range(_TRIES):
            job = await self.board.until(lambda: self._in_the_middle(ids))
            await self.up.agents[KILLED].kill()
            self.screen.say(f"{KILLED} killed with SIGKILL in the middle of {job.key} (epoch {job.epoch})", "bad")
            after = await self._taken_over(job)
            await self.up.agents[KILLED].start()
            if after.epoch > job.epoch:
                self.seen.killed = (job.id, job.epoch)
                self.screen.say(f"{job.key} taken over by {after.worker} with epoch {after.epoch}", "good")
                self.screen.say(f"{KILLED} started again")
                return
            self.screen.say(f"{job.key} had just been finished; {KILLED} started again, once more")
        msg = f"{KILLED} could not be killed in the middle of a job, {_TRIES} times"
        raise DemoError(msg)

    def _in_the_middle(self, ids: Sequence[UUID]) -> JobLine | None:
        """Return a job that macbook has begun and will not finish at once, when little else waits for mini."""
        jobs = [self.board.jobs[job_id] for job_id in ids if job_id in self.board.jobs]
        if len(jobs) == len(ids) and all(job.state in SETTLED for job in jobs):
            msg = f"{KILLED} got no job that it could be killed in"
            raise DemoError(msg)
        if sum(job.state == JobState.PENDING for job in jobs) > _FEW:
            return None
        for job in jobs:
            if job.worker == KILLED and job.state == JobState.PROCESSING and self.posts.in_the_middle(job):
                return job
        return None

    # ---- the second accident

    async def _freeze_before_report(self, ids: list[UUID]) -> bool:
        """Freeze mini when its result is on the server but not reported; False if that moment was missed."""
        try:
            async with asyncio.timeout(_REAL_CHANCE_S if self.posts.real else _CHANCE_S):
                job = await self.board.until(lambda: self._held_by(FROZEN, ids))
                caught = await _catch_before_report(self.up, self.up.agents[FROZEN], job)
        except TimeoutError:
            return False
        if not caught:
            return False
        self.screen.say(f"{FROZEN} frozen with SIGSTOP: {job.key} is made and uploaded, its report not sent", "bad")
        try:
            after = await self._taken_over(job)
        finally:
            self.up.agents[FROZEN].signal(signal.SIGCONT)
        if after.epoch == job.epoch:  # the report was on its way already
            return False
        self.screen.say(f"{job.key} taken over by {after.worker} with epoch {after.epoch}", "good")
        self.screen.say(f"{FROZEN} continued with SIGCONT")
        reason = await self._rejected(job)
        if reason is None:
            return False
        self.seen.frozen = (job.id, job.epoch)
        self.screen.say(f"late result of {FROZEN} for {job.key} rejected as stale: {reason}", "good")
        return True

    def _held_by(self, worker: str, ids: Sequence[UUID]) -> JobLine | None:
        jobs = (self.board.jobs[job_id] for job_id in ids if job_id in self.board.jobs)
        return next((job for job in jobs if job.worker == worker and job.state == JobState.PROCESSING), None)

    async def _taken_over(self, job: JobLine) -> JobLine:
        """Return the job once a newer epoch has it, or it is finished."""

        def taken() -> JobLine | None:
            now = self.board.jobs[job.id]
            return now if now.epoch > job.epoch or now.state in SETTLED else None

        return await self.board.until(taken)

    async def _rejected(self, job: JobLine) -> str | None:
        """Return why the late result was rejected; None if the agent was told in time and did not send it."""
        try:
            async with asyncio.timeout(_CHANCE_S):
                while True:
                    for result in (await self.client.rejected()).results:
                        if (result.job_id, result.epoch, result.verdict) == (job.id, job.epoch, "stale"):
                            return result.reason
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return None


async def _catch_before_report(up: Up, agent: LocalAgent, job: JobLine) -> bool:
    """Freeze the agent when all files of its result are in the store and their upload is not yet answered.

    The result appears in the agent's spool, then each file in the store, then the ledger records it and the answer
    goes out. This runs on the coordinator's own loop and looks at each turn of it, so the answer can't come first.
    """
    entry = agent.folder / "spool" / f"{job.id}.{job.epoch}"
    while not os.path.exists(entry):  # noqa: ASYNC110, ASYNC240, PTH110 - the agent's own doing, on a local disk
        await asyncio.sleep(0.001)
    contents = _stored_as(up.data / "artifacts", entry)
    while not all(map(os.path.exists, contents)):
        if not os.path.exists(entry):  # noqa: ASYNC240, PTH110
            return False
        await asyncio.sleep(0)
    agent.signal(signal.SIGSTOP)
    return True


def _stored_as(artifacts: Path, entry: Path) -> list[Path]:
    """Return where the store will put the files of a spooled result."""
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(entry.glob("[0-9]*"))]
    return [artifacts / "sha256" / digest[:2] / digest[2:] for digest in digests]
