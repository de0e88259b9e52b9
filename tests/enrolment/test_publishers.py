"""A publisher gets a key for NATS, submits and hears its own results with it, and is cut off at a word."""

import asyncio
import contextlib
import json
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from aiohttp import web
from pydantic import SecretStr

from coordinator import nats_users
from coordinator.admin_client import AdminClient
from coordinator.identities import publishers_in
from coordinator.nats_users import LOCAL_SOURCE, NotReloadedError, OwnServer
from coordinator.service import Coordinator, running
from coordinator.settings import CoordinatorSettings
from coordinator.up import SOURCE
from shared.bus import Bus, BusDown
from shared.client import Client, RefusedRequestError
from shared.nkey import new_seed, public_key
from tests.support.processes import UpProcess, tandem, tandem_up
from tests.support.servers import QUICK_S, TandemServers, eventually, own_servers

ARTICLE = {"kind": "article", "spec": {"prompt": "A walk"}}
WAIT_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up() -> AsyncIterator[UpProcess]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    async with tandem_up(folder / "data") as running_up:
        yield running_up
    shutil.rmtree(folder, ignore_errors=True)


def bus_of(url: str, source: str, seed: str) -> Bus:
    return Bus(
        url,
        seed=seed,
        name=f"publisher-{source}-test",
        inbox_prefix=f"_INBOX.{source}",
        js_prefix="JSJ.API",
        reconnect_delays_s=QUICK_S,
    )


async def is_let_in(url: str, source: str, seed: str) -> bool:
    async with bus_of(url, source, seed) as bus:
        try:
            await bus.wait_connected(2.0)
        except BusDown:
            return False
    return True


async def first_result(client: Client) -> UUID:
    async with asyncio.timeout(WAIT_S), contextlib.aclosing(client.results()) as results:
        async for result in results:
            return result.job_id
    raise AssertionError


async def heard_for(seconds: float, client: Client) -> set[UUID]:
    heard = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), contextlib.aclosing(client.results()) as results:
            async for result in results:
                heard.add(result.job_id)
    return heard


async def has_consumer(url: str, source: str, seed: str) -> bool:
    """Say whether a publisher's results wait for it: without its consumer nobody answers."""
    async with bus_of(url, source, seed) as bus:
        await bus.wait_connected(10)
        return await bus.pull_one("RESULTS", f"results-{source}", expires_s=1.0) is None


async def test_a_publisher_is_added_works_and_is_cut_off(tmp_path: Path) -> None:
    data = tmp_path / "data"
    here = ("--data", str(data))
    seed_file = tmp_path / "shop.seed"
    async with tandem_up(data, "--agents", "1") as up:
        status, out, said = await tandem("publishers", "add", "blog", *here)
        assert status == 0, said
        blog = out.strip()
        assert f"blog connects to {up.connection['nats']} with {public_key(blog)}" in said
        status, out, said = await tandem("publishers", "add", "shop", "--seed-file", str(seed_file), *here)
        assert (status, out) == (0, ""), said
        assert stat.S_IMODE(seed_file.stat().st_mode) == 0o600
        shop = seed_file.read_text().strip()
        assert shop not in said
        assert [path.name for path in sorted((data / "identities" / "publishers").iterdir())] == [
            "blog.pub",
            "local.seed",
            "shop.pub",
        ]
        nats = up.connection["nats"]
        assert await has_consumer(nats, "blog", blog)

        async with (
            Client(nats, source="blog", seed=blog) as ours,
            Client(nats, source="shop", seed=shop) as theirs,
        ):
            sent = {client: (await client.submit(ARTICLE)).id for client in (theirs, ours)}
            assert await first_result(theirs) == sent[theirs]
            assert await first_result(ours) == sent[ours]
            assert await heard_for(2.0, ours) == {sent[ours]}  # again, since the loop was left; and no other's
    async with tandem_up(data) as up:
        nats = up.connection["nats"]
        status, out, _ = await tandem("publishers", "list", *here)
        assert [line.split() for line in out.splitlines()] == [
            ["name", "public", "key"],
            ["blog", public_key(blog)],
            ["local", public_key(up.connection["nkeys"]["publisher"]["seed"])],
            ["shop", public_key(shop)],
        ]
        async with bus_of(nats, "blog", blog) as ours, bus_of(nats, "shop", shop) as theirs:
            await asyncio.gather(ours.wait_connected(10), theirs.wait_connected(10))
            status, out, said = await tandem("publishers", "revoke", "blog", *here)
            assert (status, out) == (0, "blog revoked\n"), said
            await eventually(lambda: not ours.connected, within_s=10)
            assert theirs.connections == 1
        assert not await is_let_in(nats, "blog", blog)
        assert await is_let_in(nats, "shop", shop)
        status, _, said = await tandem("publishers", "revoke", "blog", *here)
        assert (status, said) == (1, "tandem: no publisher blog has a key\n")


