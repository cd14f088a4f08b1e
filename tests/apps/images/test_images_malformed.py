"""Malformed files and folders: readable images are learned, all other files are listed with a reason."""

from __future__ import annotations

import os
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from itl.apps.images import UnreadableImage, printable_path, read_image, scan_folder
from itl.apps.teaching import Lesson, Teacher, TeachingOptions
from itl.errors import UserError
from support.image_folders import IMAGE_SETTINGS, write_images
from support.malformed_images import BAD, GOOD, Case, cases, encode


@cache
def all_cases() -> list[Case]:
    """All cases. Encoding their images takes a second, so this is not done when tests are collected."""
    return list(cases())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder with all malformed files."""
    root = tmp_path_factory.mktemp("malformed") / "things"
    root.mkdir()
    for name, _, write in all_cases():
        write(root / name)
    return root


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_CACHE", "off")


def test_cases_are_distinct_and_at_least_300() -> None:
    assert len(all_cases()) >= 300
    assert len({name for name, _, _ in all_cases()}) == len(all_cases())


def problem(path: Path, fate: str) -> str:
    """What is wrong with how a file is read or refused; empty if nothing is."""
    try:
        pixels = read_image(path, 8)
    except UnreadableImage as error:
        line = str(error)
        if fate == GOOD or not line.startswith(f"{printable_path(path)}: ") or not line.isprintable():
            return f"refused: {line!r}"
        return "" if len(line) < len(printable_path(path)) + 200 else f"a long line: {line}"
    if fate == BAD or (pixels.shape, pixels.dtype) != ((3, 8, 8), np.uint8):
        return f"read: {pixels.shape}, {pixels.dtype}"
    return ""


def test_every_file_is_read_or_refused_in_one_line(folder: Path) -> None:
    problems = {name: problem(folder / name, fate) for name, fate, _ in all_cases()}
    assert {name: found for name, found in problems.items() if found} == {}


def test_decompression_bomb_allocates_little_memory(folder: Path) -> None:
    tracemalloc.start()
    for name, fate, _ in all_cases():
        if "bomb" in name:
            assert fate == BAD
            with pytest.raises(UnreadableImage):
                read_image(folder / name, 32)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_every_file_is_either_read_or_listed_once(folder: Path) -> None:
    images = Lesson.from_folder(folder.parent, test=False).read(8)
    listed = [printable_path(skipped.path.name) for skipped in images.skipped]
    assert len(listed) == len(set(listed))
    assert len(images.train) + len(listed) == len(all_cases())
    assert {printable_path(name) for name, fate, _ in all_cases() if fate == BAD} <= set(listed)
    assert not {printable_path(name) for name, fate, _ in all_cases() if fate == GOOD} & set(listed)


def test_readable_files_among_malformed_ones_are_learned(folder: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "set", "ant", "bee")
    (tmp_path / "set" / "things").symlink_to(folder)
    options = TeachingOptions(size=8, buffer=12, device="cpu", settings={**IMAGE_SETTINGS, "specialist.steps": 2})
    teacher = Teacher(tmp_path / "m", [tmp_path / "set"], options)
    (result,) = teacher.lesson_results()
    teacher.teach(result)
    assert result.learned
    good, bad = (sum(fate == one for _, fate, _ in all_cases()) for one in (GOOD, BAD))
    assert result.train_counts["things"] + result.test_counts["things"] >= good
    assert len(result.skipped) >= bad


# ------------------------------------------------------------------------------------------------------------ folders


PICTURE = encode("png")


def _files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(PICTURE)
    return root


def _folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
    return root


def _link(root: Path, name: str, to: str) -> Path:
    root.mkdir(exist_ok=True)
    (root / name).symlink_to(to)
    return root


def _bad(root: Path, *names: str) -> Path:
    _files(root, *names)
    for name in names:
        (root / name).write_bytes(b"bad")
    return root


DEEP = "/".join(["deep"] * 60)
# For each folder: the classes that are found, or the expected error message.
FOLDERS = {
    "missing": (lambda root: root, "does not exist"),
    "empty": (lambda root: _folders(root, "."), "contains no class"),
    "only files": (lambda root: _files(root, "1.png", "2.png"), "contains no class"),
    "only hidden": (lambda root: _files(root, ".hidden/1.png"), "contains no class"),
    "only empty classes": (lambda root: _folders(root, "a", "b"), "contains no class"),
    "only hidden files": (lambda root: _files(root, "a/.1.png"), "contains no class"),
    "only bad files": (lambda root: _bad(root, "a/1.png", "b/1.png"), "contains no readable image"),
    "a file": (lambda root: _files(root.parent, root.name) / root.name, "is a file"),
    "a circular link": (lambda root: _link(root.parent, root.name, root.name) / root.name, "does not exist"),
    "a link to nowhere": (lambda root: _link(root.parent, root.name, "nowhere") / root.name, "does not exist"),
    "a class that links to itself": (lambda root: _link(root, "a", "a"), "contains no class"),
    "a class that links to its folder": (lambda root: _link(_files(root, "b/1.png"), "a", "."), {"a", "b"}),
    "test without train": (lambda root: _files(root, "test/a/1.png"), "has classes in test/ but none in train/"),
    "train without classes": (
        lambda root: _folders(_files(root, "test/a/1.png"), "train"),
        "has classes in test/ but none in train/",
    ),
    "train with empty classes": (lambda root: _folders(root, "train/a", "test/a"), "contains no class"),
    "test with other classes": (lambda root: _files(root, "train/a/1.png", "test/b/1.png"), {"a"}),
    "test without classes": (lambda root: _files(root, "train/a/1.png", "test/1.png"), {"a"}),
    "one image in each class": (lambda root: _files(root, "a/1.png", "b/1.png"), {"a", "b"}),
    "one class": (lambda root: _files(root, "a/1.png", "a/2.png"), {"a"}),
    "a single image": (lambda root: _files(root, "a/1.png"), {"a"}),
    "a class with bad files only": (lambda root: _bad(_files(root, "a/1.png"), "b/1.png"), {"a"}),
    "an empty class": (lambda root: _folders(_files(root, "a/1.png"), "b"), {"a"}),
    "files next to the classes": (lambda root: _files(root, "a/1.png", "readme.txt"), {"a"}),
    "a class deep down": (lambda root: _files(root, f"a/{DEEP}/1.png"), {"a"}),
    "a circular link deep down": (lambda root: _link(_files(root, "a/b/c/1.png"), "a/b/c/d", "../../.."), {"a"}),
    "a link to a file": (lambda root: _link(_files(root, "a/1.png"), "b", "a/1.png"), {"a"}),
    "two classes in one place": (lambda root: _link(_files(root, "a/1.png"), "b", "a"), {"a", "b"}),
    "long names": (lambda root: _files(root, "n" * 255 + "/" + "f" * 255), {"n" * 255}),
    "names that are not UTF-8": (lambda root: _files(root, os.fsdecode(b"caf\xe9/\xff.png")), {"caf\\xe9"}),
    "two spellings of a name": (lambda root: _files(root, "e\u0301/1.png", "\u00e9/2.png"), {"\u00e9"}),
    "names with special characters": (
        lambda root: _files(root, "[red]a/1.png", "b\n/1.png", "-c/1"),
        {"[red]a", "b\\n", "-c"},
    ),
    "a pipe among the images": (lambda root: (_files(root, "a/1.png"), os.mkfifo(root / "a" / "p"), root)[-1], {"a"}),
    "many classes": (lambda root: _files(root, *(f"{k}/1.png" for k in range(100))), {str(k) for k in range(100)}),
}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("test", [True, False])
def test_folder_is_read_or_refused_in_one_line(tmp_path: Path, name: str, test: bool) -> None:
    make, expected = FOLDERS[name]
    root = make(tmp_path / "set")
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as caught:
            Lesson.from_folder(root, test).read(8)
        assert str(caught.value).isprintable()
        return
    lesson = Lesson.from_folder(root, test)
    images = lesson.read(8)
    assert set(images.train.labels) == expected
    assert all(str(skipped).isprintable() for skipped in images.skipped)
    assert scan_folder(root).train.keys() >= expected


def test_unreadable_class_folder_is_listed(tmp_path: Path) -> None:
    root = _files(tmp_path / "set", "a/1.png", "b/1.png")
    os.chmod(root / "b", 0)
    try:
        if os.access(root / "b", os.R_OK):
            pytest.skip("this user can read all files")
        images = Lesson.from_folder(root, test=False).read(8)
        assert set(images.train.labels) == {"a"}
        assert "Permission denied" in {skipped.reason for skipped in images.skipped}
    finally:
        os.chmod(root / "b", 0o700)
