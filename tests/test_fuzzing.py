"""Six thousand malformed inputs, with fixed seeds: no traceback, no hang, nothing written outside.

An input is accepted, or refused with a `UserError`; every other exception is a failure.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from itl.results.record import load_arrays
from itl.streams import idx
from itl.streams.file_tree import ZipTree
from itl.streams.unpickle import load_dict
from support.tiny_model import trained_model

pytestmark = pytest.mark.slow
MAX_SECONDS = 10
NASTY: list[Any] = [None, True, -1, 0, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, float("nan"), float("inf")]
NASTY += ["", "\x00", "../..", "/etc/passwd", "\udcff", "a" * 5000, "\x1b[31m", "²", "null", "1e9", "=1+1"]
NASTY += [[], {}, [[]], {"": {}}, [None] * 50, {"a": {"b": {"c": 1}}}, [1, "2", 3.0]]


@contextmanager
def time_limit() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise TimeoutError(f"more than {MAX_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def fuzz(count: int, seed: int, attempt: Callable[[random.Random], Any], outside: Path) -> None:
    """Call `attempt` with `count` seeds; it may raise nothing but a `UserError`, or write to the folder `outside`."""
    before = sorted(os.listdir(outside))
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
    assert sorted(os.listdir(outside)) == before
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
                whole[key] = rng.choice(NASTY)
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
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("fuzzing") / "m").path


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


def test_grids(outside: Path) -> None:
    pytest.importorskip("yaml")

    def attempt(rng: random.Random) -> None:
        name = rng.choice(("grid.yaml", "grid.json"))
        Path(name).write_bytes(json_bytes(mutated_json(GRID, rng), rng))
        load_grid(name)

    fuzz(1500, 3, attempt, outside)


def test_model_states(outside: Path, model: Path) -> None:
    shutil.copytree(model, "m")
    generation = Path("m") / store.current("m")
    state = json.loads((generation / "state.json").read_text())

    def attempt(rng: random.Random) -> None:
        (generation / "state.json").write_bytes(json_bytes(mutated_json(state, rng), rng))
        store.write_checksums(generation)
        store.set_current(Path("m"), generation.name)
        opened = Model.open("m", device="cpu", memory=rng.random() < 0.5)
        opened.predict_proba(np.zeros((1, opened.image["channels"], *[opened.image["size"]] * 2), np.uint8))

    fuzz(1500, 4, attempt, outside)


def test_images(outside: Path) -> None:
    originals = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
        file = io.BytesIO()
        Image.effect_noise((24, 17), 60).convert("RGB").save(file, format=kind)
        originals.append(file.getvalue())

    def attempt(rng: random.Random) -> None:
        Path("image").write_bytes(mutated_bytes(rng.choice(originals), rng))
        read_image("image", 8)

    fuzz(1000, 6, attempt, outside)


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

    fuzz(500, 7, attempt, outside)
