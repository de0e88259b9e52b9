"""Publishers get a key for NATS, and lose it (`coordinator.enrolment`); its seed is made elsewhere, and stays there."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from coordinator.identities import is_public_key
from coordinator.web.access import Caller
from coordinator.web.body import parsed, read_body
from coordinator.web.context import WebContext, query_of
from coordinator.web.enrolment import desk, name_in, refusals
from coordinator.web.errors import RefusedError, json_response

_MOST_BYTES: Final = 64 * 1024


class PublisherBody(BaseModel):
    """With which key a publisher is to connect."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    public_key: str = Field(pattern="^U[A-Z2-7]{55}$")
    """The public half of a user's nkey."""
    replace: bool = False
    """It may have a key already; then that one is good no more."""


async def listed(context: WebContext, request: web.Request, _: Caller) -> web.Response:
    """List the publishers that may connect to NATS, and their public keys."""
    query_of(request, frozenset())
    with refusals():
        found = desk(context).publishers()
    return json_response({"publishers": [{"source": source, "public_key": key} for source, key in found.items()]})


async def add(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Let a publisher connect to NATS with this key: it submits as this source, and takes its results."""
    source = name_in(request, "source")
    said = parsed(PublisherBody, await read_body(request, _MOST_BYTES))
    with refusals():
        enrolment = desk(context)
        if not is_public_key(said.public_key):
            raise RefusedError(422, "invalid", "public_key: not the public half of a user's nkey: a letter is wrong")
        is_new = await enrolment.add_publisher(source, said.public_key, actor=caller.name, replace=said.replace)
    told = {"source": source, "public_key": said.public_key, "nats": enrolment.nats}
    return json_response(told, 201 if is_new else 200)


async def revoke(context: WebContext, request: web.Request, caller: Caller) -> web.Response:
    """Cut a publisher off: its key is good no more, and its connection ends. Its jobs and results stay."""
    source = name_in(request, "source")
    with refusals():
        await desk(context).revoke_publisher(source, actor=caller.name)
    return json_response({"source": source})
