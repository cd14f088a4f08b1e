"""Every script in examples/ runs as its first lines say, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
# A pattern of the last line of each script.
LAST_LINES = {
    "ablation": r"no generalist +\d+\.\d +\d+\.\d",
    "custom_backbone": r"accuracy \d+\.\d %",
    "custom_method": r"er-heavy  accuracy +\d+\.\d %",
    "custom_stream": r"after task 3: accuracy by task \[\d.*, \d.*, \d.*\]",
    "own_folder": r"tuesday/digit 3/000.png: digit \d",
    "quickstart": r"first test images: \[\d(, \d){7}\]",
    "records": r"wrote accuracy.png",
    "scikit_learn_pipeline": r"in two tasks: accuracy \d+\.\d %",
}


def test_every_script_is_listed_and_says_how_to_run_it() -> None:
    assert [script.stem for script in SCRIPTS] == sorted(LAST_LINES)
    for script in SCRIPTS:
        assert f"Run: python examples/{script.name}" in script.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    if script.stem == "records":
        pytest.importorskip("pandas")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "ITL_CACHE": "off"}
    command = [sys.executable, "-W", "error::DeprecationWarning:itl", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LAST_LINES[script.stem], done.stdout.splitlines()[-1]), done.stdout
