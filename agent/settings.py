"""The agent's settings: a TOML file, then TANDEM_AGENT_* and TANDEM_* in the environment, then flags.

Loaded once in `cli.py`, passed down. A name that no setting has is an error, in the file and behind TANDEM_AGENT_;
other TANDEM_* variables may be the coordinator's and are left alone, and so are its folder and its log: TANDEM_DATA and
TANDEM_LOG_* never count here. Relative paths in the file start at its folder.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from agent.words import settings_faults
from shared.addresses import nats_in_the_clear
from shared.backoff import RECONNECT_S
from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN
from shared.nkey import public_key
from shared.rules import Rules

PREFIX = "TANDEM_AGENT_"
_SHARED_PREFIX = "TANDEM_"
_COORDINATORS = frozenset({"data", "log_level", "log_file", "log_file_bytes", "log_files"})
"""What behind the shared prefix is the coordinator's own."""
_OWNER_ONLY = 0o077
_PATHS = ("seed_file", "ca_file", "data")
"""Settings that are paths; `log_file` is one in `data`."""

Seconds = Annotated[float, Field(gt=0)]


class _Shared(EnvSettingsSource):
    """TANDEM_*, without what is the coordinator's own."""

    def __call__(self) -> dict[str, Any]:
        """Return the settings that are set so."""
        return {name: value for name, value in super().__call__().items() if name not in _COORDINATORS}


class AgentSettings(BaseSettings):
    """One agent. Durations in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    worker: str = Field(pattern=NAME_PATTERN)
    """This agent's identity, stable across restarts."""
    nats: str = "nats://127.0.0.1:4222"
    """URL of the NATS server; several with commas."""
    seed: SecretStr | None = None
    """The nkey seed itself; `seed_file` is the better place."""
    seed_file: Path | None = None
    """A file with the nkey seed, mode 0600, owned by the user that runs this."""
    ca_file: Path | None = None
    """Certificates to trust for NATS and uploads besides the system's (PEM)."""
    js_prefix: str = "JSJ.API"
    """Subject prefix of the JetStream API in the agents' account."""
    data: Path = Path("~/.local/share/tandem-agent")
    """Folder for the spool and workspaces; one process at a time."""
    slots: int = Field(default=1, ge=1, le=1024)
    """How many jobs may generate at once."""
    gpu_jobs: int = Field(default=1, ge=1, le=64)
    """How many of them may use the GPU at once (text and image models share a Mac's memory)."""
    rank: int = Field(default=0, ge=0, le=9)
    """Agents of rank 0 are served first; a higher rank gets what they leave."""
    executors: dict[str, dict[str, Any]] = {}
    """What runs jobs: `[executors.<name>]` with that executor's own settings."""

    rules: Rules = Rules()
    """When it takes work: `[rules]`. The coordinator may say others; a change in the file counts without a restart."""
    rules_s: Seconds = 5
    """How often the rules are held against the machine."""

    presence_s: Seconds = 10
    """How often it announces itself, until the coordinator says otherwise."""
    presence_timeout_s: Seconds = 5
    """How long an answer to an announcement may take."""
    linger_s: Annotated[float, Field(gt=0, le=10)] = 5
    """How long one pull waits when there is one lane."""
    linger_many_s: Annotated[float, Field(gt=0, le=10)] = 1
    """How long one pull waits on one lane when there are several."""
    warm_wait_s: Annotated[float, Field(ge=0)] = 300
    """Lanes whose model is loaded are served first, unless another was not asked for so long (0 = however long)."""
    claim_timeout_s: Seconds = 5
    """How long an answer to a claim may take before the claim is repeated."""
    lease_timeout_s: Seconds = 5
    """How long an answer to a lease question may take."""
    report_timeout_s: Seconds = 5
    """How long JetStream may take to store a report."""
    verdict_timeout_s: Seconds = 10
    """How long to wait for the ledger's verdict before asking about the lease."""
    resend_s: tuple[Seconds, ...] = (1, 2, 5, 10, 30, 60)
    """Waits between attempts to deliver a result; the last repeats."""
    reconnect_s: tuple[Seconds, ...] = tuple(RECONNECT_S)
    """Waits between attempts to reach NATS; the last repeats."""
    upload_connect_s: Seconds = 10
    """How long connecting for an upload may take."""
    upload_stall_s: Seconds = 60
    """An upload that moves no byte for so long is begun again."""
    heartbeat_tick_s: Seconds = 0.2
    """How often is looked whether a heartbeat or deadline is due."""
    drain_limit_s: Annotated[float, Field(ge=0)] = 20
    """How long running jobs may go on after a drain before they are released."""
    release_limit_s: Annotated[float, Field(ge=0)] = 5
    """How long the last reports may take when the agent exits; what is left stays spooled."""
    wake_grace_s: Annotated[float, Field(ge=0)] = 60
    """After the machine slept nothing is claimed for so long (dark wakes last seconds)."""
    spool_limit: int | None = Field(default=None, ge=1)
    """No work is taken while more results than this wait for delivery; None: 64, or four for each slot."""
    hang_s: Annotated[float, Field(ge=0)] = 180
    """A process whose event loop stands still for so long is ended; 0 = never."""
    time_server: str = "time.apple.com"
    """Whose clock the doctor holds this machine's against, by SNTP; empty: nobody's."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """The least important lines that are logged."""
    log_file: Path = Path("logs/agent.jsonl")
    """Every line goes here too, as JSON; in `data` unless it is absolute (/dev/null: nowhere)."""
    log_file_bytes: int = Field(default=16 * 1024 * 1024, ge=64 * 1024)
    """A log file of this size is begun anew."""
    log_files: int = Field(default=5, ge=2, le=100)
    """How many log files are kept, the newest included."""

    @model_validator(mode="after")
    def _nothing_is_in_the_clear(self) -> Self:
        try:
            clear = nats_in_the_clear(self.nats, has_ca=self.ca_file is not None)
        except ValueError as error:
            msg = f"nats: {error}"
            raise ValueError(msg) from None
        if clear is not None:
            msg = (
                f"nats: {clear} is not encrypted, and jobs would cross the network in the clear: write tls:// or wss://"
            )
            raise ValueError(msg)
        return self

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take flags and file from the constructor first; TANDEM_AGENT_X wins over TANDEM_X."""
        return (
            init_settings,
            EnvSettingsSource(settings_cls),
            _Shared(settings_cls, env_prefix=_SHARED_PREFIX),
        )

    @property
    def most_spooled(self) -> int:
        """How many undelivered results stop it from taking work."""
        return self.spool_limit or max(64, 4 * self.slots)

    def read_seed(self) -> str | None:
        """Return the nkey seed; ConfigurationError when its file is missing, open to others, or somebody else's."""
        if self.seed is not None:
            return _checked_seed(self.seed.get_secret_value().strip(), "seed")
        if self.seed_file is None:
            return None
        path = self.seed_file.expanduser()
        try:
            found = path.stat()
            seed = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            msg = f"seed_file {path}: {error}"
            raise ConfigurationError(msg) from None
        if found.st_mode & _OWNER_ONLY:
            msg = f"seed_file {path} is open to others (mode {found.st_mode & 0o777:o}); run: chmod 600 {path}"
            raise ConfigurationError(msg)
        if found.st_uid != os.getuid():
            msg = f"seed_file {path} belongs to user {found.st_uid}, this process runs as {os.getuid()}"
            raise ConfigurationError(msg)
        return _checked_seed(seed, f"seed_file {path}")


