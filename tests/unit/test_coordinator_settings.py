"""What the coordinator's settings refuse, with the numbers and names in the message."""

from pathlib import Path

import orjson
import pytest
from pydantic import SecretStr, ValidationError

from coordinator.artifact_s3 import S3Store
from coordinator.artifact_stores import store_of
from coordinator.artifacts import FolderStore, StoreDownError
from coordinator.cli import explain
from coordinator.cli_serve import _settings_of
from coordinator.cli_words import settings_faults
from coordinator.settings import CoordinatorSettings
from coordinator.up import _for_the_audit
from shared.errors import ConfigurationError


@pytest.mark.parametrize("url", ["127.0.0.1:9", "ftp://host", "http://", "host"])
def test_a_public_url_that_no_agent_can_reach_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="public_url"):
        CoordinatorSettings(public_url=url)


def test_a_public_url_has_no_slash_at_its_end() -> None:
    assert CoordinatorSettings(public_url="https://jobs.example/").public_url == "https://jobs.example"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"public_url": "http://vps.example.org"}, "public_url: http://vps.example.org is not encrypted"),
        ({"nats": "tls://10.0.0.3:4222, nats://10.0.0.2:4222"}, "nats: nats://10.0.0.2:4222 is not encrypted"),
        ({"nats": "ws://vps.example.org/nats", "nats_ca": "ca.crt"}, "nats: ws://vps.example.org is not encrypted"),
        ({"nats": "natss://vps.example.org"}, "nats: natss://vps.example.org is not encrypted"),
        ({"nats": "nats://u:[very-secret]@vps.example.org"}, "nats: that is no URL"),
        ({"public_url": "http://u:very-secret#1@vps.example.org"}, "public_url: that is no URL"),
        ({"nats": "vps.example.org:4222"}, "nats: vps.example.org:4222 is not encrypted"),
        ({"nats_public_url": "nats://vps.example.org"}, "nats_public_url: nats://vps.example.org is not encrypted"),
        ({"nats_public_url": "nats://vps.example.org", "nats_ca": "ca.crt"}, "nats_public_url"),
        (
            {"artifacts_endpoint": "http://10.0.0.4:9000", "artifacts_allow_http": True},
            "artifacts_endpoint: http://10.0",
        ),
        ({"postgres": "postgresql://t:very-secret@db.example.org/t"}, "postgres: db.example.org is not encrypted"),
        ({"postgres": "postgresql://t:very-secret@[fd00::1]:5432/t"}, "postgres: fd00::1 is"),
        ({"postgres": "postgresql://t:very-secret@db.example.org/t?sslmode=prefer"}, "sslmode=verify-full"),
        ({"postgres": "postgresql://localhost:5432,db.example.org:5432/t"}, "db.example.org"),
        ({"postgres": "postgresql:///t?host=10.0.0.3&user=t"}, "10.0.0.3"),
        ({"postgres": "postgresql://localhost/t?host=/run,10.0.0.3"}, "10.0.0.3"),
        ({"postgres": "postgresql:///t?hostaddr=10.0.0.3"}, "hostaddr"),
        ({"postgres": "postgresql:///t?service=prod&sslmode=verify-full"}, "service"),
        ({"postgres": "postgresql://t:[very-secret]@db.example.org/t"}, "postgres: that is no URL"),
    ],
)
def test_what_would_cross_a_network_in_the_clear_is_refused(changed: dict[str, str], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CoordinatorSettings(**changed)
    said = settings_faults(caught.value)
    assert named in said
    assert "very-secret" not in said


@pytest.mark.parametrize(
    "changed",
    [
        {"public_url": "http://127.0.0.1:8420", "nats": "nats://localhost:4222,nats://[::1]:4222"},
        {"nats": "nats://10.0.0.2:4222", "nats_ca": "ca.crt"},
        {"nats": "tls://vps.example.org,wss://vps.example.org/nats", "nats_public_url": "wss://vps.example.org"},
        {"postgres": "postgresql://t@/t?host=/var/run/postgresql"},
        {"postgres": "postgresql:///t"},
        {"postgres": "postgresql://t@:5433/t?host=/var/run/postgresql"},
        {"postgres": "postgresql://:5433/t"},
        {"artifacts_endpoint": "http://127.0.0.1:9000", "artifacts_allow_http": True},
        {"postgres": "postgresql://t@%2Fvar%2Frun%2Fpostgresql/t"},
        {"postgres": "postgresql://t:p%40w@127.0.0.1:5432/t"},
        {"postgres": "postgresql://t:p%40w@db.example.org/t?sslmode=require"},
    ],
)
def test_what_stays_here_or_is_encrypted_is_taken(changed: dict[str, str]) -> None:
    CoordinatorSettings(**changed)


def test_an_environment_that_demands_tls_of_postgres_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    CoordinatorSettings(postgres=SecretStr("postgresql://t@db.example.org/t"))


@pytest.mark.parametrize(("name", "value"), [("PGHOST", "db.example.org"), ("PGSERVICE", "prod")])
def test_where_the_environment_leads_postgres_counts(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=r"db\.example\.org is not|PGSERVICE is set"):
        CoordinatorSettings(postgres=SecretStr("postgresql:///t"))


def test_a_heartbeat_that_is_too_slow_for_its_lease_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValidationError, match=r"30.0 is not below 20.0"):
        CoordinatorSettings(lease_ttl_s=40, heartbeat_s=30)


