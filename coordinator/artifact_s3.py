"""The ArtifactStore in a bucket with an S3 API; several coordinators share it.

obstore does the requests. A content appears in the bucket whole, by the one request that ends its upload, and only
after its length and SHA-256 were checked here; until then a large one is an unfinished multipart upload, which nobody
sees, and which is aborted when the upload fails. What a dead process left of those, `artifact_s3_unfinished.py` finds.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
import structlog
from obstore import exceptions
from obstore.store import S3Store as Bucket
from pydantic import SecretStr

from coordinator.artifact_files import is_sha256
from coordinator.artifact_s3_unfinished import Unfinished
from coordinator.artifacts import (
    MissingContentError,
    NoRoomError,
    Stored,
    StoreDownError,
    WrongContentError,
    content_path,
)
from shared.errors import ConfigurationError

_log = structlog.get_logger()

PART_BYTES: Final = 5 * 1024 * 1024
"""The least that S3 takes as a part. What is not larger goes in one request, without parts."""

_MOST_PARTS: Final = 10_000  # that S3 takes of one upload
_AT_A_TIME: Final = 2  # parts of one upload under way, so about four of them in memory
_READ_BYTES: Final = 4 * 1024 * 1024  # of one request, so that none outlives a slow reader's patience
_CHUNK_BYTES: Final = 256 * 1024  # hashed at a time on the loop's thread: less than a millisecond
_SETTLE_S: Final = 30.0  # what a request under way, and then the abort, may take after a cancellation

_CLIENT: Final = {"connect_timeout": "5s", "timeout": "1m"}
_RETRY: Final = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
_FULL: Final = ("QuotaExceeded", "StorageFull", "status: 507", "507 Insufficient Storage")  # as stores say it
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket, and how to reach it. Without keys, those of the machine's own role are asked for."""

    url: str  # s3://bucket/prefix
    region: str = "us-east-1"
    endpoint: str | None = None  # None = that of AWS in the region
    key_id: str | None = None
    secret_key: SecretStr | None = None
    allow_http: bool = False

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """What all keys begin with, without slashes at its ends; may be empty."""
        return urlsplit(self.url).path.strip("/")

    @property
    def base_url(self) -> str:
        """The endpoint's address, without a slash at its end."""
        return (self.endpoint or f"https://s3.{self.region}.amazonaws.com").rstrip("/")


