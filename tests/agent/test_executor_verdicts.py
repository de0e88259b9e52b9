"""The table of error texts, and what becomes of the errors that it does not know."""

import re

import pytest

from agent.executors import verdicts
from agent.executors.base import BackendDown, Elsewhere, Permanent, RunnableJob, Transient
from agent.executors.verdicts import Finding, Judge, Verdict, look_up
from shared.wire import Failure


def met(code="code", verdict=Verdict.RETRY_THEN_FAIL, *, here=False):
    return Failure(code=code, verdict=verdict, here=here)


def job(attempt=1, name="j", failures=None):
    return RunnableJob(
        id=name,
        epoch=1,
        attempt=attempt,
        kind="article",
        model=None,
        spec={},
        labels={},
        open_workspace=lambda: None,
        failures=failures,
    )


def test_every_row_can_be_read_and_names_something_that_fits():
    rows = [(backend, row) for backend, rows in verdicts._table().items() for row in rows]
    assert {backend for backend, _ in rows} >= {"any", "ollama", "openai", "comfyui"}
    for _, row in rows:
        re.compile(row.text)
        assert row.text or row.status
        assert re.fullmatch(r"[a-z_]+", row.code)
        assert all(400 <= status < 600 for status in row.status)


@pytest.mark.parametrize(
    ("verdict", "first", "later"),
    [
        (Verdict.RETRY, Transient, Transient),
        (Verdict.CHECK, Transient, Transient),
        (Verdict.ROUTE, Elsewhere, Elsewhere),
        (Verdict.FAIL, Permanent, Permanent),
        (Verdict.RETRY_THEN_ROUTE, Transient, Elsewhere),
        (Verdict.RETRY_THEN_FAIL, Transient, Permanent),
        (Verdict.DOWN, BackendDown, BackendDown),
        (Verdict.BUSY, BackendDown, BackendDown),
        (Verdict.EITHER, Transient, Elsewhere),
        (Verdict.UNKNOWN, Transient, Permanent),
    ],
)
def test_each_verdict_has_its_error(verdict, first, later):
    """By what the grant says, and by what this process remembers if the coordinator is one that does not say it."""
    judge, finding = Judge("ollama"), Finding(verdict, "code")
    for attempt, error in ((3, first), (4, later), (5, later)):
        assert type(judge.verdict(job(attempt), finding, "said")) is error
    assert type(Judge("ollama").verdict(job(1, failures=[]), finding, "said")) is first
    assert type(Judge("ollama").verdict(job(2, failures=[met(verdict=verdict, here=True)]), finding, "said")) is later


@pytest.mark.parametrize(
    ("verdict", "error"),
    [
        (Verdict.RETRY, Transient),
        (Verdict.RETRY_THEN_ROUTE, Transient),  # another machine's fault
        (Verdict.RETRY_THEN_FAIL, Permanent),
        (Verdict.EITHER, Permanent),
        (Verdict.UNKNOWN, Permanent),
    ],
)
def test_what_another_worker_met_counts_where_it_is_the_job_s_fault(verdict, error):
    judge, finding = Judge("ollama"), Finding(verdict, "code")
    assert type(judge.verdict(job(2, failures=[met(verdict=verdict)]), finding, "said")) is error
    assert type(judge.verdict(job(2, "j2", failures=[met("other", Verdict.RETRY)]), finding, "said")) is Transient


def test_what_the_grant_says_goes_before_what_is_remembered():
    judge, finding = Judge("ollama"), Finding(Verdict.RETRY_THEN_FAIL, "bad_answer")
    assert type(judge.verdict(job(1, failures=[]), finding, "said")) is Transient
    assert type(judge.verdict(job(1, failures=[]), finding, "said")) is Transient  # a person began it anew
    foreign = [Failure(code="bad_answer")]  # a foreign agent's, which has no verdicts
    assert type(judge.verdict(job(2, failures=foreign), finding, "said")) is Permanent


@pytest.mark.parametrize("verdict", [Verdict.RETRY_THEN_ROUTE, Verdict.RETRY_THEN_FAIL])
def test_another_fault_than_before_is_tried_once_more(verdict):
    judge = Judge("ollama")
    for attempt, code in enumerate(("stalled", "bad_answer"), 1):
        assert type(judge.verdict(job(attempt), Finding(verdict, code), "said")) is Transient
    assert type(judge.verdict(job(3), Finding(verdict, "stalled"), "said")) is not Transient


