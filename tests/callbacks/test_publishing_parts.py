"""What the publisher is made of: a text becomes HTML, an image smaller, and a site is named right or not at all."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from coordinator.publishing.article import render
from coordinator.publishing.config import WordPressSite
from coordinator.publishing.smaller import smaller
from coordinator.publishing.wordpress import address
from shared.errors import ConfigurationError
from tests.callbacks.publishing import picture
from tests.support.fake_wordpress import PASSWORD


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>\n"),
        ("![a *b*](https://elsewhere.example/x.png)", "<p><em>a b</em></p>\n"),
        ("![boats](./hero.png)", '<p><img src="https://blog.example/hero.png" alt="boats"></p>\n'),
        ("| a |\n|---|\n| ~~b~~ |", None),
        (
            '[x](https://a.example "t\\"onclick=x")',
            '<p><a href="https://a.example" title="t&quot;onclick=x">x</a></p>\n',
        ),
    ],
)
def test_a_text_becomes_html_that_nobody_has_to_fear(text: str, html: str | None) -> None:
    made_html = render(text, {"hero.png": "https://blog.example/hero.png"})
    assert html is None or made_html == html
    assert html is not None or "<table>" in made_html


def test_an_image_is_made_smaller_or_not_at_all() -> None:
    assert (smaller(picture(size=600)) or b"").startswith(b"\xff\xd8\xff")
    assert smaller(b"\x89PNG and then nothing") is None
    assert smaller(b"<svg/>") is None


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "1"])
def test_an_image_of_any_kind_keeps_its_look(mode: str) -> None:
    drawn, kept = Image.new(mode, (3000, 1000), 1), io.BytesIO()
    if mode == "P":
        drawn.putpalette([9, 9, 9, 255, 255, 255])
    elif mode == "L":
        drawn.paste(255, (0, 0, 3000, 1000))
    drawn.save(kept, "PNG")
    with Image.open(io.BytesIO(smaller(kept.getvalue()) or b"")) as seen:
        assert seen.size == (2560, 853)
        assert min(low for low, _ in seen.getextrema()) > 250  # white: what is clear lies on white


_MADE_SMALLER = """
import sys
from PIL import JpegImagePlugin
from coordinator.publishing.smaller import smaller
def most_mb():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
data = open(sys.argv[1], "rb").read()
before = most_mb()
assert smaller(data)
print(most_mb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_large_photograph_is_never_held_at_its_full_size(tmp_path: Path) -> None:
    photograph = tmp_path / "large.jpg"
    Image.new("RGB", (10400, 4800), "teal").save(photograph)
    command = [sys.executable, "-c", _MADE_SMALLER, str(photograph)]
    took = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, timeout=60)
    assert int(took.stdout) < 150  # MB; one copy at full size is 190


def test_an_address_joins_what_has_a_question_mark_already() -> None:
    asked = {"slug": "a b"}
    assert (
        address("https://b.example/wp-json/", "/wp/v2/media", asked) == "https://b.example/wp-json/wp/v2/media?slug=a+b"
    )
    plain = "https://b.example/index.php?rest_route=/"
    assert address(plain, "/wp/v2/media", asked) == "https://b.example/index.php?rest_route=/wp/v2/media&slug=a+b"
    assert address(plain, "/wp/v2/media", {}) == "https://b.example/index.php?rest_route=/wp/v2/media"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"url": "http://blog.example"}, "not https"),
        ({"url": "ftp://blog.example"}, "not https"),
        ({"url": "https://user:x@blog.example"}, "not https"),
        ({"app_password_file": "x"}, "either app_password or"),
        ({"app_password": None}, "either app_password or"),
        ({"user": "a:b"}, "user"),
        ({"status": "trash"}, "status"),
        ({"passwort": "x"}, "passwort"),
    ],
)
def test_a_site_that_is_named_wrong_is_refused(given: dict[str, Any], fault: str) -> None:
    right = {"url": "https://blog.example", "user": "tandem", "app_password": PASSWORD}
    WordPressSite.model_validate(right)
    with pytest.raises(ValidationError, match=fault) as raised:
        WordPressSite.model_validate(right | given)
    assert PASSWORD not in str(raised.value)


def test_a_password_may_lie_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    site = WordPressSite(url="https://blog.example", user="tandem", app_password_file=path)
    with pytest.raises(ConfigurationError, match="app_password_file"):
        site.password()
    path.write_text(f"{PASSWORD}\n")
    assert site.password() == PASSWORD
    path.write_bytes(b"p\xe4ssword")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        site.password()
