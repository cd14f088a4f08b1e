"""seq-digits: scikit-learn's 1,797 handwritten digits of 8x8, which come with the package and need no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from itl.streams.base import Dataset, DatasetSource, Images, Progress, Traits
from itl.streams.permutations import held_out

TRAITS = Traits(mean=(0.3048,), std=(0.3759,), flip=False, padding=1, policy=None, tasks=5)


def read(root: Path, download: bool, progress: Progress | None) -> Dataset:
    """The digits, a quarter of every class held out as the test set. They lie in no folder: `root` is not looked at."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # heavy, and only this stream needs it

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # 17 grey levels, 0..16, spread over 0..255
    every = Images(torch.from_numpy(grey[:, None]), torch.from_numpy(digits.target.astype(np.int64)))
    train, test = held_out(every.labels, share=0.25)
    return Dataset(every.take(train), every.take(test), tuple("0123456789"), TRAITS)


SOURCE = DatasetSource(
    name="seq-digits",
    classes=10,
    shape=(1, 8, 8),
    train=1347,
    test=450,
    files="nothing to put anywhere: comes with scikit-learn",
    traits=TRAITS,
    read=read,
)
