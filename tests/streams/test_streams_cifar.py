"""Tests of CIFAR in every distribution format, including damaged and malicious files."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from itl import streams
from itl.errors import UserError
from itl.streams.cifar_files import CLASS_NAMES, DISTRIBUTIONS
from itl.streams.unpickle import load_dict
from support.fake_datasets import PER_FILE, FakeCifar, fake_batch, make_archive


def check_cifar10(root: Path) -> None:
    stream = streams.load("seq-cifar10", root)
    assert stream.class_names[:2] == ("airplane", "automobile")
    assert [task.classes for task in stream] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert [len(task.train) for task in stream] == [5 * PER_FILE // 5] * 5
    first = stream.tasks[0]
    pixels, labels = fake_batch(0, 10)
    expected = pixels[labels < 2].reshape(-1, 3, 32, 32)
    assert torch.equal(first.train.pixels[: len(expected)], torch.from_numpy(expected))
    test_pixels, test_labels = fake_batch(5, 10)
    assert torch.equal(first.test.pixels, torch.from_numpy(test_pixels[test_labels < 2].reshape(-1, 3, 32, 32)))


@pytest.mark.parametrize("form", ["cifar-10-batches-bin", "cifar-10-batches-py"])
def test_cifar10_reads_the_same_from_folder_and_archive(cifar10: FakeCifar, tmp_path: Path, form: str):
    folder = cifar10.folder(tmp_path / "a", form)
    (tmp_path / "b").mkdir()
    archive = cifar10.archive(tmp_path / "b", form)
    for root in (tmp_path / "a", folder, tmp_path / "b", archive):
        check_cifar10(root)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [archive.name]  # nothing was unpacked


@pytest.mark.parametrize("form", ["cifar-100-binary", "cifar-100-python"])
def test_cifar100_uses_the_fine_labels(cifar100: FakeCifar, tmp_path: Path, form: str):
    cifar100.folder(tmp_path, form)
    stream = streams.load("seq-cifar100", tmp_path, tasks=10)
    assert stream.classes == 100
    assert [task.train.labels.tolist() for task in stream][1] == [10, 10]
    assert stream.class_names[10] == "bowl"


def test_class_names_are_complete_and_in_label_order():
    assert len(set(CLASS_NAMES["seq-cifar100"])) == 100
    assert list(CLASS_NAMES["seq-cifar100"]) == sorted(CLASS_NAMES["seq-cifar100"])
    assert list(CLASS_NAMES["seq-cifar10"]) == sorted(CLASS_NAMES["seq-cifar10"])


def test_every_pickled_file_has_an_md5():
    for form in (form for forms in DISTRIBUTIONS.values() for form in forms):
        assert not isinstance(form.label, str) or all(member.md5 for member in form.members)


class Malicious:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_foreign_pickle_is_rejected_before_it_is_loaded(cifar10: FakeCifar, tmp_path: Path):
    trace = tmp_path / "executed"
    folder = cifar10.folder(tmp_path, "cifar-10-batches-py")
    (folder / "data_batch_1").write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(UserError, match="data_batch_1 is damaged or not the official file"):
        streams.load("seq-cifar10", tmp_path)
    assert not trace.exists()


def test_unpickler_rejects_everything_but_arrays_and_lists(tmp_path: Path):
    trace = tmp_path / "executed"
    with pytest.raises(UserError, match="it contains"):
        load_dict(pickle.dumps(Malicious(trace)), "file")
    assert not trace.exists()
    with pytest.raises(UserError, match="array of i1"):
        load_dict(pickle.dumps({"data": np.zeros(2, np.int8)}, 2), "file")
    with pytest.raises(UserError, match="no dict"):
        load_dict(pickle.dumps([1]), "file")
    with pytest.raises(UserError, match="not a CIFAR file"):
        load_dict(b"not a pickle", "file")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_unpickler_reads_arrays_of_every_protocol(protocol: int):
    data = {"data": np.arange(256, dtype=np.uint8), "labels": [1, 2]}
    if protocol == 5:  # arrays then go through another function, which the official files do not use
        with pytest.raises(UserError, match="it contains"):
            load_dict(pickle.dumps(data, protocol), "file")
        return
    found = load_dict(pickle.dumps(data, protocol), "file")
    assert np.array_equal(found["data"], data["data"])


def test_unpickler_reads_pickles_of_python_2():
    # Protocol 2 with byte strings for text and raw data, as in the official files.
    written = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x7f\x80\xfftbU\x06labelsq\x08]q\t(K\x03K\x08eu."
    )
    found = load_dict(written, "file")
    assert found["data"].tolist() == [[0, 127], [128, 255]]
    assert found["labels"] == [3, 8]


def test_altered_byte_in_an_archive_is_detected(cifar10: FakeCifar, tmp_path: Path):
    contents = dict(cifar10.contents["cifar-10-batches-bin"])
    contents["data_batch_3.bin"] = b"\x01" + contents["data_batch_3.bin"][1:]
    make_archive(
        tmp_path / "cifar-10-binary.tar.gz", {f"cifar-10-batches-bin/{name}": data for name, data in contents.items()}
    )
    with pytest.raises(UserError, match=r"data_batch_3.bin is damaged"):
        streams.load("seq-cifar10", tmp_path)


def test_archive_with_a_missing_or_misplaced_file_is_rejected(cifar10: FakeCifar, tmp_path: Path):
    contents = {f"cifar-10-batches-bin/{name}": data for name, data in cifar10.contents["cifar-10-batches-bin"].items()}
    contents["../../test_batch.bin"] = contents.pop("cifar-10-batches-bin/test_batch.bin")
    make_archive(tmp_path / "cifar-10-binary.tar.gz", contents)
    with pytest.raises(UserError, match=r"lacks cifar-10-batches-bin/test_batch.bin"):
        streams.load("seq-cifar10", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_truncated_archive_is_reported_in_one_line(cifar10: FakeCifar, tmp_path: Path, keep: float):
    path = cifar10.archive(tmp_path, "cifar-10-batches-bin")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if keep < 1 else int(keep)])
    with pytest.raises(UserError, match=r"cifar-10-binary.tar.gz is truncated or damaged|lacks") as caught:
        streams.load("seq-cifar10", tmp_path)
    assert "\n" not in str(caught.value)


def test_corrupted_archive_is_rejected(cifar10: FakeCifar, tmp_path: Path):
    path = cifar10.archive(tmp_path, "cifar-10-batches-py")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(UserError):
        streams.load("seq-cifar10", tmp_path)


def test_cifar100_binary_archive_is_checked_by_its_md5(cifar100: FakeCifar, tmp_path: Path):
    cifar100.archive(tmp_path, "cifar-100-binary")  # its md5 is not the official archive's
    with pytest.raises(UserError, match=r"expected 03b5dce0"):
        streams.load("seq-cifar100", tmp_path)


def test_cifar100_binary_folder_is_checked_by_size_and_labels(cifar100: FakeCifar, tmp_path: Path):
    folder = cifar100.folder(tmp_path, "cifar-100-binary")
    whole = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(whole[:-1])
    with pytest.raises(UserError, match="bytes, not"):
        streams.load("seq-cifar100", tmp_path)
    (folder / "train.bin").write_bytes(whole[:1] + b"\xff" + whole[2:])
    with pytest.raises(UserError, match=r"labels in 0\.\.99"):
        streams.load("seq-cifar100", tmp_path)


def test_missing_files_are_named_with_the_remedy(cifar10: FakeCifar, tmp_path: Path):
    with pytest.raises(UserError, match=r"put cifar-10-binary.tar.gz or .* --download"):
        streams.load("seq-cifar10", tmp_path / "nowhere")
    folder = cifar10.folder(tmp_path, "cifar-10-batches-bin")
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(UserError, match=r"lacks data_batch_2.bin"):
        streams.load("seq-cifar10", tmp_path)
    with pytest.raises(UserError, match=r"lacks data_batch_2.bin"):
        streams.load("seq-cifar10", folder)
    other = tmp_path / "notes.txt"
    other.write_text("x")
    with pytest.raises(UserError, match="not a file of seq-cifar10"):
        streams.load("seq-cifar10", other)


def test_complete_archive_is_preferred_to_an_incomplete_folder(cifar10: FakeCifar, tmp_path: Path):
    folder = cifar10.folder(tmp_path, "cifar-10-batches-bin")
    (folder / "test_batch.bin").unlink()
    cifar10.archive(tmp_path, "cifar-10-batches-py")
    check_cifar10(tmp_path)


def test_folders_called_train_and_test_are_not_taken_for_cifar100(tmp_path: Path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(UserError, match="is not in"):
        streams.load("seq-cifar100", tmp_path)


def test_unreadable_folder_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UserError, match=r"cannot read .*Permission denied"):
        streams.load("seq-cifar10", tmp_path)


def test_download_fetches_the_binary_archive_only_if_files_are_missing(
    cifar10: FakeCifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    requests = []

    def fetch(url, path, md5, progress):
        requests.append((url, md5))
        path.parent.mkdir(parents=True, exist_ok=True)
        return cifar10.archive(path.parent, "cifar-10-batches-bin")

    monkeypatch.setattr("itl.streams.download.fetch", fetch)
    stream = streams.load("seq-cifar10", tmp_path / "new", download=True)
    assert len(stream) == 5
    assert requests == [("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")]
    streams.load("seq-cifar10", tmp_path / "new", download=True)
    assert len(requests) == 1
