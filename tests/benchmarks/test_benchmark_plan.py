"""`benchmarks/plan.py` with the plans of both streams of the paper: order of the runs, and the choices they need."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
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
sys.path.insert(0, str(HOME))

from benchmarks.candidates import SGD  # noqa: E402
from benchmarks.choices import Choice, best_settings, recorded_choices, score, try_generalists  # noqa: E402
from benchmarks.plan import Plan, make_choices, parse  # noqa: E402

from benchmarks import cifar10, plan, tinyimagenet  # noqa: E402

PLANS = (cifar10.PLAN, tinyimagenet.PLAN)
RECORDED = recorded_choices(cifar10.PLAN.choice_records)
FIRST_SEARCHES = {"itl-l-500": ("itl-l",), "itl-l-na-500": ("itl-l-na",)}  # methods; others: NAME and NAME-na


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
    choices = {choice.name: choice for plan in PLANS for choice in plan.choices}
    name, _, buffer = title.rpartition("-")
    methods = FIRST_SEARCHES.get(title, (name, f"{name}-na"))
    choice = choices.get(title) or Choice(methods, int(buffer), {}, [], {})
    cell = Config(choice.stream, choice.methods[0], choice.buffer)
    later = [c for c in choices.values() if c.search and c.name in RECORDED and c is not choice and c.covers(cell)]
    if choice.variant or later:
        return  # a variant beyond the paper, or replaced by a later search: not a default
    chosen = RECORDED[title]["chosen"]["settings"]
    for method in choice.methods:
        assert settings_for(method, choice.stream, choice.buffer, chosen) == settings_for(
            method, choice.stream, choice.buffer
        )


def test_every_cell_has_at_most_one_choice() -> None:
    for each in PLANS:
        for config in each.configs("test"):
            assert sum(choice.covers(config) for choice in each.choices) <= 1, config.name


# ----------------------------------------------------------------------------------------------------------- the plan


@pytest.fixture
def small_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of Seq-CIFAR-10 on a stand-in (8x8, two steps per stage), with one choice, writing below `tmp_path`."""
    stand_in = tiny_stream(classes=10, tasks=5, each=8, channels=3, name="seq-cifar10", policy="cifar10")
    monkeypatch.setattr(Config, "load_stream", lambda self, data, download=False: stand_in)
    steps = {"specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    small = {"net.name": "resnet8", "net.width": 4, **SGD, **steps}
    wild = {"tangent.lr": 100.0, "projection.lr": 100.0, "projection.reduction": "sum", "projection.steps": 30}
    choice = Choice(("itl", "itl-na"), 500, {"small": small}, [{"tangent.lr": 0.01}, wild], {})  # the second diverges
    return Plan("seq-cifar10", cifar10.configs, (choice,), tmp_path / "results", tmp_path / "records.jsonl")


def test_settings_are_chosen_before_the_runs_that_use_them(
    small_plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = parse(["--only", "itl,itl-na", "--buffers", "500", "--device", "cpu"])
    todo = small_plan.runs_to_do(args)[1:4:2]  # itl, seed 1; itl-na, seed 0
    specialist_run = "seq-cifar10-itl-small-500-validation-seed0"
    small_plan.do_runs(todo, args, InProcessBackend())
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
    assert not {c.name for c in small_plan.runs_to_do(args)} & {c.name for c in todo}


def test_run_is_repeated_when_other_settings_are_chosen_for_it(small_plan: Plan, tmp_path: Path) -> None:
    args = parse(["--only", "itl", "--buffers", "500", "--device", "cpu"])
    config = small_plan.runs_to_do(args)[0]
    folder, record = tmp_path / "results" / "test" / config.name, tmp_path / "records.jsonl"

    def choose(**settings: Any) -> None:
        record.write_text(json.dumps({"name": "itl-500", "chosen": {"settings": settings}}))

    settings = settings_for("itl", "seq-cifar10", 500, {"tangent.lr": 0.03}).model_dump(mode="json")
    run = RunFolder(fake_run(folder, method="itl", buffer=500, seed=config.seed))
    run.write("result.json", {**run.read("result.json"), "settings": settings})
    (folder / "pictures.npz").unlink(missing_ok=True)
    assert config in small_plan.runs_to_do(args)  # nothing is chosen yet
    choose(**{"tangent.lr": 0.03})
    assert config not in small_plan.runs_to_do(args)
    pack(folder.parent)  # the same for a packed record
    assert config not in small_plan.runs_to_do(args)
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    for lr in (0.02, 0.04):  # the first replaces a packed record, the second a run folder
        choose(**{"tangent.lr": lr}, **small)
        assert config in small_plan.runs_to_do(args)
        small_plan.do_runs([config], args, InProcessBackend())
        assert json.loads((folder / "result.json").read_text())["settings"]["tangent"]["lr"] == lr
        assert config not in small_plan.runs_to_do(args)


def test_recorded_run_is_not_repeated_if_a_later_search_chooses_its_settings(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_plan.choices = (replace(small_plan.choices[0], search="solved"),)
    args = parse(["--only", "itl", "--buffers", "500", "--seeds", "0", "--device", "cpu"])
    folder = fake_run(tmp_path / "results" / "test" / "seq-cifar10-itl-500-seed0", method="itl", buffer=500, seed=0)
    result = RunFolder(folder).read("result.json")
    settings = settings_for("itl", "seq-cifar10", 500, {"tangent.lr": 0.03}).model_dump(mode="json")
    RunFolder(folder).write("result.json", {**result, "settings": settings})
    (config,) = small_plan.runs_to_do(args)  # its settings are to be chosen again

    def choose(*_: Any) -> None:
        line = {"name": "itl-500-solved", "chosen": {"settings": {"tangent.lr": 0.03}}}
        small_plan.choice_records.write_text(json.dumps(line))

    monkeypatch.setattr(plan, "make_choices", choose)
    small_plan.do_runs([config], args, InProcessBackend())
    assert RunFolder(folder).read("result.json")["settings"] == settings
    assert not small_plan.runs_to_do(args)


def test_recorded_trials_are_not_repeated(small_plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = small_plan.runner(small_plan.choices[0])
    make_choices([runner], InProcessBackend())
    (specialist_run,) = (tmp_path / "results" / "validation").glob("seq-*")
    trials_file = specialist_run / "tries-itl-500.json"
    trials, record = json.loads(trials_file.read_text()), tmp_path / "records.jsonl"
    capsys.readouterr()
    for recorded, lines in ((trials["tries"], ["choice itl-500"]), (trials["tries"][:-1], [specialist_run.name] * 2)):
        shutil.rmtree(specialist_run / "specialists")
        trials_file.write_text(json.dumps({**trials, "tries": recorded}))  # with and without those of the last task
        record.unlink()
        make_choices([runner], InProcessBackend())
        printed = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
        assert printed[: len(lines)] == lines
        assert len(recorded_choices(record)["itl-500"]["from"][specialist_run.name]) == len(trials["tries"])
        (specialist_run / "specialists").mkdir(exist_ok=True)


def test_choices_are_made_only_for_selected_runs(small_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = small_plan.runs_to_do(parse(["--only", "er,b", "--device", "cpu"]))
    assert len(todo) == 3 + 5  # seeds of b, and of er: three at 200 images, one at 500 and 5,120
    assert [config.seed for config in small_plan.runs_to_do(parse(["--only", "b", "--seeds", "2"]))] == [2]
    done: list[Config] = []
    monkeypatch.setattr(plan, "run_all", lambda configs, *_: done.extend(configs))
    small_plan.do_runs(todo, parse([]), InProcessBackend())
    assert done == todo


def test_every_run_of_the_paper_is_listed_once_the_most_valuable_first(
    small_plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    small_plan.main(["--list"])
    first, *commands = capsys.readouterr().out.splitlines()
    every = cifar10.configs()
    assert first == f"{len(every)} runs to do"
    assert commands == [config.command for config in every]
    assert [(c.method, c.buffer, c.seed) for c in every[:6]] == [
        (m, 200, s) for m in ("itl", "itl-na") for s in (0, 1, 2)
    ]
    assert [(c.method, c.buffer) for c in tinyimagenet.configs()[:6]] == [
        (m, size) for m in ("itl", "itl-na") for size in (200, 500, 5120)
    ]


@pytest.mark.parametrize("of_paper", PLANS, ids=lambda plan: plan.stream)
def test_plan_has_every_published_cell_of_itl_once(of_paper: Plan) -> None:
    every = of_paper.configs("test")
    assert len({config.name for config in every}) == len(every)
    cells = {(c.method, c.buffer) for c in every if not c.variant}
    assert cells >= {
        (row.method, row.buffer)
        for row in published()
        if row.stream == of_paper.stream and row.method.startswith("itl")
    }


@pytest.mark.parametrize("of_paper", PLANS, ids=lambda plan: plan.stream)
def test_every_candidate_has_valid_settings(of_paper: Plan) -> None:
    for choice in of_paper.choices:
        for config in choice.configs():
            for settings in ({}, *choice.generalists):
                settings_for(config.method, config.stream, config.buffer, {**config.settings, **settings})
        assert len({json.dumps(settings, sort_keys=True) for settings in choice.generalists}) == len(choice.generalists)
