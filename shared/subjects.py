"""Every NATS subject and consumer name that Tandem uses, and how to read them back (PROTOCOL, Streams)."""

import re
from functools import lru_cache
from typing import NamedTuple, NewType
from uuid import UUID

Lane = NewType("Lane", str)
"""What an agent can or can't run: `<kind>.<model slug>` or `<kind>.any`."""

ANY = "any"
"""The slug of a lane whose jobs ask for no particular model."""

CLAIM = "tandem.claim.*"
LEASE = "tandem.lease.*"
PRESENCE = "tandem.presence.*"
HEARTBEATS = "$JS.ACK.WORK.>"
EVENTS = "tandem.event.>"
COORDINATORS = "coordinators"
"""The queue group in which the coordinators share claims, lease questions, presence and heartbeats."""

_OTHER = re.compile(r"[^a-z0-9]+")
_DELIVERY = re.compile(r"\$JS\.ACK\.WORK\.([A-Za-z0-9_-]{1,255})\.(\d{1,18})\.(\d{1,18})\.\d{1,18}\.\d{1,19}\.\d{1,18}")


@lru_cache(4096)  # asked for each model of each worker, again and again
def slug(model: str) -> str:
    """Return the lane slug of a model's name: lower case, each run of other than a-z 0-9 becomes one `-`."""
    return _OTHER.sub("-", model.lower())


def lane_of(kind: str, model: str | None) -> Lane:
    """Return the lane on which a job of this kind and model waits."""
    return Lane(f"{kind}.{slug(model) if model else ANY}")


def consumer_of(lane: str) -> str:
    """Return the name of the lane's durable consumer on WORK: `<kind>--<slug>`."""
    kind, _, model_slug = lane.partition(".")
    return f"{kind}--{model_slug}"


def lane_of_consumer(consumer: str) -> Lane:
    """Return the lane of a consumer on WORK; a kind has no `--`, so the first one ends it."""
    return Lane(consumer.replace("--", ".", 1))


def work(lane: str, job_id: UUID) -> str:
    """Return the subject of a job's one message in WORK."""
    return f"tandem.work.{lane}.{job_id}"


def job_of_work(subject: str) -> UUID:
    """Return the job that a WORK subject is about; ValueError if it names none."""
    return UUID(subject.rpartition(".")[2])


def submit(source: str) -> str:
    """Return the subject on which `source` submits."""
    return f"tandem.submit.{source}"


def report(worker: str, job_id: UUID) -> str:
    """Return the subject on which `worker` reports on a job."""
    return f"tandem.report.{worker}.{job_id}"


def result(source: str, kind: str, job_id: UUID) -> str:
    """Return the subject of a settled job's message in RESULTS."""
    return f"tandem.result.{source}.{kind}.{job_id}"


def claim(worker: str) -> str:
    """Return the subject of `worker`'s claims."""
    return f"tandem.claim.{worker}"


def lease(worker: str) -> str:
    """Return the subject on which `worker` asks whether it still holds a lease."""
    return f"tandem.lease.{worker}"


def presence(worker: str) -> str:
    """Return the subject on which `worker` announces itself."""
    return f"tandem.presence.{worker}"


def control(worker: str) -> str:
    """Return the subject on which `worker` hears revokes, verdicts and orders."""
    return f"tandem.control.{worker}"


def event(job_id: UUID, kind: str) -> str:
    """Return the subject of the live feed for one thing that happened to a job."""
    return f"tandem.event.{job_id}.{kind}"


class Delivery(NamedTuple):
    """A WORK delivery, read from its reply subject (form v1: nats.md §1)."""

    consumer: str
    number: int  # num_delivered: orders the deliveries of one message, but is no fence
    seq: int  # the message's sequence in WORK: its identity


def parse_delivery(reply: str) -> Delivery | None:
    """Read `$JS.ACK.WORK.<consumer>.<number>.<seq>.<consumer seq>.<ts>.<pending>`; None if it is anything else."""
    found = _DELIVERY.fullmatch(reply)
    if found is None:
        return None
    number, seq = int(found[2]), int(found[3])
    return Delivery(found[1], number, seq) if number > 0 and seq > 0 else None


def ack_of(lane: str, seq: int) -> str:
    """Return the subject that settles WORK's message `seq`: the server looks at nothing but the sequence."""
    return f"$JS.ACK.WORK.{consumer_of(lane)}.1.{seq}.1.1.0"
