"""What the sketch executor makes: real articles and pictures, the same for the same seed."""

import asyncio
import json

import pytest
from PIL import Image

from agent.executors.base import Elsewhere, Permanent, RunnableJob, Transient
from agent.executors.sketch import SketchExecutor
from tests.support.servers import eventually


class Told:
    def __init__(self):
        self.stages, self.fractions, self.details = [], [], []

    def stage(self, name):
        self.stages.append(name)

    def progress(self, fraction):
        self.fractions.append(fraction)

    def detail(self, text):
        self.details.append(text)


def job(tmp_path, kind="article", attempt=1, model=None, **spec):
    def open_workspace():
        tmp_path.mkdir(exist_ok=True)
        return tmp_path

    return RunnableJob(
        id="j", epoch=1, attempt=attempt, kind=kind, model=model, spec=spec, labels={}, open_workspace=open_workspace
    )


def sketch(**table):
    return SketchExecutor.from_settings(table)


async def test_an_article_is_markdown_with_all_its_parts(tmp_path):
    told = Told()
    product = await sketch().run(job(tmp_path / "w", prompt="Write about harbour cranes at dawn"), told)
    text = product.result["text"]
    assert text.startswith("# Write about harbour cranes at dawn\n\n")
    assert text.count("\n## ") == 4
    assert text.count("\n- ") == 4
    assert "harbour" in text
    assert len(text) > 800
    (file,) = product.files
    assert (file.artifact, file.media_type, file.path.read_text()) == ("article.md", "text/markdown", text)
    assert told.stages == ["generating_text"]


async def test_the_same_seed_gives_the_same_and_another_seed_another(tmp_path):
    texts = []
    for seed in (1, 1, 2):
        product = await sketch().run(job(tmp_path / "w", prompt="Cranes", options={"seed": seed}), Told())
        texts.append(product.result["text"])
    assert texts[0] == texts[1] != texts[2]


async def test_messages_and_empty_words_are_enough(tmp_path):
    product = await sketch().run(job(tmp_path / "w", messages=[{"role": "user", "content": "?"}]), Told())
    assert product.result["text"].startswith("# Untitled")


async def test_json_is_an_object_and_follows_a_schema(tmp_path):
    product = await sketch().run(job(tmp_path / "w", prompt="Cranes", format="json"), Told())
    assert set(json.loads(product.result["text"])) == {"title", "summary", "keywords", "sections"}
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 10},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3},
            "count": {"type": "integer", "minimum": 2},
            "nested": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
        },
    }
    product = await sketch().run(job(tmp_path / "w", prompt="Cranes", format=schema), Told())
    made = json.loads(product.files[0].path.read_text())
    assert len(made["title"]) <= 10
    assert len(made["tags"]) == 3
    assert set(made["tags"]) <= {"a", "b"}
    assert made["count"] == 2
    assert isinstance(made["nested"]["ok"], bool)
    assert product.files[0].artifact == "article.json"


async def test_images_decode_have_the_size_and_are_not_flat(tmp_path):
    told = Told()
    spec = {"prompt": "a quiet harbour", "width": 320, "height": 192, "n": 2, "seed": 7, "upscale": 2}
    product = await sketch().run(job(tmp_path / "w", "image", **spec), told)
    assert [file.artifact for file in product.files] == ["image-1.png", "image-2.png"]
    pictures = []
    for file in product.files:
        with Image.open(file.path) as picture:
            picture.load()
            assert (picture.format, picture.size) == ("PNG", (640, 384))
            assert len(picture.getcolors(maxcolors=10**6)) > 200
            pictures.append(picture.tobytes())
    assert pictures[0] != pictures[1]
    assert "upscaling" in told.stages
    assert max(told.fractions) == 1.0
    again = await sketch().run(job(tmp_path / "again", "image", **spec), Told())
    with Image.open(again.files[0].path) as picture:
        assert picture.tobytes() == pictures[0]


async def test_the_smallest_picture_can_be_drawn(tmp_path):
    product = await sketch().run(job(tmp_path / "w", "image", prompt="x", width=64, height=64), Told())
    with Image.open(product.files[0].path) as picture:
        assert picture.size == (64, 64)


async def test_a_picture_too_large_for_memory_goes_elsewhere(tmp_path):
    with pytest.raises(Elsewhere):
        await sketch().run(job(tmp_path / "w", "image", prompt="x", width=4096, height=4096, upscale=4), Told())


async def test_drawing_does_not_block_the_loop_and_stops_when_cancelled(tmp_path):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    told = Told()
    work = asyncio.create_task(
        sketch().run(job(tmp_path / "w", "image", prompt="x", width=2048, height=2048, n=8), told)
    )
    await eventually(lambda: told.fractions)
    seen = ticks
    await eventually(lambda: ticks >= seen + 3)
    assert not work.done()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert work.cancelled()
    told_then = len(told.fractions)
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    await asyncio.to_thread(lambda: None)
    assert len(told.fractions) == told_then
    assert not (tmp_path / "w" / "image-2.png").exists()


async def test_simulate_names_stages_adds_bulk_and_fails_as_asked(tmp_path):
    told = Told()
    simulate = {"seconds": 0.01, "stages": ["one", "two"], "pad_bytes": 3_000_001}
    product = await sketch().run(job(tmp_path / "w", prompt="x", simulate=simulate), told)
    assert told.stages == ["one", "two"]
    assert [(file.artifact, file.path.stat().st_size) for file in product.files][1] == ("pad.bin", 3_000_001)
    for error_class, error in (("transient", Transient), ("elsewhere", Elsewhere), ("permanent", Permanent)):
        with pytest.raises(error):
            await sketch().run(job(tmp_path / "w", prompt="x", simulate={"fail": error_class}), Told())
    failing = {"fail": "transient", "fail_attempts": 2}
    with pytest.raises(Transient):
        await sketch().run(job(tmp_path / "w", attempt=2, prompt="x", simulate=failing), Told())
    assert await sketch().run(job(tmp_path / "w", attempt=3, prompt="x", simulate=failing), Told())


async def test_simulated_time_ends_when_cancelled(tmp_path):
    told = Told()
    work = asyncio.create_task(sketch().run(job(tmp_path / "w", prompt="x", simulate={"seconds": 86400}), told))
    await eventually(lambda: told.stages)
    work.cancel()
    async with asyncio.timeout(1):
        await asyncio.gather(work, return_exceptions=True)
    assert work.cancelled()


async def test_noop_touches_no_disk_and_a_bad_spec_is_permanent(tmp_path):
    executor = sketch(kinds=["noop"], models=["m"])
    product = await executor.run(job(tmp_path / "w", "noop"), Told())
    assert (product.result, list(product.files)) == ({"text": "done"}, [])
    assert not (tmp_path / "w").exists()
    assert [(c.kind, c.models) for c in executor.capabilities()] == [("noop", ["m"])]
    with pytest.raises(Permanent):
        await sketch().run(job(tmp_path / "w", "article", width=3), Told())
    with pytest.raises(Elsewhere):
        await sketch().run(job(tmp_path / "w", "video"), Told())
    with pytest.raises(ValueError, match="extra"):
        sketch(kindz=["noop"])
