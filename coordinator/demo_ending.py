"""The demo's end: holds what the story saw against the ledger and the disk, and shows what came out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from coordinator.artifacts import FolderStore
from coordinator.audit import Breach, audit
from coordinator.cli_show import seconds, size, state, table
from coordinator.demo_model import MODEL
from coordinator.demo_screen import summary
from coordinator.ledger.database import lent_pool
from coordinator.up import Up
from shared.client import ArtifactLine, Client, JobView, Rejected, Submitted
from shared.states import AttemptOutcome, JobState


@dataclass(slots=True)
class Seen:
    """What happened, as far as the story made it happen."""

    submitted: list[UUID] = field(default_factory=list)
    duplicate: Submitted | None = None
    refused: str = ""
    killed: tuple[UUID, int] | None = None  # job and epoch that were lost with a process
    frozen: tuple[UUID, int] | None = None  # job and epoch whose result came too late


@dataclass(slots=True)
class Checked:
    """What is on record, and what of it is not as promised."""

    jobs: list[JobView]
    rows: list[tuple[str, str]]
    files: list[tuple[JobView, ArtifactLine, bool]]
    faults: list[str]


async def check(up: Up, client: Client, seen: Seen) -> Checked:
    """Compare; changes nothing."""
    jobs = [await client.job(job_id) for job_id in seen.submitted]
    rejected = await client.rejected()
    store = FolderStore(up.data / "artifacts")
    try:
        files = [
            (job, file, await store.digest(file.sha256) == file.sha256 and await store.size(file.sha256) == file.size)
            for job in jobs
            for file in job.artifacts
        ]
        async with lent_pool(up.postgres.dsn, max_size=2) as pool:
            breaches = await audit(pool, up.coordinator.bus, store)
    finally:
        store.close()
    rows, faults = _rows(jobs, rejected, seen)
    damaged = [file.name for _, file, whole in files if not whole]
    rows.append(("files on disk, checksums verified", f"{len(files) - len(damaged)} of {len(files)}"))
    rows.append(("breaches found by the audit", str(len(breaches)) if breaches else "none"))
    faults += [f"damaged file: {name}" for name in damaged] + [_told(breach) for breach in breaches]
    return Checked(jobs, rows, files, faults)


def show(console: Console, checked: Checked, up: Up) -> None:
    """Print the tables, and where everything is."""
    jobs = table("POST", "KIND", "STATE", "EPOCH>", "MADE BY", "TRIES>", "RESULTS>", "TIME>", title="\njobs")
    for job in checked.jobs:
        accepted = next((a for a in job.attempts if a.epoch == job.result_epoch), None)
        jobs.add_row(
            escape(job.key or "-"),
            job.kind,
            state(job.state),
            str(job.epoch),
            accepted.worker if accepted else "-",
            str(len(job.attempts)),
            str(_results(job)),
            seconds(accepted.duration_s) if accepted else "-",
        )
    console.print(jobs)
    found = table("POST", "FILE", "SIZE>", "SHA-256", "", title="\nfiles")
    for job, file, whole in checked.files:
        mark = "[green]ok[/green]" if whole else "[bold red]DAMAGED[/bold red]"
        found.add_row(escape(job.key or "-"), file.name, size(file.size), file.sha256[:16] + "…", mark)
    console.print(found)
    _show_writing(console, checked.jobs)
    console.print()
    console.print(summary(checked.rows))
    for fault in checked.faults:
        console.print(f"[bold red]NOT AS PROMISED[/bold red] {escape(fault)}", soft_wrap=True)
    if not checked.faults:
        console.print("\n[bold green]Every job was done exactly once.[/bold green]")
    console.print(f"The files are in {up.data / 'artifacts'}, named by their checksum.", soft_wrap=True)
    console.print("To keep one running, with its page at http://127.0.0.1:8420/: tandem up --agents 2", soft_wrap=True)


def _show_writing(console: Console, jobs: Sequence[JobView]) -> None:
    """Print the first article that a real model wrote, if one did."""
    written = next((job for job in jobs if job.used_model == MODEL and job.result), None)
    if written is None or written.result is None:
        return
    console.print(f"\n{escape(written.key or '-')}, as {MODEL} wrote it after the words of its prompt:")
    console.print(Text(f"{written.spec['prompt']}", style="dim") + Text(str(written.result["text"])))


def _rows(jobs: Sequence[JobView], rejected: Rejected, seen: Seen) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what is on record for each promise, and what is not as promised."""
    faults: list[str] = []
    by_id = {job.id: job for job in jobs}
    once = [job for job in jobs if job.state == JobState.COMPLETED and _results(job) == 1]
    faults += [f"{job.key}: {job.state}, {_results(job)} accepted results" for job in jobs if job not in once]
    rows = [("jobs completed, each exactly once", f"{len(once)} of {len(jobs)}")]
    for what, lost in (("taken over after SIGKILL", seen.killed), ("taken over after SIGSTOP", seen.frozen)):
        record = _takeover(by_id.get(lost[0]) if lost else None, lost[1] if lost else 0)
        rows.append((what, record or "nothing"))
        if not record:
            faults.append(f"{what}: nothing is on record")
    late = [r for r in rejected.results if seen.frozen == (r.job_id, r.epoch) and r.verdict == "stale"]
    rows.append(("late results rejected as stale", f"{len(late)}: {late[0].worker}, {late[0].reason}" if late else "0"))
    if len(late) != 1:
        faults.append(f"{len(late)} stale results on record, 1 expected")
    again = seen.duplicate
    collapsed = again is not None and again.how == "same" and again.id in by_id
    rows.append(("submissions collapsed by their key", f"1: {by_id[again.id].key}" if again and collapsed else "0"))
    if not collapsed:
        faults.append("the submission that came twice made a second job")
    rows.append(("submissions refused, with the reason", f"1: {seen.refused}" if seen.refused else "0"))
    if not seen.refused:
        faults.append("the invalid submission was not refused")
    return rows, faults


def _takeover(job: JobView | None, epoch: int) -> str:
    """Return who lost it to whom; empty if there is no such takeover on record."""
    if job is None:
        return ""
    lost = next((a for a in job.attempts if a.epoch == epoch), None)
    after = next((a for a in job.attempts if a.epoch > epoch), None)
    if lost is None or after is None or lost.outcome == AttemptOutcome.COMPLETED:
        return ""
    return f"1: {job.key}, {lost.worker} (epoch {lost.epoch}, {lost.outcome}) -> {after.worker} (epoch {after.epoch})"


def _results(job: JobView) -> int:
    return sum(attempt.outcome == AttemptOutcome.COMPLETED for attempt in job.attempts)


def _told(breach: Breach) -> str:
    return f"{breach.rule}: job {breach.job_id} epoch {breach.epoch}: {breach.text}"
