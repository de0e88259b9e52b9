"""NATS as the coordinator needs it, step by step: name, TCP, TLS, key, rights, then its streams.

Of each server the first step that fails is named, with its cure. What is asked is what a coordinator asks. Called by
`doctor.py`.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr

from coordinator.init_certificates import ends_at
from coordinator.settings import CoordinatorSettings
from shared.bus import ApiError, Bus, BusError, Denied
from shared.bus_link import Link
from shared.finding import Finding
from shared.streams import STREAM_NOT_FOUND, STREAMS

_STEP_S: Final = 4.0
_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_SOON: Final = timedelta(days=30)
_FULL: Final = 0.7
_KEY: Final = "its users are in identities/ beside its nats.conf: has it read them (systemctl reload tandem-nats)?"
_RIGHTS: Final = "its nats.conf or identities/jobs.conf are not this version's: run `tandem init`, then reload it"
_MADE: Final = "the coordinator makes it as it should be when it starts; its log says why not"


class _StepError(Exception):
    """The step that fails, what was said, and what to do."""

    def __init__(self, step: str, said: str, todo: str) -> None:
        super().__init__(step)
        self.step, self.said, self.todo = step, said, todo


async def examine_nats(settings: CoordinatorSettings) -> tuple[list[Finding], datetime | None]:
    """Look at every server of the settings, then at the streams; return NATS's clock, too, if it was seen."""
    try:
        tls = ssl.create_default_context(cafile=str(settings.nats_ca)) if settings.nats_ca else None
    except (OSError, ssl.SSLError) as error:
        return [Finding("nats_ca", False, f"{settings.nats_ca}: {error}", "set it to the authority's file (PEM)")], None
    servers = [url.strip() for url in settings.nats.split(",")]
    links = [await _link(url, settings.nats_seed, tls) for url in servers]
    if not any(link.ok for link in links):
        return links, None
    rights = [await _rights(settings, role, tls) for role in ("coordinator", "provisioner", "watcher")]
    found = [*links, *(right for right in rights if right is not None)]
    if not all(finding.ok for finding in found[len(links) :]):
        return found, None
    async with _bus(settings, "coordinator", tls) as bus:
        await bus.wait_connected(_STEP_S)
        streams = [await _stream(bus, name, settings.replicas) for name in STREAMS]
        return [*found, *streams], await _clock(bus)


# ---- the way there


async def _link(url: str, seed: SecretStr | None, tls: ssl.SSLContext | None) -> Finding:
    parts = urlsplit(url)
    what = f"NATS {parts.scheme}://{parts.hostname}:{_port(parts)}"
    try:
        reader, writer = await _reached(parts)
        try:
            facts = await _greeted(parts, reader, writer, tls)
        finally:
            writer.close()
        await _let_in(url, seed, tls)
    except _StepError as fault:
        return Finding(what, False, f"{fault.step}: {fault.said}", fault.todo)
    return Finding(what, True, ", ".join(["name, TCP, key are right", *facts]))


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 4222)


async def _reached(parts: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = parts.hostname or "", _port(parts)
    try:
        async with asyncio.timeout(_STEP_S):
            await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError, TimeoutError) as error:
        said = f"{host}: {error or 'the name server does not answer'}"
        raise _StepError("name", said, "check the name in `nats`, and this machine's DNS") from None
    try:
        async with asyncio.timeout(_STEP_S):
            return await asyncio.open_connection(host, port)
    except TimeoutError:
        todo = "a firewall drops it, or the machine is off"
        raise _StepError("TCP", f"no answer within {_STEP_S:g} s", todo) from None
    except OSError as error:
        todo = (
            "start it (systemctl start tandem-nats), or mend the port in `nats`; nats-server -t -c FILE checks its file"
        )
        raise _StepError("TCP", error.strerror or str(error), todo) from None


async def _greeted(
    parts: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: ssl.SSLContext | None
) -> list[str]:
    """Read the greeting and do the handshake; return what is known of the server."""
    facts, wanted = [], parts.scheme in ("tls", "wss") or tls is not None
    if parts.scheme in ("nats", "tls"):
        info = await _info(reader)
        facts.append(f"nats-server {info.get('version')}")
        if not info.get("jetstream"):
            raise _StepError("JetStream", "it is off", "run nats-server with Tandem's nats.conf")
        if wanted and not info.get("tls_required"):
            raise _StepError("TLS", "the server speaks none", "give it a certificate (`tandem init` makes one)")
        wanted = wanted or bool(info.get("tls_required"))
    if not wanted:
        return [*facts, "not encrypted"]
    try:
        async with asyncio.timeout(_STEP_S):
            await writer.start_tls(tls or ssl.create_default_context(), server_hostname=parts.hostname)
    except ssl.SSLCertVerificationError as error:
        raise _StepError("TLS", f"certificate: {error.verify_message}", _certificate_cure(error)) from None
    except (OSError, TimeoutError) as error:
        todo = "another program answers there: check host and port in `nats`"
        raise _StepError("TLS", str(error) or type(error).__name__, todo) from None
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    left = ends_at(certificate) - datetime.now(UTC)
    if left < _SOON:
        todo = "remove tls/nats.crt, run `tandem init` again, then restart NATS (docs/operations.md, Certificates)"
        raise _StepError("TLS", f"the certificate ends in {left.days} days", todo)
    return [*facts, f"TLS, the certificate is good for {left.days} days"]


