"""`tandem hooks list|check|try`: looks at the sources file, and shows what an event would become. Submits nothing."""
# ruff: noqa: PLC0415 - the other commands work without what these import

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from coordinator.cli_where import DEFAULT_DATA, Json
from shared.errors import ConfigurationError
from shared.ids import job_id_of
from shared.submission import parse_submission
from shared.wire import BadMessageError

if TYPE_CHECKING:
    from coordinator.hooks.config import Source
    from coordinator.hooks.mapping import Mapped

_SOURCES = "sources.toml"

Sources = Annotated[
    Path | None,
    typer.Option("--sources", envvar="TANDEM_SOURCES_FILE", help="The sources file; without: the one in --data."),
]
Data = Annotated[Path, typer.Option("--data", envvar="TANDEM_DATA", help="Folder of a `tandem up`.")]
Event = Annotated[typer.FileBinaryRead, typer.Argument(help="A body as the CMS sends it; - for stdin.")]
Headers = Annotated[list[str] | None, typer.Option("--header", help="NAME:VALUE (repeatable).")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="What a CMS may post to /hooks, and what becomes of it.")
    group.command("list")(list_sources)
    group.command("check")(check)
    group.command("try")(try_event)
    app.add_typer(group, name="hooks")


def list_sources(sources: Sources = None, data: Data = DEFAULT_DATA, *, json: Json = False) -> None:
    """List the sources."""
    from coordinator.hooks.config import load

    rows = [_row(name, source) for name, source in load(_file(sources, data)).items()]
    if json:
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    for row in rows:
        back = f", results to {row['publish']}" if row["publish"] else ""
        jobs = ", ".join(f"{job} ({kind})" for job, kind in row["jobs"].items())
        secrets = f"{row['secrets']} secret{'s' * (row['secrets'] != 1)}"
        typer.echo(f"{row['source']}: POST {row['path']}, {row['check']} with {secrets}, becomes {jobs}{back}")


def check(sources: Sources = None, data: Data = DEFAULT_DATA, *, json: Json = False) -> None:
    """Read the sources file as a coordinator does at its start, and say every fault; exit status 1 if there is one."""
    from coordinator.hooks.config import FaultySourcesError, load

    path = _file(sources, data)
    faults: list[str] = []
    found: Mapping[str, Source] = {}
    try:
        found = load(path)
    except FaultySourcesError as error:
        faults = list(error.faults)
    if json:
        told = {"file": str(path), "sources": sorted(found), "faults": faults}
        typer.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    for fault in () if json else faults:
        typer.echo(fault)
    if faults:
        raise typer.Exit(1)
    typer.echo(f"{path}: {len(found)} source{'s' * (len(found) != 1)}, no fault", err=True)


def try_event(
    source: Annotated[str, typer.Argument(help="Whose rules to apply.")],
    file: Event,
    header: Headers = None,
    sources: Sources = None,
    data: Data = DEFAULT_DATA,
    *,
    json: Json = False,
) -> None:
    """Show what an event would become; nothing is submitted, and no signature asked for."""
    from coordinator.hooks.config import load

    found = load(_file(sources, data))
    if source not in found:
        msg = f"no source {source!r}; there are: {', '.join(found) or 'none'}"
        raise ConfigurationError(msg)
    mapped = asyncio.run(_mapped(source, found[source], _headers(header or []), file.read()))
    faults = [(where, what) for where, what in mapped.faults] + _faults_of(mapped)
    if json:
        jobs = {name: {**job, "id": str(job_id_of(source, job["key"]))} for name, job in mapped.submissions.items()}
        told = {"jobs": jobs, "ignored": mapped.ignored, "faults": [{"field": f, "message": m} for f, m in faults]}
        typer.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    else:
        _print(source, mapped, faults)
    if faults:
        raise typer.Exit(1)


async def _mapped(name: str, source: "Source", headers: dict[str, str], body: bytes) -> "Mapped":
    from coordinator.hooks.mapper import Mapper

    async with Mapper(name, source.rules()) as mapper:
        return await mapper.map(headers, body)


def _faults_of(mapped: "Mapped") -> list[tuple[str, str]]:
    """Return what intake would refuse; which custom kinds are known only a coordinator knows."""
    faults: list[tuple[str, str]] = []
    for name, submission in mapped.submissions.items():
        try:
            parse_submission(orjson.dumps(submission))
        except BadMessageError as error:
            faults += [(f"jobs.{name}.{fault.field}".rstrip("."), fault.message) for fault in error.faults]
    return faults


def _print(source: str, mapped: "Mapped", faults: list[tuple[str, str]]) -> None:
    if mapped.ignored is not None:
        typer.echo(f"ignored: {mapped.ignored}")
    for name, submission in mapped.submissions.items():
        typer.echo(f"{name}: job {job_id_of(source, submission['key'])}")
        for field, value in submission.items():
            typer.echo(f"  {field}: {value if isinstance(value, str) else orjson.dumps(value).decode()}")
    for where, what in faults:
        typer.echo(f"refused: {where}: {what}" if where else f"refused: {what}")


def _headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for one in given:
        name, colon, value = one.partition(":")
        if not colon or not name.strip():
            msg = f"--header: not NAME:VALUE: {one!r}"
            raise ConfigurationError(msg)
        headers[name.strip().lower()] = value.strip()
    return headers


def _file(sources: Path | None, data: Path) -> Path:
    return sources or data.expanduser() / _SOURCES


def _row(name: str, source: "Source") -> dict[str, Any]:
    return {
        "source": name,
        "path": f"/hooks/{name}",
        "preset": source.preset,
        "check": source.check.kind,
        "secrets": len(source.check.secrets),
        "jobs": {job: rule.kind for job, rule in source.jobs.items() if rule.enabled},
        "publish": source.publish,
    }
