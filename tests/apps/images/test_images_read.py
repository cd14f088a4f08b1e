"""Image files of every kind come out as one square of RGB, held against Pillow and hand-made pixels."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from itl.apps.images import MAX_PIXELS, UnreadableImage, image_dimensions, printable_path, read_image
from itl.apps.images.read import TURNS


def photo(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """A smooth colourful picture without any symmetry."""
    y, x = np.mgrid[:height, :width] / max(width, height)
    planes = [np.sin(3 * x + seed) + y, np.cos(2 * y * x + 1), x * (1 - y) + 0.3 * seed]
    levels = np.stack([(p - p.min()) / (np.ptp(p) or 1) * 255 for p in planes], -1)
    return Image.fromarray(levels.astype(np.uint8))


def written(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def expected(image: Image.Image, size: int) -> np.ndarray:
    """What Pillow's own fitting gives."""
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)


def png_16_bit_rgb(values: np.ndarray) -> bytes:
    """A PNG of 16-bit colours, written out by hand: Pillow cannot write one. values: uint16 [h, w, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = values.shape
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm", "webp"])
def test_a_lossless_file_gives_the_pixels_that_went_in(tmp_path: Path, kind: str) -> None:
    image = photo(32, 32)
    options = {"lossless": True} if kind == "webp" else {}
    pixels = read_image(written(tmp_path / f"a.{kind}", image, **options), 32)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (41, 30), (300, 31), (7, 500), (5, 5)])
@pytest.mark.parametrize("size", [8, 32, 64])
def test_a_picture_is_its_central_square_resized(tmp_path: Path, shape: tuple[int, int], size: int) -> None:
    image = photo(*shape)
    pixels = read_image(written(tmp_path / "a.png", image), size)
    assert pixels.shape == (3, size, size)
    assert np.abs(pixels - expected(image, size)).max() <= 1


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path: Path) -> None:
    image = photo(1600, 1200)
    pixels = read_image(written(tmp_path / "a.jpg", image, quality=95), 32)
    assert np.abs(pixels - expected(image, 32)).mean() < 1.5


def test_the_suffix_does_not_matter(tmp_path: Path) -> None:
    image = photo(32, 32)
    image.save(tmp_path / "right.png")
    (tmp_path / "right.png").rename(tmp_path / "wrong.jpg")
    np.testing.assert_array_equal(read_image(tmp_path / "wrong.jpg", 32), np.asarray(image).transpose(2, 0, 1))


def test_grey_is_three_equal_planes(tmp_path: Path) -> None:
    pixels = read_image(written(tmp_path / "a.png", photo(32, 32).convert("L")), 32)
    assert (pixels == pixels[:1]).all()
    assert pixels.std() > 10


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_lies_over_white(tmp_path: Path, mode: str) -> None:
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


def test_half_transparent_is_half_white(tmp_path: Path) -> None:
    pixels = read_image(written(tmp_path / "a.png", Image.new("RGBA", (4, 4), (0, 100, 200, 128))), 8)
    assert np.abs(pixels[:, 0, 0].astype(int) - [127, 177, 227]).max() <= 1


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([1, 2, 3, 40, 50, 60])
    assert read_image(written(tmp_path / "a.gif", image), 8)[:, 0, 0].tolist() == [40, 50, 60]


def test_black_and_white_is_0_and_255(tmp_path: Path) -> None:
    image = Image.new("1", (8, 8), 0)
    image.paste(1, (4, 0, 8, 8))
    pixels = read_image(written(tmp_path / "a.png", image), 8)
    assert (pixels[:, :, :4] == 0).all()
    assert (pixels[:, :, 4:] == 255).all()


def test_16_bits_are_their_upper_8(tmp_path: Path) -> None:
    levels = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for name in ("a.png", "a.tiff"):
        written(tmp_path / name, Image.fromarray(levels))
        np.testing.assert_array_equal(read_image(tmp_path / name, 8)[0], levels >> 8)
    colours = np.stack([levels, levels[::-1], levels.T], -1)
    (tmp_path / "rgb.png").write_bytes(png_16_bit_rgb(colours))
    np.testing.assert_array_equal(read_image(tmp_path / "rgb.png", 8), (colours >> 8).transpose(2, 0, 1))


def test_32_bit_integers_are_taken_for_16_and_floats_for_0_to_1(tmp_path: Path) -> None:
    whole = np.linspace(-5, 70000, 64).astype(np.int32).reshape(8, 8)
    pixels = read_image(written(tmp_path / "i.tiff", Image.fromarray(whole)), 8)
    np.testing.assert_array_equal(pixels[0], whole.clip(0, 65535) >> 8)
    real = np.linspace(-0.5, 1.5, 64).astype(np.float32).reshape(8, 8)
    real[0, 0] = np.nan
    pixels = read_image(written(tmp_path / "f.tiff", Image.fromarray(real)), 8)
    np.testing.assert_array_equal(pixels[1], (np.nan_to_num(real).clip(0, 1) * 255).round())


def test_cmyk_is_colours_again(tmp_path: Path) -> None:
    image = photo(32, 32)
    pixels = read_image(written(tmp_path / "a.jpg", image.convert("CMYK"), quality=100), 32)
    assert np.abs(pixels - np.asarray(image).transpose(2, 0, 1).astype(int)).mean() < 3


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize(("shape", "kind"), [((40, 30), "png"), ((31, 40), "png"), ((40, 30), "tif")])
def test_a_turned_photo_is_upright(tmp_path: Path, turn: int, shape: tuple[int, int], kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    path = written(tmp_path / f"a.{kind}", photo(*shape), exif=exif)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
    assert (turn in TURNS) == (turn > 1)
    assert np.abs(read_image(path, 16) - expected(upright, 16)).max() <= 1


def test_damaged_exif_does_not_cost_the_picture(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jpg", photo(32, 32), exif=b"Exif\0\0II*\0\xff\xff\xff\xff\xff\xff")
    assert read_image(path, 32).std() > 10


def test_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    for kind in ("gif", "webp", "png", "tiff"):
        path = tmp_path / f"a.{kind}"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=50, loop=0)
        red, green, blue = read_image(path, 8)[:, 4, 4].tolist()
        assert red > 240, kind
        assert green < 10, kind
        assert blue < 10, kind


def test_a_single_pixel_and_a_line_of_20000_are_pictures(tmp_path: Path) -> None:
    dot = read_image(written(tmp_path / "dot.png", Image.new("RGB", (1, 1), (9, 8, 7))), 224)
    assert (dot == np.array([9, 8, 7])[:, None, None]).all()
    for shape in ((20000, 1), (1, 20000)):
        line = read_image(written(tmp_path / "line.png", Image.new("RGB", shape, (1, 2, 3))), 224)
        assert (line == np.array([1, 2, 3])[:, None, None]).all()


def bomb(width: int, height: int) -> bytes:
    data = io.BytesIO()
    Image.new("1", (8, 8)).save(data, "PNG")
    head = struct.pack(">II", width, height) + data.getvalue()[24:29]
    return data.getvalue()[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + data.getvalue()[33:]


@pytest.mark.parametrize("shape", [(20000, 20000), (1 << 27, 2), (12000, 12000), (1 << 30, 1 << 30)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path, shape: tuple[int, int]) -> None:
    assert shape[0] * shape[1] > MAX_PIXELS
    (tmp_path / "bomb.png").write_bytes(bomb(*shape))
    with pytest.raises(UnreadableImage, match=r"bomb\.png.*more than 134 million pixels; make it smaller"):
        read_image(tmp_path / "bomb.png", 32)


def test_what_is_no_image_is_said_in_one_line(tmp_path: Path) -> None:
    def why(name: str, data: bytes | None = None) -> str:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableImage) as caught:
            read_image(tmp_path / name, 32)
        assert "\n" not in str(caught.value)
        assert caught.value.path == tmp_path / name
        assert str(caught.value) == f"{tmp_path / name}: {caught.value.reason}"
        return caught.value.reason

    whole = io.BytesIO()
    photo(64, 64).save(whole, "PNG")
    assert why("none.png") == "No such file or directory"
    assert why("zero.png", b"") == "the file is empty (0 bytes)"
    assert why("text.png", b"hello") == "it is no image of a kind that is read (JPEG, PNG, WebP, BMP, GIF, TIFF, PPM)"
    assert why("cut.png", whole.getvalue()[:-300]) == "it is damaged (Truncated File Read)"
    assert "damaged (broken PNG" in why("flip.png", whole.getvalue()[:60] + b"\xff" * 40 + whole.getvalue()[100:])
    (tmp_path / "folder.png").mkdir()
    assert why("folder.png") == "it is not a file"
    os.mkfifo(tmp_path / "pipe.png")
    assert why("pipe.png") == "it is not a file"
    (tmp_path / "circle.png").symlink_to("circle.png")
    assert "symbolic links" in why("circle.png")
    assert why("n" * 300) == "File name too long"


def test_a_program_hidden_in_an_image_is_not_started(tmp_path: Path) -> None:
    """Encapsulated PostScript is run by an interpreter: it is not among the kinds that are read."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    with pytest.raises(UnreadableImage, match="no image of a kind"):
        read_image(tmp_path / "a.png", 32)


def test_dimensions_come_from_the_header(tmp_path: Path) -> None:
    assert image_dimensions(written(tmp_path / "a.jpg", photo(123, 45))) == (123, 45)


def test_any_name_can_be_printed(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xff\n.png")
    assert printable_path(path) == f"{tmp_path}/caf\\xff\\n.png"
    printable_path(path).encode()
    photo(8, 8).save(path, "PNG")
    assert read_image(path, 8).shape == (3, 8, 8)
