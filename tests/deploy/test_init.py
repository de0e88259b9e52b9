"""`tandem init` makes a VPS's configuration: fresh secrets, nothing overwritten, and all of it works together."""

import asyncio
import ipaddress
import json
import os
import pwd
import shlex
import ssl
import tomllib
from pathlib import Path

import aiohttp
import asyncpg
import psutil
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from coordinator.cli import app, explain
from coordinator.init import Answers, Programs, initialise
from coordinator.settings import CoordinatorSettings
from shared.bus import Bus, BusDown
from shared.errors import ConfigurationError
from shared.states import JobState
from tests.support.processes import clean_environment, tandem
from tests.support.servers import QUICK_S
from tests.support.vps import AGENT, CADDY, READY_S, Vps, private, unit_of, vps
from tests.support.world import eventually_async

ME = pwd.getpwuid(os.geteuid()).pw_name
WRITTEN = [
    "Caddyfile",
    "admin.env",
    "nats-server.conf",
    "nats.conf",
    "systemd/tandem-backup.service",
    "systemd/tandem-backup.timer",
    "systemd/tandem-coordinator.service",
    "systemd/tandem-nats.service",
    "tandem.toml",
]
CERTIFICATES = ["tls/ca.crt", "tls/ca.key", "tls/nats.crt", "tls/nats.key"]  # fmt: skip


def init(folder: Path, *flags: str) -> tuple[int, str]:
    """Run the command in this process; return its exit status and all that it said."""
    result = CliRunner().invoke(app, ["init", str(folder), *flags])
    if result.exception is None or isinstance(result.exception, SystemExit):
        return result.exit_code, result.output
    told = explain(result.exception)
    assert told is not None, result.exception
    return told


def made(folder: Path, *flags: str) -> str:
    status, said = init(folder, *flags)
    assert status == 0, said
    return said


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- the files


def test_everything_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    said = made(folder, "--host", "vps.example.org", "--user", ME)
    assert sorted(line.split()[1] for line in said.splitlines() if line.startswith("written")) == sorted(
        str(folder / name) for name in WRITTEN + CERTIFICATES
    )
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if not private(path)] == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_settings_are_settings(tmp_path: Path) -> None:
    made(tmp_path / "t", "--host", "vps.example.org")
    settings = CoordinatorSettings.load(tmp_path / "t" / "tandem.toml")
    assert settings.public_url == "https://vps.example.org"
    assert settings.nats_public_url == "tls://vps.example.org:4222,wss://vps.example.org/nats"
    assert settings.http == "127.0.0.1:8420"


def test_no_secret_is_in_what_goes_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    made(folder, "--host", "vps.example.org")
    table = tomllib.loads((folder / "tandem.toml").read_text())
    secrets = [table[name] for name in table if name.endswith("_seed")] + list(table["tokens"].values())
    assert len(secrets) == 4
    for path in (folder / "Caddyfile", *(folder / "systemd").iterdir(), folder / "nats-server.conf"):
        assert not [secret for secret in secrets if secret in path.read_text()]


def test_secrets_are_fresh_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(tmp_path / name, "--host", "vps.example.org")
    one, two = ((tmp_path / name) for name in ("one", "two"))
    for name in ("admin.env", "identities/coordinator.seed", "tls/ca.key", "tls/nats.key"):
        assert (one / name).read_bytes() != (two / name).read_bytes(), name


def test_a_second_run_changes_nothing_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    made(folder, "--host", "vps.example.org")
    before = contents(folder)
    said = made(folder)
    assert "nothing was overwritten" in said
    assert contents(folder) == before


def test_a_certificate_that_is_made_anew_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    made(folder, "--host", "vps.example.org")
    (folder / "tls" / "nats.crt").unlink()
    said = made(folder)
    written = [line.split()[1] for line in said.splitlines() if line.startswith("written")]
    assert written == [str(folder / "tls" / name) for name in ("nats.crt", "nats.key")]
    assert "everything was there already" not in said


@pytest.mark.parametrize("line", ["keep_jobs_s = 0", 'log_level = "debug"'])
def test_a_setting_below_the_tokens_is_told_where_it_belongs(tmp_path: Path, line: str) -> None:
    made(tmp_path / "t", "--host", "vps.example.org")
    path = tmp_path / "t" / "tandem.toml"
    text = path.read_text()
    path.write_text(f"{text}{line}\n")
    with pytest.raises(ValidationError) as caught:
        CoordinatorSettings.load(path)
    name = line.split(maxsplit=1)[0]
    assert explain(caught.value) == (2, f"{name} stands below [tokens], and is a setting: put it above [tokens]")
    before, mark, after = text.partition("# Settings go above this line")
    assert mark
    path.write_text(f"{before}{line}\n{mark}{after}")
    CoordinatorSettings.load(path)


