"""Workers are invited, join, and are revoked (`coordinator.enrolment`)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from coordinator.enrolment import EnrolledError, Enrolment, NoInvitationError, NotEnrolledError, UnmanagedError
from coordinator.nats_users import NotReloadedError
from coordinator.web.access import Caller
from coordinator.web.body import parsed, read_body
from coordinator.web.context import WebContext
from coordinator.web.errors import RefusedError, json_response
from coordinator.web.rates import address_of, too_many
from shared.ids import NAME_PATTERN

_MOST_BYTES: Final = 64 * 1024
_NAME: Final = re.compile(NAME_PATTERN)
_DAY_S: Final = 86400.0


class InviteBody(BaseModel):
    """How an invitation is to be."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    good_s: float = Field(default=_DAY_S, ge=60, le=30 * _DAY_S, allow_inf_nan=False)
    """After so many seconds the line is good for nothing."""
    replace: bool = False
    """The worker may have joined already; then its key changes."""


class JoinBody(BaseModel):
    """What a Mac sends."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    invitation: str = Field(pattern=r"^[!-~]{1,64}$")
    public_key: str = Field(pattern=r"^[!-~]{1,64}$")
    seal: str = Field(pattern=r"^[!-~]{1,128}$")


async def invite(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Make a line by which a Mac joins as this worker, once."""
    worker = name_in(request, "worker")
    said = parsed(InviteBody, await read_body(request, _MOST_BYTES) or b"{}")
    with refusals():
        made = await desk(context).invite(worker, actor=caller.name, good_s=said.good_s, replace=said.replace)
    told = {"worker": made.worker, "line": made.line, "expires_at": made.expires_at, "warnings": made.warnings}
    return json_response(told, 201)


async def revoke(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Cut a worker off: its key is good no more, its connection and its leases end, it is forgotten."""
    worker = name_in(request, "worker")
    with refusals():
        ended = await desk(context).revoke(worker, actor=caller.name)
    return json_response({"worker": worker, "leases_ended": ended})


async def join(context: WebContext, request: web.Request) -> web.Response:
    """Let a Mac in that shows an invitation; 404 for every other, 409 from a coordinator that lets nobody join."""
    guesser = f"join {address_of(request)}"
    if wait_s := context.guesses.take(guesser):
        raise too_many(wait_s, "too many tries to join")
    said = parsed(JoinBody, await read_body(request, _MOST_BYTES))
    with refusals():
        welcome = await desk(context).join(said.invitation, said.public_key, said.seal)
    context.guesses.give_back(guesser)
    told = {"worker": welcome.worker, "nats": welcome.nats, "ca": welcome.ca, "seal": welcome.seal}
    return json_response(told)


@contextmanager
def refusals() -> Iterator[None]:
    """Answer what enrolment refuses."""
    try:
        yield
    except NoInvitationError as error:
        raise RefusedError(404, "no_invitation", str(error)) from None
    except NotEnrolledError as error:
        raise RefusedError(404, "not_enrolled", str(error)) from None
    except EnrolledError as error:
        raise RefusedError(409, "enrolled", str(error)) from None
    except UnmanagedError as error:
        raise RefusedError(409, "unmanaged", str(error)) from None
    except NotReloadedError as error:
        raise RefusedError(503, "not_reloaded", str(error)) from None


def desk(context: WebContext) -> Enrolment:
    """Return who lets in and cuts off; UnmanagedError if nobody does."""
    if context.enrolment is None:
        raise UnmanagedError
    return context.enrolment


def name_in(request: web.Request, kind: str) -> str:
    """Return the name of a worker or source that the address has; 422 for what can't be one."""
    name = request.match_info[kind]
    if not _NAME.fullmatch(name):
        raise RefusedError(422, "invalid", f"not a {kind}'s name ({NAME_PATTERN}): {name[:80]!r}")
    return name
