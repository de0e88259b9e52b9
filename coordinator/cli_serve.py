"""`tandem up`, `demo`, `coordinator`, `migrate`, `audit`: the commands that need a server's insides.

Each imports them only when it runs, so that the others work without the extras.
"""
# ruff: noqa: PLC0415 - imports inside the commands are this module's point

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from pydantic import SecretStr

from coordinator import cli_backup
from coordinator.cli_where import DEFAULT_DATA, Data, Json, connection_of, run
from coordinator.up_folder import AUDIT
from shared import log
from shared.errors import ConfigurationError

if TYPE_CHECKING:
    from coordinator.settings import CoordinatorSettings
    from coordinator.up import Up

JsonLog = Annotated[bool, typer.Option("--json-log", help="Log JSON lines.")]
Config = Annotated[Path | None, typer.Option("--config", help="The coordinator's settings in TOML.")]
Folder = Annotated[Path, typer.Option("--data", envvar="TANDEM_DATA", help="Where everything is kept.")]
Postgres = Annotated[str | None, typer.Option("--postgres", help="DSN; better in TANDEM_POSTGRES or the file.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (up, demo, coordinator, migrate, audit):
        app.command()(command)
    cli_backup.register(app)


def up(
    data: Folder = DEFAULT_DATA,
    http: Annotated[str, typer.Option(help="HOST:PORT of page and API; port 0 = any free one.")] = "127.0.0.1:8420",
    nats: Annotated[str | None, typer.Option(help="HOST:PORT of NATS; port 0 = any free one (127.0.0.1:4222).")] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="NAME[:PORT]", help="Serve other machines, which know this one by NAME, by TLS (8443)."),
    ] = None,
    agents: Annotated[int, typer.Option(min=0, max=64, help="Local agents that sketch, without a model.")] = 0,
    worker: Annotated[
        list[str] | None, typer.Option(help="Make an identity for an agent elsewhere (repeatable).")
    ] = None,
    *,
    json_log: JsonLog = False,
) -> None:
    """Run NATS, Postgres and the coordinator on one folder until Ctrl-C; a second Ctrl-C does not wait for agents."""
    from coordinator.open_files import allow_many
    from coordinator.up import Plan, running_up

    log.configure(json=json_log)
    allow_many()
    names = tuple(f"agent-{number}" for number in range(1, agents + 1))
    plan = Plan(data=data, http=http, nats=nats, listen=listen, agents=names, workers=tuple(worker or ()))

    async def work() -> None:
        stops = Stops()
        with stops.heard():
            typer.echo(f"tandem starts in {data} ...", err=True)
            async with stops.unless_stopped(), running_up(plan) as this:
                stops.ready(this)
                _say_up(this, data, names)
                await this.until(stops.stop)
                typer.echo("stopping: agents, coordinator, NATS, Postgres", err=True)
        if stops.stop.is_set():
            typer.echo("stopped", err=True)

    run(work())


def demo(
    data: Annotated[Path, typer.Option(hidden=True)] = Path("demo-data"),
    *,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live table.")] = False,
    real: Annotated[bool, typer.Option("--real", help="Articles by a small language model (about a minute).")] = False,
) -> None:
    """Two agents, twelve jobs, two accidents: see every job done exactly once (about half a minute)."""
    from coordinator.demo import run_demo

    stops = Stops()

    async def work() -> bool:
        with stops.heard():
            async with stops.unless_stopped():
                return await run_demo(data, plain=plain, real=real)
        return False

    if not run(work()):
        if stops.stop.is_set():
            typer.echo("tandem: interrupted", err=True)
        raise typer.Exit(1)


def coordinator(
    config: Config = None,
    postgres: Postgres = None,
    nats: Annotated[str | None, typer.Option(help="URL of the NATS server.")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT to listen on.")] = None,
    public_url: Annotated[str | None, typer.Option(help="How agents and readers reach the HTTP side.")] = None,
    *,
    json_log: JsonLog = False,
) -> None:
    """Run a coordinator beside a NATS and a Postgres of your own. Settings: --config, TANDEM_*, flags."""
    from coordinator.open_files import allow_many
    from coordinator.service import running

    allow_many()
    flags = {"postgres": postgres, "nats": nats, "http": http, "public_url": public_url, "json_log": json_log or None}
    settings = settings_in(config, **flags)
    log.configure(json=settings.json_log, level=settings.log_level)

    async def work() -> None:
        stops = Stops()
        with stops.heard():
            async with stops.unless_stopped(), running(settings):
                stops.ready()
                await stops.stop.wait()

    run(work())


def migrate(
    config: Config = None,
    postgres: Postgres = None,
    data: Data = None,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is missing; exit status 1 if anything.")
    ] = False,
) -> None:
    """Bring the database's schema up to date (a coordinator does this at every start, too)."""
    from coordinator.ledger.migrate import create_database_if_missing
    from coordinator.ledger.migrate import migrate as bring_up_to_date

    folder = folder_meant(config, data) if postgres is None else None
    settings = settings_in(config, postgres=postgres) if folder is None else _settings_of(folder)
    dsn = settings.postgres.get_secret_value()
    if check:
        _check_schema(dsn)
        return

    async def work() -> bool:
        made = await create_database_if_missing(dsn)
        await bring_up_to_date(dsn)
        return made

    typer.echo("database made, schema up to date" if run(work()) else "schema up to date")


