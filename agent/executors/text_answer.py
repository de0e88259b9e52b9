"""A text as it comes from a backend, and who hears of it: the job's progress and the clocks. Used by `text`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.executors.base import Progress
from agent.executors.clocks import Clocks

_DETAIL_EVERY_S = 0.25


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a backend said. `finish` is None until the end marker has come."""

    parts: list[str] = field(default_factory=list)
    size: int = 0  # of the text in bytes
    pieces: int = 0  # outputs so far, thinking included
    model: str | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    tokens: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # more that is recorded with the settings
    timings: dict[str, float] = field(default_factory=dict)  # what the server measured, in seconds

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.parts)


class Telling:
    """Follows a generation as it comes: tells the job's progress, feeds the clocks, and stops what grows too big."""

    def __init__(
        self, progress: Progress, clocks: Clocks, max_tokens: int, most_bytes: int, now: Callable[[], float]
    ) -> None:
        """Begin the stage `loading_model`: nothing comes while the model is loaded and the prompt is read."""
        self.clocks = clocks
        self._progress, self._max_tokens, self._most_bytes, self._now = progress, max_tokens, most_bytes, now
        self._told_at = float("-inf")
        progress.stage("loading_model")

    def waiting(self, why: str) -> None:
        """Say that the backend has not come to this job yet: the first-output clock starts again."""
        self.clocks.wait_again()
        self._progress.detail(why)

    def output(self, answer: Answer, text: str, *, thinking: bool = False) -> None:
        """Take a piece of output; thinking is life, but no text. TooMuch when it grows too big."""
        self.clocks.output()
        answer.pieces += 1
        if answer.pieces == 1:
            self._progress.stage("generating_text")
        if not thinking:
            answer.parts.append(text)
            answer.size += len(text.encode("utf-8", "replace"))
            if answer.size > self._most_bytes:
                raise TooMuch
        self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        now = self._now()
        if now - self._told_at < _DETAIL_EVERY_S:
            return
        self._told_at = now
        passed_s = self.clocks.elapsed_s - (self.clocks.first_s or 0)
        speed = f", {answer.pieces / passed_s:.1f} tokens/s" if passed_s > 0 else ""
        self._progress.detail(f"{answer.pieces} tokens{speed}")
        self._progress.progress(min(answer.pieces / self._max_tokens, 1.0))


class TooMuch(Exception):  # noqa: N818
    """The answer grew over `most_bytes`."""


class Nobody:
    """Hears the progress of a probe."""

    def stage(self, name: str) -> None:
        """Hear it."""

    def progress(self, fraction: float) -> None:
        """Hear it."""

    def detail(self, text: str) -> None:
        """Hear it."""


def usage(answer: Answer) -> dict[str, Any]:
    """Return how many tokens there were, by the server's count if it gave one."""
    counted = {"prompt_tokens": answer.prompt_tokens, "tokens": answer.tokens}
    return {name: count for name, count in counted.items() if count is not None} or {"tokens": answer.pieces}


def timings(answer: Answer, clocks: Clocks) -> dict[str, float]:
    """Return how long what took, in seconds; what the server measured itself wins."""
    total_s, first_s = clocks.elapsed_s, clocks.first_s or 0.0
    took = {"first_output_s": first_s, "total_s": total_s}
    tokens, spent_s = answer.tokens or answer.pieces, answer.timings.get("generation_s") or total_s - first_s
    if spent_s > 0:
        took["tokens_per_s"] = tokens / spent_s
    return {name: round(value, 3) for name, value in {**took, **answer.timings}.items()}
