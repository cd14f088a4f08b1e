"""The memory's images as PNG files that a person can look at: `memory/<class>/<slot>.png` in a generation."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itl.checkpoint.store import sums
from itl.errors import UserError

FOLDER = "memory"
PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # by channels; images of others stay among the tensors
LONGEST = 60  # characters of a folder's name


def folders(names: Sequence[str]) -> list[str]:
    """A folder name for each class: its own where a file system takes it, and no two alike in any case."""
    out: list[str] = []
    for name in names:
        base = re.sub(r"[^\w.+ -]", "_", name)[:LONGEST].strip(" .") or "class"
        free = base
        for number in range(2, len(names) + 2):
            if free.casefold() not in {other.casefold() for other in out}:
                break
            free = f"{base}-{number}"
        out.append(free)
    return out


def path_of(directories: Sequence[str], label: int, slot: int) -> str:
    """Where the image in `slot`, of class `label`, lies in its generation."""
    return f"{FOLDER}/{directories[label]}/{slot:04d}.png"


class MemoryImageFiles:
    """The pictures of one generation: what is written again for the next is linked where it has not changed."""

    def __init__(self) -> None:
        self.root: Path | None = None
        self.found: dict[str, str] = {}  # digest of the pixels: path below `root`
        self.coming: dict[str, str] = {}  # the same of a draft

    def write(self, draft: Path, pixels: Tensor, labels: np.ndarray, names: Sequence[str]) -> None:
        """Write images `[n, c, h, w]` uint8 of slots 0 to n into a generation's draft."""
        directories = folders(names)
        self.coming = {}
        for slot, (image, label) in enumerate(zip(pixels.cpu().numpy(), labels.tolist(), strict=True)):
            file = path_of(directories, label, slot)
            digest = _digest(image)
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            if not self._link(digest, draft / file):
                _encode(image).save(draft / file, format="PNG", compress_level=3)
            self.coming[digest] = file

    def settle(self, generation: Path) -> None:
        """The draft has become `generation`."""
        self.root, self.found = generation, self.coming

    def read(self, root: Path, count: int, shape: Sequence[int], labels: np.ndarray, names: Sequence[str]) -> Tensor:
        """The images of slots 0 to `count`: `[count, c, h, w]` uint8. The checksums there have been found right."""
        directories, listed = folders(names), sums(root)
        self.root, self.found = root, {}
        out = torch.zeros((count, *shape), dtype=torch.uint8)
        for slot, label in enumerate(labels[:count].tolist()):
            if not 0 <= label < len(directories):
                raise UserError(f"the memory in {root} holds an image of an unknown class; restore it from a copy")
            file = path_of(directories, label, slot)
            if file not in listed:
                raise UserError(f"{root / file} is missing, or has no checksum; restore it from a copy")
            image = _decode(root / file, tuple(shape))
            self.found[_digest(image)] = file
            out[slot] = torch.from_numpy(image)
        return out

    def _link(self, digest: str, target: Path) -> bool:
        """Whether the picture was in the last generation and could be linked from it."""
        if self.root is None or digest not in self.found:
            return False
        try:
            os.link(self.root / self.found[digest], target)
        except OSError:  # a file system without links, or a folder that was moved
            return False
        return True


def _digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()


def _encode(image: np.ndarray) -> Image.Image:
    """Pixels `[c, h, w]` as a picture."""
    return Image.fromarray(np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)))


def _decode(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A picture as pixels `[c, h, w]`; its declared size is looked at before anything of that size is made."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            if (picture.size, picture.mode) != ((shape[2], shape[1]), PILLOW_MODES[shape[0]]):
                raise UserError(f"{path} is not a picture of this memory ({picture.mode}, {picture.size})")
            array = np.array(picture)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; restore it from a copy") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if getattr(error, "errno", None):  # not the picture: the disk, or its permissions
            raise
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}); restore it from a copy") from None
    return np.ascontiguousarray(array.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1))
