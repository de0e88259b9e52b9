"""Pages as HTML: the templates and what they may use, the static files, messages from one page to the next.

Whatever a template is given is escaped; nothing inline is ever run or drawn (CSP). Pages call `render` and `see_other`.
"""

import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

import jinja2
from aiohttp import web
from markupsafe import Markup, escape
from multidict import MultiDictProxy

from coordinator.web.access import Caller, Role
from coordinator.web.context import WebContext
from coordinator.web.errors import ErrorResponse, Handler, RefusedError
from coordinator.web.sessions import csrf_token, session_of

CSP: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)

_NAV: Final[tuple[tuple[str, str], ...]] = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/review", "Review"),
    ("/submit", "Submit"),
    ("/workers", "Workers"),
    ("/refused", "Refused"),
)
_MESSAGE: Final = "tandem_said"
_MESSAGE_S: Final = 30
_MOST_MESSAGE: Final = 600
_NONE: Final = "-"
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def render(
    context: WebContext,
    request: web.Request,
    caller: Caller | None,
    template: str,
    /,
    *,
    status: int = 200,
    **values: Any,
) -> web.Response:
    """Return a page. Templates know, beside `values`: caller, may_act, csrf, said, nav, here, not_ready, version."""
    frame = {
        "caller": caller,
        "may_act": caller is not None and caller.role is Role.ADMIN,
        "csrf": csrf_token(request),
        "said": unquote(request.cookies.get(_MESSAGE, "")),
        "nav": [one for one in _NAV if one[0] != "/submit" or (caller is not None and caller.role is Role.ADMIN)],
        "path": request.path,
        "status": status,
        "can_log_out": not context.access.open,
        "not_ready": context.ready(),
        "version": version("tandem"),
    }
    text = _environment().get_template(template).render(frame | values)
    headers = {"Content-Security-Policy": CSP, "Referrer-Policy": "same-origin"}
    response = web.Response(text=text, status=status, content_type="text/html", headers=headers)
    if frame["said"]:
        response.del_cookie(_MESSAGE, httponly=True, samesite="Strict")
    return response


def confirm(
    context: WebContext, request: web.Request, caller: Caller, texts: tuple[str, str, str], otherwise: str
) -> web.Response:
    """Ask whether that shall be done: `texts` are the question, what follows from it, and the yes.

    The answer goes to the same path; then back to the page that the query names in `back`, else to `otherwise`.
    """
    title, text, yes = texts
    back = own_path(request.query.get("back", ""), otherwise)
    return render(context, request, caller, "confirm.html", title=title, text=text, yes=yes, back=back)


def prepare() -> None:
    """Read and compile every template, once: the first reader does not wait for it."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def fragment(template: str, /, **values: Any) -> str:
    """Return a part of a page, for `live.py`: the same for everyone who sees it, so without tokens of a session."""
    return _environment().get_template(template).render(values)


def is_only_one(which: str, page: str) -> None:
    """Refuse (404) one of several: there is one such page."""
    if which:
        raise RefusedError(404, "not_found", f"there is one {page}")


def see_other(request: web.Request, where: str, message: str = "") -> web.Response:
    """Send the browser to a page of ours, which shows the message once."""
    response = web.Response(status=303, headers={"Location": where})
    if message:
        kept = quote(message[:_MOST_MESSAGE])
        response.set_cookie(_MESSAGE, kept, max_age=_MESSAGE_S, httponly=True, samesite="Strict", secure=request.secure)
    return response


def own_path(text: str, otherwise: str) -> str:
    """Return the page to go to: one of ours, whatever a query or a form says."""
    is_ours = text.startswith("/") and text.isprintable() and not text.startswith(("//", "/\\"))
    return text if is_ours else otherwise


def came_from(form: MultiDictProxy[Any], otherwise: str) -> str:
    """Return the page of ours that a form came from, as it says in `back`."""
    return own_path(str(form.get("back", "")), otherwise)


def to_log_in(context: WebContext, request: web.Request) -> web.Response:
    """Send a browser that is not logged in to the login; after it, to what it wanted to see, if it was to see.

    Coming from a page elsewhere it shows no cookie (SameSite=Strict): it is let come again, from a page of ours.
    """
    wanted = request.path_qs if request.method in ("GET", "HEAD") else "/"
    if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        return render(context, request, None, "again.html", target=wanted)
    return see_other(request, f"/login?{urlencode({'next': wanted})}")


def wants_page(request: web.Request) -> bool:
    """Say whether a person looks at the answer."""
    return "text/html" in request.headers.get("Accept", "")


def errors_as_pages(context: WebContext) -> Any:
    """Return the middleware that shows people errors as pages; programs get them as they are."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if not isinstance(response, ErrorResponse) or not wants_page(request):
            return response
        found = context.access.identify("GET", request.headers, request.remote, session_of(request))
        caller = found if isinstance(found, Caller) else None
        status = response.status
        page = render(context, request, caller, "error.html", status=status, error=response.error)
        kept = ("Retry-After", "Allow", "Server", "X-Content-Type-Options", "Cache-Control")
        page.headers.extend({name: response.headers[name] for name in kept if name in response.headers})
        return page

    return middleware


