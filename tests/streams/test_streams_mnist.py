"""Tests of MNIST and Fashion-MNIST from idx files, plain or gzipped."""

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from itl import streams
from itl.errors import UserError
from itl.streams import mnist

NAMES = mnist._FILE_NAMES


def contents() -> dict[str, bytes]:
    rng, found = np.random.default_rng(0), {}
    for part, count in (("train", 40), ("t10k", 20)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        found[f"{part}-images-idx3-ubyte"] = struct.pack(">4I", 2051, count, 28, 28) + pixels.tobytes()
        found[f"{part}-labels-idx1-ubyte"] = struct.pack(">2I", 2049, count) + labels.tobytes()
    return found


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four fake files whose md5 are registered as the official ones of both streams."""
    made = contents()
    md5 = tuple(hashlib.md5(made[name]).hexdigest() for name in NAMES)
    for stream in ("seq-mnist", "seq-fmnist"):
        monkeypatch.setitem(mnist.FILES, stream, replace(mnist.FILES[stream], content_md5=md5))
    return made


def put(folder: Path, files: dict[str, bytes], zipped: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("stream", "folder"), [("seq-mnist", "MNIST/raw"), ("seq-fmnist", "FashionMNIST/raw"), ("seq-mnist", "")]
)
def test_idx_files_are_read_from_their_usual_folders(files, tmp_path, stream, folder, zipped):
    put(tmp_path / folder, files, zipped)
    found = streams.load(stream, tmp_path)
    assert found.shape == (1, 28, 28)
    assert [len(task.train) for task in found] == [8] * 5
    assert [len(task.test) for task in found] == [4] * 5
    expected = np.frombuffer(files["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(-1, 1, 28, 28)
    rows = [k for k in range(40) if k % 10 in (0, 1)]
    assert torch.equal(found.tasks[0].train.pixels, torch.from_numpy(expected[rows]))


def test_only_fashion_mnist_is_flipped(files, tmp_path):
    put(tmp_path, files, False)
    assert streams.load("seq-mnist", tmp_path).flip is False
    assert streams.load("seq-fmnist", tmp_path).flip is True
    assert streams.load("seq-fmnist", tmp_path).class_names[-1] == "Ankle boot"


def test_files_of_another_dataset_are_rejected(tmp_path):
    put(tmp_path, contents(), False)
    with pytest.raises(UserError, match="not the official file"):
        streams.load("seq-mnist", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-5], "where its header specifies"),
        (lambda data: data + b"x", "where its header specifies"),
        (lambda data: b"\0\0\0\1" + data[4:], "magic 1"),
        (lambda data: b"", "magic 0"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "not the official file"),
    ],
)
def test_altered_file_is_rejected(files, tmp_path, change, message):
    files["train-images-idx3-ubyte"] = change(files["train-images-idx3-ubyte"])
    for zipped in (False, True):
        put(tmp_path / str(zipped), files, zipped)
        with pytest.raises(UserError, match=message):
            streams.load("seq-mnist", tmp_path / str(zipped))


@pytest.mark.parametrize("keep", [5, 300])
def test_truncated_gz_is_rejected(files, tmp_path, keep):
    put(tmp_path, files, True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="truncated or damaged"):
        streams.load("seq-mnist", tmp_path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(UserError, match="cannot read"):
        streams.load("seq-mnist", tmp_path)


def test_missing_files_are_named_with_the_remedy(files, tmp_path):
    with pytest.raises(UserError, match=r"put MNIST/raw/ with .*--download"):
        streams.load("seq-mnist", tmp_path)
    put(tmp_path, files, False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="lacks t10k-labels-idx1-ubyte"):
        streams.load("seq-mnist", tmp_path)


def test_different_numbers_of_images_and_labels_are_rejected(files, tmp_path, monkeypatch):
    files["train-labels-idx1-ubyte"] = files["t10k-labels-idx1-ubyte"]
    md5 = tuple(hashlib.md5(files[name]).hexdigest() for name in NAMES)
    monkeypatch.setitem(mnist.FILES, "seq-mnist", replace(mnist.FILES["seq-mnist"], content_md5=md5))
    put(tmp_path, files, False)
    with pytest.raises(UserError, match="40 images but 20 labels"):
        streams.load("seq-mnist", tmp_path)


def test_download_fetches_missing_files_into_the_datasets_folder(files, tmp_path, monkeypatch):
    requests = []

    def fetch(url, path, md5, progress):
        requests.append(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(files[path.stem]))

    monkeypatch.setattr("itl.streams.download.fetch", fetch)
    assert len(streams.load("seq-fmnist", tmp_path, download=True)) == 5
    assert len(requests) == 4
    assert requests[0] == "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz"
    assert (tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz").exists()
