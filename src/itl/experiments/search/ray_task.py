"""The Ray task of a job: runs in a temporary folder of its node and sends its files to the driver after each save.

If a worker or a node dies, Ray restarts the task on another node, where it resumes from the files sent last.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl import __version__
from itl.callbacks.base import Callback
from itl.experiments.config import Config
from itl.experiments.search.file_sync import pack, unpack
from itl.experiments.search.jobs import Job, JobContext, JobEvent, StreamCache, describe_error, is_disk_full, stream_key
from itl.experiments.search.resources import resident_memory
from itl.experiments.search.worker import REPORTED_KEYS

if TYPE_CHECKING:
    from itl.learner import Learner
    from itl.streams import Stream


class RayTaskCallback(Callback):
    """Sends the job's folder to the driver whenever the learner was saved, and reports progress.

    Args:
        job: The job that runs.
        root: Temporary folder of this node.
        call_driver: Calls a method of the `DriverActor`, as `call_driver(method, *args, wait=True)`.
    """

    def __init__(self, job: Job, root: Path, call_driver: Callable[..., Any]) -> None:
        self.job, self.folder, self.call_driver = job, root / job.folder, call_driver
        self.sent: dict[str, tuple[int, int]] = {}
        self.generations = ""

    def on_record(self, line: dict[str, Any]) -> None:
        """Report a line of metrics."""
        reported = {key: line.get(key) for key in REPORTED_KEYS}
        self.call_driver("add_event", {"kind": "metrics", "job": self.job.name, "line": reported}, wait=False)

    def on_stage_start(self, learner: Learner, stage: Any) -> None:
        """Send the folder if the previous task was just saved."""
        self._send_if_saved()

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        """Send the folder if the unfinished stage was just saved."""
        self._send_if_saved()

    def on_task_end(self, learner: Learner) -> None:
        """Report memory use: every stage has run by now, so the process has reached its peak."""
        event = {"kind": "measured", "bytes": resident_memory(os.getpid()), "gpu": _gpu_memory_fraction()}
        self.call_driver("add_event", event, wait=False)

    def _send_if_saved(self) -> None:
        generations = "".join(path.read_text() for path in sorted(self.folder.rglob("CURRENT")))
        if generations != self.generations:
            self.generations = generations
            self.send()

    def send(self) -> None:
        """Send the files that changed since the last call."""
        error = self.call_driver("write_files", self.job.folder, pack(self.folder, self.sent))
        if error:
            raise OSError(errno.ENOSPC if os.strerror(errno.ENOSPC) in error else errno.EIO, error)


def _gpu_memory_fraction() -> float:
    """Largest fraction of the GPU's memory that this process has reserved."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0.0
    return torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory


class _LoadedStreams(StreamCache):
    """Streams that the driver has loaded and sent with the task."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams = streams

    def load(self, config: Config) -> Stream:
        """Stream of a run."""
        return self.streams[stream_key(config)]


def run_ray_job(
    job: Job, keys: Sequence[str], driver: Any, pruner: Any, device: str, threads: int, version: str, *streams: Stream
) -> JobEvent:
    """Run a job as a Ray task. Errors are returned, not raised, so that Ray does not retry the task.

    Args:
        job: Job to run.
        keys: Stream keys of `streams`, in the same order.
        driver: Handle of the `DriverActor`.
        pruner: Handle of the `PruningActor`.
        device: Device to run on.
        threads: Number of CPU threads.
        version: Version of itl on the driver.
        *streams: Streams that the job needs.

    Returns:
        A "done", "failed" or "disk_full" event without the job's name.
    """
    import ray
    import torch

    if version != __version__:
        error = f"A node has itl {__version__}, but the driver has {version}. Install the same version on all nodes."
        return {"kind": "failed", "error": error}
    torch.set_num_threads(threads)

    # While the task's own thread waits in ray.get, Ray gives its cores to another task; so another thread waits.
    waiter = ThreadPoolExecutor(1)

    def call_driver(method: str, *args: Any, wait: bool = True) -> Any:
        answer = getattr(driver, method).remote(*args)
        return waiter.submit(ray.get, answer).result() if wait else None

    def report(step: int, value: float) -> bool:
        return bool(waiter.submit(ray.get, pruner.report.remote(job, step, value)).result())

    call_driver("add_event", {"kind": "started", "job": job.name}, wait=False)
    with waiter, tempfile.TemporaryDirectory(prefix="itl-") as temporary:
        root = Path(temporary)
        callback = RayTaskCallback(job, root, call_driver)
        try:
            for folder in (job.folder, *job.required_folders):
                unpack(root / folder.lstrip("/"), call_driver("read_files", folder))
            loaded = _LoadedStreams(dict(zip(keys, streams, strict=True)))
            details = job.relocate(root).run(JobContext(root, loaded, [callback], device, report))
            callback.send()
        except Exception as error:
            with suppress(OSError):
                callback.send()  # so that the job can be resumed
            return {"kind": "disk_full" if is_disk_full(error) else "failed", "error": describe_error(error)}
    return {"kind": "done", **details}
