"""Tests of TinyImageNet: class order, cache of decoded images, damaged files."""

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pytest
import torch

from itl import streams
from itl.errors import UserError
from itl.streams import Stream, tinyimagenet
from itl.streams.base import DatasetSource
from support.damage import flip_bit
from support.fake_datasets import WNIDS, jpeg

SOURCE = tinyimagenet.SOURCE


def load(root: Path, **options) -> Stream:
    options.setdefault("tasks", 2)
    return streams.load("seq-tinyimagenet", root, **options)


@pytest.fixture(autouse=True)
def four_classes(monkeypatch: pytest.MonkeyPatch):
    four = DatasetSource(**{**vars(SOURCE), "classes": 4})
    monkeypatch.setattr(tinyimagenet, "SOURCE", four)


def gray_levels(images: streams.Images) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def make_zip(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = root / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((root / "tiny-imagenet-200").rglob("*")):
            archive.write(file, file.relative_to(root))
    monkeypatch.setattr(tinyimagenet, "MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


def test_classes_are_in_the_line_order_of_wnids(tiny: Path):
    stream = load(tiny)
    assert stream.class_names == ("goldfish", "crane (n01)", "lemon", "crane (n02)")
    assert [task.classes for task in stream] == [(0, 1), (2, 3)]


def test_training_images_are_sorted_by_number_and_converted_to_rgb(tiny: Path):
    stream = load(tiny)
    assert stream.shape == (3, 64, 64)
    expected = [20 * c + k for c in range(4) for k in range(12)]  # _2 before _10
    assert gray_levels(stream.tasks[0].train) + gray_levels(stream.tasks[1].train) == expected
    assert stream.tasks[0].train.labels.tolist() == [0] * 12 + [1] * 12


def test_validation_images_are_the_test_set(tiny: Path):
    stream = load(tiny)
    assert gray_levels(stream.tasks[0].test) == [100, 104, 101, 105]
    assert stream.tasks[0].test.labels.tolist() == [0, 0, 1, 1]
    assert stream.tasks[1].test.labels.tolist() == [2, 2, 3, 3]


def test_task_in_default_order_is_a_view_of_the_mapped_file(tiny: Path):
    load(tiny)
    stream = load(tiny)
    for task in stream:
        start = task.train.rows[0] * 3 * 64 * 64
        assert task.train.pixels.data_ptr() == task.train.source.data_ptr() + start
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tiny / ".itl-cache" / "tinyimagenet-train.npy") in maps.read_text()


def test_other_class_order_only_changes_the_columns(tiny: Path):
    stream = load(tiny, order=[3, 0, 1, 2])
    assert stream.class_names[0] == "crane (n02)"
    assert gray_levels(stream.tasks[0].train) == [*range(12), *range(60, 72)]
    assert stream.tasks[0].train.labels.tolist() == [1] * 12 + [0] * 12


def test_zip_file_reads_like_the_folder_and_its_md5_is_checked(tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path):
    from_folder = load(tiny)
    path = make_zip(tiny, monkeypatch)
    for root in (tiny, path):
        from_zip = load(root)
        assert from_zip.class_names == from_folder.class_names
        for a, b in zip(from_zip, from_folder, strict=True):
            assert torch.equal(a.train.pixels, b.train.pixels)
            assert torch.equal(a.test.pixels, b.test.pixels)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"tiny-imagenet-200.zip is damaged or not the official file"):
        load(tiny)


def test_root_may_be_the_dataset_folder(tiny: Path):
    assert len(load(tiny / "tiny-imagenet-200")) == 2
    assert (tiny / "tiny-imagenet-200" / ".itl-cache").is_dir()


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    decoded: list[str] = []
    real = tinyimagenet._image

    def counted(tree, path):
        decoded.append(path)
        return real(tree, path)

    monkeypatch.setattr(tinyimagenet, "_image", counted)
    return decoded