async def static_file(request: web.Request) -> web.Response:
    """Answer with a style, script or drawing of ours; needs no token."""
    name = request.match_info["name"]
    found = _static_files().get(name)
    if found is None:
        raise web.HTTPNotFound
    content, digest = found
    is_exact = request.query.get("v") == digest
    headers = {"Cache-Control": "public, max-age=31536000, immutable" if is_exact else "no-cache"}
    return web.Response(body=content, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8", headers=headers)


@cache
def _static_files() -> dict[str, tuple[bytes, str]]:
    folder = files("coordinator.web").joinpath("static")
    found = {one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in _TYPES}
    return {name: (content, hashlib.sha256(content).hexdigest()[:16]) for name, content in found.items()}


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("coordinator.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "duration": duration, "ago": ago, "bytes": size, "instant": instant, "percent": percent, "short": short,
        "words": words,
    }  # fmt: skip
    made.globals["static"] = _static_url
    return made


def _static_url(name: str) -> str:
    return f"/static/{name}?v={_static_files()[name][1]}"


def duration(seconds: float | None) -> str:
    """Return a duration for people: `0.4 s`, `7 s`, `3 min`, `2 h`."""
    if seconds is None:
        return _NONE
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < abs(seconds) < 3 else f"{seconds:.0f} s"  # noqa: PLR2004


def ago(seconds: float | None) -> Markup:
    """Return how long ago; it goes on counting in the browser."""
    if seconds is None:
        return Markup("never")
    seconds = max(seconds, 0.0)
    return Markup('<span data-ago="{}">{} ago</span>').format(f"{seconds:.1f}", duration(int(seconds)))


def instant(at: datetime | None) -> Markup:
    """Return an instant; in the browser it is in the reader's own time."""
    if at is None:
        return escape(_NONE)
    at = at.astimezone(UTC)
    shown = f"{at:%H:%M:%S}" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d %H:%M}"
    exact, title = f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", f"{at:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(exact, title, shown)


def size(count: float | None) -> str:
    """Return a size for people: `812 B`, `3.4 MB`, `18 GB`."""
    if count is None:
        return _NONE
    for unit_bytes, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit_bytes:
            in_unit = count / unit_bytes
            return f"{in_unit:.1f} {unit}" if in_unit < 10 else f"{in_unit:.0f} {unit}"  # noqa: PLR2004
    return f"{count:.0f} B"


def percent(share: float | None) -> str:
    """Return a share of 1 as `42 %`."""
    return _NONE if share is None else f"{share * 100:.0f} %"


def short(job_id: object) -> str:
    """Return an id that is told from its neighbours' at a glance; those of one minute begin alike."""
    text = str(job_id)
    return f"{text[:8]}…{text[-4:]}"


def words(name: object) -> Markup:
    """Return one of our names for people: `generating_text` as `generating text`."""
    return escape(str(name).replace("_", " "))
