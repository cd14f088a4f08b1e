"""Searches run and score trials, survive a kill without losing or repeating any, and can be shared by processes."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from support.cli_process import StartedProcess
from support.tiny_sweeps import BASE, RecordingRunner

pytest.importorskip("optuna")
from optuna import Study
from optuna.trial import TrialState

from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.run import run
from itl.experiments.search import plots, study
from itl.experiments.search.jobs import JobContext
from itl.experiments.search.space import Dimension, Space
from itl.experiments.search.trials import LatestValueMedianPruner, TrialJob

CONFIG = replace(BASE, method="b", split="validation", tasks=2)
SPACE = Space([Dimension("specialist.lr", None, 0.001, 0.2, True), Dimension("specialist.momentum", [0.0, 0.9])])


def plan(**changes) -> study.SearchPlan:
    return replace(study.SearchPlan(CONFIG, SPACE, trials=4, prune=False), **changes)


def search(out: Path, given_plan: study.SearchPlan):
    trials = study.open_search(given_plan, out)
    RecordingRunner(trials, out).run()
    return trials


def summary(trials) -> list:
    return [(trial.number, trial.params, trial.value, trial.state) for trial in trials.study.get_trials()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Finished search of four trials."""
    return search(tmp_path_factory.mktemp("search") / "whole", plan())


def test_search_runs_the_given_number_of_trials_with_the_defaults_first(finished):
    states = [state for *_, state in summary(finished)]
    assert states == [TrialState.COMPLETE] * 4
    assert summary(finished)[0][1] == {"specialist.lr": 0.015, "specialist.momentum": 0.9}
    assert all(SPACE.dimensions[0].contains(params["specialist.lr"]) for _, params, *_ in summary(finished))
    assert list(finished.out.rglob("model")) == []  # the models of finished trials are deleted


def test_trial_equals_a_run_of_its_settings_on_the_validation_split(finished, tmp_path):
    _, params, value, _ = summary(finished)[2]
    config = replace(CONFIG, settings={**CONFIG.settings, **params})
    assert run(config, config.load_stream("data"), tmp_path / "alone", device="cpu")["class_il"] == value
    for path in finished.out.rglob("config.json"):
        assert json.loads(path.read_text())["split"] == "validation"


