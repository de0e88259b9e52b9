"""What the command line prints beside jobs: workers, lanes, refusals, how the coordinator is. As `cli_show.py`."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.cli_show import console, escape, moment, seconds, table
from shared.client import LaneLine, Rejected, UndeliveredLine, Unpublished, WorkerLine

_MOST_REASON = 500


def workers(found: Sequence[WorkerLine]) -> None:
    """Print a list of workers."""
    made = table("WORKER", "STATE", "CAN DO", "HOLDS", "HEARD OF>", "LAST HOUR", "HOST")
    for worker in found:
        presence = worker.presence or {}
        state, said = state_of(worker), presence.get("state", "ready")
        if not worker.present:
            wanted = f" (told: {worker.wanted})" * (worker.wanted != "ready")
        else:
            wanted = f" (says: {said})" * (worker.wanted not in ("ready", said))
        made.add_row(
            escape(worker.name),
            escape(f"{state}{wanted}{', set aside' if worker.aside else ''}"),
            escape(_abilities(presence)),
            escape(", ".join(f"{str(h['job_id'])[:13]}… epoch {h['epoch']}" for h in worker.holds) or "-"),
            "never" if worker.seen_age_s is None else f"{seconds(worker.seen_age_s)} ago",
            escape(", ".join(f"{n} {outcome}" for outcome, n in sorted(worker.last_hour.items())) or "-"),
            escape(str(presence.get("host") or "-")),
        )
    out = console()
    out.print(made)
    for worker in found:
        for one in worker.aside:
            out.print(escape(f"set aside: {worker.name} ({one.get('reason')})"), soft_wrap=True)
        if worker.present and worker.why_idle:
            out.print(escape(f"gets nothing: {worker.name} ({'; '.join(worker.why_idle)})"), soft_wrap=True)


def state_of(worker: WorkerLine) -> str:
    """Return how a worker is in a word, the gravest first: the pages' words."""
    presence = worker.presence or {}
    if not worker.present:
        return "away"
    if worker.wanted != "ready":
        return worker.wanted
    if presence.get("state", "ready") != "ready":
        return str(presence["state"])
    if worker.holds:
        return "busy"
    return "blocked" if (presence.get("facts") or {}).get("not_pulling") or worker.aside else "ready"


def _abilities(presence: Mapping[str, Any]) -> str:
    able = [capability(one) for one in presence.get("capabilities", [])]
    down = [f"{capability(one)}: backend down" for one in presence.get("down", [])]
    return ", ".join([*able, *down]) or "-"


def lanes(found: Sequence[LaneLine]) -> None:
    """Print a list of lanes."""
    made = table("LANE", "STATE", "WAITING>", "OFFERED>", "RUNNING>", "OLDEST WAITS>", "WHY")
    for lane in found:
        running = [str(lane.waiting), str(lane.offered), str(lane.processing)]
        waits = seconds(lane.waits_s) if lane.waits_s and lane.waits_s > 0 else "-"
        made.add_row(escape(lane.name), "paused" if lane.paused else "open", *running, waits, escape(lane.why or "-"))
    console().print(made)


def rejected(found: Rejected) -> None:
    """Print what was refused."""
    out = console()
    late = table("AT", "JOB", "WORKER", "EPOCH>", "CURRENT>", "LATE>", "VERDICT", "REASON", title="results")
    for one in found.results:
        who = (moment(one.at), str(one.job_id or "-"), escape(one.worker))
        epochs = ("-" if one.epoch is None else str(one.epoch), str(one.current_epoch))
        late.add_row(*who, *epochs, seconds(one.late_s), one.verdict, escape(one.reason))
    out.print(late if found.results else "no result was refused")
    bad = table("AT", "SOURCE", "CODE", "REASON", title="\nsubmissions")
    for each in found.submissions:
        bad.add_row(moment(each.at), escape(each.source), escape(each.code), escape(each.reason[:_MOST_REASON]))
    out.print(bad if found.submissions else "no submission was refused")


def status(found: Mapping[str, Any]) -> None:
    """Print how the coordinator is: whether it is ready, what is where, and which loops fail."""
    out = console()
    out.print("ready" if found["ready"] else f"[red]not ready[/red]: {escape('; '.join(found['not_ready_because']))}")
    facts = table("", "")
    facts.show_header = False
    versions, ledger = found["versions"], found["ledger"]
    facts.add_row("[dim]ledger[/dim]", "up" if ledger["up"] else escape(f"away: {ledger['error']}"))
    facts.add_row("[dim]versions[/dim]", escape(", ".join(f"{name} {one}" for name, one in versions.items())))
    if "jobs" in found:
        facts.add_row("[dim]jobs[/dim]", ", ".join(f"{n} {state}" for state, n in found["jobs"].items()))
        here = [worker["name"] for worker in found["workers"] if worker["present"]]
        away = [worker["name"] for worker in found["workers"] if not worker["present"]]
        facts.add_row(
            "[dim]workers[/dim]", escape(", ".join(here) or "none") + escape(f"; away: {', '.join(away)}" * bool(away))
        )
    for name, loop in found["health"].get("loops", {}).items():
        if loop["failures"]:
            often = "once" if loop["failures"] == 1 else f"{loop['failures']} times"
            facts.add_row(f"[red]{escape(name)}[/red]", escape(f"failed {often}: {loop['last_error']}"))
    out.print(facts)
    waiting = [LaneLine.model_validate(lane) for lane in found.get("lanes", []) if lane["waiting"] + lane["offered"]]
    if waiting:
        lanes(waiting)


def undelivered(found: Sequence[UndeliveredLine]) -> None:
    """Print callbacks that were given up."""
    made = table("GIVEN UP", "JOB", "SOURCE", "STATE", "TRIES>", "WHY", "URL")
    for one in found:
        what = (moment(one.given_up_at), str(one.job_id), escape(one.source), one.state, str(one.attempts))
        made.add_row(*what, escape(one.error or "-"), escape(one.url))
    console().print(made)


def unpublished(found: Unpublished) -> None:
    """Print what is not published, and the sites that are paused."""
    out = console()
    made = table("SINCE", "JOB", "SOURCE", "POST", "TRIES>", "NEXT TRY", "WHY")
    for one in found.unpublished:
        what = (moment(one.since), str(one.job_id), escape(one.source), escape(one.post or "-"), str(one.attempts))
        following = moment(one.next_at) if one.next_at else "failed" if one.failed_at else "paused"
        made.add_row(*what, following, escape(one.error or "-"))
    out.print(made if found.unpublished else "everything is published")
    for site in found.paused:
        line = f"paused since {moment(site.since)}: the site of {site.source} ({site.reason})"
        out.print(escape(line), style="yellow", soft_wrap=True)


def capability(one: dict[str, Any]) -> str:
    """Say what a worker can do: `article (llama3.1:8b)`, or just `image` for any model."""
    models = [str(model) for model in one.get("models", []) if model != "*"]
    return f"{one.get('kind')} ({', '.join(models)})" if models else str(one.get("kind"))
