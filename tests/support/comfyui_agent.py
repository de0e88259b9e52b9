"""An agent as a program of the tests, whose one executor is the real one for ComfyUI.

python -m tests.support.comfyui_agent TABLE        settings from TANDEM_AGENT_*; TABLE is the executor's, as JSON
"""

import asyncio
import json
import signal
import sys
from typing import Any

from agent.executors.comfyui import ComfyUIExecutor
from agent.service import run_agent
from agent.settings import load_settings
from shared import log


async def _main(table: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_agent(load_settings(), stop=stop, executors=[ComfyUIExecutor.from_settings(table)])


if __name__ == "__main__":
    log.configure(json=True, level="info")
    asyncio.run(_main(json.loads(sys.argv[1])))
