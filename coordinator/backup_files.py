"""The file of a backup: a plain tar, readable with any tar, whose members are checked one by one when they come back.

    manifest.json                what this is: version, schema, time, and the SHA-256 of every member but the artifacts
    ledger.dump                  pg_dump's custom format
    settings/...                 identities, secrets, tokens, configuration: as they lay in their folders
    artifacts/sha256/ab/cdef...  contents, named by their SHA-256
    end.json                     how many of them: without it the file was cut off

Whoever has it has everything: it is written for its owner alone (0600). Called by `backup.py`.
"""

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from pathlib import Path
from typing import IO, ClassVar, Final

import orjson
from pydantic import AwareDatetime, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from shared.errors import ConfigurationError, TandemError
from shared.private_file import sync_folder

FORMAT: Final = 2
DUMP: Final = "ledger.dump"
SETTINGS: Final = "settings/"
ARTIFACTS: Final = "artifacts/sha256/"
_MANIFEST: Final = "manifest.json"
_END: Final = "end.json"
_MOST_JSON_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_CONTENT = re.compile(rf"{ARTIFACTS}[0-9a-f]{{2}}/[0-9a-f]{{62}}")
_SETTING = re.compile(rf"{SETTINGS}[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class BrokenBackupError(TandemError):
    """The file is no backup of Tandem's, or not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup says of itself."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    format: int
    tandem: str  # version that made it
    schema: str  # of the ledger
    made_at: AwareDatetime
    jobs: NonNegativeInt
    sha256: Mapping[str, str] = field(default_factory=dict)  # by member


@contextmanager
def new_backup(path: Path, part: Path) -> Iterator["Packer"]:
    """Write a file that is there whole or not at all; `part`, on the same disk, is what is not whole yet."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        yield Packer(tar)
        tar.close()
        raw.flush()
        os.fsync(raw.fileno())
    refuse_old(path)
    part.rename(path)
    sync_folder(path.parent)


def refuse_old(path: Path) -> None:
    """Raise ConfigurationError if there is something already."""
    if path.exists():
        msg = f"{path} is there already: a backup is never overwritten"
        raise ConfigurationError(msg)


class Packer:
    """Adds members: the manifest first, then what it names, then the artifacts, then the end."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def manifest(self, manifest: Manifest) -> None:
        """Add the manifest."""
        self.body(_MANIFEST, orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z))

    def body(self, name: str, body: bytes) -> None:
        """Add what is in memory."""
        self._add(name, len(body), io.BytesIO(body))

    def file(self, name: str, path: Path) -> None:
        """Add a file."""
        with path.open("rb") as source:
            self._add(name, os.fstat(source.fileno()).st_size, source)

    def end(self, artifacts: int) -> None:
        """Say that this was all."""
        self.body(_END, orjson.dumps({"artifacts": artifacts}))

    def _add(self, name: str, size: int, source: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        self._tar.addfile(info, source)


@contextmanager
def opened(path: Path) -> Iterator["Unpacker"]:
    """Read a backup; BrokenBackupError if it is none, or of a later format."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield Unpacker(tar, file)
    except (tarfile.TarError, EOFError) as error:
        msg = f"{path}: not a whole backup: {error}"
        raise BrokenBackupError(msg) from None
    except FileNotFoundError as error:
        if error.filename != str(path):
            raise
        msg = f"no such file: {path}"
        raise ConfigurationError(msg) from None


class Unpacker:
    """Gives the members back, each checked: its name is one of ours, its content what the manifest says."""

    def __init__(self, tar: tarfile.TarFile, file: IO[bytes]) -> None:
        """Read the manifest; `file` is what `tar` reads."""
        self._tar, self._file = tar, file
        first = tar.next()
        if first is None or first.name != _MANIFEST or first.size > _MOST_JSON_BYTES:
            msg = "this is no backup of tandem: it does not begin with manifest.json"
            raise BrokenBackupError(msg)
        self.manifest = _manifest(self._stream(first).read())

    def unpack(self, where: Mapping[str, Path | None]) -> list[str]:
        """Write every member to where its prefix says (None: left out), durable; return the names of the contents.

        BrokenBackupError for anything that is not as the manifest says: nothing of it should be used then.
        """
        contents: set[str] = set()
        missing = set(self.manifest.sha256)
        promised: object = None
        while (member := self._tar.next()) is not None:
            if member.name == _END and member.isfile() and member.size < _MOST_JSON_BYTES:
                promised = _artifacts_of(self._stream(member).read())
                self._refuse_more()
                break
            if not member.isfile() or not _is_ours(member.name):
                msg = f"a backup does not have {member.name!r} in it"
                raise BrokenBackupError(msg)
            is_content = member.name.startswith(ARTIFACTS)
            if is_content:
                expected: str | None = member.name.removeprefix(ARTIFACTS).replace("/", "")
                is_again = expected in contents
            else:
                expected = self.manifest.sha256.get(member.name)
                is_again = expected is not None and member.name not in missing
                missing.discard(member.name)
            if is_again:
                msg = f"{member.name} is in the backup twice"
                raise BrokenBackupError(msg)
            prefix = next(one for one in (DUMP, SETTINGS, ARTIFACTS) if member.name.startswith(one))
            target = where[prefix]
            path = target / member.name.removeprefix(prefix) if target and prefix != DUMP else target
            if expected is None or self._copied(member, path) != expected:
                msg = f"{member.name} is not what was backed up"
                raise BrokenBackupError(msg)
            if is_content:
                contents.add(expected)
        if missing or len(contents) != promised:
            msg = f"the backup is cut off: {', '.join(sorted(missing)) or 'artifacts'} missing"
            raise BrokenBackupError(msg)
        return sorted(contents)

    def _refuse_more(self) -> None:
        """Refuse whatever follows the end but a tar's padding, which is zeros."""
        more = self._tar.next() is not None
        self._file.seek(self._tar.offset)
        while not more and (chunk := self._file.read(_CHUNK)):
            more = any(chunk)
        if more:
            msg = "something was added to the backup after its end"
            raise BrokenBackupError(msg)

    def _copied(self, member: tarfile.TarInfo, path: Path | None) -> str:
        """Write a member; return its SHA-256. BrokenBackupError where something else of the backup lies already."""
        digest, source = hashlib.sha256(), self._stream(member)
        if path is None:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
            return digest.hexdigest()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError):
            msg = f"{member.name} can't be where the backup has something else"
            raise BrokenBackupError(msg) from None
        with os.fdopen(descriptor, "wb") as target:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        return digest.hexdigest()

    def _stream(self, member: tarfile.TarInfo) -> IO[bytes]:
        found = self._tar.extractfile(member)
        if found is None:
            msg = f"{member.name} is no file"
            raise BrokenBackupError(msg)
        return found


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the contents of an artifact folder: the member's name, and where it lies."""
    for path in sorted((folder / "sha256").glob("??/*")):
        name = f"{ARTIFACTS}{path.parent.name}/{path.name}"
        if _CONTENT.fullmatch(name):
            yield name, path


