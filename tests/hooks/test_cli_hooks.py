"""`tandem hooks`: what is configured, what is wrong with it, and what an event would become, submitting nothing."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from shared.ids import job_id_of
from tests.hooks.senders import BODIES, PLAIN, SOURCES, WHSEC


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sources.toml").write_text(SOURCES)
    return tmp_path


def tandem(folder: Path, *words: str, given: bytes = b"") -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-c", "from coordinator.cli import main; main()", "hooks", *words],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TANDEM_DATA": str(folder)},
    )
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


def test_sources_are_listed_without_their_secrets(folder: Path) -> None:
    status, said, _ = tandem(folder, "list")

    assert status == 0
    assert "ghost: POST /hooks/ghost, ghost with 1 secret, becomes article (article)" in said.splitlines()
    assert (
        "wordpress: POST /hooks/wordpress, standard with 1 secret, becomes article (article), hero_image (image)"
        in said
    )
    assert WHSEC not in said

    status, said, _ = tandem(folder, "list", "--json")
    rows = {row["source"]: row for row in orjson.loads(said)}
    assert rows["directus"]["check"] == "bearer"
    assert rows["directus"]["path"] == "/hooks/directus"
    assert PLAIN not in said


def test_a_sources_file_without_fault_is_good(folder: Path) -> None:
    status, said, told = tandem(folder, "check")

    assert (status, said) == (0, "")
    assert told.endswith("6 sources, no fault\n")


def test_each_fault_is_a_line(folder: Path) -> None:
    (folder / "sources.toml").write_text('[sources.a]\npreset = "ghost"\n[sources.b]\nwhen = "x["\n')

    status, said, _ = tandem(folder, "check")

    assert status == 1
    assert len(said.splitlines()) >= 3
    assert "sources.b.when: not JMESPath" in said
    assert tandem(folder, "try", "a", "-")[0] == 2


def test_an_event_is_shown_as_what_it_would_become(folder: Path) -> None:
    status, said, _ = tandem(folder, "try", "wordpress", str(BODIES / "wordpress.json"))

    assert status == 0
    assert "article: job " in said
    assert "wordpress_post" in said

    status, said, _ = tandem(folder, "try", "wordpress", str(BODIES / "wordpress.json"), "--json")
    told = orjson.loads(said)
    article = told["jobs"]["article"]
    assert (status, told["ignored"], told["faults"]) == (0, None, [])
    assert article["id"] == str(job_id_of("wordpress", article["key"]))


def test_headers_are_part_of_an_event(folder: Path) -> None:
    file = str(BODIES / "contentful.json")
    topic = "X-Contentful-Topic: ContentManagement.Entry.publish"

    assert tandem(folder, "try", "contentful", file)[:2] == (0, "ignored: not an event that counts here\n")
    assert "article: job " in tandem(folder, "try", "contentful", file, "--header", topic)[1]
    assert tandem(folder, "try", "contentful", file, "--header", "nonsense")[0] == 2


def test_a_fault_of_an_event_is_told_and_counts(folder: Path) -> None:
    status, said, _ = tandem(folder, "try", "wordpress", "-", given=b"no JSON")
    assert status == 1
    assert said.startswith("refused: the body is not JSON")

    event = {"event": "entry.publish", "uid": "a", "entry": {"id": 1, "title": "x\0y"}}
    status, said, _ = tandem(folder, "try", "strapi", "-", "--json", given=orjson.dumps(event))
    assert status == 1
    assert [fault["field"] for fault in orjson.loads(said)["faults"]] == ["jobs.article.spec.prompt"]


def test_a_source_that_is_not_there_is_named_with_those_that_are(folder: Path) -> None:
    status, _, told = tandem(folder, "try", "nobody", "-")

    assert status == 2
    assert "no source 'nobody'; there are: standard, wordpress, ghost" in told
