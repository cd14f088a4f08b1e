"""`benchmarks/cifar10.py`: the paper's runs in order of value, after the choices they wait for, within a time."""

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
from itl.results.published import published
from support.tiny import tiny_stream

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "benchmarks" / "cifar10.py"
SCRIPT_NAMES = runpy.run_path(str(SCRIPT))
Choice, Job = SCRIPT_NAMES["Choice"], SCRIPT_NAMES["Job"]
Board, crowded = (SCRIPT_NAMES["work_off"].__globals__[name] for name in ("Board", "crowded"))
redo, best = (SCRIPT_NAMES["Choosing"].choose.__globals__[name] for name in ("redo", "best"))


# --------------------------------------------------------------------------------------------------------------- jobs


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def work_off(jobs: Sequence[Any], until: float = float("inf")) -> tuple[Any, list[str]]:
    """All of them by one worker, every job taking ten seconds; the board, and what was said."""
    clock, said = Clock(), []

    def lasting(job: Any) -> Callable[[], str]:
        def work() -> str:
            clock.now += 10
            return str(job.work())

        return work

    board = Board([Job(j.name, lasting(j), j.kind, j.guess, j.needs) for j in jobs], until, clock)
    board.worker(said.append)
    return board, said


def names(said: Sequence[str]) -> list[str]:
    return [line.split("s  ")[1].split(":")[0] for line in said]


def test_a_job_waits_for_what_it_needs_and_others_go_before_it() -> None:
    jobs = [
        Job("run", str, needs=("choice",)),
        Job("choice", str, needs=("kept",)),
        Job("other", str),
        Job("kept", str),
    ]
    board, said = work_off(jobs)
    assert names(said) == ["other", "kept", "choice", "run"]
    assert board.done == {"run", "choice", "other", "kept"}


def test_a_job_that_fails_takes_only_those_with_it_that_need_it() -> None:
    def fail() -> str:
        raise ValueError("not finite")

    jobs = [Job("kept", fail), Job("choice", str, needs=("kept",)), Job("run", str, needs=("choice",)), Job("er", str)]
    board, said = work_off(jobs)
    assert said[0].strip() == "10 s  kept: failed: ValueError: not finite (10 s)"
    assert names(said) == ["kept", "er"]
    assert board.lost == {"kept", "choice", "run"}


def test_nothing_is_begun_that_would_end_too_late() -> None:
    """A guess of 2 seconds is corrected by the first of its kind, which takes 10; the short kind still fits in."""
    long = [Job(f"long {i}", str, "long", 2.0) for i in range(5)]
    board, said = work_off([*long, Job("short", str, "short", 1.0)], until=29.0)
    assert names(said) == ["long 0", "long 1", "short"]
    assert [job.name for job in board.open] == ["long 2", "long 3", "long 4"]


def test_at_the_end_fewer_are_begun_which_are_faster_then() -> None:
    """Four take 14 seconds each, two 8: with 9 left, two more are begun, and no third."""
    clock = Clock()
    board = Board([Job(f"run {i}", str, guess=14.0) for i in range(9)], 23.0, clock, crowded)
    first = [board.take() for _ in range(4)]
    clock.now += 14
    for job in first:
        board.ends(job, well=True)
    assert [board.take().name for _ in range(2)] == ["run 4", "run 5"]
    assert not any(map(board._ready, board.open))


def test_nothing_is_begun_that_would_make_another_late() -> None:
    """Alone the long one ends after 5 of 10 seconds; beside another, however short, after 8, beside two after 11."""
    clock = Clock()
    board = Board(
        [Job("long", str, "long", 14.0), *(Job(f"short {i}", str, "short", 1.0) for i in range(3))],
        10.0,
        clock,
        crowded,
    )
    assert [board.take().name for _ in range(2)] == ["long", "short 0"]
    assert not any(map(board._ready, board.open))
    clock.now += 4  # half of it is done
    board._note()
    assert all(map(board._ready, board.open))


def test_several_workers_share_the_jobs_and_wait_for_one_another() -> None:
    order: list[str] = []
    kept = [Job(f"kept {i}", lambda i=i: order.append(f"kept {i}") or "", "run") for i in range(5)]
    last = Job("choice", lambda: order.append("choice") or "", needs=tuple(job.name for job in kept))
    board = Board([last, *kept])
    with ThreadPoolExecutor(3) as threads:
        for future in [threads.submit(board.worker, lambda line: None) for _ in range(3)]:
            future.result(timeout=20)
    assert sorted(order[:5]) == [f"kept {i}" for i in range(5)]
    assert order[5:] == ["choice"]


def test_what_takes_no_time_is_done_when_that_is_over() -> None:
    clock = Clock()
    board = Board([Job("choice", str, guess=1.0, late=True), Job("run", str, guess=1.0)], 10.0, clock)
    clock.now += 11
    first = board.take()
    assert first.name == "choice"
    board.ends(first, well=True)
    assert board.take() is None


# ------------------------------------------------------------------------------------------------------------ choices


