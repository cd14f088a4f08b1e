"""A fork server that runs command lines in separate processes without three seconds of imports each.

The server process imports everything once. For every request, a JSON line, it forks a child that runs `itl` and replies
with the child's exit code and output.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any, NoReturn


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The standard output, parsed as JSON."""
        return json.loads(self.out)


class ForkServer:
    """Runs each command line in a separate process that sees neither a GPU nor a terminal."""

    def __init__(self) -> None:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def run(
        self, args: list[str], folder: Path, *, kill_after: float | None = None, env: dict[str, str] | None = None
    ) -> Outcome:
        """Run `itl` with `args` in `folder`; send SIGKILL if it still runs after `kill_after` seconds."""
        return Outcome(**self._ask({"args": args, "folder": str(folder), "kill_after": kill_after, "env": env or {}}))

    def start(
        self,
        args: list[str],
        folder: Path,
        *,
        env: dict[str, str] | None = None,
        terminal: str | None = None,
        new_session: bool = False,
    ) -> StartedProcess:
        """Start `itl` with `args` in `folder`.

        Args:
            args: The command line.
            folder: The current folder.
            env: Changes of the environment.
            terminal: The device of the standard output.
            new_session: Whether the process and its children form a group of processes, numbered by its `pid`.
        """
        request = {"args": args, "folder": str(folder), "env": env or {}, "terminal": terminal, "start": True}
        request["new_session"] = new_session
        return StartedProcess(self, self._ask(request)["pid"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the server process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class StartedProcess:
    """A command that runs in parallel with the test. Signals can be sent to it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server, self.pid = server, pid

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Whether it has ended; `wait` returns its outcome."""
        return _state(self.pid) in ENDED

    def wait(self) -> Outcome:
        """Wait for its end; to be called once."""
        return Outcome(**self.server._ask({"wait": self.pid}))


ENDED = ("Z", "X", None)


def _state(pid: int) -> str | None:
    """State of a process, such as R (running), T (stopped) or Z (ended, not yet waited for); None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def tiny(*settings: str) -> list[str]:
    """Options for a run of two tasks that takes a second, plus `settings` (`NAME=VALUE`)."""
    pairs = ("net.width=4", "specialist.steps=4", "tangent.steps=3", "projection.steps=3", *settings)
    return ["--tasks", "2", *(word for pair in pairs for word in ("--set", pair))]


def interrupt_when(process: StartedProcess, ready: Callable[[], bool], seconds: float = 900.0) -> None:
    """Send Ctrl-C to `process` as soon as `ready()` is true.

    The process is paused while `ready()` is evaluated, so that it cannot advance between the check and the signal,
    however busy the machine is.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGSTOP)
        while (state := _state(process.pid)) != "T":
            assert state not in ENDED, "the process ended before it could be interrupted"
            time.sleep(0.001)
        interrupt = ready()
        if interrupt:
            process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        if interrupt:
            return
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    raise TimeoutError(f"not ready to be interrupted after {seconds} s")


def run_and_exit(main: Callable[[list[str]], Any], args: list[str]) -> NoReturn:
    """Run `main` and exit with its code, skipping the second that torch takes to shut down."""
    try:
        main(args)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(child: int, seconds: float | None) -> int:
    """Wait for a child, kill it after `seconds`, and return its exit status."""
    deadline = time.monotonic() + (seconds or 0)
    while seconds is not None:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            break
        time.sleep(0.0005)
    return os.waitpid(child, 0)[1]


def _disconnect_files() -> None:
    """Detach all files but the standard ones from their inodes, in a fork.

    They are replaced, not closed: objects of the parent would otherwise close files of the same numbers later.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the folder that was listed is closed by now
            if number > 2 and number != null and os.fstat(number):
                os.dup2(null, number)


class ForkedWorker:
    """Stands in for the `Popen` of a sweep's worker process: a fork of this process, which has imported everything."""

    def __init__(
        self, command: list[str], stdin: int, stdout: int, stderr: Any, text: bool, env: dict[str, str]
    ) -> None:
        from itl.experiments.search import worker

        assert command[1:] == ["-m", worker.__name__]
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(env)
            for file, number in ((read_in, 0), (write_out, 1), (stderr.fileno(), 2)):
                os.dup2(file, number)
            _disconnect_files()
            kept = sys.stdin, sys.stdout  # their finalizers would close the new files
            sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
            run_and_exit(lambda _: sys.exit(worker.main()), [])
            del kept
        os.close(read_in)
        os.close(write_out)
        self.stdin, self.stdout = open(write_in, "w"), open(read_out)  # noqa: SIM115
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def terminate(self) -> None:
        """Send SIGTERM, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end."""
        with self._waiting:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _fork(request: dict[str, Any], main: Callable[[list[str]], Any], out: Any, err: Any) -> int:
    """Start a child process that runs a command line."""
    child = os.fork()
    if child:
        return child
    if request.get("new_session"):
        os.setsid()
    os.chdir(request["folder"])
    os.environ.update(request["env"])
    for file, number in ((out, 1), (err, 2)):
        os.dup2(file.fileno(), number)
    os.close(0)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test suite in the background ignores SIGINT
    if request.get("terminal"):
        os.dup2(os.open(request["terminal"], os.O_RDWR | os.O_NOCTTY), 1)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    run_and_exit(main, request["args"])


def _outcome(status: int, out: Any, err: Any) -> dict[str, Any]:
    """Exit code and output of a child process."""
    texts = []
    for file in (out, err):
        file.seek(0)
        texts.append(file.read().decode())
        file.close()
    return {"code": os.waitstatus_to_exitcode(status), "out": texts[0], "err": texts[1]}


def _warm_up() -> None:
    """Train once, because the first steps of a process take seconds."""
    from itl.experiments.run import Config, run

    settings = {"net.width": 4, "specialist.steps": 2, "tangent.steps": 2, "projection.steps": 2}
    config = Config(tasks=1, settings=settings, curves=0)
    with tempfile.TemporaryDirectory() as folder:
        run(config, config.load_stream(folder), Path(folder, "run"), device="cpu")


def serve() -> None:
    """Answer requests from standard input until it is closed."""
    os.fsync = lambda handle: None  # as in conftest.py
    import itl
    from itl.cli import main

    modules = [module.name for module in walk_packages(itl.__path__, "itl.") if not module.name.endswith("__main__")]
    # torch imports the first of the others when the first optimizer is created.
    for name in ("torch._dynamo", "sklearn.datasets", "matplotlib.figure", "optuna", "yaml", *modules):
        with suppress(ImportError):  # an optional package is missing
            import_module(name)
    from itl.experiments.search import local_backend

    local_backend.subprocess = SimpleNamespace(Popen=ForkedWorker, PIPE=subprocess.PIPE)  # type: ignore[attr-defined]
    _warm_up()
    started: dict[int, tuple[Any, Any]] = {}
    gc.freeze()  # keep the memory pages shared with the children
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = _outcome(os.waitpid(request["wait"], 0)[1], *started.pop(request["wait"]))
        else:
            files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
            child = _fork(request, main, *files)
            if request.get("start"):
                started[child], answer = files, {"pid": child}
            else:
                answer = _outcome(_wait(child, request["kill_after"]), *files)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