async def test_a_key_is_replaced_only_by_somebody_who_says_so(up: UpProcess) -> None:
    nats, old, new = up.connection["nats"], new_seed(), new_seed()
    async with AdminClient(up.connection["http"], up.connection["tokens"]["admin"]) as admin:
        for _ in range(2):  # the answer was lost
            await admin.add_publisher("twice", public_key(old), replace=False)
        with pytest.raises(RefusedRequestError, match=r"revoke it first, or replace it \(--replace\)"):
            await admin.add_publisher("twice", public_key(new), replace=False)
        assert await is_let_in(nats, "twice", old)

        await admin.add_publisher("twice", public_key(new), replace=True)

        assert (await is_let_in(nats, "twice", old), await is_let_in(nats, "twice", new)) == (False, True)


async def test_what_nats_could_not_live_with_is_refused(up: UpProcess) -> None:
    """A server refuses all of its users when two have one key; and the next start makes `local` a key of its own."""
    key = public_key(new_seed())
    async with AdminClient(up.connection["http"], up.connection["tokens"]["admin"]) as admin:
        await admin.add_publisher("first", key, replace=False)
        for source, given, status in (
            ("second", key, 409),
            ("second", public_key((up.data / "identities" / "coordinator.seed").read_text()), 409),
            (LOCAL_SOURCE, public_key(new_seed()), 409),
            ("second", "U" + "A" * 55, 422),
            ("second", new_seed(), 422),
            ("Second", public_key(new_seed()), 422),
        ):
            with pytest.raises(RefusedRequestError) as refused:
                await admin.add_publisher(source, given, replace=True)
            assert refused.value.status == status
            assert given[:2] != "SU" or given not in str(refused.value)
        assert "second" not in {one["source"] for one in await admin.publishers()}
    assert LOCAL_SOURCE == SOURCE


async def test_only_an_administrator_adds_lists_and_revokes(up: UpProcess) -> None:
    for role in ("viewer", "publisher"):
        async with AdminClient(up.connection["http"], up.connection["tokens"][role]) as client:
            for call in (
                client.publishers(),
                client.add_publisher("blog", public_key(new_seed()), replace=False),
                client.revoke_publisher("local"),
            ):
                with pytest.raises(RefusedRequestError, match="does not allow") as refused:
                    await call
                assert refused.value.status == 403


async def test_usage(up: UpProcess, tmp_path: Path) -> None:
    here = ("--data", str(up.data))
    seed_file = tmp_path / "x.seed"
    seed_file.write_text("mine")
    for arguments, word in (
        (("publishers", "add", "A B"), "NAME"),
        (("publishers", "revoke", "A B"), "NAME"),
        (("publishers", "add", "x", "--seed-file", str(seed_file)), "is there already"),
        (("publishers", "add", "x", "--seed-file", str(tmp_path / "no" / "x.seed")), "No such file"),
        (("publishers", "add", "x", "--seed-file", "y", "--public-key", "U"), "either"),
        (("workers", "invite", "A B"), "WORKER"),
        (("workers", "revoke", "A B"), "WORKER"),
    ):
        status, _, said = await tandem(*arguments, *here)
        assert (status, word in said) == (2, True), said
    assert seed_file.read_text() == "mine"

    status, _, said = await tandem("publishers", "add", LOCAL_SOURCE, "--seed-file", str(tmp_path / "y"), *here)
    assert (status, "connection.json" in said, (tmp_path / "y").exists()) == (1, True, False)
    status, out, said = await tandem("publishers", "add", "x", "--json", *here)
    told = json.loads(out)
    assert (told["public_key"], said) == (public_key(told["seed"]), "")
    key = public_key(new_seed())
    status, out, said = await tandem("publishers", "add", "y", "--public-key", key, *here)
    assert (status, out, said) == (0, "", f"y connects to {up.connection['nats']} with {key}\n")


