"""How an agent reaches its server: the bus that the settings describe, and what it trusts. For service and doctor."""

import ssl

from agent.settings import AgentSettings
from shared.bus import Bus
from shared.errors import ConfigurationError


def open_bus(settings: AgentSettings, instance: str, seed: str | None, tls: ssl.SSLContext | None) -> Bus:
    """Return the agent's bus, not yet entered."""
    return Bus(
        settings.nats,
        name=f"agent-{settings.worker}-{instance}",
        seed=seed,
        inbox_prefix=f"_INBOX.{settings.worker}",
        js_prefix=settings.js_prefix,
        tls=tls,
        reconnect_delays_s=settings.reconnect_s,
    )


def tls_context(settings: AgentSettings) -> ssl.SSLContext | None:
    """Return what to trust beside the system's certificates; None: nothing special is set."""
    if settings.ca_file is None:
        return None
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(settings.ca_file.expanduser())
    except (OSError, ssl.SSLError) as error:
        msg = f"ca_file {settings.ca_file}: {error}"
        raise ConfigurationError(msg) from None
    return context
