"""A search draws, runs and judges trials; nothing is lost or repeated when it is killed, and several may share it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from support.tiny_sweeps import BASE, RecordingRunner

pytest.importorskip("optuna")
from optuna import Study
from optuna.trial import TrialState

from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.experiments.run import run
from itl.experiments.search import plots, study
from itl.experiments.search.space import Dimension, Space
from itl.experiments.search.trials import LatestValueMedianPruner, TrialJob

CONFIG = replace(BASE, method="b", split="validation", tasks=2)
SPACE = Space([Dimension("specialist.lr", None, 0.001, 0.2, True), Dimension("specialist.momentum", [0.0, 0.9])])


def plan(**changes) -> study.SearchPlan:
    return replace(study.SearchPlan(CONFIG, SPACE, trials=4, prune=False), **changes)


def search(out: Path, asked: study.SearchPlan):
    trials = study.open_search(asked, out)
    RecordingRunner(trials, out).run()
    return trials


def drawn(trials) -> list:
    return [(trial.number, trial.params, trial.value, trial.state) for trial in trials.study.get_trials()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished search of four trials."""
    return search(tmp_path_factory.mktemp("search") / "whole", plan())


def test_a_search_makes_as_many_trials_as_asked_the_methods_own_settings_first(whole):
    states = [state for *_, state in drawn(whole)]
    assert states == [TrialState.COMPLETE] * 4
    assert drawn(whole)[0][1] == {"specialist.lr": 0.015, "specialist.momentum": 0.9}
    assert all(SPACE.dimensions[0].contains(params["specialist.lr"]) for _, params, *_ in drawn(whole))
    assert list(whole.out.rglob("model")) == []  # nobody goes on with a finished trial


def test_a_trial_is_the_run_of_its_settings_on_the_validation_split(whole, tmp_path):
    _, params, value, _ = drawn(whole)[2]
    config = replace(CONFIG, settings={**CONFIG.settings, **params})
    assert run(config, config.load_stream("data"), tmp_path / "alone", device="cpu")["class_il"] == value
    for path in whole.out.rglob("config.json"):
        assert json.loads(path.read_text())["split"] == "validation"


def test_the_best_setting_is_written_as_a_run_on_the_test_split(whole):
    config = json.loads(study.write_best(whole).read_text())
    found = study.best_trial(whole)
    assert found["value"] == max(value for *_, value, _ in drawn(whole))
    assert config["settings"] == {**CONFIG.settings, **found["settings"]}
    assert (config["split"], config["method"]) == ("test", "b")


def test_history_and_importance_are_drawn(whole):
    assert [path.name for path in plots.draw(whole)] == ["history.png", "importance.png"]
    assert sum(plots.importances(whole).values()) == pytest.approx(1)


def test_a_search_that_is_cut_goes_on_to_the_same_trials(whole, tmp_path):
    """The cut is in trial 2, after its first task: a kill as the process would see it, its lock released."""

    class Cut(Callback):
        def on_stage_start(self, learner, stage):
            if len(learner.tasks) == 2:
                raise KeyboardInterrupt

    trials = study.open_search(plan(), tmp_path / "cut")
    for _ in range(2):
        job, lock = trials.claim()
        with lock:
            trials.finish(
                job, job.run(trials.out, RecordingRunner(trials, trials.out).streams, [], "cpu", trials.reporter(job))
            )
    job, lock = trials.claim()
    streams = RecordingRunner(trials, trials.out).streams
    with lock, pytest.raises(KeyboardInterrupt):
        job.run(trials.out, streams, [Cut()], "cpu", trials.reporter(job))
    begun = (trials.out / job.folder / "seed0" / "config.json").stat().st_mtime_ns
    assert trials.study.get_trials()[2].state is TrialState.RUNNING
    assert drawn(search(trials.out, plan())) == drawn(whole)
    assert (trials.out / job.folder / "seed0" / "config.json").stat().st_mtime_ns == begun  # it was gone on with


