"""The examples in CONTRIBUTING.md work as written: as files of this package, and as plug-ins of another one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl.memory import Slots
from support.fresh_import import run_fresh
from support.tiny import TINY, tiny_images

HOME = Path(__file__).parents[1]
PAGE = (HOME / "CONTRIBUTING.md").read_text()
# (path, code) of each example.
EXAMPLES = dict(re.findall(r"`(src/itl/[\w/]+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
# (line, list that it is added to, file) of the examples that are not discovered automatically.
LINES = re.findall(r"Add the line\s`([^`]+)`\sto\s`(\w+)`\sin\s+`([^`]+)`", PAGE)
ENTRY_POINTS = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]

DESCRIBE = """
import json, sys
from itl import presets
from itl.settings import flatten

differs = {}
for where in ((None, 8), ("seq-tinyimagenet", 500), ("seq-cifar10", 200)):
    er, heavy = (flatten(presets.settings_for(name, *where).model_dump()) for name in ("er", "er-heavy"))
    differs |= {key: [er[key], heavy[key]] for key in er if er[key] != heavy[key]}
out = {"differs_from_er": differs, "summary": presets.get("er-heavy").summary}
"""
TRAIN = """
import itl
from itl import nets, streams

stream = streams.load("seq-stripes", sys.argv[1])
out["backbones"] = [row["name"] for row in nets.describe()]
for policy in ("uniform", "loss-aware"):
    settings = json.loads(sys.argv[2]) | {"memory.policy": policy}
    learner = itl.Learner("er-heavy", 8, settings=settings, device="cpu", classes=4)
    for task in stream:
        learner.learn(task)
    out[policy] = {
        "specialist": type(learner.specialist).__name__,
        "net": type(learner.net).__name__,
        "held": len(learner.memory),
        "class_il": learner.evaluate(stream).class_il,
    }
"""
WITHOUT_TORCH = "assert 'torch' not in sys.modules\n"
PRINT = "print(json.dumps(out))\n"


def in_tree(folder: Path) -> list[Path]:
    """Copy the package, add the examples' files and lines to it, and return the import path."""
    shutil.copytree(HOME / "src" / "itl", folder / "src" / "itl")
    for path, code in EXAMPLES.items():
        (folder / path).write_text(code)
    for line, target, path in LINES:
        text = (folder / path).read_text()
        changed = re.sub(rf"^({target}\b[^=\n]*= [({{\[])", rf"\1{line}", text, count=1, flags=re.MULTILINE)
        assert changed != text, f"{path} has no {target}"
        (folder / path).write_text(changed)
    return [folder / "src"]


def plug_in(folder: Path) -> list[Path]:
    """Install the examples as the package `my_package`, and return the import path."""
    package, info = folder / "my_package", folder / "my_package-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    for path, code in EXAMPLES.items():
        (package / Path(path).name).write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    groups = {group: points for toml in ENTRY_POINTS for group, points in toml["project"]["entry-points"].items()}
    lines = [
        line for group, points in groups.items() for line in (f"[{group}]", *(f"{n} = {v}" for n, v in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [folder, HOME / "src"]


def assert_describes_the_method(out: dict[str, Any]) -> None:
    assert out["differs_from_er"] == {"specialist.name": ["er", "er-heavy"]}
    assert out["summary"] == "experience replay, the memory counts twice"


def test_page_has_one_example_of_each_kind() -> None:
    assert [Path(path).parent.name for path in EXAMPLES] == ["specialists", "streams", "policies", "nets"]
    groups = [group for toml in ENTRY_POINTS for group in toml["project"]["entry-points"]]
    assert groups == ["itl.methods", "itl.streams", "itl.memory", "itl.backbones"]
    assert len(LINES) == 3


@pytest.mark.parametrize("install", [in_tree, plug_in])
def test_examples_train_together(install: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    train, test = tiny_images(), tiny_images(each=6, seed=1)
    np.savez(
        data / "stripes.npz",
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )
    (tmp_path / "code").mkdir()
    settings = {**TINY, "net.name": "small-cnn"}
    program = DESCRIBE + TRAIN + PRINT
    done = run_fresh(program, str(data), json.dumps(settings), path=install(tmp_path / "code"))
    assert done.code == 0, done.err
    out = done.json
    assert_describes_the_method(out)
    assert "small-cnn" in out["backbones"]
    for policy in ("uniform", "loss-aware"):
        assert (out[policy]["specialist"], out[policy]["net"], out[policy]["held"]) == ("HeavyER", "SmallCNN", 8)
        assert 0 <= out[policy]["class_il"] <= 100


def test_method_in_the_tree_is_described_without_importing_torch(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, in_tree(tmp_path)))}
    command = [sys.executable, "-c", DESCRIBE + WITHOUT_TORCH + PRINT]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert_describes_the_method(json.loads(done.stdout))


def test_policy_example_keeps_the_memory_full_and_samples_uniformly() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES["src/itl/memory/policies/uniform.py"], names)
    rng, slots, policy = np.random.default_rng(0), Slots.empty(10), names["Uniform"]()
    for task, count in enumerate((4, 30, 300)):
        labels = np.full(count, task)
        targets, rows = policy.select_at_task_end(slots, labels, rng)
        assert len(targets) == len(rows) == len(set(targets)) == len(set(rows))
        slots.write(targets, labels[rows], task, rows, width=3)
        assert (slots.label[: slots.count] >= 0).all()
        assert slots.count == (4 if task == 0 else 10)
    assert (slots.label == 2).sum() >= 7  # 300 of 310 samples were offered with equal chances
