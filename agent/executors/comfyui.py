"""The executor for ComfyUI: image jobs by fields or by the caller's own workflow.

`HttpExecutor` looks after the server; here a job becomes a graph, the graph a prompt (comfyui_prompt), and the
prompt's files a product that is proven by its content. An attempt's prompt has a name of its own, derived from job
and epoch: whoever runs the attempt again finds what is running, or its result, instead of making it twice.
"""

import asyncio
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import structlog
from pydantic import ValidationError
from yarl import URL

from agent.executors import comfyui_graph as graphs
from agent.executors import comfyui_outcome as outcomes
from agent.executors.base import BackendDown, Elsewhere, Permanent, Product, Progress, RunnableJob, Transient
from agent.executors.clocks import Clocks, Limit, Limits, OutOfTime
from agent.executors.comfyui_client import Client, NoAnswer, Refused
from agent.executors.comfyui_discovery import missing_files, proposed_models, remedies
from agent.executors.comfyui_graph import Graph
from agent.executors.comfyui_inputs import Inputs
from agent.executors.comfyui_product import collect, fetch, refs_of
from agent.executors.comfyui_progress import Follower, Unheard
from agent.executors.comfyui_prompt import VANISHED, Away, Failed, Prompt, stopped
from agent.executors.comfyui_settings import ComfyUISettings
from agent.executors.http import Found, HttpExecutor
from agent.executors.transport import Transport
from agent.executors.verdicts import OUT_OF_MEMORY, Finding, Verdict
from shared import subjects
from shared.submission import ImageSpec
from shared.wire import Capability, faults_of

_GIB = 1024**3
_TURNS = 2
_AGAIN = frozenset({OUT_OF_MEMORY, "input_missing"})
"""What is tried once more here: with memory freed, with the input images uploaded again."""
_DIED = Finding(Verdict.RETRY_THEN_ROUTE, "server_died")
_NOT_BEGUN = Finding(Verdict.BUSY, "busy")
_log = structlog.get_logger()


