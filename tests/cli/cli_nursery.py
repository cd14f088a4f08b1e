"""Real processes for command lines, without three seconds of imports each.

One process imports everything and does nothing else; for every request (a JSON line with args and a folder) it forks a
child that runs `itl`, and answers with the child's exit code and output.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Nursery:
    """Runs command lines, each in a process of its own. No GPU is visible to them, and no terminal."""

    def __init__(self) -> None:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def run(self, args: list[str], folder: Path) -> Outcome:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"args": args, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def tiny(*more: str) -> list[str]:
    """Options that make a run of two tasks last a second."""
    pairs = ("net.width=4", "specialist.steps=4", "tangent.steps=3", "projection.steps=3", *more)
    return ["--tasks", "2", *(word for pair in pairs for word in ("--set", pair))]


def _become(main: Callable[[list[str]], Any], args: list[str]) -> NoReturn:
    """Run `main` and end with its exit code, at once: a second of tidying up after torch would tell nothing."""
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


def serve() -> None:
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401  # the first optimiser imports it

    import itl.refine
    import itl.run
    import itl.teach  # noqa: F401
    from itl.cli import main

    gc.freeze()  # what is shared with the children stays shared
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                os.chdir(request["folder"])
                for file, number in ((out, 1), (err, 2)):
                    os.dup2(file.fileno(), number)
                os.close(0)
                sys.stdin = open(os.devnull)  # noqa: SIM115
                _become(main, request["args"])
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        print(json.dumps({"code": code, "out": texts[0], "err": texts[1]}), flush=True)


if __name__ == "__main__":
    serve()
