"""The client over NATS: submissions into SUBMIT, results out of RESULTS. Used by `client.py` alone.

A publisher's identity may do just that: publish on `tandem.submit.<source>`, and take from its own consumer.
"""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncGenerator
from typing import Final

import structlog
from pydantic import ValidationError

from shared import subjects
from shared.bus import ApiError, Bus, BusDown, BusError, BusTimeout, Denied, Message, NoResponders, TooLarge
from shared.client_answers import RefusedRequestError, Submitted
from shared.errors import UnreachableError
from shared.ids import job_id_of
from shared.streams import results_consumer
from shared.submission import parse_submission
from shared.wire import BadMessageError, ResultMessage

_log = structlog.get_logger()

_JS_PREFIX: Final = "JSJ.API"  # what is exported of JetStream's API to publishers (nats.conf)
_JOB_HEADER: Final = "Tandem-Job"  # the id that a submission without a key is to have
_ACK_S: Final = 5.0
_PULL_S: Final = 30.0
_KEEP_S: Final = 10.0
"""So often the server is told that a result is still being dealt with: it hands out again what is silent for 30 s."""

_AGAIN_S: Final = 1.0


class Nats:
    """One publisher's connection; opened and closed by the client that has it."""

    def __init__(
        self, url: str, source: str, seed: str | None, *, timeout_s: float, tls: ssl.SSLContext | None
    ) -> None:
        """`timeout_s` bounds each submission, reconnects and repeats included."""
        self._source, self._timeout_s, self._url = source, timeout_s, url
        self.bus = Bus(
            url,
            name=f"publisher-{source}",
            seed=seed,
            inbox_prefix=f"_INBOX.{source}",
            js_prefix=_JS_PREFIX,
            tls=tls,
        )

    async def submit(self, body: bytes) -> Submitted:
        """Return when the submission is stored; RefusedRequestError for one that can't be taken as it is.

        It is repeated within `timeout_s`, which is harmless: with or without a key, the id is the same.
        """
        try:
            submission = parse_submission(body)
        except BadMessageError as error:
            raise RefusedRequestError(422, error.code, str(error), error.faults) from None
        job_id = job_id_of(self._source, submission.key)
        digest = hashlib.sha256(body).hexdigest()[:16]  # JetStream must not take a corrected one for a repeat
        msg_id = f"{self._source}:{submission.key or job_id}:{digest}"
        headers = {} if submission.key is not None else {_JOB_HEADER: str(job_id)}
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout_s
        while True:
            left_s = max(ends_at - loop.time(), 0.01)
            try:
                await self.bus.wait_connected(left_s)
                await self.bus.js_publish(
                    subjects.submit(self._source), body, msg_id=msg_id, headers=headers, timeout_s=min(left_s, _ACK_S)
                )
            except (Denied, TooLarge, ApiError) as error:
                raise _refusal(error) from None
            except (BusDown, BusTimeout, NoResponders) as error:
                if loop.time() >= ends_at:
                    msg = f"{self._url}: the submission is not acknowledged ({error}); repeat it with the same key"
                    raise UnreachableError(msg) from error
                await asyncio.sleep(min(_AGAIN_S, left_s))
            else:
                return Submitted(id=job_id, state="queued", how="queued")

    async def results(self) -> AsyncGenerator[ResultMessage, None]:
        """Yield the source's results, oldest first, for ever; each is acknowledged when the next one is asked for."""
        while True:
            message = await self._next()
            try:
                result = ResultMessage.model_validate_json(message.data)
            except ValidationError:
                _log.error("result unreadable, taken out", subject=message.subject, bytes=len(message.data))
                with contextlib.suppress(BusDown):
                    await self.bus.term(message, "unreadable")
                continue
            keeping = asyncio.create_task(self._keep(message), name="result kept")
            done = False
            try:
                yield result
                done = True
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                if not done:
                    with contextlib.suppress(BusDown):
                        await self.bus.nak(message, _AGAIN_S)
            await self._ack(message)

    async def _next(self) -> Message:
        """Return the next result: one at a time, so that none grows old here; bears whatever passes by itself."""
        consumer = results_consumer(self._source)
        while True:
            try:
                await self.bus.wait_connected(_PULL_S)
                message = await self.bus.pull_one("RESULTS", consumer, expires_s=_PULL_S)
            except NoResponders:  # the source has had no result yet, or NATS lost its disk: the coordinator makes it
                await asyncio.sleep(_AGAIN_S)
            except BusDown:
                continue
            except Denied as error:
                raise _refusal(error) from None
            else:
                if message is not None:
                    return message

    async def _keep(self, message: Message) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            with contextlib.suppress(BusError):
                await self.bus.publish(message.reply, b"+WPI")

    async def _ack(self, message: Message) -> None:
        """Have a result removed; over a lost connection again on the next one."""
        while True:
            try:
                await self.bus.wait_connected(_PULL_S)
                await self.bus.ack(message, timeout_s=_ACK_S)
            except (BusDown, BusTimeout):
                continue
            except NoResponders:
                return  # its stream is gone: there is nothing to remove
            else:
                return


def _refusal(error: Denied | TooLarge | ApiError) -> RefusedRequestError:
    match error:
        case Denied():
            return RefusedRequestError(403, "forbidden", f"NATS refuses this identity: {error}", [])
        case TooLarge():
            return RefusedRequestError(413, "too_large", str(error), [])
        case ApiError():
            return RefusedRequestError(503, "stream_refused", f"JetStream refuses it: {error}", [])
