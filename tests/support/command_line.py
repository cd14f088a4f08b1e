"""Runs command lines in this process."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from itl.cli import main
from support.cli_process import Outcome


def run_in_process(*args: str) -> Outcome:
    """Run `itl` with `args` in the current folder."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(args)
        except SystemExit as stop:
            code = stop.code
    return Outcome(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def is_one_line_error(outcome: Outcome) -> bool:
    """Whether a command failed with one line for the user, or succeeded."""
    lines = outcome.err.splitlines()
    return outcome.code == 0 or (outcome.code == 2 and bool(lines) and lines[-1].startswith("itl: "))


def assert_refused(*args: str, word: str = "") -> Outcome:
    """Run a command line that must fail with one line which contains `word`."""
    outcome = run_in_process(*args)
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert word in outcome.err
    return outcome


__all__: Sequence[str] = ["assert_refused", "is_one_line_error", "run_in_process"]
