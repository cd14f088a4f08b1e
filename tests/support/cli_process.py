"""A fork server that runs command lines in separate processes without three seconds of imports each.

The server process imports everything once, for all processes that run tests. For every connection it forks a process.
For every request, a JSON line, that process forks a child that runs `itl` and replies with the child's exit code and
output.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import socket
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
    """Runs each command line in a separate process that sees neither a GPU nor a terminal.

    Args:
        shared: A folder of the processes that share the server. The first of them starts it; it ends with that process,
            but serves the connections that it has.
    """

    def __init__(self, shared: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.connection = socket.socket(socket.AF_UNIX)
        with open(shared / "fork-server", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                self.connection.connect(file.read())
            except OSError:  # there is none, or it has ended
                address = str(Path(tempfile.mkdtemp(prefix="itl-"), "socket"))  # the length of an address is limited
                self._start(address)
                self.connection.connect(address)
                file.truncate(0)
                file.write(address)
        self.requests, self.answers = self.connection.makefile("w"), self.connection.makefile("r")

    def _start(self, address: str) -> None:
        """Start a server that listens at `address`."""
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            number = listener.fileno()
            command = [sys.executable, __file__, str(number)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[number], env=env)

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
        pause_at: str | None = None,
    ) -> StartedProcess:
        """Start `itl` with `args` in `folder`.

        Args:
            args: The command line.
            folder: The current folder.
            env: Changes of the environment.
            terminal: The device of the standard output.
            new_session: Whether the process and its children form a group of processes, numbered by its `pid`.
            pause_at: Name of a file. The process pauses whenever it is about to open or replace such a file.
        """
        request = {"args": args, "folder": str(folder), "env": env or {}, "terminal": terminal, "start": True}
        request |= {"new_session": new_session, "pause_at": pause_at}
        return StartedProcess(self, self._ask(request)["pid"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer

    def close(self) -> None:
        """End the connection, and the server process if this object started it."""
        for file in (self.requests, self.answers, self.connection):
            file.close()
        if self.process is not None:
            self.process.communicate()


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
    """Send Ctrl-C to `process` at the first of its pauses in which `ready()` is true.

    The process was started with `pause_at`. It cannot advance between the check and the signal, however busy the
    machine is.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (state := _state(process.pid)) != "T":
            assert state not in ENDED, "the process ended before it could be interrupted"
            time.sleep(0.002)
            continue
        interrupt = ready()
        if interrupt:
            process.send_signal(signal.SIGUSR1)  # no more pauses
            process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        if interrupt:
            return
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


def _pause_at(name: str) -> None:
    """Stop this process whenever it is about to open or replace a file called `name`, until it receives SIGUSR1."""
    received: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))

    def stop(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename") and not received:
            path = args[event == "os.rename"]
            if isinstance(path, str | bytes | os.PathLike) and Path(os.fsdecode(path)).name == name:
                os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(stop)


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
    if request.get("pause_at"):
        _pause_at(request["pause_at"])
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


def _import_everything() -> None:
    """Import what any command may import, and replace what is slow and not tested."""
    os.fsync = lambda handle: None  # as in conftest.py
    import itl

    modules = [module.name for module in walk_packages(itl.__path__, "itl.") if not module.name.endswith("__main__")]
    # torch imports the first of these when the first optimizer is created.
    for name in ("torch._dynamo", "matplotlib.figure", "optuna", "yaml", *modules):
        with suppress(ImportError):  # an optional package is missing
            import_module(name)
    from itl.experiments.search import local_backend

    local_backend.subprocess = SimpleNamespace(Popen=ForkedWorker, PIPE=subprocess.PIPE)  # type: ignore[attr-defined]


def serve(listener: socket.socket) -> NoReturn:
    """Fork a process for each connection, until standard input is closed."""
    _import_everything()
    _warm_up()
    gc.freeze()  # keep the memory pages shared with the children
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            for number in (0, 1):
                os.dup2(connection.fileno(), number)
            connection.close()
            run_and_exit(answer_requests, [])
        connection.close()
    os.unlink(listener.getsockname())
    os.rmdir(Path(listener.getsockname()).parent)
    os._exit(0)


def answer_requests(_: list[str]) -> None:
    """Answer requests from standard input until it is closed."""
    from itl.cli import main

    started: dict[int, tuple[Any, Any]] = {}
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
    serve(socket.socket(fileno=int(sys.argv[1])))
