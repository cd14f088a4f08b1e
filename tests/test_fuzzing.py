"""Ten thousand malformed inputs, with fixed seeds: no traceback, no hang, nothing written outside.

An input is accepted, or refused with a `UserError`; every other exception is a failure (`support/fuzzing.py`).
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itl import UserError, nets
from itl.apps.images import read_image
from itl.apps.model import Model
from itl.apps.model.generations import history_of
from itl.apps.teaching.default_settings import user_settings
from itl.apps.teaching.held_out_evaluation import HeldOutEvaluation, fallen_classes
from itl.apps.teaching.options import TeachingOptions, check_options
from itl.checkpoint import store
from itl.cli.commands.info import describe_change
from itl.cli.parsing import build_config, read_config_file
from itl.experiments.search.grid import load_grid
from itl.features.store import KEY_BYTES, FeatureStore
from itl.nets.weights import load_backbone_weights
from itl.results.packed_runs import pack
from itl.results.record import load_arrays
from itl.results.runs import find_runs
from itl.results.table import build
from itl.streams import mnist
from itl.streams.folder_or_zip import ZipTree
from itl.streams.unpickle import load_dict
from support.command_line import is_one_line_error, run_in_process
from support.fuzzing import NASTY, fuzz, json_bytes, mutated_bytes, mutated_json
from support.run_records import fake_run
from support.tiny import TINY
from support.tiny_model import trained_model

pytestmark = pytest.mark.slow


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent of the current folder, in which no attempt may change anything."""
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


def test_malformed_command_lines_do_not_crash(outside: Path, model: Path) -> None:
    shutil.copytree(model, "m")
    fixed = {"run": ["--stream", "seq-cifar10", "--data", "missing"], "sweep": ["missing.yaml"], "learn": ["missing"]}

    def attempt(rng: random.Random) -> None:
        command = rng.choice(COMMANDS.split())
        words = [
            rng.choice(OPTIONS.split()) if rng.random() < 0.5 else rng.choice(VALUES) for _ in range(rng.randint(0, 5))
        ]
        outcome = run_in_process(command, *words, *fixed.get(command, []))
        assert is_one_line_error(outcome), f"{command} {words}: {outcome.err[-300:]}"

    fuzz(2000, 1, attempt, outside)


CONFIG = {
    "stream": "seq-digits", "method": "itl", "buffer": 20, "seed": 0, "settings": {"tangent.lr": 0.1}, "tasks": 5,
    "order": [0, 1, 2], "order_seed": 1, "split": "test", "variant": "x", "keep_specialists": False, "curves": 3,
    "resolved": {"specialist": {"epochs": 1}}, "command": "itl run",
}  # fmt: skip


def test_malformed_configurations_do_not_crash(outside: Path) -> None:
    def attempt(rng: random.Random) -> None:
        Path("config.json").write_bytes(json_bytes(mutated_json(CONFIG, rng), rng))
        build_config(read_config_file("config.json"), {}, {})

    fuzz(1200, 2, attempt, outside)


GRID = {
    "about": "x", "streams": ["seq-digits"], "methods": ["er", "itl"], "buffers": [20], "seeds": [0, 1],
    "settings": {"tangent.lr": 0.1}, "vary": {"tangent.epochs": [1, 2]}, "cells": [{"method": "er", "seed": 3}],
}  # fmt: skip


YAML_TOKENS = ["&a ", "*a", "!!python/object:os.system ", "!!int ", "!!binary ", "<<: *a", "- ", ": ", "? ", "|", ">-2"]
YAML_TOKENS += ["---", "...", "%YAML 9", "2026-13-45", "0x", "1_000", ".nan", "\t", "[", "{", '"', "'", "#", "\n  "]


