"""The four streams and their consumers: what they must look like, and making them so (PROTOCOL, Streams).

Everything goes through JetStream's JSON API as it is: nats-py drops settings it doesn't know. `ensure_streams` needs
the provisioning identity; the rest is within the running coordinator's rights. Nothing here decides about jobs.
"""

import base64
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from shared.bus import ApiError, Bus
from shared.failpoints import Failpoint, reach
from shared.subjects import Lane, consumer_of

_MIB = 1024 * 1024
_S = 1_000_000_000
"""JetStream's durations are nanoseconds."""

INTAKE = "intake"
"""The one consumer of SUBMIT, shared by the coordinators."""

REPORTS = "reports"
"""The one consumer of REPORTS, shared by the coordinators."""

GROUP = "workers"
"""The priority group of every lane's consumer: pulls name it, with the agent's rank as priority."""

STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
NO_MESSAGE_FOUND = 10037
SUBJECT_TAKEN = 10077
"""The refusal of a second message on a WORK subject: the job is offered already."""

_NO_SUCH_MESSAGE = {NO_MESSAGE_FOUND, 10043, 10057}
"""Answers to a deletion of what is not there (any more)."""

_COMMON: Mapping[str, Any] = {
    "storage": "file",
    "discard": "new",
    "max_msgs": -1,
    "max_age": 0,
    "max_msg_size": 2 * _MIB,
    "max_consumers": -1,
    "max_msgs_per_subject": -1,
    "discard_new_per_subject": False,
    "allow_direct": True,
}

RESULTS_KEPT_S = 7 * 24 * 3600
"""How long RESULTS keeps a message."""

STREAMS: Mapping[str, Mapping[str, Any]] = {
    # Idempotency is the ledger's; JetStream looks at the message id alone, so that in a longer window a corrected
    # submission, or another source's under the same id, would be acknowledged and swallowed.
    "SUBMIT": {
        **_COMMON,
        "retention": "workqueue",
        "subjects": ["tandem.submit.*"],
        "max_bytes": 1024 * _MIB,
        "duplicate_window": 1 * _S,
    },
    # One message per job, whatever happens: the second is refused, for as long as the first is there.
    "WORK": {
        **_COMMON,
        "retention": "workqueue",
        "subjects": ["tandem.work.*.*.*"],
        "max_bytes": 512 * _MIB,
        "max_msg_size": 64 * 1024,
        "max_msgs_per_subject": 1,
        "discard_new_per_subject": True,
        "duplicate_window": 1 * _S,
    },
    # As short: a report that is sent again for want of a verdict must reach the ledger again.
    "REPORTS": {
        **_COMMON,
        "retention": "workqueue",
        "subjects": ["tandem.report.*.*"],
        "max_bytes": 2048 * _MIB,
        "duplicate_window": 1 * _S,
    },
    # Long: the outbox may publish a result again after a crash, and readers must not see it twice.
    "RESULTS": {
        **_COMMON,
        "retention": "limits",
        "subjects": ["tandem.result.*.*.*"],
        "max_bytes": 2048 * _MIB,
        "max_age": RESULTS_KEPT_S * _S,
        "duplicate_window": 2 * 3600 * _S,
    },
}


async def ensure_streams(bus: Bus, *, first_seq: int, known_seq: int = 0, replicas: int = 1) -> list[str]:
    """Make the streams what they must be; return the names of those that did not exist.

    A new stream begins at `first_seq`, which must be above every sequence that the ledger has seen, so that an ack from
    before a loss can't hit a message from after it (DESIGN, rule 9). Idempotent; needs the provisioning identity.
    """
    created = []
    for name, desired in STREAMS.items():
        config = {"name": name, "num_replicas": replicas, **desired}
        try:
            found = await bus.api(f"STREAM.INFO.{name}")
            if name == "WORK" and found["state"]["last_seq"] < known_seq:  # an older store, or the end of it is gone
                await bus.api("STREAM.DELETE.WORK")
                found = await bus.api("STREAM.INFO.WORK")  # so it is made anew
            present = found["config"]
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            await bus.api(f"STREAM.CREATE.{name}", {**config, "first_seq": first_seq})
            created.append(name)
            reach(Failpoint.STREAM_MADE)
            continue
        if any(present.get(key, _absent(value)) != value for key, value in config.items()):
            await bus.api(f"STREAM.UPDATE.{name}", {**present, **config})
    return created


async def is_missing(bus: Bus, stream: str) -> bool:
    """Say whether a stream does not exist."""
    try:
        await bus.api(f"STREAM.INFO.{stream}")
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return True
        raise
    return False


async def ensure_lane_consumer(bus: Bus, lane: Lane, *, ack_wait_s: float) -> None:
    """Make the consumer that the lane's agents pull from; `ack_wait_s` is the lease's ttl. Idempotent.

    It must exist before anything is published to the lane: a work queue offers a message to the consumers it has.
    """
    await _ensure_consumer(
        bus,
        "WORK",
        consumer_of(lane),
        f"tandem.work.{lane}.*",
        ack_wait_s,
        priority_policy="prioritized",
        priority_groups=[GROUP],
    )


