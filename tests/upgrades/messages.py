"""One of each message that crosses a process of another version, whole: every field of it is said.

    python -m tests.upgrades.messages       # writes them to tests/golden/VERSION, for a version that is not released

By name: who says it, a slash, what it is. What a release said stays in `tests/golden` for ever, with its `commit`.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from pydantic import BaseModel

from agent.heartbeat import headers_of
from agent.journal import Claimed
from agent.leases import Attempt
from agent.spool import Parcel, StoredFile
from coordinator.effects import control_message
from coordinator.heartbeats import read as read_heartbeat
from coordinator.ledger.model import Tell, TellVerdict
from coordinator.web.enrolment import JoinBody
from coordinator.web.openapi_docs import Welcome
from shared import wire
from shared.rules import Rule, Rules
from shared.states import DenyReason, ErrorClass, LostReason, Priority, ReportOutcome, Verdict, WorkerState
from shared.submission import Submission, parse_submission

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
JOB = UUID("018f7d3e-5a5c-7000-8000-000000000002")
INSTANCE = "018f7d3e-5a5c-7000-8000-000000000001"
AT = datetime(2026, 11, 30, 10, tzinfo=UTC)
DELIVERY = "$JS.ACK.WORK.article--llama3-1-8b.1.17.5.1700000000000.0"
UPLOAD = wire.Upload(url=f"https://tandem.example/v1/uploads/{JOB}/3", token="eyJ0")
FILE = wire.Artifact(name="image-1.png", media_type="image/png", size=1048576, sha256="e3b0c442" * 8)
ERROR = wire.ReportedError(code="no_model", message="not installed", error_class=ErrorClass.ELSEWHERE, detail={"n": 1})
REPORT = wire.Report(
    job_id=JOB,
    epoch=3,
    outcome=ReportOutcome.COMPLETED,
    elapsed_s=41.2,
    model="llama3.1:8b",
    settings={"seed": 42},
    result={"text": "# A walk"},
    artifacts=[FILE],
    stages=[wire.StageMark(stage="generating_text", at_s=6.1)],
)
RULES = Rules(
    hours=("mon-fri 22:00-07:00", "sat,sun"),
    time_zone="Europe/Berlin",
    on_mains=True,
    battery_above=60,
    idle_s=600,
    no_low_power=True,
    thermal="moderate",
    overflow=True,
    overflow_after_s=120,
    stops=frozenset({Rule.BATTERY_ABOVE}),
)
ABLE = wire.Capability(kind="article", models=["llama3.1:8b"], executor="ollama")
DOWN = wire.Capability(kind="image", models=["flux"], executor="comfyui")


def said() -> dict[str, Any]:
    """Return each message as it is sent today."""
    models: dict[str, BaseModel] = {
        "agent/presence": _presence(),
        "agent/claim": wire.Claim(job_id=JOB, delivery=DELIVERY, instance=INSTANCE),
        "agent/lease": wire.LeaseQuestion(job_id=JOB, epoch=3, instance=INSTANCE, version="0.2.0"),
        "agent/report-completed": REPORT,
        "agent/report-failed": wire.Report(job_id=JOB, epoch=3, outcome=ReportOutcome.FAILED, error=ERROR),
        "agent/report-released": wire.Report(job_id=JOB, epoch=3, outcome=ReportOutcome.RELEASED, error=ERROR),
        "agent/spool": _parcel(),
        "agent/journal": Claimed(granted=_granted(), delivery=DELIVERY, executor="comfyui", granted_at=1796000000.0),
        "agent/join": JoinBody(invitation="i" * 32, public_key="U" * 56, seal="5" * 64),
        "coordinator/presence-answer": _presence_answer(),
        "coordinator/presence-refused": _presence_refused(),
        "coordinator/offer": wire.Offer(job_id=JOB, kind="article", model="llama3.1:8b"),
        "coordinator/granted": _granted(),
        "coordinator/denied": wire.Denied(reason=DenyReason.PAUSED, retry_in_s=5.0),
        "coordinator/held": wire.LeaseReply(lease="held", ttl_s=90.0, version="0.2.0"),
        "coordinator/lost": wire.LeaseReply(lease="lost", reason=LostReason.STALE, version="0.2.0"),
        "coordinator/drain": wire.Order(type="drain"),
        "coordinator/pause": wire.Order(type="pause"),
        "coordinator/resume": wire.Order(type="resume"),
        "coordinator/welcome": Welcome(worker="mini", nats="tls://vps:4222", ca="-----BEGIN", seal="5" * 64),
        "coordinator/result": _result(),
        "publisher/submission": _submission(),
    }
    found = {name: json.loads(model.model_dump_json(by_alias=True)) for name, model in models.items()}
    revoke = control_message(Tell("mini", JOB, 3, LostReason.STALE), instance=INSTANCE)
    verdict = control_message(TellVerdict("mini", JOB, 3, Verdict.STALE, "lapsed"))
    found |= {"coordinator/revoke": orjson.loads(revoke), "coordinator/verdict": orjson.loads(verdict)}
    return found | {"agent/heartbeat": _heartbeat()}


READERS: dict[str, Callable[[bytes], Any]] = {
    "presence": wire.Presence.model_validate_json,
    "claim": wire.Claim.model_validate_json,
    "lease": wire.LeaseQuestion.model_validate_json,
    "report": wire.Report.model_validate_json,
    "spool": Parcel.model_validate_json,
    "journal": Claimed.model_validate_json,
    "join": JoinBody.model_validate_json,
    "heartbeat": lambda body: read_heartbeat(orjson.loads(body)),
    "presence-answer": wire.PresenceReply.model_validate_json,
    "presence-refused": wire.RefusedPresence.model_validate_json,
    "offer": wire.Offer.model_validate_json,
    "granted": wire.ClaimReply.validate_json,
    "denied": wire.ClaimReply.validate_json,
    "held": wire.LeaseReply.model_validate_json,
    "lost": wire.LeaseReply.model_validate_json,
    "control": wire.ControlMessage.validate_json,
    "welcome": Welcome.model_validate_json,
    "result": wire.ResultMessage.model_validate_json,
    "submission": parse_submission,
}
"""Who reads each today; several of a kind have one, see `reader_of`."""

_SAME: dict[str, tuple[str, ...]] = {
    "control": ("revoke", "verdict", "drain", "pause", "resume"),
    "report": ("report-completed", "report-failed", "report-released"),
}


def reader_of(name: str) -> Callable[[bytes], Any]:
    """Return who reads the message of this name."""
    what = name.partition("/")[2]
    return READERS[next((kind for kind, names in _SAME.items() if what in names), what)]


def _presence() -> wire.Presence:
    return wire.Presence(
        version="0.2.0",
        instance=INSTANCE,
        host="mini.local",
        platform="macOS 15.1",
        slots=2,
        rank=1,
        state=WorkerState.READY,
        capabilities=[ABLE],
        down=[DOWN],
        warm=["llama3.1:8b"],
        busy=[wire.Busy(job_id=JOB, epoch=3, stage="generating_text")],
        as_of=AT,
        facts={"power": "mains", "not_pulling": None, "probes": {"ollama": 12.5}, "rules": RULES.said()},
    )


def _presence_answer() -> wire.PresenceReply:
    consumer = "article--llama3-1-8b"
    offer = wire.LaneOffer(kind="article", slug="llama3-1-8b", consumer=consumer, pending=3, better_free=1)
    return wire.PresenceReply(
        lanes=[offer],
        lease_ttl_s=90.0,
        heartbeat_s=30.0,
        presence_s=10.0,
        as_of=AT,
        state=WorkerState.PAUSED,
        rules=RULES.said(),
    )


def _presence_refused() -> wire.RefusedPresence:
    fault = wire.Fault(field="instance", message="a newer process announced itself as mini")
    return wire.RefusedPresence(error=wire.RefusedPresence.Error(code="replaced", faults=[fault]))


def _granted() -> wire.Granted:
    job = wire.GrantedJob(
        id=JOB, kind="article", model="llama3.1:8b", spec={"prompt": "A walk"}, labels={"post": "812"}, priority="high"
    )
    return wire.Granted(
        epoch=3,
        attempt=2,
        lease_ttl_s=90.0,
        heartbeat_s=30.0,
        deadline_s=600.0,
        no_progress_s=120.0,
        failures=[wire.Failure(code="bad_answer", verdict="bad_answer", here=True)],
        upload=UPLOAD,
        job=job,
    )


def _parcel() -> Parcel:
    stored = StoredFile(stored="000", name="image-1.png", media_type="image/png", size=1048576)
    return Parcel(report=REPORT, delivery=DELIVERY, kind="article", heartbeat_s=30.0, upload=UPLOAD, files=[stored])


def _result() -> wire.ResultMessage:
    return wire.ResultMessage(
        job_id=JOB,
        epoch=3,
        kind="article",
        state="completed",
        key="post-812",
        source="blog",
        labels={"post": "812"},
        worker="mini",
        model="llama3.1:8b",
        result={"text": "# A walk"},
        artifacts=[wire.ResultArtifact(**FILE.model_dump(), url=f"https://tandem.example/v1/jobs/{JOB}/artifacts/1")],
        error={"code": "x", "message": "y", "class": "permanent", "detail": None},
        finished_at=AT,
    )


def _submission() -> Submission:
    options = {"temperature": 0.7, "seed": 42}
    return Submission.model_validate(
        {
            "key": "post-812",
            "kind": "article",
            "models": ["llama3.1:8b", "gemma3"],
            "spec": {"prompt": "A walk", "system": "Be brief", "options": options, "format": "markdown"},
            "priority": Priority.HIGH,
            "run_after": AT,
            "max_attempts": 3,
            "timeout_s": 600,
            "review": True,
            "callback_url": "https://cms.example/tandem",
            "labels": {"post": "812"},
        }
    )


def _heartbeat() -> dict[str, str]:
    """Return a heartbeat's headers."""
    loop = asyncio.new_event_loop()
    attempt = Attempt(
        job_id=JOB,
        epoch=3,
        delivery=DELIVERY,
        kind="article",
        model=None,
        heartbeat_s=30.0,
        upload=UPLOAD,
        started_at=0.0,
        deadline_at=600.0,
        now=lambda: 41.2,
        stopped=loop.create_future(),
        lost=loop.create_future(),
        stage_name="generating_text",
        fraction=0.5,
        note="17 of 34",
    )
    loop.close()
    return headers_of(attempt, "mini", INSTANCE)


def write(folder: Path) -> None:
    """Write each message to its file."""
    for name, message in said().items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(message, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def main() -> int:
    """Write this version's, unless it is released."""
    now = version("tandem")
    if (GOLDEN / now / "commit").exists():
        sys.stderr.write(f"{now} is released: what it said stays as it is; raise the version first\n")
        return 1
    write(GOLDEN / now)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