def test_malformed_grids_do_not_crash(outside: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = yaml.safe_dump(GRID)

    def attempt(rng: random.Random) -> None:
        name = rng.choice(("grid.yaml", "grid.json", "tokens.yaml"))
        if name != "tokens.yaml":
            Path(name).write_bytes(json_bytes(mutated_json(GRID, rng), rng))
        else:
            damaged = text
            for _ in range(rng.randint(1, 4)):
                position = rng.randrange(len(damaged))
                damaged = damaged[:position] + rng.choice(YAML_TOKENS) + damaged[position + rng.randint(0, 3) :]
            Path(name).write_text(damaged)
        load_grid(name)

    fuzz(1200, 3, attempt, outside)


def test_malformed_model_states_do_not_crash(outside: Path, model: Path) -> None:
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


LESSON = {
    "what": "learn", "date": "2026-01-31", "folder": "../day", "name": "day", "classes": {"cat": 3, "dog": 2},
    "test": {"cat": 1}, "tested": False, "beyond": {"cat": ["0" * 16]}, "fingerprint": "0",
    "accuracy": {"all": 50.0, "task": None, "classes": {"cat": 50.0}}, "memory": {"images": 5, "size": 8},
}  # fmt: skip
CHANGES = [
    LESSON, {"what": "rename", "date": "x", "old": "cat", "new": "lynx"}, {"what": "repair", "date": "x", "images": 1},
    {"what": "resize", "date": "x", "before": 8, "size": 9}, {"what": "forget", "date": "x", "images": 1, "classes": 0},
]  # fmt: skip
PENDING = {
    "fingerprint": "0", "replayed": None, "what": "day", "given": "day", "folder": "../day", "plan": ["../day"],
    "at": 0, "new": ["cat"], "room": 8, "buffer": None, "tested": True, "replayed_rows": "ff",
}  # fmt: skip
NOTES = {"history": CHANGES, "pending": PENDING, "own settings": {"specialist.lr": 0.1}, "minutes": 5}


def test_malformed_notes_of_models_do_not_crash(outside: Path, model: Path) -> None:
    shutil.copytree(model, "m")
    generation = Path("m") / store.current("m")
    state = json.loads((generation / "state.json").read_text())

    def attempt(rng: random.Random) -> None:
        notes = mutated_json(NOTES if rng.random() < 0.5 else {**NOTES, "pending": None}, rng)
        known = {key: notes.pop(key) for key in ("history", "pending") if key in notes}
        metadata = {**state["notes"]["model"], **known}
        text = json.dumps({**state, "notes": {**notes, "model": metadata}})
        (generation / "state.json").write_text(text)
        store.write_checksums(generation)
        store.set_current(Path("m"), generation.name)
        for command in (["info", "m"], ["report", "m", "--out", "report.html"], ["learn", "m", "missing"]):
            outcome = run_in_process(*command)
            assert is_one_line_error(outcome), f"{command}: {outcome.err[-300:]}"
        for entry in history_of(generation):
            describe_change(entry)
        opened = Model.open("m", device="cpu", memory=False)
        check_options(opened, TeachingOptions())
        user_settings(opened)
        fallen_classes(opened, HeldOutEvaluation().evaluate(opened))

    fuzz(150, 11, attempt, outside)


def test_malformed_records_do_not_crash(outside: Path) -> None:
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

    fuzz(1300, 5, attempt, outside)


def test_malformed_images_do_not_crash(outside: Path) -> None:
    originals = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
        file = io.BytesIO()
        Image.effect_noise((24, 17), 60).convert("RGB").save(file, format=kind)
        originals.append(file.getvalue())

    def attempt(rng: random.Random) -> None:
        Path("image").write_bytes(mutated_bytes(rng.choice(originals), rng))
        read_image("image", 8)

    fuzz(1100, 6, attempt, outside)


def test_malformed_archives_do_not_crash(outside: Path) -> None:
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
            mnist.load(Path("train-labels-idx1-ubyte.gz"), "0" * 32)
        else:
            Path("a.npz").write_bytes(mutated_bytes(file.getvalue(), rng))
            if kind == 2:
                load_arrays(Path("a.npz"))
            else:
                with ZipTree(Path("a.npz"), ".") as tree:
                    tree.read("a.npy")

    fuzz(700, 7, attempt, outside)


def test_malformed_weights_do_not_crash(outside: Path) -> None:
    from safetensors.torch import save

    net = nets.build("resnet8", 4, channels=3, width=4)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    data = save(before)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])

    def attempt(rng: random.Random) -> None:
        if rng.random() < 0.5:
            content = json_bytes(mutated_json(header, rng), rng)
            Path("w").write_bytes(len(content).to_bytes(8, "little") + content + data[8 + size :])
        else:
            Path("w").write_bytes(mutated_bytes(data[: 8 + size], rng) + data[8 + size :])
        with suppress(UserError):
            load_backbone_weights(net, "w")
        assert all(bool(tensor.isfinite().all()) for tensor in net.state_dict().values())

    fuzz(500, 8, attempt, outside)


