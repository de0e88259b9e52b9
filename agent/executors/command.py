"""The executor that runs a program of this Mac's owner for a job. Only programs named in the agent's settings run.

    [executors.command.programs.outline]
    program = "/opt/tools/outline"                 # absolute
    args = ["--topic={topic}", "--out", "{out}"]   # never a shell
    kind = "outline"

A placeholder is a field of the job's spec (text or a number; `{{` is a brace) or one of `{job_id}`, `{epoch}`,
`{attempt}`, `{model}`, `{workspace}`, `{out}`. A value that begins with `-` is refused where it would begin an argument
(it could be read as an option; write `--topic={topic}`). The whole job lies in `job.json` and comes on stdin. The
program sees PATH, HOME, LANG, TMPDIR and what `env` adds: no secrets of the agent.

stdout: lines of JSON, `{"stage","progress","detail"}`, `{"result": {…}}`, `{"model": …, "settings": {…}}`; other lines,
and stderr, are kept as a short tail for error reports. Files in `out/` become artifacts.

exit status               what it means
0                         completed
75 (EX_TEMPFAIL)          transient
69 (EX_UNAVAILABLE)       backend down: released, and left alone for a while
64, 65, 66                permanent: bad usage, data or input, which another Mac has no better
72, 77, 78, 126, 127      elsewhere: missing file, no permission, bad configuration, not executable, not found
any other, or a signal    transient

The program leads a process group. Cancelling, the time limit, and its end all end the whole group: TERM, then KILL
after `grace_s`. (A grandchild that starts a session of its own escapes.)
"""

import asyncio
import mimetypes
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import orjson
import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agent.executors.base import (
    BackendDown,
    Elsewhere,
    ExecutorError,
    Permanent,
    Product,
    ProductFile,
    Progress,
    RunnableJob,
    Transient,
)
from agent.executors.children import Child
from shared import subjects
from shared.wire import ARTIFACT_NAME_PATTERN, Capability, Kind

MOST_FILES = 100
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MOST_ARGUMENT_BYTES = 100_000
_EXITS: Mapping[int, type[ExecutorError]] = {
    64: Permanent,
    65: Permanent,
    66: Permanent,
    69: BackendDown,
    72: Elsewhere,
    75: Transient,
    77: Elsewhere,
    78: Elsewhere,
    126: Elsewhere,
    127: Elsewhere,
}
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
_TYPES = {".md": "text/markdown", ".webp": "image/webp", ".avif": "image/avif", ".json": "application/json"}
_log = structlog.get_logger()


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        msg = f"{path} is not absolute"
        raise ValueError(msg)
    return path


class Program(BaseModel):
    """One program that jobs may run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    program: Annotated[Path, AfterValidator(_absolute)]
    """The executable file."""
    args: list[str] = []
    """Its arguments, with placeholders."""
    kind: Kind
    """Jobs of this kind run it."""
    models: list[str] = Field(default=["*"], min_length=1)
    """Models that it stands for; `*` is every one."""
    env: dict[str, str] = {}
    """Added to its environment."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Its own limit, below the job's."""
    grace_s: float = Field(default=5.0, ge=0)
    """Between TERM and KILL."""


class CommandSettings(BaseModel):
    """The allow-list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    programs: dict[str, Program] = Field(min_length=1)
    """By name."""


class CommandExecutor:
    """Implements `base.Executor`."""

    name: ClassVar[str] = "command"

    def __init__(self, settings: CommandSettings) -> None:
        """Nothing is started."""
        self._programs = settings.programs

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Make it from `[executors.command]`."""
        return cls(CommandSettings.model_validate(dict(table)))

    def capabilities(self) -> list[Capability]:
        """Return what the programs that are there can do."""
        return [
            Capability(kind=program.kind, models=program.models, executor=self.name)
            for program in self._programs.values()
            if os.access(program.program, os.X_OK)
        ]

    def lacks(self) -> dict[str, str]:
        """Return the programs that can't be run."""
        return {
            f"program {name}": f"install {program.program} and make it executable, or correct executors.command"
            for name, program in self._programs.items()
            if not os.access(program.program, os.X_OK)
        }

    async def start(self) -> None:
        """Say which programs are missing; they may come later."""
        for name, todo in self.lacks().items():
            _log.warning("program can't be run", name=name, todo=todo)

    async def aclose(self) -> None:
        """Nothing to end: children end with their jobs."""

    async def run(self, job: RunnableJob, progress: Progress) -> Product:
        """Run the program that serves the job."""
        program = self._program(job)
        out = job.workspace / "out"
        out.mkdir(mode=0o700, exist_ok=True)
        argv = [str(program.program), *(_fill(arg, job, out) for arg in program.args)]
        told = _Told(progress)
        try:
            child = await Child.start(argv, cwd=job.workspace, env=_environment(program), grace_s=program.grace_s)
        except OSError as error:
            raise Elsewhere("cannot_start", f"{program.program.name}: {error.strerror}") from None
        try:
            async with asyncio.timeout(program.timeout_s):
                status = await child.run(await asyncio.to_thread(_job_file, job), told.line)
        except TimeoutError:
            raise Transient("timeout", f"{program.program.name} ran past its {program.timeout_s} s") from None
        finally:
            await child.end()
        if status:
            raise _fault(program, status, child.tail())
        files = await asyncio.to_thread(_artifacts, out)
        return Product(result=told.result, files=files, model=told.model or job.model, settings=told.settings)

    def _program(self, job: RunnableJob) -> Program:
        """Return the program that names the job's model, or else one that takes any; without a model any will do."""
        wanted = subjects.slug(job.model) if job.model else None
        fitting = [program for program in self._programs.values() if program.kind == job.kind]
        for program in fitting:
            if wanted is not None and wanted in {subjects.slug(model) for model in program.models}:
                return program
        for program in fitting:
            if "*" in program.models:
                return program
        if wanted is None and fitting:
            return fitting[0]
        raise Elsewhere("no_program", f"no program here serves {job.kind} with {job.model}")


