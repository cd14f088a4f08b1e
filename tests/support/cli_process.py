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
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
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
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"args": args, "folder": str(folder), "kill_after": kill_after, "env": env or {}}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the server process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def tiny(*settings: str) -> list[str]:
    """Options for a run of two tasks that takes a second, plus `settings` (`NAME=VALUE`)."""
    pairs = ("net.width=4", "specialist.steps=4", "tangent.steps=3", "projection.steps=3", *settings)
    return ["--tasks", "2", *(word for pair in pairs for word in ("--set", pair))]


def interrupt_when(process: subprocess.Popen[str], ready: Callable[[], bool], seconds: float = 900.0) -> None:
    """Send Ctrl-C to `process` as soon as `ready()` is true.

    The process is paused while `ready()` is evaluated, so that it cannot advance between the check and the signal,
    however busy the machine is.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, "the process ended before it could be interrupted"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        interrupt = ready()
        if interrupt:
            process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        if interrupt:
            return
        time.sleep(0.1)
    process.kill()
    raise TimeoutError(f"not ready to be interrupted after {seconds} s")


def _run_and_exit(main: Callable[[list[str]], Any], args: list[str]) -> NoReturn:
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

    gc.freeze()  # keep the memory pages shared with the children
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                os.chdir(request["folder"])
                os.environ.update(request["env"])
                for file, number in ((out, 1), (err, 2)):
                    os.dup2(file.fileno(), number)
                os.close(0)
                sys.stdin = open(os.devnull)  # noqa: SIM115
                _run_and_exit(main, request["args"])
            code = os.waitstatus_to_exitcode(_wait(child, request["kill_after"]))
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        print(json.dumps({"code": code, "out": texts[0], "err": texts[1]}), flush=True)


if __name__ == "__main__":
    serve()
