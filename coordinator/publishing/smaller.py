"""An image for the screen, in fewer bytes: for web servers that take no large file. Pure."""

import io
from typing import Final

from PIL import Image

MOST_BYTES: Final = 64 * 1024 * 1024
"""What is larger is not opened."""

_MOST_PIXELS: Final = 50_000_000
_SIDE: Final = 2560  # what WordPress itself scales larger ones to
_QUALITY: Final = 82


def smaller(data: bytes) -> bytes | None:
    """Return an image as a JPEG of at most 2560 pixels a side; None if it is none that can be. Takes seconds."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP")) as image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            flat = Image.new("RGB", image.size, "white")
            shown = image.convert("RGBA")
            flat.paste(shown, mask=shown.getchannel("A"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    flat.thumbnail((_SIDE, _SIDE))
    made = io.BytesIO()
    flat.save(made, "JPEG", quality=_QUALITY, progressive=True)
    return made.getvalue()
