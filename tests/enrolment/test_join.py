"""A join that is cut off is repeated with the same line, whatever it was doing; and it says what to do next."""

import errno
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import typer
from aiohttp import web

from agent import join as agent_join
from agent.settings import load_settings
from shared.errors import ConfigurationError
from shared.joining import invitation_id, invitation_key, line_of, parse_line, seal
from shared.nkey import public_key

SECRET = "s" * 32


class Inviting:
    """A coordinator that has sent one line: it takes the first key that is shown with it, and that one again."""

    def __init__(self) -> None:
        self.line = ""
        self.known = ""
        self.is_reloaded = True  # whether NATS has read its users
        self.told = {"nats": "tls://tandem.example.org:4222", "ca": "a certificate"}

    async def answer(self, request: web.Request) -> web.Response:
        said = await request.json()
        assert said["invitation"] == invitation_id(SECRET)
        self.known = self.known or said["public_key"]
        if said["public_key"] != self.known:
            return refused(404, "no_invitation", "unknown, over, or used up")
        if not self.is_reloaded:
            return refused(503, "not_reloaded", "NATS did not read its users")
        sealed = seal(invitation_key(SECRET), "welcome", "mini", said["public_key"], *self.told.values())
        return web.json_response({"worker": "mini", "seal": sealed, **self.told})


def refused(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message, "faults": []}}, status=status)


@asynccontextmanager
async def inviting() -> AsyncIterator[Inviting]:
    coordinator, app = Inviting(), web.Application()
    app.router.add_post("/v1/join", coordinator.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    coordinator.line = line_of(f"http://127.0.0.1:{runner.addresses[0][1]}", "mini", SECRET)
    try:
        yield coordinator
    finally:
        await runner.cleanup()


def join(line: str, folder: Path) -> None:
    agent_join._join(parse_line(line), folder, ["sketch"], {}, None, asks=False)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def cut_off(monkeypatch: pytest.MonkeyPatch, number: int, when: str) -> list[Path]:
    """Let the rename of this number fail, `before` or `after` it is done; return what was renamed, as it comes."""
    renamed: list[Path] = []
    rename = Path.replace

    def replace(path: Path, target: Path) -> Path:
        renamed.append(target)
        if (len(renamed), when) == (number, "before"):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(path, target)
        if (len(renamed), when) == (number, "after"):
            raise OSError(errno.EIO, "a crash")
        return target

    monkeypatch.setattr(Path, "replace", replace)
    return renamed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("number", "file"), [(1, "ca.pem"), (2, "agent.toml.before"), (3, "agent.toml"), (4, "mini.seed")]
)
async def test_the_same_line_works_again_after_a_crash_at_any_write(
    tmp_path: Path, number: int, file: str, when: str
) -> None:
    (tmp_path / "agent.toml").write_text("rank = 3\n")
    async with inviting() as coordinator:
        with pytest.MonkeyPatch.context() as patched:
            renamed = cut_off(patched, number, when)
            with pytest.raises(OSError, match=r"No space|a crash"):
                await to_thread(join, coordinator.line, tmp_path)
            assert renamed[-1] == tmp_path / file

        await to_thread(join, coordinator.line, tmp_path)

    settings = load_settings(tmp_path / "agent.toml")
    seed = settings.read_seed()
    assert seed is not None
    assert public_key(seed) == coordinator.known
    assert (settings.rank, settings.nats) == (3, "tls://tandem.example.org:4222")
    assert names_in(tmp_path) == {"agent.toml", "agent.toml.before", "ca.pem", "mini.seed"}


async def test_an_address_that_the_line_replaces_is_not_held_against_it(tmp_path: Path) -> None:
    """As 0.1 had it on a home network: joining anew is what mends it."""
    (tmp_path / "agent.toml").write_text('nats = "nats://192.168.1.10:4222"\n')
    async with inviting() as coordinator:
        await to_thread(join, coordinator.line, tmp_path)
    assert load_settings(tmp_path / "agent.toml").nats == "tls://tandem.example.org:4222"


async def test_a_line_that_leads_over_a_network_in_the_clear_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http://vps\.example\.org is not encrypted"):
        await to_thread(join, line_of("http://vps.example.org", "mini", SECRET), tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_a_server_in_the_clear_is_not_written_down(tmp_path: Path) -> None:
    async with inviting() as coordinator:
        coordinator.told = {"nats": "nats://vps.example.org:4222", "ca": ""}
        with pytest.raises(ConfigurationError, match=r"names nats://vps\.example\.org:4222, not encrypted"):
            await to_thread(join, coordinator.line, tmp_path)
    assert not (tmp_path / "agent.toml").exists()


async def test_who_gets_a_new_key_keeps_it_though_nats_could_not_be_told_at_once(tmp_path: Path) -> None:
    """Falling back on the old one would hide why, and leave the worker with the key that was to be replaced."""
    async with inviting() as coordinator:
        await to_thread(join, coordinator.line, tmp_path)
        old = public_key((tmp_path / "mini.seed").read_text())
        coordinator.known, coordinator.is_reloaded = "", False
        with pytest.raises(agent_join.RefusedError, match="NATS did not read its users"):
            await to_thread(join, coordinator.line, tmp_path)
        assert public_key((tmp_path / "mini.seed").read_text()) == old
        coordinator.is_reloaded = True
        await to_thread(join, coordinator.line, tmp_path)
        assert public_key((tmp_path / "mini.seed").read_text()) == coordinator.known != old


async def test_a_disk_that_is_full_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_join.log, "configure", lambda **_: None)
    cut_off(monkeypatch, 2, "before")
    async with inviting() as coordinator:
        with pytest.raises(typer.Exit) as ended:
            await to_thread(agent_join.join, coordinator.line, tmp_path, ["sketch"], yes=True)
    assert ended.value.exit_code == 1
    assert "No space left on device; the same line works again" in capsys.readouterr().err


async def test_a_folder_that_is_named_from_here_is_written_down_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_join.log, "configure", lambda **_: None)
    monkeypatch.chdir(tmp_path)
    async with inviting() as coordinator:
        await to_thread(agent_join.join, coordinator.line, Path("x y"), ["sketch"], yes=True)
    monkeypatch.chdir("/")
    settings = load_settings(tmp_path / "x y/agent.toml")
    assert (settings.seed_file, settings.ca_file) == (tmp_path / "x y/mini.seed", tmp_path / "x y/ca.pem")
    assert f"tandem-agent install --config '{tmp_path}/x y/agent.toml'" in capsys.readouterr().out


def test_what_comes_next_is_install_or_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    joined = agent_join.JOINED.expanduser()
    assert agent_join._next(joined) == "next: tandem-agent doctor\nthen: tandem-agent install"
    unit = tmp_path / ".config/systemd/user/tandem-agent.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    assert agent_join._next(joined) == "next: tandem-agent doctor\nthen: tandem-agent restart"
