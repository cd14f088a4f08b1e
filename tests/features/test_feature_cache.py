"""The cache of features, converted trunks and weights: damage and changes by other processes only cost time."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from itl.apps.images import clear_cache
from itl.engine.device import Engine
from itl.engine.normalize import Normalize
from itl.features import FeatureExtractor, extractor
from itl.features.onnx_trunk import load_onnx_trunk
from itl.features.store import FeatureStore
from itl.nets.packaged_weights import PackagedWeights
from itl.streams import array_cache
from itl.user_cache import read_cached, write_cached
from support.damage import flip_bit

NAME, COUNT, SHAPE = "0" * 32, 600, (2, 1500)  # 7 MB: blocks of the files are not checked as a whole
KEYS = [number.to_bytes(16, "little") for number in range(COUNT)]
FEATURES = torch.arange(COUNT * 3000, dtype=torch.float32).view(COUNT, *SHAPE)


def chunks() -> Iterator[Tensor]:
    yield from FEATURES.split(64)


def filled(folder: Path, compute: Callable[[], Iterator[Tensor]] = chunks) -> FeatureStore:
    store = FeatureStore(NAME, SHAPE, folder)
    store.append(KEYS, compute)
    return store


def stored(store: FeatureStore) -> Tensor:
    rows = torch.tensor([store.find(key) for key in KEYS])
    return torch.stack([store.gather(rows, torch.full((COUNT,), view)) for view in (0, 1)], 1)


def reopened(folder: Path) -> FeatureStore:
    return FeatureStore(NAME, SHAPE, folder)


def file_of(folder: Path, kind: str) -> Path:
    (file,) = folder.glob(f"*{kind}*")
    return file


def test_features_are_found_on_disk(tmp_path: Path) -> None:
    assert torch.equal(stored(filled(tmp_path)), FEATURES)
    assert torch.equal(stored(reopened(tmp_path)), FEATURES)


def test_clearing_the_cache_of_images_removes_their_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_CACHE", str(tmp_path))
    filled(tmp_path / "features")
    other = tmp_path / "features" / "notes.json"
    other.write_text("{}")
    clear_cache()
    assert list((tmp_path / "features").iterdir()) == [other]


def test_flipped_bit_costs_the_features_of_one_image(tmp_path: Path) -> None:
    filled(tmp_path)
    in_image_302 = 128 + 302 * 12_000 + 2_000  # between two blocks that are checked
    flip_bit(file_of(tmp_path, "features"), in_image_302, bit=6)
    store = reopened(tmp_path)
    assert [number for number, key in enumerate(KEYS) if store.find(key) < 0] == [302]
    store.append(KEYS[302:303], lambda: iter([FEATURES[302:303]]))
    assert torch.equal(stored(store), FEATURES)


@pytest.mark.parametrize("kind", ["features", "keys", "checksums", "json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "folder", "pipe"])
def test_damaged_segment_is_not_used(tmp_path: Path, kind: str, damage: str) -> None:
    filled(tmp_path)
    file = file_of(tmp_path, kind)
    if damage == "truncated":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()
        {"missing": lambda _: None, "folder": os.mkdir, "pipe": os.mkfifo}[damage](file)
    assert not reopened(tmp_path).rows
    assert torch.equal(stored(filled(tmp_path)), FEATURES)


@pytest.mark.parametrize("shape", [(3, 1000), (2, 1501)])
def test_segment_of_other_arrays_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple) -> None:
    filled(tmp_path)
    monkeypatch.setattr(FeatureStore, "_made_from", lambda self: {})
    filled(tmp_path)  # with a description that fits all shapes
    assert len(FeatureStore(NAME, SHAPE, tmp_path).rows) == COUNT
    assert bool(FeatureStore(NAME, shape, tmp_path).rows) == (shape == (3, 1000))  # as many bytes for each image


def test_segment_that_another_process_removes_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(folder: Path, *_: object) -> None:
        for file in folder.iterdir():
            file.unlink()

    monkeypatch.setattr(array_cache, "evict", remove)
    assert torch.equal(stored(filled(tmp_path)), FEATURES)


def test_features_stay_in_memory_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_cache, "_write", fail)
    assert torch.equal(stored(filled(tmp_path)), FEATURES)


def test_files_that_others_remove_or_own_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".a.tmp.npy").symlink_to("gone")  # disappears between being listed and being read
    assert torch.equal(stored(filled(tmp_path)), FEATURES)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    array_cache.evict(tmp_path, "another", 0)


# ---------------------------------------------------------------------- trunks and weights


class Trunk(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float().mean((2, 3))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "intact": lambda data: data,
    "flipped": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "in the format of earlier versions": lambda data: hashlib.sha256(data).digest() + data,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_trunk_is_converted_again(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("onnxruntime")
    images, file = torch.arange(48, dtype=torch.uint8).view(2, 3, 2, 4), tmp_path / "a" / "trunk.onnx"
    assert load_onnx_trunk(Trunk(), images, file) is not None
    file = file_of(file.parent, "trunk")
    intact = file.read_bytes()
    assert file.name == f"trunk-{hashlib.sha256(intact).hexdigest()}.onnx"
    file.write_bytes(DAMAGES[damage](intact))
    run = load_onnx_trunk(Trunk(), images, file.with_name("trunk.onnx"))
    assert run is not None
    assert torch.equal(run(images), Trunk()(images))
    assert file.read_bytes() == intact


def test_trunk_is_converted_where_nothing_can_be_cached(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "file").touch()
    images = torch.zeros((2, 3, 2, 4), dtype=torch.uint8)
    for file in (None, tmp_path / "file" / "trunk.onnx"):
        run = load_onnx_trunk(Trunk(), images, file)
        assert run is not None
        assert run(images).shape == (2, 3)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_read_from_the_package_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("ITL_CACHE", str(tmp_path))
    weights, reads = PackagedWeights("net", "package", "0" * 64, lambda net: {}), []

    def read(self: PackagedWeights) -> dict[str, Tensor]:
        reads.append(self.backbone)
        return {"a": torch.arange(5.0)}

    monkeypatch.setattr(PackagedWeights, "_read_package", read)
    weights._read()
    file = file_of(tmp_path / "weights", "net")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    for _ in range(2):
        assert torch.equal(weights._read()["a"], torch.arange(5.0))
    assert len(reads) == (1 if damage == "intact" else 2)


def test_cached_file_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"safe")
    (tmp_path / f"cached-{hashlib.sha256(b'data').hexdigest()}").symlink_to("victim")
    write_cached(tmp_path / "cached", b"data")
    assert read_cached(tmp_path / "cached") == b"data"
    assert (tmp_path / "victim").read_bytes() == b"safe"


def test_features_of_changed_code_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_trunk.py").write_text("from torch import nn\nclass Own(nn.Module):\n    factor = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_trunk  # type: ignore[import-not-found]

    trunk = nn.Sequential(own_trunk.Own())
    before = extractor._source_code(trunk)
    assert before == [(tmp_path / "own_trunk.py").read_bytes()]
    (tmp_path / "own_trunk.py").write_text("from torch import nn\nclass Own(nn.Module):\n    factor = 2\n")
    assert extractor._source_code(trunk) != before


def test_features_of_another_trunk_or_preprocessing_have_another_name() -> None:
    cpu = Engine(torch.device("cpu"))

    def name(mean: float = 0.5, std: float = 0.25, size: int = 8, weight: float = 1.0, mirrored: bool = True) -> str:
        trunk = nn.Conv2d(3, 2, 1, bias=False)
        nn.init.constant_(trunk.weight, weight)
        normalize = Normalize((mean,) * 3, (std,) * 3, cpu, size)
        return FeatureExtractor(normalize, trunk, cpu, (3, 8, 8), mirrored)._name()

    others = [name(mean=0.4), name(std=0.2), name(size=16), name(weight=2.0), name(mirrored=False)]
    assert name() == name()
    assert len({name(), *others}) == 6


NOTEBOOK = "from torch import nn\nclass Own(nn.Module):\n def forward(self, x): return (lambda y: y * {})(x)\n"


def test_features_of_code_without_a_file_are_not_reused_if_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(factor: int, file: str | None) -> list[bytes]:
        module = ModuleType("own_notebook")
        monkeypatch.setitem(sys.modules, "own_notebook", module)
        if file is not None:
            module.__file__ = file
        exec(NOTEBOOK.format(factor), vars(module))
        return extractor._source_code(nn.Sequential(module.Own()))

    for file in (None, str(tmp_path / "archive.zip" / "own.py"), "own.so"):
        assert found(2, file) == found(2, file)
        assert found(2, file) != found(3, file)
