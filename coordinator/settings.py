"""The coordinator's settings: TOML file, then `TANDEM_*` environment, then flags; frozen, loaded once in `cli.py`."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    IPvAnyNetwork,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from coordinator.clear import clear_address, clear_postgres
from coordinator.publishing.config import WordPressSite
from coordinator.quarantine import Rules
from coordinator.retention import Ages
from shared.addresses import http_in_the_clear, nats_in_the_clear
from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN
from shared.lease import Policy

_PREFIX = "TANDEM_"
_DAY_S = 86400.0
_OTHERS = ("AGENT_", "DATA", "TOKEN", "URL")
"""What else may stand behind the prefix: the agent's settings, and the command line's way to a coordinator."""


class CoordinatorSettings(BaseSettings):
    """Each default of PROTOCOL.md, and where the servers are. Durations in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # secrets would be shown
    )

    postgres: SecretStr = SecretStr("")  # DSN; may hold a password
    nats: str = "nats://127.0.0.1:4222"
    nats_ca: Path | None = None  # CA of the server's certificate; None = no TLS
    nats_seed: SecretStr | None = None  # nkey seed of the run-time coordinator
    nats_provisioner_seed: SecretStr | None = None  # of the user that may make streams; used only then
    nats_watcher_seed: SecretStr | None = None  # of the user that hears disconnects; None = crashes wait for the ttl
    nats_public_url: str | None = None  # how agents reach NATS; None = as we do
    nats_identities: Path | None = None  # parent of the `identities/` that nats.conf includes; None = we invite nobody
    nats_reload: tuple[str, ...] = ()  # command, run without a shell, that has the server read them again
    replicas: int = Field(default=1, ge=1, le=5)  # of each stream

    http: str = "127.0.0.1:8420"  # HOST:PORT; port 0 = any free one
    https: str | None = None  # HOST:PORT to listen on as well, by TLS; with the two files and public_url
    https_cert: Path | None = None  # PEM, the chain included
    https_key: Path | None = None
    public_url: str | None = None  # how agents and readers reach the HTTP side; None = as it listens
    rate_per_s: PositiveFloat = 500.0  # requests of one token; past that and the burst it is answered 429
    rate_burst: PositiveInt = 2000
    tokens: dict[str, SecretStr] = {}  # "<role>:<name>" -> token; roles publisher, viewer, admin
    artifacts: Path = Path("data/artifacts")  # folder of the returned files, unless artifacts_url is set
    artifacts_url: str | None = None  # s3://BUCKET/PREFIX: the returned files lie there
    artifacts_endpoint: str | None = None  # URL of a store with an S3 API; None = AWS
    artifacts_region: str = "us-east-1"
    artifacts_key_id: SecretStr | None = None  # with its secret; None = the machine's own role
    artifacts_secret_key: SecretStr | None = None
    artifacts_allow_http: bool = False  # to the endpoint; only for one that is not across a network
    artifacts_grace_s: PositiveFloat = 3600.0  # what is younger is never swept; longer than the longest upload
    secrets: Path = Path("data/secrets")  # folder of what the coordinator signs with
    callback_secrets: dict[str, SecretStr] = {}  # source -> whsec_...; the others' is made in `secrets`/callback.key
    callback_allow: frozenset[IPvAnyNetwork] = frozenset()  # networks that are not public and may be called back
    wordpress: dict[str, WordPressSite] = {}  # source -> the site where its results are published
    max_artifact_bytes: PositiveInt = 512 * 1024 * 1024
    sources_file: Path | None = None  # which CMS may post to /hooks, and what becomes of it (docs/hooks.md)
    sources: frozenset[str] = frozenset()  # NATS publishers, whose results consumers are made at start
    kinds: frozenset[str] = frozenset()  # custom kinds accepted before an agent advertised them

    lease_ttl_s: PositiveFloat = 90.0
    heartbeat_s: PositiveFloat = 30.0
    presence_s: PositiveFloat = 10.0
    max_attempts: PositiveInt = 5
    max_lease_losses: PositiveInt = 5
    max_silences: PositiveInt = 20
    retry_base_s: PositiveFloat = 10.0
    retry_max_s: PositiveFloat = 600.0
    timeout_s: PositiveFloat = 1800.0
    reaper_s: PositiveFloat = 1.0
    reconcile_s: PositiveFloat = 30.0
    forecast_s: PositiveFloat = 30.0  # how often is read how long the last results took
    disconnect_grace_s: PositiveFloat = 5.0  # how long a closed connection's process may take to come back
    sweep_s: PositiveFloat = 60.0
    keep_jobs_s: NonNegativeFloat = 90 * _DAY_S  # settled jobs, with all that belongs to them; 0 = for ever
    keep_artifacts_s: NonNegativeFloat = 30 * _DAY_S  # files of settled jobs; what they were stays on record
    keep_heartbeats_s: NonNegativeFloat = 7 * _DAY_S
    keep_rejected_s: NonNegativeFloat = 30 * _DAY_S  # refused results and submissions
    keep_callback_bodies_s: NonNegativeFloat = 14 * _DAY_S  # what was sent; whether it arrived stays on record
    retention_s: PositiveFloat = 60.0  # how often is looked for what is older
    unclaimed_s: PositiveFloat = 15.0  # an offer that a free agent leaves lying this long is made anew
    window_min: PositiveInt = 2  # offers a lane always may have out
    quarantine_failures: PositiveInt = 3  # in a row, and a worker is set aside in that lane
    quarantine_s: PositiveFloat = 60.0  # for so long at first; doubles with each further failure
    quarantine_most_s: PositiveFloat = 3600.0

    json_log: bool = False
    log_level: str = "info"
    log_file: Path | None = None  # every line goes here too, as JSON; None = to stderr only
    log_file_bytes: int = Field(default=16 * 1024 * 1024, ge=64 * 1024)  # then it is begun anew
    log_files: int = Field(default=5, ge=2, le=100)  # how many are kept, the newest included
    log_agents: Path | None = None  # folder of agents on this machine: their files are searched for a job's lines too

    @field_validator("public_url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            msg = f"{url!r} is no address that agents can reach: give http://HOST:PORT or https://HOST"
            raise ValueError(msg)
        return url.rstrip("/")

    @model_validator(mode="after")
    def _store_fits(self) -> Self:
        """Say what is wrong with the artifact store's settings, before anything is stored."""
        if (self.artifacts_key_id is None) != (self.artifacts_secret_key is None):
            msg = "artifacts_key_id and artifacts_secret_key go together"
            raise ValueError(msg)
        if self.artifacts_url is not None:
            parts = urlsplit(self.artifacts_url)
            if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
                msg = "artifacts_url is not s3://BUCKET or s3://BUCKET/PREFIX"
                raise ValueError(msg)
        if self.artifacts_endpoint is not None:
            scheme = urlsplit(self.artifacts_endpoint).scheme
            if scheme != "https" and not (scheme == "http" and self.artifacts_allow_http):
                msg = "artifacts_endpoint is not https:// (http:// on this machine only, and with artifacts_allow_http)"
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _ages_fit(self) -> Self:
        """Keep what a message of RESULTS may still name, and what a callback that is still tried says."""
        least = {"keep_jobs_s": 8, "keep_artifacts_s": 8, "keep_callback_bodies_s": 2}
        for name, days in least.items():
            if 0 < getattr(self, name) < days * _DAY_S:
                msg = f"{name} must be 0 (for ever) or at least {days * _DAY_S:g} ({days} days)"
                raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _https_fits(self) -> Self:
        together = (self.https, self.https_cert, self.https_key, self.https and self.public_url)
        if any(together) and not all(together):
            msg = "https, https_cert and https_key go together, and need public_url"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _nothing_is_in_the_clear(self) -> Self:
        faults = [
            clear_address("nats", partial(nats_in_the_clear, has_ca=self.nats_ca is not None), self.nats),
            clear_address("nats_public_url", partial(nats_in_the_clear, has_ca=False), self.nats_public_url),
            clear_address("public_url", http_in_the_clear, self.public_url),
            clear_address("artifacts_endpoint", http_in_the_clear, self.artifacts_endpoint),
            clear_postgres(self.postgres.get_secret_value()),
        ]
        if found := [fault for fault in faults if fault is not None]:
            raise ValueError("; ".join(found))
        return self

    @model_validator(mode="after")
    def _users_fit(self) -> Self:
        if (self.nats_identities is None) != (not self.nats_reload):
            msg = "nats_identities and nats_reload go together"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        self.policy()
        for name in self.tokens:
            role, _, who = name.partition(":")
            if role not in ("publisher", "viewer", "admin") or not who:
                msg = f"tokens: {name!r} must be <publisher|viewer|admin>:<name like {NAME_PATTERN}>"
                raise ValueError(msg)
        return self

    def policy(self) -> Policy:
        """Return the numbers that transitions decide by; ValueError if they contradict each other."""
        return Policy(
            lease_ttl_s=self.lease_ttl_s,
            heartbeat_s=self.heartbeat_s,
            presence_s=self.presence_s,
            max_attempts=self.max_attempts,
            max_lease_losses=self.max_lease_losses,
            max_silences=self.max_silences,
            retry_base_s=self.retry_base_s,
            retry_max_s=self.retry_max_s,
        )

    def ages(self) -> Ages:
        """Return how long what is kept."""
        return Ages(
            jobs_s=self.keep_jobs_s,
            artifacts_s=self.keep_artifacts_s,
            heartbeats_s=self.keep_heartbeats_s,
            rejected_s=self.keep_rejected_s,
            callback_bodies_s=self.keep_callback_bodies_s,
        )

    def quarantine(self) -> Rules:
        """Return when a worker is set aside."""
        return Rules(failures=self.quarantine_failures, pause_s=self.quarantine_s, most_s=self.quarantine_most_s)

    @classmethod
    def load(cls, file: Path | None, **flags: Any) -> Self:
        """Read `file` (TOML), the environment and `flags`; later ones win, None flags are left out."""
        _refuse_unknown_environment(frozenset(cls.model_fields))
        given = {name: value for name, value in flags.items() if value is not None}

        class _Loaded(cls):  # type: ignore[misc, valid-type] # the file's path is known only now
            @classmethod
            def settings_customise_sources(
                cls, settings_cls: type[BaseSettings], env_settings: PydanticBaseSettingsSource, **_: Any
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                sources = (InitSettingsSource(settings_cls, init_kwargs=given), env_settings)
                return (*sources, TomlConfigSettingsSource(settings_cls, file)) if file else sources

        loaded: Self = _Loaded()
        return loaded


def _refuse_unknown_environment(known: frozenset[str]) -> None:
    given = {name.removeprefix(_PREFIX) for name in os.environ if name.startswith(_PREFIX)}
    unknown = sorted(f"{_PREFIX}{n}" for n in given if n.lower() not in known and not n.startswith(_OTHERS))
    if unknown:
        msg = f"unknown settings in the environment: {', '.join(unknown)}"
        raise ConfigurationError(msg)


def address_of(listens: str) -> tuple[str, int]:
    """Return host and port of `http` or `https`: HOST:PORT, an IPv6 address in brackets."""
    host, _, port = listens.rpartition(":")
    return host.strip("[]"), int(port)
