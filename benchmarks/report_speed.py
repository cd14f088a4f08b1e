"""CPU seconds that `itl report` takes for 40 runs, and for a run with 200 classes.

python benchmarks/report_speed.py [--before CHECKOUT] [--repeats 3] [--json FILE]

The runs have random numbers and pictures. Each report is made several times, alternating with that of another checkout
if one is given, and the fastest counts. `reference_loop` is the time of a Python loop of 25 million steps: one second
on a typical core or a faster one, more on a slow or busy one.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks.pages import print_record  # noqa: E402
from itl.results.environment import cpu_model, git_commit  # noqa: E402
from report.test_report_scale import many_classes, many_runs, slowness  # noqa: E402

CASES = {"40 runs": many_runs, "200 classes x 10 tasks": many_classes}


def report_seconds(checkout: Path, runs: Path, page: Path) -> float:
    """CPU seconds (user and system) of `itl report` in a separate process."""
    command = [sys.executable, "-m", "itl.cli", "report", str(runs), "--out", str(page)]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(checkouts: dict[str, Path], repeats: int) -> dict[str, Any]:
    """The fastest report of each case and checkout."""
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for case, make in CASES.items():
            runs, page = Path(name) / make.__name__, Path(name) / "report.html"
            make(runs)
            seconds: dict[str, list[float]] = {label: [] for label in checkouts}
            for _ in range(repeats):
                for label, checkout in checkouts.items():
                    seconds[label].append(report_seconds(checkout, runs, page))
            cases[case] = {label: round(min(values), 2) for label, values in seconds.items()}
            cases[case]["megabytes"] = round(page.stat().st_size / 1e6, 2)  # of the last checkout's page
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the record to this file")
    args = parser.parse_args()
    checkouts = {"before": args.before.resolve()} if args.before else {}
    checkouts["seconds"] = ROOT
    record = {
        "command": "python benchmarks/report_speed.py" + (" --before CHECKOUT" if args.before else ""),
        "commits": {label: git_commit(path / "src/itl/__init__.py") for label, path in checkouts.items()},
        "cpu": cpu_model() or platform.machine(),
        "python": platform.python_version(),
        "repeats": args.repeats,
        "reference_loop": round(slowness(), 2),
        "cases": measure(checkouts, args.repeats),
    }
    print_record(record, args.json)


if __name__ == "__main__":
    main()