def test_two_processes_never_take_the_same_trial(tmp_path):
    one, two = (study.open_search(plan(trials=3), tmp_path / "both") for _ in range(2))
    taken = [trials.claim() for trials in (one, two, one, two)]
    assert [piece and piece[0].number for piece in taken] == [0, 1, 2, None]
    taken[1][1].release()  # its process died
    assert one.claim()[0] == taken[1][0]


def test_searches_begun_at_the_same_instant_make_one_study(tmp_path):
    with ThreadPoolExecutor(4) as together:
        begun = list(together.map(lambda _: study.open_search(plan(), tmp_path / "both"), range(4)))
    assert [len(trials.study.get_trials()) for trials in begun] == [1] * 4  # the method's own settings, once


def test_what_another_process_still_runs_is_known(whole, tmp_path):
    assert study.describe_running_trials(whole) == ""
    one, two = (study.open_search(plan(trials=2), tmp_path / "both") for _ in range(2))
    (lock, _), (theirs, _) = one.claim(), two.claim()
    with pytest.raises(UserError, match=r"No trial is complete yet\. 2 trials are being run by another process"):
        study.best_config(one)
    one.finish(lock, {"state": "complete", "class_il": 50.0, "values": [50.0]})
    assert study.describe_running_trials(one) == "1 trial is"
    two.finish(theirs, {"state": "complete", "class_il": 60.0, "values": [60.0]})
    assert (study.describe_running_trials(one), study.best_trial(one)["number"]) == ("", 1)


def test_more_trials_may_be_asked_for_but_nothing_else_changed(whole):
    with pytest.raises(UserError, match="different sampler"):
        study.open_search(plan(sampler="random"), whole.out)
    with pytest.raises(UserError, match="different space"):
        study.open_search(plan(space=Space(SPACE.dimensions[:1])), whole.out)
    assert study.open_search(plan(trials=9), whole.out).claim() is not None


def test_a_grid_is_every_point_once(tmp_path):
    space = Space([Dimension("specialist.lr", [0.1, 0.01]), Dimension("specialist.momentum", [0.0, 0.9])])
    trials = study.open_search(plan(space=space, sampler="grid", trials=100), tmp_path / "grid")
    points = []
    while (taken := trials.claim()) is not None:
        points.append(tuple(taken[0].settings.values()))
        trials.finish(taken[0], {"state": "complete", "class_il": 1.0, "values": [1.0]})
        taken[1].release()
    assert sorted(points) == [(0.01, 0.0), (0.01, 0.9), (0.1, 0.0), (0.1, 0.9)]


GRID = Space([Dimension("specialist.lr", [0.1, 0.1000001]), Dimension("tangent.layers", [1, 2, None])])


def queued(trials) -> list:
    return [tuple(trial.system_attrs["fixed_params"].values()) for trial in trials.study.get_trials()]


