"""An image for the screen, in fewer bytes: for web servers that take no large file. Pure."""

import io
from typing import Final

from PIL import Image

MOST_BYTES: Final = 64 * 1024 * 1024
"""What is larger is not opened."""

_MOST_PIXELS: Final = 50_000_000
_SIDE: Final = 2560  # what WordPress itself scales larger ones to
_QUALITY: Final = 82
_SCALED_WELL: Final = ("RGB", "RGBA", "L", "LA", "CMYK")  # what has a palette is not


def smaller(data: bytes) -> bytes | None:
    """Return an image as a JPEG of at most 2560 pixels a side; None if it is none that can be. Takes seconds."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP")) as image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            most = _SIDE / max(image.size)
            image.draft(image.mode, (int(image.width * most), int(image.height * most)))  # JPEG: decodes no more pixels
            image.load()  # `thumbnail` would set another draft
            is_plain = image.mode in _SCALED_WELL and "transparency" not in image.info
            colours = image if is_plain else image.convert("RGBA")
            colours.thumbnail((_SIDE, _SIDE))  # before the rest: at full size each copy takes 200 MB
            shown = colours.convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    flat = Image.new("RGB", shown.size, "white")
    flat.paste(shown, mask=shown.getchannel("A"))
    made = io.BytesIO()
    flat.save(made, "JPEG", quality=_QUALITY, progressive=True)
    return made.getvalue()
