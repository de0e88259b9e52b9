"""An agent as a program of the tests, with the real executor for ComfyUI.

python -m tests.support.comfyui_agent TABLES        settings from TANDEM_AGENT_*; TABLES are its executors', as JSON
"""

import asyncio
import json
import signal
import sys
from typing import Any

from agent.executors.registry import load_executors
from agent.service import run_agent
from agent.settings import load_settings
from shared import log


async def _main(tables: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_agent(load_settings(), stop=stop, executors=load_executors(tables))


if __name__ == "__main__":
    log.configure(json=True, level="info")
    asyncio.run(_main(json.loads(sys.argv[1])))