def test_a_grid_killed_while_it_was_queued_is_queued_to_its_end(tmp_path, monkeypatch):
    asked = plan(space=GRID, sampler="grid", trials=6)
    enqueue = Study.enqueue_trial

    def killed(study, point):
        if len(study.get_trials()) == 4:
            raise KeyboardInterrupt
        enqueue(study, point)

    monkeypatch.setattr(Study, "enqueue_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        study.open_search(asked, tmp_path / "grid")
    monkeypatch.undo()
    whole = [tuple(point.values()) for point in GRID.points()]
    assert queued(study.open_search(asked, tmp_path / "grid")) == whole


def test_a_grids_points_are_queued_once_however_far_they_are(tmp_path):
    asked = plan(space=GRID, sampler="grid", trials=6)
    trials = study.open_search(asked, tmp_path / "grid")
    done, bad, given_up, running = (trials.claim() for _ in range(4))
    trials.finish(done[0], {"state": "complete", "class_il": 1.0, "values": [1.0]})
    trials.fail(bad[0].name, "its process ended")
    trials.finish(given_up[0], {"state": "pruned"})
    trials.study.ask()  # its process was killed before it had its values
    states = [trial.state.name for trial in study.open_search(asked, trials.out).study.get_trials()]
    assert states == ["COMPLETE", "FAIL", "PRUNED", "RUNNING", "RUNNING", "WAITING"]
    with ThreadPoolExecutor(4) as together:
        begun = list(together.map(lambda _: study.open_search(asked, tmp_path / "both"), range(4)))
    assert [len(queued(one)) for one in begun] == [6] * 4
    running[1].release()


def test_a_trial_behind_the_median_after_a_task_is_given_up(tmp_path):
    trials = study.open_search(plan(prune=True, trials=9), tmp_path / "prune")
    for value in (50.0, 60.0, 70.0, 80.0, 90.0):
        job, lock = trials.claim()
        for step in (1, 2):
            assert not trials.reporter(job)(step, value)
        trials.finish(job, {"state": "complete", "class_il": value, "values": [value]})
        lock.release()
    job, lock = trials.claim()
    assert not trials.reporter(job)(1, 1.0)  # after one task nothing is forgotten yet
    assert not trials.reporter(job)(2, 70.0)
    assert not trials.reporter(job)(3, 1.0)  # nobody reported a third task
    lock.release()
    job, lock = trials.claim()  # the same, taken up again
    assert job.number == 5
    trials.finish(job, {"state": "pruned"})
    lock.release()
    job, lock = trials.claim()
    assert trials.reporter(job)(2, 69.0)
    assert trials.reporter(job)(2, 69.0)  # a resumed run repeats its lines: the same answer, no second report
    assert isinstance(trials.study.pruner, LatestValueMedianPruner)
    assert trials.study.get_trials()[6].intermediate_values == {2: 69.0}


def test_a_given_up_trial_stops_where_it_was_told_to(tmp_path):
    job = TrialJob(0, [CONFIG])
    told = []

    def report(step: int, value: float) -> bool:
        told.append(step)
        return True

    assert job.run(tmp_path, RecordingRunner(None, tmp_path).streams, [], "cpu", report) == {"state": "pruned"}
    assert told == [1]
    assert not (tmp_path / job.folder / "seed0" / "result.json").exists()


def test_settings_that_diverge_are_given_up_and_the_search_goes_on(tmp_path):
    config = replace(CONFIG, settings={**CONFIG.settings, "specialist.steps": 30, "specialist.weight_decay": 1.0})
    space = Space([Dimension("specialist.lr", [100.0, 0.001])])
    trials = search(tmp_path / "search", plan(config=config, space=space, sampler="grid", trials=2))
    states = {trial.params["specialist.lr"]: trial.state for trial in trials.study.get_trials()}
    assert states == {100.0: TrialState.PRUNED, 0.001: TrialState.COMPLETE}
    assert study.best_trial(trials)["settings"] == {"specialist.lr": 0.001}


def test_generalists_are_searched_from_kept_specialists(tmp_path):
    kept = replace(CONFIG, method="itl", keep_specialists=True)
    run(kept, kept.load_stream("data"), tmp_path / "kept", device="cpu")
    space = Space([Dimension("tangent.lr", [0.01, 0.2])])
    asked = plan(config=kept, space=space, sampler="grid", trials=2, specialist_runs=(str(tmp_path / "kept"),))
    trials = search(tmp_path / "search", asked)
    assert [state for *_, state in drawn(trials)] == [TrialState.COMPLETE] * 2
    assert not (trials.out / "trials").exists()  # no specialist was trained
    result = json.loads((tmp_path / "kept" / "result.json").read_text())
    own = {trial.params["tangent.lr"]: trial.value for trial in trials.study.get_trials()}[0.01]
    assert own == pytest.approx(sum(stages["expert"]["class_il"] for stages in result["stages"]) / 2)  # the run's own
    with pytest.raises(UserError, match=r"specialist\.lr"):
        study.check_plan(replace(asked, space=Space([Dimension("specialist.lr", [0.1])])))


def keep(place: Path, **changes) -> str:
    """The record of a run that kept a specialist, without the run."""
    (place / "specialists" / "task-01").mkdir(parents=True)
    (place / "specialists" / "task-01" / "CURRENT").touch()
    config = replace(CONFIG, method="itl", keep_specialists=True)
    (place / "config.json").write_text(json.dumps({**vars(config), **changes}))
    return str(place)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "itl-l"}, r'method \("itl", "itl-l"\)'),
        ({"buffer": 50}, r"buffer \(20, 50\)"),
        ({"tasks": 3, "order_seed": 1}, r"tasks \(2, 3\), order_seed \(null, 1\)"),
        ({"settings": {**CONFIG.settings, "specialist.lr": 0.5}}, r"specialist\.lr \(0\.\d+, 0\.5\)"),
    ],
)
def test_kept_runs_that_differ_in_more_than_their_seed_are_refused(tmp_path, changes, words):
    kept = (keep(tmp_path / "a"), keep(tmp_path / "b", seed=1), keep(tmp_path / "c", seed=2, **changes))
    asked = plan(config=replace(CONFIG, method="itl"), space=Space([Dimension("tangent.lr", [0.01, 0.2])]))
    study.check_plan(replace(asked, specialist_runs=kept[:2]))
    with pytest.raises(UserError, match=rf"a and \S+c differ in {words}\. .*only in their seed\.$"):
        study.check_plan(replace(asked, specialist_runs=kept))