class _Told:
    """What the program said on stdout, line by line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.result: dict[str, Any] | None = None
        self.model: str | None = None
        self.settings: dict[str, Any] = {}

    def line(self, line: bytes) -> bool:
        """Take a line; False: it is not of this protocol."""
        if not line.startswith(b"{"):
            return False
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            return False
        if isinstance(said.get("stage"), str):
            self._progress.stage(said["stage"])
        if isinstance(said.get("progress"), int | float):
            self._progress.progress(float(said["progress"]))
        if isinstance(said.get("detail"), str):
            self._progress.detail(said["detail"])
        if isinstance(said.get("result"), dict):
            self.result = said["result"]
        if isinstance(said.get("model"), str):
            self.model = said["model"][:200]
        if isinstance(said.get("settings"), dict):
            self.settings = said["settings"]
        return True


def _environment(program: Program) -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | program.env


def _job_file(job: RunnableJob) -> bytes:
    """Write job.json and return its content, which the program also gets on stdin."""
    content = orjson.dumps(
        {
            "id": job.id,
            "epoch": job.epoch,
            "attempt": job.attempt,
            "kind": job.kind,
            "model": job.model,
            "spec": dict(job.spec),
            "labels": dict(job.labels),
        }
    )
    (job.workspace / "job.json").write_bytes(content)
    return content


def _fill(argument: str, job: RunnableJob, out: Path) -> str:
    """Return an argument with its placeholders filled; Permanent when the spec has nothing that fits."""
    own = {
        "job_id": job.id,
        "epoch": job.epoch,
        "attempt": job.attempt,
        "model": job.model or "",
        "workspace": job.workspace,
        "out": out,
    }

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name in own:
            return str(own[name])
        found = job.spec.get(name)
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            raise Permanent("bad_spec", f"spec.{name} must be a text or a number for this kind")
        text = str(found)
        if "\x00" in text or len(text.encode("utf-8", "replace")) > _MOST_ARGUMENT_BYTES:
            raise Permanent("bad_spec", f"spec.{name} is too long or has NUL, it can't be an argument")
        if match.start() == 0 and text.startswith("-"):
            raise Permanent("bad_spec", f"spec.{name} begins with '-' and could be read as an option")
        return text

    return _PLACEHOLDER.sub(value, argument)


def _fault(program: Program, status: int, tail: str) -> ExecutorError:
    how = f"exited with {status}" if status > 0 else f"was ended by signal {-status}"
    code = f"exit_{status}" if status > 0 else f"signal_{-status}"
    return _EXITS.get(status, Transient)(code, f"{program.program.name} {how}", {"log": tail})


def _artifacts(out: Path) -> list[ProductFile]:
    """Return the files of `out`; Permanent for what can't be one: the program is wrong, and would be again."""
    found: list[ProductFile] = []
    with os.scandir(out) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name == ".DS_Store":
                continue
            if not re.fullmatch(ARTIFACT_NAME_PATTERN, entry.name):
                raise Permanent("bad_output", f"out/{entry.name!r} is no name for an artifact")
            if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                raise Permanent("bad_output", f"out/{entry.name} is no regular file")
            if len(found) == MOST_FILES:
                raise Permanent("bad_output", f"more than {MOST_FILES} files in out/")
            found.append(ProductFile(Path(entry.path), _media_type(entry.name)))
    return found


def _media_type(name: str) -> str:
    known = _TYPES.get(Path(name).suffix.lower())
    return known or mimetypes.guess_type(name)[0] or "application/octet-stream"
