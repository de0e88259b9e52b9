"""Who may send: wrong, replayed, rotated and malformed proofs of each kind."""

import base64
import hashlib
import hmac
import time
from pathlib import Path

import pytest

from coordinator.hooks.checks import Received
from coordinator.hooks.config import load
from tests.hooks.conftest import Open
from tests.hooks.senders import (
    LONG,
    LONG_NEW,
    PLAIN,
    PLAIN_NEW,
    SIGNED,
    SOURCES,
    WHSEC,
    WHSEC_NEW,
    body_of,
    contentful,
    ghost,
    standard,
    strapi,
)
from tests.support.web import Web


async def refused(site: Web, source: str, body: bytes, headers: dict[str, str]) -> str:
    """Send what must be refused; return the reason, after nothing was kept of it."""
    told = await site.call("POST", f"/hooks/{source}", data=body, headers=headers, expect=401)
    assert told["error"]["code"] == "unauthorized"
    assert (await site.call("GET", "/v1/jobs", token="admin"))["jobs"] == []
    assert (await site.call("GET", "/v1/rejected", token="admin"))["submissions"] == []
    return str(told["error"]["message"])


@pytest.mark.parametrize("source", SIGNED)
async def test_an_event_without_proof_is_refused(hooked: Web, source: str) -> None:
    await refused(hooked, source, body_of(source), {"Content-Type": "application/json"})


@pytest.mark.parametrize("source", ["standard", "ghost", "contentful"])
async def test_a_body_that_was_changed_after_it_was_signed_is_refused(hooked: Web, source: str) -> None:
    headers = SIGNED[source](body_of(source))

    assert await refused(hooked, source, body_of(source) + b" ", headers) == "the signature is not valid"


async def test_another_secret_is_refused(hooked: Web) -> None:
    await refused(hooked, "standard", body_of("standard"), standard(body_of("standard"), WHSEC_NEW))
    await refused(hooked, "ghost", body_of("ghost"), ghost(body_of("ghost"), PLAIN_NEW))
    await refused(hooked, "strapi", body_of("strapi"), strapi(b"", PLAIN_NEW))
    await refused(hooked, "contentful", body_of("contentful"), contentful(body_of("contentful"), LONG_NEW))


@pytest.mark.parametrize("ago_s", [330, -330])
async def test_what_was_signed_too_long_ago_is_refused(hooked: Web, ago_s: int) -> None:
    await refused(hooked, "standard", body_of("standard"), standard(body_of("standard"), ago_s=ago_s))
    assert "too long ago" in await refused(hooked, "ghost", body_of("ghost"), ghost(body_of("ghost"), ago_s=ago_s))
    told = await refused(hooked, "contentful", body_of("contentful"), contentful(body_of("contentful"), ago_s=ago_s))
    assert "too long ago" in told


async def test_a_replay_in_time_is_the_same_job(hooked: Web) -> None:
    headers = ghost(body_of("ghost"))

    first = await hooked.call("POST", "/hooks/ghost", data=body_of("ghost"), headers=headers, expect=202)
    replay = await hooked.call("POST", "/hooks/ghost", data=body_of("ghost"), headers=headers, expect=200)

    assert replay["jobs"][0]["id"] == first["jobs"][0]["id"]


@pytest.mark.parametrize("source", ["standard"])
@pytest.mark.parametrize(
    "signature",
    [
        "",
        "v1",
        "v1,",
        "v1,===",
        "v1,not base64!",
        "v1,a,b",
        "v1a,AAAA",
        ",",
        "v1,AAAA v1",
        "v1,ÄÖÜ",
        "v2," + "A" * 44,
        "v1," + "A" * 7000,
    ],
)
async def test_a_malformed_signature_is_refused_like_a_wrong_one(hooked: Web, source: str, signature: str) -> None:
    headers = {**standard(body_of(source)), "webhook-signature": signature}

    await refused(hooked, source, body_of(source), headers)


@pytest.mark.parametrize("stamp", ["", "now", "nan", "inf", "-1", "9" * 400, "1e400", "\u0661"])
def test_a_malformed_timestamp_is_refused_like_an_old_one(tmp_path: Path, stamp: str) -> None:
    file = tmp_path / "sources.toml"
    file.write_text(SOURCES)
    body = b"{}"
    signed = hmac.new(PLAIN.encode(), body + stamp.encode(), hashlib.sha256).hexdigest()
    stamped = {
        "standard": {**standard(body), "webhook-timestamp": stamp},
        "ghost": {"x-ghost-signature": f"sha256={signed}, t={stamp}"},
        "contentful": {**contentful(body), "x-contentful-timestamp": stamp},
    }
    for source, headers in stamped.items():
        assert load(file)[source].check.refusal(Received(f"/hooks/{source}", headers, body), time.time())


