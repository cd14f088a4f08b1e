"""`benchmarks/methods.py` runs what is not recorded and makes its tables from the records."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from itl import presets
from itl.experiments.config import Config
from support.tiny import tiny_stream
from support.tiny_sweeps import InProcessBackend

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "benchmarks" / "methods.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's functions, writing below `tmp_path`."""
    names = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(names["missing"].__globals__, "RESULTS", tmp_path)
    return names


def test_every_method_runs_alone_and_with_the_tangent_generalist(script: dict[str, Any]) -> None:
    todo = script["configs"](script["parse"](["--seeds", "0,1"]))
    planned = {(c.method, c.variant, c.seed) for c in todo}
    assert len(planned) == len(todo)
    for name in presets.METHODS:
        if presets.settings_for(name, None, 20).generalist == "none" and name != "b":
            assert {(name, None, 1), (name, "tangent", 1)} <= planned
    assert {("b", None, 0), ("itl", None, 0), ("itl-l", None, 0)} <= planned  # itl is b with the generalist
    assert ("b", "tangent", 0) not in planned
    tangent = next(c for c in todo if c.variant == "tangent")
    assert tangent.settings == {"generalist": "tangent"}


def test_shortened_runs_are_a_separate_variant(script: dict[str, Any]) -> None:
    args = script["parse"](["--stream", "seq-cifar10", "--steps", "1500", "--seeds", "0", "--methods", "er,agem"])
    assert [(c.method, c.variant, c.buffer) for c in script["configs"](args)] == [
        ("er", "steps1500", 200),
        ("er", "steps1500-tangent", 200),
        ("agem", "steps1500", 200),
        ("agem", "steps1500-tangent", 200),
    ]
    assert all(c.settings["specialist.steps"] == 1500 for c in script["configs"](args))


def test_recorded_runs_are_not_repeated_and_fill_the_table(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["specialist.steps=2", "net.width=4", "tangent.steps=2", "projection.steps=2"]
    options = ["--methods", "er,itl", "--seeds", "0", "--device", "cpu", *(w for s in small for w in ("--set", s))]
    args = script["parse"](options)
    todo, folder = script["missing"](args), tmp_path / "seq-digits" / "methods"
    assert [(c.method, c.variant) for c in todo] == [("er", None), ("er", "tangent"), ("b", None), ("itl", None)]
    script["run_all"](todo, folder, args.data, InProcessBackend())
    assert script["missing"](args) == []
    paths = [folder / config.name / "result.json" for config in todo]
    er, er_tangent, b, itl = (f"{json.loads(path.read_text())['class_il']:.1f}" for path in paths)
    table = script["table"]("seq-digits", 20, None, (0,)).splitlines()
    assert len(table) == 4
    assert table[2].startswith(f"| `er` | {er} | {er_tangent} |")
    assert table[3].startswith(f"| `itl` | {b} | {itl} |")
    assert "–" in script["table"]("seq-digits", 20, None, (0, 1))  # a seed is missing: no number
    assert script["complete_seeds"]("seq-digits", 20) == (0,)
    one_more = script["parse"]([*options, "--methods", "er", "--seeds", "1"])
    script["run_all"](script["configs"](one_more)[:1], folder, args.data, InProcessBackend())
    assert script["complete_seeds"]("seq-digits", 20) == (0,)  # not every method has seed 1


def test_failed_run_is_reported_and_repeated(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script["parse"](["--methods", "er", "--seeds", "0", "--buffer", "5", "--device", "cpu"])
    for _ in range(2):
        script["run_all"](script["missing"](args)[:1], tmp_path, args.data, InProcessBackend())
        assert "a buffer of 5 cannot hold one image of each of 10 classes" in capsys.readouterr().out
    assert len(script["missing"](args)) == 2


def test_page_shows_the_records() -> None:
    names = runpy.run_path(str(SCRIPT))
    page = (HOME / "docs" / "methods.md").read_text()
    sections = {"methods": "digits", "methods-cifar10": "cifar", "methods-validation": "validation"}
    for marker, section in ((marker, names[name]()) for marker, name in sections.items()):
        assert f"<!-- results:{marker} -->\n{section}" in page, "run python benchmarks/methods.py --write"


def test_script_lists_missing_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["methods.py", "--list", "--seeds", "987", "--methods", "er"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 of 2 runs to do"
    assert lines[2].endswith("--set generalist=tangent --curves 0")


def run_shortened(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, names: list[str], tasks: int = 5
) -> dict[Any, dict[str, Any]]:
    """Run on a stand-in for Seq-CIFAR-10 (8x8, network of width 4, two steps per task)."""
    stand_in = tiny_stream(classes=2 * tasks, tasks=tasks, each=8, channels=3, name="seq-cifar10", policy="cifar10")
    monkeypatch.setattr(Config, "load_stream", lambda self, data, download=False: stand_in)
    small = {"net.name": "resnet8", "net.width": 4, "tangent.iterations": 2, "projection.steps": 2}
    options = ["--stream", "seq-cifar10", "--steps", "2", "--seeds", "0", "--methods", ",".join(names)]
    options += ["--buffer", "20", "--device", "cpu", "--lanes", "3"]
    args = script["parse"]([*options, *(w for key, value in small.items() for w in ("--set", f"{key}={value}"))])
    if "co2l" in names:
        args.settings |= {"specialist.batch": 8}  # 16 images and a memory cannot fill batches of 512
    folder = script["missing"].__globals__["RESULTS"] / "seq-cifar10" / "methods"
    script["run_all"](script["missing"](args), folder, args.data, InProcessBackend())
    assert script["missing"](args) == []
    results: dict[Any, dict[str, Any]] = script["recorded"](folder)
    return results


def test_shortened_run_works_on_a_stand_in(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    results = run_shortened(script, monkeypatch, ["agem"])
    assert set(results) == {("agem", "steps2", 20, 0), ("agem", "steps2-tangent", 20, 0)}
    assert len(results["agem", "steps2-tangent", 20, 0]["class_il_matrix"]) == 5
    table = script["table"]("seq-cifar10", 20, 2, (0,))
    assert table is not None
    assert "| `agem` |" in table


@pytest.mark.slow
def test_every_method_runs_shortened(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    results = run_shortened(script, monkeypatch, script["names"](), tasks=2)
    alone = [name for name in script["names"]() if name not in script["WITH_GENERALIST"]]
    for name in alone:
        assert ("tangent" in results[name, "steps2-tangent", 20, 0]["stages"][-1]) is True
        assert "tangent" not in results[name, "steps2", 20, 0]["stages"][-1]
