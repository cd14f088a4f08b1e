"""Many files at once: in order, in parallel, from the disk the second time, and never wrong because of it."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itl.apps.images import clear_cache, decoded_cache, parallel_read, read_image, read_images
from itl.streams import cache as store

COUNT = 70


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Seventy images, the twentieth and the last of which are none."""
    rng = np.random.default_rng(0)
    out = []
    for k in range(COUNT):
        out.append(tmp_path / f"{k:03d}.png")
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(out[-1])
    out[20].write_bytes(b"no image")
    out[-1].write_bytes(b"")
    return out


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded from now on."""
    seen: list[Path] = []
    real = parallel_read.decode

    def decode(path: Path, size: int) -> np.ndarray:
        seen.append(path)
        return real(path, size)

    monkeypatch.setattr(parallel_read, "decode", decode)
    return seen


@pytest.mark.parametrize("workers", [1, 3])
def test_good_ones_come_in_order_and_bad_ones_are_listed(place: Path, files: list[Path], workers: int) -> None:
    told: list[tuple[int, int | None]] = []
    pixels, kept, problems = read_images(files, 8, workers, lambda done, total: told.append((done, total)))
    assert kept.tolist() == [k for k in range(COUNT) if k not in (20, COUNT - 1)]
    np.testing.assert_array_equal(pixels, [read_image(files[k], 8) for k in kept])
    assert [problem.path for problem in problems] == [files[20], files[-1]]
    assert "no image of a kind" in problems[0].reason
    assert told == [(k + 1, COUNT) for k in range(COUNT)]


def test_the_second_time_nothing_good_is_decoded(place: Path, files: list[Path], monkeypatch) -> None:
    first = read_images(files, 8)
    seen = decoded(monkeypatch)
    second = read_images(files, 8)
    assert seen == [files[20], files[-1]]  # the bad ones are tried again: it may have been for lack of memory
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1].tolist() == second[1].tolist()
    assert first[2] == second[2]
    assert not second[0].flags.owndata  # mapped, not copied
    seen.clear()
    read_images(files, 16)
    assert len(seen) == COUNT + 2  # another size is another set


@pytest.mark.parametrize("change", ["content", "order", "mended"])
def test_changed_files_are_decoded_again(place: Path, files: list[Path], monkeypatch, change: str) -> None:
    read_images(files, 8)
    if change == "order":
        files = files[::-1]
    else:
        Image.new("RGB", (9, 9), (1, 2, 3)).save(files[20 if change == "mended" else 5])
    pixels, kept, _ = read_images(files, 8)
    np.testing.assert_array_equal(pixels, [read_image(files[k], 8) for k in kept])
    assert len(kept) == COUNT - (1 if change == "mended" else 2)


@pytest.mark.parametrize("damage", ["truncate", "flip", "json", "gone"])
def test_a_damaged_cache_is_made_again(place: Path, files: list[Path], damage: str) -> None:
    first = read_images(files, 8)[0].copy()
    (array,), (about,) = place.glob("*.npy"), place.glob("*.json")
    if damage == "truncate":
        array.write_bytes(array.read_bytes()[:-100])
    elif damage == "flip":
        data = bytearray(array.read_bytes())
        data[500] ^= 1
        array.write_bytes(data)
    elif damage == "json":
        about.write_text(json.dumps([]))
    else:
        array.unlink()
    np.testing.assert_array_equal(read_images(files, 8)[0], first)


def test_the_cache_keeps_within_its_bound_and_drops_the_oldest(place: Path, files: list[Path]) -> None:
    for size in (8, 9, 10):
        read_images(files, size)
    names = {decoded_cache.key(files, size): size for size in (8, 9, 10)}
    for age, about in enumerate(sorted(place.glob("*.json"), key=lambda path: -names[path.stem])):
        os.utime(about, (1e9 - age, 1e9 - age))
    read_images(files, 8)  # used: no longer the oldest
    decoded_cache.trim(place, newest="", limit=COUNT * 3 * (64 + 100) + 5000)
    assert {names[about.stem] for about in place.glob("*.json")} == {8, 10}
    clear_cache()
    assert not list(place.iterdir())


def test_what_is_not_the_caches_own_stays_in_its_folder(place: Path, files: list[Path]) -> None:
    read_images(files, 8)
    mine = [place / name for name in ("thesis.json", "results.npy", "x.tmp", f"{'a' * 39}.json")]
    for path in mine:
        path.write_text("mine")
    decoded_cache.trim(place, newest="", limit=0)
    clear_cache()
    assert sorted(place.iterdir()) == sorted(mine)


def test_without_a_cache_the_result_is_the_same(place: Path, files: list[Path], monkeypatch, tmp_path: Path) -> None:
    kept = read_images(files, 8)
    monkeypatch.setenv("ITL_CACHE", "off")
    none = read_images(files, 8)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "file"))
    barred = read_images(files, 8)
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "full"))
    monkeypatch.setattr(store, "_write", _full_disk)
    full = read_images(files, 8)
    for other in (none, barred, full):
        np.testing.assert_array_equal(kept[0], other[0])
        assert kept[1].tolist() == other[1].tolist()
        assert kept[2] == other[2]


def _full_disk(path: Path, array: store.Array) -> None:
    next(iter(array.pieces))
    raise OSError(28, "No space left on device")


def _read(files: list[Path]) -> int:
    return int(read_images(files, 8)[0].astype(np.int64).sum())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_several_processes_may_fill_one_cache_at_once(place: Path, files: list[Path]) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        sums = pool.map(_read, [files] * 12)
    clear_cache()
    assert set(sums) == {_read(files)}


def test_few_files_are_not_kept(place: Path, files: list[Path]) -> None:
    assert len(read_images(files[:10], 8)[0]) == 10
    assert not place.exists()


def test_no_file_at_all_is_no_image(place: Path) -> None:
    pixels, kept, problems = read_images([], 8)
    assert pixels.shape == (0, 3, 8, 8)
    assert kept.shape == (0,)
    assert problems == []