def test_images_are_decoded_once_and_progress_is_reported(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    decoded, progress_calls = count_decodes(monkeypatch), []
    load(tiny, progress=lambda done, total: progress_calls.append((done, total)))
    assert len(decoded) == 56
    assert progress_calls[-1] == (56, 56)
    load(tiny)
    assert len(decoded) == 56


@pytest.mark.parametrize("damage", ["truncated", "altered", "no json", "bad json", "old format", "missing", "foreign"])
def test_damaged_cache_is_rebuilt(tiny: Path, monkeypatch: pytest.MonkeyPatch, damage: str):
    load(tiny)
    cache = tiny / ".itl-cache"
    array, about = cache / "tinyimagenet-train.npy", cache / "tinyimagenet.json"
    match damage:
        case "truncated":
            array.write_bytes(array.read_bytes()[:-1])
        case "altered":
            flip_bit(array)
        case "no json":
            about.unlink()
        case "bad json":
            about.write_text("[1, 2")
        case "old format":
            about.write_text(json.dumps({**json.loads(about.read_text()), "format": 0}))
        case "missing":
            array.unlink()
        case "foreign":
            about.write_text("[]")
    decoded = count_decodes(monkeypatch)
    stream = load(tiny)
    assert len(decoded) == 56
    assert gray_levels(stream.tasks[0].train)[:3] == [0, 1, 2]


def test_cache_of_another_dataset_is_rebuilt(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    load(tiny)
    folder = tiny / "tiny-imagenet-200"
    (folder / "wnids.txt").write_text("\n".join(reversed(WNIDS)))
    stream = load(tiny)
    assert stream.class_names[0] == "crane (n02)"
    assert gray_levels(stream.tasks[0].train)[0] == 60
    image = folder / "train" / "n01" / "images" / "n01_0.JPEG"
    image.unlink()
    os.utime(image.parent, ns=(1, 2**62))
    with pytest.raises(UserError, match="11 of 12 images"):
        load(tiny)


def test_writing_to_the_images_does_not_change_the_cache(tiny: Path):
    load(tiny).tasks[0].train.pixels.fill_(9)
    assert gray_levels(load(tiny).tasks[0].train)[:3] == [0, 1, 2]


def test_invalid_jpeg_is_named_and_leaves_no_partial_cache(tiny: Path):
    image = tiny / "tiny-imagenet-200" / "train" / "n04" / "images" / "n04_7.JPEG"
    good = image.read_bytes()
    for bad in (good[: len(good) // 2], b"", b"plain text"):
        image.write_bytes(bad)
        with pytest.raises(UserError, match=r"n04_7.JPEG is not a valid JPEG"):
            load(tiny)
    image.write_bytes(jpeg(3, size=32))
    with pytest.raises(UserError, match=r"n04_7.JPEG is 32x32, not 64x64"):
        load(tiny)
    assert not list((tiny / ".itl-cache").iterdir())


def test_missing_or_damaged_files_are_reported(tiny: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"put tiny-imagenet-200.zip or .* --download"):
        load(tmp_path / "nowhere")
    folder = tiny / "tiny-imagenet-200"
    table = folder / "val" / "val_annotations.txt"
    lines = table.read_text()
    for content, message in (
        (lines.replace("n01", "n99", 1), "damaged at"),
        (lines.splitlines()[0], "of 2 images"),
        (lines.replace("val_1.", "val_x."), "not named like"),
        (lines.replace("val_1.", f"val_{'1' * 5000}."), "not named like"),
    ):
        table.write_text(content)
        with pytest.raises(UserError, match=message):
            load(tiny)
    table.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="is not text"):
        load(tiny)
    table.write_text(lines)
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(UserError, match=r"cannot read .*val_1.JPEG"):
        load(tiny)
    (folder / "wnids.txt").write_text("n01\nn01\n")
    with pytest.raises(UserError, match="must name 4 classes"):
        load(tiny)
    (folder / "wnids.txt").unlink()
    with pytest.raises(UserError, match=r"cannot read .*wnids.txt"):
        load(tiny)


def test_zip_file_without_a_file_is_reported(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    (tiny / "tiny-imagenet-200" / "words.txt").unlink()
    make_zip(tiny, monkeypatch)
    with pytest.raises(UserError, match=r"lacks tiny-imagenet-200/words.txt"):
        load(tiny)


def test_file_that_is_not_a_zip_is_rejected(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    path = tiny / "tiny-imagenet-200.zip"
    path.write_bytes(b"not a zip")
    monkeypatch.setattr(tinyimagenet, "MD5", hashlib.md5(b"not a zip").hexdigest())
    with pytest.raises(UserError, match="truncated or damaged"):
        load(tiny)


def test_unwritable_cache_is_reported(tiny: Path):
    (tiny / ".itl-cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot write decoded images"):
        load(tiny)


def test_stale_temporary_files_are_removed_and_fresh_ones_kept(tiny: Path):
    cache = tiny / ".itl-cache"
    cache.mkdir()
    old, fresh = cache / ".tinyimagenet-train.1.tmp.npy", cache / ".tinyimagenet-train.2.tmp.npy"
    old.write_text("x")
    fresh.write_text("x")
    os.utime(old, (1, 1))
    load(tiny)
    assert not old.exists()
    assert fresh.exists()


def test_download_fetches_the_official_zip_file(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    path = make_zip(tiny, monkeypatch)
    requests = []

    def fetch(url, to, md5, progress):
        requests.append((url, to.name))
        to.parent.mkdir()
        return path.rename(to)

    monkeypatch.setattr("itl.streams.download.fetch", fetch)
    assert len(load(tiny / "new", download=True)) == 2
    assert requests == [("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet-200.zip")]
