"""Ten thousand malformed inputs, with fixed seeds: no traceback, no hang, nothing written outside.

An input is accepted, or refused with a `UserError`; every other exception is a failure. A hang is more than ten seconds
of processor time, which other processes do not use up, or two minutes of waiting.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickle
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itl import UserError
from itl.apps.images import read_image
from itl.apps.model import Model
from itl.checkpoint import store
from itl.cli.parsing import build_config, read_config_file
from itl.experiments.search.grid import load_grid
from itl.results.packed import pack
from itl.results.record import load_arrays
from itl.results.runs import find_runs
from itl.results.table import build
from itl.streams import idx
from itl.streams.file_tree import ZipTree
from itl.streams.unpickle import load_dict
from support.command_line import is_one_line_error, run_in_process
from support.run_records import fake_run
from support.tiny import TINY
from support.tiny_model import trained_model

pytestmark = pytest.mark.slow
MAX_SECONDS, MAX_WAITING_SECONDS = 10, 120
NASTY: list[Any] = [None, True, -1, 0, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, float("nan"), float("inf")]
NASTY += ["", "\x00", "../..", "/etc/passwd", "\udcff", "a" * 5000, "\x1b[31m", "²", "null", "1e9", "=1+1"]
NASTY += [[], {}, [[]], {"": {}}, [None] * 50, {"a": {"b": {"c": 1}}}, [1, "2", 3.0]]


@contextmanager
def time_limit() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise TimeoutError(f"more than {MAX_SECONDS} s of processor time or {MAX_WAITING_SECONDS} s")

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    previous = {number: signal.signal(number, fail) for number in timers}
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_WAITING_SECONDS)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, previous[number])


class WriteGuard:
    """Collects the paths outside a folder that this process writes to, while it has a folder."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.outside: set[str] = set()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Python's audit hook."""
        if self.folder is None or event not in WRITING_EVENTS:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITING_FLAGS):
            return
        paths = args[: WRITING_EVENTS[event]]
        for path in (os.path.realpath(os.fsdecode(one)) for one in paths if isinstance(one, str | bytes | os.PathLike)):
            if not path.startswith((self.folder + os.sep, "/dev/")) and "__pycache__" not in path:
                self.outside.add(f"{event} {path}")


