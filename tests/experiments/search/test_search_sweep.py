"""Sweeps run each cell once: finished cells are skipped, interrupted ones resumed, failures do not stop the others."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from itl.atomic import write_text_atomic
from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.experiments.run import run
from itl.experiments.search.job_locks import acquire_job_lock
from itl.experiments.search.sweep_jobs import FAILED_FILE, SweepJobs
from itl.experiments.search.time_limit import TimeLimit
from support.cli_process import ForkedWorker
from support.tiny_sweeps import BASE, RecordingRunner, fingerprint, grid

pytest.importorskip("psutil")
from itl.experiments.search import local_backend, resources
from itl.experiments.search.sweep import cells_in_other_processes, load_progress, sweep

CONFIGS = [*grid(0, 1), *grid(0, method="er")]


class InterruptSecondTask(Callback):
    """Interrupts a run in its second task."""

    def on_stage_start(self, learner, stage):
        if len(learner.tasks) == 2:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Folder of a finished sweep; tests must not change it."""
    out = tmp_path_factory.mktemp("sweep")
    runner = RecordingRunner(SweepJobs(out, CONFIGS), out)
    runner.run()
    assert runner.names("done") == [config.name for config in CONFIGS]
    return out


def test_cell_equals_a_run_of_its_configuration(done, tmp_path):
    run(CONFIGS[1], CONFIGS[1].load_stream("data"), tmp_path / "alone", device="cpu")
    assert fingerprint(tmp_path / "alone") == fingerprint(done / CONFIGS[1].name)


def test_finished_cells_are_skipped(done):
    runner = RecordingRunner(SweepJobs(done, CONFIGS), done)
    runner.run()
    assert runner.recorded_events == []
    assert len(load_progress(SweepJobs(done, CONFIGS)).in_state("done")) == len(CONFIGS)


def test_interrupted_cell_resumes_to_the_same_result(done, tmp_path):
    first = CONFIGS[0]
    with pytest.raises(KeyboardInterrupt):
        run(first, first.load_stream("data"), tmp_path / first.name, device="cpu", callbacks=[InterruptSecondTask()])
    before = (tmp_path / first.name / "config.json").stat().st_mtime_ns
    RecordingRunner(SweepJobs(tmp_path, [first]), tmp_path).run()
    assert (tmp_path / first.name / "config.json").stat().st_mtime_ns == before  # the run was resumed
    assert fingerprint(tmp_path / first.name) == fingerprint(done / first.name)


def test_failed_cell_is_recorded_and_does_not_stop_the_others(tmp_path):
    bad = replace(BASE, buffer=1)  # too small for four classes
    cells = SweepJobs(tmp_path, [bad, CONFIGS[2]])
    runner = RecordingRunner(cells, tmp_path)
    runner.run()
    assert runner.names("failed") == [bad.name]
    assert runner.names("done") == [CONFIGS[2].name]
    assert "buffer of 1" in cells.state(bad)["error"]
    cells.prepare()  # the next sweep repeats it
    assert not (tmp_path / bad.name / FAILED_FILE).exists()
    assert cells.claim()[0].name == bad.name


def test_cell_is_claimed_only_once(tmp_path):
    cells = SweepJobs(tmp_path, CONFIGS)
    taken = [cells.claim() for _ in range(4)]
    assert [claim and claim[0].name for claim in taken] == [*(config.name for config in CONFIGS), None]
    assert cells_in_other_processes(cells) == [config.name for config in CONFIGS]
    taken[1][1].release()
    assert cells.claim()[0].name == CONFIGS[1].name


def test_job_lock_is_released_when_its_process_ends(tmp_path):
    child = os.fork()
    if child == 0:
        acquire_job_lock(tmp_path, "cell")
        os._exit(0)
    os.waitpid(child, 0)
    assert acquire_job_lock(tmp_path, "cell") is not None


@pytest.fixture
def failing_writes(monkeypatch):
    """Make writes of files fail: `failing_writes(folder, error, *names)`."""

    def install(folder, error, *names):
        def write(path, text):
            if path.parent == folder and path.name in names:
                raise error
            write_text_atomic(path, text)

        monkeypatch.setattr("itl.results.record.write_text_atomic", write)

    return install


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_full_disk_ends_the_sweep_and_keeps_finished_cells(done, tmp_path, name, failing_writes):
    shutil.copytree(done / CONFIGS[0].name, tmp_path / CONFIGS[0].name)
    (tmp_path / CONFIGS[1].name).mkdir()
    failing_writes(tmp_path / CONFIGS[1].name, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), name)
    runner = RecordingRunner(SweepJobs(tmp_path, CONFIGS), tmp_path)
    runner.run()
    assert "No space left on device" in runner.disk_full
    assert runner.names("done") == runner.names("failed") == []
    assert fingerprint(tmp_path / CONFIGS[0].name) == fingerprint(done / CONFIGS[0].name)


def test_folder_with_another_run_is_refused_before_the_sweep(done):
    other = replace(CONFIGS[0], settings={**CONFIGS[0].settings, "tangent.lr": 0.5})
    with pytest.raises(UserError, match="other options"):
        load_progress(SweepJobs(done, [other]))  # also if all cells are finished


