"""What the generator's time came to, made fit for the report: errors become values, products are checked.

Called by the runner. A product is a plugin's word, so nothing of it is taken on trust: its files must be regular ones
of the job's own workspace, its result must be JSON that the ledger can hold.
"""

import asyncio
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agent.executors.base import Product, ProductFile
from agent.executors.verdicts import Verdict, unknown_before
from agent.leases import Attempt
from agent.spool import Parcel, StoredFile
from shared.states import ErrorClass, ReportOutcome
from shared.wire import Failure, Report, ReportedError

MOST_FILES = 100


@dataclass(frozen=True, slots=True)
class Made:
    """What the generator's time came to: a product, or an error with what should follow from it."""

    outcome: ReportOutcome
    product: Product = field(default_factory=Product)
    error: ReportedError | None = None


def released(code: str, message: str, detail: Any = None) -> Made:
    """Give the job back without fault."""
    return Made(ReportOutcome.RELEASED, error=_error(code, message, ErrorClass.TRANSIENT, detail))


def failed(code: str, message: str, error_class: ErrorClass, detail: Any = None) -> Made:
    """Say that the attempt failed, and what follows from it."""
    return Made(ReportOutcome.FAILED, error=_error(code, message, error_class, detail))


def crashed(message: str, tail: str = "", *, failures: Sequence[Failure] | None = None) -> Made:
    """Say that the executor broke; `tail` is the end of its traceback.

    Nobody knows whose fault it is: it goes the way of an unknown error (verdicts).
    """
    error_class = ErrorClass.PERMANENT if unknown_before(failures or ()) else ErrorClass.TRANSIENT
    return failed("executor_crash", message, error_class, {"verdict": Verdict.UNKNOWN.value, "traceback": tail})


def _error(code: str, message: str, error_class: ErrorClass, detail: Any) -> ReportedError:
    try:
        detail = _storable(detail)
    except TypeError:
        detail = _plain(repr(detail))[:2000]
    return ReportedError(
        code=_plain(code)[:100],
        message=_plain(message)[:4000],
        error_class=error_class,
        detail=detail,
    )


def _plain(text: str) -> str:
    """Return text that UTF-8 and Postgres can hold."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def parcel_of(attempt: Attempt, made: Made, files: list[StoredFile]) -> Parcel:
    """Return what is spooled; ValueError or TypeError for a product that no report can carry."""
    product = made.product
    report = Report(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        outcome=made.outcome,
        elapsed_s=round(attempt.elapsed_s(), 3),
        model=product.model,
        settings=_storable(product.settings),
        result=_storable(product.result),
        stages=list(attempt.stages),
        error=made.error,
    )
    return Parcel(
        report=report,
        delivery=attempt.delivery,
        kind=attempt.kind,
        heartbeat_s=attempt.heartbeat_s,
        upload=attempt.upload,
        files=files,
    )


def _storable(value: Any) -> Any:
    """Return it as JSON would carry it, without NUL, which no Postgres text holds; TypeError if JSON can't."""
    encoded = orjson.dumps(value)
    return _without_nul(orjson.loads(encoded)) if b"\\u0000" in encoded else value


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value


async def checked_files(files: Sequence[ProductFile], workspace: Path) -> tuple[list[StoredFile], list[Path]]:
    """Return the files as they will be stored, and where they are now; ValueError for one that must not be sent."""
    if not files:
        return [], []
    return await asyncio.to_thread(_check_files, files, workspace)


def _check_files(files: Sequence[ProductFile], workspace: Path) -> tuple[list[StoredFile], list[Path]]:
    """Return the files as they will be stored; ValueError for one that is no regular file of this workspace."""
    if len(files) > MOST_FILES:
        msg = f"{len(files)} files; at most {MOST_FILES}"
        raise ValueError(msg)
    if len({file.artifact for file in files}) != len(files):
        msg = "two files with one name"
        raise ValueError(msg)
    home = workspace.resolve()
    stored: list[StoredFile] = []
    for number, file in enumerate(files):
        try:
            found = file.path.lstat()
            inside = file.path.parent.resolve(strict=True).is_relative_to(home)
        except OSError as error:
            msg = f"{file.artifact}: {error.strerror}"
            raise ValueError(msg) from None
        if not stat.S_ISREG(found.st_mode) or not inside:
            msg = f"{file.artifact} is no regular file of the workspace"
            raise ValueError(msg)
        stored.append(
            StoredFile(stored=f"{number:03}", name=file.artifact, media_type=file.media_type, size=found.st_size)
        )
    return stored, [file.path for file in files]
