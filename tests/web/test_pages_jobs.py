"""The pages about jobs over HTTP: what they show, what their forms do, and that nothing from a job acts on them."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.ledger.model import Heartbeat
from coordinator.web import pages_job
from tests.support.web import TOKENS, Web, artifact

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.scripts += data if self.found and self.found[-1][0] == "script" else ""


async def sent(site: Web, path: str, came_from: str, **fields: Any) -> tuple[int, str, dict[str, str]]:
    """Send a form as the page `came_from` has it, with its token; return status, next address or page, and cookies."""
    page = await site.call("GET", came_from)
    token = re.search(r'name="csrf" value="([^"]*)"', page)
    assert token is not None
    pairs = [(name, one) for name, value in fields.items() for one in (value if isinstance(value, list) else [value])]
    data = [("csrf", html.unescape(token[1])), *pairs]
    async with site.client.post(path, data=data, allow_redirects=False) as answer:
        cookies = {name: kept.value for name, kept in answer.cookies.items()}
        return answer.status, answer.headers.get("Location", await answer.text()), cookies


async def post(site: Web, path: str, came_from: str, *, expect: int = 303, **fields: Any) -> str:
    """Send a form; return the address of the next page, or the page."""
    status, following, _ = await sent(site, path, came_from, **fields)
    assert status == expect, following
    return following


async def shown_after(site: Web, path: str, came_from: str, **fields: Any) -> str:
    """Send a form and return the page that follows, with what it says."""
    status, following, cookies = await sent(site, path, came_from, **fields)
    assert status == 303, following
    return str(await site.call("GET", following, cookies=cookies))


async def failed(site: Web, message: str = "It broke.") -> UUID:
    job_id = await site.submit()
    error = {"code": "broken", "message": message, "class": "permanent"}
    await site.report(job_id, await site.claim(job_id), outcome="failed", error=error)
    return job_id


async def state(site: Web, job_id: UUID) -> str:
    return str((await site.call("GET", f"/v1/jobs/{job_id}"))["state"])


async def test_the_list_shows_jobs_and_narrows_them(site: Web) -> None:
    mine = await site.submit(key="post-812", labels={"post": "812"})
    other = await failed(site)
    page = await site.call("GET", "/jobs")
    assert str(mine) in page
    assert "broken: It broke." in page
    for query in (
        "state=failed",
        "text=broke",
        f"text={str(other)[:13]}",
        "worker=mini",
        "state=failed&kind=article&model=",
    ):
        page = await site.call("GET", f"/jobs?{query}")
        assert (str(other) in page, str(mine) in page) == (True, False), query
    page = await site.call("GET", "/jobs?label=post:812")
    assert (str(other) in page, str(mine) in page) == (False, True)
    assert 'value="post:812"' in page


async def test_a_filter_that_means_nothing_is_named_beside_its_field(site: Web) -> None:
    page = await site.call("GET", "/jobs?label=nonsense&state=done", expect=400)
    assert "is not name:value" in page
    assert "one of pending" in page


async def test_the_pages_of_the_list_lead_to_every_job(site: Web) -> None:
    jobs = {await site.submit() for _ in range(120)}
    seen: list[str] = []
    address: str | None = "/jobs?kind=article"
    while address is not None:
        page = await site.call("GET", address)
        seen += re.findall(r'name="job" value="([^"]+)"', page)
        following = re.search(r'<a href="([^"]+)" rel="next">', page)
        address = html.unescape(following[1]) if following else None
    assert len(seen) == 120
    assert {UUID(one) for one in seen} == jobs


async def test_a_jobs_page_tells_all_about_it(site: Web) -> None:
    job_id = await site.submit(key="k", labels={"post": "812"})
    epoch = await site.claim(job_id)
    await site.ledger.do(
        Heartbeat(job_id=job_id, worker="mini", epoch=epoch, stage="generating_text", elapsed_s=3.0, progress=0.25)
    )
    running = await site.call("GET", f"/jobs/{job_id}")
    for part in ("generating text", "25", "mini", "post: 812", "A story", 'class="tick"', "mark-open"):
        assert part in running, part
    await site.upload(job_id, epoch, "a b.png", b"picture")
    text = "# Bees\n\nThey *hum*."
    await site.report(job_id, epoch, result={"text": text, "words": 3}, artifacts=[artifact("a b.png", b"picture")])
    page = await site.call("GET", f"/jobs/{job_id}")
    for part in (
        "<h1>Bees</h1>",
        "<em>hum</em>",
        "# Bees",
        f'src="/v1/jobs/{job_id}/artifacts/a%20b.png"',
        "&#34;words&#34;: 3",
    ):
        assert part in page, part


async def test_files_of_text_are_shown_as_what_they_are(site: Web) -> None:
    job_id = await site.submit(kind="image")
    epoch = await site.claim(job_id, lane="image--any")
    files = {
        "a.md": (b"**bold**", "text/markdown"),
        "b.json": (b'{"a":[1]}', "application/json"),
        "c.txt": (b"\xff<b>", "text/plain"),
    }
    for name, (content, kind) in files.items():
        headers = {**site.upload_headers(job_id, epoch, content), "Content-Type": kind}
        await site.call("PUT", f"/v1/uploads/{job_id}/{epoch}/{name}", headers=headers, data=content, expect=201)
    await site.report(job_id, epoch, result=None, artifacts=[artifact(n, c, k) for n, (c, k) in files.items()])
    page = await site.call("GET", f"/jobs/{job_id}")
    for part in ("<strong>bold</strong>", "&#34;a&#34;: [", "\ufffd&lt;b&gt;"):
        assert part in page, part


async def test_a_script_in_whatever_a_job_brings_stays_text(site: Web) -> None:
    job_id = await site.submit(key=EVIL, model=EVIL, labels={EVIL: EVIL}, spec={"prompt": EVIL}, review=True)
    lane = (await site.call("GET", f"/v1/jobs/{job_id}"))["lane"].replace(".", "--")
    epoch = await site.claim(job_id, lane=lane)
    name = "<script>alert(1)<script>.png"
    await site.upload(job_id, epoch, name, b"picture")
    beat = Heartbeat(job_id=job_id, worker="mini", epoch=epoch, stage=EVIL, elapsed_s=1.0, detail=EVIL)
    await site.ledger.do(beat)
    pages = [await site.call("GET", f"/jobs/{job_id}"), await site.call("GET", "/jobs")]
    await site.report(
        job_id, epoch, model=EVIL, settings={EVIL: EVIL}, result={"text": EVIL, EVIL: EVIL},
        artifacts=[artifact(name, b"picture")], stages=[{"stage": "generating_text", "at_s": 0.1}],
    )  # fmt: skip
    other = await failed(site, EVIL)
    paths = (
        f"/jobs/{job_id}",
        "/review",
        "/jobs",
        f"/jobs/{other}",
        "/jobs?text=%3Cscript%3E&model=%22%3E%3Cscript%3E",
    )
    pages += [await site.call("GET", path) for path in paths]
    for page in pages:
        tags = Tags(page)
        assert "alert" not in tags.scripts
        assert not any(name.startswith("on") or name == "style" for _, names in tags.found for name in names)
        assert {names["src"] for tag, names in tags.found if tag == "img"} <= {
            f"/v1/jobs/{job_id}/artifacts/%3Cscript%3Ealert%281%29%3Cscript%3E.png"
        }
    assert "&lt;script&gt;alert(1)" in pages[2]


@pytest.mark.parametrize("path", ["/jobs/{id}", "/jobs/not-an-id", "/jobs/{id}/cancel"])
async def test_what_is_not_there_is_not_found(site: Web, path: str) -> None:
    await site.call("GET", path.format(id=uuid4()), expect=405 if path.endswith("cancel") else 404)


async def test_a_job_is_canceled_with_a_note_that_its_page_then_shows(site: Web) -> None:
    job_id = await site.submit()
    here = f"/jobs/{job_id}"
    page = await shown_after(site, f"{here}/cancel", here, note="Nobody wants <it>.", back=here)
    assert await state(site, job_id) == "canceled"
    assert "Nobody wants &lt;it&gt;." in page
    assert "Canceled." in page
    page = await shown_after(site, f"{here}/cancel", here, back=here)
    assert "the job is canceled" in html.unescape(page)


async def test_a_selection_is_retried_and_what_does_not_apply_is_said(site: Web) -> None:
    broken = [await failed(site), await failed(site)]
    waiting = await site.submit()
    chosen = [str(one) for one in [*broken, waiting]]
    page = await shown_after(
        site, "/jobs/actions", "/jobs?state=failed", job=chosen, action="retry", back="/jobs?state=failed", note="again"
    )
    assert "Started anew: 2 jobs. 1 job not: the job is pending." in page
    assert [await state(site, one) for one in broken] == ["pending", "pending"]
    notes = await site.pool.fetch("SELECT note FROM operator_action WHERE action = 'retry'")
    assert [row["note"] for row in notes] == ["again", "again"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"action": "approve"}, 400),
        ({"action": "cancel", "job": "x"}, 400),
        ({"action": "cancel", "job": [str(uuid4()) for _ in range(51)]}, 400),
    ],
)
async def test_a_selection_that_means_nothing_is_refused(site: Web, fields: dict[str, Any], status: int) -> None:
    await site.submit()
    await post(site, "/jobs/actions", "/jobs", expect=status, **fields)


async def test_a_priority_is_changed(site: Web) -> None:
    job_id = await site.submit()
    here = f"/jobs/{job_id}"
    page = await shown_after(site, f"{here}/priority", here, priority="high", back=here)
    assert (await site.call("GET", f"/v1/jobs/{job_id}"))["priority"] == "high"
    assert "priority high" in page
    await post(site, f"{here}/priority", here, priority="top", expect=422)


async def test_results_are_reviewed_one_after_the_other(site: Web) -> None:
    jobs = []
    for text in ("Bees.", "Wasps.", "Ants."):
        jobs.append(await site.submit(review=True))
        await site.report(jobs[-1], await site.claim(jobs[-1]), result={"text": text})
    page = await site.call("GET", "/review")
    assert "Bees." in page, "the longest waiting first"
    page = await shown_after(site, f"/jobs/{jobs[0]}/approve", "/review", back=f"/review?job={jobs[1]}", note="Good.")
    assert "Wasps." in page
    page = await shown_after(site, f"/jobs/{jobs[1]}/reject", "/review", back=f"/review?job={jobs[2]}", again="yes")
    assert "Ants." in page
    page = await shown_after(site, f"/jobs/{jobs[2]}/reject", "/review", back="/review")
    assert "No result awaits review." in page
    assert [await state(site, one) for one in jobs] == ["completed", "pending", "canceled"]


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/jobs\r\nX: y"])
async def test_an_action_leads_back_to_a_page_of_ours_only(site: Web, back: str) -> None:
    job_id = await site.submit()
    here = f"/jobs/{job_id}"
    assert (await post(site, f"{here}/cancel", here, back=back)).startswith(here)


async def test_a_job_is_submitted_by_form(site: Web) -> None:
    where = await post(
        site, "/submit", "/submit", kind="article", model="llama3.1:8b", prompt="Write\r\nabout bees.",
        options='{"seed": 42}', labels="post: 812\r\nlang: de\r\n", priority="high", review="yes", once="one",
    )  # fmt: skip
    job_id = re.match(r"/jobs/([0-9a-f-]+)", where)
    assert job_id is not None
    job = await site.call("GET", f"/v1/jobs/{job_id[1]}")
    assert job["spec"] == {"prompt": "Write\nabout bees.", "options": {"seed": 42}}
    assert (job["labels"], job["priority"], job["review"]) == ({"post": "812", "lang": "de"}, "high", True)
    again = await post(
        site, "/submit", "/submit", kind="article", model="llama3.1:8b", prompt="Write\r\nabout bees.",
        options='{"seed": 42}', labels="post: 812\r\nlang: de\r\n", priority="high", review="yes", once="one",
    )  # fmt: skip
    assert job_id[0] in again, "a form that is sent twice makes one job"


async def test_each_fault_stands_beside_its_field_and_what_was_typed_stays(site: Web) -> None:
    page = await post(
        site, "/submit", "/submit", expect=422, kind="image", prompt=" ", options='{"width": 7}', labels="nonsense",
        model="any", callback_url="nowhere", once="x",
    )  # fmt: skip
    assert 'id="fault-labels"' in page
    assert "{&#34;width&#34;: 7}" in page
    page = await post(site, "/submit", "/submit", expect=422, kind="image", prompt=" ", options='{"width": 7}',
                      model="any", callback_url="nowhere", once="x")  # fmt: skip
    for field in ("options", "model", "callback_url"):
        assert f'id="fault-{field}"' in page, field
    page = await post(site, "/submit", "/submit", expect=422, kind="article", prompt="p", options="{", once="x")
    assert "not JSON" in page
    page = await post(site, "/submit", "/submit", expect=422, kind="nothing", prompt=" ", once="x")
    assert 'id="fault-kind"' in page
    page = await post(site, "/submit", "/submit", expect=422, kind="article", prompt=" ", once="x")
    assert 'id="fault-prompt"' in page


async def test_the_same_form_with_other_content_says_so_and_can_be_sent_again(site: Web) -> None:
    await post(site, "/submit", "/submit", kind="article", prompt="one", once="same")
    page = await post(site, "/submit", "/submit", expect=409, kind="article", prompt="two", once="same")
    once = re.search(r'name="once" value="([^"]+)"', page)
    assert once is not None
    assert "was sent already" in page
    await post(site, "/submit", "/submit", kind="article", prompt="two", once=once[1])


async def test_a_viewer_sees_no_button_and_can_do_nothing(guarded: Web) -> None:
    job_id = UUID((await guarded.call("POST", "/v1/jobs", token="admin", expect=201,
                                      json={"kind": "article", "spec": {"prompt": "A story"}}))["id"])  # fmt: skip
    for path in ("/jobs", f"/jobs/{job_id}", "/review"):
        page = await guarded.call("GET", path, token="viewer")
        assert "<button" not in re.sub(r'(?s)<form class="filters.*?</form>|<header.*?</header>', "", page), path
        assert 'type="checkbox"' not in page
    await guarded.call("GET", "/submit", token="viewer", expect=403)
    for path in (f"/jobs/{job_id}/cancel", "/jobs/actions", "/submit", f"/jobs/{job_id}/callback"):
        await guarded.call("POST", path, token="viewer", data={"job": str(job_id)}, expect=403)
    assert TOKENS["viewer"].role == "viewer"


async def test_a_form_without_its_token_does_nothing(site: Web) -> None:
    job_id = await site.submit()
    for path in (f"/jobs/{job_id}/cancel", "/jobs/actions", "/submit", f"/jobs/{job_id}/callback"):
        await site.call("POST", path, data={"job": str(job_id), "action": "cancel"}, expect=403)
    assert await state(site, job_id) == "pending"


@pytest.mark.parametrize("query", ["text=%00", "label=a:%00", "kind=%00", "model=a%00", "worker=%00"])
async def test_a_filter_with_nul_is_refused(site: Web, query: str) -> None:
    page = await site.call("GET", f"/jobs?{query}", expect=400)
    assert "must not contain NUL" in page


@pytest.mark.parametrize("source", ["%00", "a%00b", "A", "a" * 64, "-a"])
async def test_a_site_of_no_source_is_not_found(site: Web, source: str) -> None:
    for method, path in (
        ("GET", "/sites/{}/check"),
        ("POST", "/sites/{}/check"),
        ("POST", "/v1/publications/{}/check"),
    ):
        await site.call(method, path.format(source), expect=404)


async def test_the_log_files_are_searched_once_for_many_drawings_of_a_page(site: Web) -> None:
    asked: list[tuple[Any, ...]] = []

    async def lines(*what: Any) -> list[dict[str, Any]]:
        asked.append(what)
        return [{"event": "said", "n": len(asked)}]

    context = replace(site.context, log_lines=lines)
    jobs = [await site.submit(), await site.submit()]
    for job_id in jobs * 3:
        shown = await pages_job.everything(context, job_id)
        assert shown["lines"] == [{"event": "said", "n": jobs.index(job_id) + 1}]
    created = await site.pool.fetch("SELECT id, 200, created_at FROM job ORDER BY created_at")
    assert asked == [tuple(row) for row in created]
