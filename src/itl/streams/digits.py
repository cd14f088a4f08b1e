"""seq-digits: the 1,797 handwritten 8x8 digits that are part of scikit-learn; needs no file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from itl.streams.base import Dataset, DatasetSource, Images, Progress, Traits

TRAITS = Traits(mean=(0.3048,), std=(0.3759,), flip=False, padding=1, policy=None, tasks=5)


def read(root: Path, download: bool, progress: Progress | None) -> Dataset:
    """Read the digits and hold out a quarter of every class as the test set; the arguments are not used."""
    # torch is slow to import, and streams are listed without it.
    from itl.streams.stable_permutation import stratified_split

    table = _read_table()
    gray = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)  # 17 gray levels, 0..16, scaled to 0..255
    images = Images.from_numpy(gray.reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64))
    train, test = stratified_split(images.labels, fraction=0.25)
    return Dataset(images.take(train), images.take(test), tuple("0123456789"), TRAITS)


def _read_table() -> np.ndarray:
    """One row for each digit: its 64 gray levels and its label.

    The table is read from scikit-learn's folder, because importing scikit-learn takes longer than everything else here.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])


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