def test_what_was_edited_stays_and_the_other_version_lies_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    made(folder, "--host", "vps.example.org")
    path = folder / "tandem.toml"
    original = path.read_text()
    path.write_text(original.replace("replicas = 1", "replicas = 3"))
    assert f"kept      {path}; what this version would write is in tandem.toml.new" in made(folder)
    assert "replicas = 3" in path.read_text()
    assert (folder / "tandem.toml.new").read_text() == original
    assert private(folder / "tandem.toml.new")
    path.write_text(original)
    made(folder)
    assert not (folder / "tandem.toml.new").exists()


def test_what_was_lost_is_made_again_from_the_same_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    made(folder, "--host", "vps.example.org")
    before = contents(folder)
    for name in WRITTEN:
        (folder / name).unlink()
    made(folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "which host?"),
        (("--host", "https://vps.example.org"), "not a host's name"),
        (("--host", "VPS.example.org"), "not a host's name"),
        (("--host", "vps.example.org", "--user", "somebody"), "run: sudo -u somebody tandem"),
    ],
)
def test_what_cant_be_is_said_and_nothing_written(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    status, error = init(tmp_path / "t", *flags)
    assert status == 2
    assert said in error
    assert not (tmp_path / "t").exists()


def test_a_folder_of_something_else_or_of_another_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("mine")
    status, error = init(tmp_path / "other", "--host", "vps.example.org")
    assert (status, "not of `tandem init`" in error) == (2, True)
    assert contents(tmp_path / "other") == {"mine": b"mine"}

    made(tmp_path / "t", "--host", "vps.example.org")
    before = contents(tmp_path / "t")
    status, error = init(tmp_path / "t", "--host", "another.example.org")
    assert (status, "was made for host vps.example.org" in error) == (2, True)
    assert contents(tmp_path / "t") == before


def test_a_path_or_a_user_that_could_break_a_file_is_refused(tmp_path: Path) -> None:
    status, error = init(tmp_path / 'a "b', "--host", "vps.example.org")
    assert (status, "letters, digits" in error) == (2, True)
    programs = Programs(tandem=Path("/bin/true"), nats_server=Path("/bin/true"))
    with pytest.raises(ConfigurationError, match="not a user's name"):
        initialise(tmp_path / "t", Answers(host="vps.example.org", user="tan dem"), programs)
    assert not (tmp_path / "t").exists()


async def test_only_the_services_user_may_write(tmp_path: Path) -> None:
    """What another wrote, root too, the units could not read: the command is told that would have been right."""
    status, _, error = await tandem("init", str(tmp_path / "t"), "--host", "vps.example.org", "--user", "somebody")
    again = f"sudo -u somebody tandem init {tmp_path / 't'} --host vps.example.org --user somebody"
    assert (status, error.strip().endswith(again)) == (2, True), error
    made(tmp_path / "t", "--host", "vps.example.org")
    answers = tmp_path / "t" / "init.json"
    answers.write_text(answers.read_text().replace(f'"{ME}"', '"somebody"'))
    before = contents(tmp_path / "t")
    status, error = init(tmp_path / "t")
    assert (status, "run as somebody and could not read" in error) == (2, True), error
    assert contents(tmp_path / "t") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_does_not_write_into_a_folder_of_somebody_else(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    (tmp_path / "new").mkdir()
    made(tmp_path / "known", "--host", "vps.example.org")
    for name in ("new", "known"):
        before = contents(tmp_path / name)
        os.chown(tmp_path / name, nobody, -1)
        status, error = init(tmp_path / name, "--host", "vps.example.org")
        assert (status, "sudo -u nobody tandem" in error or f"chown -R {ME}: " in error) == (2, True), error
        assert contents(tmp_path / name) == before


# ---- what they make, together


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float':DeprecationWarning")  # nats-py of aiohttp
async def test_nats_speaks_tls_only_and_its_certificate_is_the_authoritys(tmp_path: Path, ledger_dsn: str) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        await this.nats()
        seed = (this.folder / "identities" / "coordinator.seed").read_text().strip()
        trusted = ssl.create_default_context(cafile=str(this.folder / "tls" / "ca.crt"))
        for scheme, port, tls, wanted in (
            ("tls", this.nats_port, trusted, True),
            ("tls", this.nats_port, ssl.create_default_context(), False),
            ("ws", this.websocket_port, None, True),  # as Caddy comes, on this machine
            ("ws", this.websocket_port, trusted, False),  # which has no TLS to hold against a certificate
        ):
            async with Bus(
                f"{scheme}://localhost:{port}",
                name="tandem-coordinator",
                seed=seed,
                inbox_prefix="_INBOX.coordinator",
                tls=tls,
                reconnect_delays_s=QUICK_S,
            ) as bus:
                if wanted:
                    await bus.wait_connected(10)
                    await bus.flush()
                else:
                    with pytest.raises(BusDown):
                        await bus.wait_connected(0.5)


async def test_only_nats_with_tls_is_reached_from_outside(tmp_path: Path, ledger_dsn: str) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        programs = [await this.nats(), await this.coordinator()]
        heard = {
            (one.laddr.port, ipaddress.ip_address(one.laddr.ip).is_loopback)
            for program in programs
            for one in psutil.Process(program.pid).net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        }
        assert heard == {(this.nats_port, False), (this.websocket_port, True), (this.http_port, True)}


async def test_the_backup_of_the_unit_is_made_where_it_says(tmp_path: Path, ledger_dsn: str) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        await this.nats()
        await this.coordinator()
        unit = unit_of(this.folder / "systemd" / "tandem-backup.service")["Service"]
        old = Path(unit["WorkingDirectory"]) / "tandem-20200101-000000.tar"
        old.write_text("")
        os.utime(old, (0, 0))
        for command in (unit["ExecStart"], unit["ExecStartPost"]):
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command), cwd=unit["WorkingDirectory"], env=clean_environment()
            )
            async with asyncio.timeout(READY_S):
                assert await process.wait() == 0
        (made,) = (this.folder / "backups").iterdir()
        assert private(made)


