"""Logging in with a token, and out. Who shows wrong tokens too often waits a moment."""

import math

from aiohttp import web

from coordinator.web.access import Caller, Role
from coordinator.web.context import WebContext
from coordinator.web.errors import RefusedError
from coordinator.web.html import own_path, render, see_other
from coordinator.web.rates import address_of
from coordinator.web.sessions import end_session, form_of, keep_session


async def show(context: WebContext, request: web.Request) -> web.Response:
    """Ask for a token; without configured tokens there is nothing to ask."""
    where = own_path(request.query.get("next", ""), "/")
    if context.access.open:
        return see_other(request, where)
    return _form(context, request, where)


async def log_in(context: WebContext, request: web.Request) -> web.Response:
    """Begin a session, and go to the page that was wanted."""
    if context.access.is_cross_site(request.headers):
        raise RefusedError(403, "forbidden", "requests from pages of other origins are refused")
    form = await form_of(request)
    where = own_path(str(form.get("next", "")), "/")
    guesser = f"login {address_of(request)}"
    if wait_s := context.guesses.take(guesser):
        seconds = math.ceil(wait_s)
        response = _form(context, request, where, 429, f"Too many wrong tokens from here: try again in {seconds} s.")
        response.headers["Retry-After"] = str(seconds)
        return response
    found = context.access.log_in(str(form.get("token", "")).strip())
    if found is None:
        return _form(context, request, where, 403, "Nobody has this token.")
    context.guesses.give_back(guesser)
    caller, session = found
    if caller.role is Role.PUBLISHER:
        fault = "This is a publisher's token: it submits over HTTP, and opens no pages."
        return _form(context, request, where, 403, fault)
    response = see_other(request, where)
    keep_session(request, response, session, context.base_url)
    return response


async def log_out(_: WebContext, request: web.Request, __: Caller) -> web.Response:
    """End the session."""
    await form_of(request)
    response = see_other(request, "/login", "Logged out.")
    end_session(request, response)
    return response


def _form(context: WebContext, request: web.Request, where: str, status: int = 200, fault: str = "") -> web.Response:
    return render(context, request, None, "login.html", status=status, fault=fault, where=where)
