"""Choose the held-out test images of a class by their file names alone, so that the choice stays the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

TEST_FRACTION = 0.2
MIN_IMAGES_TO_SPLIT = 4  # a smaller class holds out no image
ALL_TRAINED = "*"  # stored with a class's hashes: no image of the class was held out at that time


def split_held_out(
    files: Sequence[Path], root: Path, fraction: float = TEST_FRACTION, train_only: Collection[str] = ()
) -> tuple[list[Path], list[Path]]:
    """Split the files of one class into training and held-out files.

    A hash of each file's name decides, so an image that was trained on does not become a test image when the class
    grows. The class size matters only in small classes: from four images on at least one is held out, and never more
    than a third.

    Args:
        files: The files of the class.
        root: The image folder; names are hashed relative to it.
        fraction: Expected fraction of held-out files.
        train_only: Hashes from `train_only_hashes` of files that were trained on before and are never held out. If
            they contain `ALL_TRAINED`, no file is held out because of the class size alone.

    Returns:
        The training files and the held-out files, both in the given order.
    """
    hashes = {file: _name_hash(file, root) for file in files}
    candidates = sorted((file for file in files if hashes[file] not in train_only), key=lambda file: hashes[file])
    count = sum(_selected_by_hash(hashes[file], fraction) for file in candidates)
    minimum = 0 if ALL_TRAINED in train_only else 1
    splits = len(files) >= MIN_IMAGES_TO_SPLIT
    held_out = set(candidates[: min(max(count, minimum), len(files) // 3)]) if splits else set()
    return [file for file in files if file not in held_out], [file for file in files if file in held_out]


def train_only_hashes(
    train: Sequence[Path], held_out: Sequence[Path], root: Path, fraction: float = TEST_FRACTION
) -> list[str]:
    """Return the hashes of training files that `split_held_out` might hold out once the class has grown."""
    hashes = [_name_hash(file, root) for file in train]
    if len(train) + len(held_out) < MIN_IMAGES_TO_SPLIT:
        return hashes
    return [*([] if held_out else [ALL_TRAINED]), *(h for h in hashes if _selected_by_hash(h, fraction))]


def _name_hash(file: Path, root: Path) -> str:
    """Return 16 hexadecimal digits that depend on the file's path relative to `root`."""
    name = os.fsencode(os.path.relpath(file, root))
    return hashlib.sha256(b"held-out/" + name).hexdigest()[:16]


def _selected_by_hash(name_hash: str, fraction: float) -> bool:
    """Return whether the hash alone would hold the file out."""
    return int(name_hash, 16) / 2**64 < fraction
