"""The coordinator's settings: TOML file, then `TANDEM_*` environment, then flags; frozen, loaded once in `cli.py`."""

import os
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from shared.errors import ConfigurationError
from shared.ids import NAME_PATTERN
from shared.lease import Policy

_PREFIX = "TANDEM_"
_OTHERS = ("AGENT_", "DATA", "TOKEN", "URL")
"""What else may stand behind the prefix: the agent's settings, and the command line's way to a coordinator."""


class CoordinatorSettings(BaseSettings):
    """Each default of PROTOCOL.md, and where the servers are. Durations in seconds."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    postgres: SecretStr = SecretStr("")  # DSN; may hold a password
    nats: str = "nats://127.0.0.1:4222"
    nats_ca: Path | None = None  # CA of the server's certificate; None = no TLS
    nats_seed: SecretStr | None = None  # nkey seed of the run-time coordinator
    nats_provisioner_seed: SecretStr | None = None  # of the user that may make streams; used only then
    nats_watcher_seed: SecretStr | None = None  # of the user that hears disconnects; None = crashes wait for the ttl
    replicas: int = Field(default=1, ge=1, le=5)  # of each stream

    http: str = "127.0.0.1:8420"  # HOST:PORT; port 0 = any free one
    public_url: str | None = None  # how agents and readers reach the HTTP side; None = as it listens
    tokens: dict[str, SecretStr] = {}  # "<role>:<name>" -> token; roles publisher, viewer, admin
    artifacts: Path = Path("data/artifacts")  # folder of the returned files
    secrets: Path = Path("data/secrets")  # folder of what the coordinator signs with
    max_artifact_bytes: PositiveInt = 512 * 1024 * 1024
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
    disconnect_grace_s: PositiveFloat = 5.0  # how long a closed connection's process may take to come back
    unclaimed_s: PositiveFloat = 15.0  # an offer that a free agent leaves lying this long is made anew
    window_min: PositiveInt = 2  # offers a lane always may have out

    json_log: bool = False
    log_level: str = "info"

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