class S3Store:
    """An ArtifactStore in a bucket: `<prefix>/sha256/ab/cd…`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        config: dict[str, Any] = {"region": place.region, "endpoint": place.base_url}
        if place.key_id is not None and place.secret_key is not None:
            config |= {"access_key_id": place.key_id, "secret_access_key": place.secret_key.get_secret_value()}
        client = {**_CLIENT, "allow_http": place.allow_http}
        self._bucket = Bucket(
            place.bucket,
            prefix=place.prefix or None,
            config=config,  # type: ignore[arg-type]
            client_options=client,  # type: ignore[arg-type]
            retry_config=_RETRY,  # type: ignore[arg-type]
        )
        self._unfinished: Unfinished | None = None
        if place.key_id is not None and place.secret_key is not None:
            address = f"{place.base_url}/{place.bucket}"
            self._unfinished = Unfinished(address, place.prefix, place.region, place.key_id, place.secret_key)

    async def prepare(self) -> None:
        """See ArtifactStore.prepare. A store that is away is no reason not to start."""
        try:
            await obstore.list_with_delimiter_async(self._bucket)
        except (exceptions.BaseError, OSError) as error:
            refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
            if refused or "NoSuchBucket" in str(error):
                msg = f"artifacts_url: {self._place.url} can't be used: {_short(error)}"
                raise ConfigurationError(msg) from error
            _log.warning("artifact store is away", url=self._place.url, error=_short(error))

    def close(self) -> None:
        """See ArtifactStore.close; there is nothing to let go of."""

    async def put(self, chunks: AsyncIterable[bytes], *, sha256: str, size: int) -> Stored:
        """See ArtifactStore.put."""
        new = await self.size(sha256) is None
        part_bytes = max(PART_BYTES, -(-size // _MOST_PARTS))
        writer = obstore.open_writer_async(
            self._bucket, content_path(sha256), buffer_size=part_bytes, max_concurrency=_AT_A_TIME
        )
        try:
            async for chunk in _checked(chunks, sha256, size):
                with _storing(size):
                    await _to_its_end(writer.write(chunk))
            with _storing(size):
                await _to_its_end(writer.close())
        except BaseException as error:
            with suppress(exceptions.BaseError, OSError):  # closed already, or away: then it is found by `tidy`
                await _to_its_end(writer.__aexit__(type(error), error, None))  # aborts
            raise
        return Stored(sha256, size, new)

    async def read(self, sha256: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """See ArtifactStore.read."""
        size = await self.size(sha256)
        if size is None:
            raise MissingContentError(sha256)
        at, end = start, size if length is None else min(size, start + length)
        while at < end:
            with _reaching():
                chunk = await obstore.get_range_async(
                    self._bucket, content_path(sha256), start=at, end=min(end, at + _READ_BYTES)
                )
            at += len(chunk)
            yield chunk.to_bytes()

    async def size(self, sha256: str) -> int | None:
        """See ArtifactStore.size."""
        try:
            with _reaching():
                return (await obstore.head_async(self._bucket, content_path(sha256)))["size"]
        except MissingContentError:
            return None

    async def digest(self, sha256: str) -> str | None:
        """See ArtifactStore.digest."""
        digest = hashlib.sha256()
        try:
            async for chunk in self.read(sha256):
                await asyncio.to_thread(digest.update, chunk)
        except MissingContentError:
            return None
        return digest.hexdigest()

    async def delete(self, sha256: str, *, older_than_s: float = 0.0) -> bool:
        """See ArtifactStore.delete. Ages go by this machine's clock."""
        path = content_path(sha256)
        try:
            with _reaching():
                put_at = (await obstore.head_async(self._bucket, path))["last_modified"]
                if older_than_s and put_at > datetime.now(UTC) - timedelta(seconds=older_than_s):
                    return False
                await obstore.delete_async(self._bucket, path)
        except MissingContentError:
            return False
        return True

    async def listed(self, shard: int, *, older_than_s: float = 0.0) -> list[str]:
        """See ArtifactStore.listed."""
        latest = datetime.now(UTC) - timedelta(seconds=older_than_s)
        found: list[str] = []
        with _reaching():
            async for page in obstore.list(self._bucket, prefix=f"sha256/{shard:02x}"):
                named = ("".join(o["path"].split("/")[-2:]) for o in page if o["last_modified"] <= latest)
                found += filter(is_sha256, named)
        return found

    async def tidy(self, *, older_than_s: float) -> int:
        """See ArtifactStore.tidy: unfinished multipart uploads. Without keys in the settings there is no asking."""
        return 0 if self._unfinished is None else await self._unfinished.abort(older_than_s)


async def _checked(chunks: AsyncIterable[bytes], sha256: str, size: int) -> AsyncIterator[bytes]:
    """Pass on what was announced; WrongContentError before the end if it is something else."""
    digest, seen = hashlib.sha256(), 0
    async for chunk in chunks:
        seen += len(chunk)
        if seen > size:
            msg = f"longer than the {size} bytes that were announced"
            raise WrongContentError(msg)
        if len(chunk) > _CHUNK_BYTES:
            await asyncio.to_thread(digest.update, chunk)
        else:
            digest.update(chunk)
        yield chunk
    if seen != size:
        msg = f"{seen} bytes arrived, {size} were announced"
        raise WrongContentError(msg)
    if digest.hexdigest() != sha256:
        msg = f"sha256 of what arrived is {digest.hexdigest()}, announced was {sha256}"
        raise WrongContentError(msg)


async def _to_its_end(request: Awaitable[_T]) -> _T:
    """Await a request of obstore; a cancellation comes through once it has ended.

    obstore drops a request whose future is cancelled (0.12), and then knows nothing of an upload that it began.
    """
    running = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody else asks for it any more
        await asyncio.wait([running], timeout=_SETTLE_S)
        raise


@contextmanager
def _reaching() -> Iterator[None]:
    """Turn what obstore raises into the interface's errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingContentError(_short(error)) from error
    except (exceptions.BaseError, OSError) as error:
        raise _away(error) from error


@contextmanager
def _storing(size: int) -> Iterator[None]:
    """Turn what obstore raises while something is stored into the interface's errors."""
    try:
        yield
    except (exceptions.BaseError, OSError) as error:  # a bucket that is gone is a FileNotFoundError
        if any(word in str(error) for word in _FULL):
            msg = f"no room for {size} bytes"
            raise NoRoomError(msg) from error
        raise _away(error) from error


def _away(error: Exception) -> StoreDownError:
    return StoreDownError(f"the artifact store does not answer as it should: {_short(error)}")


def _short(error: Exception) -> str:
    """Return the first line of what obstore says, which goes on with a dump of its insides."""
    return str(error).partition("\n")[0][:300]
