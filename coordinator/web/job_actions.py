"""What people do to a job, for the API (`jobs.py`) and the pages (`page_actions.py`): the bodies and the commands."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator

from coordinator.ledger.model import Approve, Cancel, Done, Nothing, Prioritize, Reject, Retry
from coordinator.web.context import WebContext
from shared.failpoints import Failpoint, reach
from shared.states import PRIORITY_RANK, Priority

Act = Cancel | Retry | Approve | Reject | Prioritize

MAX_NOTE = 2000
"""Characters of a note."""

MAX_EPOCH = 999_999_999


class ActionBody(BaseModel):
    """What `cancel` and `retry` may be told."""

    model_config = ConfigDict(extra="forbid", strict=True)

    note: str | None = Field(None, max_length=MAX_NOTE)  # why; kept with what was done

    @field_validator("note")
    @classmethod
    def _plain(cls, note: str | None) -> str | None:
        if note is not None and "\x00" in note:
            msg = "text must not contain NUL"
            raise ValueError(msg)
        return note or None


class ApproveBody(ActionBody):
    """What `approve` may be told: the epoch of the result that was looked at. If it is another's by now, 409."""

    epoch: int | None = Field(None, ge=1, le=MAX_EPOCH)

    @field_validator("epoch", mode="before")
    @classmethod
    def _whole(cls, epoch: object) -> object:
        """Take 2.0 for 2, as JSON does."""
        return int(epoch) if isinstance(epoch, float) and epoch.is_integer() else epoch


class RejectBody(ApproveBody):
    """What `reject` may be told: as `approve`, and whether the job runs again."""

    again: bool = False


class PriorityBody(ActionBody):
    """What `priority` must be told."""

    priority: Priority = Field(strict=False)


BODIES: Final[dict[str, type[ActionBody]]] = {
    "approve": ApproveBody,
    "reject": RejectBody,
    "priority": PriorityBody,
}
"""The bodies of the actions; all others take an ActionBody."""


def action_words(action: str) -> str:
    """Return an action as it stands in a sentence."""
    return "change its priority" if action == "priority" else action


def command_of(action: str, job_id: UUID, actor: str, body: ActionBody) -> Act:
    """Return the command for an action with its own body; KeyError if there is no such action."""
    who: dict[str, Any] = {"job_id": job_id, "actor": actor, "note": body.note}
    match body:
        case RejectBody(again=again, epoch=epoch):
            return Reject(again=again, epoch=epoch, **who)
        case ApproveBody(epoch=epoch):
            return Approve(epoch=epoch, **who)
        case PriorityBody(priority=priority):
            return Prioritize(priority=PRIORITY_RANK[priority], **who)
        case _:
            commands: dict[str, type[Cancel | Retry]] = {"cancel": Cancel, "retry": Retry}
            return commands[action](**who)


async def carry_out(context: WebContext, commands: Sequence[Act]) -> list[str | None]:
    """Carry the commands out; say of each why it did not apply, None if it did."""
    answers = await context.ledger.do_many(commands)
    reach(Failpoint.ACTION_UNANSWERED)
    said: list[str | None] = []
    for answer in answers:
        match answer:
            case Done():
                said.append(None)
            case Nothing(reason):
                said.append(reason)
            case other:
                msg = f"an operator's command was answered {other!r}"
                raise TypeError(msg)
    return said
