"""Sweeps on a Ray cluster of several nodes give the same results as on one machine, even if a node is killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from threading import Thread

import pytest
import torch

from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search import resources
from itl.experiments.search.file_sync import pack, unpack
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.sweep_jobs import SweepJobs
from support.packages import require
from support.tiny_sweeps import RecordingRunner, fingerprint, grid

pytest.importorskip("psutil")
from itl.experiments.search import ray_backend
from itl.experiments.search.ray_backend import RayBackend
from itl.experiments.search.sweep import load_progress, sweep

require("ray")

LONGER = {"specialist.steps": 20, "tangent.steps": 10, "projection.steps": 10}
CONFIGS = [config for method in ("er", "itl") for config in grid(0, 1, 2, method=method, settings=LONGER)]


def test_file_bundle_leaves_out_unchanged_and_hidden_files(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "model/generation-000001").mkdir(parents=True)
    (here / "model/generation-000001/tensors").write_bytes(b"one")
    (here / "model/CURRENT").write_text("generation-000001")
    (here / "model/.draft-000002").mkdir()
    (here / "model/.draft-000002/tensors").write_bytes(b"half")
    sent: dict[str, tuple[int, int]] = {}
    first = pack(here, sent)
    assert list(first["files"]) == [
        "model/generation-000001/tensors",
        "model/CURRENT",
    ]  # CURRENT declares the rest valid
    unpack(there, first)
    assert pack(here, sent)["files"] == {}
    (here / "model/generation-000001").rename(here / "model/generation-000002")
    (here / "model/CURRENT").write_text("generation-000002!")
    unpack(there, pack(here, sent))
    assert pack(there)["files"] == pack(here)["files"]
    assert [path.name for path in (there / "model").glob("gen*")] == ["generation-000002"]


def test_file_bundle_cannot_write_outside_its_folder(tmp_path):
    for name in ("../x", "/x", "a/../../x"):
        with pytest.raises(ValueError, match="outside"):
            unpack(tmp_path / "in", {"files": {name: b""}, "all": []})
    assert not (tmp_path / "x").exists()


def test_local_cluster_has_at_most_the_cores_of_this_machine(monkeypatch):
    monkeypatch.setattr(resources, "available_cores", lambda: 8)
    monkeypatch.setattr(ray_backend, "available_cores", lambda: 8)
    assert RayBackend()._local_cores() == 8
    assert RayBackend(workers=2, threads=3)._local_cores() == 6
    for too_many in ({"workers": 9}, {"workers": 4, "threads": 3}, {"threads": 9}):
        with pytest.raises(UserError, match="more than the 8 cores"):
            RayBackend(**too_many)._local_cores()


class CountingTracker(ProgressTracker):
    """Counts how often each run was started."""

    def __init__(self, configs: list[Config]) -> None:
        super().__init__(config.name for config in configs)
        self.start_counts: Counter[str] = Counter()

    def update(self, event):
        super().update(event)
        if event["kind"] == "started":
            self.start_counts[event["job"]] += 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The same runs on this machine, one after another, with one thread."""
    out = tmp_path_factory.mktemp("alone")
    RecordingRunner(SweepJobs(out, CONFIGS), out).run()
    return out