async def _info(reader: asyncio.StreamReader) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_STEP_S):
            line = await reader.readline()
        found: dict[str, Any] = json.loads(line.removeprefix(b"INFO "))
    except (OSError, TimeoutError, ValueError):
        todo = "another program has that port: mend `nats`, or stop it"
        raise _StepError("TCP", "connected, but no NATS server answers", todo) from None
    return found


def _certificate_cure(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message.lower()
    if "expired" in text or "not yet valid" in text:
        return "remove tls/nats.crt, run `tandem init` again, then restart NATS; if it is valid, a clock is wrong"
    if "match" in text:
        return "write in `nats` a name that the certificate is for"
    return "set nats_ca to the certificate that signed it (tls/ca.crt of `tandem init`)"


async def _let_in(url: str, seed: SecretStr | None, tls: ssl.SSLContext | None) -> None:
    """Log in as the coordinator does, and leave."""
    link = Link({}, on_lost=lambda _: None, on_denied=lambda *_: None)
    try:
        text = seed.get_secret_value() if seed else None
        await link.open(url, tls=tls, seed=text, timeout_s=_STEP_S, name="tandem-doctor")
    except TimeoutError:
        raise _StepError("key", "the server does not answer the login", "look at the server's log") from None
    except Exception as error:  # noqa: BLE001 - nats-py has no common class for them
        raise _StepError("key", f"nats_seed: {error or type(error).__name__}", f"mend nats_seed; {_KEY}") from None
    finally:
        await link.discard(1.0)


# ---- who we are there


async def _rights(settings: CoordinatorSettings, role: str, tls: ssl.SSLContext | None) -> Finding | None:
    """Try what a role is for; None for a role that the settings don't have."""
    if role != "coordinator" and _seed(settings, role) is None:
        return None
    async with _bus(settings, role, tls) as bus:
        try:
            await bus.wait_connected(_STEP_S)
            await _TRIALS[role](bus)
        except Denied as error:
            return Finding(f"rights of the {role}", False, f"refused: {error}", _RIGHTS)
        except BusError as error:
            if bus.denials:  # it may not even hear answers: another role's key
                return Finding(f"rights of the {role}", False, f"refused: {bus.denials[0]}", _RIGHTS)
            return Finding(f"rights of the {role}", False, str(error), f"mend its seed in the settings; {_KEY}")
    return Finding(f"rights of the {role}", True, "as they should be")


async def _coordinates(bus: Bus) -> None:
    await bus.api("INFO", timeout_s=_STEP_S)
    for subject in ("tandem.claim.*", "$JS.ACK.WORK.>"):
        heard = await bus.subscribe(subject, lambda _: None, queue="doctor")
        await heard.close()


async def _provisions(bus: Bus) -> None:
    await bus.api("STREAM.NAMES", timeout_s=_STEP_S)


async def _watches(bus: Bus) -> None:
    heard = await bus.subscribe("$SYS.ACCOUNT.AGENTS.DISCONNECT", lambda _: None)
    await heard.close()


_TRIALS: Final[dict[str, Callable[[Bus], Awaitable[None]]]] = {
    "coordinator": _coordinates,
    "provisioner": _provisions,
    "watcher": _watches,
}


def _seed(settings: CoordinatorSettings, role: str) -> SecretStr | None:
    return {
        "coordinator": settings.nats_seed,
        "provisioner": settings.nats_provisioner_seed,
        "watcher": settings.nats_watcher_seed,
    }[role]


def _bus(settings: CoordinatorSettings, role: str, tls: ssl.SSLContext | None) -> Bus:
    seed = _seed(settings, role)
    return Bus(
        settings.nats,
        name="tandem-doctor",
        seed=seed.get_secret_value() if seed else None,
        inbox_prefix=f"_INBOX.{role}",
        tls=tls,
    )


# ---- streams


async def _stream(bus: Bus, name: str, replicas: int) -> Finding:
    what = f"stream {name}"
    try:
        info = await bus.api(f"STREAM.INFO.{name}", timeout_s=_STEP_S)
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return Finding(what, False, "it is not there", _MADE)
        return Finding(what, False, str(error), "look at the server's log: of several servers two must be up")
    except BusError as error:
        return Finding(what, False, str(error), "look at the server's log: of several servers two must be up")
    config, state, cluster = info["config"], info["state"], info.get("cluster", {})
    desired = {**STREAMS[name], "num_replicas": replicas}
    other = [key for key, value in desired.items() if config.get(key, type(value)()) != value]
    if other:
        return Finding(what, False, f"{', '.join(other)} differ from what this version wants", _MADE)
    behind = [one["name"] for one in cluster.get("replicas", ()) if not one["current"] or one.get("offline")]
    if behind:
        return Finding(what, False, f"{', '.join(behind)} is behind", "is that server up, and its disk well?")
    full = state["bytes"] / config["max_bytes"]
    said = f"{state['messages']} messages, {full:.0%} full, {replicas} of it"
    return Finding(what, full < _FULL, said, "what takes from it stands still, or more comes than goes")


async def _clock(bus: Bus) -> datetime | None:
    """Return the server's clock, which it tells with each answer about a stream."""
    for name in STREAMS:
        try:
            return datetime.fromisoformat((await bus.api(f"STREAM.INFO.{name}", timeout_s=_STEP_S))["ts"])
        except BusError:
            continue
    return None
