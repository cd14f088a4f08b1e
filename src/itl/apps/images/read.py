"""One image file as pixels: whatever its kind, mode, depth or orientation, a square of 8-bit RGB.

Image files come from anywhere. Only decoders that run no other program are let near them, sizes are looked at before
anything is decoded, and whatever a decoder raises becomes one line about that file.
"""

from __future__ import annotations

import math
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from itl.errors import UserError
from itl.streams.pillow_images import as_rgb

Pixels = npt.NDArray[np.uint8]

FORMAT_NAMES = ("JPEG", "PNG", "WebP", "BMP", "GIF", "TIFF", "PPM")  # as people call them
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # as Pillow does
MAX_PIXELS = 1 << 27  # a camera's 100 million, not a decompression bomb's billions
LARGE = 1 << 24  # pixels: images above this are decoded one at a time, or threads would fill the memory

ORIENTATION = 0x0112  # EXIF's tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PLUGINS = (TiffImagePlugin, WebPImagePlugin)  # Pillow knows of these only once they are imported
_one_large = threading.Lock()


@dataclass(frozen=True)
class SkippedPath:
    """A file or folder that is left out, and why, in one line."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{printable_path(self.path)}: {self.reason}"


class UnreadableImage(UserError):
    """A file that no image can be made of."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = Path(path), reason
        super().__init__(str(SkippedPath(self.path, reason)))


def printable_path(path: str | os.PathLike[str]) -> str:
    """A path as it can be printed: bytes that are no UTF-8 and control characters as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def read_image(path: str | os.PathLike[str], size: int) -> Pixels:
    """An image file as uint8 `[3, size, size]`: turned upright, its largest central square, resized.

    The first frame of an animation; grey, palette, CMYK as RGB; 16 bits by their upper 8; transparency over white.
    Raises `UnreadableImage`.
    """
    with silence():
        return decode(path, size)


@contextmanager
def silence() -> Iterator[None]:
    """Without the warnings of image decoders, which say nothing that `UnreadableImage` does not (not for threads)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(path: str | os.PathLike[str], size: int) -> Pixels:
    """`read_image` as a thread may call it, inside `silence`."""
    with _opened(path) as image:
        if image.width * image.height > LARGE:
            with _one_large:
                return _square(image, size)
        return _square(image, size)


def image_dimensions(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height as the file's header has them, without decoding it. Raises `UnreadableImage`."""
    with silence(), _opened(path) as image:
        return image.size


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """The file, known to be an image of a bearable size, not decoded yet."""
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            raise UnreadableImage(path, "it is not a file")  # opening a pipe would wait for ever
        if state.st_size == 0:
            raise UnreadableImage(path, "the file is empty (0 bytes)")
        with open(path, "rb") as file:
            image = Image.open(file, formats=FORMATS)
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableImage(path, _too_large(f"{image.width} x {image.height} pixels"))
            if image.width < 1 or image.height < 1:
                raise UnreadableImage(path, f"it has no pixels ({image.width} x {image.height})")
            if image.format == "PNG":  # decoding does not look at its checksums
                image.verify()
                file.seek(0)
                image = Image.open(file, formats=FORMATS)
            yield image
    except UnreadableImage:
        raise
    except Image.DecompressionBombError:
        raise UnreadableImage(path, _too_large("it")) from None
    except UnidentifiedImageError:
        raise UnreadableImage(path, f"it is no image of a kind that is read ({', '.join(FORMAT_NAMES)})") from None
    except OSError as error:
        raise UnreadableImage(path, error.strerror or f"it is damaged ({_words(error)})") from None
    except MemoryError:
        raise UnreadableImage(path, "there is not enough memory to decode it") from None
    except Exception as error:  # decoders of damaged files raise anything
        raise UnreadableImage(path, f"it is damaged ({_words(error)})") from None


def _too_large(what: str) -> str:
    return f"{what} is more than {MAX_PIXELS // 10**6} million pixels; make it smaller"


def _words(error: Exception) -> str:
    """What an exception says, in one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"


def _square(image: Image.Image, size: int) -> Pixels:
    """The largest central square, `[3, size, size]`."""
    short = min(image.size)
    if short > 2 * size:
        # A JPEG can be decoded at a half, a quarter or an eighth: twice what is needed loses nothing that is seen.
        image.draft(None, (image.width * 2 * size // short, image.height * 2 * size // short))
    if image.format == "TIFF":
        image.load()  # Pillow turns these itself, and takes the tag away with it
    turn = _turn(image)
    # The square, and what a filter sees around it, is cut out first: a line of 20,000 x 1 must not be enlarged whole.
    side = min(image.size)
    around = -(-side // size) + 1
    left, top = ((length - side) / 2 for length in image.size)
    x, y = max(0, math.floor(left) - around), max(0, math.floor(top) - around)
    middle = as_rgb(image.crop((x, y, image.width - x, image.height - y)))
    box = (left - x, top - y, left - x + side, top - y + side)
    square = middle.resize((size, size), Image.Resampling.BILINEAR, box=box)
    upright = square if turn is None else square.transpose(turn)
    return np.ascontiguousarray(np.asarray(upright).transpose(2, 0, 1))


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How to turn it upright; EXIF that cannot be read says nothing."""
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # a broken tag is no reason to leave out a good picture
        return None
