"""Fixtures with fake datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from itl.streams import tinyimagenet
from support.fake_datasets import WNIDS, FakeCifar, jpeg


@pytest.fixture
def cifar10(monkeypatch: pytest.MonkeyPatch) -> FakeCifar:
    return FakeCifar(monkeypatch, "seq-cifar10")


@pytest.fixture
def cifar100(monkeypatch: pytest.MonkeyPatch) -> FakeCifar:
    return FakeCifar(monkeypatch, "seq-cifar100")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fake tiny-imagenet-200/: 4 classes, 12 training and 2 test images each."""
    monkeypatch.setattr(tinyimagenet, "CLASSES", 4)
    monkeypatch.setattr(tinyimagenet, "TRAIN_PER_CLASS", 12)
    monkeypatch.setattr(tinyimagenet, "TEST_PER_CLASS", 2)
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("n01\tcrane, bird\nn02\tcrane\nn03\tgoldfish, Carassius auratus\nn04\tlemon\n")
    table = []
    for c, wnid in enumerate(WNIDS):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text("")
        for k in range(12):
            mode = "L" if k == 3 else "RGB"
            (images / f"{wnid}_{k}.JPEG").write_bytes(jpeg(20 * c + k, mode=mode))
        for k in (c, c + 4):
            (folder / "val" / "images" / f"val_{k}.JPEG").write_bytes(jpeg(100 + k))
            table.append((k, wnid))
    lines = [f"val_{k}.JPEG\t{wnid}\t0\t0\t9\t9" for k, wnid in sorted(table)]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path
