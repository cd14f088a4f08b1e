"""`itl run --resume`: an interrupted run ends with the same result as an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from itl.experiments.config import Config, first_few
from itl.results import RunFolder
from support.cli_process import interrupt_when, tiny

NAME = "seq-digits-itl-20-seed0"


def result(folder) -> dict:
    return {k: v for k, v in json.loads((folder / "result.json").read_text()).items() if k != "seconds"}


def metrics(folder) -> str:
    return (folder / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, fork_server):
    """The folder and the outcome of a run that was interrupted by Ctrl-C in its second task."""
    folder = tmp_path_factory.mktemp("interrupted")
    process = fork_server.start(["run", *tiny("tangent.steps=6")], folder, pause_at="metrics.jsonl")
    interrupt_when(process, (folder / "runs" / NAME / "model/CURRENT").exists)  # saved at the end of the first task
    return folder, process.wait()


def test_ctrl_c_prints_how_to_continue(interrupted):
    _, ended = interrupted
    assert ended.code == 130
    assert ended.out.startswith("task 1 of 2, specialist: Class-IL ")
    assert "wrote" not in ended.out
    assert ended.err == f"itl: Interrupted. To continue runs/{NAME}, repeat the command with --resume.\n"


def test_a_resumed_run_equals_an_uninterrupted_one(itl, tmp_path, interrupted):
    shutil.copytree(interrupted[0] / "runs", tmp_path / "runs")
    assert not (tmp_path / "runs" / NAME / "result.json").exists()
    resumed = itl("run", *tiny("tangent.steps=6"), "--resume")
    assert resumed.code == 0, resumed.err
    assert f"wrote runs/{NAME}\n" in resumed.out
    uninterrupted = itl("run", *tiny("tangent.steps=6"), "--out", "uninterrupted")
    assert uninterrupted.code == 0
    assert result(tmp_path / "runs" / NAME) == result(tmp_path / "uninterrupted")
    assert metrics(tmp_path / "runs" / NAME) == metrics(tmp_path / "uninterrupted")


def test_resume_continues_the_newest_unfinished_run(itl, tmp_path, finished_run):
    for name in (NAME, f"{NAME}-2", f"{NAME}-3"):
        shutil.copytree(finished_run, tmp_path / "runs" / name)
    for name in (f"{NAME}-2", f"{NAME}-3"):
        (tmp_path / "runs" / name / "result.json").unlink()
    os.utime(tmp_path / "runs" / f"{NAME}-2" / "config.json", (1, 1))
    done = itl("run", *tiny(), "--keep-specialists", "--resume", "--quiet")
    assert (done.code, done.out, done.err) == (0, f"runs/{NAME}-3\n", f"itl: Resuming runs/{NAME}-3.\n")
    assert result(tmp_path / "runs" / f"{NAME}-3") == result(finished_run)


def test_resume_of_a_finished_run_shows_it_again(itl, tmp_path, finished_run):
    shutil.copytree(finished_run, tmp_path / "runs" / NAME)
    before = (tmp_path / "runs" / NAME / "result.json").read_bytes()
    done = itl("run", *tiny(), "--keep-specialists", "--resume", "--json")
    assert done.json == json.loads(before)
    assert done.err == f"itl: runs/{NAME} is finished; nothing to resume.\n"
    assert (tmp_path / "runs" / NAME / "result.json").read_bytes() == before


def test_resume_without_an_earlier_run_starts_one(itl, tmp_path):
    done = itl("run", *tiny(), "--method", "er", "--resume", "--quiet")
    assert (done.code, done.out) == (0, "runs/seq-digits-er-20-seed0\n")
    assert done.err == "itl: No unfinished run with these options. Starting runs/seq-digits-er-20-seed0.\n"


def test_resume_with_other_options_is_refused(itl, tmp_path, interrupted):
    shutil.copytree(interrupted[0] / "runs", tmp_path / "runs")
    done = itl("run", *tiny("tangent.steps=60"), "--resume")
    assert done.code == 2
    assert done.err == (
        f"itl: runs/{NAME} contains a run with different options: tangent.steps 6, not 60. "
        "Resume it with its own options.\n"
    )


def test_resume_with_another_seed_says_that_a_new_run_starts(itl, tmp_path, interrupted):
    shutil.copytree(interrupted[0] / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.json").write_text("[")
    done = itl("run", *tiny("tangent.steps=60"), "--seed", "1", "--resume", "--quiet")
    name = NAME.replace("seed0", "seed1")
    assert (done.code, done.out) == (0, f"runs/{name}\n")
    assert done.err == (
        f"itl: No unfinished run with these options; the latest one of itl, runs/{NAME}, has "
        f"seed 0, not 1; tangent.steps 6, not 60. Starting runs/{name}.\n"
    )


def test_resume_of_several_runs_counts_them(itl, tmp_path, finished_run):
    shutil.copytree(finished_run, tmp_path / "out" / NAME)
    done = itl("run", *tiny(), "--keep-specialists", "--seeds", "0,1", "--out", "out", "--resume", "--quiet")
    assert (done.code, done.err) == (0, "itl: Of 2 runs, 1 finished before, 0 resumed, 1 new.\n")


def test_only_a_few_differences_are_named():
    other = Config(seed=1, buffer=3, tasks=2, settings={"a": 1, "b": "x" * 99})
    assert first_few(Config().differences(other)) == "buffer 3, not 20; seed 1, not 0; tasks 2, not the default; 2 more"


def test_resume_refuses_a_run_that_is_in_progress(itl, tmp_path, interrupted):
    shutil.copytree(interrupted[0] / "runs", tmp_path / "runs")
    run_folder = tmp_path / "runs" / NAME
    with RunFolder(run_folder).lock():
        before = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
        outcome = itl("run", *tiny("tangent.steps=6"), "--resume")
        after = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
    assert (outcome.code, outcome.err) == (
        2,
        f"itl: Resuming runs/{NAME}.\nitl: another process is writing to runs/{NAME}; wait until it has finished\n",
    )
    assert before == after


def test_a_finished_run_keeps_no_temporary_files_of_killed_processes(itl, tmp_path, interrupted):
    shutil.copytree(interrupted[0] / "runs", tmp_path / "runs")
    run_folder = tmp_path / "runs" / NAME
    for name in (".predictions.0123456789abcdef.tmp.npz", ".result.0123456789abcdef.tmp.json"):
        (run_folder / name).write_bytes(b"half a file")
    assert itl("run", *tiny("tangent.steps=6"), "--resume", "--quiet").code == 0
    assert {path.name for path in run_folder.iterdir() if path.name.startswith(".")} <= {".lock"}
