"""An interrupted run, resumed, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from itl.results import RunFolder
from support.cli_process import tiny

NAME = "seq-digits-itl-20-seed0"


def result(folder) -> dict:
    return {k: v for k, v in json.loads((folder / "result.json").read_text()).items() if k != "seconds"}


def metrics(folder) -> str:
    return (folder / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def halted(tmp_path_factory):
    """A run that was sent Ctrl-C in its second task, and what it said."""
    folder = tmp_path_factory.mktemp("halted")
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "itl.cli", "run", *tiny("tangent.steps=400")],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores Ctrl-C
    )
    for _ in range(6000):
        if (folder / "runs" / NAME / "model/CURRENT").exists():  # the first task is learned and saved
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return folder, (process.returncode, out, err)


def test_ctrl_c_is_one_line_that_says_how_to_go_on(halted):
    _, (code, out, err) = halted
    assert code == 130
    assert out == ""
    assert err == f"itl: interrupted; the same command with --resume goes on with runs/{NAME}\n"


def test_a_resumed_run_equals_an_undisturbed_one(itl, tmp_path, halted):
    shutil.copytree(halted[0] / "runs", tmp_path / "runs")
    assert not (tmp_path / "runs" / NAME / "result.json").exists()
    resumed = itl("run", *tiny("tangent.steps=400"), "--resume")
    assert resumed.code == 0, resumed.err
    assert f"wrote runs/{NAME}\n" in resumed.out
    undisturbed = itl("run", *tiny("tangent.steps=400"), "--out", "whole")
    assert undisturbed.code == 0
    assert result(tmp_path / "runs" / NAME) == result(tmp_path / "whole")
    assert metrics(tmp_path / "runs" / NAME) == metrics(tmp_path / "whole")


def test_resume_takes_the_newest_unfinished_run_of_the_name(itl, tmp_path, kept):
    for name in (NAME, f"{NAME}-2", f"{NAME}-3"):
        shutil.copytree(kept, tmp_path / "runs" / name)
    for name in (f"{NAME}-2", f"{NAME}-3"):
        (tmp_path / "runs" / name / "result.json").unlink()
    os.utime(tmp_path / "runs" / f"{NAME}-2" / "config.json", (1, 1))
    done = itl("run", *tiny(), "--keep-specialists", "--resume", "--quiet")
    assert (done.code, done.out) == (0, f"runs/{NAME}-3\n")
    assert result(tmp_path / "runs" / f"{NAME}-3") == result(kept)


def test_resume_of_a_finished_run_shows_it_again(itl, tmp_path, kept):
    shutil.copytree(kept, tmp_path / "runs" / NAME)
    before = (tmp_path / "runs" / NAME / "result.json").read_bytes()
    done = itl("run", *tiny(), "--keep-specialists", "--resume", "--json")
    assert done.json == json.loads(before)
    assert (tmp_path / "runs" / NAME / "result.json").read_bytes() == before


def test_resume_with_nothing_there_begins(itl, tmp_path):
    done = itl("run", *tiny(), "--method", "er", "--resume", "--quiet")
    assert (done.code, done.out) == (0, "runs/seq-digits-er-20-seed0\n")


def test_resume_under_other_options_is_refused(itl, tmp_path, halted):
    shutil.copytree(halted[0] / "runs", tmp_path / "runs")
    done = itl("run", *tiny("tangent.steps=60"), "--resume")
    assert done.code == 2
    assert "another settings" in done.err
    assert NAME in done.err


def test_a_run_that_is_going_on_is_not_gone_on_with(itl, tmp_path, halted):
    shutil.copytree(halted[0] / "runs", tmp_path / "runs")
    place = tmp_path / "runs" / NAME
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with RunFolder(place).lock():
        outcome = itl("run", *tiny("tangent.steps=400"), "--resume")
    assert (outcome.code, outcome.err) == (2, f"itl: another process is at work on runs/{NAME}; wait for it to end\n")
    assert before == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