@pytest.mark.parametrize(("status", "is_kept"), [(503, True), (409, False)])
async def test_a_seed_is_dropped_only_if_its_key_is_surely_unknown(
    tmp_path: Path,
    status: int,
    is_kept: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    shown: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        shown.append((await request.json())["public_key"])
        return web.json_response({"error": {"code": "x", "message": "no", "faults": []}}, status=status)

    app = web.Application()
    app.router.add_put("/v1/publishers/blog", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        for flags in ((), ("--seed-file", str(tmp_path / "blog.seed"))):
            exit_status, out, error = await tandem("publishers", "add", "blog", *flags, "--url", url, "--token", "t")
            assert exit_status == 1, error
            seed = (tmp_path / "blog.seed").read_text() if flags and is_kept else out
            assert (public_key(seed) == shown[-1]) if is_kept else (seed == "")
            assert (f"tandem publishers add blog --replace --public-key {shown[-1]}" in error) is is_kept
        assert (tmp_path / "blog.seed").exists() is is_kept
    finally:
        await runner.cleanup()


async def test_a_worker_that_nobody_has_is_not_called_revoked(up: UpProcess) -> None:
    status, out, said = await tandem("workers", "revoke", "nosuch", "--data", str(up.data))
    assert (status, out, said) == (1, "", "tandem: nosuch is not enrolled, and has no open line\n")


# ---- a server of one's own


def settings_of(servers: TandemServers, folder: Path) -> CoordinatorSettings:
    nats, identities = servers.nats, servers.nats.identities
    assert servers.postgres is not None
    return CoordinatorSettings(
        postgres=SecretStr(servers.postgres.dsn),
        nats=nats.url,
        nats_seed=SecretStr(identities.coordinator),
        nats_provisioner_seed=SecretStr(identities.provisioner),
        nats_identities=nats.folder,
        nats_reload=("kill", "-HUP", str(nats.pid)),
        nats_public_url="tls://tandem.example.org:4222",
        http="127.0.0.1:0",
        artifacts=folder / "artifacts",
        secrets=folder / "secrets",
    )


async def ready(coordinator: Coordinator) -> None:
    await eventually(lambda: not coordinator.unready())


async def test_with_servers_of_ones_own(tmp_path: Path) -> None:
    async with own_servers(postgres=True) as servers:
        settings, url, seed = settings_of(servers, tmp_path), servers.nats.url, new_seed()
        async with running(settings) as coordinator:
            await ready(coordinator)
            async with AdminClient(coordinator.url) as admin:
                made = await admin.add_publisher("blog", public_key(seed), replace=False)
                assert made["nats"] == "tls://tandem.example.org:4222"
                assert await has_consumer(url, "blog", seed)
                async with Client(url, source="blog", seed=seed) as client:
                    sent = await client.submit(ARTICLE)
                    await admin_cancels(admin, sent.id)
                    assert await first_result(client) == sent.id
        async with servers.open("provisioner") as provisioner:
            await provisioner.api("CONSUMER.DELETE.RESULTS.results-blog")
        async with running(settings) as coordinator:
            await ready(coordinator)
            assert await exists(servers, "results-blog")  # the folder tells whose are made at a start
            async with AdminClient(coordinator.url) as admin, bus_of(url, "blog", seed) as bus:
                await bus.wait_connected(10)
                await admin.revoke_publisher("blog")
                await eventually(lambda: not bus.connected, within_s=10)
                assert await admin.publishers() == []
            assert not await is_let_in(url, "blog", seed)
            assert await exists(servers, "results-blog")  # its results stay as long as any


async def admin_cancels(admin: AdminClient, job_id: UUID) -> None:
    """Settle a job that was submitted over NATS, and so is admitted in a moment."""
    async with asyncio.timeout(WAIT_S):
        while not (await admin.jobs()).jobs:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    await admin.cancel(job_id)


async def exists(servers: TandemServers, consumer: str) -> bool:
    async with servers.open("provisioner") as bus:
        found: Any = await bus.api("CONSUMER.NAMES.RESULTS")
        return consumer in found["consumers"]


async def test_a_server_that_reads_only_the_agents_is_not_thought_to_have_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_users, "RELOAD_S", 1.0)
    async with own_servers() as one, own_servers() as other:
        ours, theirs = (servers.nats.folder / "identities" for servers in (one, other))
        key = public_key(new_seed())

        def users(*files: str) -> OwnServer:
            copies = " && ".join(f"cp '{ours / file}' '{theirs / file}'" for file in files)
            command = ("sh", "-c", f"{copies} && kill -HUP {one.nats.pid} {other.nats.pid}")
            return OwnServer(one.nats.folder, command, f"{one.nats.url},{other.nats.url}")

        with pytest.raises(NotReloadedError, match=other.nats.url):
            await users("agents.conf").add_publisher("blog", key)
        await users("agents.conf", "publishers.conf").add_publisher("blog", key)
        with pytest.raises(NotReloadedError, match=other.nats.url):
            await users("agents.conf").remove_publisher("blog")
        assert publishers_in(one.nats.folder) == {}


async def test_a_publisher_cut_off_at_the_second_try_had_a_key() -> None:
    async with own_servers() as servers:
        reload = servers.nats.folder / "reload"
        reload.write_text("exit 1")
        users = OwnServer(servers.nats.folder, ("sh", str(reload)), servers.nats.url)
        servers.nats.identities.add_publisher("blog")
        with pytest.raises(NotReloadedError):
            await users.remove_publisher("blog")
        reload.write_text(f"kill -HUP {servers.nats.pid}")

        assert [await users.remove_publisher("blog") for _ in range(2)] == [True, False]
