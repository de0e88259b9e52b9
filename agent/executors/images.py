"""Is this file a picture, and of what size? And what of it is published.

Blocking; call it in a thread. Generators answer with success and a black picture when the numbers went wrong, and
write the whole graph and prompt into a PNG's text chunks, so neither is taken on trust.
"""

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 16384 * 16384
"""The largest picture that a job can ask for: 4096 x 4096, four times as large. More is not decoded."""

_FLAT_SPREAD = 2
"""A picture whose channels vary by no more than this is one flat colour, whatever the encoder did to it."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT = frozenset(
    (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"pHYs")
)
_MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
_SUFFIXES = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp"}


Image.MAX_IMAGE_PIXELS = None  # Pillow refuses pictures of this size; the limit above is kept here


class NotAnImageError(Exception):
    """The file can't be decoded, or is none of the formats that are taken."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What a file holds, decoded to its last pixel."""

    width: int
    height: int
    format: str  # PNG, JPEG or WEBP
    flat: bool  # one colour and nothing else

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return (self.width, self.height)

    @property
    def media_type(self) -> str:
        """How it is served."""
        return _MEDIA_TYPES[self.format]

    @property
    def suffix(self) -> str:
        """The end of its file's name, without a dot."""
        return _SUFFIXES[self.format]


def look(path: Path) -> Picture:
    """Decode a file; NotAnImageError for one that is cut off, too large, or no PNG, JPEG or WebP."""
    try:
        with _opened(path) as image:
            return Picture(image.width, image.height, str(image.format), _is_flat(image))
    except (OSError, ValueError, SyntaxError, struct.error) as error:
        what = "no picture" if isinstance(error, UnidentifiedImageError) else str(error)
        raise NotAnImageError(what) from None


def publish(source: Path, target: Path, picture: Picture, *, keep_metadata: bool) -> None:
    """Write what is published, without its texts unless they are to be kept: a PNG's pixels are not touched."""
    if keep_metadata:
        shutil.copyfile(source, target)
    elif picture.format == "PNG":
        with source.open("rb") as reader, target.open("wb") as writer:
            _copy_png(reader, writer)
    else:
        with _opened(source) as image:
            bare = image.convert("RGBA" if image.has_transparency_data else "RGB")
            bare.info.clear()
            bare.save(target, "PNG", compress_level=3)


def _opened(path: Path) -> Image.Image:
    """Open and decode; ValueError for one that is too large."""
    image = Image.open(path, formats=tuple(_MEDIA_TYPES))
    if image.width * image.height > MOST_PIXELS:
        image.close()
        msg = f"{image.width} x {image.height} pixels; at most {MOST_PIXELS}"
        raise ValueError(msg)
    try:
        image.load()
    except BaseException:
        image.close()
        raise
    return image


def _is_flat(image: Image.Image) -> bool:
    """Whether red, green and blue hardly vary, whatever transparency does."""
    plain = image if image.mode in ("RGB", "RGBA") else image.convert("RGB")
    extrema = (plain.getchannel(channel).getextrema() for channel in "RGB")
    return all(float(high) - float(low) <= _FLAT_SPREAD for low, high in extrema)  # type: ignore[arg-type]


def _copy_png(reader: BinaryIO, writer: BinaryIO) -> None:
    """Copy the chunks that make the picture; texts, times and Exif stay behind."""
    if reader.read(len(_PNG)) != _PNG:
        msg = "no PNG"
        raise ValueError(msg)
    writer.write(_PNG)
    while head := reader.read(8):
        length, kind = struct.unpack(">I4s", head)
        body = reader.read(length + 4)  # and its checksum
        if kind in _PNG_KEPT:
            writer.write(head)
            writer.write(body)
        if kind == b"IEND":
            return
