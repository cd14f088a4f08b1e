"""Image files of all formats and modes decode to a square of RGB pixels, compared with Pillow and known pixels."""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from itl.apps.images import MAX_PIXELS, UnreadableImage, image_dimensions, printable_path, read_image
from itl.apps.images.read import format_names
from itl.streams.pillow_images import EXIF_TRANSPOSES
from support.malformed_images import decompression_bomb, png_chunk


def photo(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """A smooth colorful image without symmetry."""
    y, x = np.mgrid[:height, :width] / max(width, height)
    planes = [np.sin(3 * x + seed) + y, np.cos(2 * y * x + 1), x * (1 - y) + 0.3 * seed]
    levels = np.stack([(p - p.min()) / (np.ptp(p) or 1) * 255 for p in planes], -1)
    return Image.fromarray(levels.astype(np.uint8))


def written(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def expected(image: Image.Image, size: int, method: Image.Resampling = Image.Resampling.BILINEAR) -> np.ndarray:
    """What Pillow's own fitting gives."""
    return np.asarray(ImageOps.fit(image, (size, size), method)).transpose(2, 0, 1).astype(int)


def png_16_bit_rgb(values: np.ndarray) -> bytes:
    """Encode `values` (uint16 `[h, w, 3]`) as a 16-bit RGB PNG, which Pillow cannot write."""
    height, width, _ = values.shape
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = {b"IHDR": head, b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in chunks.items())


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm", "webp"])
def test_lossless_file_keeps_its_pixels(tmp_path: Path, kind: str) -> None:
    image = photo(32, 32)
    options = {"lossless": True} if kind == "webp" else {}
    pixels = read_image(written(tmp_path / f"a.{kind}", image, **options), 32)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (41, 30), (300, 31), (7, 500), (5, 5)])
@pytest.mark.parametrize("size", [8, 32, 64])
def test_image_is_cropped_to_its_central_square_and_resized(tmp_path: Path, shape: tuple[int, int], size: int) -> None:
    image = photo(*shape)
    pixels = read_image(written(tmp_path / "a.png", image), size)
    assert pixels.shape == (3, size, size)
    assert np.abs(pixels - expected(image, size)).max() <= 1


@pytest.mark.parametrize(("shape", "size"), [((41, 30), 8), ((300, 31), 64), ((7, 500), 32)])
def test_bicubic_reading_agrees_with_pillow(tmp_path: Path, shape: tuple[int, int], size: int) -> None:
    image = photo(*shape)
    pixels = read_image(written(tmp_path / "a.png", image), size, "bicubic")
    assert np.abs(pixels - expected(image, size, Image.Resampling.BICUBIC)).max() <= 1
    if shape == (41, 30):
        assert np.abs(pixels - expected(image, size)).max() > 1  # the filters differ


def test_large_jpeg_is_decoded_at_reduced_scale(tmp_path: Path) -> None:
    image = photo(1600, 1200)
    pixels = read_image(written(tmp_path / "a.jpg", image, quality=95), 32)
    assert np.abs(pixels - expected(image, 32)).mean() < 1.5


@pytest.mark.parametrize("kind", ["heic", "avif"])
def test_heic_and_avif_are_read_where_pillow_supports_them(tmp_path: Path, kind: str) -> None:
    if kind.upper() not in format_names():
        pytest.skip(f"this Pillow has no plug-in for {kind}")
    image = photo(64, 64)
    pixels = read_image(written(tmp_path / f"a.{kind}", image, quality=90), 32)
    assert np.abs(pixels - expected(image, 32)).mean() < 4


def test_heic_without_its_plugin_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itl.apps.images.read.format_names", lambda: ("JPEG", "PNG"))
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(UnreadableImage, match=r"an image in the format HEIC; to read it: pip install 'itl\[heic\]'"):
        read_image(tmp_path / "a.heic", 32)
    monkeypatch.setattr("itl.apps.images.read.format_names", lambda: ("JPEG", "HEIC"))
    with pytest.raises(UnreadableImage, match="the file is damaged"):
        read_image(tmp_path / "a.heic", 32)


