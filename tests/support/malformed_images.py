"""Three hundred files that may occur in a folder of images: damaged, unusual, or no images at all."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

GOOD, BAD, EITHER = "good", "bad", "either"
KINDS = ("jpg", "png", "webp", "bmp", "gif", "tiff", "ppm")
Case = tuple[str, str, Callable[[Path], object]]  # file name, expected result, function that writes the file


def pattern_image(width: int = 24, height: int = 20) -> Image.Image:
    """An RGB image with a deterministic pattern."""
    y, x = np.mgrid[:height, :width]
    planes = np.stack([7 * x + 3 * y, 5 * x * y % 251, 255 - 9 * y + x], -1)
    return Image.fromarray((planes % 256).astype(np.uint8))


def encode(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    """The bytes of an image file in the format `kind`."""
    out = io.BytesIO()
    (image or pattern_image()).save(out, {"jpg": "JPEG"}.get(kind, kind.upper()), **options)
    return out.getvalue()


def byte_writer(data: bytes) -> Callable[[Path], object]:
    """A function that writes `data` to a path."""
    return lambda path: path.write_bytes(data)


def decompression_bomb(width: int, height: int) -> bytes:
    """A PNG file of a few bytes whose header claims the given size."""
    return with_declared_size(encode("png", Image.new("1", (8, 8))), width, height)


def with_declared_size(png: bytes, width: int, height: int) -> bytes:
    """A PNG file with another size in its header."""
    return png[:8] + png_chunk(b"IHDR", struct.pack(">II", width, height) + png[24:29]) + png[33:]


def write_comment_bomb(path: Path) -> object:
    """Write a PNG file with a compressed comment of 80 MB. Compressing it takes long, so it is not done on import."""
    text = png_chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(80_000_000), 9))
    whole = encode("png")
    return path.write_bytes(whole[:33] + text + whole[33:])


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG chunk with its length and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def cases() -> Iterator[Case]:
    """All cases."""
    yield from damaged()
    yield from odd_but_good()
    yield from not_images()
    yield from not_files()


def damaged() -> Iterator[Case]:
    """Intact, empty, truncated and corrupted files of every format."""
    for kind in KINDS:
        data = encode(kind)
        yield f"whole.{kind}", GOOD, byte_writer(data)
        yield f"zero.{kind}", BAD, byte_writer(b"")
        yield f"noise.{kind}", BAD, byte_writer(np.random.default_rng(1).bytes(500))
        yield f"text.{kind}", BAD, byte_writer(b"this is not an image\n" * 20)
        yield f"magic-only.{kind}", BAD, byte_writer(data[:4])
        yield f"magic-and-noise.{kind}", BAD, byte_writer(data[:8] + np.random.default_rng(2).bytes(300))
        yield f"magic-and-zeros.{kind}", BAD, byte_writer(data[:8] + bytes(300))
        yield f"tail.{kind}", GOOD, byte_writer(data + b"something behind it" * 5)
        for tenth in range(1, 10):
            # A truncated GIF or TIFF may still contain all pixels.
            yield (
                f"cut-{tenth}.{kind}",
                EITHER if kind in ("gif", "tiff") else BAD,
                byte_writer(data[: len(data) * tenth // 10]),
            )
        rng = np.random.default_rng(3)
        for number in range(14):
            corrupted = bytearray(data)
            for position in rng.integers(4, len(data), 3):
                corrupted[position] ^= 1 << rng.integers(8)
            yield f"flip-{number}.{kind}", BAD if kind == "png" else EITHER, byte_writer(bytes(corrupted))


def odd_but_good() -> Iterator[Case]:
    """Readable images with unusual suffixes, sizes, modes, metadata or names."""
    for kind in KINDS:
        for other in KINDS[:3]:
            if other != kind:
                yield f"is-a-{kind}.{other}", GOOD, byte_writer(encode(kind))
    yield "no-suffix", GOOD, byte_writer(encode("png"))
    for kind in ("jpg", "png", "webp", "gif"):
        for width, height in ((1, 1), (2, 3), (1, 300), (16000 if kind == "webp" else 20000, 1), (1, 15000)):
            yield (
                f"{width}x{height}.{kind}",
                GOOD,
                byte_writer(encode(kind, Image.new("RGB", (width, height), (9, 99, 199)))),
            )
    for mode, kinds in {
        "1": ("png", "tiff", "bmp"),
        "L": ("jpg", "png", "bmp", "tiff"),
        "LA": ("png", "tiff"),
        "P": ("png", "gif", "bmp", "tiff"),
        "RGBA": ("png", "webp", "tiff"),
        "CMYK": ("jpg", "tiff"),
        "YCbCr": ("tiff",),
        "I": ("tiff",),
        "F": ("tiff",),
        "I;16": ("png", "tiff"),
    }.items():
        for kind in kinds:
            image = (
                pattern_image().convert("L").convert("I").convert(mode)
                if mode == "I;16"
                else pattern_image().convert(mode)
            )
            yield f"mode-{mode.replace(';', '-')}.{kind}", GOOD, byte_writer(encode(kind, image))
    frames = [pattern_image(), pattern_image(24, 20).rotate(90), pattern_image(24, 20).rotate(180)]
    for kind in ("gif", "webp", "png", "tiff"):
        yield f"animated.{kind}", GOOD, byte_writer(encode(kind, frames[0], save_all=True, append_images=frames[1:]))
    broken = encode("jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff\xff\xff")
    yield "broken-exif.jpg", GOOD, byte_writer(broken)
    icc = encode("png", icc_profile=b"no profile at all")
    yield "broken-profile.png", GOOD, byte_writer(icc)
    for name in (
        "name with spaces.png",
        "-rf.png",
        "quote'\".png",
        "percent%s%n.png",
        "[bold]rich.png",
        "emoji-\N{GRINNING FACE}.png",
        "line\nbreak.png",
        "x" * 250 + ".png",
        "é" * 120 + ".png",
        os.fsdecode(b"not-utf8-\xff\xfe.png"),
        os.fsdecode(b"latin-caf\xe9.png"),
        "\x1b[31mred.png",
    ):
        yield name, GOOD, byte_writer(encode("png"))


def not_images() -> Iterator[Case]:
    """Decompression bombs and files of other types."""
    for width, height in ((20000, 20000), (1 << 27, 2), (1 << 30, 1 << 30), (12000, 12000), (1 << 31 - 1, 1)):
        yield f"bomb-{width}x{height}.png", BAD, byte_writer(decompression_bomb(width, height))
    gif = bytearray(encode("gif"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    yield "bomb.gif", BAD, byte_writer(bytes(gif))
    bmp = bytearray(encode("bmp"))
    bmp[18:26] = struct.pack("<ii", 1 << 20, 1 << 20)
    yield "bomb.bmp", BAD, byte_writer(bytes(bmp))
    yield "bomb-in-a-comment.png", BAD, write_comment_bomb
    yield "no-pixels.ppm", BAD, byte_writer(b"P6\n0 0\n255\n")
    yield "negative.bmp", EITHER, byte_writer(encode("bmp")[:18] + struct.pack("<ii", -24, -20) + encode("bmp")[26:])
    for name, data in {
        "page.html": b"<html><img src=x></html>",
        "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "paper.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "program.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
        "archive.jpg": b"PK\x03\x04" + bytes(60),
        "pickle.png": b"\x80\x04\x95.",
        "video.gif": b"\0\0\0\x18ftypmp42" + bytes(60),
        "icon.ico": b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0" + bytes(60),
        "script.png": b"#!/bin/sh\necho no\n",
        "utf16.txt": "no picture".encode("utf-16"),
    }.items():
        yield name, BAD, byte_writer(data)


def not_files() -> Iterator[Case]:
    """Symbolic links and named pipes."""
    yield "circle.png", BAD, lambda path: path.symlink_to(path.name)
    yield "circle-a.png", BAD, lambda path: path.symlink_to("circle-b.png")
    yield "circle-b.png", BAD, lambda path: path.symlink_to("circle-a.png")
    yield "nowhere.png", BAD, lambda path: path.symlink_to("there-is-no-such-file")
    yield "endless.png", BAD, lambda path: path.symlink_to("/dev/zero")
    yield "pipe.png", BAD, os.mkfifo
    yield "link.png", GOOD, lambda path: path.symlink_to("whole.png")
