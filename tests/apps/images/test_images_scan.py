"""Scanning image folders: sub-folders, train/ and test/, links, unusual names, and held-out images."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from itl.apps.images import ImageFolder, find_images, scan_folder, split_held_out
from itl.apps.images.holdout import train_only_hashes
from itl.errors import UserError


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def relative(classes: dict[str, list[Path]], root: Path) -> dict[str, list[str]]:
    return {name: [str(path.relative_to(root)) for path in files] for name, files in classes.items()}


def reasons_by_name(found: ImageFolder) -> dict[str, str]:
    return {skipped.path.name: skipped.reason for skipped in found.skipped}


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    found = scan_folder(make(tmp_path, "dog/2.jpg", "dog/1.jpg", "cat/a.png", "cat/more/b.png"))
    assert relative(found.train, tmp_path) == {
        "cat": ["cat/a.png", "cat/more/b.png"],
        "dog": ["dog/1.jpg", "dog/2.jpg"],
    }
    assert (found.test, found.skipped, found.has_test) == ({}, [], False)


def test_train_and_test_folders_are_used(tmp_path: Path) -> None:
    found = scan_folder(make(tmp_path, "train/cat/1", "train/dog/1", "test/cat/2", "extra/cat/3", "train/stray"))
    assert relative(found.train, tmp_path) == {"cat": ["train/cat/1"], "dog": ["train/dog/1"]}
    assert relative(found.test, tmp_path) == {"cat": ["test/cat/2"]}
    assert found.has_test
    assert reasons_by_name(found) == {
        "extra": "outside train/ and test/; only these are read",
        "stray": "not in a class folder; move it into a sub-folder named after its class",
    }


def test_class_can_be_named_train(tmp_path: Path) -> None:
    found = scan_folder(make(tmp_path, "train/1.jpg", "plane/1.jpg", "test/1.jpg"))
    assert list(found.train) == ["plane", "test", "train"]


def test_hidden_and_system_files_are_ignored(tmp_path: Path) -> None:
    found = scan_folder(
        make(tmp_path, "cat/1", "cat/.DS_Store", "cat/Thumbs.db", ".git/x", "__MACOSX/cat/1", "cat/.x/1")
    )
    assert relative(found.train, tmp_path) == {"cat": ["cat/1"]}
    assert found.skipped == []


def test_empty_class_folder_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "cat/1")
    (tmp_path / "dog").mkdir()
    found = scan_folder(tmp_path)
    assert list(found.train) == ["cat"]
    assert reasons_by_name(found) == {"dog": "a class folder without files"}


def test_links_are_followed_and_circular_links_end(tmp_path: Path) -> None:
    make(tmp_path, "there/1", "set/cat/1")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "there")
    (tmp_path / "set" / "cat" / "up").symlink_to(tmp_path / "set" / "cat")
    (tmp_path / "set" / "cat" / "self").symlink_to("self")
    (tmp_path / "set" / "cat" / "gone").symlink_to("nowhere")
    found = scan_folder(tmp_path / "set")
    assert relative(found.train, tmp_path / "set") == {"cat": ["cat/1"], "dog": ["dog/1"]}
    reasons = reasons_by_name(found)
    assert reasons["up"] == "a link to a folder that was already read"
    assert reasons["gone"] == "a broken link"
    assert set(reasons) == {"up", "gone", "self"}


def test_invalid_utf8_is_escaped_and_unicode_forms_are_merged(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/na\xefve")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xefve/1")).write_bytes(b"x")
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    make(tmp_path, f"{composed}/1", f"{decomposed}/2")
    found = scan_folder(tmp_path)
    assert set(found.train) == {composed, "na\\xefve"}
    assert len(found.train[composed]) == 2
    assert all(name.encode() for name in found.train)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ((), r"contains no class; create one sub-folder of images per class"),
        (("1.jpg", "2.jpg"), r"contains no class"),
        (("test/cat/1",), r"has classes in test/ but none in train/"),
    ],
)
def test_folder_without_classes_is_refused(tmp_path: Path, names: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError, match=line):
        scan_folder(make(tmp_path, *names))


def test_missing_folder_and_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; give a folder"):
        scan_folder(tmp_path / "none")
    with pytest.raises(UserError, match="is a file; give a folder"):
        scan_folder(make(tmp_path, "file") / "file")


def test_find_images_lists_all_files_below_a_folder(tmp_path: Path) -> None:
    files, skipped = find_images(make(tmp_path, "b/1", "a/x/2", "3"))
    assert [str(path.relative_to(tmp_path)) for path in files] == ["3", "a/x/2", "b/1"]
    assert skipped == []


def test_held_out_images_stay_held_out_when_the_class_grows(tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.png" for k in range(400)]
    train_of_100, held_out_of_100 = split_held_out(files[:100], tmp_path)
    train_of_400, held_out_of_400 = split_held_out(files, tmp_path)
    assert set(held_out_of_100) <= set(held_out_of_400)
    assert set(train_of_100) <= set(train_of_400)
    assert sorted([*train_of_400, *held_out_of_400]) == sorted(files)
    assert 60 <= len(held_out_of_400) <= 100  # about a fifth


def test_small_class_holds_out_none_or_at_most_a_third(tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.png" for k in range(40)]
    for count in (1, 2, 3):
        assert split_held_out(files[:count], tmp_path) == (files[:count], [])
    for count in (4, 6, 12):
        for first in range(40 - count):
            train, held_out = split_held_out(files[first : first + count], tmp_path)
            assert 1 <= len(held_out) <= count // 3
            assert len(train) + len(held_out) == count


def growing(root: Path, rng: np.random.Generator, most: int, step: int) -> Iterator[list[Path]]:
    """Yield the files of a class that grows by fewer than `step` files at a time, up to `most` files."""
    files = [root / f"{name}.png" for name in rng.permutation(1000)[:most]]
    count = 0
    while count < most:
        count = min(most, count + int(rng.integers(1, step)))
        yield files[:count]


@pytest.mark.parametrize("seed", range(60))
def test_training_images_of_a_small_class_are_not_held_out_later(tmp_path: Path, seed: int) -> None:
    hashes: set[str] = set()
    learned: set[Path] = set()
    for files in growing(tmp_path, np.random.default_rng(seed), 40, 8):
        train, held_out = split_held_out(files, tmp_path, train_only=hashes)
        assert not learned & set(held_out)
        assert (len(files) < 4) is (not held_out)
        learned |= set(train)
        hashes |= set(train_only_hashes(train, held_out, tmp_path))
        assert split_held_out(files, tmp_path, train_only=hashes) == (
            train,
            held_out,
        )  # reading again gives the same split


@pytest.mark.parametrize("seed", range(60))
def test_images_learned_without_a_split_are_not_held_out_later(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    hashes: set[str] = set()
    learned: set[Path] = set()
    for files in growing(tmp_path, rng, 60, 12):
        train, held_out = split_held_out(files, tmp_path, train_only=hashes)
        assert not learned & set(held_out)
        if rng.random() < 0.4:  # learned with --no-test
            train, held_out = files, []
        learned |= set(train)
        hashes |= set(train_only_hashes(train, held_out, tmp_path))
        assert not learned & set(split_held_out(files, tmp_path, train_only=hashes)[1])


def test_with_held_out_keeps_a_folder_with_its_own_test_images(tmp_path: Path) -> None:
    make(tmp_path, *(f"plain/cat/{k}" for k in range(20)), "split/train/cat/1", "split/test/cat/2")
    found = scan_folder(tmp_path / "plain").with_held_out()
    assert len(found.train["cat"]) + len(found.test["cat"]) == 20
    split = scan_folder(tmp_path / "split")
    assert split.with_held_out() is split
