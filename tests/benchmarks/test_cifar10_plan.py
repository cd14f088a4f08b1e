"""`benchmarks/cifar10.py`: order of the paper's runs, and the choices they need."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from itl.experiments.config import Config
from itl.presets import settings_for
from itl.results import RunFolder, pack
from itl.results.published import published
from support.run_records import fake_run
from support.tiny import tiny_stream
from support.tiny_sweeps import InProcessBackend

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "benchmarks" / "cifar10.py"
SCRIPT_NAMES = runpy.run_path(str(SCRIPT))
Choice = SCRIPT_NAMES["Choice"]
try_generalists, best_settings, score, recorded_choices = (
    SCRIPT_NAMES["ChoiceRunner"].choose.__globals__[name]
    for name in ("try_generalists", "best_settings", "score", "recorded_choices")
)
RECORDED = recorded_choices(SCRIPT_NAMES["CHOICE_RECORDS"])


# ------------------------------------------------------------------------------------------------------------ choices


def fake_trial(task: int, settings: dict[str, Any], scores: dict[tuple[int, float], float | None]) -> dict[str, Any]:
    """A trial with the Class-IL of `scores`; None stands for a diverged generalist."""
    value = scores[task, settings["tangent.lr"]]
    if value is None:
        return {"task": task, "settings": settings, "error": "not finite"}
    return {"task": task, "settings": settings, "stages": {"expert": {"class_il": value, "task_il": 0.0}}}


def test_choice_score_is_class_il_plus_half_of_task_il() -> None:
    assert score({"stages": {"expert": {"class_il": 60.0, "task_il": 90.0}}}) == 105.0


def test_higher_task_il_decides_between_generalists_of_equal_class_il() -> None:
    choice = Choice(("itl",), 500, {"a": {}}, [{"tangent.lr": lr} for lr in (0.1, 0.05)], {})

    def refine(task: int, settings: dict[str, Any]) -> dict[str, Any]:
        expert = {"class_il": 60.0, "task_il": {0.1: 90.0, 0.05: 92.0}[settings["tangent.lr"]]}
        return {"task": task, "settings": settings, "stages": {"expert": expert}}

    *_, trials = try_generalists(choice, refine)
    chosen = best_settings(choice, {choice.configs()[0].name: trials})
    assert chosen == {"score": 106.0, "settings": {"tangent.lr": 0.05}}


def test_generalist_that_falls_behind_is_dropped_and_the_best_mean_is_chosen() -> None:
    rates = (0.1, 0.05, 0.03, 0.01)
    choice = Choice(("itl",), 500, {"a": {"specialist.lr": 0.1}}, [{"tangent.lr": lr} for lr in rates], {})
    scores: dict[tuple[int, float], float | None] = {(5, 0.1): 70.0, (5, 0.05): 72.0, (5, 0.03): None, (5, 0.01): 68.9}
    scores |= {(1, 0.1): 99.0, (1, 0.05): 96.5, (3, 0.1): 80.0, (3, 0.05): 81.0}
    trials_by_task = list(try_generalists(choice, lambda task, settings: fake_trial(task, settings, scores)))
    assert [len(trials) for trials in trials_by_task] == [4, 6, 8]
    run = choice.configs()[0].name
    chosen = best_settings(choice, {run: trials_by_task[-1]})
    assert chosen["settings"] == {"specialist.lr": 0.1, "tangent.lr": 0.05}
    assert chosen["score"] == pytest.approx((72.0 + 96.5 + 81.0) / 3)
    with pytest.raises(ValueError, match="no generalist of itl-500 was finite"):
        best_settings(choice, {run: trials_by_task[0]})


@pytest.mark.parametrize("title", [name for name, record in RECORDED.items() if "chosen" in record])
def test_chosen_settings_are_the_defaults(title: str) -> None:
    name, _, buffer = title.rpartition("-")
    choices = {choice.name: choice for choice in SCRIPT_NAMES["CHOICES"]}
    if title in choices and choices[title].variant:
        return  # a variant beyond the paper, not a default
    chosen = RECORDED[title]["chosen"]["settings"]
    for method in choices[title].methods if title in choices else (name, f"{name}-na"):
        assert settings_for(method, "seq-cifar10", int(buffer), chosen) == settings_for(
            method, "seq-cifar10", int(buffer)
        )


# ----------------------------------------------------------------------------------------------------------- the plan


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's functions on a stand-in for Seq-CIFAR-10 (8x8, two steps per stage), writing below `tmp_path`."""
    stand_in = tiny_stream(classes=10, tasks=5, each=8, channels=3, name="seq-cifar10", policy="cifar10")
    monkeypatch.setattr(Config, "load_stream", lambda self, data, download=False: stand_in)
    names = runpy.run_path(str(SCRIPT))
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    wild = {"tangent.lr": 100.0, "projection.lr": 100.0, "projection.reduction": "sum", "projection.steps": 30}
    choice = Choice(("itl", "itl-na"), 500, {"small": small}, [{"tangent.lr": 0.01}, wild], {})  # the second diverges
    replacements = {"RESULTS": tmp_path / "results", "CHOICE_RECORDS": tmp_path / "records.jsonl", "CHOICES": (choice,)}
    for name, value in replacements.items():
        monkeypatch.setitem(names["main"].__globals__, name, value)
    return names


def do_runs(script: dict[str, Any], todo: list[Config], args: Any) -> None:
    script["do_runs"](todo, args, InProcessBackend())


