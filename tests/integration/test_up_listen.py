"""`tandem up --listen`: other machines come by TLS, with certificates that the folder makes; nothing else is open."""

import asyncio
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import psutil
import pytest
import pytest_asyncio

from coordinator import init_certificates
from coordinator.up_beyond import host_for, last_name, listen_beyond
from shared.client import Client
from shared.errors import ConfigurationError
from shared.states import JobState
from tests.enrolment.test_enrolment import ended, join, running_agent
from tests.support.processes import UpProcess, tandem, tandem_up
from tests.support.world import eventually_async

LISTEN = ("--listen", "localhost:0")


@pytest.fixture(scope="module", name="folder")
def a_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    yield folder / "data"
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up(folder: Path) -> AsyncIterator[UpProcess]:
    async with tandem_up(folder, *LISTEN, "--agents", "1", TANDEM_PRESENCE_S="1") as running:
        yield running


async def line_for(up: UpProcess, worker: str) -> str:
    status, out, error = await tandem("workers", "invite", worker, "--data", str(up.data))
    assert status == 0, error
    assert "in the clear" not in error
    return out.split("'")[1]


def trusting(up: UpProcess) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(up.data / "tls" / "ca.crt"))


async def test_a_mac_joins_by_the_line_alone_and_works(up: UpProcess, tmp_path: Path) -> None:
    line = await line_for(up, "mini")
    assert line.startswith("https://localhost:")
    status, said = await join(line, tmp_path, "--executor", "sketch", "--set", f"data={tmp_path / 'agent'}")
    assert status == 0, said
    agent = await running_agent(tmp_path)
    try:
        async with Client(up.connection["http"], up.connection["tokens"]["admin"]) as admin:

            async def both() -> bool:
                return {one.name for one in await admin.workers() if one.present} == {"agent-1", "mini"}

            await eventually_async(both)
            await admin.order("agent-1", "pause")
            sent = await admin.submit({"kind": "image", "spec": {"prompt": "A boat"}})
            job = await admin.wait(sent.id)
            assert (job.state, job.attempts[-1].worker) == (JobState.COMPLETED, "mini")
            (file,) = job.artifacts  # it was uploaded by TLS, with the authority that the line brought
            assert file.size
            await admin.order("agent-1", "resume")
    finally:
        await ended(agent)


async def test_the_folders_own_agent_works(up: UpProcess) -> None:
    async with Client(up.connection["http"], up.connection["tokens"]["publisher"]) as client:
        sent = await client.submit({"kind": "image", "spec": {"prompt": "A boat"}})
        assert (await client.wait(sent.id)).state is JobState.COMPLETED


async def test_other_machines_get_https_and_must_log_in(up: UpProcess) -> None:
    url = (await line_for(up, "book")).partition("/join/")[0]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(url)
        async with session.get(f"{url}/v1/jobs", ssl=trusting(up)) as answer:
            assert answer.status == 401
        token = up.connection["tokens"]["viewer"]
        async with session.get(
            f"{url}/v1/jobs", ssl=trusting(up), headers={"Authorization": f"Bearer {token}"}
        ) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await session.get(url.replace("https:", "http:"))


async def test_a_command_line_elsewhere_is_told_how_to_trust_it(up: UpProcess) -> None:
    url = (await line_for(up, "far")).partition("/join/")[0]
    where = {"TANDEM_URL": url, "TANDEM_TOKEN": up.connection["tokens"]["admin"]}
    status, _, error = await tandem("workers", **where)
    assert (status, error.count("\n")) == (3, 1)
    assert f"can't reach {url}: its certificate: " in error
    assert "set SSL_CERT_FILE to its tls/ca.crt" in error
    status, _, error = await tandem("workers", **where, SSL_CERT_FILE=str(up.data / "tls" / "ca.crt"))
    assert status == 0, error
    wrong = {**where, "TANDEM_URL": url.replace("localhost", "127.0.0.2")}
    status, _, error = await tandem("workers", **wrong, SSL_CERT_FILE=str(up.data / "tls" / "ca.crt"))
    assert (status, "SSL_CERT_FILE" in error) == (3, False)


