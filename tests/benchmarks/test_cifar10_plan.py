"""`benchmarks/cifar10.py`: order of the paper's runs, the choices they need, and the time limit."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from itl.experiments.config import Config
from itl.presets import settings_for
from itl.results import RunFolder, pack
from itl.results.published import published
from support.run_records import fake_run
from support.tiny import tiny_stream

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "benchmarks" / "cifar10.py"
SCRIPT_NAMES = runpy.run_path(str(SCRIPT))
Choice, Job = SCRIPT_NAMES["Choice"], SCRIPT_NAMES["Job"]
JobQueue = SCRIPT_NAMES["run_jobs"].__globals__["JobQueue"]
try_generalists, best_settings, score = (
    SCRIPT_NAMES["ChoiceRunner"].choose.__globals__[name] for name in ("try_generalists", "best_settings", "score")
)


# --------------------------------------------------------------------------------------------------------------- jobs


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_by_one_worker(jobs: Sequence[Any], time_limit: float = float("inf")) -> tuple[Any, list[str]]:
    """Do all jobs in one thread, each taking ten seconds; returns the queue and the log."""
    clock, log = Clock(), []

    def timed(job: Any) -> Callable[[], str]:
        def work() -> str:
            clock.now += 10
            return str(job.work())

        return work

    queue = JobQueue([Job(j.name, timed(j), j.kind, j.estimate, j.needs) for j in jobs], time_limit, clock)
    queue.work(log.append)
    return queue, log


def names(log: Sequence[str]) -> list[str]:
    """The names of the jobs in a log."""
    return [line.split("s  ")[1].split(":")[0] for line in log]


def test_job_waits_for_its_dependencies_while_others_run() -> None:
    jobs = [
        Job("run", str, needs=("choice",)),
        Job("choice", str, needs=("specialists",)),
        Job("other", str),
        Job("specialists", str),
    ]
    queue, log = run_by_one_worker(jobs)
    assert names(log) == ["other", "specialists", "choice", "run"]
    assert queue.done == {"run", "choice", "other", "specialists"}


def test_failed_job_stops_only_the_jobs_that_need_it() -> None:
    def fail() -> str:
        raise ValueError("not finite")

    jobs = [Job("a", fail), Job("choice", str, needs=("a",)), Job("run", str, needs=("choice",)), Job("er", str)]
    queue, log = run_by_one_worker(jobs)
    assert log[0].strip() == "10 s  a: failed: ValueError: not finite (10 s)"
    assert names(log) == ["a", "er"]
    assert queue.failed == {"a", "choice", "run"}


def test_job_that_would_end_after_the_time_limit_is_not_started() -> None:
    """The first job of its kind takes 10 seconds, not the estimated 2; the short kind still fits."""
    long = [Job(f"long {i}", str, "long", 2.0) for i in range(5)]
    queue, log = run_by_one_worker([*long, Job("short", str, "short", 1.0)], time_limit=29.0)
    assert names(log) == ["long 0", "long 1", "short"]
    assert [job.name for job in queue.waiting] == ["long 2", "long 3", "long 4"]


def test_several_workers_share_the_jobs_and_wait_for_dependencies() -> None:
    order: list[str] = []
    first = [Job(f"first {i}", lambda i=i: order.append(f"first {i}") or "", "run") for i in range(5)]
    last = Job("choice", lambda: order.append("choice") or "", needs=tuple(job.name for job in first))
    queue = JobQueue([last, *first])
    with ThreadPoolExecutor(3) as threads:
        for future in [threads.submit(queue.work, lambda line: None) for _ in range(3)]:
            future.result(timeout=20)
    assert sorted(order[:5]) == [f"first {i}" for i in range(5)]
    assert order[5:] == ["choice"]


def test_instant_job_is_started_after_the_time_limit() -> None:
    clock = Clock()
    queue = JobQueue([Job("choice", str, estimate=1.0, instant=True), Job("run", str, estimate=1.0)], 10.0, clock)
    clock.now += 11
    first = queue.take()
    assert first.name == "choice"
    queue.finish(first, 0.0, succeeded=True)
    assert queue.take() is None


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


@pytest.mark.parametrize("path", sorted((HOME / "benchmarks" / "results" / "choices").glob("itl*.json")), ids=str)
def test_chosen_settings_are_the_defaults(path: Path) -> None:
    title = path.stem
    name, _, buffer = title.rpartition("-")
    choices = {choice.name: choice for choice in SCRIPT_NAMES["CHOICES"]}
    if title in choices and choices[title].variant:
        return  # a variant beyond the paper, not a default
    chosen = json.loads(path.read_text())["chosen"]["settings"]
    for method in choices[title].methods if title in choices else (name, f"{name}-na"):
        assert settings_for(method, "seq-cifar10", int(buffer), chosen) == settings_for(
            method, "seq-cifar10", int(buffer)
        )


# ----------------------------------------------------------------------------------------------------------- the plan


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's functions on a stand-in for Seq-CIFAR-10 (8x8, two steps per stage), writing below `tmp_path`."""
    stand_in = tiny_stream(classes=10, tasks=5, each=8, channels=3, name="seq-cifar10", policy="cifar10")
    monkeypatch.setattr(Config, "load_stream", lambda self, data: stand_in)
    names = runpy.run_path(str(SCRIPT))
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    wild = {"tangent.lr": 100.0, "projection.lr": 100.0, "projection.reduction": "sum", "projection.steps": 30}
    choice = Choice(("itl", "itl-na"), 500, {"small": small}, [{"tangent.lr": 0.01}, wild], {})  # the second diverges
    replacements = {"RESULTS": tmp_path / "results", "CHOICE_RECORDS": tmp_path / "records", "CHOICES": (choice,)}
    for name, value in replacements.items():
        monkeypatch.setitem(names["main"].__globals__, name, value)
    (tmp_path / "records").mkdir()
    return names