def test_search_refuses_a_plan_that_would_use_test_images(tmp_path):
    with pytest.raises(UserError, match="validation images only"):
        study.open_search(plan(config=replace(CONFIG, split="test")), tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_search_refuses_specialists_that_were_trained_on_the_validation_images(tmp_path):
    runs = (save_specialist(tmp_path / "a"), save_specialist(tmp_path / "b", seed=1, split="test"))
    space = Space([Dimension("tangent.lr", [0.01, 0.2])])
    wrong = plan(config=replace(CONFIG, method="itl"), space=space, specialist_runs=runs)
    with pytest.raises(UserError, match=r"b was trained on the validation images too.*--split validation"):
        study.open_search(wrong, tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_search_loads_no_test_images_before_the_final_choice(tmp_path, monkeypatch):
    """A stream of the split "validation" consists of training images only; every other split has test images."""
    splits = []
    load_stream = Config.load_stream

    def recording_load(config, *args, **options):
        splits.append(config.split)
        return load_stream(config, *args, **options)

    monkeypatch.setattr(Config, "load_stream", recording_load)
    trials = search(tmp_path / "search", plan(trials=2))
    study.write_best(trials)
    assert set(splits) == {"validation"}
    assert [config.split for config in study.final_configs(trials, [0, 1])] == ["test", "test"]


def test_best_settings_are_written_as_a_run_on_the_test_split(finished):
    config = json.loads(study.write_best(finished).read_text())
    found = study.best_trial(finished)
    assert found["value"] == max(value for *_, value, _ in summary(finished))
    assert config["settings"] == {**CONFIG.settings, **found["settings"]}
    assert (config["split"], config["method"]) == ("test", "b")


def test_plots_show_history_and_importance(finished):
    assert [path.name for path in plots.draw(finished)] == ["history.png", "importance.png"]
    assert sum(plots.importances(finished).values()) == pytest.approx(1)


def test_interrupted_search_continues_with_the_same_trials(finished, tmp_path):
    """Interrupt trial 2 after its first task and release its lock, as if the process had been killed."""

    class Interrupt(Callback):
        def on_stage_start(self, learner, stage):
            if len(learner.tasks) == 2:
                raise KeyboardInterrupt

    trials = study.open_search(plan(), tmp_path / "cut")
    for _ in range(2):
        job, lock = trials.claim()
        with lock:
            trials.finish(
                job,
                job.run(
                    JobContext(trials.out, RecordingRunner(trials, trials.out).streams, [], "cpu", trials.reporter(job))
                ),
            )
    job, lock = trials.claim()
    streams = RecordingRunner(trials, trials.out).streams
    with lock, pytest.raises(KeyboardInterrupt):
        job.run(JobContext(trials.out, streams, [Interrupt()], "cpu", trials.reporter(job)))
    opened = (trials.out / job.folder / "seed0" / "config.json").stat().st_mtime_ns
    assert trials.study.get_trials()[2].state is TrialState.RUNNING
    assert summary(search(trials.out, plan())) == summary(finished)
    assert (trials.out / job.folder / "seed0" / "config.json").stat().st_mtime_ns == opened  # the run was resumed


def test_two_processes_never_claim_the_same_trial(tmp_path):
    first, second = (study.open_search(plan(trials=3), tmp_path / "both") for _ in range(2))
    claimed = [trials.claim() for trials in (first, second, first, second)]
    assert [claim and claim[0].number for claim in claimed] == [0, 1, 2, None]
    claimed[1][1].release()  # as if its process had died
    assert first.claim()[0] == claimed[1][0]


def test_searches_started_at_the_same_time_share_one_study(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: study.open_search(plan(), tmp_path / "both"), range(4)))
    assert [len(trials.study.get_trials()) for trials in opened] == [1] * 4  # the default settings, once


def test_trials_of_other_processes_are_reported(finished, tmp_path):
    assert study.describe_running_trials(finished) == ""
    first, second = (study.open_search(plan(trials=2), tmp_path / "both") for _ in range(2))
    (lock, _), (theirs, _) = first.claim(), second.claim()
    with pytest.raises(UserError, match=r"No trial is complete yet\. 2 trials are being run by another process"):
        study.best_config(first)
    first.finish(lock, {"state": "complete", "class_il": 50.0, "values": [50.0]})
    assert study.describe_running_trials(first) == "1 trial is"
    second.finish(theirs, {"state": "complete", "class_il": 60.0, "values": [60.0]})
    assert (study.describe_running_trials(first), study.best_trial(first)["number"]) == ("", 1)


def test_search_may_get_more_trials_but_no_other_change(finished):
    with pytest.raises(UserError, match="different sampler"):
        study.open_search(plan(sampler="random"), finished.out)
    with pytest.raises(UserError, match="different space"):
        study.open_search(plan(space=Space(SPACE.dimensions[:1])), finished.out)
    assert study.open_search(plan(trials=9), finished.out).claim() is not None


def test_grid_sampler_tries_every_point_once(tmp_path):
    space = Space([Dimension("specialist.lr", [0.1, 0.01]), Dimension("specialist.momentum", [0.0, 0.9])])
    trials = study.open_search(plan(space=space, sampler="grid", trials=100), tmp_path / "grid")
    points = []
    while (claimed := trials.claim()) is not None:
        points.append(tuple(claimed[0].settings.values()))
        trials.finish(claimed[0], {"state": "complete", "class_il": 1.0, "values": [1.0]})
        claimed[1].release()
    assert sorted(points) == [(0.01, 0.0), (0.01, 0.9), (0.1, 0.0), (0.1, 0.9)]


GRID = Space([Dimension("specialist.lr", [0.1, 0.1000001]), Dimension("tangent.layers", [1, 2, None])])


def queued(trials) -> list:
    return [tuple(trial.system_attrs["fixed_params"].values()) for trial in trials.study.get_trials()]


def test_grid_killed_while_enqueuing_is_enqueued_completely(tmp_path, monkeypatch):
    given_plan = plan(space=GRID, sampler="grid", trials=6)
    enqueue = Study.enqueue_trial

    def killed(study, point):
        if len(study.get_trials()) == 4:
            raise KeyboardInterrupt
        enqueue(study, point)

    monkeypatch.setattr(Study, "enqueue_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        study.open_search(given_plan, tmp_path / "grid")
    monkeypatch.undo()
    finished = [tuple(point.values()) for point in GRID.points()]
    assert queued(study.open_search(given_plan, tmp_path / "grid")) == finished


def test_grid_points_are_enqueued_once_whatever_their_state(tmp_path):
    given_plan = plan(space=GRID, sampler="grid", trials=6)
    trials = study.open_search(given_plan, tmp_path / "grid")
    done, bad, pruned, running = (trials.claim() for _ in range(4))
    trials.finish(done[0], {"state": "complete", "class_il": 1.0, "values": [1.0]})
    trials.fail(bad[0].name, "its process ended")
    trials.finish(pruned[0], {"state": "pruned"})
    trials.study.ask()  # its process was killed before it had its values
    states = [trial.state.name for trial in study.open_search(given_plan, trials.out).study.get_trials()]
    assert states == ["COMPLETE", "FAIL", "PRUNED", "RUNNING", "RUNNING", "WAITING"]
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: study.open_search(given_plan, tmp_path / "both"), range(4)))
    assert [len(queued(search)) for search in opened] == [6] * 4
    running[1].release()