def fake_try(task: int, settings: dict[str, Any], scores: dict[tuple[int, float], float | None]) -> dict[str, Any]:
    value = scores[task, settings["tangent.lr"]]
    if value is None:
        return {"task": task, "settings": settings, "error": "not finite"}
    return {"task": task, "settings": settings, "stages": {"expert": {"class_il": value, "task_il": 0.0}}}


def test_who_falls_behind_is_tried_no_more_and_the_best_mean_is_chosen() -> None:
    rates = (0.1, 0.05, 0.03, 0.01)
    choice = Choice(("itl",), 500, {"a": {"specialist.lr": 0.1}}, [{"tangent.lr": lr} for lr in rates], {})
    scores: dict[tuple[int, float], float | None] = {(5, 0.1): 70.0, (5, 0.05): 72.0, (5, 0.03): None, (5, 0.01): 68.9}
    scores |= {(1, 0.1): 99.0, (1, 0.05): 96.5, (3, 0.1): 80.0, (3, 0.05): 81.0}
    found = list(redo(choice, lambda task, settings: fake_try(task, settings, scores)))
    assert [len(tries) for tries in found] == [4, 6, 8]
    run = choice.configs()[0].name
    chosen = best(choice, {run: found[-1]})
    assert chosen["settings"] == {"specialist.lr": 0.1, "tangent.lr": 0.05}
    assert chosen["score"] == pytest.approx((72.0 + 96.5 + 81.0) / 3)
    with pytest.raises(ValueError, match="no generalist of itl-500 was finite"):
        best(choice, {run: found[0]})


@pytest.mark.parametrize("path", sorted((HOME / "benchmarks" / "results").glob("cifar10-choice-*.json")), ids=str)
def test_what_was_chosen_is_the_default(path: Path) -> None:
    title = path.stem.removeprefix("cifar10-choice-")
    name, _, buffer = title.rpartition("-")
    made = {choice.name: choice for choice in SCRIPT_NAMES["CHOICES"]}
    if title in made and made[title].variant:
        return  # no default: past the paper
    chosen = json.loads(path.read_text())["chosen"]["settings"]
    for method in made[title].methods if title in made else (name, f"{name}-na"):
        assert settings_for(method, "seq-cifar10", int(buffer), chosen) == settings_for(
            method, "seq-cifar10", int(buffer)
        )


# ----------------------------------------------------------------------------------------------------------- the plan


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's functions on a stand-in for Seq-CIFAR-10 (8x8, two steps a stage), in a folder of their own."""
    stand_in = tiny_stream(classes=10, tasks=5, each=8, channels=3, name="seq-cifar10", policy="cifar10")
    monkeypatch.setattr(Config, "load_stream", lambda self, data: stand_in)
    names = runpy.run_path(str(SCRIPT))
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    wild = {"tangent.lr": 100.0, "projection.lr": 100.0, "projection.reduction": "sum", "projection.steps": 30}
    choice = Choice(("itl", "itl-na"), 500, {"small": small}, [{"tangent.lr": 0.01}, wild], {})  # the second diverges
    mine = {"RESULTS": tmp_path / "results", "RECORDS": tmp_path / "records", "CHOICES": (choice,)}
    for name, value in mine.items():
        monkeypatch.setitem(names["main"].__globals__, name, value)
    (tmp_path / "records").mkdir()
    return names


