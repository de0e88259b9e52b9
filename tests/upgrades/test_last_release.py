"""The agent of the last release works with the coordinator of today: whole jobs, files, a cancel, orders, a drain.

Its source comes out of the history, at the commit that `tests/golden/VERSION/commit` names (a clone need not have the
tags); it runs in a process of its own, on today's dependencies. A checkout without that history has nothing to try.
"""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.processes import clean_environment
from tests.support.servers import eventually
from tests.support.world import World, eventually_async
from tests.upgrades.messages import GOLDEN

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def newest_release() -> str:
    """Return the commit of the newest release; the golden files of a version that is not released yet name none."""
    commits = {path.parent.name: path.read_text().strip() for path in GOLDEN.glob("*/commit")}
    return commits[max(commits, key=lambda name: tuple(map(int, name.split("."))))]


COMMIT = newest_release()
HISTORY = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
pytestmark = pytest.mark.skipif(
    subprocess.run(HISTORY, cwd=ROOT, check=False, capture_output=True).returncode != 0,
    reason=f"this checkout has no history, or not back to the last release ({COMMIT[:12]})",
)


@pytest.fixture(scope="session", name="release")
def source_of_the_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    packed = subprocess.run(["git", "archive", COMMIT, "agent", "shared"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


class Released:
    """The agent of the release: `mini`, one slot, sketching."""

    def __init__(self, world: World, release: Path, folder: Path) -> None:
        self.world, self.release = world, release
        seed = folder / "mini.seed"
        seed.write_text(world.servers.nats.identities.add_agent("mini"))
        seed.chmod(0o600)
        world.servers.nats.reload()
        self.settings = folder / "agent.toml"
        self.settings.write_text(
            f'worker = "mini"\nnats = "{world.servers.nats.url}"\nseed_file = "{seed}"\ndata = "{folder / "mini"}"\n'
            "[executors.sketch]\n"
        )
        self.log = folder / "mini.log"
        self.process: subprocess.Popen[bytes]

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.release,  # the first place that Python looks in
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        self.process = self.run("-c", "from agent.cli import main; main()", "run", "--config", str(self.settings))
        directory = self.world.coordinator.directory
        await eventually(
            lambda: directory.instance_of("mini") is not None or self.process.poll() is not None, within_s=PATIENCE_S
        )
        assert self.process.poll() is None, self.log.read_text()

    async def ended(self) -> int:
        await eventually(lambda: self.process.poll() is not None, within_s=PATIENCE_S)
        return self.process.returncode


@pytest_asyncio.fixture(loop_scope="session")
async def mini(world: World, release: Path, tmp_path: Path) -> AsyncIterator[Released]:
    made = Released(world, release, tmp_path)
    await made.start()
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(PATIENCE_S)


async def holds(world: World, job_id: str) -> dict[str, Any]:
    return await world.until(job_id, "processing")


def test_it_is_the_release_that_runs(release: Path) -> None:
    where = [sys.executable, "-c", "import agent, shared; print(agent.__file__, shared.__file__)"]
    said = subprocess.run(where, cwd=release, env=clean_environment(), check=True, capture_output=True, text=True)
    assert all(path.startswith(str(release)) for path in said.stdout.split())


async def test_it_does_jobs_and_brings_their_files(world: World, mini: Released) -> None:
    article, image = await world.submit(), await world.submit("image")
    assert (await world.until(article["id"], "completed"))["result"]["text"]
    done = await world.until(image["id"], "completed")
    (file,) = done["artifacts"]
    async with world.http.get(f"/v1/jobs/{image['id']}/artifacts/{file['name']}") as answer:
        assert (answer.status, len(await answer.read())) == (200, file["size"])
    assert {one["worker"] for one in done["attempts"]} == {"mini"}


async def test_it_stops_what_is_canceled_and_takes_the_next(world: World, mini: Released) -> None:
    long = await world.submit(spec={"prompt": "x", "simulate": {"seconds": 600}})
    await holds(world, long["id"])
    await world.act(long["id"], "cancel")
    await world.until((await world.submit())["id"], "completed")


async def test_it_obeys_an_operator_and_whatever_rules_it_is_told_it_goes_on(world: World, mini: Released) -> None:
    async with world.http.post("/v1/workers/mini/pause") as answer:
        assert answer.status == 200
    directory = world.coordinator.directory

    def state() -> str:
        row = directory.rows.get("mini")
        return str(row.presence.state) if row and row.presence else ""

    await eventually(lambda: state() == "paused", within_s=PATIENCE_S)
    job = await world.submit()
    async with world.http.put("/v1/workers/mini/rules", json={"overflow": True}) as answer:
        assert answer.status == 200
    assert (await world.job(job["id"]))["state"] == "pending"
    async with world.http.post("/v1/workers/mini/resume") as answer:
        assert answer.status == 200
    await world.until(job["id"], "completed")


async def test_it_gives_its_job_back_when_it_is_ended(world: World, mini: Released) -> None:
    job = await world.submit(spec={"prompt": "x", "simulate": {"seconds": 600}})
    await holds(world, job["id"])
    mini.process.send_signal(signal.SIGTERM)
    assert await mini.ended() == 0

    async def given_back() -> bool:
        shown = await world.job(job["id"])
        return shown["state"] == "pending" and shown["attempts"][0]["outcome"] == "released"

    await eventually_async(given_back)
