"""Logging: structlog, JSON lines or a console, one call at start.

Tracebacks come without local variables: requests have tokens in theirs.
"""

import logging
import sys
from typing import TextIO

import orjson
import structlog
from structlog.dev import plain_traceback
from structlog.tracebacks import ExceptionDictTransformer

_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def configure(*, json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Set up structlog for this process: `json` for files and services, else for people; `level` is a name."""
    out = stream or sys.stderr
    last: list[structlog.typing.Processor] = (
        [_TRACEBACKS, structlog.processors.JSONRenderer(serializer=_dumps)]
        if json
        else [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain_traceback)]
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


class _OneLine(logging.Handler):
    """Asyncio's own complaints (a task whose failure nobody heard: asyncpg leaves such) in our form, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        error = repr(record.exc_info[1]) if record.exc_info else None
        structlog.get_logger().warning("asyncio complains", said=record.getMessage()[:500], error=error)


def _dumps(event: object, **_: object) -> str:
    return orjson.dumps(event, default=str).decode()