def test_settings_are_chosen_first_and_their_runs_follow(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl,itl-na", "--buffers", "500", "--device", "cpu"])
    todo = script["asked_for"](args)[1:4:2]  # itl, seed 1; itl-na, seed 0
    plan = script["plan_of"](todo, "test", "", "cpu")
    kept = "seq-cifar10-itl-small-500-validation-seed0"
    titles = [kept, "tries itl-500 small", "choice itl-500", *(config.name for config in todo)]
    assert list(plan.jobs) == titles
    board = script["work_off"](list(plan.jobs.values()), 1, "cpu")
    assert board.done == set(titles)
    record = json.loads((tmp_path / "records" / "cifar10-choice-itl-500.json").read_text())
    assert record["chosen"]["settings"]["tangent.lr"] == 0.01
    tries = record["from"][kept]
    assert [(one["task"], "error" in one) for one in tries] == [(5, False), (5, True), (1, False), (3, False)]
    results = [json.loads((script["place"](config) / "result.json").read_text()) for config in todo]
    assert [(r["method"], r["seed"]) for r in results] == [("itl", 1), ("itl-na", 0)]
    assert all(r["settings"]["tangent"]["lr"] == 0.01 and r["settings"]["specialist"]["steps"] == 2 for r in results)
    assert all("--set tangent.lr=0.01" in r["command"] for r in results)
    left = script["asked_for"](args)
    assert not {c.name for c in left} & set(titles)
    assert all(job.needs == () for job in script["plan_of"](left, "test", "", "cpu").jobs.values())  # it is chosen


def test_a_run_is_made_again_when_something_else_is_chosen_for_it(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl", "--buffers", "500", "--device", "cpu"])
    config = script["asked_for"](args)[0]
    path, record = script["place"](config) / "result.json", tmp_path / "records" / "cifar10-choice-itl-500.json"

    def choose(lr: float) -> None:
        record.write_text(json.dumps({"chosen": {"settings": {"tangent.lr": lr}}}))

    def write(lr: float) -> None:
        settings = settings_for("itl", "seq-cifar10", 500, {"tangent.lr": lr}).model_dump(mode="json")
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"method": "itl", "variant": None, "buffer": 500, "seed": config.seed, "split": "test"}
        path.write_text(json.dumps({**about, "settings": settings}))

    write(0.03)
    assert config in script["asked_for"](args)  # nothing is chosen yet
    choose(0.03)
    assert config not in script["asked_for"](args)
    job = script["plan_of"]([config], "test", "", "cpu").jobs[config.name]
    assert job.work() == "is recorded with the settings chosen"
    choose(0.02)
    assert config in script["asked_for"](args)
    small = {"net.name": "resnet8", "net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    record.write_text(json.dumps({"chosen": {"settings": {"tangent.lr": 0.02, **small}}}))
    assert job.work().startswith("Class-IL")
    assert json.loads(path.read_text())["settings"]["tangent"]["lr"] == 0.02
    assert config not in script["asked_for"](args)


def test_tries_that_are_kept_are_not_made_again(script: dict[str, Any], tmp_path: Path) -> None:
    args = script["parse"](["--only", "itl", "--buffers", "500", "--device", "cpu"])
    todo = script["asked_for"](args)[:1]
    before = list(script["plan_of"](todo, "test", "", "cpu").jobs.values())
    script["work_off"](before[:2], 1, "cpu")  # the run and its tries; no time for the choice
    (kept,) = (tmp_path / "results" / "validation").iterdir()
    shutil.rmtree(kept / "specialists")
    jobs = script["plan_of"](todo, "test", "", "cpu").jobs
    assert list(jobs) == ["choice itl-500", todo[0].name]
    assert script["work_off"](list(jobs.values())[:1], 1, "cpu").done == {"choice itl-500"}
    tries = json.loads((kept / "tries-itl-500.json").read_text())
    record = tmp_path / "records" / "cifar10-choice-itl-500.json"
    assert json.loads(record.read_text())["from"][kept.name] == tries["tries"]
    tries["tries"].pop()  # the last task's
    (kept / "tries-itl-500.json").write_text(json.dumps(tries))
    record.unlink()
    assert next(iter(script["plan_of"](todo, "test", "", "cpu").jobs)) == kept.name


def test_a_choice_is_made_for_the_runs_asked_for_alone(script: dict[str, Any]) -> None:
    args = script["parse"](["--only", "er,b", "--device", "cpu"])
    jobs = script["plan_of"](script["asked_for"](args), "test", "", "cpu").jobs
    assert [job.name for job in jobs.values() if job.needs or "validation" in job.name] == []
    assert len(jobs) == 3 + 3


def test_what_must_begin_soon_begins_first(script: dict[str, Any]) -> None:
    todo = script["asked_for"](script["parse"](["--only", "b,joint,agem", "--device", "cpu"]))
    usual = list(script["plan_of"](todo, "test", "", "cpu").jobs)
    soon = list(script["plan_of"](todo, "test", "", "cpu", ["joint"]).jobs)
    joint = "seq-cifar10-joint-200-seed0"
    assert usual.index(joint) > 0
    assert soon == [joint, *(name for name in usual if name != joint)]


def test_the_list_is_in_the_order_of_the_runs(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cifar10.py", "--list", "--only", "b,joint", "--first", "joint"])
    script["main"]()
    _, *lines = capsys.readouterr().out.splitlines()
    assert ["--method joint" in line for line in lines] == [True, False, False, False]


def test_the_papers_runs_are_listed_once_each_with_the_most_valuable_first() -> None:
    words = [sys.executable, str(SCRIPT), "--list"]
    first, *commands = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert first == f"{len(commands)} runs to do"
    assert len(set(commands)) == len(commands)
    every = SCRIPT_NAMES["configs"]()
    assert len({config.name for config in every}) == len(every)
    assert [(c.method, c.buffer, c.seed) for c in every[:6]] == [
        (m, 200, s) for m in ("itl", "itl-na") for s in (0, 1, 2)
    ]
    asked = {(row.method.lower(), row.buffer) for row in published() if row.stream == "seq-cifar10"}
    assert {(c.method, c.buffer) for c in every if not c.variant and c.method in SCRIPT_NAMES["ITL"]} <= asked


def test_every_candidate_is_a_choice_of_settings_that_there_are() -> None:
    for choice in SCRIPT_NAMES["CHOICES"]:
        for config in choice.configs():
            for settings in ({}, *choice.generalists):
                settings_for(config.method, config.stream, config.buffer, {**config.settings, **settings})
        assert len({json.dumps(settings, sort_keys=True) for settings in choice.generalists}) == len(choice.generalists)
