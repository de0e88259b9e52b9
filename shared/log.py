"""Logging: structlog, JSON lines or a console, one call at start; and a file of JSON lines beside it, while `kept`.

Tracebacks come without local variables: requests have tokens in theirs.
"""

import json as stdlib_json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import orjson
import structlog
from structlog.dev import plain_traceback
from structlog.tracebacks import ExceptionDictTransformer

from shared.log_file import LogFile

_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))

_files: list[LogFile] = []
"""Where every line goes too; loggers are made once and for all, so this is looked at line by line."""


def configure(*, json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Set up structlog for this process: `json` for files and services, else for people; `level` is a name."""
    out = stream or sys.stderr
    last: list[structlog.typing.Processor] = (
        [_TRACEBACKS, structlog.processors.JSONRenderer(serializer=_dumps), _keep]
        if json
        else [_keep, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain_traceback)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.handlers, asyncio_log.propagate = [_OneLine()], False


@contextmanager
def kept(path: Path | None, *, most_bytes: int, files: int) -> Iterator[None]:
    """Write every line of this process to a file too, while in the block; None: to none.

    Raises ConfigurationError if it can't be written.
    """
    if path is None:
        yield
        return
    file = LogFile(path, most_bytes=most_bytes, files=files)
    _files.append(file)
    try:
        yield
    finally:
        _files.remove(file)
        file.close()


def _keep(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict | str
) -> structlog.typing.EventDict | str:
    """Hand a line to the files, as JSON, and on as it came."""
    if _files:
        line = event if isinstance(event, str) else _dumps(_TRACEBACKS(logger, method, dict(event)))
        for file in _files:
            file.write(line)
    return event


class _OneLine(logging.Handler):
    """Asyncio's own complaints (a task whose failure nobody heard: asyncpg leaves such) in our form, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        error = repr(record.exc_info[1]) if record.exc_info else None
        structlog.get_logger().warning("asyncio complains", said=record.getMessage()[:500], error=error)


def _dumps(event: object, **_: object) -> str:
    try:
        return orjson.dumps(event, default=str).decode()
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return stdlib_json.dumps(event, default=str, skipkeys=True)
