"""Runs lessons in a worker process, one at a time, and tracks the state of the current one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from itl.apps.server.offered_models import Session
from itl.errors import UserError

STOP_SECONDS = 20.0  # to finish the current round and save, when the server ends


class LessonRunner:
    """Teaches lessons in a separate process, which is started before the first lesson.

    Args:
        device: `auto`, `cpu` or `cuda`.
        new_model: Arguments of `TeachingOptions` for new models.
    """

    def __init__(self, device: str, new_model: dict[str, Any]) -> None:
        self.device, self.new_model = device, new_model
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._session: Session | None = None
        self._lesson = ""
        self._cancelled = False
        self._idle = threading.Event()
        self._idle.set()
        self.job: dict[str, Any] | None = None  # state of the lesson that was started last, for the page

    def warm_up(self) -> None:
        """Start the worker process if there is none."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "itl.apps.server.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C in the terminal is for the server alone
                )
                threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether a lesson is being taught."""
        return not self._idle.is_set()

    def start(self, session: Session, lesson: str, backbone: dict[str, Any] | None = None) -> None:
        """Start to teach a lesson, or continue an unfinished one.

        Args:
            session: The model.
            lesson: The lesson's name.
            backbone: Further arguments of `TeachingOptions` for a new model.

        Raises:
            UserError: If another lesson is being taught.
        """
        self.warm_up()
        with self._lock:
            self._require_idle()
            assert self._process is not None
            self._idle.clear()
            self._session, self._lesson, self._cancelled = session, lesson, False
            self.job = {
                "model": session.name,
                "lesson": lesson,
                "state": "running",
                "stage": "starting",
                "done": 0,
                "total": 1,
                "fraction": 0.0,
                "seconds_left": None,
                "message": "",
                "started": time.time(),
            }
            self._send(
                command="teach",
                model=str(session.folder),
                folder=str(session.pictures.folder / lesson),
                device=self.device,
                new_model={**self.new_model, **(backbone or {})},
            )

    def require_idle(self) -> None:
        """Raise a `UserError` if a lesson is being taught."""
        with self._lock:
            self._require_idle()

    def _require_idle(self) -> None:
        if self.running:
            raise UserError("a lesson is being taught; wait until it is finished, or cancel it")

    def cancel(self) -> None:
        """Stop the lesson after the current round; its pictures go back into the next lesson."""
        with self._lock:
            if self.running and self.job is not None:
                self._cancelled = True
                self.job["state"] = "stopping"
                self._send(command="stop")

    def close(self) -> None:
        """Save a lesson that is being taught, so that it can be continued, and end the worker process."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        if self.running:
            with self._lock:
                self._send(command="stop")
            self._idle.wait(STOP_SECONDS)
        process.terminate()
        process.wait()

    def _send(self, **message: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # the process has ended; `_listen` reports it

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "progress":
                self._update(**{key: value for key, value in event.items() if key != "event"})
            elif event["event"] in ("done", "stopped", "failed"):
                self._end(event)
        process.wait()
        if self.running and process is self._process:
            self._end({"event": "died"})

    def _update(self, **values: Any) -> None:
        with self._lock:
            if self.job is not None:
                self.job = {**self.job, **values}

    def _end(self, event: dict[str, Any]) -> None:
        """Record how a lesson ended and put its pictures where they belong."""
        session, lesson = self._session, self._lesson
        assert session is not None
        state, message = "done", ""
        try:
            if event["event"] == "done":
                session.pictures.finish_lesson(lesson)
            elif event["event"] == "stopped" and self._cancelled:
                session.discard(lesson)
                state = "cancelled"
            elif event["event"] == "failed":
                state, message = "failed", event["message"]
                if not session.is_pending(lesson):
                    session.pictures.return_lesson(lesson)
            else:
                state = "failed"
                message = "The lesson stopped before it was finished. Continue or discard it."
        except UserError as error:
            state, message = "failed", str(error)
        except Exception as error:  # whatever happens, the next lesson can start
            traceback.print_exc()
            state, message = "failed", f"Internal error ({type(error).__name__}); the terminal shows details."
        values = {"result": event["result"]} if state == "done" else {}
        self._update(state=state, message=message, fraction=1.0 if state == "done" else 0.0, **values)
        self._idle.set()
