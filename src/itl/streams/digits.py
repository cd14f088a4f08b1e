"""seq-digits: the 1,797 handwritten 8x8 digits that are part of scikit-learn; needs no file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from itl.streams.base import Dataset, DatasetSource, Images, Progress, Traits

TRAITS = Traits(mean=(0.3048,), std=(0.3759,), flip=False, padding=1, policy=None, tasks=5)


def read(root: Path, download: bool, progress: Progress | None) -> Dataset:
    """Read the digits and hold out a quarter of every class as the test set; the arguments are not used."""
    from itl.streams.stable_permutation import stratified_split  # streams are listed without importing torch

    levels, labels = _levels_and_labels()
    gray = np.rint(levels * (255 / 16)).astype(np.uint8)  # 17 gray levels, 0..16, scaled to 0..255
    images = Images.from_numpy(gray[:, None], labels)
    train, test = stratified_split(images.labels, fraction=0.25)
    return Dataset(images.take(train), images.take(test), tuple("0123456789"), TRAITS)


def _levels_and_labels() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Gray levels, `[n, 8, 8]`, and labels.

    scikit-learn's own file is read, because importing scikit-learn takes longer than a short run. If a version of
    scikit-learn stores the digits differently, its function is called.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    return digits.images, digits.target


SOURCE = DatasetSource(
    name="seq-digits",
    classes=10,
    shape=(1, 8, 8),
    train=1347,
    test=450,
    files="none (part of scikit-learn)",
    traits=TRAITS,
    read=read,
)
