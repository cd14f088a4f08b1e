"""The process that teaches lessons, so that the page stays responsive: `python -m itl.apps.server.worker`.

It reads one JSON object per line from standard input (`teach` or `stop`) and writes events, one JSON object per line,
to standard output. When standard input is closed, because the server ended or was killed, the process ends at once; the
model folder keeps the state saved last.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.learner import Learner
    from itl.learner.remaining_time import EtaEstimator

EVENT_INTERVAL = 0.15  # seconds between two events of a stage


_events = sys.stdout


def send(**event: Any) -> None:
    """Write an event."""
    _events.write(json.dumps(event) + "\n")
    _events.flush()


def _keep_stdout_for_events() -> None:
    """Let everything else that is printed, as by a user's network, go to standard error."""
    global _events
    _events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


class ProgressCallback(Callback):
    """Reports stage, epochs, finished fraction and remaining seconds."""

    def __init__(self, images: int) -> None:
        self.images = images
        self.eta: EtaEstimator | None = None
        self.started = self.updated = time.monotonic()
        self.sent = 0.0

    def read(self, done: int, total: int | None) -> None:
        """Report how many pictures have been read."""
        self._send("reading", done, total or done, force=done == total)

    def on_features(self, learner: Learner, done: int, total: int) -> None:
        """Report how many pictures have gone through the frozen part of the network."""
        self._send("features", done, total, force=done == total)

    def on_stage_start(self, learner: Learner, stage: Stage) -> None:
        """Report the stage that starts or resumes."""
        from itl.learner.remaining_time import EtaEstimator, estimate_task

        if self.eta is None:
            self.eta = EtaEstimator(estimate_task(learner, self.images))
            self.started = self.updated = time.monotonic()
        start = learner.position[1]
        self.eta.start_stage(len(learner.tasks), stage.name, stage.planner.first_step(start))
        self._send(stage.name, stage.epochs_before(start), stage.epochs, force=True)

    def on_round_end(self, learner: Learner, stage: Stage, epoch: int, loss: float) -> None:
        """Report the progress of a stage."""
        assert self.eta is not None
        now = time.monotonic()
        steps = min(stage.planner.total_steps, stage.planner.first_step(learner.position[1]))
        self.eta.update(steps, now - self.updated)
        self.updated = now
        self._send(stage.name, epoch, stage.epochs, force=epoch == stage.epochs)

    def on_task_end(self, learner: Learner) -> None:
        """Report that the model is evaluated and saved next."""
        self._send("testing", 0, 1, force=True)

    def _send(self, stage: str, done: int, total: int, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self.sent < EVENT_INTERVAL:
            return
        self.sent = now
        left = self.eta.remaining() if self.eta is not None else None
        elapsed = now - self.started
        fraction = 0.0 if left is None else elapsed / max(elapsed + left, 1e-9)
        send(event="progress", stage=stage, done=done, total=total, fraction=round(fraction, 4), seconds_left=left)


def teach(job: dict[str, Any], stop: threading.Event) -> None:
    """Teach one lesson and report how it ended: `done`, `stopped` or `failed`."""
    from itl.apps.teaching import Teacher, TeachingOptions
    from itl.checkpoint.lock import lock

    try:
        path, folder = Path(job["model"]), Path(job["folder"])
        with lock(path):
            exists = (path / "CURRENT").exists()
            options = TeachingOptions(**({} if exists else job["new_model"]), device=job["device"], again=True)
            teacher = Teacher(path, [folder], options)
            (result,) = teacher.lesson_results()
            callback = ProgressCallback(sum(len(files) for files in result.lesson.files.train.values()))
            teacher.teach(result, callback, callback.read, stop.is_set)
            send(event="done", result=result.to_dict())
    except KeyboardInterrupt:
        send(event="stopped")
    except UserError as error:
        send(event="failed", message=str(error))
    except Exception as error:
        traceback.print_exc()
        send(event="failed", message=f"Internal error ({type(error).__name__}); the terminal shows details.")


def main() -> None:
    """Teach lessons until standard input is closed."""
    _keep_stdout_for_events()
    stop, jobs = threading.Event(), queue.SimpleQueue[dict[str, Any]]()

    def listen() -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if message["command"] == "stop":
                stop.set()
            else:
                stop.clear()
                jobs.put(message)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    import itl.apps.teaching  # noqa: F401  # takes seconds, while nothing is to be taught yet

    send(event="ready")
    while True:
        teach(jobs.get(), stop)


if __name__ == "__main__":
    main()
