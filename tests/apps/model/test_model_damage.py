"""Damaged model folders: each of more than 200 kinds of damage is refused with a one-line error.

Damaged images of the memory are dropped instead, because the weights do not depend on them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itl import UserError
from itl.apps.model import Model
from itl.apps.model.check import check
from itl.checkpoint import store
from support.damage import flip_bit
from support.malformed_images import with_declared_size
from support.tiny_model import trained_model

Damage = Callable[[Path], None]
HUGE = 10**12


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two generations, memory images and stored logits."""
    return trained_model(tmp_path_factory.mktemp("original") / "m", "itl-l").path


def current_generation(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().split()[0]


def older_generation(folder: Path) -> Path:
    return folder / store.generations(folder)[0]


def memory_image(folder: Path, number: int = 0) -> Path:
    return sorted(current_generation(folder).rglob("*.png"))[number]


FILES: dict[str, Callable[[Path], Path]] = {
    "CURRENT": lambda folder: folder / "CURRENT",
    "state": lambda folder: current_generation(folder) / "state.json",
    "tensors": lambda folder: current_generation(folder) / "tensors.safetensors",
    "sums": lambda folder: current_generation(folder) / "SHA256SUMS",
    "picture": memory_image,
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
                flip_bit(find(folder), share=place, bit=bit)  # never in the final newline, which has no meaning

            yield f"bit {bit} of {name} at {place:.3f}", damage


def swap(a: Path, b: Path) -> None:
    a.rename(a.with_name(".swapped"))
    b.rename(a)
    a.with_name(".swapped").rename(b)


def swaps() -> Iterator[tuple[str, Damage]]:
    for name in ("state.json", "tensors.safetensors", "SHA256SUMS"):
        yield (
            f"{name} of another generation",
            lambda f, n=name: swap(current_generation(f) / n, older_generation(f) / n),
        )
    yield (
        "state and tensors",
        lambda f: swap(current_generation(f) / "state.json", current_generation(f) / "tensors.safetensors"),
    )
    yield "two pictures", lambda f: swap(memory_image(f, 0), memory_image(f, 5))
    yield "a picture and the tensors", lambda f: swap(memory_image(f), current_generation(f) / "tensors.safetensors")
    yield "two classes", lambda f: swap(memory_image(f, 0).parent, memory_image(f, 7).parent)
    yield "two generations", lambda f: swap(current_generation(f), older_generation(f))
    yield (
        "CURRENT names the other generation",
        lambda f: (f / "CURRENT").write_text(
            (f / "CURRENT").read_text().replace(current_generation(f).name, older_generation(f).name)
        ),
    )
    for name, find in FILES.items():
        yield f"{name} gone", lambda f, find=find: find(f).unlink()
        yield f"{name} empty", lambda f, find=find: find(f).write_bytes(b"")
        yield f"{name} is zeros", lambda f, find=find: find(f).write_bytes(bytes(find(f).stat().st_size))
        yield f"{name} is a picture", lambda f, find=find: find(f).write_bytes(memory_image(f, 1).read_bytes())
    yield "the generation gone", lambda f: shutil.rmtree(current_generation(f))
    yield "the memory gone", lambda f: shutil.rmtree(current_generation(f) / "memory")


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
        lambda f: (
            shutil.move(current_generation(f), f.parent / "away"),
            (f / current_generation(f).name).symlink_to(f.parent / "away"),
        ),
    )
    for line in ("../../outside", "/etc/passwd", "./state.json", "memory//x.png", "memory/../state.json", ""):

        def listed(folder: Path, line: str = line) -> None:
            path = current_generation(folder) / "SHA256SUMS"
            path.write_text(path.read_text() + f"{'0' * 64}  {line}\n")
            store.set_current(folder, current_generation(folder).name)

        yield f"SHA256SUMS lists {line!r}", listed
    yield "SHA256SUMS is a link", replaced(FILES["sums"], lambda path, outside: path.symlink_to(outside))
    for name in ("../../etc", "/", "..\\..", "a/b"):

        def named(state: dict[str, Any], name: str = name) -> None:
            state["notes"]["model"]["names"][0] = name

        yield f"a class is called {name!r}", edited(named)


def edited(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Edit state.json and update the checksums."""

    def damage(folder: Path) -> None:
        path = current_generation(folder) / "state.json"
        state = json.loads(path.read_text())
        change(state)
        path.write_text(json.dumps(state))
        update_checksums(folder)

    return damage


def update_checksums(folder: Path) -> None:
    store.write_checksums(current_generation(folder))
    store.set_current(folder, current_generation(folder).name)


def set_value(*keys: str, value: Any) -> Damage:
    def change(state: dict[str, Any]) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return edited(change)


def versions() -> Iterator[tuple[str, Damage]]:
    for value in (0, 1, 3, 99, -2, "2", None, [2], {"2": 2}, True, 2.5, HUGE):
        yield f"format {value!r}", set_value("format", value=value)
    for value in (0, 2, "1", None, True, [1], HUGE):
        yield f"the model's format {value!r}", set_value("notes", "model", "format", value=value)
    yield "no format", edited(lambda state: state.pop("format"))


def sizes() -> Iterator[tuple[str, Damage]]:
    for value in (HUGE, -1, 10**30, 9, "8", None, [8]):
        yield f"a buffer of {value!r}", set_value("buffer", value=value)
    for value in ([3, 10**6, 10**6], [HUGE, 8, 8], [3, 8], [], [3, 8, 8, 8], [-3, 8, 8], [0, 0, 0], "388", None):
        yield f"images of {value!r}", set_value("shape", value=value)
    for side in (10**6, 2**40, 5000, 0, -8):

        def resized(state: dict[str, Any], side: int = side) -> None:
            state["shape"] = [3, side, side]
            state["notes"]["model"]["image"]["size"] = side

        yield f"consistent images of {side} pixels", edited(resized)
    for value in (10**9, 10**30, 0, -4, 5, "4", None, 4.5):
        yield f"{value!r} outputs", set_value("outputs", value=value)
    for value in (HUGE, -1, 9, "many", None):
        yield f"{value!r} images in memory", set_value("slots", "count", value=value)
    for name, value in (("net.width", 1024), ("net.width", HUGE), ("net.name", "resnet50"), ("net.name", "x")):
        yield f"a network of {name} = {value}", set_value("settings", name, value=value)
    for value in ([[HUGE]], [[-1]], [[0, 1], [2, 10**30]], 7, [7], [["a"]], {"a": 1}):
        yield f"tasks {value!r}", set_value("tasks", value=value)
    for value in (["specialist", 10**30], ["lunch", 0], ["done"], ["done", -1], 5, None):
        yield f"position {value!r}", set_value("position", value=value)
    for size in ((100_000, 100_000), (8, 9), (1, 1), (2**31 - 1, 2**31 - 1)):
        yield f"a picture declared {size}", lambda f, s=size: declare_size(f, *s)
    for length in (2**62, 2**31, 10**9, 0):
        yield f"a header of {length} bytes", lambda f, n=length: replace_start(f, struct.pack("<Q", n))
    yield (
        "a tensor of terabytes",
        lambda f: replace_start(f, header({"net.x": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}})),
    )
    yield "a state of 70 MB", lambda f: os.truncate(current_generation(f) / "state.json", 70 << 20)
    yield (
        "an endless number",
        lambda f: (current_generation(f) / "state.json").write_text('{"format": ' + "9" * 100_000 + "}"),
    )
    yield (
        "a deeply nested state",
        lambda f: ((current_generation(f) / "state.json").write_text("[" * 200_000), update_checksums(f)),
    )


def declare_size(folder: Path, width: int, height: int) -> None:
    """Change the size in a PNG header and update the checksums."""
    image = memory_image(folder)
    image.write_bytes(with_declared_size(image.read_bytes(), width, height))
    update_checksums(folder)


def header(tensors: dict[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def replace_start(folder: Path, start: bytes) -> None:
    path = current_generation(folder) / "tensors.safetensors"
    data = path.read_bytes()
    path.write_bytes(start + data[len(start) :])
    update_checksums(folder)


def inconsistencies() -> Iterator[tuple[str, Damage]]:
    about = ("notes", "model")
    for names in ([], ["cat"], ["a", "b", "c", "d", "e"], "catd", None, [1, 2, 3, 4], {"cat": 1}, [1] * 10**6):
        yield f"names {names!r:.50}", set_value(*about, "names", value=names)
    for image in (None, {}, {"size": 9, "channels": 3}, {"size": 8, "channels": 1}, "8x8"):
        yield f"image {image!r}", set_value(*about, "image", value=image)
    for history in (5, [5], [{}], [{"what": 3}], None, ["learn"]):
        yield f"history {history!r}", set_value(*about, "history", value=history)
    for pending in (5, {}, {"fingerprint": 3}, "learn"):
        yield f"pending {pending!r}", set_value(*about, "pending", value=pending)
    for undo in (-1, "2", None, 1.5):
        yield f"undo {undo!r}", set_value(*about, "undo", value=undo)
    for key in ("method", "buffer", "seed", "settings", "traits", "slots", "notes", "network", "stream"):
        yield f"no {key}", edited(lambda state, key=key: state.pop(key))
    yield (
        "a network of an unknown class",
        set_value("network", value={"class": "os.System", "classifier": "x", "last": []}),
    )
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
        yield f"tensor {name} {None if value is None else list(value.shape)}", replace_tensor(name, value)


def replace_tensor(name: str, value: torch.Tensor | None) -> Damage:
    from safetensors.torch import load_file, save_file

    def damage(folder: Path) -> None:
        path = current_generation(folder) / "tensors.safetensors"
        tensors = {n: t for n, t in load_file(path).items() if n != name}
        save_file(tensors if value is None else {**tensors, name: value}, path)
        update_checksums(folder)

    return damage


DAMAGES = (truncations, flips, swaps, paths, versions, sizes, inconsistencies)


def is_picture_damage(name: str) -> bool:
    """Whether a kind of damage concerns only images of the memory, which are then dropped."""
    return "picture" in name or name in ("two classes", "the memory gone") or name.startswith("a class is called")


def has_only_images_of(model: Model, intact: Model) -> bool:
    """Whether a model has the weights of `intact` and holds no image that `intact` does not hold."""
    own, other = model.learner, intact.learner
    known = {(int(c), x.numpy().tobytes()) for c, x in zip(other.memory.labels, other.memory.pixels, strict=False)}
    images = {(int(c), x.numpy().tobytes()) for c, x in zip(own.memory.labels, own.memory.pixels, strict=False)}
    weights = zip(own.net.state_dict().values(), other.net.state_dict().values(), strict=True)
    return images <= known and all(torch.equal(a, b) for a, b in weights)


def test_damaged_model_is_refused_in_one_line(original: Path, tmp_path: Path) -> None:
    assert Model.open(original, device="cpu").output_names == ["cat", "dog", "eel", "fox"]
    intact, dropped = Model.open(original, device="cpu"), 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    messages: dict[str, str] = {}
    failures = []
    for kind in DAMAGES:
        for name, damage in kind():
            parent = tmp_path / "parent"
            shutil.copytree(original, parent / "m", symlinks=True)
            damage(parent / "m")
            try:
                model = Model.open(parent / "m", device="cpu")
                if not is_picture_damage(name):
                    failures.append(f"{name}: opened")
                elif not has_only_images_of(model, intact):
                    failures.append(f"{name}: the memory holds other images")
                dropped += bool(model.damaged_images)
            except UserError as error:
                messages[name] = str(error)
                if not messages[name] or "\n" in messages[name] or len(messages[name]) > 600:
                    failures.append(f"{name}: {messages[name]!r}")
            except BaseException as error:
                failures.append(f"{name}: {type(error).__name__}: {error}"[:200])
            shutil.rmtree(parent)
    assert not failures, f"{len(failures)} of {len(messages) + len(failures)}: " + "\n".join(failures)
    assert len(messages) >= 200
    assert dropped >= 5  # the others were restored from a copy in the older generation
    assert [line for line in messages.values() if not re.search(r"/m\b", line)] == []  # every message names the folder
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 400 << 10, f"{grown >> 10} MiB were allocated"


def test_damaged_list_of_another_state_does_not_keep_an_image_from_being_dropped(
    original: Path, tmp_path: Path
) -> None:
    """Intact copies of a damaged image are searched in all states."""
    folder = shutil.copytree(original, tmp_path / "m")
    memory_image(folder).write_bytes(b"")
    (older_generation(folder) / "SHA256SUMS").write_bytes(b"\xb0")
    assert len(Model.open(folder, device="cpu").damaged_images) == 1
    result = check(folder)
    assert result.repairs == ["restored 0 and dropped 1 images of the memory; the weights are intact"]


def test_lost_memory_is_read_with_one_look_at_the_checksums_of_each_state(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(original, tmp_path / "m")
    images = len(Model.open(folder, device="cpu").learner.memory)
    for generation in store.generations(folder):
        shutil.rmtree(folder / generation / "memory")
    calls: list[Path] = []
    read = store.read_checksums
    monkeypatch.setattr(store, "read_checksums", lambda path: (calls.append(path), read(path))[1])
    assert len(Model.open(folder, device="cpu").damaged_images) == images > 3
    assert calls.count(folder / store.generations(folder)[0]) == 1


@pytest.mark.parametrize("size", [0, -8, 5000])
def test_model_of_a_size_that_cannot_be_opened_is_not_created(tmp_path: Path, size: int) -> None:
    with pytest.raises(UserError, match=f"must be 1 to 4096 pixels, not {size}"):
        Model.create(tmp_path / "m", size=size)