def test_file_suffix_does_not_matter(tmp_path: Path) -> None:
    image = photo(32, 32)
    image.save(tmp_path / "right.png")
    (tmp_path / "right.png").rename(tmp_path / "wrong.jpg")
    np.testing.assert_array_equal(read_image(tmp_path / "wrong.jpg", 32), np.asarray(image).transpose(2, 0, 1))


def test_gray_image_has_three_equal_channels(tmp_path: Path) -> None:
    pixels = read_image(written(tmp_path / "a.png", photo(32, 32).convert("L")), 32)
    assert (pixels == pixels[:1]).all()
    assert pixels.std() > 10


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_image_is_blended_with_white(tmp_path: Path, mode: str) -> None:
    if mode == "P":
        image = Image.new("P", (8, 8), 0)
        image.putpalette([0, 0, 0, 200, 0, 0])
        image.paste(1, (4, 0, 8, 8))
        image.save(tmp_path / "a.png", transparency=0)
    else:
        image = Image.new(mode, (8, 8), (0,) * len(mode))
        image.paste((200, 0, 0, 255) if mode == "RGBA" else (200, 255), (4, 0, 8, 8))
        image.save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png", 8)
    assert (pixels[:, :, :4] == 255).all()
    assert (pixels[0, :, 4:] == 200).all()


def test_half_transparent_image_is_half_white(tmp_path: Path) -> None:
    pixels = read_image(written(tmp_path / "a.png", Image.new("RGBA", (4, 4), (0, 100, 200, 128))), 8)
    assert np.abs(pixels[:, 0, 0].astype(int) - [127, 177, 227]).max() <= 1


def test_palette_is_applied(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([1, 2, 3, 40, 50, 60])
    assert read_image(written(tmp_path / "a.gif", image), 8)[:, 0, 0].tolist() == [40, 50, 60]


def test_1_bit_image_becomes_0_and_255(tmp_path: Path) -> None:
    image = Image.new("1", (8, 8), 0)
    image.paste(1, (4, 0, 8, 8))
    pixels = read_image(written(tmp_path / "a.png", image), 8)
    assert (pixels[:, :, :4] == 0).all()
    assert (pixels[:, :, 4:] == 255).all()


def test_16_bit_image_keeps_its_upper_8_bits(tmp_path: Path) -> None:
    levels = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for name in ("a.png", "a.tiff"):
        written(tmp_path / name, Image.fromarray(levels))
        np.testing.assert_array_equal(read_image(tmp_path / name, 8)[0], levels >> 8)
    colors = np.stack([levels, levels[::-1], levels.T], -1)
    (tmp_path / "rgb.png").write_bytes(png_16_bit_rgb(colors))
    np.testing.assert_array_equal(read_image(tmp_path / "rgb.png", 8), (colors >> 8).transpose(2, 0, 1))


def test_32_bit_integers_are_read_as_16_bit_and_floats_as_0_to_1(tmp_path: Path) -> None:
    whole = np.linspace(-5, 70000, 64).astype(np.int32).reshape(8, 8)
    pixels = read_image(written(tmp_path / "i.tiff", Image.fromarray(whole)), 8)
    np.testing.assert_array_equal(pixels[0], whole.clip(0, 65535) >> 8)
    real = np.linspace(-0.5, 1.5, 64).astype(np.float32).reshape(8, 8)
    real[0, 0] = np.nan
    pixels = read_image(written(tmp_path / "f.tiff", Image.fromarray(real)), 8)
    np.testing.assert_array_equal(pixels[1], (np.nan_to_num(real).clip(0, 1) * 255).round())


def test_cmyk_is_converted_to_rgb(tmp_path: Path) -> None:
    image = photo(32, 32)
    pixels = read_image(written(tmp_path / "a.jpg", image.convert("CMYK"), quality=100), 32)
    assert np.abs(pixels - np.asarray(image).transpose(2, 0, 1).astype(int)).mean() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("shape", "kind"), [((40, 30), "png"), ((31, 40), "png"), ((40, 30), "tif")])
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int, shape: tuple[int, int], kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = written(tmp_path / f"a.{kind}", photo(*shape), exif=exif)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
    assert (orientation in EXIF_TRANSPOSES) == (orientation > 1)
    assert np.abs(read_image(path, 16) - expected(upright, 16)).max() <= 1


