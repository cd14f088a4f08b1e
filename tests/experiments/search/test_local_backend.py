"""The local backend repeats the runs of processes that die, and plans processes by cores and memory."""

from __future__ import annotations

import pytest

from itl.errors import UserError
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.sweep_jobs import SweepJobs
from support.tiny_sweeps import grid

pytest.importorskip("psutil")
from itl.experiments.search import local_backend, resources
from itl.experiments.search.worker import EXIT_JOB_DONE

CONFIGS = [*grid(0, 1), *grid(0, method="er")]


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
