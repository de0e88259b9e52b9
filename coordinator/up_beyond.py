"""`tandem up --listen NAME`: what serves other machines. TLS by certificates of the folder's own authority.

    DIR/tls/ca.crt, ca.key          the authority; agents get ca.crt when they join
    DIR/tls/<NAME>.crt, <NAME>.key  made anew when it is about to end; another name gets another one

Page and API stay on loopback without TLS as well, for this machine's command line. Called by `up.py`.
"""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from coordinator.embedded import free_port
from coordinator.init import is_host
from coordinator.init_certificates import ends_at, forget_ending, make_authority, make_server
from shared.errors import ConfigurationError

HTTPS_PORT: Final = 8443

_RENEWED: Final = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class Beyond:
    """How other machines reach this one."""

    name: str  # of this machine, for them
    port: int  # of page and API there
    folder: Path  # of certificates

    @property
    def ca(self) -> Path:
        """What others must trust."""
        return self.folder / "ca.crt"

    @property
    def pair(self) -> tuple[Path, Path]:
        """Certificate and key."""
        return self.folder / f"{self.name}.crt", self.folder / f"{self.name}.key"

    @property
    def url(self) -> str:
        """Page and API for other machines."""
        return f"https://{self._shown}:{self.port}"

    def nats(self, port: int) -> str:
        """Return NATS's address for other machines."""
        return f"tls://{self._shown}:{port}"

    @property
    def _shown(self) -> str:
        return f"[{self.name}]" if ":" in self.name else self.name

    def settings(self, nats_port: int) -> dict[str, Any]:
        """Return the coordinator's settings that follow."""
        cert, key = self.pair
        return {
            "https": f"{host_for(self.name)}:{self.port}",
            "https_cert": cert,
            "https_key": key,
            "public_url": self.url,
            "nats_public_url": self.nats(nats_port),
            "nats_ca": self.ca,
        }


def host_for(text: str) -> str:
    """Return the address to listen on, so that NAME or NAME:PORT is reached: a name of loopback needs no other."""
    return "127.0.0.1" if _parted(text)[0] in ("localhost", "127.0.0.1") else "0.0.0.0"  # noqa: S104 - asked for


def listen_beyond(text: str, data: Path) -> Beyond:
    """Read NAME or NAME:PORT (port 0 = any free one) and make the certificates; ConfigurationError if it is neither."""
    name, port = _parted(text)
    beyond = Beyond(name, port or free_port(host_for(name)), data / "tls")
    beyond.folder.mkdir(mode=0o700, exist_ok=True)
    make_authority(beyond.folder)
    forget_ending(beyond.folder, name, within=_RENEWED)
    make_server(beyond.folder, name, list(dict.fromkeys((name, "localhost", "127.0.0.1"))))
    return beyond


def last_name(data: Path) -> str | None:
    """Return by which NAME a folder served other machines last (its newest certificate); None if it never did."""
    found = [path for path in (data / "tls").glob("*.crt") if path.name != "ca.crt"]
    newest = max(found, key=lambda path: ends_at(ssl.PEM_cert_to_DER_cert(path.read_text())), default=None)
    return newest.stem if newest else None


def _parted(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", str(HTTPS_PORT))
    name = name.strip("[]").lower()
    if not _is_reachable(name) or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004
        msg = f"--listen: not this machine's name or address for others, like mini.local or mini.local:8443: {text!r}"
        raise ConfigurationError(msg)
    return name, int(port)


def _is_reachable(name: str) -> bool:
    try:
        return not ipaddress.ip_address(name).is_unspecified
    except ValueError:
        return is_host(name)
