"""Why would this agent not work? Each check says what it found, and what to do about a fault. Called by `cli`."""

import asyncio
import os
import uuid
from importlib.metadata import version
from pathlib import Path

from agent.connection import open_bus, tls_context
from agent.doctor_link import examine_link, local_network_cure
from agent.doctor_machine import examine_machine, examine_versions
from agent.executors.base import Backed, Executor, Lacking
from agent.executors.http import NOT_YET
from agent.executors.memory import read_memory
from agent.executors.registry import Registry, load_executors
from agent.host import Clock
from agent.settings import AgentSettings
from agent.workspace import FolderInUseError, data_folder
from shared import subjects
from shared.bus import Bus, BusDown, BusError, Denied, NoResponders
from shared.errors import ConfigurationError
from shared.finding import Finding
from shared.wire import Capability, LeaseQuestion, LeaseReply

_CONNECT_S = 4.0
_ANSWER_S = 5.0
_LEAST_FREE_BYTES = 1024**3
_SETTLE_S = 2.0
_PROBE_S = 120.0
_GIB = 1024**3
_MOST_MODELS = 5
_START = {
    "ollama": "start it: open the Ollama app, or run `ollama serve`",
    "openai": "start it: LM Studio's server, mlx_lm.server or llama-server",
    "comfyui": "start it: `python main.py` in its folder, or the ComfyUI app (which listens on port 8000)",
}


async def examine(settings: AgentSettings) -> list[Finding]:
    """Run every check; none of them changes anything that an agent or the coordinator could notice."""
    folder, running = _folder(settings)
    found = [_settings(settings), *folder, await _memory(), *await examine_machine(settings)]
    found += await _executors(settings, running=running)
    found += await _server(settings)
    return found


def _settings(settings: AgentSettings) -> Finding:
    try:
        seed = settings.read_seed()
        tls_context(settings)
    except ConfigurationError as error:
        return Finding("settings", False, str(error), "mend the setting that is named")
    if seed is None:
        todo = "set seed_file to the file that `tandem up --worker NAME` or your administrator made"
        return Finding("settings", False, "no nkey seed", todo)
    slots = f"{settings.slots} slot{'' if settings.slots == 1 else 's'}"
    return Finding("settings", True, f"worker {settings.worker}, {slots}, rank {settings.rank}")


def _folder(settings: AgentSettings) -> tuple[list[Finding], bool]:
    """Return what there is to say of the data folder, and whether an agent runs in it."""
    root = Path(settings.data).expanduser()
    try:
        with data_folder(root, f"doctor {uuid.uuid4()}") as path:
            probe = path / f".doctor-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
            space = os.statvfs(path)
    except ConfigurationError as error:
        if isinstance(error, FolderInUseError):
            return [Finding("data folder", True, f"{root}, an agent runs there ({error.owner})")], True
        return [Finding("data folder", False, str(error), "choose a folder that this user may write")], False
    except OSError as error:
        return [Finding("data folder", False, str(error), f"make {root} writable, or set data")], False
    free = space.f_bavail * space.f_frsize
    todo = "free some space: results are kept on disk until they are delivered"
    return [Finding("data folder", free >= _LEAST_FREE_BYTES, f"{root}, {free // 1024**2} MiB free", todo)], False


async def _memory() -> Finding:
    reading = await read_memory()
    if reading is None:
        return Finding("memory", True, "can't be read here; models are not unloaded for one another")
    free, total = (size / _GIB for size in (reading.available_bytes, reading.total_bytes))
    return Finding("memory", True, f"{free:.1f} GiB free of {total:.1f} GiB")


async def _executors(settings: AgentSettings, *, running: bool) -> list[Finding]:
    """Look at each backend. While an agent runs, none is made to generate: its jobs have the GPU."""
    try:
        plugins = load_executors(settings.executors)
        if running:
            tables = zip(settings.executors.items(), plugins, strict=True)
            plugins = load_executors(
                {name: {**table, "probe_s": 0} if _probes(plugin) else table for (name, table), plugin in tables}
            )
        async with Registry(plugins, Clock().now) as registry:
            for number in range(round(_PROBE_S / 0.1)):  # a plugin may still be looking for its backend
                able = {capability.executor for capability in registry.capabilities()}
                if able >= set(settings.executors) or (number * 0.1 > _SETTLE_S and not _looking(plugins)):
                    break
                await asyncio.sleep(0.1)
            able_now = registry.capabilities()
            return [
                finding
                for plugin in plugins
                for finding in (await _allowed(plugin, _executor(plugin, able_now)), *_lacks(plugin))
            ]
    except ConfigurationError as error:
        return [Finding("executors", False, str(error), "mend [executors] in the settings")]


