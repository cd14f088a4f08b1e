"""A model folder damaged in two hundred ways and more: each is refused in one line, in one process, quickly."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itl import UserError
from itl.apps.model import Model
from itl.checkpoint import store
from support.tiny_model import taught

Damage = Callable[[Path], None]
HUGE = 10**12


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two generations, its memory pictures and stored logits."""
    return taught(tmp_path_factory.mktemp("original") / "m", "itl-l").path


def now(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().split()[0]


def before(folder: Path) -> Path:
    return folder / store.generations(folder)[0]


def picture(folder: Path, number: int = 0) -> Path:
    return sorted(now(folder).rglob("*.png"))[number]


FILES: dict[str, Callable[[Path], Path]] = {
    "CURRENT": lambda folder: folder / "CURRENT",
    "state": lambda folder: now(folder) / "state.json",
    "tensors": lambda folder: now(folder) / "tensors.safetensors",
    "sums": lambda folder: now(folder) / "SHA256SUMS",
    "picture": picture,
}


def truncations() -> Iterator[tuple[str, Damage]]:
    for name, find in FILES.items():
        for share in (0.0, 0.1, 0.5, 0.9, 0.99):

            def damage(folder: Path, find: Any = find, share: float = share) -> None:
                data = find(folder).read_bytes()
                find(folder).write_bytes(data[: min(int(len(data) * share), len(data) - 2)])

            yield f"{name} cut to {share:.0%}", damage


def flips() -> Iterator[tuple[str, Damage]]:
    rng = np.random.default_rng(5)
    for name, count in (("CURRENT", 10), ("state", 25), ("tensors", 20), ("sums", 15), ("picture", 15)):
        for _ in range(count):
            place, bit = rng.random(), int(rng.integers(8))

            def damage(folder: Path, find: Any = FILES[name], place: float = place, bit: int = bit) -> None:
                data = bytearray(find(folder).read_bytes())
                data[int(place * (len(data) - 1))] ^= 1 << bit  # less the final newline, which means nothing
                find(folder).write_bytes(bytes(data))

            yield f"bit {bit} of {name} at {place:.3f}", damage


def swap(a: Path, b: Path) -> None:
    a.rename(a.with_name(".swapped"))
    b.rename(a)
    a.with_name(".swapped").rename(b)


def swaps() -> Iterator[tuple[str, Damage]]:
    for name in ("state.json", "tensors.safetensors", "SHA256SUMS"):
        yield f"{name} of another generation", lambda f, n=name: swap(now(f) / n, before(f) / n)
    yield "state and tensors", lambda f: swap(now(f) / "state.json", now(f) / "tensors.safetensors")
    yield "two pictures", lambda f: swap(picture(f, 0), picture(f, 5))
    yield "a picture and the tensors", lambda f: swap(picture(f), now(f) / "tensors.safetensors")
    yield "two classes", lambda f: swap(picture(f, 0).parent, picture(f, 7).parent)
    yield "two generations", lambda f: swap(now(f), before(f))
    yield (
        "the other generation named",
        lambda f: (f / "CURRENT").write_text((f / "CURRENT").read_text().replace(now(f).name, before(f).name)),
    )
    for name, find in FILES.items():
        yield f"{name} gone", lambda f, find=find: find(f).unlink()
        yield f"{name} empty", lambda f, find=find: find(f).write_bytes(b"")
        yield f"{name} is zeros", lambda f, find=find: find(f).write_bytes(bytes(find(f).stat().st_size))
        yield f"{name} is a picture", lambda f, find=find: find(f).write_bytes(picture(f, 1).read_bytes())
    yield "the generation gone", lambda f: shutil.rmtree(now(f))
    yield "the memory gone", lambda f: shutil.rmtree(now(f) / "memory")


def replaced(find: Callable[[Path], Path], make: Callable[[Path, Path], Any]) -> Damage:
    def damage(folder: Path) -> None:
        path = find(folder)
        shutil.copy(path, folder.parent / "outside")
        path.unlink()
        make(path, folder.parent / "outside")

    return damage


def paths() -> Iterator[tuple[str, Damage]]:
    for name, find in FILES.items():
        yield f"{name} is a link", replaced(find, lambda path, outside: path.symlink_to(outside))
        yield f"{name} is a pipe", replaced(find, lambda path, _: os.mkfifo(path))
        yield f"{name} is a folder", replaced(find, lambda path, _: path.mkdir())
        yield f"{name} is endless", replaced(find, lambda path, _: path.symlink_to("/dev/zero"))
    names = ("../m", "/etc", "generation-000002/..", "generation-000002\x00", "generation-٠٠٠٠٠٢", "generation--00001")
    for name in (*names, "generation-000002 ", ".", "generation-999999", "g" * 100_000, "\n\n\n"):
        yield f"CURRENT says {name[:30]!r}", lambda f, n=name: (f / "CURRENT").write_text(n)
    yield (
        "the generation is a link",
        lambda f: (shutil.move(now(f), f.parent / "away"), (f / now(f).name).symlink_to(f.parent / "away")),
    )
    for line in ("../../outside", "/etc/passwd", "./state.json", "memory//x.png", "memory/../state.json", ""):

        def listed(folder: Path, line: str = line) -> None:
            path = now(folder) / "SHA256SUMS"
            path.write_text(path.read_text() + f"{'0' * 64}  {line}\n")
            store.point(folder, now(folder).name)

        yield f"SHA256SUMS lists {line!r}", listed
    yield "SHA256SUMS is a link", replaced(FILES["sums"], lambda path, outside: path.symlink_to(outside))
    for name in ("../../etc", "/", "..\\..", "a/b"):

        def named(state: dict[str, Any], name: str = name) -> None:
            state["notes"]["model"]["names"][0] = name

        yield f"a class is called {name!r}", meant(named)


def meant(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """A state that someone edited and gave checksums that fit."""

    def damage(folder: Path) -> None:
        path = now(folder) / "state.json"
        state = json.loads(path.read_text())
        change(state)
        path.write_text(json.dumps(state))
        reseal(folder)

    return damage


def reseal(folder: Path) -> None:
    store.seal(now(folder))
    store.point(folder, now(folder).name)


def put(*keys: str, value: Any) -> Damage:
    def change(state: dict[str, Any]) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return meant(change)


def versions() -> Iterator[tuple[str, Damage]]:
    for value in (0, 1, 3, 99, -2, "2", None, [2], {"2": 2}, True, 2.5, HUGE):
        yield f"format {value!r}", put("format", value=value)
    for value in (0, 2, "1", None, True, [1], HUGE):
        yield f"the model's format {value!r}", put("notes", "model", "format", value=value)
    yield "no format", meant(lambda state: state.pop("format"))


def sizes() -> Iterator[tuple[str, Damage]]:
    for value in (HUGE, -1, 10**30, 9, "8", None, [8]):
        yield f"a buffer of {value!r}", put("buffer", value=value)
    for value in ([3, 10**6, 10**6], [HUGE, 8, 8], [3, 8], [], [3, 8, 8, 8], [-3, 8, 8], [0, 0, 0], "388", None):
        yield f"images of {value!r}", put("shape", value=value)
    for value in (10**9, 10**30, 0, -4, 5, "4", None, 4.5):
        yield f"{value!r} outputs", put("outputs", value=value)
    for value in (HUGE, -1, 9, "many", None):
        yield f"{value!r} images in memory", put("slots", "count", value=value)
    for name, value in (("net.width", 1024), ("net.width", HUGE), ("net.name", "resnet50"), ("net.name", "x")):
        yield f"a network of {name} = {value}", put("settings", name, value=value)
    for value in ([[HUGE]], [[-1]], [[0, 1], [2, 10**30]], 7, [7], [["a"]], {"a": 1}):
        yield f"tasks {value!r}", put("tasks", value=value)
    for value in (["specialist", 10**30], ["lunch", 0], ["done"], ["done", -1], 5, None):
        yield f"position {value!r}", put("position", value=value)
    for size in ((100_000, 100_000), (8, 9), (1, 1), (2**31 - 1, 2**31 - 1)):
        yield f"a picture declared {size}", lambda f, s=size: declare(f, *s)
    for length in (2**62, 2**31, 10**9, 0):
        yield f"a header of {length} bytes", lambda f, n=length: headed(f, struct.pack("<Q", n))
    yield (
        "a tensor of terabytes",
        lambda f: headed(f, header({"net.x": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}})),
    )
    yield "a state of 70 MB", lambda f: os.truncate(now(f) / "state.json", 70 << 20)
    yield "an endless number", lambda f: (now(f) / "state.json").write_text('{"format": ' + "9" * 100_000 + "}")
    yield "a state nested for ever", lambda f: ((now(f) / "state.json").write_text("[" * 200_000), reseal(f))


def declare(folder: Path, width: int, height: int) -> None:
    """A picture whose header promises another size, its checksums right."""
    data = bytearray(picture(folder).read_bytes())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    picture(folder).write_bytes(bytes(data))
    reseal(folder)


def header(tensors: dict[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def headed(folder: Path, start: bytes) -> None:
    path = now(folder) / "tensors.safetensors"
    data = path.read_bytes()
    path.write_bytes(start + data[len(start) :])
    reseal(folder)


def meanings() -> Iterator[tuple[str, Damage]]:
    about = ("notes", "model")
    for names in ([], ["cat"], ["a", "b", "c", "d", "e"], "catd", None, [1, 2, 3, 4], {"cat": 1}):
        yield f"names {names!r}", put(*about, "names", value=names)
    for image in (None, {}, {"size": 9, "channels": 3}, {"size": 8, "channels": 1}, "8x8"):
        yield f"image {image!r}", put(*about, "image", value=image)
    for history in (5, [5], [{}], [{"what": 3}], None, ["learn"]):
        yield f"history {history!r}", put(*about, "history", value=history)
    for pending in (5, {}, {"fingerprint": 3}, "learn"):
        yield f"pending {pending!r}", put(*about, "pending", value=pending)
    for undo in (-1, "2", None, 1.5):
        yield f"undo {undo!r}", put(*about, "undo", value=undo)
    for key in ("method", "buffer", "seed", "settings", "traits", "slots", "notes", "network", "stream"):
        yield f"no {key}", meant(lambda state, key=key: state.pop(key))
    yield "a network of somebody's", put("network", value={"class": "os.System", "classifier": "x", "last": []})
    for name, value in (
        ("net.classifier.weight", torch.zeros(2, 2)),
        ("slots.label", torch.full((8,), 99)),
        ("slots.label", torch.full((8,), -5)),
        ("slots.label", torch.zeros(3, dtype=torch.int64)),
        ("slots.label", torch.zeros(8, 2, dtype=torch.int64)),
        ("memory.logits", torch.zeros(8, 3)),
        ("net.extra", torch.zeros(1)),
        ("net.stem.conv.weight", None),
        ("slots.width", None),
    ):
        yield f"tensor {name} {None if value is None else list(value.shape)}", tensor(name, value)


def tensor(name: str, value: torch.Tensor | None) -> Damage:
    from safetensors.torch import load_file, save_file

    def damage(folder: Path) -> None:
        path = now(folder) / "tensors.safetensors"
        tensors = {n: t for n, t in load_file(path).items() if n != name}
        save_file(tensors if value is None else {**tensors, name: value}, path)
        reseal(folder)

    return damage


EVERY = (truncations, flips, swaps, paths, versions, sizes, meanings)


def test_two_hundred_ways_to_damage_a_model_are_each_refused_in_one_line(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_flush", lambda path: None)  # this disk need not outlive a power cut
    assert Model.open(original, device="cpu").names == ["cat", "dog", "eel", "fox"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said: dict[str, str] = {}
    wrong = []
    for kind in EVERY:
        for name, damage in kind():
            home = tmp_path / "home"
            shutil.copytree(original, home / "m", symlinks=True)
            damage(home / "m")
            try:
                Model.open(home / "m", device="cpu")
                wrong.append(f"{name}: opened")
            except UserError as error:
                said[name] = str(error)
                if not said[name] or "\n" in said[name] or len(said[name]) > 600:
                    wrong.append(f"{name}: {said[name]!r}")
            except BaseException as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}"[:200])
            shutil.rmtree(home)
    assert not wrong, f"{len(wrong)} of {len(said) + len(wrong)}: " + "\n".join(wrong)
    assert len(said) >= 200
    assert [line for line in said.values() if not re.search(r"/m\b", line)] == []  # every line names the folder
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 400 << 10, f"{grown >> 10} MiB were asked for"