def test_an_unknown_name_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LEASE_TTL", "5")
    with pytest.raises(ConfigurationError, match="TANDEM_LEASE_TTL"):
        CoordinatorSettings.load(None)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MAX_ATTEMPTS", "7")
    assert CoordinatorSettings.load(None).max_attempts == 7
    assert CoordinatorSettings.load(None, max_attempts=2).max_attempts == 2


S3 = {"artifacts_url": "s3://files/tandem", "artifacts_endpoint": "https://store.example:9000"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"artifacts_url": "https://store.example/files"}, "is not s3://BUCKET"),
        ({"artifacts_url": "s3:///prefix"}, "is not s3://BUCKET"),
        ({"artifacts_url": "s3://AKIA:very secret@files"}, "is not s3://BUCKET"),
        ({"artifacts_url": "s3://files?region=x"}, "is not s3://BUCKET"),
        ({"artifacts_endpoint": "http://store.example"}, "on this machine only"),
        ({"artifacts_endpoint": "store.example"}, "is not https://"),
        ({"artifacts_key_id": "AKIA"}, "go together"),
        ({"artifacts_secret_key": "very secret"}, "go together"),
    ],
)
def test_a_store_that_can_not_be_is_refused_and_no_secret_told(changed: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        CoordinatorSettings(**{**S3, **changed})
    assert "very secret" not in str(caught.value)


def test_a_folder_is_the_store_unless_a_bucket_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert isinstance(store_of(CoordinatorSettings(artifacts=tmp_path)), FolderStore)
    for name, value in {**S3, "artifacts_key_id": "AKIA", "artifacts_secret_key": "very secret"}.items():
        monkeypatch.setenv(f"TANDEM_{name.upper()}", value)
    settings = CoordinatorSettings.load(None)
    assert isinstance(store_of(settings), S3Store)
    assert "very secret" not in repr(settings)


def test_the_audit_beside_tandem_up_is_told_where_the_files_are_and_what_counts_as_broken(tmp_path: Path) -> None:
    running = CoordinatorSettings.load(
        None,
        artifacts_url="s3://bucket/prefix",
        artifacts_key_id=SecretStr("id"),
        artifacts_secret_key=SecretStr("secret"),
        quarantine_failures=7,
    )
    (tmp_path / "identities").mkdir()
    (tmp_path / "identities" / "coordinator.seed").write_text("SUA")
    connection = {
        "http": "http://127.0.0.1:1",
        "nats": "nats://127.0.0.1:2",
        "postgres": "postgres:///x",
        "tokens": {},
    }
    (tmp_path / "connection.json").write_bytes(orjson.dumps(connection))
    (tmp_path / "audit.json").write_bytes(orjson.dumps(_for_the_audit(running)))
    audited = _settings_of(tmp_path)
    assert store_of(audited)._place == store_of(running)._place
    assert audited.quarantine().failures == 7


def test_a_store_that_is_away_is_a_server_that_cant_be_reached() -> None:
    assert explain(StoreDownError("the artifact store does not answer")) == (3, "the artifact store does not answer")