def test_malformed_cache_entries_give_no_wrong_features(outside: Path) -> None:
    features = torch.arange(40 * 6.0).view(40, 2, 3)
    keys = [bytes([number]) * KEY_BYTES for number in range(40)]
    FeatureStore("0" * 32, (2, 3), Path()).append(keys, lambda: [features])
    contents = {path: path.read_bytes() for path in Path().iterdir()}
    (index,) = (path for path in contents if path.suffix == ".json")

    def attempt(rng: random.Random) -> None:
        damaged = rng.choice(sorted(contents))
        for path, content in contents.items():
            path.write_bytes(mutated_bytes(content, rng) if path == damaged else content)
        if rng.random() < 0.5:
            index.write_bytes(json_bytes(mutated_json(json.loads(contents[index]), rng), rng))
        store = FeatureStore("0" * 32, (2, 3), Path())
        rows = torch.tensor([store.find(key) for key in keys])
        assert torch.equal(store.gather(rows[rows >= 0], torch.ones_like(rows[rows >= 0])), features[rows >= 0, 1])

    fuzz(500, 9, attempt, outside)


REQUEST = {"old": "cat", "new": "dog", "class": "cat", "name": "x", "picture": "0" * 32, "pictures": ["0" * 32]}
REQUEST |= {"merge": True, "backbone": "scratch"}
FORM = b"""--b\r\nContent-Disposition: form-data; name="class"\r\n\r\ncat\r\n--b\r
Content-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n%s\r\n--b--\r\n"""
FORM_TYPES = ("; boundary=b", "", "; boundary=b; charset=nope", '; boundary="')


def test_malformed_requests_do_not_crash(outside: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    from itl.apps.server.lessons import LessonRunner
    from support.server_client import client_for

    shutil.copytree(model, "m")
    image = io.BytesIO()
    Image.effect_noise((24, 17), 60).save(image, format="PNG")
    texts = [value for value in NASTY if isinstance(value, str) and value.isprintable()]
    monkeypatch.setattr(LessonRunner, "start", lambda *_: None)  # teaching is another process

    def attempt(rng: random.Random) -> None:
        path, method = rng.choice(routes)
        path = path.replace("{picture}", rng.choice(texts)[:99] or "0").replace(
            "{slot}", rng.choice(("0", "²", "9" * 30))
        )
        query = {name: rng.choice(texts) for name in rng.sample(("model", "side", "x"), rng.choice((0, 0, 1)))}
        content, kind = b"", ""
        if method == "POST":
            content, kind = rng.choice(
                (
                    (json_bytes(mutated_json(REQUEST, rng), rng), "application/json"),
                    (mutated_bytes(FORM % image.getvalue(), rng), "multipart/form-data" + rng.choice(FORM_TYPES)),
                    (mutated_bytes(image.getvalue(), rng), ""),
                )
            )
        answer = client.request(method, path, params=query, content=content, headers={"Content-Type": kind})
        assert answer.status_code < 500, f"{method} {path} {query}: {answer.text[:200]}"

    with client_for(Path("m")) as client:
        found = [route for route in client.app.routes if getattr(route, "methods", None)]  # type: ignore[attr-defined]
        routes = [(route.path, min(route.methods - {"HEAD"})) for route in found if route.path not in ("/", EXPORT)]
        fuzz(500, 10, attempt, outside)


EXPORT = "/api/export/{kind}"  # takes no input, and is slow
