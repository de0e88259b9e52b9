"""Tokens are made, listed and revoked (`coordinator.tokens`)."""

from dataclasses import asdict
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from coordinator.tokens import Tokens
from coordinator.web.access import Caller, Role
from coordinator.web.body import parsed, read_body
from coordinator.web.context import WebContext, query_of
from coordinator.web.errors import RefusedError, json_response
from shared.ids import NAME_PATTERN

_MOST_BYTES: Final = 64 * 1024


class TokenBody(BaseModel):
    """What a token is to be for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    name: str = Field(pattern=NAME_PATTERN)
    """The source of what it submits, and who did what it does."""


async def listed(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """List the tokens that are good, those of the settings included; what they are themselves is nowhere."""
    query_of(request, frozenset())
    unknown = {"id": None, "made_by": None, "made_at": None, "last_used_at": None}
    found = [{"role": one.role, "name": one.name, **unknown} for one in context.access.configured]
    for row in await _desk(context).good():
        known = asdict(row)
        del known["digest"]
        found.append(known)
    return json_response({"tokens": found})


async def make(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Make a token; the answer is the only place where it ever stands."""
    said = parsed(TokenBody, await read_body(request, _MOST_BYTES))
    made = await _desk(context).make(said.role, said.name, actor=caller.name)
    return json_response({"id": made.id, "role": said.role, "name": said.name, "token": made.token}, 201)


async def revoke(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Make a token good no more, and end the sessions that began with it."""
    token_id = request.match_info["id"]
    found = await _desk(context).revoke(token_id, actor=caller.name) if token_id.isalnum() else None
    if found is None:
        raise RefusedError(404, "not_found", f"no token {token_id[:40]!r} is good; those of the settings end there")
    return json_response({"id": token_id, "role": found[0], "name": found[1]})


def _desk(context: WebContext) -> Tokens:
    if context.access_tokens is None:
        raise RefusedError(409, "unmanaged", "this coordinator makes no tokens")
    return context.access_tokens