async def test_a_signature_among_several_is_enough(hooked: Web) -> None:
    body = body_of("standard")
    headers = standard(body)
    other = standard(body, WHSEC_NEW)["webhook-signature"]
    headers["webhook-signature"] = f"{other} v1a,AAAA {headers['webhook-signature']}"

    await hooked.call("POST", "/hooks/standard", data=body, headers=headers, expect=202)


async def test_old_and_new_secrets_are_good_while_they_are_changed(open_hooks: Open) -> None:
    text = f"""
    [sources.standard]
    preset = "standard"
    check.secrets = ["{WHSEC}", "{WHSEC_NEW}"]
    [sources.ghost]
    preset = "ghost"
    check.secrets = ["{PLAIN}", "{PLAIN_NEW}"]
    [sources.strapi]
    preset = "strapi"
    check.secrets = ["{PLAIN}", "{PLAIN_NEW}"]
    [sources.contentful]
    preset = "contentful"
    check.secrets = ["{LONG}", "{LONG_NEW}"]
    """
    secrets = {
        "standard": (standard, WHSEC, WHSEC_NEW),
        "ghost": (ghost, PLAIN, PLAIN_NEW),
        "strapi": (strapi, PLAIN, PLAIN_NEW),
        "contentful": (contentful, LONG, LONG_NEW),
    }
    async with open_hooks(text) as site:
        for source, (signed, old, new) in secrets.items():
            body = body_of(source)
            for secret, status in ((old, 202), (new, 200)):
                headers = signed(body, secret)
                await site.call("POST", f"/hooks/{source}", data=body, headers=headers, expect=status)


@pytest.mark.parametrize("left_out", ["x-contentful-timestamp", "x-contentful-signed-headers"])
async def test_contentful_must_sign_its_time_and_what_it_signs(hooked: Web, left_out: str) -> None:
    body = body_of("contentful")
    headers = contentful(body)
    names = [name for name in headers["x-contentful-signed-headers"].split(",") if name != left_out]
    headers["x-contentful-signed-headers"] = ",".join(names)
    signed = ";".join(f"{name}:{headers[name]}" for name in names)
    message = f"POST\n/hooks/contentful\n{signed}\n".encode() + body
    headers["x-contentful-signature"] = hmac.new(LONG.encode(), message, hashlib.sha256).hexdigest()

    assert "must be signed" in await refused(hooked, "contentful", body, headers)


async def test_a_contentful_signature_for_another_address_is_refused(hooked: Web) -> None:
    body = body_of("contentful")

    await refused(hooked, "contentful", body, contentful(body, path="/hooks/other"))


HMAC = """
[sources.own]
check = {{ kind = "hmac", header = "X-Hub-Signature-256", {how}, secrets = ["{secret}"] }}
jobs.article = {{ kind = "article", key = ["body.id"], prompt = "{{{{ body.topic }}}}" }}
"""


@pytest.mark.parametrize(
    ("how", "made"),
    [
        ('prefix = "sha256="', lambda digest: "sha256=" + digest.hex()),
        ('encoding = "hex"', lambda digest: digest.hex().upper()),
        ('encoding = "base64"', lambda digest: base64.b64encode(digest).decode()),
    ],
)
async def test_a_header_with_an_hmac_is_read_as_configured(tmp_path: Path, how: str, made) -> None:
    file = tmp_path / "sources.toml"
    file.write_text(HMAC.format(how=how, secret=PLAIN))
    check = load(file)["own"].check
    body = b'{"id": 1, "topic": "harbour"}'
    digest = hmac.new(PLAIN.encode(), body, hashlib.sha256).digest()

    def refusal(value: str, body: bytes = body) -> str | None:
        return check.refusal(Received("/hooks/own", {"x-hub-signature-256": value}, body), time.time())

    assert refusal(made(digest)) is None
    assert refusal(made(digest), body + b" ")
    assert refusal(made(digest[:-1]))
    assert refusal(made(digest) + "ä")
    assert refusal("")
    assert refusal("zz")