WRITING_EVENTS = {"open": 1, "os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1}
WRITING_EVENTS |= {"os.link": 2, "os.symlink": 2, "os.chmod": 1, "shutil.rmtree": 1}
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
GUARD = WriteGuard()
sys.addaudithook(GUARD)  # it cannot be removed, but does nothing without a folder


def fuzz(count: int, seed: int, attempt: Callable[[random.Random], Any], outside: Path) -> None:
    """Call `attempt` with `count` seeds. It may only raise a `UserError`, and only write below the current folder."""
    GUARD.folder, GUARD.outside = os.path.realpath("."), set()
    failures: dict[str, str] = {}
    for number in range(count):
        try:
            with time_limit():
                attempt(random.Random(f"{seed}/{number}"))
        except UserError as error:
            if "\n" in str(error).strip():
                failures[f"{number}: several lines"] = str(error)
        except BaseException as error:
            failures.setdefault(f"{type(error).__name__}: {error}"[:150], f"input {number}")
    GUARD.folder = None
    assert not GUARD.outside
    assert (outside / "victim").read_text() == "safe"
    assert not failures, "\n".join(f"{why}: {message}" for message, why in list(failures.items())[:20])


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        place = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and place < len(out):
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[place:place] = rng.randbytes(rng.choice((1, 4, 100)))
        elif kind == 2:
            del out[place : place + rng.choice((1, 4, 100))]
        else:
            out[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
    return bytes(out[: rng.randrange(len(out) + 1)]) if rng.random() < 0.2 else bytes(out)


def mutated_json(value: Any, rng: random.Random) -> Any:
    """A copy in which one to three values or keys are replaced or removed."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        whole = value
        while True:
            keys = list(whole) if isinstance(whole, dict) else list(range(len(whole)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(whole[key], (dict, list)) and whole[key] and rng.random() < 0.8:
                whole = whole[key]
                continue
            if rng.random() < 0.2:
                del whole[key]
            else:
                whole[key] = copy.deepcopy(rng.choice(NASTY))
            break
    return value


def json_bytes(value: Any, rng: random.Random) -> bytes:
    """JSON text, sometimes damaged."""
    data = json.dumps(value).encode()
    return mutated_bytes(data, rng) if rng.random() < 0.2 else data


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "victim").write_text("safe")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("ITL_CACHE", "off")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("fuzzing") / "m", settings=TINY).path


COMMANDS = (
    "run refine sweep table report methods streams backbones predict eval info check undo forget rename resize learn"
)
OPTIONS = """--stream --method --buffer --seed --seeds --buffers --vary --set --epochs --config --split --tasks --order
--order-seed --variant --curves --resume --json --quiet --csv --top --out --to --merge --class --image --held-out
--format --figures --dry-run --device --help -h -- -x"""
VALUES = [str(value) for value in NASTY if isinstance(value, (str, int, float)) and not set("/\0") & set(str(value))]
VALUES += ["itl", "er", "seq-digits", "m", "."]


def test_command_lines(outside: Path, model: Path) -> None:
    shutil.copytree(model, "m")
    fixed = {"run": ["--stream", "seq-cifar10", "--data", "missing"], "sweep": ["missing.yaml"], "learn": ["missing"]}

    def attempt(rng: random.Random) -> None:
        command = rng.choice(COMMANDS.split())
        words = [
            rng.choice(OPTIONS.split()) if rng.random() < 0.5 else rng.choice(VALUES) for _ in range(rng.randint(0, 5))
        ]
        outcome = run_in_process(command, *words, *fixed.get(command, []))
        assert is_one_line_error(outcome), f"{command} {words}: {outcome.err[-300:]}"

    fuzz(2500, 1, attempt, outside)


CONFIG = {
    "stream": "seq-digits", "method": "itl", "buffer": 20, "seed": 0, "settings": {"tangent.lr": 0.1}, "tasks": 5,
    "order": [0, 1, 2], "order_seed": 1, "split": "test", "variant": "x", "keep_specialists": False, "curves": 3,
    "resolved": {"specialist": {"epochs": 1}}, "command": "itl run",
}  # fmt: skip


def test_configurations(outside: Path) -> None:
    def attempt(rng: random.Random) -> None:
        Path("config.json").write_bytes(json_bytes(mutated_json(CONFIG, rng), rng))
        build_config(read_config_file("config.json"), {}, {})

    fuzz(1500, 2, attempt, outside)


GRID = {
    "about": "x", "streams": ["seq-digits"], "methods": ["er", "itl"], "buffers": [20], "seeds": [0, 1],
    "settings": {"tangent.lr": 0.1}, "vary": {"tangent.epochs": [1, 2]}, "cells": [{"method": "er", "seed": 3}],
}  # fmt: skip


YAML_TOKENS = ["&a ", "*a", "!!python/object:os.system ", "!!int ", "!!binary ", "<<: *a", "- ", ": ", "? ", "|", ">-2"]
YAML_TOKENS += ["---", "...", "%YAML 9", "2026-13-45", "0x", "1_000", ".nan", "\t", "[", "{", '"', "'", "#", "\n  "]


def test_grids(outside: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = yaml.safe_dump(GRID)

    def attempt(rng: random.Random) -> None:
        name = rng.choice(("grid.yaml", "grid.json", "tokens.yaml"))
        if name != "tokens.yaml":
            Path(name).write_bytes(json_bytes(mutated_json(GRID, rng), rng))
        else:
            damaged = text
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(damaged))
                damaged = damaged[:place] + rng.choice(YAML_TOKENS) + damaged[place + rng.randint(0, 3) :]
            Path(name).write_text(damaged)
        load_grid(name)

    fuzz(1500, 3, attempt, outside)


def test_model_states(outside: Path, model: Path) -> None:
    shutil.copytree(model, "m")
    generation = Path("m") / store.current("m")
    names = ("state.json", "tensors.safetensors", "SHA256SUMS", "../CURRENT")
    files = {name: (generation / name).read_bytes() for name in names}
    state = json.loads(files["state.json"])

    def attempt(rng: random.Random) -> None:
        for name, content in files.items():
            (generation / name).write_bytes(content)
        damaged = rng.choices(names, (7, 2, 1, 1))[0]
        if damaged == "state.json":
            (generation / damaged).write_bytes(json_bytes(mutated_json(state, rng), rng))
        else:  # the names and shapes of tensors are at the beginning
            start = 3000 if rng.random() < 0.7 else len(files[damaged])
            content = mutated_bytes(files[damaged][:start], rng) + files[damaged][start:]
            (generation / damaged).write_bytes(content)
        if damaged in names[:2]:  # otherwise a checksum would refuse everything
            store.write_checksums(generation)
            store.set_current(Path("m"), generation.name)
        opened = Model.open("m", device="cpu", memory=rng.random() < 0.5)
        opened.predict_proba(np.zeros((1, opened.image["channels"], *[opened.image["size"]] * 2), np.uint8))

    fuzz(1000, 4, attempt, outside)


def test_records(outside: Path) -> None:
    fake_run(Path("runs/run"), tasks=2, classes=4)
    contents = {name: json.loads(Path("runs/run", name).read_text()) for name in ("config.json", "result.json")}
    lines = Path("runs/run/metrics.jsonl").read_bytes()
    arrays = Path("runs/run/predictions.npz").read_bytes()
    fake_run(Path("packed/run"), tasks=2, classes=4)
    pack("packed")
    packed = {path: path.read_bytes() for path in Path("packed").iterdir()}

    def attempt(rng: random.Random) -> None:
        root = "packed" if rng.random() < 0.1 else "runs"
        damaged_file = rng.choice(sorted(packed))
        for path, content in packed.items():
            path.write_bytes(mutated_bytes(content, rng) if path == damaged_file else content)
        for name, value in contents.items():
            Path("runs/run", name).write_bytes(
                json_bytes(mutated_json(value, rng) if rng.random() < 0.7 else value, rng)
            )
        Path("runs/run/metrics.jsonl").write_bytes(mutated_bytes(lines, rng))
        Path("runs/run/predictions.npz").write_bytes(mutated_bytes(arrays, rng))
        runs, damaged = find_runs([root])
        build(runs, damaged=damaged)
        for found in runs:
            for read in (lambda found=found: found.lines, lambda found=found: found.predictions):
                with suppress(UserError):
                    read()

    fuzz(1500, 5, attempt, outside)


def test_images(outside: Path) -> None:
    originals = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
        file = io.BytesIO()
        Image.effect_noise((24, 17), 60).convert("RGB").save(file, format=kind)
        originals.append(file.getvalue())

    def attempt(rng: random.Random) -> None:
        Path("image").write_bytes(mutated_bytes(rng.choice(originals), rng))
        read_image("image", 8)

    fuzz(1250, 6, attempt, outside)


def test_archives(outside: Path) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(20), b=np.ones((3, 3)))
    batch = pickle.dumps({"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 3]}, 2)
    labels = gzip.compress(b"\0\0\x08\x01\0\0\0\x04" + bytes(4))

    def attempt(rng: random.Random) -> None:
        kind = rng.randrange(4)
        if kind == 0:
            load_dict(mutated_bytes(batch, rng), "batch")
        elif kind == 1:
            Path("train-labels-idx1-ubyte.gz").write_bytes(mutated_bytes(labels, rng))
            idx.load(Path("train-labels-idx1-ubyte.gz"), "0" * 32)
        else:
            Path("a.npz").write_bytes(mutated_bytes(file.getvalue(), rng))
            if kind == 2:
                load_arrays(Path("a.npz"))
            else:
                with ZipTree(Path("a.npz"), ".") as tree:
                    tree.read("a.npy")

    fuzz(750, 7, attempt, outside)
