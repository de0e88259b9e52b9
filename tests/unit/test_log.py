"""What is logged, and what must not be."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from shared import log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    known = structlog.get_config()
    asyncio_log = logging.getLogger("asyncio")
    handlers, propagate = asyncio_log.handlers, asyncio_log.propagate
    yield
    structlog.configure(**known)
    asyncio_log.handlers, asyncio_log.propagate = handlers, propagate


def _upload(token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    msg = f"{len(headers)} header was refused"
    raise ValueError(msg)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_names_the_error_and_no_local_variable(*, as_json: bool) -> None:
    stream = io.StringIO()
    log.configure(json=as_json, stream=stream)
    try:
        _upload("tu1." + "secret")
    except ValueError:
        structlog.get_logger().exception("upload failed", job_id="1")
    said = stream.getvalue()
    assert "upload failed" in said
    assert "1 header was refused" in said
    assert "test_log.py" in said
    assert "tu1.secret" not in said
    if as_json:
        assert json.loads(said)["job_id"] == "1"


async def test_a_failure_that_nobody_heard_is_one_line() -> None:
    stream = io.StringIO()
    log.configure(json=True, stream=stream)
    asyncio.get_running_loop().call_exception_handler(
        {"message": "Task exception was never retrieved", "exception": TimeoutError("after 5 s")}
    )
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert said["said"].startswith("Task exception was never retrieved")
    assert said["error"] == "TimeoutError('after 5 s')"
