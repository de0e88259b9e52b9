"""Pictures without a model: hills under a sky, the same for the same prompt and seed. Blocking; run it in a thread.

Called by `sketch`. `check` is called between the parts and raises to stop.
"""

import colorsys
import math
import random
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

_LAYERS = 6
_STARS = 60
_WORDS_SHOWN = 6

Colour = tuple[int, int, int]


def draw(
    path: Path, *, prompt: str, seed: int, width: int, height: int, upscale: int, check: Callable[[float], None]
) -> None:
    """Write a PNG of exactly `width` x `height` times `upscale`; `check` gets the fraction that is done."""
    chance = random.Random(f"{seed}\n{prompt}")  # noqa: S311 - a drawing lot, not a secret
    hue = chance.random()
    picture = _sky(width, height, hue, chance)
    check(0.2)
    canvas = ImageDraw.Draw(picture)
    _lights(canvas, width, height, hue, chance)
    for layer in range(_LAYERS):
        _hills(canvas, width, height, hue, layer, chance)
        check(0.2 + 0.5 * (layer + 1) / _LAYERS)
    _caption(canvas, width, height, prompt)
    if upscale > 1:
        picture = picture.resize((width * upscale, height * upscale), Image.Resampling.LANCZOS)
        check(0.85)
    picture.save(path, "PNG", compress_level=3)
    check(1.0)


def _sky(width: int, height: int, hue: float, chance: random.Random) -> Image.Image:
    """Return a vertical gradient between two related colours."""
    top = _colour(hue, 0.65, chance.uniform(0.25, 0.45))
    bottom = _colour(hue + chance.uniform(0.06, 0.14), 0.45, 0.95)
    ramp = Image.linear_gradient("L").resize((width, height))
    return Image.composite(Image.new("RGB", (width, height), bottom), Image.new("RGB", (width, height), top), ramp)


def _lights(canvas: ImageDraw.ImageDraw, width: int, height: int, hue: float, chance: random.Random) -> None:
    for _ in range(_STARS):
        x, y, size = chance.uniform(0, width), chance.uniform(0, height * 0.6), chance.uniform(0.5, 1.8)
        canvas.ellipse((x - size, y - size, x + size, y + size), fill=_colour(hue, 0.1, 1.0))
    radius = min(width, height) * chance.uniform(0.08, 0.16)
    x, y = chance.uniform(0.2, 0.8) * width, chance.uniform(0.15, 0.4) * height
    for ring in range(4, 0, -1):
        size = radius * (1 + 0.18 * (ring - 1))
        canvas.ellipse(
            (x - size, y - size, x + size, y + size), fill=_colour(hue + 0.5, 0.12 * ring, 1.0 - 0.06 * ring)
        )


def _hills(canvas: ImageDraw.ImageDraw, width: int, height: int, hue: float, layer: int, chance: random.Random) -> None:
    depth = (layer + 1) / _LAYERS
    base = height * (0.45 + 0.5 * depth)
    waves = [(chance.uniform(0.5, 3.5), chance.uniform(0, math.tau), chance.uniform(0.02, 0.07)) for _ in range(3)]
    line = [
        (x, base - height * sum(size * math.sin(rate * math.tau * x / width + turn) for rate, turn, size in waves))
        for x in range(0, width + 8, 8)
    ]
    canvas.polygon([(0, height), *line, (width, height)], fill=_colour(hue + 0.05 * layer, 0.55, 0.7 - 0.55 * depth))


def _caption(canvas: ImageDraw.ImageDraw, width: int, height: int, prompt: str) -> None:
    words = " ".join(prompt.split()[:_WORDS_SHOWN])[:60] or "untitled"
    size = max(10, min(width // max(len(words), 1) * 3 // 2, height // 14))
    font = ImageFont.load_default(size)
    for shift, colour in ((max(1, size // 16), (0, 0, 0)), (0, (255, 255, 255))):
        canvas.text((width * 0.04 + shift, height * 0.96 - size + shift), words, font=font, fill=colour)


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, min(saturation, 1.0), max(0.0, min(value, 1.0)))
    return round(red * 255), round(green * 255), round(blue * 255)