def test_trial_below_the_median_after_a_task_is_pruned(tmp_path):
    trials = study.open_search(plan(prune=True, trials=9), tmp_path / "prune")
    for value in (50.0, 60.0, 70.0, 80.0, 90.0):
        job, lock = trials.claim()
        for step in (1, 2):
            assert not trials.reporter(job)(step, value)
        trials.finish(job, {"state": "complete", "class_il": value, "values": [value]})
        lock.release()
    job, lock = trials.claim()
    assert not trials.reporter(job)(1, 1.0)  # nothing can be forgotten after one task
    assert not trials.reporter(job)(2, 70.0)
    assert not trials.reporter(job)(3, 1.0)  # no trial has reported a third task
    lock.release()
    job, lock = trials.claim()  # the same trial again
    assert job.number == 5
    trials.finish(job, {"state": "pruned"})
    lock.release()
    job, lock = trials.claim()
    assert trials.reporter(job)(2, 69.0)
    assert trials.reporter(job)(2, 69.0)  # a resumed run repeats its lines: same answer, reported once
    assert isinstance(trials.study.pruner, LatestValueMedianPruner)
    assert trials.study.get_trials()[6].intermediate_values == {2: 69.0}


def test_pruned_trial_stops_after_the_reported_task(tmp_path):
    job = TrialJob(0, [CONFIG])
    steps = []

    def report(step: int, value: float) -> bool:
        steps.append(step)
        return True

    context = JobContext(tmp_path, RecordingRunner(None, tmp_path).streams, [], "cpu", report)
    assert job.run(context) == {"state": "pruned"}
    assert steps == [1]
    assert not (tmp_path / job.folder / "seed0" / "result.json").exists()


def test_diverging_trial_is_pruned_and_the_search_continues(tmp_path):
    config = replace(CONFIG, settings={**CONFIG.settings, "specialist.steps": 30, "specialist.weight_decay": 1.0})
    space = Space([Dimension("specialist.lr", [100.0, 0.001])])
    trials = search(tmp_path / "search", plan(config=config, space=space, sampler="grid", trials=2))
    states = {trial.params["specialist.lr"]: trial.state for trial in trials.study.get_trials()}
    assert states == {100.0: TrialState.PRUNED, 0.001: TrialState.COMPLETE}
    assert study.best_trial(trials)["settings"] == {"specialist.lr": 0.001}


def test_search_from_saved_specialists_trains_only_generalists(tmp_path):
    config = replace(CONFIG, method="itl", keep_specialists=True)
    run(config, config.load_stream("data"), tmp_path / "kept", device="cpu")
    space = Space([Dimension("tangent.lr", [0.01, 0.2])])
    given_plan = plan(config=config, space=space, sampler="grid", trials=2, specialist_runs=(str(tmp_path / "kept"),))
    trials = search(tmp_path / "search", given_plan)
    assert [state for *_, state in summary(trials)] == [TrialState.COMPLETE] * 2
    assert not (trials.out / "trials").exists()  # no specialist was trained
    result = json.loads((tmp_path / "kept" / "result.json").read_text())
    own = {trial.params["tangent.lr"]: trial.value for trial in trials.study.get_trials()}[0.01]
    assert own == pytest.approx(sum(stages["expert"]["class_il"] for stages in result["stages"]) / 2)  # equals the run
    with pytest.raises(UserError, match=r"specialist\.lr"):
        study.check_plan(replace(given_plan, space=Space([Dimension("specialist.lr", [0.1])])))


