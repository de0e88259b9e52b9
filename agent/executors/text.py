"""What the text executors share: a job's order for a backend, telling its progress, and proving its answer.

A subclass speaks to its server (`generate`); what it returns is believed only if the text is there, has its end
marker, comes from the model that was asked, and holds what the job's format says (facts/executors.md B.4).
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping

from pydantic import ValidationError

from agent.executors import text_json
from agent.executors.base import (
    BackendDown,
    Elsewhere,
    ExecutorError,
    Permanent,
    Product,
    ProductFile,
    Progress,
    RunnableJob,
)
from agent.executors.clocks import Clocks, Limit, OutOfTime
from agent.executors.http import HttpExecutor
from agent.executors.text_answer import Answer, Nobody, Telling, TooMuch, timings, usage
from agent.executors.text_order import Order, TextSettings, order_of, tiny_order
from agent.executors.transport import CutOff, Refused
from agent.executors.verdicts import Finding, Verdict, look_up
from shared import subjects
from shared.submission import ArticleSpec
from shared.wire import Capability, faults_of

KIND = "article"
MOST_MODELS = 200

EMPTY = Finding(Verdict.EITHER, "empty")
NO_END = Finding(Verdict.RETRY_THEN_ROUTE, "no_end_marker")
DIED = Finding(Verdict.RETRY_THEN_ROUTE, "cut_off")
WRONG_MODEL = Finding(Verdict.ROUTE, "wrong_model")
TRUNCATED = Finding(Verdict.FAIL, "truncated")
BAD_ANSWER = Finding(Verdict.RETRY_THEN_FAIL, "bad_answer")
TOO_MUCH = Finding(Verdict.FAIL, "too_much_text")
OUT_OF_TIME = {
    Limit.FIRST: Finding(Verdict.RETRY, "no_output"),
    Limit.IDLE: Finding(Verdict.RETRY, "stalled"),
    Limit.TOTAL: Finding(Verdict.RETRY, "too_slow"),
}


class TextExecutor(HttpExecutor):
    """Writes articles with some server's models."""

    def __init__(self, settings: TextSettings) -> None:
        """Nothing is opened."""
        super().__init__(settings)
        self.settings = settings
        self.offered: dict[str, str] = {}  # the name in jobs: the server's name; filled by `look`
        self.server = ""  # which server speaks the protocol, if that is known
        self.proven = ""  # the server's name of the model that gave the last good answer

    @abstractmethod
    async def generate(self, order: Order, telling: Telling) -> Answer:
        """Have a text generated and hand each piece to `telling`; any exception of transport."""

    @abstractmethod
    def same_model(self, asked: str, answered: str) -> bool:
        """Say whether the model that answered is the one that was asked."""

    def expected(self) -> list[Capability]:
        """Return the models of the settings."""
        names = list(self.settings.models)
        return [Capability(kind=KIND, models=names[:MOST_MODELS], executor=self.name)] if names else []

    def lacks(self) -> dict[str, str]:
        """Return the models of the settings that the server does not have."""
        models = self.settings.models
        named = [*(models.values() if isinstance(models, dict) else models)]
        named += [name for name in (self.settings.default_model, self.settings.probe_model) if name]
        there = {subjects.slug(name) for pair in self.offered.items() for name in pair}
        return {f"model {name}": self.remedy(name) for name in named if subjects.slug(name) not in there}

    def remedy(self, model: str) -> str:
        """Return what to do for a model that the server does not have."""
        return f"load or install {model} there, or correct executors.{self.name}"

    async def settle(self) -> None:
        """Return when the server is idle after a generation was dropped, or when that can't be known."""

    def digest(self, model: str) -> str | None:  # noqa: ARG002
        """Return the digest of a model, if the server has one."""
        return None

    def check(self, order: Order, answer: Answer) -> tuple[Finding, str] | None:  # noqa: ARG002
        """Say what else is wrong with an answer, as this server may get it wrong."""
        return None

    def tiny_order(self, model: str) -> Order:
        """Return the order of a tiny generation."""
        return tiny_order(self.settings, model)

    def weigh(self, refused: Refused) -> Finding | None:  # noqa: ARG002
        """Say what an error means whose words alone don't tell; None: look it up in the table."""
        return None

    def offers(self, names: Mapping[str, str]) -> list[Capability]:
        """Note the models that are there, and return the capabilities to announce."""
        self.offered = dict(list(names.items())[:MOST_MODELS])
        if not self.offered:
            return []
        return [Capability(kind=KIND, models=list(self.offered), executor=self.name)]

    async def generate_a_little(self) -> None:
        """Have a few tokens written."""
        model = self._probe_model()
        order = self.tiny_order(model)
        clocks = Clocks(self.settings, self.now)
        async with clocks.running():
            answer = await self.generate(
                order, Telling(Nobody(), clocks, order.max_tokens, self.settings.most_bytes, self.now)
            )
        if answer.finish is None:
            raise BackendDown("probe", "a tiny generation had no end marker")
        if not answer.pieces:
            raise BackendDown("probe", "a tiny generation was empty")
        if answer.model is not None and not self.same_model(model, answer.model):
            raise BackendDown("probe", f"asked for {model}, {answer.model} answered")

    async def work(self, job: RunnableJob, progress: Progress) -> Product:
        """Write an article."""
        order = self.order_of(job)
        clocks = Clocks(self.settings.learned(job.no_progress_s), self.now)
        telling = Telling(progress, clocks, order.max_tokens, self.settings.most_bytes, self.now)
        try:
            async with clocks.running():
                answer = await self.generate(order, telling)
            if answer.finish is None:
                raise await self._died(job, NO_END, "the answer ended without its end marker")
        except OutOfTime as over:
            await self._dropped(str(over))
            raise self.found_out(job, OUT_OF_TIME[over.limit], str(over)) from None
        except TooMuch:
            await self._dropped(None)
            raise self.found_out(job, TOO_MUCH, f"over {self.settings.most_bytes} bytes of text") from None
        except Refused as refused:
            raise self._refused(job, order, refused) from None
        except CutOff as cut:
            raise await self._died(job, DIED, str(cut)) from None
        except asyncio.CancelledError:
            await self._dropped(None)
            raise
        return await self._product(job, order, answer, clocks)

    # ---- before

    def order_of(self, job: RunnableJob) -> Order:
        """Return what to ask; Permanent if the spec is wrong, Elsewhere if the model isn't here."""
        if job.kind != KIND:
            raise Elsewhere("unknown_kind", f"{self.name} does not do {job.kind}")
        try:
            spec = ArticleSpec.model_validate(job.spec)
        except ValidationError as error:
            faults = [fault.model_dump() for fault in faults_of(error, "spec")]
            raise Permanent("bad_spec", "the spec can't be read", faults) from None
        return order_of(spec, self.settings, self.model_of(job))

    def model_of(self, job: RunnableJob) -> str:
        """Return the server's name of the job's model; Elsewhere if it isn't offered: a guess would load another."""
        wanted = job.model or self.settings.default_model
        if wanted is None:
            warm = [self.offered[name] for name in self.found.warm if name in self.offered]
            if found := [*warm, *self.offered.values()]:
                return found[0]
        elif there := self.there(wanted):
            return there
        raise Elsewhere("model_missing", f"{self.name} here has no model {wanted or 'at all'}")

    def there(self, wanted: str) -> str | None:
        """Return the server's name of a model by its name in jobs, or by its lane's; None: it isn't offered."""
        if wanted in self.offered:
            return self.offered[wanted]
        slug = subjects.slug(wanted)
        return next((there for name, there in self.offered.items() if subjects.slug(name) == slug), None)

    def _probe_model(self) -> str:
        if self.settings.probe_model is not None:
            return self.offered.get(self.settings.probe_model, self.settings.probe_model)
        warm = [self.offered[name] for name in self.found.warm if name in self.offered]
        return warm[0] if warm else self.small_model()

    def small_model(self) -> str:
        """Return the server's name of a model that is quickly loaded."""
        return next(iter(self.offered.values()))

    # ---- after

    async def _product(self, job: RunnableJob, order: Order, answer: Answer, clocks: Clocks) -> Product:
        text = answer.text
        wrong = self._wrong(order, answer) or self.check(order, answer)
        if wrong is not None:
            if wrong[0] is EMPTY:
                self.hold_back(wrong[1])  # a GPU that died answers with nothing, for ever: let it prove itself
            raise self.found_out(job, *wrong, answer)
        name, media_type = "article.md", "text/markdown"
        if order.format != "markdown":
            name, media_type = "article.json", "application/json"
            try:
                text = await asyncio.to_thread(text_json.document, text, order.format)
            except ValueError as error:
                raise self.found_out(job, BAD_ANSWER, str(error), answer) from None
        self.proven = order.model
        path = job.workspace / name
        await asyncio.to_thread(path.write_text, text, encoding="utf-8", errors="replace")
        digest = self.digest(order.model)
        facts = {"executor": self.name, "version": self.found.version, "digest": digest, **answer.facts}
        return Product(
            result={
                "text": text,
                "finish": answer.finish,
                "usage": usage(answer),
                "timings": timings(answer, clocks),
            },
            files=[ProductFile(path, media_type)],
            model=answer.model or order.model,
            settings=order.settings() | {key: value for key, value in facts.items() if value},
        )

    def _wrong(self, order: Order, answer: Answer) -> tuple[Finding, str] | None:
        """Say what is wrong with a whole answer."""
        if answer.model is not None and not self.same_model(order.model, answer.model):
            return WRONG_MODEL, f"asked for {order.model}, {answer.model} answered"
        only_thought = answer.pieces > len(answer.parts) and not answer.text.strip()
        if answer.finish == "length" and (only_thought or not order.allow_length):
            return TRUNCATED, f"cut off at {answer.tokens or answer.pieces} tokens; give options.max_tokens or context"
        if not answer.text.strip():
            return EMPTY, "the answer is empty"
        if answer.finish not in {"stop", "length"}:
            return BAD_ANSWER, f"the answer ended with {answer.finish!r}"
        return None

    def found_out(self, job: RunnableJob, finding: Finding, said: str, answer: Answer | None = None) -> ExecutorError:
        """Return the error for something that was seen here."""
        more = {} if answer is None else {"finish": answer.finish, "pieces": answer.pieces}
        facts = {"server": self.server, "version": self.found.version, **more}
        return self.judge.verdict(job, finding, said, **facts)

    def _refused(self, job: RunnableJob, order: Order, refused: Refused) -> ExecutorError:
        said = order.without_prompt(refused.text)
        finding = self.weigh(refused) or look_up(self.name, refused.text, status=refused.status, server=self.server)
        if finding.verdict in {Verdict.BUSY, Verdict.DOWN}:
            self.hold_back(said, refused.retry_after_s or 0)
        if finding.verdict is Verdict.DOWN and self.judge.met_before(job, finding.code):  # the job may be the reason
            finding = Finding(Verdict.RETRY_THEN_ROUTE, finding.code)
        facts = {"status": refused.status, "server": self.server, "version": self.found.version}
        return self.judge.verdict(job, finding, said, **facts)

    async def _died(self, job: RunnableJob, finding: Finding, said: str) -> ExecutorError:
        """Say what an answer means that broke off.

        A backend that is gone is no fault of the job, the first time. One that goes whenever this job comes may have
        died of it: out of memory, an option that it can't bear.
        """
        self.hold_back(said)
        try:
            await self.look()
        except (BackendDown, Refused, CutOff) as error:
            if not self.judge.met_before(job, DIED.code):
                return BackendDown(DIED.code, f"{said}; then {error}")
        return self.found_out(job, finding, said)

    async def _dropped(self, doubt: str | None) -> None:
        if doubt is not None:
            self.hold_back(doubt)
        # A task of its own: before Python 3.11.3 asyncio.timeout fails in a task that is being cancelled.
        settling = asyncio.create_task(self.settle(), name="settle")
        try:
            await asyncio.wait({settling})
        finally:
            settling.cancel()
