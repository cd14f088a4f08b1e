"""Ray backend: each job is a Ray task. Ray handles placement, queues, fractions of GPUs and retries.

A task works in a temporary folder of its node and sends the files it saves to an actor on the driver's node, which
writes them into the output folder, so no shared disk is needed. If a worker or a node dies, Ray restarts the task on
another node, where it resumes from the files sent last. The driver loads the streams and shares them through Ray's
object store.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itl import __version__
from itl.cpu import available_cores
from itl.errors import UserError
from itl.experiments.search.file_sync import FileBundle, pack, unpack
from itl.experiments.search.jobs import (
    Job,
    JobEvent,
    JobSource,
    StreamCache,
    describe_error,
    disk_full_error,
    stream_key,
)
from itl.experiments.search.local_backend import DEFAULT_RUNS_PER_GPU, POLL_SECONDS
from itl.experiments.search.optional_imports import import_optional
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.ray_task import run_ray_job
from itl.experiments.search.resources import USABLE_MEMORY_FRACTION, plan_processes
from itl.experiments.search.worker import open_job_source
from itl.locks import FileLock

MAX_RETRIES = 5  # of a task whose worker or node died
CONNECT_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class RayBackend:
    """Runs jobs on a Ray cluster.

    Args:
        address: `host:port` of a running cluster or `auto`; None starts a cluster on this machine, which ends with
            the command.
        workers: Maximum number of concurrent runs, or of GPUs to use; None for all resources of the cluster.
        threads: CPU threads per run; None for one.
        runs_per_gpu: Maximum number of concurrent runs on each GPU.
        device: `auto`, `cpu` or `cuda`.
    """

    address: str | None = None
    workers: int | None = None
    threads: int | None = None
    runs_per_gpu: int = DEFAULT_RUNS_PER_GPU
    device: str = "auto"

    def run_jobs(self, spec: dict[str, Any], tracker: ProgressTracker, max_jobs: int, data: str) -> None:
        """Run all jobs of the source that `spec` describes; the cluster's resources limit how many run at a time."""
        ray = import_optional("ray")
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise UserError(f"Unknown device '{self.device}'. Use auto, cpu or cuda.")
        connect(ray, self.address, self._local_cores() if self.address is None else 0)
        try:
            _Driver(ray, self, open_job_source(spec), Path(spec["out"]), StreamCache(data), tracker).run()
        finally:
            ray.shutdown()

    def _local_cores(self) -> int:
        """Cores of a cluster on this machine; at most those of the machine."""
        count, threads = plan_processes(self.workers, self.threads or 1, available_cores())
        return count * threads


def connect(ray: Any, address: str | None, cores: int) -> None:
    """Join the cluster at `address`, or start one on this machine with the given number of cores."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(num_cpus=cores, include_dashboard=False, **quiet)
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not colon or not port.isdigit():
            raise UserError(f"Invalid --address '{address}'. Use auto or host:port, such as 10.0.0.1:6379.")
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SECONDS).close()
        except OSError as error:
            raise UserError(
                f"No Ray cluster answers at {address}: {error.strerror or error}. Check that it is running."
            ) from None
    if address.startswith("ray://"):
        raise UserError(
            "--address does not take ray:// addresses. Run the command on a machine that has joined the cluster (ray "
            "start), with --address host:port of the cluster's head."
        )
    try:
        ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises many types
        raise UserError(f"Cannot join the Ray cluster at {address}: {describe_error(error)}") from None


class DriverActor:
    """Ray actor on the driver's node: reads and writes files of the output folder and collects events."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.events: list[JobEvent] = []

    def read_files(self, folder: str) -> FileBundle:
        """Files of a folder, given by its absolute path or relative to the output folder."""
        return pack(self.root / folder)

    def write_files(self, folder: str, bundle: FileBundle) -> str:
        """Write the files that a task sent; returns an error message or an empty string."""
        try:
            unpack(self.root / folder, bundle)
        except OSError as error:
            return f"Cannot write to {self.root / folder}: {error.strerror or error}"
        return ""

    def add_event(self, event: JobEvent) -> None:
        """Add an event."""
        self.events.append(event)

    def take_events(self) -> list[JobEvent]:
        """Return and remove the collected events."""
        events, self.events = self.events, []
        return events


class PruningActor:
    """Ray actor on the driver's node that decides about pruning: only there can the study be opened."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.source = open_job_source(spec)

    def report(self, job: Job, step: int, value: float) -> bool:
        """Report a trial's value; returns whether to prune the trial."""
        return self.source.reporter(job)(step, value)


