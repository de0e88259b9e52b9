"""A false WordPress: a real server on a socket with users, media and posts, which a test can tell how to misbehave.

Statuses, error codes and keys are those of real sites (`tests/recordings/wordpress`, which
`test_wordpress_recordings.py` holds it to). What goes wrong is put into `media_troubles` or `post_troubles`, one for
each coming request; `mood` is how the whole site is.
"""

import asyncio
import base64
import hashlib
import itertools
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from aiohttp import web

PASSWORD = "abcd efgh ijkl mnop qrst uvwx"

Mood = Literal["well", "maintenance", "no database", "plain permalinks", "all is home", "moved"]
MediaTrouble = Literal[
    "stored, then dropped", "dropped", "fatal", "hash mismatch", "too large", "bad gateway", "busy", "denied", "warning"
]
PostTrouble = Literal["stored, then dropped", "dropped", "fatal", "busy", "no featured media", "filtered"]

_EDITOR = ("upload_files", "edit_posts", "edit_others_posts", "edit_published_posts", "publish_posts")
_STATUSES = ("publish", "future", "draft", "pending", "private")
_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


@dataclass
class Account:
    id: int
    password: str
    capabilities: tuple[str, ...] = _EDITOR


@dataclass
class FakeWordPress:
    """One site. `media` and `posts` are what it holds, by id."""

    mood: Mood = "well"
    users: dict[str, Account] = field(default_factory=lambda: {"tandem": Account(2, PASSWORD)})
    link: str | None = None  # the home page's Link header, if it is not the right one
    drops_authorization: bool = False  # as CGI set-ups do
    media: dict[int, dict[str, Any]] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    posts: dict[int, dict[str, Any]] = field(default_factory=dict)
    media_troubles: deque[MediaTrouble] = field(default_factory=deque)
    post_troubles: deque[PostTrouble] = field(default_factory=deque)
    finish_troubles: int = 0  # so often can't it make smaller sizes
    holds_look_up: asyncio.Event | None = None  # a look-up of media is answered once this is set, as it was when asked
    holding: asyncio.Event = field(default_factory=asyncio.Event)  # one is held
    uploads: int = 0  # that were asked for
    updates: list[dict[str, Any]] = field(default_factory=list)  # of posts, that were taken
    asked: list[str] = field(default_factory=list)  # "GET /wp/v2/media"
    port: int = 0
    _ids: Any = field(default_factory=lambda: itertools.count(5))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def draft(self, title: str = "Needs an article", **more: Any) -> int:
        """Write a draft; return its id."""
        post_id = next(self._ids)
        self.posts[post_id] = {
            "id": post_id,
            "slug": "",
            "generated_slug": _slug(title),
            "status": "draft",
            "title": {"raw": title, "rendered": title},
            "content": {"raw": "", "rendered": ""},
            "modified_gmt": "2026-11-29T20:49:24",
            "date_gmt": "2026-11-29T20:49:24",
            "featured_media": 0,
            "meta": {},
            "author": 3,
            "link": f"{self.url}/?p={post_id}",
            "template": "",
            "categories": [1],
            **more,
        }
        return post_id

    def found(self, slug: str) -> list[dict[str, Any]]:
        return [one for one in self.media.values() if one["slug"] == slug]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer every request."""
        route, query = self._route(request)
        if route is None:
            return self._page(request)
        self.asked.append(f"{request.method} {route}")
        if self.mood in ("maintenance", "no database"):
            return self._down(request)
        user = self._user(request)
        for method, pattern, handle in self._routes():
            found = re.fullmatch(pattern, route)
            if found and request.method == method:
                return await handle(request, query, user, *(int(part) for part in found.groups()))
        return _error(404, "rest_no_route", "No route was found matching the URL and request method.")

    def _routes(self) -> list[tuple[str, str, Callable[..., Awaitable[web.StreamResponse]]]]:
        return [
            ("GET", "/wp/v2/users/me", self._me),
            ("GET", "/wp/v2/media", self._look_up),
            ("POST", "/wp/v2/media", self._upload),
            ("POST", r"/wp/v2/media/(\d+)/post-process", self._finish),
            ("GET", r"/wp/v2/posts/(\d+)", self._post),
            ("POST", r"/wp/v2/posts/(\d+)", self._update),
        ]

    def _route(self, request: web.Request) -> tuple[str | None, dict[str, str]]:
        query = dict(request.query)
        route = query.pop("rest_route", None)
        plain = self.mood in ("plain permalinks", "all is home")
        if route is not None and request.path in ("/", "/index.php") and self.mood != "all is home":
            return route, query
        if request.path.startswith("/wp-json/") and not plain:
            return request.path.removeprefix("/wp-json"), query
        return None, query

    def _page(self, request: web.Request) -> web.Response:
        """Answer as the site's pages do, whatever is asked for."""
        if self.mood == "moved":
            return web.Response(status=301, headers={"Location": "https://www.blog.example/"})
        if request.path.startswith("/wp-json/") and request.method == "GET":
            return web.Response(
                status=301, headers={"Location": f"{self.url}{request.path}/"}, content_type="text/html"
            )
        root = f"{self.url}/index.php?rest_route=/" if self.mood == "plain permalinks" else f"{self.url}/wp-json/"
        page = web.Response(text="<html><title>Lab blog</title></html>", content_type="text/html")
        page.headers["Link"] = self.link or f'<{root}>; rel="https://api.w.org/"'
        return page

    def _down(self, request: web.Request) -> web.Response:
        if self.mood == "maintenance":
            message, status, headers = "Briefly unavailable for scheduled maintenance.", 503, {"Retry-After": "600"}
        else:
            message, status, headers = "<h1>Error establishing a database connection</h1>", 500, {}
        if request.headers.get("Accept") != "application/json":
            return web.Response(text="<html></html>", status=status, headers=headers, content_type="text/html")
        body = {"code": "wp_die", "message": message, "data": {"status": status}, "additional_errors": []}
        return web.json_response(body, status=status, headers=headers)

    def _user(self, request: web.Request) -> Account | None:
        kind, _, known = request.headers.get("Authorization", "").partition(" ")
        if self.drops_authorization or kind != "Basic":
            return None
        name, _, password = base64.b64decode(known).decode().partition(":")
        account = self.users.get(name)
        fits = account is not None and password.replace(" ", "") == account.password.replace(" ", "")
        return account if fits else None

    # ---- users

    async def _me(self, _: web.Request, query: dict[str, str], user: Account | None) -> web.Response:
        if user is None:
            return _error(401, "rest_not_logged_in", "You are not currently logged in.")
        name = next(name for name, account in self.users.items() if account is user)
        body: dict[str, Any] = {"id": user.id, "name": name, "slug": name}
        if query.get("context") == "edit":
            may = dict.fromkeys(user.capabilities, True)
            roles = ["editor"] if "edit_others_posts" in may else ["subscriber"]
            body |= {"roles": roles, "capabilities": may, "username": name}
        return web.json_response(body)

    # ---- media

    async def _look_up(self, _: web.Request, query: dict[str, str], user: Account | None) -> web.Response:
        if user is None and query.get("context") == "edit":
            message = "Sorry, you are not allowed to edit posts in this post type."
            return _error(401, "rest_forbidden_context", message)
        found = sorted(self.found(query["slug"]), key=lambda one: -one["id"])  # newest first
        if self.holds_look_up is not None:
            self.holding.set()
            await self.holds_look_up.wait()
        if user is None:
            found = [one for one in found if not one["post"]]
        return web.json_response(found, headers={"X-WP-Total": str(len(found)), "X-WP-TotalPages": "1"})

    async def _upload(self, request: web.Request, query: dict[str, str], user: Account | None) -> web.StreamResponse:
        content = await request.read()
        self.uploads += 1
        refused = self._refused(request, query, user, content)
        if refused is not None:
            return refused
        trouble = self.media_troubles.popleft() if self.media_troubles else None
        match trouble:
            case "dropped":
                return _drop(request)
            case "hash mismatch":
                return _error(412, "rest_upload_hash_mismatch", "Content hash did not match expected.")
            case "too large":
                return web.Response(text="<html>413 Request Entity Too Large</html>", status=413)
            case "bad gateway":
                return web.Response(text="<html>502 Bad Gateway</html>", status=502)
            case "busy":
                return web.Response(text="<html></html>", status=503, headers={"Retry-After": "120"})
            case "denied":
                return _error(403, "rest_cannot_edit", "Sorry, you are not allowed to upload media to this post.")
        made = self._store(request, query, user, content, whole=trouble != "fatal")
        if trouble == "stored, then dropped":
            return _drop(request)
        headers = {"X-WP-Upload-Attachment-ID": str(made["id"])}
        if trouble == "fatal":
            return _fatal(request, headers)
        headers["Location"] = f"{self.url}/wp-json/wp/v2/media/{made['id']}"
        warning = (
            b"<br />\n<b>Warning</b>: {POST} Content-Length exceeds the limit<br />\n" if trouble == "warning" else b""
        )
        return web.Response(
            body=warning + orjson.dumps(made), status=201, headers=headers, content_type="application/json"
        )

    def _refused(
        self, request: web.Request, query: dict[str, str], user: Account | None, content: bytes
    ) -> web.Response | None:
        if user is None or "upload_files" not in user.capabilities:
            message = "Sorry, you are not allowed to create posts as this user."
            return _error(401 if user is None else 403, "rest_cannot_create", message)
        if "post" in query and int(query["post"]) not in self.posts:
            return _error(403, "rest_cannot_edit", "Sorry, you are not allowed to upload media to this post.")
        if not content:
            return _error(400, "rest_upload_no_data", "No data supplied.")
        if "Content-Type" not in request.headers:
            return _error(400, "rest_upload_no_content_type", "No Content-Type supplied.")
        disposition = request.headers.get("Content-Disposition")
        if disposition is None:
            return _error(400, "rest_upload_no_content_disposition", "No Content-Disposition supplied.")
        name = re.search(r'filename="?([^";]+)"?', disposition)
        if name is None:
            message = "Invalid Content-Disposition supplied."
            return _error(400, "rest_upload_invalid_disposition", message)
        told = request.headers.get("Content-MD5", hashlib.md5(content).hexdigest())
        if told != hashlib.md5(content).hexdigest():
            return _error(412, "rest_upload_hash_mismatch", "Content hash did not match expected.")
        if not name[1].lower().endswith((".png", ".jpg", ".webp")) or _type_of(content) is None:
            message = "Sorry, you are not allowed to upload this file type."
            return _error(500, "rest_upload_sideload_error", message)
        return None

    def _store(
        self, request: web.Request, query: dict[str, str], user: Account | None, content: bytes, *, whole: bool
    ) -> dict[str, Any]:
        found = re.search(r'filename="?([^";]+)"?', request.headers["Content-Disposition"])
        assert found is not None
        assert user is not None
        name, media_id = found[1], next(self._ids)
        slug = _slug(query.get("slug", name.rpartition(".")[0]))
        if self.found(slug):
            slug += "-2"
        title = query.get("title", slug)
        self.contents[media_id] = content
        self.media[media_id] = {
            "id": media_id,
            "slug": slug,
            "status": "inherit",
            "title": {"raw": title, "rendered": title},
            "source_url": f"{self.url}/wp-content/uploads/2026/11/{name}",
            "link": f"{self.url}/{slug}/",
            "media_type": "image",
            "mime_type": _type_of(content),
            "post": int(query["post"]) if "post" in query else None,
            "author": user.id,
            "alt_text": query.get("alt_text", ""),
            "caption": {"raw": "", "rendered": ""},
            "media_details": {
                "width": 64,
                "height": 48,
                "file": f"2026/11/{name}",
                "filesize": len(content),
                "sizes": [],
            },
            "missing_image_sizes": [] if whole else ["thumbnail", "medium_large"],
            "meta": [],
        }
        return self.media[media_id]

    async def _finish(
        self, request: web.Request, _: dict[str, str], __: Account | None, media_id: int
    ) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if body.get("action") != "create-image-subsizes":
            return _error(400, "rest_invalid_param", "Invalid parameter(s): action")
        if media_id not in self.media:
            return _error(404, "rest_post_invalid_id", "Invalid post ID.")
        if self.finish_troubles:
            self.finish_troubles -= 1
            return _fatal(request, {})
        self.media[media_id]["missing_image_sizes"] = []
        return web.json_response(self.media[media_id])

    # ---- posts

    async def _post(
        self, _: web.Request, query: dict[str, str], user: Account | None, post_id: int
    ) -> web.StreamResponse:
        if post_id not in self.posts:
            return _error(404, "rest_post_invalid_id", "Invalid post ID.")
        if query.get("context") == "edit" and (user is None or "edit_others_posts" not in user.capabilities):
            message = "Sorry, you are not allowed to edit this post."
            return _error(401 if user is None else 403, "rest_forbidden_context", message)
        return web.json_response(self.posts[post_id])

    async def _update(
        self, request: web.Request, _: dict[str, str], user: Account | None, post_id: int
    ) -> web.StreamResponse:
        raw = await request.read()
        refused = self._unfit(user, post_id)
        if refused is not None:
            return refused
        trouble = self.post_troubles.popleft() if self.post_troubles else None
        match trouble:
            case "dropped":
                return _drop(request)
            case "fatal":
                return _fatal(request, {})
            case "busy":
                return web.Response(text="<html></html>", status=503, headers={"Retry-After": "120"})
        if request.content_type != "application/json":
            return web.json_response(self.posts[post_id])  # taken for nothing
        try:
            fields = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return _error(400, "rest_invalid_json", "Invalid JSON body passed.")
        if fields.get("status", "draft") not in _STATUSES:
            return _error(400, "rest_invalid_param", "Invalid parameter(s): status")
        self._set(self.posts[post_id], fields, trouble)
        return _drop(request) if trouble == "stored, then dropped" else web.json_response(self.posts[post_id])

    def _unfit(self, user: Account | None, post_id: int) -> web.Response | None:
        if post_id not in self.posts:
            return _error(404, "rest_post_invalid_id", "Invalid post ID.")
        if user is None or "edit_others_posts" not in user.capabilities:
            message = "Sorry, you are not allowed to edit this post."
            return _error(401 if user is None else 403, "rest_cannot_edit", message)
        return None

    def _set(self, post: dict[str, Any], fields: dict[str, Any], trouble: PostTrouble | None) -> None:
        self.updates.append(fields)
        if "content" in fields:
            kept = re.sub(r"<[^>]*>", "", fields["content"]) if trouble == "filtered" else fields["content"]
            post["content"] = {"raw": kept, "rendered": f"<p>{kept}</p>\n"}
        if "status" in fields and post["status"] != "trash":
            post["status"] = fields["status"]
        if "featured_media" in fields:
            known = fields["featured_media"] in self.media and trouble != "no featured media"
            post["featured_media"] = fields["featured_media"] if known else 0


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")


def _type_of(content: bytes) -> str | None:
    return next((kind for start, kind in _TYPES.items() if content.startswith(start)), None)


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message, "data": {"status": status}}, status=status)


def _fatal(request: web.Request, headers: dict[str, str]) -> web.Response:
    if request.headers.get("Accept") != "application/json":
        return web.Response(text="<html></html>", status=500, headers=headers, content_type="text/html")
    body = {
        "code": "internal_server_error",
        "message": "<p>There has been a critical error on this website.</p>",
        "data": {"status": 500, "error": {"type": 1, "message": "Allowed memory size of 268435456 bytes exhausted"}},
        "additional_errors": [],
    }
    return web.json_response(body, status=500, headers=headers)


def _drop(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def fake_wordpress() -> AsyncIterator[FakeWordPress]:
    """Run a site until the block is left."""
    made = FakeWordPress()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        await runner.cleanup()