async def test_nats_speaks_nothing_but_tls(up: UpProcess) -> None:
    assert up.connection["nats"].startswith("tls://127.0.0.1:")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(up.connection["nats"].rpartition(":")[2]))
    assert b'"tls_required":true' in await reader.readline()
    writer.write(b"CONNECT {}\r\nPING\r\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(65536)
    writer.close()


async def test_audit_and_backup_find_their_way(up: UpProcess, tmp_path: Path) -> None:
    status, out, error = await tandem("audit", "--data", str(up.data))
    assert status == 0, out + error
    status, out, error = await tandem("backup", str(tmp_path / "one.tar"), "--data", str(up.data))
    assert status == 0, error
    new = up.data.parent / "new"
    status, out, error = await tandem("restore", str(tmp_path / "one.tar"), "--data", str(new))
    assert status == 0, error
    assert f"next: tandem up --data {new} --listen localhost\n" in out  # without it Macs would stay out
    for name in ("ca.crt", "ca.key"):  # else every Mac would have to join again
        assert (new / "tls" / name).read_bytes() == (up.data / "tls" / name).read_bytes()


async def test_nothing_but_loopback_is_open_without_it(folder: Path, up: UpProcess) -> None:
    listening = {
        one.laddr.ip
        for process in (psutil.Process(up.process.pid), *up.children())
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}  # --listen localhost
    for flags in (("--http", "0.0.0.0:0"), ("--nats", "0.0.0.0:0")):
        status, _, error = await tandem("up", "--data", str(folder.parent / "other"), *flags)
        assert status == 2
        assert "--listen NAME serves others, by TLS" in error


def test_the_name_that_was_given_last_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_name(tmp_path) is None
    for days, name in enumerate(("old.example.org", "studio.local", "2001:db8::7")):
        with monkeypatch.context() as later:
            later.setattr(init_certificates, "SERVER_FOR", timedelta(days=1000 + days))
            listen_beyond(name, tmp_path)
        assert last_name(tmp_path) == name


def test_a_name_is_needed_not_an_address_of_everything(tmp_path: Path) -> None:
    for text in ("0.0.0.0", "::", "", "mini:local", "mini.local:99999", "mini_local", "https://mini.local"):
        with pytest.raises(ConfigurationError, match="--listen"):
            listen_beyond(text, tmp_path)
    assert (host_for("mini.local"), host_for("localhost:1")) == ("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("mini.local", "https://mini.local:8443"),
        ("Mini.Local:9443", "https://mini.local:9443"),
        ("192.0.2.7", "https://192.0.2.7:8443"),
        ("2001:db8::7", "https://[2001:db8::7]:8443"),
        ("[2001:db8::7]:9443", "https://[2001:db8::7]:9443"),
    ],
)
def test_how_others_reach_it(tmp_path: Path, text: str, url: str) -> None:
    assert listen_beyond(text, tmp_path).url == url


def test_a_certificate_is_made_anew_before_it_ends_by_the_same_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = listen_beyond("mini.local", tmp_path)
    authority, cert = first.ca.read_bytes(), first.pair[0].read_bytes()
    assert listen_beyond("mini.local", tmp_path).pair[0].read_bytes() == cert
    monkeypatch.setattr(init_certificates, "SERVER_FOR", timedelta(days=59))
    first.pair[0].unlink()
    listen_beyond("mini.local", tmp_path)
    soon = first.pair[0].read_bytes()
    monkeypatch.undo()
    renewed = listen_beyond("mini.local", tmp_path).pair[0].read_bytes()
    assert renewed != soon
    ends = init_certificates.ends_at(ssl.PEM_cert_to_DER_cert(renewed.decode()))
    assert ends > datetime.now(UTC) + timedelta(days=1000)
    assert first.ca.read_bytes() == authority