class _Driver:
    """Claims jobs, submits them to Ray and collects their results."""

    def __init__(
        self,
        ray: Any,
        backend: RayBackend,
        source: JobSource,
        out: Path,
        streams: StreamCache,
        tracker: ProgressTracker,
    ) -> None:
        self.ray, self.backend, self.source, self.streams, self.tracker = ray, backend, source, streams, tracker
        this_node = import_optional("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        options = {"num_cpus": 0, "scheduling_strategy": this_node}
        self.actor = ray.remote(DriverActor).options(**options).remote(str(out.resolve()))
        self.pruner = ray.remote(PruningActor).options(**options).remote({**source.spec, "out": str(out.resolve())})
        self.cuda = backend.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        if backend.device.startswith("cuda") and not self.cuda:
            raise UserError("The cluster has no GPU. Use --device cpu.")
        # A process on a GPU ends after its run, which frees the GPU's memory.
        self.task = ray.remote(max_calls=1)(run_ray_job) if self.cuda else ray.remote(run_ray_job)
        self.threads = backend.threads or 1
        cores = self._largest_node("CPU")
        if not self.cuda and 0 < cores < self.threads:  # Ray would wait for such a node forever
            raise UserError(
                f"No node of the cluster has {self.threads} cores; the largest has {cores:.0f}. Use fewer --threads."
            )
        self.memory, self.gpu_fraction = 0, 1 / backend.runs_per_gpu  # measured needs of a job
        self.stream_refs: dict[str, Any] = {}
        self.pending: dict[Any, tuple[Job, FileLock]] = {}

    def run(self) -> None:
        """Run jobs until none is left."""
        exhausted = False
        while True:
            while not exhausted and len(self.pending) < self._max_pending():
                claimed = self.source.claim()
                exhausted = claimed is None
                if claimed is not None:
                    self._submit(*claimed)
            if not self.pending:
                return
            finished, _ = self.ray.wait(list(self.pending), num_returns=1, timeout=POLL_SECONDS)
            self._process_events()
            for ref in finished:
                self._collect(ref)
                exhausted = False  # a job that finished may make another one available

    def _largest_node(self, resource: str) -> float:
        """Largest amount of a resource on a single node."""
        return float(max(node["Resources"].get(resource, 0.0) for node in self.ray.nodes() if node["Alive"]))

    def _max_pending(self) -> int:
        """How many jobs to submit: one until its memory use is known, then as many as the cluster can run.

        Sweeps submit twice as many, so that an autoscaling cluster sees the demand.
        """
        if not self.memory:
            return 1
        resources = self.ray.cluster_resources()
        if self.cuda:
            gpus = resources.get("GPU", 0)
            capacity = int(min(gpus, self.backend.workers or gpus)) * int(1 / self.gpu_fraction + 1e-9)
        else:
            capacity = int(resources.get("CPU", 0) // self.threads)
            capacity = min(capacity, self.backend.workers or capacity)
        capacity = max(1, capacity)
        self.tracker.update({"kind": "workers", "count": capacity})
        return capacity if self.backend.workers or not self.source.claims_ahead else 2 * capacity

    def _submit(self, job: Job, lock: FileLock) -> None:
        keys = list(dict.fromkeys(stream_key(config) for config in job.configs))
        for config in job.configs:
            if stream_key(config) not in self.stream_refs:
                self.stream_refs[stream_key(config)] = self.ray.put(self.streams.load(config))
        options: dict[str, Any] = {"num_cpus": self.threads, "max_retries": MAX_RETRIES, "name": job.name}
        if self.cuda:
            options |= {"num_gpus": self.gpu_fraction, "num_cpus": 0.01}
        if self.memory:
            largest = self._largest_node("memory") or self.memory
            options["memory"] = int(min(self.memory / USABLE_MEMORY_FRACTION, largest))
        task = self.task.options(**options)
        args = (keys, self.actor, self.pruner, "cuda" if self.cuda else "cpu", self.threads, __version__)
        self.pending[task.remote(job, *args, *(self.stream_refs[key] for key in keys))] = (job, lock)

    def _process_events(self) -> None:
        for event in self.ray.get(self.actor.take_events.remote()):
            if event["kind"] == "measured":
                self.memory = max(self.memory, event["bytes"], 1)
                self.gpu_fraction = min(1.0, max(self.gpu_fraction, event["gpu"] / USABLE_MEMORY_FRACTION))
            self.tracker.update(event)

    def _collect(self, ref: Any) -> None:
        """Record the result of a finished task."""
        job, lock = self.pending.pop(ref)
        with lock:
            try:
                details = self.ray.get(ref)
            except self.ray.exceptions.RayError as error:  # the worker or node died too often
                message = f"Ray stopped retrying the task after {MAX_RETRIES} retries: {describe_error(error)}"
                details = {"kind": "failed", "error": message}
            self._process_events()
            self.memory = self.memory or 1
            kind = details.pop("kind")
            if kind == "disk_full":
                raise disk_full_error(details["error"])
            if kind == "done":
                self.source.finish(job, details)
            else:
                self.source.fail(job.name, details["error"])
            self.tracker.update({"kind": kind, "job": job.name, **details})
