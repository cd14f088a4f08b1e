"""Decode one image file of any format, mode, depth or orientation into a square of 8-bit RGB pixels.

Image files are untrusted input. Only Pillow decoders that start no external program are allowed, the dimensions are
checked before decoding, and every exception of a decoder becomes an `UnreadableImage` with a one-line reason.
"""

from __future__ import annotations

import importlib
import io
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin, features

from itl.errors import UserError
from itl.regular_files import open_regular
from itl.streams.pillow_images import as_rgb, central_square, exif_transpose

Pixels = npt.NDArray[np.uint8]

FORMAT_NAMES = ("JPEG", "PNG", "WebP", "BMP", "GIF", "TIFF", "PPM")  # for messages and documentation
# Format, and how to install what reads it, of images that Pillow may not read on its own, by bytes 4 to 11 of a file.
PLUGINS = {
    **dict.fromkeys((b"ftypheic", b"ftypheix", b"ftypmif1"), ("HEIC", "pip install 'itl[heic]'")),
    b"ftypavif": ("AVIF", "pip install --upgrade Pillow"),
}
MAX_PIXELS = 1 << 27  # allows a 100-megapixel camera, rejects a decompression bomb
LARGE_IMAGE_PIXELS = 1 << 24  # larger images are decoded one at a time, so that threads do not exhaust memory

_PLUGINS = (TiffImagePlugin, WebPImagePlugin)  # Pillow registers these formats when the modules are imported
_large_image_lock = threading.Lock()


@cache
def format_names() -> tuple[str, ...]:
    """Names of the image formats that can be read: HEIC and AVIF only where Pillow or a plug-in supports them."""
    names = list(FORMAT_NAMES)
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
        names.append("HEIC")
    if not features.check("avif"):  # part of Pillow since 11.3
        with suppress(ImportError):
            importlib.import_module("pillow_avif")  # registers the format
    with suppress(ImportError):
        from PIL import AvifImagePlugin  # noqa: F401  # registers the format
    return (*names, "AVIF") if "AVIF" in Image.OPEN else tuple(names)


def _pillow_formats() -> list[str]:
    return ["HEIF" if name == "HEIC" else name.upper() for name in format_names()]


@dataclass(frozen=True)
class SkippedPath:
    """A file or folder that was skipped, and the reason in one line."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{printable_path(self.path)}: {self.reason}"


class UnreadableImage(UserError):
    """Raised for a file that cannot be decoded as an image.

    Attributes:
        path: The file.
        reason: What is wrong with it, in one line.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = Path(path), reason
        super().__init__(str(SkippedPath(self.path, reason)))


def printable_path(path: str | os.PathLike[str]) -> str:
    """Return a path as printable text, with invalid UTF-8 bytes and control characters escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def read_image(path: str | os.PathLike[str], size: int, interpolation: str = "bilinear") -> Pixels:
    """Read an image file, rotate it upright, crop the largest central square and resize it.

    Gray, palette and CMYK images are converted to RGB, 16-bit images are reduced to their upper 8 bits, transparent
    images are blended with white, and only the first frame of an animation is read.

    Args:
        path: The image file.
        size: Width and height of the result in pixels.
        interpolation: "bilinear" or "bicubic".

    Returns:
        RGB pixels, uint8 `[3, size, size]`.

    Raises:
        UnreadableImage: If the file is missing, empty, damaged, too large or not an image.
    """
    with ignore_warnings():
        return decode(path, size, interpolation)


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore warnings of image decoders; not thread-safe, so enter it before threads start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(path: str | os.PathLike[str], size: int, interpolation: str = "bilinear") -> Pixels:
    """Do what `read_image` does, for use in threads inside `ignore_warnings`."""
    with _opened(path) as image:
        if image.width * image.height > LARGE_IMAGE_PIXELS:
            with _large_image_lock:
                return central_square(image, size, interpolation)
        return central_square(image, size, interpolation)


def image_dimensions(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return width and height from the file's header, without decoding the image.

    Raises:
        UnreadableImage: If the file is missing, empty, damaged, too large or not an image.
    """
    with ignore_warnings(), _opened(path) as image:
        return image.size


@contextmanager
def open_bytes(data: bytes, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """Open the content of an image file with the same checks as `read_image`, for use inside `ignore_warnings`.

    Raises:
        UnreadableImage: If the image is damaged, too large or in no supported format, also while it is being decoded.
    """
    with _decoder_errors("picture"), io.BytesIO(data) as file:
        if not data:
            raise UnreadableImage("picture", "the file is empty (0 bytes)")
        yield _identified(file, "picture", max_pixels)


def decode_bytes(data: bytes, size: int, max_pixels: int = MAX_PIXELS, interpolation: str = "bilinear") -> Pixels:
    """Decode the content of an image file as `read_image` does, for use inside `ignore_warnings`."""
    with open_bytes(data, max_pixels) as image:
        return central_square(image, size, interpolation)


def upright(image: Image.Image) -> Image.Image:
    """Return a copy of an opened image as 8-bit RGB, rotated as EXIF demands."""
    if image.format == "TIFF":
        image.load()  # Pillow applies the orientation of TIFF files itself and removes the tag
    transpose, rgb = exif_transpose(image), as_rgb(image)
    return rgb.copy() if transpose is None else rgb.transpose(transpose)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """Open an image file and check its format and dimensions, without decoding it."""
    with _decoder_errors(path), open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise UnreadableImage(path, "the file is empty (0 bytes)")
        yield _identified(file, path, MAX_PIXELS)


def _identified(file: BinaryIO, path: str | os.PathLike[str], max_pixels: int) -> Image.Image:
    """Return an image whose format and dimensions are checked, and which is not decoded yet."""
    try:
        image = Image.open(file, formats=_pillow_formats())
    except UnidentifiedImageError:
        file.seek(0)
        if (plugin := PLUGINS.get(file.read(12)[4:])) is None:
            raise
        name, command = plugin
        is_installed = name in format_names()
        reason = "the file is damaged" if is_installed else f"an image in the format {name}; to read it: {command}"
        raise UnreadableImage(path, reason) from None
    if image.width * image.height > max_pixels:
        raise UnreadableImage(path, _too_large(f"{image.width} x {image.height} pixels", max_pixels))
    if image.width < 1 or image.height < 1:
        raise UnreadableImage(path, f"the image has no pixels ({image.width} x {image.height})")
    if image.format == "PNG":  # decoding does not verify PNG checksums
        image.verify()
        file.seek(0)
        image = Image.open(file, formats=_pillow_formats())
    return image


@contextmanager
def _decoder_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn every exception of a decoder into an `UnreadableImage` with a one-line reason."""
    try:
        yield
    except UnreadableImage:
        raise
    except Image.DecompressionBombError:
        raise UnreadableImage(path, _too_large("the image", MAX_PIXELS)) from None
    except UnidentifiedImageError:
        formats = ", ".join(format_names())
        raise UnreadableImage(path, f"not an image in a supported format ({formats})") from None
    except OSError as error:
        raise UnreadableImage(path, error.strerror or f"the file is damaged ({_one_line(error)})") from None
    except MemoryError:
        raise UnreadableImage(path, "not enough memory to decode it") from None
    except Exception as error:  # decoders raise all kinds of exceptions for damaged files
        raise UnreadableImage(path, f"the file is damaged ({_one_line(error)})") from None


def _too_large(subject: str, max_pixels: int) -> str:
    return f"{subject} exceeds the limit of {max_pixels // 10**6} million pixels; make it smaller"


def _one_line(error: Exception) -> str:
    """Return an exception's message as one line of at most 120 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"