async def test_coordinator_and_agent_work_on_what_was_written(tmp_path: Path, ledger_dsn: str) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        await this.nats()
        url = f"http://127.0.0.1:{this.http_port}"
        await this.coordinator(TANDEM_PUBLIC_URL=url)
        folder, _ = await this.agent("mini")
        this.run("mini", [*AGENT, "run", "--config", str(folder / "agent.toml")])
        await works(this, url, None, "mini")
        assert await this.tandem("audit", "--config", str(this.folder / "tandem.toml")) == ""


@pytest.mark.skipif(CADDY is None, reason="needs caddy (.ci/packages installs it)")
@pytest.mark.parametrize("way", ["tls", "wss"])
async def test_a_mac_joins_through_caddy_and_works_over(tmp_path: Path, ledger_dsn: str, way: str) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        await this.nats()
        await this.coordinator()
        await this.caddy()
        folder, _ = await this.agent("mini", "--ca-file", str(this.authority))
        settings = tomllib.loads((folder / "agent.toml").read_text())
        direct, through_caddy = settings["nats"].split(",")
        nats = direct if way == "tls" else through_caddy
        assert nats.startswith(f"{way}://")
        this.run("mini", [*AGENT, "run", "--config", str(folder / "agent.toml")], TANDEM_AGENT_NATS=nats)
        trusted = ssl.create_default_context(cafile=str(this.authority))
        await works(this, this.url, trusted, "mini")


@pytest.mark.skipif(CADDY is None, reason="needs caddy (.ci/packages installs it)")
async def test_a_mac_whose_network_blocks_nats_gets_there_by_itself(tmp_path: Path, ledger_dsn: str) -> None:
    async with vps(tmp_path, ledger_dsn) as this:
        await this.nats()
        await this.coordinator()
        await this.caddy()
        folder, _ = await this.agent("mini", "--ca-file", str(this.authority))
        told = tomllib.loads((folder / "agent.toml").read_text())["nats"]
        blocked = told.replace(f":{this.nats_port}", ":1")
        assert blocked != told
        this.run("mini", [*AGENT, "run", "--config", str(folder / "agent.toml")], TANDEM_AGENT_NATS=blocked)
        await works(this, this.url, ssl.create_default_context(cafile=str(this.authority)), "mini")


async def works(this: Vps, url: str, tls: ssl.SSLContext | None, worker: str) -> None:
    """See an article and a picture made, and the picture come back."""
    headers = {"Authorization": f"Bearer {this.token}"}
    timeout = aiohttp.ClientTimeout(total=READY_S)
    connector = aiohttp.TCPConnector(ssl=tls or True)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout, connector=connector) as http:
        for kind in ("article", "image"):
            body = {"kind": kind, "spec": {"prompt": "A walk along the harbour"}}
            async with http.post("/v1/jobs", json=body) as answer:
                assert answer.status == 201, await answer.text()
                job_id = (await answer.json())["id"]
            job: dict[str, object] = {}

            async def completed(job_id: str = job_id, job: dict[str, object] = job) -> bool:
                async with http.get(f"/v1/jobs/{job_id}") as answer:
                    job.update(await answer.json())
                assert job["state"] not in ("failed", "canceled"), json.dumps(job)
                return job["state"] == JobState.COMPLETED

            await eventually_async(completed, within_s=READY_S)
            assert job["worker"] == worker
        async with http.get(f"/v1/jobs/{job_id}/artifacts/image-1.png") as answer:
            assert (await answer.read()).startswith(b"\x89PNG")


async def test_peer_login_is_what_postgres_is_asked_for(tmp_path: Path) -> None:
    """The DSN of Debian's socket is one that asyncpg understands: it looks for that socket."""
    made(tmp_path / "t", "--host", "vps.example.org")
    dsn = tomllib.loads((tmp_path / "t" / "tandem.toml").read_text())["postgres"]
    with pytest.raises(FileNotFoundError) as raised:
        await asyncpg.connect(dsn.replace("/var/run/postgresql", str(tmp_path / "none")), timeout=5)
    assert str(tmp_path / "none") in str(raised.value) or raised.value.errno == 2
