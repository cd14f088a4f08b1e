"""Runs programs that import `itl` anew, without the seconds that a new process takes to import torch."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from support.cli_process import Outcome, run_and_exit

WarningAction = Literal["default", "error", "always"]


def run_fresh(
    program: str,
    *args: str,
    path: Sequence[Path] = (),
    on_warning: WarningAction = "default",
) -> Outcome:
    """Run a program in a fork of this process in which no module of `itl` has been imported.

    Args:
        program: The program's code; its file name is `<string>`.
        args: Its `sys.argv[1:]`.
        path: Folders that it imports from first.
        on_warning: What it does on a warning, which it prints on standard error.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            for file, number in ((out, 1), (err, 2)):
                os.dup2(file.fileno(), number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            run_and_exit(lambda words: _run(program, words, path, on_warning), list(args))
        status = os.waitpid(child, 0)[1]
        out.seek(0)
        err.seek(0)
        return Outcome(os.waitstatus_to_exitcode(status), out.read().decode(), err.read().decode())


def _run(
    program: str, args: list[str], path: Sequence[Path], on_warning: Literal["default", "error", "always"]
) -> None:
    """Forget `itl` and run a program."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "itl"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__.partition(".")[0] != "itl"]
    sys.path[:0] = map(str, path)
    importlib.invalidate_caches()
    sys.argv = ["-c", *args]
    warnings.showwarning = _print_warning
    warnings.simplefilter(on_warning)
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def _print_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    print(f"{filename}:{lineno}: {category.__name__}: {message}", file=sys.stderr)
