"""Small fake datasets: the layout of the official ones with a few images each."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itl.streams import cifar
from itl.streams.cifar_files import DISTRIBUTIONS, Distribution

PER_FILE = 20  # images in a fake CIFAR file


def fake_batch(seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, uint8 [20, 3072], and labels [20] of ten different classes."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (PER_FILE, 3072), dtype=np.uint8), np.arange(PER_FILE) * (classes // 10) % classes


def member_bytes(form: Distribution, seed: int, classes: int) -> bytes:
    """A fake data file in the format of the distribution `form`."""
    pixels, labels = fake_batch(seed, classes)
    if isinstance(form.label, str):
        return pickle.dumps({"data": pixels, form.label: labels.tolist()}, protocol=2)
    coarse = [np.full((PER_FILE, 1), 7, np.uint8)] * form.label
    return np.concatenate([*coarse, labels[:, None].astype(np.uint8), pixels], axis=1).tobytes()


def make_archive(path: Path, contents: dict[str, bytes]) -> None:
    """Write a `.tar.gz` archive of named files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


class FakeCifar:
    """Fake files of one stream in every distribution, with matching MD5 sums registered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
        classes = {"seq-cifar10": 10, "seq-cifar100": 100}[stream]
        self.contents: dict[str, dict[str, bytes]] = {}
        forms = []
        for form in DISTRIBUTIONS[stream]:
            data = {member.name: member_bytes(form, seed, classes) for seed, member in enumerate(form.members)}
            self.contents[form.folder] = data
            train, test = (
                tuple(replace(m, images=PER_FILE, md5=m.md5 and hashlib.md5(data[m.name]).hexdigest()) for m in members)
                for members in (form.train, form.test)
            )
            forms.append(replace(form, train=train, test=test))
        self.forms = {form.folder: form for form in forms}
        monkeypatch.setitem(cifar.DISTRIBUTIONS, stream, tuple(forms))

    def folder(self, root: Path, name: str) -> Path:
        """Write the files of a distribution into `root/name`."""
        folder = root / name
        folder.mkdir(parents=True)
        for member, data in self.contents[name].items():
            (folder / member).write_bytes(data)
        return folder

    def archive(self, root: Path, name: str) -> Path:
        """Write the archive of a distribution into `root`."""
        path = root / self.forms[name].archive
        make_archive(path, {f"{name}/{member}": data for member, data in self.contents[name].items()})
        return path


WNIDS = ["n03", "n01", "n04", "n02"]  # not sorted, as in the real wnids.txt


def jpeg(value: int, size: int = 64, mode: str = "RGB") -> bytes:
    """A JPEG file of one uniform color."""
    file = io.BytesIO()
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(file, "JPEG", quality=95)
    return file.getvalue()