def save_specialist(folder: Path, **changes) -> str:
    """Write the files of a run with a saved specialist, without running it."""
    (folder / "specialists" / "task-01").mkdir(parents=True)
    (folder / "specialists" / "task-01" / "CURRENT").touch()
    config = replace(CONFIG, method="itl", keep_specialists=True)
    (folder / "config.json").write_text(json.dumps({**vars(config), **changes}))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "itl-l"}, r'method \("itl", "itl-l"\)'),
        ({"buffer": 50}, r"buffer \(20, 50\)"),
        ({"tasks": 3, "order_seed": 1}, r"tasks \(2, 3\), order_seed \(null, 1\)"),
        ({"settings": {**CONFIG.settings, "specialist.lr": 0.5}}, r"specialist\.lr \(0\.\d+, 0\.5\)"),
    ],
)
def test_specialist_runs_that_differ_in_more_than_their_seed_are_refused(tmp_path, changes, words):
    runs = (
        save_specialist(tmp_path / "a"),
        save_specialist(tmp_path / "b", seed=1),
        save_specialist(tmp_path / "c", seed=2, **changes),
    )
    given_plan = plan(config=replace(CONFIG, method="itl"), space=Space([Dimension("tangent.lr", [0.01, 0.2])]))
    study.check_plan(replace(given_plan, specialist_runs=runs[:2]))
    with pytest.raises(UserError, match=rf"a and \S+c differ in {words}\. .*only in their seed\.$"):
        study.check_plan(replace(given_plan, specialist_runs=runs))


def test_specialist_runs_may_state_the_same_settings_differently(tmp_path):
    own = {**CONFIG.settings, "tangent.momentum": 0.9}  # the method's default
    runs = (save_specialist(tmp_path / "a"), save_specialist(tmp_path / "b", seed=1, curves=None, settings=own))
    space = Space([Dimension("tangent.lr", [0.01, 0.2])])
    study.check_plan(plan(config=replace(CONFIG, method="itl"), space=space, specialist_runs=runs))


def test_test_images_are_used_for_one_choice_of_settings_only(finished, tmp_path):
    (config,) = study.final_configs(finished, [0])
    assert (config.split, config.seed) == ("test", 0)
    place = finished.out / "final" / config.name
    place.mkdir(parents=True)
    other = {**vars(config), "settings": {"specialist.lr": 0.5}}
    (place / "config.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match="already used the test images"):
        study.final_configs(finished, [1])


@pytest.mark.slow
def test_search_killed_repeatedly_equals_an_uninterrupted_search(fork_server, tmp_path):
    words = (
        "search --method b --tasks 2 --set net.width=2 --set specialist.steps=40 --over specialist.lr=0.001..0.2:log"
    )
    words += " --trials 4 --device cpu --workers 1 --threads 1 --quiet --out"

    def begin(out: str) -> StartedProcess:
        return fork_server.start([*words.split(), out], tmp_path, env={"ITL_SAVE_EVERY": "0"}, new_session=True)

    done = begin("whole").wait()
    assert done.code == 0, done.err
    kills = 0
    for number in (0, 1, 2):  # as soon as something of this trial is saved
        process = begin("killed")
        saved = tmp_path / "killed/trials" / f"trial-{number:04d}" / "seed0/model/CURRENT"
        while not process.has_ended() and not saved.exists():
            time.sleep(0.02)
        if not process.has_ended():
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2
    done = begin("killed").wait()
    assert done.code == 0, done.err
    from itl.experiments.search.trials import open_study

    both = [
        [
            (t.number, t.params, t.value, t.state, t.intermediate_values)
            for t in open_study(tmp_path / name).get_trials()
        ]
        for name in ("whole", "killed")
    ]
    assert len(both[0]) == 4
    assert both[0] == both[1]
