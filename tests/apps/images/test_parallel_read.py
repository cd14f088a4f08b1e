"""Reading many image files: in order, in parallel, and from the disk cache the second time."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itl.apps.images import clear_cache, decoded_cache, parallel_read, read_image, read_images
from itl.streams import array_cache
from support.damage import flip_bit

COUNT = 70


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, set by `ITL_CACHE`."""
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Seventy image files; those with indices 20 and 69 are not images."""
    rng = np.random.default_rng(0)
    out = []
    for k in range(COUNT):
        out.append(tmp_path / f"{k:03d}.png")
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(out[-1])
    out[20].write_bytes(b"no image")
    out[-1].write_bytes(b"")
    return out


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that records all files decoded from now on."""
    seen: list[Path] = []
    real = parallel_read.decode

    def decode(path: Path, size: int, *options: str) -> np.ndarray:
        seen.append(path)
        return real(path, size, *options)

    monkeypatch.setattr(parallel_read, "decode", decode)
    return seen


@pytest.mark.parametrize("workers", [1, 3])
def test_images_come_in_order_and_unreadable_files_are_listed(cache: Path, files: list[Path], workers: int) -> None:
    calls: list[tuple[int, int | None]] = []
    pixels, indices, skipped = read_images(files, 8, workers, lambda done, total: calls.append((done, total)))
    assert indices.tolist() == [k for k in range(COUNT) if k not in (20, COUNT - 1)]
    np.testing.assert_array_equal(pixels, [read_image(files[k], 8) for k in indices])
    assert [file.path for file in skipped] == [files[20], files[-1]]
    assert "not an image" in skipped[0].reason
    assert calls == [(k + 1, COUNT) for k in range(COUNT)]


def test_second_read_decodes_only_unreadable_files(cache: Path, files: list[Path], monkeypatch) -> None:
    first = read_images(files, 8)
    seen = decoded(monkeypatch)
    second = read_images(files, 8)
    assert seen == [files[20], files[-1]]  # tried again: the reason may have been a lack of memory
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1].tolist() == second[1].tolist()
    assert first[2] == second[2]
    assert not second[0].flags.owndata  # mapped, not copied
    seen.clear()
    read_images(files, 16)
    assert len(seen) == COUNT + 2  # another size is another cache entry


@pytest.mark.parametrize("change", ["content", "order", "repaired"])
def test_changed_files_are_decoded_again(cache: Path, files: list[Path], monkeypatch, change: str) -> None:
    read_images(files, 8)
    if change == "order":
        files = files[::-1]
    else:
        Image.new("RGB", (9, 9), (1, 2, 3)).save(files[20 if change == "repaired" else 5])
    pixels, indices, _ = read_images(files, 8)
    np.testing.assert_array_equal(pixels, [read_image(files[k], 8) for k in indices])
    assert len(indices) == COUNT - (1 if change == "repaired" else 2)


@pytest.mark.parametrize("damage", ["truncate", "flip", "json", "gone"])
def test_damaged_cache_entry_is_rebuilt(cache: Path, files: list[Path], damage: str) -> None:
    first = read_images(files, 8)[0].copy()
    (array,), (about,) = cache.glob("*.npy"), cache.glob("*.json")
    if damage == "truncate":
        array.write_bytes(array.read_bytes()[:-100])
    elif damage == "flip":
        flip_bit(array, 500)
    elif damage == "json":
        about.write_text(json.dumps([]))
    else:
        array.unlink()
    np.testing.assert_array_equal(read_images(files, 8)[0], first)


def test_evict_removes_least_recently_used_entry(cache: Path, files: list[Path]) -> None:
    for size in (8, 9, 10):
        read_images(files, size)
    sizes = {decoded_cache.cache_key(files, size): size for size in (8, 9, 10)}
    for age, about in enumerate(sorted(cache.glob("*.json"), key=lambda path: -sizes[path.stem])):
        os.utime(about, (1e9 - age, 1e9 - age))
    read_images(files, 8)  # used: no longer the oldest
    decoded_cache.evict(cache, newest="", limit=COUNT * 3 * (64 + 100) + 5000)
    assert {sizes[about.stem] for about in cache.glob("*.json")} == {8, 10}
    clear_cache()
    assert not list(cache.iterdir())


def test_other_files_in_the_cache_folder_are_kept(cache: Path, files: list[Path]) -> None:
    read_images(files, 8)
    other_files = [cache / name for name in ("thesis.json", "results.npy", "x.tmp", f"{'a' * 39}.json")]
    for path in other_files:
        path.write_text("other")
    decoded_cache.evict(cache, newest="", limit=0)
    clear_cache()
    assert sorted(cache.iterdir()) == sorted(other_files)


def test_result_is_the_same_without_a_usable_cache(cache: Path, files: list[Path], monkeypatch, tmp_path: Path) -> None:
    cached = read_images(files, 8)
    monkeypatch.setenv("ITL_CACHE", "off")
    disabled = read_images(files, 8)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "file"))
    not_a_folder = read_images(files, 8)
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "full"))
    monkeypatch.setattr(array_cache, "_write", _full_disk)
    full_disk = read_images(files, 8)
    for other in (disabled, not_a_folder, full_disk):
        np.testing.assert_array_equal(cached[0], other[0])
        assert cached[1].tolist() == other[1].tolist()
        assert cached[2] == other[2]


def _full_disk(path: Path, array: array_cache.ChunkedArray) -> None:
    next(iter(array.chunks))
    raise OSError(28, "No space left on device")


def _read(files: list[Path]) -> int:
    return int(read_images(files, 8)[0].astype(np.int64).sum())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_processes_can_write_one_cache_concurrently(cache: Path, files: list[Path]) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        sums = pool.map(_read, [files] * 12)
    clear_cache()
    assert set(sums) == {_read(files)}


def test_few_files_are_not_cached(cache: Path, files: list[Path]) -> None:
    assert len(read_images(files[:10], 8)[0]) == 10
    assert not cache.exists()


def test_reading_no_files_returns_empty_arrays(cache: Path) -> None:
    pixels, indices, skipped = read_images([], 8)
    assert pixels.shape == (0, 3, 8, 8)
    assert indices.shape == (0,)
    assert skipped == []