def test_damaged_exif_is_ignored(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jpg", photo(32, 32), exif=b"Exif\0\0II*\0\xff\xff\xff\xff\xff\xff")
    assert read_image(path, 32).std() > 10


def test_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    for kind in ("gif", "webp", "png", "tiff"):
        path = tmp_path / f"a.{kind}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=50, loop=0)
        red, green, blue = read_image(path, 8)[:, 4, 4].tolist()
        assert red > 240, kind
        assert green < 10, kind
        assert blue < 10, kind


def test_1_pixel_image_and_20000_pixel_line_are_read(tmp_path: Path) -> None:
    dot = read_image(written(tmp_path / "dot.png", Image.new("RGB", (1, 1), (9, 8, 7))), 224)
    assert (dot == np.array([9, 8, 7])[:, None, None]).all()
    for shape in ((20000, 1), (1, 20000)):
        line = read_image(written(tmp_path / "line.png", Image.new("RGB", shape, (1, 2, 3))), 224)
        assert (line == np.array([1, 2, 3])[:, None, None]).all()


@pytest.mark.parametrize("shape", [(20000, 20000), (1 << 27, 2), (12000, 12000), (1 << 30, 1 << 30)])
def test_decompression_bomb_is_refused_before_decoding(tmp_path: Path, shape: tuple[int, int]) -> None:
    assert shape[0] * shape[1] > MAX_PIXELS
    (tmp_path / "bomb.png").write_bytes(decompression_bomb(*shape))
    with pytest.raises(UnreadableImage, match=r"bomb\.png.*exceeds the limit of 134 million pixels; make it smaller"):
        read_image(tmp_path / "bomb.png", 32)


def test_unreadable_file_is_reported_in_one_line(tmp_path: Path) -> None:
    def reason(name: str, data: bytes | None = None) -> str:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableImage) as caught:
            read_image(tmp_path / name, 32)
        assert "\n" not in str(caught.value)
        assert caught.value.path == tmp_path / name
        assert str(caught.value) == f"{tmp_path / name}: {caught.value.reason}"
        return caught.value.reason

    encoded = io.BytesIO()
    photo(64, 64).save(encoded, "PNG")
    assert reason("none.png") == "No such file or directory"
    assert reason("zero.png", b"") == "the file is empty (0 bytes)"
    expected = r"not an image in a supported format \(JPEG, PNG, WebP, BMP, GIF, TIFF, PPM(, HEIC)?(, AVIF)?\)"
    assert re.fullmatch(expected, reason("text.png", b"hello"))
    assert reason("cut.png", encoded.getvalue()[:-300]) == "the file is damaged (Truncated File Read)"
    assert "damaged (broken PNG" in reason(
        "flip.png", encoded.getvalue()[:60] + b"\xff" * 40 + encoded.getvalue()[100:]
    )
    (tmp_path / "folder.png").mkdir()
    assert reason("folder.png") == "not a regular file"
    os.mkfifo(tmp_path / "pipe.png")
    assert reason("pipe.png") == "not a regular file"
    (tmp_path / "circle.png").symlink_to("circle.png")
    assert "symbolic links" in reason("circle.png")
    assert reason("n" * 300) == "File name too long"


def test_postscript_is_not_interpreted(tmp_path: Path) -> None:
    """Pillow starts an interpreter for Encapsulated PostScript, so the format is not allowed."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    with pytest.raises(UnreadableImage, match="not an image"):
        read_image(tmp_path / "a.png", 32)


def test_image_dimensions_are_read_from_the_header(tmp_path: Path) -> None:
    assert image_dimensions(written(tmp_path / "a.jpg", photo(123, 45))) == (123, 45)


def test_printable_path_escapes_invalid_and_control_characters(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xff\n.png")
    assert printable_path(path) == f"{tmp_path}/caf\\xff\\n.png"
    printable_path(path).encode()
    photo(8, 8).save(path, "PNG")
    assert read_image(path, 8).shape == (3, 8, 8)
