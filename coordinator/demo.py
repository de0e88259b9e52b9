"""`tandem demo`: a whole Tandem in `./demo-data`, two accidents, and a check that every job was done exactly once.

The story, each step of which waits for what it sees, never for a time:

1. Eight posts come in, one of them twice, and one that can't be made.
2. `macbook` is killed (SIGKILL) in the middle of a job. Its heartbeats stop, the lease runs out, `mini` takes over
   with epoch 2. Then macbook is started again.
3. Two more posts. `mini` is frozen (SIGSTOP) when its files have arrived and its report is not yet sent: the moment in
   which only the epoch can tell a late result from a good one. Its lease runs out, macbook takes over. mini goes on
   (SIGCONT), sends its report, and the ledger rejects it as stale.
4. The last two posts: both agents work as before.
5. Every job, file and promise is checked against the ledger.

Agents are real processes with the sketch executor; leases are short, so that losing one takes seconds. With `real` the
articles are written by a real language model instead (`demo_model.py`); images are sketched all the same.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TextIO

import structlog
from rich.console import Console
from rich.markup import escape

from coordinator import demo_ending, demo_model
from coordinator.child import Child
from coordinator.demo_screen import Screen
from coordinator.demo_story import FROZEN, KILLED, LOOK_S, Board, DemoError, Posts, Story
from coordinator.up import Plan, running_up
from coordinator.up_agents import LocalAgents
from coordinator.up_folder import only_one
from shared import log
from shared.client import Client, RefusedRequestError, WorkerLine
from shared.errors import ConfigurationError, UnreachableError

_log = structlog.get_logger()

_MARK = ".tandem-demo"
_LIMIT_S = 60.0
"""The story takes 22 s; one that has not ended by then has gone wrong."""

_REAL_LIMIT_S = 240.0
"""The same with a real model, which takes a minute on two busy cores."""

_PRESENT_S = 30.0
_LINE_WIDTH = 110
_SETTINGS = {
    "lease_ttl_s": 3.0,
    "heartbeat_s": 1.0,
    "presence_s": 1.0,
    "retry_base_s": 1.0,
    "reaper_s": 0.25,
    "reconcile_s": 5.0,
    "unclaimed_s": 3.0,
}
_AGENT_ENVIRONMENT = {"TANDEM_AGENT_LINGER_S": "1", "TANDEM_AGENT_LINGER_MANY_S": "0.5"}


async def run_demo(folder: Path, *, plain: bool = False, real: bool = False) -> bool:
    """Run the demo in `folder`, which is made anew; True if everything that it promises is on record.

    ConfigurationError when `real` lacks its packages, before anything is touched.
    """
    if real:
        demo_model.refuse_without_packages()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_LINE_WIDTH)
    data = Path(os.path.abspath(folder))  # noqa: ASYNC240, PTH100 - pure: joins two paths
    for name in [name for name in os.environ if name.startswith("TANDEM_")]:
        del os.environ[name]  # settings that are meant for another Tandem
    await _clear(data)
    with _log_file(data) as logs:
        log.configure(json=False, stream=logs)
        console.print(f"[bold]Tandem demo[/bold] in {folder}: setting up Postgres and NATS ...")
        screen = Screen(console, live=console.is_terminal and not plain)
        try:
            async with _running(data, screen, real=real) as story:
                where = f"page {story.up.url}/ while this runs (password: the admin token in {folder}/tokens.json)"
                console.print(
                    f"{where}\nagents {KILLED} and {FROZEN}, leases of {_SETTINGS['lease_ttl_s']:g} s\n", soft_wrap=True
                )
                with screen.shown():
                    await _told(story, _REAL_LIMIT_S if real else _LIMIT_S)
                    checked = await demo_ending.check(story.up, story.client, story.seen)
                demo_ending.show(console, checked, story.up)
        except (DemoError, UnreachableError, RefusedRequestError, TimeoutError, ExceptionGroup) as error:
            _log.exception("demo failed")
            console.print(f"\n[bold red]the demo failed:[/bold red] {escape(_reason(error))}", soft_wrap=True)
            console.print(f"logs are in {folder}")
            return False
    if checked.faults:
        console.print(f"logs are in {folder}")
    return not checked.faults


async def _told(story: Story, limit_s: float) -> None:
    """Tell the story while the board is watched, within its limit; what breaks first is the error."""
    watch = asyncio.create_task(story.board.watch(), name="board")
    tale = asyncio.create_task(story.tell(), name="story")
    died = asyncio.create_task(story.up.until(asyncio.Event()), name="servers")
    try:
        done, _ = await asyncio.wait({watch, tale, died}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            msg = f"it did not end within {limit_s:g} s"
            raise DemoError(msg)
        for task in done:
            task.result()
        await asyncio.sleep(2 * LOOK_S)  # one more look, for the last picture
    finally:
        for task in (watch, tale, died):
            task.cancel()
        await asyncio.gather(watch, tale, died, return_exceptions=True)


@asynccontextmanager
async def _running(data: Path, screen: Screen, *, real: bool) -> AsyncIterator[Story]:
    async with AsyncExitStack() as stack:
        environment = _AGENT_ENVIRONMENT
        if real:
            model = await stack.enter_async_context(demo_model.ModelServer(data))
            environment = environment | demo_model.agent_environment(model)
        plan = Plan(
            data=data,
            http="127.0.0.1:0",
            nats="127.0.0.1:0",
            agents=(KILLED, FROZEN),
            coordinator=_SETTINGS,
            agent_environment=environment,
        )
        up = await stack.enter_async_context(running_up(plan))
        client = await stack.enter_async_context(Client(up.url, up.token("admin")))
        publisher = await stack.enter_async_context(Client(up.url, up.token("publisher")))
        await _both_here(client)
        yield Story(up, client, publisher, Board(client, screen), screen, Posts.load(real=real))


async def _both_here(client: Client) -> None:
    """Wait until both agents have announced that they do articles and images."""
    async with asyncio.timeout(_PRESENT_S):
        while not {KILLED, FROZEN} <= {worker.name for worker in await client.workers() if _does_both(worker)}:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


def _does_both(worker: WorkerLine) -> bool:
    offered = (worker.presence or {}).get("capabilities", [])
    return worker.present and {"article", "image"} <= {capability["kind"] for capability in offered}


async def _clear(data: Path) -> None:
    """Make the folder anew, after stopping what a killed demo left running there."""
    if _made_by_demo(data):
        with only_one(data):
            await LocalAgents.stop_orphans_in(data / "agents")
            await Child(data, "nats").stop_orphan(signal.SIGTERM, 10.0)
            await Child(data, "postgres").stop_orphan(signal.SIGINT, 10.0)
            await Child(data, demo_model.NAME).stop_orphan(signal.SIGTERM, 10.0)
            await asyncio.to_thread(shutil.rmtree, data)
    await asyncio.to_thread(_mark, data)


def _made_by_demo(data: Path) -> bool:
    """Whether there is an old demo to remove; ConfigurationError for a folder with anything else in it."""
    if not data.exists() or not any(data.iterdir()):
        return False
    if not (data / _MARK).exists():
        msg = f"{data} was not made by tandem demo; move it away"
        raise ConfigurationError(msg)
    return True


def _mark(data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    (data / _MARK).touch()


def _log_file(data: Path) -> TextIO:
    return (data / "demo.log").open("w", encoding="utf-8")


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
