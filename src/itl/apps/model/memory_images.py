"""Store the memory's images as PNG files in a generation folder: `memory/<class>/<slot>.png`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itl.checkpoint import store
from itl.errors import UserError

MEMORY_FOLDER = "memory"
PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # by number of channels; other images stay in the tensor file
MAX_FOLDER_NAME_LENGTH = 60


def class_folder_names(names: Sequence[str]) -> list[str]:
    """Return a folder name for each class: valid on all file systems, and distinct even if case is ignored."""
    folders: list[str] = []
    for name in names:
        base = re.sub(r"[^\w.+ -]", "_", name)[:MAX_FOLDER_NAME_LENGTH].strip(" .") or "class"
        candidate = base
        for number in range(2, len(names) + 2):
            if candidate.casefold() not in {other.casefold() for other in folders}:
                break
            candidate = f"{base}-{number}"
        folders.append(candidate)
    return folders


def image_path(class_folders: Sequence[str], label: int, slot: int) -> str:
    """Return the path, relative to the generation folder, of the image of class `label` in memory slot `slot`."""
    return f"{MEMORY_FOLDER}/{class_folders[label]}/{slot:04d}.png"


class MemoryImageFiles:
    """The image files of a generation. Writing the next generation links files whose images have not changed."""

    def __init__(self) -> None:
        self._generation: Path | None = None
        self._files: dict[str, str] = {}  # digest of the pixels -> path relative to `_generation`
        self._draft_files: dict[str, str] = {}  # the same for the draft of the next generation

    def write(self, draft: Path, pixels: Tensor, labels: np.ndarray, names: Sequence[str]) -> None:
        """Write the images of slots 0 to n-1, uint8 `[n, c, h, w]`, into the draft of a generation."""
        class_folders = class_folder_names(names)
        self._draft_files = {}
        for slot, (image, label) in enumerate(zip(pixels.cpu().numpy(), labels.tolist(), strict=True)):
            file = image_path(class_folders, label, slot)
            digest = _digest(image)
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            if not self._link(digest, draft / file):
                _to_pillow(image).save(draft / file, format="PNG", compress_level=3)
            self._draft_files[digest] = file

    def commit(self, generation: Path) -> None:
        """Record that the draft written last has become `generation`."""
        self._generation, self._files = generation, self._draft_files

    def read(self, root: Path, count: int, shape: Sequence[int], labels: np.ndarray, names: Sequence[str]) -> Tensor:
        """Read the images of slots 0 to `count`-1 of a generation whose checksums have been verified.

        Returns:
            Pixels, uint8 `[count, *shape]`.
        """
        class_folders, listed = class_folder_names(names), store.read_checksums(root)
        self._generation, self._files = root, {}
        pixels = torch.zeros((count, *shape), dtype=torch.uint8)
        for slot, label in enumerate(labels[:count].tolist()):
            if not 0 <= label < len(class_folders):
                raise UserError(f"the memory in {root} holds an image of an unknown class; restore it from a copy")
            file = image_path(class_folders, label, slot)
            if file not in listed:
                raise UserError(f"{root / file} is missing, or has no checksum; restore it from a copy")
            image = _read_png(root / file, tuple(shape))
            self._files[_digest(image)] = file
            pixels[slot] = torch.from_numpy(image)
        return pixels

    def read_memory(
        self, generation: Path, tensors: dict[str, Tensor], state: dict[str, Any], names: Sequence[str]
    ) -> Tensor:
        """Return the tensor `memory.pixels` of a saved learner, uint8 `[slots, c, h, w]`, from the image files.

        Raises:
            UserError: If the saved state is inconsistent, or a file is missing or damaged.
        """
        try:
            labels, shape = tensors["slots.label"], [int(length) for length in state["shape"]]
            count = int(state["slots"]["count"])
            if labels.ndim != 1 or not 0 <= count <= len(labels) or shape[0] not in PILLOW_MODES:
                raise ValueError(f"{count} images in a memory of {list(labels.shape)}")
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"the model folder {generation.parent} is not valid: {error}") from None
        try:
            pixels = self.read(generation, count, shape, labels.numpy(), names)
        except OSError as error:  # another process may have replaced this generation
            raise store.read_error(generation.parent, error) from None
        empty_slots = torch.zeros((len(labels) - count, *shape), dtype=torch.uint8)
        return torch.cat([pixels, empty_slots])

    def _link(self, digest: str, target: Path) -> bool:
        """Link an unchanged image file of the previous generation; return whether that was possible."""
        if self._generation is None or digest not in self._files:
            return False
        try:
            os.link(self._generation / self._files[digest], target)
        except OSError:  # the file system has no hard links, or the folder was moved
            return False
        return True


def _digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()


def _to_pillow(image: np.ndarray) -> Image.Image:
    """Convert pixels `[c, h, w]` to a Pillow image."""
    return Image.fromarray(np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)))


def _read_png(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read a PNG file as pixels `[c, h, w]`; the declared size is checked before memory is allocated."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if (image.size, image.mode) != ((shape[2], shape[1]), PILLOW_MODES[shape[0]]):
                raise UserError(f"{path} is not an image of this memory ({image.mode}, {image.size})")
            array = np.array(image)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; restore it from a copy") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if getattr(error, "errno", None):  # a problem of the disk or its permissions, not of the image
            raise
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}; restore it from a copy") from None
    return np.ascontiguousarray(array.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1))