def test_settings_are_chosen_before_the_runs_that_use_them(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl,itl-na", "--buffers", "500", "--device", "cpu"])
    todo = script["runs_to_do"](args)[1:4:2]  # itl, seed 1; itl-na, seed 0
    plan = script["plan_for"](todo, "test", "", "cpu")
    specialist_run = "seq-cifar10-itl-small-500-validation-seed0"
    titles = [specialist_run, "tries itl-500 small", "choice itl-500", *(config.name for config in todo)]
    assert list(plan.jobs) == titles
    queue = script["run_jobs"](list(plan.jobs.values()), 1, "cpu")
    assert queue.done == set(titles)
    record = json.loads((tmp_path / "records" / "itl-500.json").read_text())
    assert record["chosen"]["settings"]["tangent.lr"] == 0.01
    trials = record["from"][specialist_run]
    assert [(trial["task"], "error" in trial) for trial in trials] == [(5, False), (5, True), (1, False), (3, False)]
    results = [json.loads((script["folder_of"](config) / "result.json").read_text()) for config in todo]
    assert [(r["method"], r["seed"]) for r in results] == [("itl", 1), ("itl-na", 0)]
    assert all(r["settings"]["tangent"]["lr"] == 0.01 and r["settings"]["specialist"]["steps"] == 2 for r in results)
    assert all("--set tangent.lr=0.01" in r["command"] for r in results)
    left = script["runs_to_do"](args)
    assert not {c.name for c in left} & set(titles)
    assert all(
        job.needs == () for job in script["plan_for"](left, "test", "", "cpu").jobs.values()
    )  # the settings are chosen


def test_run_is_repeated_when_other_settings_are_chosen_for_it(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl", "--buffers", "500", "--device", "cpu"])
    config = script["runs_to_do"](args)[0]
    path, record = script["folder_of"](config) / "result.json", tmp_path / "records" / "itl-500.json"

    def choose(lr: float) -> None:
        record.write_text(json.dumps({"chosen": {"settings": {"tangent.lr": lr}}}))

    def write(lr: float) -> None:
        settings = settings_for("itl", "seq-cifar10", 500, {"tangent.lr": lr}).model_dump(mode="json")
        folder = RunFolder(fake_run(path.parent, method="itl", buffer=500, seed=config.seed))
        folder.write("result.json", {**folder.read("result.json"), "settings": settings})
        (path.parent / "pictures.npz").unlink(missing_ok=True)

    write(0.03)
    assert config in script["runs_to_do"](args)  # nothing is chosen yet
    choose(0.03)
    assert config not in script["runs_to_do"](args)
    pack(path.parent.parent)  # the same for a packed record
    assert config not in script["runs_to_do"](args)
    job = script["plan_for"]([config], "test", "", "cpu").jobs[config.name]
    assert job.work() == "already recorded with the chosen settings"
    choose(0.02)
    assert config in script["runs_to_do"](args)
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    record.write_text(json.dumps({"chosen": {"settings": {"tangent.lr": 0.02, **small}}}))
    assert job.work().startswith("Class-IL")
    assert json.loads(path.read_text())["settings"]["tangent"]["lr"] == 0.02
    assert config not in script["runs_to_do"](args)


def test_recorded_trials_are_not_repeated(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl", "--buffers", "500", "--device", "cpu"])
    todo = script["runs_to_do"](args)[:1]
    before = list(script["plan_for"](todo, "test", "", "cpu").jobs.values())
    script["run_jobs"](before[:2], 1, "cpu")  # the run and its trials, without the choice
    (specialist_run,) = (tmp_path / "results" / "validation").iterdir()
    shutil.rmtree(specialist_run / "specialists")
    jobs = script["plan_for"](todo, "test", "", "cpu").jobs
    assert list(jobs) == ["choice itl-500", todo[0].name]
    assert script["run_jobs"](list(jobs.values())[:1], 1, "cpu").done == {"choice itl-500"}
    trials = json.loads((specialist_run / "tries-itl-500.json").read_text())
    record = tmp_path / "records" / "itl-500.json"
    assert json.loads(record.read_text())["from"][specialist_run.name] == trials["tries"]
    trials["tries"].pop()  # that of the last task
    (specialist_run / "tries-itl-500.json").write_text(json.dumps(trials))
    record.unlink()
    assert next(iter(script["plan_for"](todo, "test", "", "cpu").jobs)) == specialist_run.name


def test_choices_are_made_only_for_selected_runs(script: dict[str, Any]) -> None:
    args = script["parse"](["--only", "er,b", "--device", "cpu"])
    jobs = script["plan_for"](script["runs_to_do"](args), "test", "", "cpu").jobs
    assert [job.name for job in jobs.values() if job.needs or "validation" in job.name] == []
    assert len(jobs) == 3 + 3


def test_methods_given_as_first_come_first(script: dict[str, Any]) -> None:
    todo = script["runs_to_do"](script["parse"](["--only", "b,joint,agem", "--device", "cpu"]))
    usual = list(script["plan_for"](todo, "test", "", "cpu").jobs)
    joint_first = list(script["plan_for"](todo, "test", "", "cpu", ["joint"]).jobs)
    joint = "seq-cifar10-joint-200-seed0"
    assert usual.index(joint) > 0
    assert joint_first == [joint, *(name for name in usual if name != joint)]


def test_list_is_in_the_order_of_the_runs(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cifar10.py", "--list", "--only", "b,joint", "--first", "joint"])
    script["main"]()
    _, *lines = capsys.readouterr().out.splitlines()
    assert ["--method joint" in line for line in lines] == [True, False, False, False]


def test_every_run_of_the_paper_is_listed_once_the_most_valuable_first() -> None:
    command = [sys.executable, str(SCRIPT), "--list"]
    first, *commands = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert first == f"{len(commands)} runs to do"
    assert len(set(commands)) == len(commands)
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
