"""`tandem doctor` on a VPS: silent about what is well; each fault is named, with what to do about it."""

import asyncio
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from coordinator import doctor as doctor_module
from coordinator import init_certificates
from coordinator.doctor import Finding, examine
from coordinator.service import running
from coordinator.settings import CoordinatorSettings
from shared.bus import Bus
from shared.nkey import new_seed
from tests.support.processes import tandem, tandem_up
from tests.support.servers import QUICK_S, eventually
from tests.support.vps import Vps, free_ports, vps

HERE = {"public_url": None, "nats_public_url": None}
"""What a test has no Caddy for."""


@pytest_asyncio.fixture(loop_scope="session")
async def this(tmp_path: Path, ledger_dsn: str) -> AsyncIterator[Vps]:
    async with vps(tmp_path, ledger_dsn) as made:
        await made.nats()
        yield made


def settings_of(this: Vps, **changes: Any) -> CoordinatorSettings:
    return CoordinatorSettings.load(this.folder / "tandem.toml").model_copy(update={**HERE, **changes})


@asynccontextmanager
async def served(this: Vps) -> AsyncIterator[CoordinatorSettings]:
    """A coordinator in this process; yields once it is ready."""
    settings = settings_of(this)
    async with running(settings) as coordinator:
        await eventually(lambda: not coordinator.unready() and all(loop.rounds for loop in coordinator.loops))
        yield settings


async def faults(this: Vps, settings: CoordinatorSettings | None = None, **changes: Any) -> dict[str, Finding]:
    found = await examine(settings or settings_of(this, **changes), this.folder / "tandem.toml")
    assert all(finding.todo for finding in found if not finding.ok)
    return {finding.what: finding for finding in found if not finding.ok}


@asynccontextmanager
async def as_provisioner(this: Vps) -> AsyncIterator[Bus]:
    settings = settings_of(this)
    async with Bus(
        f"tls://localhost:{this.nats_port}",
        name="test",
        seed=settings.nats_provisioner_seed.get_secret_value() if settings.nats_provisioner_seed else None,
        inbox_prefix="_INBOX.provisioner",
        tls=doctor_tls(this),
        reconnect_delays_s=QUICK_S,
    ) as bus:
        await bus.wait_connected(10)
        yield bus


def doctor_tls(this: Vps) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(this.folder / "tls" / "ca.crt"))


async def test_a_healthy_vps_has_no_fault_and_nothing_is_left_behind(this: Vps) -> None:
    async with served(this) as settings:
        before = sorted(path for path in settings.artifacts.rglob("*") if path.is_file())
        found = await examine(settings, this.folder / "tandem.toml")
        assert [finding for finding in found if not finding.ok] == []
        looked_at = {finding.what.split()[0] for finding in found}
        assert looked_at == {
            "settings", "Postgres", "NATS", "rights", "stream", "clock", "disk",
            "artifacts", "backups", "coordinator",
        }  # fmt: skip
        assert sorted(path for path in settings.artifacts.rglob("*") if path.is_file()) == before


async def test_the_command_says_it_and_its_status_counts(this: Vps) -> None:
    config = str(this.folder / "tandem.toml")
    status, out, error = await tandem("doctor", "--config", config)
    assert (status, error) == (1, "5 to mend\n"), out + error
    assert "FAULT  stream WORK: it is not there\n       the coordinator makes it" in out
    assert "FAULT  coordinator: " in out


# ---- settings


async def test_settings_that_others_can_read(this: Vps) -> None:
    (this.folder / "tandem.toml").chmod(0o640)
    found = await faults(this)
    assert list(found) == ["settings"]
    assert found["settings"].todo == f"chmod 600 {this.folder / 'tandem.toml'}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_settings_of_another_user_stop_the_doctor_before_it_leaves_files(this: Vps) -> None:
    os.chown(this.folder / "tandem.toml", 65534, -1)
    found = await faults(this)
    assert list(found) == ["settings"]
    assert "sudo -u '#65534'" in found["settings"].todo
    assert not (this.folder / "artifacts").exists()


async def test_a_reload_that_does_not_exist(this: Vps) -> None:
    assert "no program" in (await faults(this, nats_reload=("/nowhere/reload",)))["settings"].said


async def test_an_address_to_listen_on_that_is_refused_at_the_next_start(this: Vps) -> None:
    finding = (await faults(this, http="0.0.0.0:8420"))["http"]
    assert ("without TLS" in finding.said, finding.todo) == (True, "listen on 127.0.0.1:8420")


async def test_a_folder_without_identities(this: Vps, tmp_path: Path) -> None:
    assert "no identities" in (await faults(this, nats_identities=tmp_path))["settings"].said


# ---- Postgres


async def test_postgres_that_is_away(this: Vps) -> None:
    dsn = SecretStr(f"postgresql://tandem@127.0.0.1:{free_ports(1)[0]}/tandem")
    finding = (await faults(this, postgres=dsn))["Postgres"]
    assert "systemctl start postgresql" in finding.todo


