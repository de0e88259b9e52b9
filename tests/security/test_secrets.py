"""No secret is in a log, in a process's arguments, or in an answer; what compares secrets takes as long for each."""

import ast
import os
import re
from pathlib import Path
from uuid import UUID

import aiohttp
import psutil
import pytest
from pydantic import SecretStr

from coordinator.upload_tokens import UploadTokens
from shared.client import Client
from shared.joining import parse_line
from shared.states import JobState
from tests.support.processes import tandem, tandem_up
from tests.support.world import eventually_async

ROOT = Path(__file__).parents[2]
WRONG = "a-token-that-nobody-has-0123456789"


async def test_no_secret_reaches_a_log_or_the_list_of_processes(tmp_path: Path) -> None:
    """A system at work at its most talkative, and misused; then all that it wrote and runs is searched."""
    loud = {"TANDEM_LOG_LEVEL": "debug", "TANDEM_AGENT_LOG_LEVEL": "debug"}
    async with tandem_up(tmp_path / "data", "--agents", "1", **loud) as up:
        url, tokens = up.connection["http"], up.connection["tokens"]
        async with Client(url, tokens["publisher"]) as client:
            sent = await client.submit({"kind": "image", "spec": {"prompt": "A boat"}})

            async def done() -> bool:
                return (await client.job(sent.id)).state is JobState.COMPLETED

            await eventually_async(done, within_s=60)
        status, out, error = await tandem("workers", "invite", "mini", "--data", str(up.data))
        assert status == 0, error
        line = out.split("'")[1]
        status, seed, error = await tandem("publishers", "add", "blog", "--data", str(up.data))
        assert status == 0, error
        async with aiohttp.ClientSession() as session:
            for path, body in (("/login", {"token": WRONG}), ("/v1/join", {"invitation": WRONG, "seal": WRONG})):
                async with session.post(url + path, json=body) as answer:
                    assert answer.status >= 400
                    assert WRONG not in await answer.text()
            async with session.get(url + "/v1/jobs", headers={"Authorization": f"Bearer {WRONG}"}) as answer:
                assert answer.status == 401
                assert WRONG not in await answer.text()
        secrets = secrets_of(up.data, sent.id) | {WRONG, line, parse_line(line).secret, seed.strip(), *tokens.values()}
        assert len(secrets) >= 12
        arguments = [" ".join(process.cmdline()) for process in up.children()] + [
            " ".join(psutil.Process(up.process.pid).cmdline())
        ]
        assert len(arguments) >= 4  # itself, NATS, Postgres, the agent
        logs = {path: path.read_text(errors="replace") for path in logs_of(up.data, up.log)}
    assert [path for path, text in logs.items() if not text and "nats" in path.name] == []
    told = {(str(path), secret) for path, text in logs.items() for secret in secrets if secret in text}
    assert told == set()
    assert [secret for secret in secrets for words in arguments if secret in words] == []


def secrets_of(data: Path, job_id: UUID) -> set[str]:
    """Every secret that the folder has, and the token with which the job's files were uploaded."""
    found = {path.read_text().strip() for path in data.rglob("*.seed")}
    found |= {path.read_text().strip() for path in (data / "identities").glob("*.password")}
    found |= {path.read_text().strip() for path in (data / "secrets").iterdir()}
    tokens = UploadTokens.load_or_create(data / "secrets" / "upload-token.key")
    return found | {tokens.issue(job_id, 1, "agent-1")}


def logs_of(data: Path, own: Path) -> list[Path]:
    found = [own, *data.rglob("*.log"), *data.rglob("*.jsonl")]
    assert {"postgres.log", "nats.log", "coordinator.jsonl", "agent.jsonl"} <= {path.name for path in found}
    return found


# ---- comparing


_SECRET = re.compile(r"(?:^|_)(?:token|secret|seal|signature|password|csrf|digest|key)$")
_PLAIN = {  # none of these is a secret
    "coordinator/audit.py: digest == sha256",
    "coordinator/demo_story.py: post['key'] == job.key",
    "coordinator/identities.py: known == key",  # public halves
    "coordinator/web/html.py: request.query.get('v') == digest",
    "shared/client_http.py: token.strip() == token",  # with itself
}


def plain_comparisons(path: Path) -> list[str]:
    """Return where something that is called like a secret is compared with == or !=."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Compare) or not any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            continue
        sides = (node.left, *node.comparators)
        names = [side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "") for side in sides]
        literal = any(isinstance(side, ast.Constant) for side in sides)
        if not literal and any(_SECRET.search(name) for name in names):
            found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    return found


def test_no_secret_is_compared_byte_by_byte() -> None:
    files = [path for part in ("coordinator", "shared") for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 100
    assert {line for path in files for line in plain_comparisons(path)} == _PLAIN


def test_the_search_finds_such_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "x.py").write_text("def f(token, self):\n    return token == self.secret\n")
    assert plain_comparisons(tmp_path / "x.py") == ["x.py: token == self.secret"]


@pytest.mark.parametrize(
    "module",
    [
        "coordinator/web/access.py",
        "coordinator/web/sessions.py",
        "coordinator/upload_tokens.py",
        "coordinator/hooks/checks.py",
        "shared/joining.py",
    ],
)
def test_what_checks_secrets_compares_them_in_constant_time(module: str) -> None:
    assert "hmac.compare_digest(" in (ROOT / module).read_text()


# ---- at rest


def test_what_holds_a_secret_does_not_show_it() -> None:
    from coordinator.settings import CoordinatorSettings  # noqa: PLC0415

    shown = "tok-0123456789"
    settings = CoordinatorSettings(
        postgres=SecretStr(f"postgresql://tandem:{shown}@localhost/tandem"),
        nats_seed=SecretStr(shown),
        tokens={"admin:boss": SecretStr(shown)},
        artifacts_key_id=SecretStr(shown),
        artifacts_secret_key=SecretStr(shown),
    )
    assert shown not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.skipif(os.name != "posix", reason="modes are Unix's")
async def test_what_up_writes_is_its_owners_alone(tmp_path: Path) -> None:
    async with tandem_up(tmp_path / "data") as up:
        secret = [*up.data.rglob("*.seed"), *up.data.rglob("*.password"), *(up.data / "secrets").iterdir()]
        secret += [up.data / "tokens.json", up.data / "connection.json"]
        assert len(secret) > 8
        assert [path for path in secret if path.stat().st_mode & 0o077] == []