def _check_schema(dsn: str) -> None:
    """Say what `migrate` would do; exit status 1 if anything, or if the schema is of a later version."""
    from coordinator.ledger.migrate import missing_revisions, revision_of

    now = run(revision_of(dsn))
    missing = missing_revisions(now)
    if missing is None:
        typer.echo(f"schema {now} is of a later version of tandem than this one; it may not run here")
        raise typer.Exit(1)
    for revision, what in missing:
        typer.echo(f"{revision}  {what}")
    if missing:
        typer.echo(f"{len(missing)} to do: tandem migrate (a coordinator does it when it starts)")
        raise typer.Exit(1)
    typer.echo(f"schema {now} is up to date")


def audit(
    data: Data = None,
    config: Config = None,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is safe to mend, and say what was done.")] = False,
    results: Annotated[int, typer.Option(min=0, help="How many of RESULTS' newest messages are read.")] = 1000,
    json: Json = False,
) -> None:
    """Hold the ledger against itself, the streams, the workers and the files; exit status 1 on a breach of a promise.

    With --repair: 1 if something is left. Safe beside running coordinators; docs/operations.md has every rule.
    """
    from coordinator import cli_audit

    if config is None and data is None and not DEFAULT_DATA.is_dir():
        msg = "which coordinator? give --config with its settings, or --data with the folder of a running `tandem up`"
        raise ConfigurationError(msg)
    settings = settings_in(config) if config is not None else _settings_of(data or DEFAULT_DATA)
    log.configure(json=False, level="error")
    work = cli_audit.repaired if repair else cli_audit.audited
    if not run(work(settings, results=results, json=json)):
        raise typer.Exit(1)


class Stops:
    """SIGINT, SIGTERM and SIGHUP: before everything is ready they cut the start short, then they ask for a stop."""

    def __init__(self) -> None:
        """Nothing was asked for yet."""
        self.stop = asyncio.Event()
        self._up: Up | None = None
        self._ready = False
        self._starting: asyncio.Task[Any] | None = None
        self._times = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear the signals while in the block."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    @asynccontextmanager
    async def unless_stopped(self) -> AsyncIterator[None]:
        """Leave the block quietly when it was a signal that cancelled it."""
        self._starting = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self.stop.is_set() or self._starting is None:
                raise
            self._starting.uncancel()

    def ready(self, up: "Up | None" = None) -> None:
        """From now on a signal only sets `stop`; the second one hurries the agents."""
        self._ready, self._up = True, up

    def _signalled(self) -> None:
        self._times += 1
        self.stop.set()
        if not self._ready:
            if self._times == 1 and self._starting is not None:
                self._starting.cancel()
        elif self._up is not None and self._times == 2:  # noqa: PLR2004
            self._up.agents.hurry()
        elif self._up is not None and self._times > 2:  # noqa: PLR2004
            self._up.agents.kill()


def settings_in(config: Path | None, **flags: Any) -> "CoordinatorSettings":
    """Return the settings of a file and the environment; ConfigurationError when they name no Postgres."""
    from coordinator.settings import CoordinatorSettings

    if config is not None and not config.is_file():
        msg = f"--config: no such file: {config}"
        raise ConfigurationError(msg)
    try:
        settings = CoordinatorSettings.load(config, **flags)
    except ValueError as error:
        if type(error).__name__ in ("ValidationError", "SettingsError"):
            raise
        msg = f"--config {config}: {error}"  # a TOML file that does not parse
        raise ConfigurationError(msg) from None
    if not settings.postgres.get_secret_value():
        msg = "which Postgres? set TANDEM_POSTGRES, or postgres in --config; that of a running `tandem up`: --data"
        raise ConfigurationError(msg)
    return settings


def folder_meant(config: Path | None, data: Path | None) -> Path | None:
    """Return the folder of a `tandem up` that the options mean; None: a file's settings, or those of the environment.

    `./data` is meant if it is there, and nothing else is said.
    """
    if config is not None:
        return None
    is_said = data is not None or "TANDEM_POSTGRES" in os.environ
    return data if is_said or not DEFAULT_DATA.is_dir() else DEFAULT_DATA


def _settings_of(data: Path) -> "CoordinatorSettings":
    """Return how the folder of a running `tandem up` is reached from inside."""
    connection = connection_of(data, "; for a coordinator with servers of its own give --config")
    with contextlib.suppress(FileNotFoundError):  # stopped just now, or only half a folder
        seed = (data.expanduser() / "identities" / "coordinator.seed").read_text().strip()
        return settings_in(
            None,
            postgres=SecretStr(connection["postgres"]),
            nats=connection["nats"],
            http=connection["http"].partition("://")[2],
            nats_seed=SecretStr(seed),
            artifacts=data.expanduser() / "artifacts",
            **orjson.loads((data.expanduser() / AUDIT).read_bytes()),
        )
    msg = f"{data} has no coordinator's identity"
    raise ConfigurationError(msg)


def _say_up(this: "Up", data: Path, agents: tuple[str, ...]) -> None:
    where = "" if data == DEFAULT_DATA else f" --data {data}"
    public = this.coordinator.settings.public_url
    lines = [
        f"page     {this.url}/  (log in with the admin token in {data}/tokens.json)",
        f"NATS     {this.nats.url}",
        *([f"others   {public}/  and {this.coordinator.settings.nats_public_url}"] if public else []),
        f"data     {this.data}",
        f"agents   {', '.join(agents) or 'none here: start with --agents N, or connect one (README)'}",
        f"submit   tandem submit article --prompt 'A walk along the harbour'{where}",
        f"look     tandem jobs{where}",
        "Ctrl-C stops it; the same command on the same folder finds everything again.",
    ]
    typer.echo("\n".join(lines))