async def test_postgres_without_the_database(this: Vps) -> None:
    finding = (await faults(this, postgres=SecretStr(this.dsn.rpartition("/")[0] + "/nothing")))["Postgres"]
    assert "createdb" in finding.todo


async def test_postgres_with_a_wrong_password_that_is_not_repeated(this: Vps) -> None:
    user_and_password = this.dsn.split("//")[1].split("@")[0]
    wrong = this.dsn.replace(user_and_password, "tandem:a-wrong-one")
    finding = (await faults(this, postgres=SecretStr(wrong)))["Postgres"]
    assert "pg_hba.conf" in finding.todo
    assert "a-wrong-one" not in finding.said + finding.todo


async def test_a_schema_of_a_later_version(this: Vps) -> None:
    connection = await asyncpg.connect(this.dsn)
    await connection.execute("UPDATE alembic_version SET version_num = 'v9999'")
    await connection.close()
    assert "newer than this program" in (await faults(this))["Postgres"].said


async def test_a_role_that_may_not_make_tables(this: Vps) -> None:
    async with AsyncExitStack() as stack:
        connection = await asyncpg.connect(this.dsn)
        stack.push_async_callback(connection.close)
        await connection.execute("CREATE ROLE weak LOGIN PASSWORD 'weak'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        await connection.execute("GRANT SELECT ON alembic_version TO weak")
        try:
            user_and_password = this.dsn.split("//")[1].split("@")[0]
            found = await faults(this, postgres=SecretStr(this.dsn.replace(user_and_password, "weak:weak")))
        finally:
            await connection.execute("DROP OWNED BY weak; DROP ROLE weak")
    assert found["Postgres"].todo == "as its owner: GRANT CREATE ON SCHEMA public TO weak"


# ---- NATS, step by step


def step_of(found: dict[str, Finding]) -> str:
    (finding,) = [finding for what, finding in found.items() if what.startswith("NATS ")]
    return finding.said.split(":")[0]


async def test_a_name_that_nobody_has(this: Vps) -> None:
    assert step_of(await faults(this, nats="tls://nats.invalid:4222")) == "name"


async def test_a_port_where_nobody_listens(this: Vps) -> None:
    found = await faults(this, nats=f"tls://127.0.0.1:{free_ports(1)[0]}")
    assert step_of(found) == "TCP"
    assert not [what for what in found if what.startswith("stream")]  # nothing is said of what was not reached


async def test_another_program_on_the_port(this: Vps) -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org\r\n")
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert step_of(await faults(this, nats=f"tls://127.0.0.1:{port}")) == "TCP"


async def test_a_server_without_tls(this: Vps, servers: Any) -> None:
    url = servers.nats.url.replace("nats://", "tls://")
    assert step_of(await faults(this, nats=url)) == "TLS"


async def test_a_certificate_of_another_authority(this: Vps, tmp_path: Path) -> None:
    init_certificates.make_authority(tmp_path)
    found = await faults(this, nats_ca=tmp_path / "ca.crt")
    assert step_of(found) == "TLS"
    assert "nats_ca" in next(finding.todo for what, finding in found.items() if what.startswith("NATS "))


async def test_a_certificate_for_another_name(this: Vps) -> None:
    address = socket.gethostbyname("localhost").replace("127.0.0.1", "127.0.0.2")
    found = await faults(this, nats=f"tls://{address}:{this.nats_port}")
    assert step_of(found) == "TLS"
    assert "that the certificate is for" in next(f.todo for what, f in found.items() if what.startswith("NATS "))


async def test_a_certificate_that_ends_soon(tmp_path: Path, ledger_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        (this.folder / "tls" / "nats.crt").unlink()
        monkeypatch.setattr(init_certificates, "SERVER_FOR", timedelta(days=7))
        init_certificates.make_server(this.folder / "tls", "nats", ["localhost", "127.0.0.1"])
        await this.nats()
        found = await faults(this)
        assert "ends in 6 days" in next(f.said for what, f in found.items() if what.startswith("NATS "))


async def test_a_key_that_the_server_does_not_know_and_is_not_repeated(this: Vps) -> None:
    seed = new_seed()
    found = await faults(this, nats_seed=SecretStr(seed))
    assert step_of(found) == "key"
    assert seed not in str(found)


async def test_one_of_several_servers_that_is_down_is_named(this: Vps) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    async with served(this) as settings:
        both = settings.model_copy(update={"nats": f"{settings.nats},tls://{dead}"})
        assert list(await faults(this, both)) == [f"NATS tls://{dead}"]


async def test_rights_that_are_another_roles(this: Vps) -> None:
    settings = settings_of(this)
    found = await faults(this, nats_watcher_seed=settings.nats_seed, nats_provisioner_seed=SecretStr(new_seed()))
    assert {what for what in found if what.startswith("rights")} == {
        "rights of the watcher",
        "rights of the provisioner",
    }
    found = await faults(this, nats_seed=settings.nats_provisioner_seed)
    assert "refused" in found["rights of the coordinator"].said


# ---- streams


async def test_streams_that_are_not_there_or_not_as_they_should_be(this: Vps) -> None:
    assert {f"stream {name}" for name in ("SUBMIT", "WORK", "REPORTS", "RESULTS")} < set(await faults(this))
    async with served(this) as settings, as_provisioner(this) as bus:
        config = (await bus.api("STREAM.INFO.RESULTS"))["config"]
        await bus.api("STREAM.UPDATE.RESULTS", {**config, "max_msgs": 1000})
        found = await faults(this, settings)
        assert {what: finding.said for what, finding in found.items()} == {
            "stream RESULTS": "max_msgs differ from what this version wants"
        }
        assert "num_replicas" in (await faults(this, settings.model_copy(update={"replicas": 3})))["stream WORK"].said


async def test_a_stream_that_fills_up(this: Vps, monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator import doctor_nats  # noqa: PLC0415

    async with served(this) as settings:
        monkeypatch.setattr(doctor_nats, "_FULL", 0.0)
        found = await faults(this, settings)
        assert "0% full" in found["stream WORK"].said


# ---- this machine


async def test_clocks_that_differ() -> None:
    finding = await doctor_module._clock({"Postgres": datetime.now(UTC) - timedelta(seconds=30), "NATS": None})
    assert (finding.ok, finding.said) == (False, "this machine and Postgres differ by 30.0 s")


async def test_a_clock_that_the_network_does_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "timedatectl"
    program.write_text("#!/bin/sh\necho no\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    finding = await doctor_module._clock({"Postgres": datetime.now(UTC), "NATS": None})
    assert (finding.ok, finding.todo) == (False, "timedatectl set-ntp true")


async def test_a_disk_that_is_nearly_full(this: Vps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "_LEAST_FREE_BYTES", 2**60)
    assert "GiB free" in (await faults(this))["disk"].said


def test_a_disk_is_called_by_the_folder_where_it_begins(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    settings = CoordinatorSettings(secrets=tmp_path / "secrets", artifacts=tmp_path / "none" / "artifacts")
    (finding,) = doctor_module._disk(settings)
    assert Path(finding.said.partition(": ")[0]).is_mount()


async def test_artifacts_that_cant_be_written(this: Vps, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "owner and rights" in (await faults(this, artifacts=tmp_path / "file" / "artifacts"))["artifacts"].todo


async def test_backups_that_fail_are_noticed(this: Vps) -> None:
    (finding,) = doctor_module._backups(settings_of(this))
    assert (finding.ok, "none in" in finding.said) == (True, True)  # of a VPS that was just made
    long_ago = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    os.utime(this.folder / "init.json", (long_ago, long_ago))
    assert "tandem-backup.timer" in (await faults(this))["backups"].todo
    old, new = (this.folder / "backups" / f"tandem-{name}.tar" for name in ("old", "new"))
    old.touch()
    os.utime(old, (long_ago, long_ago))
    assert "tandem-old.tar, is 3.0 days old" in (await faults(this))["backups"].said
    new.touch()
    assert "backups" not in await faults(this)


async def test_a_public_address_with_a_certificate_of_our_own_authority(this: Vps) -> None:
    tls = this.folder / "tls"
    port = free_ports(1)[0]
    url = f"https://localhost:{port}"
    ours: dict[str, Any] = {"https": f"127.0.0.1:{port}", "https_cert": tls / "nats.crt", "https_key": tls / "nats.key"}
    async with running(settings_of(this, public_url=url, **ours)) as coordinator:
        await eventually(lambda: not coordinator.unready() and all(loop.rounds for loop in coordinator.loops))
        assert await faults(this, public_url=url, **ours) == {}


async def test_the_folder_of_a_tandem_up_has_a_doctor_too() -> None:
    data = Path(tempfile.mkdtemp(prefix="tandem-test-"))  # as root, Postgres's user must get there
    try:
        async with tandem_up(data / "up"):
            status, out, error = await tandem("doctor", "--data", str(data / "up"))
            (data / "here").mkdir()
            (data / "here" / "data").symlink_to(data / "up")
            plain = await tandem("doctor", cwd=data / "here")  # as `tandem jobs` finds it
            schema = await tandem("migrate", "--check", cwd=data / "here")
        assert [(plain[0], schema[0]), plain[1]] == [(0, 0), out.replace(str(data / "up"), "data")]
        assert (status, "FAULT" in out) == (0, False), out + error
        assert "ok     coordinator: " in out
        assert "ok     stream WORK: " in out
        status, _, error = await tandem("doctor", "--data", str(data / "up"))
        assert (status, "no tandem up runs" in error) == (3, True), error
    finally:
        shutil.rmtree(data)


async def test_a_public_address_that_leads_nowhere(this: Vps) -> None:
    async with served(this) as settings:
        found = await faults(this, settings.model_copy(update={"public_url": f"https://localhost:{free_ports(1)[0]}"}))
        assert list(found) == ["public_url"]
        assert "Caddy" in found["public_url"].todo