def test_settings_are_chosen_before_the_runs_that_use_them(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = script["parse"](["--only", "itl,itl-na", "--buffers", "500", "--device", "cpu"])
    todo = script["runs_to_do"](args)[1:4:2]  # itl, seed 1; itl-na, seed 0
    specialist_run = "seq-cifar10-itl-small-500-validation-seed0"
    do_runs(script, todo, args)
    lines = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [specialist_run, specialist_run, "choice itl-500", *(config.name for config in todo)]
    record = recorded_choices(tmp_path / "records.jsonl")["itl-500"]
    assert record["chosen"]["settings"]["tangent.lr"] == 0.01
    trials = record["from"][specialist_run]
    assert [(trial["task"], "error" in trial) for trial in trials] == [(5, False), (5, True), (1, False), (3, False)]
    folders = [tmp_path / "results" / "test" / config.name for config in todo]
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert [(r["method"], r["seed"]) for r in results] == [("itl", 1), ("itl-na", 0)]
    assert all(r["settings"]["tangent"]["lr"] == 0.01 and r["settings"]["specialist"]["steps"] == 2 for r in results)
    assert all("--set tangent.lr=0.01" in r["command"] for r in results)
    assert not any((folder / "model").exists() for folder in folders)
    assert not {c.name for c in script["runs_to_do"](args)} & {c.name for c in todo}


def test_run_is_repeated_when_other_settings_are_chosen_for_it(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl", "--buffers", "500", "--device", "cpu"])
    config = script["runs_to_do"](args)[0]
    folder, record = tmp_path / "results" / "test" / config.name, tmp_path / "records.jsonl"

    def choose(**settings: Any) -> None:
        record.write_text(json.dumps({"name": "itl-500", "chosen": {"settings": settings}}))

    settings = settings_for("itl", "seq-cifar10", 500, {"tangent.lr": 0.03}).model_dump(mode="json")
    run = RunFolder(fake_run(folder, method="itl", buffer=500, seed=config.seed))
    run.write("result.json", {**run.read("result.json"), "settings": settings})
    (folder / "pictures.npz").unlink(missing_ok=True)
    assert config in script["runs_to_do"](args)  # nothing is chosen yet
    choose(**{"tangent.lr": 0.03})
    assert config not in script["runs_to_do"](args)
    pack(folder.parent)  # the same for a packed record
    assert config not in script["runs_to_do"](args)
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    for lr in (0.02, 0.04):  # the first replaces a packed record, the second a run folder
        choose(**{"tangent.lr": lr}, **small)
        assert config in script["runs_to_do"](args)
        do_runs(script, [config], args)
        assert json.loads((folder / "result.json").read_text())["settings"]["tangent"]["lr"] == lr
        assert config not in script["runs_to_do"](args)


def test_recorded_trials_are_not_repeated(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (choice,) = script["main"].__globals__["CHOICES"]
    runner = script["choice_runner"](choice)
    script["make_choice"](runner, InProcessBackend())
    (specialist_run,) = (tmp_path / "results" / "validation").glob("seq-*")
    trials_file = specialist_run / "tries-itl-500.json"
    trials, record = json.loads(trials_file.read_text()), tmp_path / "records.jsonl"
    capsys.readouterr()
    for recorded, lines in ((trials["tries"], ["choice itl-500"]), (trials["tries"][:-1], [specialist_run.name] * 2)):
        shutil.rmtree(specialist_run / "specialists")
        trials_file.write_text(json.dumps({**trials, "tries": recorded}))  # with and without those of the last task
        record.unlink()
        script["make_choice"](runner, InProcessBackend())
        printed = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
        assert printed[: len(lines)] == lines
        assert len(recorded_choices(record)["itl-500"]["from"][specialist_run.name]) == len(trials["tries"])
        (specialist_run / "specialists").mkdir(exist_ok=True)


def test_choices_are_made_only_for_selected_runs(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    todo = script["runs_to_do"](script["parse"](["--only", "er,b", "--device", "cpu"]))
    assert len(todo) == 3 + 3
    done: list[Config] = []
    monkeypatch.setitem(script["main"].__globals__, "run_all", lambda configs, *_: done.extend(configs))
    do_runs(script, todo, script["parse"]([]))
    assert done == todo


def test_every_run_of_the_paper_is_listed_once_the_most_valuable_first(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cifar10.py", "--list"])
    script["main"]()
    first, *commands = capsys.readouterr().out.splitlines()
    every = script["configs"]()
    assert first == f"{len(every)} runs to do"
    assert commands == [config.command for config in every]
    every = SCRIPT_NAMES["configs"]()
    assert len({config.name for config in every}) == len(every)
    assert [(c.method, c.buffer, c.seed) for c in every[:6]] == [
        (m, 200, s) for m in ("itl", "itl-na") for s in (0, 1, 2)
    ]
    published_results = {(row.method.lower(), row.buffer) for row in published() if row.stream == "seq-cifar10"}
    assert {
        (c.method, c.buffer) for c in every if not c.variant and c.method in SCRIPT_NAMES["ITL"]
    } <= published_results


def test_every_candidate_has_valid_settings() -> None:
    for choice in SCRIPT_NAMES["CHOICES"]:
        for config in choice.configs():
            for settings in ({}, *choice.generalists):
                settings_for(config.method, config.stream, config.buffer, {**config.settings, **settings})
        assert len({json.dumps(settings, sort_keys=True) for settings in choice.generalists}) == len(choice.generalists)
