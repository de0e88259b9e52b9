"""The way to the NATS server, step by step: name, TCP, TLS, key. The first step that fails is named, with its cure.

Rights come after it (`doctor`), over the connection that this finds possible. Each step has its own time limit, and
says nothing to the server that an agent would not say.
"""

import asyncio
import errno
import ipaddress
import json
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from agent import mac
from shared.bus_link import Link
from shared.finding import Finding

_STEP_S: Final = 4.0
_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_MAC_EHOSTUNREACH: Final = 65
_LOCAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
)
_LOCAL_NETWORK: Final = (
    "macOS keeps this program from the local network (errno 65 on a private address is its Local Network permission): "
    "System Settings > Privacy & Security > Local Network, switch this Python on; if it is not listed, restart the "
    "Mac; or reach the server by a public name or a VPN. Terminal is exempt: only `doctor --in-service` shows this"
)
_NO_TLS: Final = (
    "have the server speak TLS: `tandem up --listen NAME`, or give nats-server a certificate (docs/operations.md); "
    "nats:// in `nats` and no ca_file only if it is on this very machine (127.0.0.1)"
)

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class _StepError(Exception):
    """The step that fails, what it said, and what to do."""

    def __init__(self, step: str, said: str, todo: str) -> None:
        super().__init__(step)
        self.step, self.said, self.todo = step, said, todo


async def examine_link(
    url: str, *, seed: str | None, tls: ssl.SSLContext | None, connect: Connect = asyncio.open_connection
) -> Finding:
    """Go all steps to one server. `connect` opens a TCP connection to an address."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 4222)
    what = f"server {parts.scheme}://{host}:{port}"
    try:
        addresses = await _name(host, port)
        reader, writer = await _tcp(addresses, port, connect)
        try:
            facts = await _tls(parts, reader, writer, tls)
        finally:
            writer.close()
        await _key(url, seed, tls)
    except _StepError as fault:
        return Finding(what, False, f"{fault.step}: {fault.said}", fault.todo)
    return Finding(
        what, True, ", ".join(["name, TCP, TLS, key are right" if "TLS" in facts[0] else facts[0], *facts[1:]])
    )


async def local_network_cure(url: str, *, connect: Connect = asyncio.open_connection) -> str | None:
    """Return what to do if macOS keeps this program from a backend on the local network; None: it is not that."""
    parts = urlsplit(url)
    if not mac.here() or not parts.hostname:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await _tcp(await _name(parts.hostname, port), port, connect)
        writer.close()
    except _StepError as error:
        return error.todo if error.todo == _LOCAL_NETWORK else None
    return None


async def _name(host: str, port: int) -> list[str]:
    try:
        async with asyncio.timeout(_STEP_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise _StepError("name", f"{host}: the name server does not answer", "check this network's DNS") from None
    except (socket.gaierror, UnicodeError) as error:
        todo = "check the name in `nats`; if it is right, this network's DNS, or that the VPN is up"
        raise _StepError("name", f"{host}: {error}", todo) from None
    return list(dict.fromkeys(str(address[4][0]) for address in found))


async def _tcp(addresses: list[str], port: int, connect: Connect) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers; else the fault of the first."""
    first: _StepError | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(_STEP_S):
                return await connect(address, port)
        except (OSError, TimeoutError) as error:
            first = first or await _tcp_error(address, port, error)
    raise first or _StepError("name", "no address", "check the name in `nats`")


async def _tcp_error(address: str, port: int, error: OSError) -> _StepError:
    where = f"{address} port {port}"
    if isinstance(error, TimeoutError) and error.errno is None:
        todo = "a firewall drops it, or the machine is off; where only the web is let through use wss:// (docs)"
        return _StepError("TCP", f"{where}: no answer within {_STEP_S:g} s", todo)
    number, text = error.errno or 0, error.strerror or str(error)
    if "call failed" in text:  # asyncio's, which names the address again
        text = os.strerror(number)
    said = f"{where}: {text} (errno {number})"
    if error.errno in (errno.EHOSTUNREACH, _MAC_EHOSTUNREACH):
        if mac.here() and await _is_local(address):
            return _StepError("TCP", said, _LOCAL_NETWORK)
        return _StepError("TCP", said, "no way there: check the network, the VPN, and the address")
    if error.errno == errno.ECONNREFUSED:
        return _StepError("TCP", said, "nothing listens there: start the server, or check the port in `nats`")
    return _StepError("TCP", said, "check the network, and the address in `nats`")


async def _is_local(address: str) -> bool:
    """Say whether Local Network privacy covers an address: not loopback, not the router, not the internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return any(found in network for network in _LOCAL) and address != await mac.default_gateway()


async def _tls(
    parts: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: ssl.SSLContext | None
) -> list[str]:
    """Do the handshake if there is one; return what is known of the server."""
    facts: list[str] = []
    wanted = parts.scheme in ("tls", "wss") or tls is not None
    if parts.scheme in ("nats", "tls"):
        info = await _info(reader)
        facts.append(f"nats-server {info.get('version', '?')}")
        wanted = wanted or bool(info.get("tls_required"))
        if wanted and not (info.get("tls_required") or info.get("tls_available")):
            raise _StepError("TLS", "the server speaks none", _NO_TLS)
    if not wanted:
        return ["name, TCP, key are right, not encrypted", *facts]
    context = tls or ssl.create_default_context()
    try:
        async with asyncio.timeout(_STEP_S):
            await writer.start_tls(context, server_hostname=parts.hostname)
    except ssl.SSLCertVerificationError as error:
        raise _StepError("TLS", f"certificate: {error.verify_message}", _certificate_cure(error)) from None
    except (OSError, TimeoutError) as error:
        todo = "another program answers there, or a proxy is between: check host and port in `nats`"
        raise _StepError("TLS", str(error) or type(error).__name__, todo) from None
    return ["TLS", *facts]


async def _info(reader: asyncio.StreamReader) -> dict[str, object]:
    """Read the server's first line."""
    try:
        async with asyncio.timeout(_STEP_S):
            line = await reader.readline()
        found = json.loads(line.removeprefix(b"INFO "))
    except (OSError, TimeoutError, ValueError):
        todo = "no NATS server is there: check the port in `nats` (4222 unless told; for the web's port write wss://)"
        raise _StepError("TCP", "connected, but no NATS server answers", todo) from None
    return found if isinstance(found, dict) else {}


def _certificate_cure(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message.lower()
    if "expired" in text or "not yet valid" in text:
        return "renew the server's certificate; if it is valid, this machine's clock is wrong"
    if "match" in text:
        return "write the name in `nats` that the certificate is for"
    return "set ca_file to the certificate that signed it (`tandem-agent join` writes it)"


async def _key(url: str, seed: str | None, tls: ssl.SSLContext | None) -> None:
    """Log in as the agent does, and leave."""
    link = Link({}, on_lost=lambda _: None, on_denied=lambda *_: None)
    try:
        await link.open(url, tls=tls, seed=seed, timeout_s=_STEP_S, name="doctor")
    except TimeoutError:
        raise _StepError("key", "the server does not answer the login", "look at the server's log") from None
    except Exception as error:  # noqa: BLE001 - nats-py has no common class for them
        todo = "the server does not know this key, or it was revoked: have this worker invited again, then join"
        raise _StepError("key", str(error) or type(error).__name__, todo) from None
    finally:
        await link.discard(1.0)
