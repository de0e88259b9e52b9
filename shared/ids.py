"""Identifiers: their types, and how a job's id derives from its source and key.

Called by intake and the publisher client; nothing here does I/O.
"""

import uuid
from typing import NewType

import uuid_utils.compat

JobId = NewType("JobId", uuid.UUID)
"""A job, for its whole life; UUIDv5 of source and key, or UUIDv7 without a key."""

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
"""What a worker's or source's name looks like (PROTOCOL, Words)."""

_NAMESPACE = uuid.UUID("6f1c9a52-5f0e-5c55-9a51-7a6d2b2f4020")


def job_id_of(source: str, key: str | None) -> JobId:
    """Return the id that a submission of `source` under `key` has; a fresh one without a key."""
    if key is None:
        return JobId(uuid_utils.compat.uuid7())
    return JobId(uuid.uuid5(_NAMESPACE, f"{source}\n{key}"))