def test_a_job_that_a_person_began_anew_has_met_nothing():
    judge, finding = Judge("ollama"), Finding(Verdict.RETRY_THEN_FAIL, "bad_answer")
    for attempt, error in ((1, Transient), (2, Permanent), (1, Transient), (2, Permanent)):
        assert judge.refusal(job(attempt)) is None
        assert type(judge.verdict(job(attempt), finding, "said")) is error


def test_what_was_not_charged_is_remembered_when_the_same_attempt_comes_again():
    judge = Judge("ollama")
    assert not judge.met_before(job(), "cut_off")
    judge.verdict(job(), Finding(Verdict.DOWN, "unreachable"), "gone")
    assert judge.refusal(job()) is None
    assert judge.met_before(job(), "cut_off")


def test_the_rows_of_any_backend_come_first():
    said = "RuntimeError: MPS backend out of memory (MPS allocated: 17.9 GiB). Tried on shared pool."
    for backend in ("ollama", "openai", "comfyui", "another"):
        assert look_up(backend, said, status=500).code == verdicts.OUT_OF_MEMORY


def test_a_row_for_one_server_does_not_fit_another():
    assert look_up("openai", "'role'", status=404, server="mlx").verdict is Verdict.RETRY_THEN_FAIL
    assert look_up("openai", "'role'", status=404, server="llama.cpp").verdict is Verdict.ROUTE


def test_the_unknown_is_tried_once_more_on_another_worker_and_then_fails():
    here, there = Judge("ollama"), Judge("ollama")
    assert type(here.error(job(1), "never seen", status=500)) is Transient
    assert type(here.refusal(job(2))) is Elsewhere  # it comes back to the same worker: not here
    assert here.refusal(job(2, "another")) is None
    assert here.refusal(job(1)) is None  # a person began it anew
    once = [met(verdicts.UNKNOWN, Verdict.UNKNOWN)]
    assert there.refusal(job(2, failures=once)) is None
    assert type(there.error(job(2, failures=once), "never seen either", status=500)) is Permanent


def test_a_worker_that_was_started_anew_refuses_what_it_met_before():
    once = [met(verdicts.UNKNOWN, Verdict.UNKNOWN, here=True)]
    assert type(Judge("ollama").refusal(job(2, failures=once))) is Elsewhere


def test_a_job_that_is_given_back_again_and_again_is_charged_in_the_end():
    judge, finding = Judge("ollama"), Finding(Verdict.BUSY, "busy")
    for _ in range(verdicts.MOST_RELEASES):
        assert type(judge.verdict(job(failures=[]), finding, "busy")) is BackendDown
    assert type(judge.verdict(job(failures=[]), finding, "busy")) is Transient
    assert type(judge.verdict(job(name="another", failures=[]), finding, "busy")) is BackendDown


def test_what_is_known_is_no_reason_to_give_up_the_unknown():
    judge = Judge("ollama")
    assert type(judge.verdict(job(1), Finding(Verdict.RETRY, "stalled"), "said")) is Transient
    assert type(judge.error(job(2), "never seen", status=500)) is Transient


def test_what_is_remembered_of_jobs_is_bounded():
    judge = Judge("ollama")
    for number in range(verdicts._MOST_JOBS + 10):
        judge.error(job(1, f"j{number}"), "never seen")
    assert judge.refusal(job(2, "j0")) is None
    assert judge.refusal(job(2, f"j{verdicts._MOST_JOBS}")) is not None


def test_a_job_is_met_for_the_first_time_once():
    judge = Judge("ollama")
    assert not judge.met_before(job(), "cut_off")
    assert judge.met_before(job(), "cut_off")
    assert not judge.met_before(job(), "other")


def test_what_is_kept_of_an_error_is_short_and_printable():
    error = Judge("ollama").error(job(), "line\n\x1b[31mred\x00" + "x" * 10_000, status=500, version="0.32.6")
    assert len(error.detail["text"]) <= verdicts.MOST_TEXT
    assert error.detail["text"].startswith("line [31mred x")
    assert error.detail["status"] == 500
    assert error.detail["version"] == "0.32.6"
    assert error.detail["verdict"] == "unknown"