@pytest.fixture(scope="module")
def cluster():
    """Cluster of a head without cores and two nodes with one core each, all on this machine.

    It takes ten seconds to start, so the tests share it. The one that kills a node is the last of them.
    """
    from ray.cluster_utils import Cluster as Raylets

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ITL_SAVE_EVERY", "1")
        raylets = Raylets(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        nodes = [raylets.add_node(num_cpus=1) for _ in range(2)]
        yield raylets, nodes
        raylets.shutdown()


def assert_same_results(out: Path, alone: Path) -> None:
    for config in CONFIGS:
        assert fingerprint(out / config.name) == fingerprint(alone / config.name), config.name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cluster_gives_the_same_results_as_this_machine(cluster, alone, tmp_path):
    raylets, _ = cluster
    tracker, cells = CountingTracker(CONFIGS), SweepJobs(tmp_path / "out", CONFIGS)
    sweep(cells, RayBackend(address=raylets.address, threads=1, device="cpu"), tracker)
    assert len(tracker.in_state("done")) == len(CONFIGS) == 6
    assert set(tracker.start_counts.values()) == {1}
    assert_same_results(cells.out, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_search_on_a_cluster_has_the_same_trials_and_values(cluster, tmp_path):
    pytest.importorskip("optuna")
    from itl.experiments.search import study
    from itl.experiments.search.space import Dimension, Space

    space = Space([Dimension("specialist.lr", [0.1, 0.01]), Dimension("specialist.momentum", [0.0, 0.9])])
    config = replace(CONFIGS[0], method="b", split="validation")
    plan = study.SearchPlan(config, space, trials=4, seeds=(0, 1), sampler="grid", prune=False)
    raylets, _ = cluster
    here, there = study.open_search(plan, tmp_path / "here"), study.open_search(plan, tmp_path / "there")
    RecordingRunner(here, here.out).run()
    RayBackend(address=raylets.address, threads=1, device="cpu").run_jobs(
        there.spec, ProgressTracker(), plan.trials, "data"
    )
    drawn = [sorted((str(t.params), t.value) for t in trials.study.get_trials()) for trials in (here, there)]
    assert len(drawn[0]) == 4
    assert drawn[0] == drawn[1]
    assert study.best_trial(here)["settings"] == study.best_trial(there)["settings"]


def full_disk_actor():
    """A `DriverActor` on a full disk. It runs in another process, so the write is replaced there."""

    class FullDiskActor:
        def __init__(self, root):
            import errno
            import os

            from itl.experiments.search import ray_backend

            def fail(folder, bundle):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            ray_backend.unpack = fail
            self.actor = ray_backend.DriverActor(root)

        def read_files(self, folder):
            return self.actor.read_files(folder)

        def write_files(self, folder, bundle):
            return self.actor.write_files(folder, bundle)

        def add_event(self, event):
            self.actor.add_event(event)

        def take_events(self):
            return self.actor.take_events()

    return FullDiskActor


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_failed_cell_and_full_disk_are_reported_from_a_node(cluster, tmp_path, monkeypatch):
    raylets, _ = cluster
    ray = RayBackend(address=raylets.address, threads=1, device="cpu")
    configs = [*grid(0, buffer=1), *grid(0, 1, method="er")]
    cells, tracker = SweepJobs(tmp_path, configs), ProgressTracker(config.name for config in configs)
    sweep(cells, ray, tracker)
    assert [entry.name for entry in tracker.in_state("failed")] == [configs[0].name]
    assert "buffer of 1" in tracker.in_state("failed")[0].error
    assert len(tracker.in_state("done")) == 2
    last = grid(2, method="er")
    monkeypatch.setattr(ray_backend, "DriverActor", full_disk_actor())
    with pytest.raises(UserError, match=r"No space left on device.*kept"):
        sweep(SweepJobs(tmp_path, last), ray, ProgressTracker())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_node_loses_no_run(cluster, alone, tmp_path):
    raylets, nodes = cluster
    tracker, cells = CountingTracker(CONFIGS), SweepJobs(tmp_path / "out", CONFIGS)

    def kill() -> None:
        while len(tracker.in_state("done")) < 1 or len(tracker.in_state("runs")) < 2:
            time.sleep(0.05)
        raylets.remove_node(nodes[1], allow_graceful=False)

    killer = Thread(target=kill, daemon=True)
    killer.start()
    sweep(cells, RayBackend(address=raylets.address, threads=1, device="cpu"), tracker)
    killer.join(timeout=60)
    assert not killer.is_alive()
    assert len(tracker.in_state("done")) == len(CONFIGS)
    assert 2 in tracker.start_counts.values()  # a run of that node was restarted on another one
    assert_same_results(cells.out, alone)


# ------------------------------------------------------------------------------------- GPUs, as Ray counts them

RUNS_PER_GPU = 3  # more than the node's cores, so that the GPU is the shared resource


@pytest.fixture(scope="module")
def mixed():
    """Cluster of a head without cores, a node without a GPU and one with a simulated GPU, all on this machine."""
    from ray.cluster_utils import Cluster as Raylets

    raylets = Raylets(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False})
    raylets.add_node(num_cpus=2, num_gpus=0)
    gpu = raylets.add_node(num_cpus=1, num_gpus=1)
    yield raylets, gpu
    raylets.shutdown()


def recording_ray_job(notes: Path, concurrent: int):
    """Return a `run_ray_job` that runs the job on the CPU and writes its node, resources and times to `notes`.

    All jobs but the first end only after `concurrent` more have started, so that their overlap does not depend on the
    machine's speed.
    """

    def run_ray_job(job, keys, driver, pruner, device, *rest):
        import json
        import os
        import time

        import ray

        from itl.experiments.search.ray_task import run_ray_job

        context = ray.get_runtime_context()
        note = {"device": device, "node": context.get_node_id(), "has": context.get_assigned_resources()}
        note |= {"gpus": ray.get_gpu_ids(), "process": os.getpid(), "begun": time.time()}
        (notes / f"{job.name}.begun").touch()
        done = run_ray_job(job, keys, driver, pruner, "cpu", *rest)
        until = time.time() + 60
        while 1 < len(list(notes.glob("*.begun"))) < 1 + concurrent and time.time() < until:
            time.sleep(0.05)
        (notes / f"{job.name}.json").write_text(json.dumps({**note, "ended": time.time()}))
        return done

    return run_ray_job


def max_concurrent(notes: list[dict]) -> int:
    """Largest number of concurrent runs."""
    changes = sorted([(note["begun"], 1) for note in notes] + [(note["ended"], -1) for note in notes])
    return max(accumulate(change for _, change in changes))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_gpu_is_shared_by_runs_per_gpu_runs_and_other_nodes_stay_idle(mixed, tmp_path, monkeypatch, device):
    raylets, node = mixed
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setattr(ray_backend, "run_ray_job", recording_ray_job(notes, RUNS_PER_GPU))
    configs = grid(*range(RUNS_PER_GPU + 2 if device == "cuda" else 1), method="er")
    tracker, cells = CountingTracker(configs), SweepJobs(tmp_path / "out", configs)
    sweep(cells, RayBackend(address=raylets.address, runs_per_gpu=RUNS_PER_GPU, device=device), tracker)
    reports = [json.loads(path.read_text()) for path in notes.glob("*.json")]
    assert len(tracker.in_state("done")) == len(reports) == len(configs)
    assert {note["device"] for note in reports} == {"cuda"}
    assert {note["node"] for note in reports} == {node.node_id}
    for note in reports:
        assert note["has"]["GPU"] == pytest.approx(1 / RUNS_PER_GPU, abs=1e-4)
        assert [str(gpu) for gpu in note["gpus"]] == ["0"]
    assert max_concurrent(reports) == min(RUNS_PER_GPU, len(configs))
    assert len({note["process"] for note in reports}) == len(reports)  # a process frees its GPU memory when it ends
    alone = tmp_path / "alone"
    RecordingRunner(SweepJobs(alone, configs[-2:]), alone).run()
    for config in configs[-2:]:  # the collected files equal those of a run alone
        assert fingerprint(cells.out / config.name) == fingerprint(alone / config.name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use a GPU here")
def test_gpu_that_torch_cannot_use_is_reported_and_cpu_uses_every_node(mixed, tmp_path):
    raylets, _ = mixed
    configs = grid(0, method="er")
    cells = SweepJobs(tmp_path, configs)
    tracker = load_progress(cells)
    sweep(cells, RayBackend(address=raylets.address), tracker)
    assert "No CUDA device is available. Use --device cpu." in tracker.in_state("failed")[0].error
    sweep(cells, RayBackend(address=raylets.address, device="cpu", threads=2), tracker)
    assert [entry.name for entry in tracker.in_state("done")] == [configs[0].name]
    for wrong, words in ({"threads": 3}, "No node of the cluster has 3 cores"), ({"device": "tpu"}, "Unknown device"):
        with pytest.raises(UserError, match=words):
            sweep(
                SweepJobs(tmp_path, grid(1)),
                RayBackend(**{"address": raylets.address, "device": "cpu", **wrong}),
                ProgressTracker(),
            )