async def ensure_intake_consumers(bus: Bus, *, ack_wait_s: float = 30.0) -> None:
    """Make the two consumers that the coordinators share. Idempotent."""
    await _ensure_consumer(bus, "SUBMIT", INTAKE, "tandem.submit.*", ack_wait_s)
    await _ensure_consumer(bus, "REPORTS", REPORTS, "tandem.report.*.*", ack_wait_s)


async def ensure_results_consumer(bus: Bus, source: str, *, ack_wait_s: float = 30.0) -> None:
    """Make the consumer from which `source` takes its results. Idempotent."""
    await _ensure_consumer(bus, "RESULTS", results_consumer(source), f"tandem.result.{source}.>", ack_wait_s)


def results_consumer(source: str) -> str:
    """Return the name of a source's consumer on RESULTS."""
    return f"results-{source}"


async def work_subjects(bus: Bus) -> set[str]:
    """Return the subject of every message in WORK, page by page (100,000 a page)."""
    return {subject async for page in subject_pages(bus, "WORK") for subject in page}


async def subject_pages(bus: Bus, stream: str) -> AsyncIterator[list[str]]:
    """Yield the subjects that have a message in a stream, a server's page (100,000) at a time.

    One that leaves the stream meanwhile may hide another: whoever misses a subject looks at it again.
    """
    offset = 0
    while True:
        answer = await bus.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">", "offset": offset}, timeout_s=30.0)
        page = list(answer["state"].get("subjects") or ())
        yield page
        offset += len(page)
        if not page or offset >= answer.get("total", 0):
            return


class Standing(NamedTuple):
    """How a stream stands: its messages, the sequences of the oldest and the newest, and the server's time."""

    messages: int
    first_seq: int
    last_seq: int
    now: datetime


async def standing(bus: Bus, stream: str) -> Standing:
    """Return how a stream stands."""
    info = await bus.api(f"STREAM.INFO.{stream}")
    state = info["state"]
    return Standing(state["messages"], state["first_seq"], state["last_seq"], datetime.fromisoformat(info["ts"]))


class StoredMessage(NamedTuple):
    """A message as it lies in a stream; `at` is when the server stored it."""

    seq: int
    subject: str
    at: datetime
    data: bytes


async def stored_message(bus: Bus, stream: str, **which: Any) -> StoredMessage | None:
    """Return one message, None when there is none: `seq=`, `last_by_subj=`, or `seq=, next_by_subj=` (from seq on)."""
    try:
        message = (await bus.api(f"STREAM.MSG.GET.{stream}", which, timeout_s=30.0))["message"]
    except ApiError as error:
        if error.err_code in _NO_SUCH_MESSAGE:
            return None
        raise
    data = base64.b64decode(message.get("data") or "")
    return StoredMessage(message["seq"], message["subject"], datetime.fromisoformat(message["time"]), data)


async def last_message_seq(bus: Bus, subject: str) -> int | None:
    """Return the sequence of the message on a WORK subject, None when there is none."""
    try:
        answer = await bus.api("STREAM.MSG.GET.WORK", {"last_by_subj": subject})
    except ApiError as error:
        if error.err_code == NO_MESSAGE_FOUND:
            return None
        raise
    seq: int = answer["message"]["seq"]
    return seq


async def remove_message(bus: Bus, stream: str, seq: int) -> bool:
    """Remove exactly the message with this sequence; False when there was none (any more)."""
    try:
        await bus.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})
    except ApiError as error:
        if error.err_code in _NO_SUCH_MESSAGE:
            return False
        raise
    return True


async def nak_seq(bus: Bus, consumer: str, seq: int, delay_s: float = 0.0) -> None:
    """Have WORK's message `seq` handed out again; nothing happens if it is not out. One-way.

    The server looks at nothing of an ack subject but the sequence (facts/nats.md §0.1), so one can be written from it.
    """
    await bus.nak(f"$JS.ACK.WORK.{consumer}.1.{seq}.1.1.0", delay_s)


async def consumer_info(bus: Bus, stream: str, consumer: str) -> dict[str, Any] | None:
    """Return what the server says of a consumer, None when there is no such consumer."""
    try:
        return await bus.api(f"CONSUMER.INFO.{stream}.{consumer}")
    except ApiError as error:
        if error.err_code == CONSUMER_NOT_FOUND:
            return None
        raise


async def consumer_pending(bus: Bus, consumer: str) -> int:
    """Return how many messages wait in WORK for this consumer, not counting those that are out; 0 without it."""
    info = await consumer_info(bus, "WORK", consumer)
    return 0 if info is None else int(info["num_pending"])


async def _ensure_consumer(  # the settings of a consumer are one list
    bus: Bus, stream: str, name: str, subject: str, ack_wait_s: float, **more: Any
) -> None:
    config = {
        "durable_name": name,
        "name": name,
        "filter_subject": subject,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": round(ack_wait_s * _S),
        "max_deliver": -1,
        "max_ack_pending": 100_000,
        "max_waiting": 4096,
        "replay_policy": "instant",
        **more,
    }
    await bus.api(f"CONSUMER.CREATE.{stream}.{name}.{subject}", {"stream_name": stream, "config": config})


def _absent(value: Any) -> Any:
    """Return what JetStream means by leaving a setting out of its answer."""
    return type(value)()