def test_kept_runs_may_say_the_same_in_other_words(tmp_path):
    own = {**CONFIG.settings, "tangent.momentum": 0.9}  # the method's own
    kept = (keep(tmp_path / "a"), keep(tmp_path / "b", seed=1, curves=None, settings=own))
    space = Space([Dimension("tangent.lr", [0.01, 0.2])])
    study.check_plan(plan(config=replace(CONFIG, method="itl"), space=space, specialist_runs=kept))


def test_the_test_images_are_used_for_one_setting_only(whole, tmp_path):
    (config,) = study.final_configs(whole, [0])
    assert (config.split, config.seed) == ("test", 0)
    place = whole.out / "final" / config.name
    place.mkdir(parents=True)
    other = {**vars(config), "settings": {"specialist.lr": 0.5}}
    (place / "config.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match="already used the test images"):
        study.final_configs(whole, [1])


@pytest.mark.slow
def test_a_search_killed_again_and_again_ends_as_one_that_was_not(tmp_path):
    words = (
        "search --method b --tasks 2 --set net.width=2 --set specialist.steps=40 --over specialist.lr=0.001..0.2:log"
    )
    words += " --trials 6 --device cpu --workers 1 --quiet --out"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "ITL_SAVE_EVERY": "0"}

    def begin(out: str) -> subprocess.Popen:
        args = [sys.executable, "-m", "itl.cli", *words.split(), out]
        return subprocess.Popen(args, cwd=tmp_path, env=env, start_new_session=True, stdout=subprocess.DEVNULL)

    assert begin("whole").wait(1800) == 0
    kills = 0
    for number in (0, 2, 4):  # as soon as something of this trial is saved
        process = begin("killed")
        saved = tmp_path / "killed/trials" / f"trial-{number:04d}" / "seed0/model/CURRENT"
        while process.poll() is None and not saved.exists():
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2
    assert begin("killed").wait(1800) == 0
    from itl.experiments.search.trials import open_study

    both = [
        [
            (t.number, t.params, t.value, t.state, t.intermediate_values)
            for t in open_study(tmp_path / name).get_trials()
        ]
        for name in ("whole", "killed")
    ]
    assert len(both[0]) == 6
    assert both[0] == both[1]
