"""What each CMS puts on the wire: its recorded-shape body, and the proof that it sends along."""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from standardwebhooks import Webhook

BODIES = Path(__file__).parent / "bodies"

WHSEC = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ...").decode()
WHSEC_NEW = "whsec_" + base64.b64encode(b"another secret, of 32 bytes too ").decode()
PLAIN = "a secret of the ghost"
PLAIN_NEW = "a newer secret of the ghost"
LONG = "0123456789abcdef" * 4
LONG_NEW = "fedcba9876543210" * 4

SOURCES = f"""
[sources.standard]
preset = "standard"
check.secrets = ["{WHSEC}"]

[sources.wordpress]
preset = "wordpress"
own = ["tandem"]
check.secrets = ["{WHSEC}"]

[sources.ghost]
preset = "ghost"
check.secrets = ["{PLAIN}"]

[sources.strapi]
preset = "strapi"
check.secrets = ["{PLAIN}"]

[sources.directus]
preset = "directus"
own = ["7a6d2b2f-4020-4f5a-9a51-0d9e6a4c7f0b"]
check = {{ header = "X-Tandem-Token", secrets = ["{PLAIN}"] }}

[sources.contentful]
preset = "contentful"
own = ["tandem-user"]
check.secrets = ["{LONG}"]
"""


def body_of(source: str) -> bytes:
    """Return the body as it was recorded, or as the facts have it."""
    return (BODIES / f"{source}.json").read_bytes().rstrip(b"\n")


def changed(source: str, *path: str | int, to: Any) -> bytes:
    """Return the body with one value changed."""
    whole = orjson.loads(body_of(source))
    part = whole
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = to
    return orjson.dumps(whole)


def standard(body: bytes, secret: str = WHSEC, *, msg_id: str = "msg_1", ago_s: float = 0.0) -> dict[str, str]:
    at = datetime.fromtimestamp(time.time() - ago_s, UTC)
    return {
        "content-type": "application/json",
        "webhook-id": msg_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(msg_id, at, body.decode()),
    }


def ghost(body: bytes, secret: str = PLAIN, *, ago_s: float = 0.0) -> dict[str, str]:
    stamp = str(int((time.time() - ago_s) * 1000))
    digest = hmac.new(secret.encode(), body + stamp.encode(), hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "X-Ghost-Signature": f"sha256={digest}, t={stamp}",
        "Content-Version": "v6",
    }


def strapi(_: bytes, secret: str = PLAIN) -> dict[str, str]:
    return {"Content-Type": "application/json", "X-Strapi-Event": "entry.publish", "Authorization": f"Bearer {secret}"}


def directus(_: bytes, secret: str = PLAIN) -> dict[str, str]:
    return {"Content-Type": "application/json", "X-Tandem-Token": secret}


def contentful(
    body: bytes,
    secret: str = LONG,
    *,
    ago_s: float = 0.0,
    path: str = "/hooks/contentful",
    topic: str = "ContentManagement.Entry.publish",
) -> dict[str, str]:
    signed = {
        "content-type": "application/vnd.contentful.management.v1+json",
        "x-contentful-timestamp": str(int((time.time() - ago_s) * 1000)),
        "x-contentful-topic": topic,
        "x-contentful-webhook-name": "tandem",
    }
    names = sorted([*signed, "x-contentful-signed-headers"])
    signed["x-contentful-signed-headers"] = ",".join(names)
    head = ";".join(f"{name}:{signed[name]}" for name in names)
    message = f"POST\n{path}\n{head}\n".encode() + body
    return {**signed, "x-contentful-signature": hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()}


SIGNED: dict[str, Callable[[bytes], dict[str, str]]] = {
    "standard": standard,
    "wordpress": standard,
    "ghost": ghost,
    "strapi": strapi,
    "directus": directus,
    "contentful": contentful,
}
