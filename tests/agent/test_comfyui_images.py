"""Is it a picture, of what size, and what of it is published."""

import io
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from agent.executors import images


def noise(size=(24, 16), mode="RGB"):
    return Image.effect_noise(size, 80).convert(mode)


def saved(tmp_path, image, kind="PNG", **options):
    path = tmp_path / f"raw.{kind.lower()}"
    image.save(path, kind, **options)
    return path


@pytest.mark.parametrize(
    ("kind", "media_type", "suffix"),
    [("PNG", "image/png", "png"), ("JPEG", "image/jpeg", "jpg"), ("WEBP", "image/webp", "webp")],
)
def test_three_formats_are_taken(tmp_path, kind, media_type, suffix):
    picture = images.look(saved(tmp_path, noise(), kind))
    assert (picture.size, picture.media_type, picture.suffix, picture.flat) == ((24, 16), media_type, suffix, False)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16"])
@pytest.mark.parametrize("flat", [True, False])
def test_one_flat_colour_is_seen_in_each_mode(tmp_path, mode, flat):
    image = Image.new("RGB", (24, 16), (17, 17, 17)) if flat else noise()
    if mode == "P":
        image = image.quantize(16)
    else:
        image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    assert images.look(saved(tmp_path, image)).flat is flat


def test_transparency_does_not_make_a_flat_picture_lively(tmp_path):
    image = Image.new("RGBA", (24, 16), (0, 0, 0, 255))
    image.putalpha(noise(mode="L"))
    assert images.look(saved(tmp_path, image)).flat


def test_a_flat_jpeg_is_flat(tmp_path):
    assert images.look(saved(tmp_path, Image.new("RGB", (64, 64), (200, 30, 90)), "JPEG", quality=60)).flat


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"<html>", b"\x89PNG\r\n\x1a\n", b"\x89PNG\r\n\x1a\n" + b"x" * 100])
def test_what_is_no_picture_is_said_to_be_none(tmp_path, data):
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(images.NotAnImageError):
        images.look(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_file_that_is_cut_off_is_no_picture(tmp_path, kind):
    path = saved(tmp_path, noise((128, 128)), kind)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(images.NotAnImageError):
        images.look(path)


def test_a_bomb_is_not_decoded(tmp_path):
    head = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    path = tmp_path / "bomb.png"
    path.write_bytes(images._PNG + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    with pytest.raises(images.NotAnImageError, match="60000 x 60000"):
        images.look(path)


def test_the_largest_picture_that_may_be_asked_for_is_not_refused_by_its_size():
    assert images.MOST_PIXELS == (4096 * 4) ** 2


def test_a_png_loses_its_texts_and_no_pixel(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", "secret")
    info.add_text("workflow", "secret" * 100, zip=True)
    info.add_itxt("parameters", "secret")
    exif = Image.Exif()
    exif[270] = "secret"
    image = noise()
    source = saved(tmp_path, image, pnginfo=info, exif=exif, dpi=(72, 72))
    target = tmp_path / "out.png"
    images.publish(source, target, images.look(source), keep_metadata=False)
    assert b"secret" not in target.read_bytes()
    with Image.open(target) as published:
        published.load()
        assert published.tobytes() == image.tobytes()
        assert published.text == {}
        assert not published.getexif()
        assert published.info["dpi"] == pytest.approx((72, 72), abs=0.1)


def test_what_follows_the_end_of_a_png_is_not_published(tmp_path):
    source = saved(tmp_path, noise())
    source.write_bytes(source.read_bytes() + b"secret")
    target = tmp_path / "out.png"
    images.publish(source, target, images.look(source), keep_metadata=False)
    assert b"secret" not in target.read_bytes()


@pytest.mark.parametrize(("kind", "mode"), [("WEBP", "RGBA"), ("JPEG", "RGB")])
def test_another_format_becomes_a_png_without_texts(tmp_path, kind, mode):
    exif = Image.Exif()
    exif[270] = "secret"
    more = {"comment": b"secret"} if kind == "JPEG" else {"lossless": True}
    source = saved(tmp_path, noise(mode=mode), kind, exif=exif, **more)
    target = tmp_path / "out.png"
    images.publish(source, target, images.look(source), keep_metadata=False)
    assert b"secret" not in target.read_bytes()
    with Image.open(source) as before, Image.open(target) as after:
        assert after.format == "PNG"
        assert after.convert("RGBA").tobytes() == before.convert("RGBA").tobytes()


def test_metadata_is_kept_if_it_is_asked_for(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", "kept")
    source = saved(tmp_path, noise(), pnginfo=info)
    target = tmp_path / "out.png"
    images.publish(source, target, images.look(source), keep_metadata=True)
    assert target.read_bytes() == source.read_bytes()
    assert io.BytesIO(target.read_bytes()).read(4) == b"\x89PNG"
