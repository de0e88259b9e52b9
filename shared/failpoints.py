"""Failpoints: the places between two durable steps where a crash test has a process end, as if its power were cut.

`reach` stands at each of them and does nothing. Only a program of the crash tests may arm one: no setting, flag or
environment variable does. A durable step is a commit, a message stored or taken off, a file synced or renamed, an
answer sent. Each member says what is done already when it is reached, and what is not.
"""

import os
import signal
import sys
from enum import StrEnum
from typing import Final

_PROGRAM: Final = "tests.crash.programs"
"""The one program that may arm a failpoint; no installation has it."""


class Failpoint(StrEnum):
    """Every failpoint, in the order in which a job may meet it."""

    # ---- the coordinator: submissions
    SUBMISSION_UNANSWERED = "submission-unanswered"  # by HTTP: committed | answered
    SUBMISSION_QUEUED = "submission-queued"  # by HTTP, the ledger being away: stored in SUBMIT | answered
    SUBMISSION_UNSETTLED = "submission-unsettled"  # committed | taken off SUBMIT
    REFUSAL_RECORDED = "refusal-recorded"  # a refused submission on record | taken off SUBMIT, or answered
    ACTION_UNANSWERED = "action-unanswered"  # a person's cancel, retry ... committed | answered
    # ---- the coordinator: the ledger
    COMMIT_UNSENT = "commit-unsent"  # commands decided and written | their COMMIT
    COMMIT_UNHEARD = "commit-unheard"  # committed | callers answered, effects handed on
    # ---- the coordinator: what follows on the bus
    LANE_MADE = "lane-made"  # the lane's consumer made | the job's older message removed
    OLD_OFFER_REMOVED = "old-offer-removed"  # the job's older message removed | the new one published
    OFFER_UNNOTED = "offer-unnoted"  # the offer published | its place committed
    OFFER_UNREMOVED = "offer-unremoved"  # the offer taken back in the ledger | its message removed
    DELIVERY_UNSETTLED = "delivery-unsettled"  # the attempt's end committed | its message taken off WORK
    VERDICT_UNTOLD = "verdict-untold"  # a report judged or a lease ended, its message off WORK | the agent told
    # ---- the coordinator: claims and lease questions
    GRANT_UNANSWERED = "grant-unanswered"  # the grant committed | the agent told
    LEASE_UNANSWERED = "lease-unanswered"  # the lease extended for a question | the question answered
    PRESENCE_UNHELD = "presence-unheld"  # an announcement kept | the leases held against it
    # ---- the coordinator: files and reports
    FILE_HALF_STORED = "file-half-stored"  # a file's first bytes written | the rest, and its rename into place
    FILE_SYNCED = "file-synced"  # a file whole and synced | renamed into place
    FILE_RENAMED = "file-renamed"  # a file renamed into place | its folder synced
    FILE_UNRECORDED = "file-unrecorded"  # a file in the store | in the ledger
    FILE_UNANSWERED = "file-unanswered"  # a file in the ledger | its upload answered
    REPORT_UNSETTLED = "report-unsettled"  # a report judged | taken off REPORTS
    UNREADABLE_RECORDED = "unreadable-recorded"  # an unreadable report on record | its attempt ended
    UNREADABLE_UNSETTLED = "unreadable-unsettled"  # the attempt of an unreadable report ended | taken off REPORTS
    RESULT_UNSENT = "result-unsent"  # the source's consumer made | its result published
    RESULT_UNMARKED = "result-unmarked"  # the result published | marked as published
    CALLBACK_UNSENT = "callback-unsent"  # a callback's try taken | posted
    CALLBACK_UNNOTED = "callback-unnoted"  # posted and answered | noted
    MEDIA_UNSENT = "media-unsent"  # an image looked for on its site | uploaded
    MEDIA_UNSTORED = "media-unstored"  # an image uploaded, or found | its id stored
    POST_UNSENT = "post-unsent"  # the images' ids stored | the post updated
    POST_UNNOTED = "post-unnoted"  # the post updated | noted
    # ---- the coordinator: after NATS lost its disk, and an operator's orders
    LOSS_NOTED = "loss-noted"  # results marked to go out again | RESULTS made anew
    STREAM_MADE = "stream-made"  # one stream made | the next one
    STREAMS_MADE = "streams-made"  # streams made | the coordinators' consumers made
    INTAKE_MADE = "intake-made"  # the coordinators' consumers made | each source's on RESULTS
    LANES_UNRENEWED = "lanes-unrenewed"  # every other consumer made | the lanes'
    ORDER_UNTOLD = "order-untold"  # a drain, pause or resume committed | the agent told

    # ---- the agent: until something is spooled
    PULLED = "pulled"  # a message handed out | claimed
    GRANTED = "granted"  # a claim granted | the job begun
    GENERATED = "generated"  # files in the workspace | anything of it in the spool
    FILE_MOVED = "file-moved"  # a file moved into the entry, synced | the next one, or the report
    PARCEL_WRITTEN = "parcel-written"  # report and files synced | the entry renamed into place
    LINE_WRITTEN = "line-written"  # a report without files synced | renamed into place
    # ---- the agent: delivery
    ENTRY_IN_PLACE = "entry-in-place"  # the entry in place | the workspace removed, anything sent
    FILE_HALF_SENT = "file-half-sent"  # a file's first bytes sent | the rest
    FILE_UPLOADED = "file-uploaded"  # a file uploaded | the next one
    ALL_UPLOADED = "all-uploaded"  # all files uploaded | the report stored
    FAILURE_SPOOLED = "failure-spooled"  # a failure spooled in place of the result | the result's entry removed
    REPORT_STORED = "report-stored"  # the report in REPORTS | its verdict heard
    VERDICT_HEARD = "verdict-heard"  # the verdict heard | the entry removed
    ENTRY_HALF_GONE = "entry-half-gone"  # the entry renamed away | its files removed


_armed: dict[Failpoint, int] = {}
"""How often the armed one is passed before it ends the process."""


def reach(point: Failpoint) -> None:
    """Be at `point`; from any thread. Unless a crash test armed it, nothing happens."""
    if _armed:
        _pass(point)


def arm(point: Failpoint, *, skip: int = 0) -> None:
    """Have this process end by SIGKILL when it reaches `point` after passing it `skip` times: nothing is cleaned up.

    Raises RuntimeError in every program but that of the crash tests.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is None or program.name != _PROGRAM:
        msg = f"failpoints are for {_PROGRAM}; {point} stays as it is"
        raise RuntimeError(msg)
    _armed[point] = skip


def _pass(point: Failpoint) -> None:
    left = _armed.get(point)
    if left is None:
        return
    if left:
        _armed[point] = left - 1
        return
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal may need a moment to reach this thread