class ComfyUIExecutor(HttpExecutor):
    """Implements `base.Executor`, `base.Backed`, `base.Lacking` and `base.Proposing`."""

    name: ClassVar[str] = outcomes.BACKEND

    def __init__(self, settings: ComfyUISettings) -> None:
        """Nothing is opened."""
        super().__init__(settings)
        self.settings = settings
        self._strangers = Transport(  # sends no token
            settings.url, api_key=None, connect_s=settings.connect_s, answer_s=settings.answer_s
        )
        self.client = Client(self.session, settings.url, settings.answer_s)
        self._inputs = Inputs(self._strangers.session, self.client, settings)
        self._missing: dict[str, list[str]] = {}
        self._loaded: str | None = None  # the model that made the last picture
        self._made_by = ""  # by this prompt: a server keeps its model only until another prompt runs

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Make it from `[executors.comfyui]`."""
        return cls(ComfyUISettings.model_validate(dict(table)))

    async def aclose(self) -> None:
        """End it."""
        await super().aclose()
        await self._strangers.close()

    def status(self) -> dict[str, Any]:
        """Return what a person wants to know of the server; `missing`: the files that configured models lack."""
        return {**super().status(), "missing": self._missing}

    def expected(self) -> list[Capability]:
        """Return the models of the settings."""
        return self._offering(list(self.settings.models))

    def _offering(self, models: list[str]) -> list[Capability]:
        models += ["*"] if self.settings.workflows else []
        return [Capability(kind="image", models=models, executor=self.name)] if models else []

    def lacks(self) -> dict[str, str]:
        """Return the configured models that lack files."""
        return remedies(self._missing)

    async def proposal(self) -> dict[str, Any]:
        """Return the server's checkpoints as models; callers' own workflows are then run only if somebody says so."""
        try:
            models = await proposed_models(self.client)
        except (Refused, NoAnswer):
            models = {}
        return {"workflows": False, "models": models} if models else {}

    async def need_bytes(self, job: RunnableJob) -> int | None:
        """Return what the settings say of the job's model; 0 if it made the server's last picture."""
        model = self._model_of(job.model) if job.spec.get("workflow") is None else None
        await self._see_loaded()
        if model is not None and model == self._loaded:
            return 0
        gib = self.settings.models[model].memory_gib if model is not None else None
        return None if gib is None else round(gib * _GIB)

    async def unload(self) -> None:
        """Have the server drop its models; it does so between prompts."""
        self._loaded = None
        try:
            await self.client.free()
        except (Refused, NoAnswer) as error:
            _log.warning("comfyui frees no memory", error=str(error))

    async def _see_loaded(self) -> None:
        """Believe no longer that a model is loaded if another prompt has run since, or the server was restarted."""
        if self._loaded is None:
            return
        made_by = self._made_by
        try:
            newest = await self.client.newest()
        except (Refused, NoAnswer):
            newest = None
        if newest != made_by == self._made_by:  # no job has ended meanwhile
            self._loaded = None

    # ---- health

    async def look(self) -> Found:
        """Ask for the version, and for the files of the configured models; a model that lacks one is not offered."""
        try:
            stats = await self.client.stats()
            missing = await missing_files(self.client, self.settings.models)
        except Refused as error:
            raise BackendDown("unreachable", str(error)) from None
        except NoAnswer as error:
            raise BackendDown("no_answer", str(error)) from None
        system = stats.get("system")
        if not isinstance(system, dict) or "comfyui_version" not in system:
            raise BackendDown("not_comfyui", f"{URL(self.settings.url).with_user(None)} is no ComfyUI")
        if missing != self._missing:
            _log.warning("comfyui lacks files", missing=missing)
        self._missing = missing
        await self._see_loaded()
        models = [name for name in self.settings.models if name not in missing]
        warm = [self._loaded] if self._loaded in models else []
        return Found(capabilities=self._offering(models), warm=warm, version=str(system["comfyui_version"]))

    async def generate_a_little(self) -> None:
        """Have a tiny picture made, and look at it."""
        model = self.settings.models[self.settings.probe_model] if self.settings.probe_model else None
        prompt = self._prompt(graphs.probe(model), str(uuid.uuid4()), Unheard())
        try:
            entry = await prompt.run()
            with tempfile.TemporaryDirectory() as folder:
                for ref in refs_of(prompt.graph, entry):
                    picture = await fetch(self.client, ref, Path(folder) / "probe", self.settings.most_image_bytes)
                    if model is None or not picture.flat:
                        self._loaded, self._made_by = self.settings.probe_model, prompt.id
                        return
        except (Failed, OutOfTime, Away, NoAnswer, Refused) as error:
            raise BackendDown("probe", f"the tiny picture failed: {error}") from None
        raise BackendDown("probe", "the tiny picture is one flat colour")

    async def abandon(self, job_id: str, epoch: int) -> None:
        """Stop what an earlier process of this agent left running for an attempt that is no longer its own."""
        ids = [graphs.prompt_id_of(job_id, epoch, turn) for turn in range(1, _TURNS + 1)]
        try:
            async with asyncio.timeout(self.settings.stop_s):
                for prompt_id in ids:
                    await stopped(self.client, prompt_id)
        except TimeoutError:
            self.hold_back(f"prompt {prompt_id} did not stop in {self.settings.stop_s:g} s")

    # ---- jobs

    async def work(self, job: RunnableJob, progress: Progress) -> Product:
        """Make a job's images."""
        if job.kind != "image":
            raise Elsewhere("unknown_kind", f"comfyui does not do {job.kind}")
        try:
            spec = ImageSpec.model_validate(job.spec)
        except ValidationError as error:
            faults = [fault.model_dump() for fault in faults_of(error, "spec")]
            raise Permanent("bad_spec", "the spec can't be read", faults) from None
        try:
            return await self._turns(job, spec, progress)
        except Failed as failed:
            fault = failed.fault
            facts = {"status": fault.status, "version": self.found.version}
            raise self.judge.verdict(job, fault.finding, fault.text, **facts) from None
        except Away as error:
            raise BackendDown("unreachable", str(error)) from None
        except Refused as error:  # when its inputs were put there, or its images fetched
            self.hold_back(str(error))
            if self.judge.met_before(job, "unreachable"):
                raise self.judge.verdict(job, _DIED, f"the server is gone at this job again: {error}") from None
            raise BackendDown("unreachable", str(error)) from None
        except NoAnswer as error:
            raise Transient("no_answer", str(error)) from None
        except _NeverBegun as late:
            said = f"the server did not begin with it: {late}"
            self.hold_back(said)
            raise self.judge.verdict(job, _NOT_BEGUN, said, version=self.found.version) from None
        except OutOfTime as late:
            self.hold_back(f"no progress: {late}")  # until a tiny picture shows that its worker lives
            raise Transient("no_progress", f"stopped: {late}", {"clock": late.limit}) from None

    async def _turns(self, job: RunnableJob, spec: ImageSpec, progress: Progress) -> Product:
        """Run the job's prompt, and once more after what another try here can heal."""
        for turn in range(1, _TURNS + 1):
            graph = await self._graph(job, spec, turn)
            try:
                return await self._turn(job, spec, progress, graph, turn)
            except Failed as failed:
                code = failed.fault.finding.code
                if turn == _TURNS or code not in _AGAIN:
                    if code == OUT_OF_MEMORY:
                        finding = Finding(Verdict.ROUTE, OUT_OF_MEMORY)
                        raise Failed(outcomes.Fault(finding, failed.fault.text)) from None
                    raise
                _log.info("comfyui: once more", job_id=job.id, epoch=job.epoch, code=code)
                progress.detail(f"once more: {code}")
                if code == OUT_OF_MEMORY:
                    await self.surroundings.free_memory(f"{self.name} ran out of memory")
                    await self.unload()
        raise AssertionError

    async def _turn(self, job: RunnableJob, spec: ImageSpec, progress: Progress, graph: Graph, turn: int) -> Product:
        began_at = self.now()
        limits = self.settings.learned(job.no_progress_s)
        prompt = self._prompt(graph, graphs.prompt_id_of(job.id, job.epoch, turn), progress, limits)
        try:
            entry = await prompt.run()
        except OutOfTime as late:
            if late.limit is Limit.FIRST and not prompt.follower.begun:  # no fault of the job
                raise _NeverBegun(late.limit, late.limit_s) from None
            raise
        except Failed as failed:
            if failed.fault.finding == VANISHED and not self.judge.met_before(job, VANISHED.code):
                raise BackendDown(VANISHED.code, failed.fault.text) from None
            raise
        except Away as away:
            self.hold_back(str(away))
            if self.judge.met_before(job, _DIED.code if prompt.follower.begun else "unreachable"):  # it may be the job
                raise Failed(outcomes.Fault(_DIED, f"the server died under this job again: {away}")) from None
            raise
        finally:
            if prompt.stuck:
                self.hold_back(f"prompt {prompt.id} did not stop in {self.settings.stop_s:g} s")
        progress.stage("finalizing")
        most_bytes, keep = self.settings.most_image_bytes, bool(spec.keep_metadata)
        files = await collect(self.client, job, graph, entry, most_bytes=most_bytes, keep_metadata=keep)
        model = self._model_of(job.model) if spec.workflow is None else None
        self._loaded, self._made_by = model, prompt.id
        settings = {
            **graph.settings,
            "comfyui_version": self.found.version,
            "prompt_id": prompt.id,
            "adopted": prompt.adopted,
            "turn": turn,
            "timings": {**prompt.follower.timings, "total_s": round(self.now() - began_at, 3)},
        }
        result = {"images": len(files), "seed": graph.settings.get("seed")}
        return Product(result=result, files=files, model=model or job.model or "workflow", settings=settings)

    def _prompt(self, graph: Graph, prompt_id: str, progress: Progress, limits: Limits | None = None) -> Prompt:
        clocks = Clocks(limits or self.settings, self.now)
        follower = Follower(prompt_id, graph.nodes, progress, clocks, self.now)
        return Prompt(
            client=self.client, settings=self.settings, clocks=clocks, follower=follower, graph=graph, id=prompt_id
        )

    async def _graph(self, job: RunnableJob, spec: ImageSpec, turn: int) -> Graph:
        prefix = f"tandem/{graphs.prompt_id_of(job.id, job.epoch, turn)}"
        if spec.workflow is not None:
            if not self.settings.workflows:
                raise Elsewhere("no_workflows", "this agent runs no workflows of callers (workflows = false)")
            graphs.from_workflow(spec, spec.inputs or {}, prefix=prefix)  # its faults, before anything is fetched
            inputs = await self._inputs.put(spec.inputs or {}, lambda: job.workspace)
            return graphs.from_workflow(spec, inputs, prefix=prefix)
        model = self._model_of(job.model)
        if model is None:
            raise Elsewhere("no_model", f"no model {job.model!r} is configured here")
        seed = graphs.seed_of(job.id, job.epoch) if spec.seed is None else spec.seed
        return graphs.from_fields(spec, self.settings.models[model], seed=seed, prefix=prefix)

    def _model_of(self, wanted: str | None) -> str | None:
        """Return the configured model that a job means: by its name, by its lane's; the first one if it names none."""
        models = self.settings.models
        if wanted is None:
            return next((name for name in models if name not in self._missing), None)
        slug = subjects.slug(wanted)
        return wanted if wanted in models else next((name for name in models if subjects.slug(name) == slug), None)


class _NeverBegun(OutOfTime):
    """Other prompts, or a dead worker, kept ours waiting."""
