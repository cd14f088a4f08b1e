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
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.sweep_jobs import FAILED_FILE, SweepJobs
from itl.experiments.search.time_limit import TimeLimit
from support.cli_process import ForkedWorker
from support.tiny_sweeps import BASE, RecordingRunner, fingerprint, grid

pytest.importorskip("psutil")
from itl.experiments.search import local_backend, resources
from itl.experiments.search.sweep import cells_in_other_processes, load_progress, sweep
from itl.experiments.search.worker import EXIT_JOB_DONE

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


# ------------------------------------------------------------------------------------------------------ dead processes


class Process:
    pid, returncode = 0, None


class FakePool(local_backend._WorkerPool):
    """Pool on a GPU with four concurrent runs, whose processes and events are simulated."""

    def __init__(self, out):
        super().__init__({**SweepJobs(out, CONFIGS).spec, "runs_per_gpu": 4}, ["cuda:0"], ProgressTracker())
        self._start(self.unused_devices.pop())

    def tell(self, kind, *names):
        for name in names:
            self._handle_event(self.workers[0], {"kind": kind, "job": name})

    def end(self, code):
        self.workers[0].process.returncode = code
        self._handle_exit(self.workers[0])

    @property
    def runs_per_gpu(self):
        return self.workers[0].spec["runs_per_gpu"]

    def names(self, state):
        return [entry.name for entry in self.tracker.in_state(state)]


@pytest.fixture
def pool(monkeypatch, tmp_path):
    class Worker:
        def __init__(self, spec, device, tell):
            self.spec, self.device, self.running, self.process = spec, device, set(), Process()

    monkeypatch.setattr(local_backend, "_WorkerProcess", Worker)
    return FakePool(tmp_path)


A, B, C = (config.name for config in CONFIGS)


def test_running_job_of_a_dead_process_is_repeated(pool):
    pool.tell("started", A, B)
    pool.tell("done", B)
    pool.end(-9)
    assert (pool.names("waits"), pool.names("done")) == ([A], [B])
    assert len(pool.workers) == 1


def test_job_stopped_by_the_time_limit_is_not_blamed_for_a_dead_process(pool):
    pool.tell("started", A, B)
    pool.tell("requeued", A)
    pool.end(-9)
    assert pool.deaths == {B: 1}
    assert pool.names("waits") == [A, B]


def test_only_a_job_that_kills_its_process_alone_fails(pool):
    pool.tell("started", A, B, C)
    pool.end(-11)
    assert pool.names("waits") == [A, B, C]
    pool.tell("started", B)
    pool.tell("done", B)
    pool.end(EXIT_JOB_DONE)
    for _ in range(2):
        assert (pool.runs_per_gpu, pool.workers[0].spec["once"]) == (1, True)
        pool.tell("started", A)
        pool.end(-11)
    assert (pool.names("failed"), pool.names("waits"), pool.names("done")) == ([A], [C], [B])
    assert "3 times with signal 11" in pool.source.state(CONFIGS[0])["error"]
    assert pool.source.state(CONFIGS[2]) is None
    pool.tell("started", C)
    pool.tell("done", C)
    pool.end(EXIT_JOB_DONE)
    assert pool.runs_per_gpu == 4  # no job is suspected any more


def test_job_does_not_fail_for_deaths_it_shares_with_others(pool):
    for _ in range(local_backend.MAX_ATTEMPTS + 1):  # on as many GPUs
        pool.tell("started", A, B)
        pool.end(-9)
    assert pool.names("waits") == [A, B]
    pool.tell("started", A)
    pool.end(-9)
    assert (pool.names("failed"), pool.names("waits")) == ([A], [B])


def test_process_that_dies_without_a_job_ends_the_sweep(pool):
    with pytest.raises(UserError, match="before it started a job"):
        pool.end(1)


# ---------------------------------------------------------------------------------------------------------- resources


def test_processes_and_threads_never_exceed_the_cores(monkeypatch):
    monkeypatch.setattr(resources, "available_cores", lambda: 8)
    assert resources.plan_processes(None, None, 100) == (8, 1)
    assert resources.plan_processes(None, 4, 100) == (2, 4)
    assert resources.plan_processes(2, None, 100) == (2, 4)
    assert resources.plan_processes(None, None, 3) == (3, 1)
    for workers, threads in ((9, None), (3, 4), (None, 9)):
        with pytest.raises(UserError, match="8 cores"):
            resources.plan_processes(workers, threads, 100)


def test_number_of_processes_is_limited_by_memory(monkeypatch, tmp_path):
    started_devices = []

    class Worker:
        process = type("P", (), {"pid": 0})()

        def __init__(self, spec, device, tell):
            self.running = set()
            started_devices.append(device)

    monkeypatch.setattr(local_backend, "_WorkerProcess", Worker)
    monkeypatch.setattr(local_backend, "free_memory", lambda: 10 << 30)
    monkeypatch.setattr(local_backend, "resident_memory", lambda pid: 2 << 30)
    pool = local_backend._WorkerPool({**SweepJobs(tmp_path, CONFIGS).spec}, ["cpu"] * 8, ProgressTracker())
    pool._start(pool.unused_devices.pop())
    pool._handle_event(pool.workers[0], {"kind": "measured", "bytes": 2 << 30})
    assert len(started_devices) == 1 + 4  # 2 GiB each in nine tenths of 10 GiB
    monkeypatch.setattr(
        local_backend, "resident_memory", lambda pid: 0
    )  # the started processes have not grown yet: five of them will need 10 GiB
    pool._handle_event(pool.workers[0], {"kind": "done", "job": "x"})
    assert len(started_devices) == 5


def test_free_memory_respects_the_container_limit(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    assert resources.free_memory() == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.free_memory() > 600


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