def test_output_path_that_is_a_file_is_refused_before_the_sweep(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write to .*file/out"):
        SweepJobs(tmp_path / "file" / "out", CONFIGS).prepare()
    (tmp_path / CONFIGS[1].name).touch()
    with pytest.raises(UserError, match="is a file"):
        load_progress(SweepJobs(tmp_path, CONFIGS))


def test_failed_cell_with_an_unwritable_folder_is_not_repeated(tmp_path, failing_writes):
    error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    failing_writes(tmp_path / CONFIGS[0].name, error, "config.json", FAILED_FILE)
    runner = RecordingRunner(SweepJobs(tmp_path, [CONFIGS[0], CONFIGS[2]]), tmp_path)
    runner.run()
    assert runner.names("failed") == [CONFIGS[0].name]
    assert runner.names("done") == [CONFIGS[2].name]


def test_invalid_result_file_is_refused(tmp_path):
    place = tmp_path / CONFIGS[0].name
    place.mkdir()
    (place / FAILED_FILE).write_text("[]")
    assert len(load_progress(SweepJobs(tmp_path, CONFIGS)).in_state("failed")) == 1
    for text in ("{}", "[]"):
        (place / "result.json").write_text(text)
        with pytest.raises(UserError, match=r"result\.json is not the result of a run"):
            load_progress(SweepJobs(tmp_path, CONFIGS))


def test_concurrent_runs_wait_until_the_memory_of_the_first_is_known(tmp_path):
    runner = RecordingRunner(SweepJobs(tmp_path, CONFIGS[2:]), tmp_path, runs_per_gpu=3)
    runner.run()
    kinds = [event["kind"] for event in runner.recorded_events]
    assert kinds.count("measured") == 1
    assert kinds.index("started") < kinds.index("measured") < kinds.index("done")
    assert runner.recorded_events[kinds.index("measured")]["bytes"] > 50 << 20  # torch alone is more


def test_worker_with_once_runs_a_single_job(done, tmp_path):
    shutil.copytree(done / CONFIGS[0].name, tmp_path / CONFIGS[0].name)
    for config in CONFIGS[1:]:
        runner = RecordingRunner(SweepJobs(tmp_path, CONFIGS), tmp_path, once=True)
        runner.run()
        assert (runner.names("done"), runner.job_done) == ([config.name], True)
    runner = RecordingRunner(SweepJobs(tmp_path, CONFIGS), tmp_path, once=True)
    runner.run()
    assert (runner.recorded_events, runner.job_done) == ([], False)


# ---------------------------------------------------------------------------------------------------------- time limit


class Ticks:
    """A clock that advances by one second whenever it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def test_sweep_stopped_by_its_time_limit_continues_to_the_same_results(done, tmp_path):
    cells, sessions, stopped = SweepJobs(tmp_path, CONFIGS), 0, []
    while len(load_progress(cells).in_state("done")) < len(CONFIGS):
        runner = RecordingRunner(cells, tmp_path, time_limit=TimeLimit(6.0, Ticks()))  # two rounds
        runner.run()
        sessions, stopped = sessions + 1, [*stopped, *runner.names("requeued")]
        assert runner.names("failed") == []
        assert sessions < 20
    assert sessions > 3
    assert set(stopped) == {config.name for config in CONFIGS}  # each was stopped at least once
    for config in CONFIGS:
        assert fingerprint(tmp_path / config.name) == fingerprint(done / config.name)


def test_time_limit_leaves_room_for_the_longest_round_of_any_run():
    now = [0.0]
    limit = TimeLimit(80.0, lambda: now[0])
    first, second = limit.start_run(), limit.start_run()
    now[0] = 10.0
    assert not first()
    now[0] = 12.0
    assert not second()
    now[0] = 20.0
    assert not first()
    assert limit.longest_round == 12.0
    now[0] = 60.0
    assert not limit.reached()
    now[0] = 62.5  # 1.5 rounds of 12 s no longer fit
    assert limit.reached()


def test_no_job_is_started_after_the_time_limit(tmp_path):
    runner = RecordingRunner(SweepJobs(tmp_path, CONFIGS), tmp_path, time_limit=TimeLimit(0.0))
    runner.run()
    assert runner.recorded_events == []
    assert not TimeLimit(None).reached()


# ----------------------------------------------------------------------------------------------------- real processes


def sweep_in_processes(configs, workers, done, out):
    """Run a sweep in worker processes; its results must be those in `done`."""
    cells = SweepJobs(out, configs)
    tracker = load_progress(cells)
    sweep(cells, local_backend.LocalBackend(workers=workers, threads=1, device="cpu"), tracker)
    assert len(tracker.in_state("done")) == len(configs)
    for config in configs:
        mine = fingerprint(cells.out / config.name)
        assert mine == fingerprint(done / config.name)
        assert mine["result"]["hardware"]["threads"] == 1


def test_new_process_gives_the_same_results_and_records_its_threads(done, tmp_path):
    sweep_in_processes(CONFIGS[2:], 1, done, tmp_path)


def test_two_processes_give_the_same_results(done, tmp_path, monkeypatch):
    """The processes are forks, because two new ones would import torch for seconds each."""
    started = []

    def popen(*args, **options):
        started.append(ForkedWorker(*args, **options))
        return started[-1]

    monkeypatch.setattr(local_backend, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    monkeypatch.setattr(local_backend, "free_memory", lambda: 1 << 40)
    workers = 2 if resources.available_cores() > 1 else 1
    sweep_in_processes(CONFIGS, workers, done, tmp_path)
    assert len(started) == workers