class _Alone(AgentSettings):
    """Settings that no environment changes."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's shape
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take them from the constructor alone."""
        return (init_settings,)


def load_settings(
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    executors: Sequence[str] = (),
    *,
    environment: bool = True,
) -> AgentSettings:
    """Return the settings; ConfigurationError names every fault.

    Flags that are None were not given. `executors` are added to those of file and environment, with their defaults.
    Without `environment`, this process's does not count: as in a service, which gets none of the shell's.
    """
    table: dict[str, Any] = {}
    if config is not None:
        try:
            table = tomllib.loads(config.read_text(encoding="utf-8"))
            for name in _PATHS:
                if isinstance(table.get(name), str):
                    table[name] = config.absolute().parent / Path(table[name]).expanduser()
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the ~ of nobody
            msg = f"settings file {config}: {error}"
            raise ConfigurationError(msg) from None
    if environment:
        _refuse_unknown_environment()
        for name in from_environment():
            table.pop(name, None)
    table |= {name: value for name, value in (flags or {}).items() if value is not None}
    if executors:
        table["executors"] = {name: {} for name in executors} | table.get("executors", {})
    try:
        return AgentSettings(**table) if environment else _Alone(**table)
    except ValidationError as error:
        raise ConfigurationError(settings_faults(error)) from None


def from_environment() -> set[str]:
    """Return the names of the settings that the environment sets: they win over the file's."""
    return {
        name
        for name in AgentSettings.model_fields
        for prefix in ((PREFIX,) if name in _COORDINATORS else (PREFIX, _SHARED_PREFIX))
        if any(key.upper().split("__")[0] == f"{prefix}{name}".upper() for key in os.environ)
    }


def _checked_seed(seed: str, where: str) -> str:
    try:
        public_key(seed)
    except ValueError:
        msg = f"{where} holds no nkey seed of a user (SU...)"
        raise ConfigurationError(msg) from None
    return seed


def _refuse_unknown_environment() -> None:
    known = {name.upper() for name in AgentSettings.model_fields}
    unknown = sorted(
        key for key in os.environ if key.startswith(PREFIX) and key.removeprefix(PREFIX).split("__")[0] not in known
    )
    if unknown:
        msg = f"unknown settings in the environment: {', '.join(unknown)}"
        raise ConfigurationError(msg)
