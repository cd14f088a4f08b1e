"""A folder is its classes: sub-folders, train/ and test/, links, odd names."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from itl.apps.images import find_images, scan_folder, split_held_out
from itl.apps.images.holdout import beyond
from itl.errors import UserError


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def of(classes: dict[str, list[Path]], root: Path) -> dict[str, list[str]]:
    return {name: [str(path.relative_to(root)) for path in files] for name, files in classes.items()}


def whys(found) -> dict[str, str]:
    return {problem.path.name: problem.reason for problem in found.skipped}


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    found = scan_folder(make(tmp_path, "dog/2.jpg", "dog/1.jpg", "cat/a.png", "cat/more/b.png"))
    assert of(found.train, tmp_path) == {"cat": ["cat/a.png", "cat/more/b.png"], "dog": ["dog/1.jpg", "dog/2.jpg"]}
    assert (found.test, found.skipped, found.has_test) == ({}, [], False)


def test_train_and_test_inside_are_honoured(tmp_path: Path) -> None:
    found = scan_folder(make(tmp_path, "train/cat/1", "train/dog/1", "test/cat/2", "extra/cat/3", "train/stray"))
    assert of(found.train, tmp_path) == {"cat": ["train/cat/1"], "dog": ["train/dog/1"]}
    assert of(found.test, tmp_path) == {"cat": ["test/cat/2"]}
    assert found.has_test
    assert whys(found) == {
        "extra": "it lies beside train/ and test/; only these are read",
        "stray": "it lies in no class; put it into a sub-folder named after its class",
    }


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    found = scan_folder(make(tmp_path, "train/1.jpg", "plane/1.jpg", "test/1.jpg"))
    assert list(found.train) == ["plane", "test", "train"]


def test_what_systems_leave_behind_is_passed_over(tmp_path: Path) -> None:
    found = scan_folder(
        make(tmp_path, "cat/1", "cat/.DS_Store", "cat/Thumbs.db", ".git/x", "__MACOSX/cat/1", "cat/.x/1")
    )
    assert of(found.train, tmp_path) == {"cat": ["cat/1"]}
    assert found.skipped == []


def test_an_empty_class_is_left_out_and_said(tmp_path: Path) -> None:
    make(tmp_path, "cat/1")
    (tmp_path / "dog").mkdir()
    found = scan_folder(tmp_path)
    assert list(found.train) == ["cat"]
    assert whys(found) == {"dog": "a class without a file; it is left out"}


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    make(tmp_path, "there/1", "set/cat/1")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "there")
    (tmp_path / "set" / "cat" / "up").symlink_to(tmp_path / "set" / "cat")
    (tmp_path / "set" / "cat" / "self").symlink_to("self")
    (tmp_path / "set" / "cat" / "gone").symlink_to("nowhere")
    found = scan_folder(tmp_path / "set")
    assert of(found.train, tmp_path / "set") == {"cat": ["cat/1"], "dog": ["dog/1"]}
    reasons = whys(found)
    assert reasons["up"] == "a link to a folder that is read already"
    assert reasons["gone"] == "a link that leads nowhere"
    assert set(reasons) == {"up", "gone", "self"}


def test_names_that_are_no_text_and_two_spellings_of_one_name(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/na\xefve")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xefve/1")).write_bytes(b"x")
    composed, apart = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    make(tmp_path, f"{composed}/1", f"{apart}/2")
    found = scan_folder(tmp_path)
    assert set(found.train) == {composed, "na\\xefve"}
    assert len(found.train[composed]) == 2
    assert all(name.encode() for name in found.train)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ((), r"has no class: it needs a sub-folder of images for each class"),
        (("1.jpg", "2.jpg"), r"has no class"),
        (("test/cat/1",), r"has a test/ but no train/"),
    ],
)
def test_a_folder_without_classes_is_refused(tmp_path: Path, names: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError, match=line):
        scan_folder(make(tmp_path, *names))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; give a folder"):
        scan_folder(tmp_path / "none")
    with pytest.raises(UserError, match="is a file; give a folder"):
        scan_folder(make(tmp_path, "file") / "file")


def test_all_files_below_a_folder(tmp_path: Path) -> None:
    files, problems = find_images(make(tmp_path, "b/1", "a/x/2", "3"))
    assert [str(path.relative_to(tmp_path)) for path in files] == ["3", "a/x/2", "b/1"]
    assert problems == []


def test_held_out_images_stay_held_out_when_others_join(tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.png" for k in range(400)]
    few, out_of_few = split_held_out(files[:100], tmp_path)
    many, out_of_many = split_held_out(files, tmp_path)
    assert set(out_of_few) <= set(out_of_many)
    assert set(few) <= set(many)
    assert sorted([*many, *out_of_many]) == sorted(files)
    assert 60 <= len(out_of_many) <= 100  # about a fifth


def test_a_small_class_is_learned_from_first(tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.png" for k in range(40)]
    for count in (1, 2, 3):
        assert split_held_out(files[:count], tmp_path) == (files[:count], [])
    for count in (4, 6, 12):
        for first in range(40 - count):
            kept, out = split_held_out(files[first : first + count], tmp_path)
            assert 1 <= len(out) <= count // 3
            assert len(kept) + len(out) == count


def growing(root: Path, rng: np.random.Generator, most: int, step: int) -> Iterator[list[Path]]:
    """The files of a class whenever some more, fewer than `step`, have joined them, until there are `most`."""
    files = [root / f"{name}.png" for name in rng.permutation(1000)[:most]]
    count = 0
    while count < most:
        count = min(most, count + int(rng.integers(1, step)))
        yield files[:count]


@pytest.mark.parametrize("seed", range(60))
def test_what_a_small_class_has_learned_is_not_held_out_once_it_has_grown(tmp_path: Path, seed: int) -> None:
    known: set[str] = set()
    learned: set[Path] = set()
    for files in growing(tmp_path, np.random.default_rng(seed), 40, 8):
        kept, out = split_held_out(files, tmp_path, learned=known)
        assert not learned & set(out)
        assert (len(files) < 4) is (not out)
        learned |= set(kept)
        known |= set(beyond(kept, out, tmp_path))
        assert split_held_out(files, tmp_path, learned=known) == (kept, out)  # the same is read again the same


@pytest.mark.parametrize("seed", range(60))
def test_what_a_class_has_learned_whole_is_never_held_out(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known: set[str] = set()
    learned: set[Path] = set()
    for files in growing(tmp_path, rng, 60, 12):
        kept, out = split_held_out(files, tmp_path, learned=known)
        assert not learned & set(out)
        if rng.random() < 0.4:  # without a test
            kept, out = files, []
        learned |= set(kept)
        known |= set(beyond(kept, out, tmp_path))
        assert not learned & set(split_held_out(files, tmp_path, learned=known)[1])


def test_a_scan_holds_out_unless_the_folder_brings_test_images(tmp_path: Path) -> None:
    make(tmp_path, *(f"plain/cat/{k}" for k in range(20)), "split/train/cat/1", "split/test/cat/2")
    found = scan_folder(tmp_path / "plain").with_held_out()
    assert len(found.train["cat"]) + len(found.test["cat"]) == 20
    split = scan_folder(tmp_path / "split")
    assert split.with_held_out() is split