def settings_in(prefix: str, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or the files of a folder, as members under `settings/`; what is no plain name is left out.

    Read once: a worker that joins or is revoked meanwhile changes some of them, or removes one.
    """
    for one in [path] if path.is_file() else sorted(path.rglob("*")):
        below = "" if one == path else f"/{one.relative_to(path).as_posix()}"
        name = f"{SETTINGS}{prefix}{below}"
        with suppress(FileNotFoundError):
            if one.is_file() and not one.is_symlink() and _SETTING.fullmatch(name):
                yield name, one.read_bytes()


def _is_ours(name: str) -> bool:
    return name == DUMP or bool(_CONTENT.fullmatch(name) or _SETTING.fullmatch(name))


def _artifacts_of(body: bytes) -> object:
    try:
        return orjson.loads(body)["artifacts"]
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{_END} can't be read: {error}"
        raise BrokenBackupError(msg) from None


def _manifest(body: bytes) -> Manifest:
    try:
        said = orjson.loads(body)
        if said["format"] != FORMAT:
            msg = f"format {said['format']} is not known to this version: restore with tandem {said['tandem']}"
            raise BrokenBackupError(msg)
        found = TypeAdapter(Manifest).validate_json(body)
        return replace(found, made_at=found.made_at.astimezone(UTC))
    except ValidationError as error:
        first = error.errors()[0]
        msg = f"manifest.json can't be read: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise BrokenBackupError(msg) from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        msg = f"manifest.json can't be read: {error}"
        raise BrokenBackupError(msg) from None