def _probes(plugin: Executor) -> bool:
    """Whether it makes its backend generate now and then, unless it is told not to."""
    return isinstance(plugin, Backed) and "proven_ago_s" in plugin.status()


def _looking(plugins: list[Executor]) -> bool:
    """Whether a backend has not answered yet, or loads a model for its first tiny generation."""
    return any(isinstance(plugin, Backed) and plugin.status()["reason"] == NOT_YET for plugin in plugins)


def _executor(plugin: Executor, capabilities: list[Capability]) -> Finding:
    able = [f"{c.kind} ({_names(c.models)})" for c in capabilities if c.executor == plugin.name]
    said, todo = ", ".join(able) or "can do nothing now", "start its backend, and check its address or program"
    if isinstance(plugin, Backed):
        status = plugin.status()
        took_s = status["probe_took_s"]
        facts = [f"version {status['version']}"] if status["version"] else []
        facts += [f"loaded {_names(status['warm'])}"] if status["warm"] else []
        proof = "not made to generate now" if took_s is None else f"a tiny generation took {took_s:g} s"
        facts += [proof] if able else []
        said = "; ".join([said, *facts])
        down = f"{status['reason']}; {_START.get(plugin.name, todo)}" if status["reason"] else ""
        todo = f"{status['url']}: {down or 'it has no model that fits the settings: install one'}"
    return Finding(f"executor {plugin.name}", bool(able), said, todo)


async def _allowed(plugin: Executor, found: Finding) -> Finding:
    """Return what was found, with another cure if it is macOS that keeps this program from the backend."""
    if found.ok or not isinstance(plugin, Backed):
        return found
    cure = await local_network_cure(str(plugin.status()["url"]))
    return found if cure is None else Finding(found.what, False, found.said, cure)


def _lacks(plugin: Executor) -> list[Finding]:
    """Return what is set and missing; of a backend that is down nothing is known."""
    if not isinstance(plugin, Lacking) or (isinstance(plugin, Backed) and not plugin.up):
        return []
    return [
        Finding(f"executor {plugin.name}", False, f"{what} is missing", todo) for what, todo in plugin.lacks().items()
    ]


def _names(models: list[str]) -> str:
    more = f", {len(models) - _MOST_MODELS} more" if len(models) > _MOST_MODELS else ""
    return ", ".join(models[:_MOST_MODELS]) + more


async def _server(settings: AgentSettings) -> list[Finding]:
    try:
        seed, tls = settings.read_seed(), tls_context(settings)
    except ConfigurationError:
        return []  # said already
    urls = [url.strip() for url in settings.nats.split(",")]
    found = [await examine_link(url, seed=seed, tls=tls) for url in urls]
    if not any(finding.ok for finding in found):
        return found
    good = ",".join(url for url, one in zip(urls, found, strict=True) if one.ok)
    found = [one if one.ok else Finding(one.what, True, f"not this way, another works ({one.said})") for one in found]
    async with open_bus(settings.model_copy(update={"nats": good}), f"doctor-{uuid.uuid4()}", seed, tls) as bus:
        try:
            await bus.wait_connected(_CONNECT_S)
        except BusDown as error:
            return [*found, Finding("coordinator", False, str(error), "try again: the way was open a moment ago")]
        return [*found, *await _coordinator(settings, bus)]


async def _coordinator(settings: AgentSettings, bus: Bus) -> list[Finding]:
    """Ask about a lease that nobody has: it needs the rights of this worker, and changes nothing."""
    question = LeaseQuestion(job_id=uuid.UUID(int=0), epoch=1, version=version("tandem")).model_dump_json().encode()
    try:
        message = await bus.request(subjects.lease(settings.worker), question, timeout_s=_ANSWER_S)
        answer = LeaseReply.model_validate_json(message.data)
    except Denied:
        todo = f"this seed is not the one of worker {settings.worker}: check the name, or have it registered"
        return [Finding("coordinator", False, "the server refuses this worker's subjects", todo)]
    except NoResponders:
        return [Finding("coordinator", False, "no coordinator listens", "start it: `tandem coordinator`")]
    except (BusError, ValueError) as error:
        return [Finding("coordinator", False, str(error), "look at the coordinator's log and /readyz")]
    return [Finding("coordinator", True, "answers this worker"), examine_versions(answer.version)]
