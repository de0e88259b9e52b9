"""What docs/hooks.md and the READMEs of deploy/cms show is a sources file that works."""

import re
from pathlib import Path

import pytest

from coordinator.hooks.config import load
from coordinator.hooks.mapping import Event, map_event
from tests.hooks.senders import LONG, WHSEC

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/hooks.md", *sorted((ROOT / "deploy/cms").glob("*/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_sources_that_are_shown_can_be_loaded(tmp_path: Path, page: Path) -> None:
    for secret, text in (("blog.secret", WHSEC), ("site.secret", LONG)):
        (tmp_path / secret).write_text(text)
        (tmp_path / secret).chmod(0o600)
    text = page.read_text()
    shown = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    shown += [
        re.sub(r"^ {7}", "", part, flags=re.MULTILINE) for part in re.findall(r"(?:^ {7}\S.*\n)+", text, re.MULTILINE)
    ]
    shown = [part for part in shown if part.startswith("[sources.")]
    assert shown

    for part in shown:
        (tmp_path / "sources.toml").write_text(part)
        assert load(tmp_path / "sources.toml")


def test_the_example_of_the_docs_becomes_what_it_says(tmp_path: Path) -> None:
    shown = re.findall(r"```toml\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    (tmp_path / "sources.toml").write_text(next(part for part in shown if "[sources.shop]" in part))
    product = {
        "id": 7,
        "title": "A chair",
        "picture_wanted": True,
        "tags": [{"name": "oak"}],
        "picture": {"width": 640},
    }
    event = {"event": "product.saved", "user": "ann", "product": product}
    rules = load(tmp_path / "sources.toml")["shop"].rules()

    made = map_event("shop", rules, Event(event, {}))
    assert made.submissions["picture"]["spec"] == {
        "height": 640,
        "width": 640,
        "prompt": "A photograph of A chair, oak",
    }
    assert map_event("shop", rules, Event({**event, "user": "tandem"}, {})).ignored == "own write-back"
    without = {**product, "picture_wanted": False}
    assert map_event("shop", rules, Event({**event, "product": without}, {})).ignored == "no picture wanted"
