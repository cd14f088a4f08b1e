"""Store the memory's images as PNG files in a generation folder: `memory/<class>/<slot>.png`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itl.atomic import create_file
from itl.checkpoint import store
from itl.checkpoint.store import FileEntry
from itl.errors import UserError

MEMORY_FOLDER = "memory"
PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # by number of channels; other images stay in the tensor file
MAX_FOLDER_NAME_LENGTH = 60


def class_folder_names(names: Sequence[str]) -> list[str]:
    """Return a folder name for each class: valid on all file systems, and distinct even if case is ignored."""
    folders: dict[str, str] = {}  # by name without case, in the order of the classes
    numbers: dict[str, int] = {}  # the last number that was tried for a name: all smaller ones are taken
    for name in names:
        base = re.sub(r"[^\w.+ -]", "_", name)[:MAX_FOLDER_NAME_LENGTH].strip(" .") or "class"
        number = numbers.get(base.casefold(), 1)
        candidate = base if number == 1 else f"{base}-{number}"
        while candidate.casefold() in folders:
            number += 1
            candidate = f"{base}-{number}"
        numbers[base.casefold()] = number
        folders[candidate.casefold()] = candidate
    return list(folders.values())


def image_path(class_folders: Sequence[str], label: int, slot: int) -> str:
    """Return the path, relative to the generation folder, of the image of class `label` in memory slot `slot`."""
    return f"{MEMORY_FOLDER}/{class_folders[label]}/{slot:04d}.png"


class MemoryImageFiles:
    """The image files of a generation. Writing the next generation links files whose images have not changed.

    Attributes:
        damaged: Damaged or missing files of the generation that was read, by slot.
    """

    def __init__(self) -> None:
        self.damaged: dict[int, str] = {}
        self._generation: Path | None = None
        self._files: dict[str, tuple[str, FileEntry]] = {}  # digest of the pixels -> path below `_generation`
        self._draft_files: dict[str, str] = {}  # the same for the draft of the next generation

    def write(self, draft: Path, pixels: Tensor, labels: np.ndarray, names: Sequence[str]) -> dict[str, FileEntry]:
        """Write the images of slots 0 to n-1, uint8 `[n, c, h, w]`, into the draft of a generation.

        Returns:
            The entries of the files that were linked.
        """
        class_folders = class_folder_names(names)
        self._draft_files = {}
        linked = {}
        for slot, (image, label) in enumerate(zip(pixels.cpu().numpy(), labels.tolist(), strict=True)):
            file = image_path(class_folders, label, slot)
            digest = _digest(image)
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            entry = self._link(digest, draft / file)
            if entry is not None:
                linked[file] = entry
            else:
                with create_file(draft / file) as out:
                    _to_pillow(image).save(out, format="PNG", compress_level=3)
            self._draft_files[digest] = file
        return linked

    def commit(self, generation: Path) -> None:
        """Record that the draft written last has become `generation`."""
        listed = store.read_checksums(generation)
        self._generation = generation
        self._files = {digest: (file, listed[file]) for digest, file in self._draft_files.items()}

    def read(self, root: Path, count: int, shape: Sequence[int], labels: np.ndarray, names: Sequence[str]) -> Tensor:
        """Read the images of slots 0 to `count`-1 of a generation and note which are `damaged`.

        Returns:
            Pixels, uint8 `[count, *shape]`; zero for damaged images.
        """
        class_folders, listed = class_folder_names(names), store.read_checksums(root)
        self._generation, self._files, self.damaged = root, {}, {}
        pixels, copies = torch.zeros((count, *shape), dtype=torch.uint8), _Copies(root.parent)
        for slot, label in enumerate(labels[:count].tolist()):
            if not 0 <= label < len(class_folders):
                raise UserError(f"the memory in {root} holds an image of an unknown class; restore it from a copy")
            file = image_path(class_folders, label, slot)
            try:
                if file not in listed:
                    raise UserError(f"{root / file} has no checksum")
                image = _read_verified(root, file, listed[file], tuple(shape), copies)
            except UserError:
                self.damaged[slot] = file
                continue
            self._files[_digest(image)] = file, listed[file]
            pixels[slot] = torch.from_numpy(image)
        if self.damaged and not (root / store.CHECKSUMS).exists():
            raise UserError(f"{root} was removed while it was read")
        return pixels

    def read_memory(
        self, generation: Path, tensors: dict[str, Tensor], state: dict[str, Any], names: Sequence[str]
    ) -> Tensor:
        """Return the tensor `memory.pixels` of a saved learner, uint8 `[slots, c, h, w]`, from the image files.

        Raises:
            UserError: If the saved state is inconsistent, or the files cannot be read now.
        """
        slots, count, shape = memory_shape(generation, tensors, state)
        try:
            pixels = self.read(generation, count, shape, tensors["slots.label"].numpy(), names)
        except OSError as error:  # another process may have replaced this generation
            raise store.read_error(generation.parent, error) from None
        empty_slots = torch.zeros((slots - count, *shape), dtype=torch.uint8)
        return torch.cat([pixels, empty_slots])

    def _link(self, digest: str, target: Path) -> FileEntry | None:
        """Link an unchanged image file of the previous generation; None if that is impossible or it is damaged."""
        if self._generation is None or digest not in self._files:
            return None
        file, entry = self._files[digest]
        source = self._generation / file
        try:
            store.verify_file(self._generation.parent, source, entry)
            os.link(source, target)
        except (OSError, UserError):  # the file system has no hard links, or the folder was moved
            return None
        return entry


def read_image(
    generation: Path, label: int, slot: int, names: Sequence[str], shape: Sequence[int]
) -> np.ndarray | None:
    """Read the image of class `label` in one slot of a generation; None if it is damaged or missing.

    Args:
        generation: The generation folder.
        label: Label of the image.
        slot: Its memory slot.
        names: Class name of each label.
        shape: Shape of an image, `[c, h, w]`.

    Returns:
        Pixels, uint8 `[c, h, w]`.
    """
    file = image_path(class_folder_names(names), label, slot)
    try:
        entry = store.read_checksums(generation)[file]
        return _read_verified(generation, file, entry, tuple(shape), _Copies(generation.parent))
    except (OSError, UserError, KeyError):
        return None


def memory_shape(generation: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> tuple[int, int, list[int]]:
    """Number of slots, number of images and shape of an image of a saved memory.

    Raises:
        UserError: If the saved state is inconsistent.
    """
    try:
        labels, shape = tensors["slots.label"], [int(length) for length in state["shape"]]
        count = int(state["slots"]["count"])
        if labels.ndim != 1 or not 0 <= count <= len(labels) or shape[0] not in PILLOW_MODES:
            raise ValueError(f"{count} images in a memory of {list(labels.shape)}")
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the model folder {generation.parent} is not valid: {error}") from None
    return len(labels), count, shape


class _Copies:
    """Intact copies of damaged image files in the generations of a model. Their checksums are read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._found: dict[str, tuple[Path, FileEntry] | None] = {}  # by checksum; None: no copy is intact

    def read(self, sha256: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The image of this checksum; None if there is no intact copy."""
        if sha256 in self._found:
            copies = [found] if (found := self._found[sha256]) is not None else []
        else:
            copies = self._listed.get(sha256, [])
        self._found[sha256] = None
        for path, entry in copies:
            with suppress(UserError, OSError):
                image = _read_png(self.root, path, entry, shape)
                self._found[sha256] = path, entry
                return image
        return None

    @cached_property
    def _listed(self) -> dict[str, list[tuple[Path, FileEntry]]]:
        listed: dict[str, list[tuple[Path, FileEntry]]] = {}
        for name in store.generations(self.root):
            with suppress(UserError, OSError):
                for file, entry in store.read_checksums(self.root / name).items():
                    listed.setdefault(entry.sha256, []).append((self.root / name / file, entry))
        return listed


def _read_verified(
    generation: Path, file: str, entry: FileEntry, shape: tuple[int, ...], copies: _Copies
) -> np.ndarray:
    """Read an image file; if it is damaged, an intact copy.

    Raises:
        UserError: There is no intact copy.
        OSError: A file cannot be read now, but may be intact.
    """
    try:
        return _read_png(generation.parent, generation / file, entry, shape)
    except UserError:
        image = copies.read(entry.sha256, shape)
        if image is None:
            raise
        return image


def _digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()


def _to_pillow(image: np.ndarray) -> Image.Image:
    """Convert pixels `[c, h, w]` to a Pillow image."""
    return Image.fromarray(np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)))


def _read_png(root: Path, path: Path, entry: FileEntry, shape: tuple[int, ...]) -> np.ndarray:
    """Read a PNG file as pixels `[c, h, w]`; the declared size is checked before memory is allocated."""
    try:
        store.verify_file(root, path, entry)
        with Image.open(path, formats=["PNG"]) as image:
            if (image.size, image.mode) != ((shape[2], shape[1]), PILLOW_MODES[shape[0]]):
                raise UserError(f"{path} is not an image of this memory ({image.mode}, {image.size})")
            array = np.array(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and store.is_transient(error):
            raise
        raise UserError(f"{path} is missing or damaged") from None
    return np.ascontiguousarray(array.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1))
