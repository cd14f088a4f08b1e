"""`itl learn` as people meet it: folders in, a model out, one line for every mistake, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from itl.apps.model import Model
from itl.checkpoint.lock import lock
from support.image_folders import SMALL, as_options, write_pictures
from support.tiny import differing, photograph

QUICK = ["--device", "cpu", *as_options(SMALL)]
NEW = ["--size", "8", "--buffer", "12", *QUICK]


@pytest.fixture(autouse=True)
def days(tmp_path: Path) -> Path:
    """Three folders: two of new classes, one that mixes. All too few to be cached."""
    write_pictures(tmp_path / "monday", "ant", "bee")
    write_pictures(tmp_path / "tuesday", "cat")
    write_pictures(tmp_path / "friday", "bee", "dog", seed=1)
    return tmp_path


def test_three_folders_in_three_processes(itl, tmp_path):
    first = itl("learn", "m", "monday", *NEW)
    assert (first.code, first.err) == (0, "")
    assert "monday: " in first.out
    assert "wrote m (2 classes, 12 of 12 images in memory)" in first.out
    second = itl("learn", "m", "tuesday", *QUICK)
    assert second.code == 0
    again = itl("learn", "m", "tuesday", *QUICK)
    assert "tuesday: already learned" in again.out
    assert again.out.endswith("nothing new for m (3 classes, 12 of 12 images in memory)\n")
    third = itl("learn", "m", "friday", "--json", *QUICK)
    assert third.code == 0, third.err
    outcome = third.json
    assert outcome["lessons"][0]["new_classes"] == ["dog"]
    assert [row["name"] for row in outcome["tasks"]] == ["monday", "tuesday", "friday"]
    assert [row["name"] for row in outcome["classes"]] == ["ant", "bee", "cat", "dog"]
    assert all(row["now"] is not None for row in outcome["tasks"])
    assert outcome["tasks"][0]["forgotten"] == outcome["tasks"][0]["was"] - outcome["tasks"][0]["now"]
    assert Model.open(tmp_path / "m", device="cpu").learner.tasks == [(0, 1), (2,), (1, 3)]


def test_the_tables_have_a_row_for_every_task_and_class(itl):
    done = itl("learn", "m", "monday", "tuesday", *NEW)
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines() if line]
    assert ["task", "test", "images", "accuracy", "was", "forgotten"] in rows
    assert {"monday", "tuesday", "ant", "bee", "cat"} <= {row[0] for row in rows}
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_quiet_prints_the_folder_alone(itl):
    assert itl("learn", "m", "monday", "--quiet", *NEW).out == "m\n"


def test_a_dry_run_learns_nothing(itl, tmp_path):
    write_pictures(tmp_path / "monday", "ant", each=20, seed=9)
    done = itl("learn", "m", "monday", "tuesday", "--dry-run", *NEW)
    assert (done.code, done.err) == (0, "")
    assert "the largest class has" in done.out
    assert "of memory on cpu; nothing was learned" in done.out
    assert itl("learn", "m", "monday", "--dry-run", "--json", *NEW).json["lessons"][0]["folder"] == "monday"
    assert not (tmp_path / "m").exists()


def test_bad_files_are_listed_and_the_others_learned(itl, tmp_path):
    (tmp_path / "monday" / "ant" / "notes.txt").write_text("hello")
    (tmp_path / "monday" / "bee" / "zero.png").write_bytes(b"")
    (tmp_path / "monday" / "empty").mkdir()
    done = itl("learn", "m", "monday", *NEW)
    assert done.code == 0
    assert "3 things left out of monday:" in done.out
    for line in (
        "monday/empty: a class folder without files",
        "monday/ant/notes.txt: not an image in a supported format",
        "monday/bee/zero.png: the file is empty (0 bytes)",
    ):
        assert line in done.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["m", "none"], ["none does not exist"]),
        (["m", "monday/ant"], ["contains no class"]),
        (["monday", "tuesday"], ["monday is not a model folder and not empty", "model folder first"]),
        (["m", "monday", "--size", "7"], ["--size must be 8 to 224 pixels, not 7"]),
        (["m", "monday", "--buffer", "0"], ["--buffer must be at least 1"]),
        (["m", "monday", "--method", "itll"], ["unknown method 'itll'", "itl"]),
        (["m", "monday", "--set", "specialist.lr=-1"], ["specialist.lr"]),
        (["m", "monday", "--device", "tpu"], ["tpu"]),
        (["m", "monday", "--weights", "none.safetensors"], ["cannot read --weights none.safetensors"]),
        (["m", "monday", "--weights", "monday/ant/0000.png"], ["it is no safetensors file"]),
        (["m", "monday", "--json", "--quiet"], ["--json or --quiet, not both"]),
        (["m"], ["missing argument 'FOLDER…'"]),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_model(itl, tmp_path, args, words):
    done = itl("learn", *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("itl: ")
    assert done.err.count("\n") == 1
    for word in words:
        assert word in done.err
    assert not (tmp_path / "m").exists()


def test_a_model_that_somebody_else_teaches_is_refused_or_waited_for(itl, tmp_path):
    itl("learn", "m", "monday", *NEW)
    with lock(tmp_path / "m"):
        done = itl("learn", "m", "tuesday", *QUICK)
    assert done.code == 2
    assert str(os.getpid()) in done.err
    assert itl("learn", "m", "tuesday", "--wait", "5", *QUICK).code == 0


def test_ctrl_c_keeps_what_was_learned_and_the_same_command_goes_on(itl, tmp_path):
    slow = as_options({"specialist.epochs": 120})
    command = ["learn", "m", "monday", "tuesday", *NEW, *slow]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "itl.cli", *command], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    )
    for _ in range(6000):
        if (tmp_path / "m" / "CURRENT").exists():  # the first folder is learned
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "itl: interrupted; m keeps what was learned, and the same command goes on\n"
    done = itl(*command, "--json")
    assert done.code == 0, done.err
    assert [lesson["learned"] for lesson in done.json["lessons"]] == [False, True]
    itl("learn", "whole", *command[2:])
    models = [Model.open(tmp_path / name, device="cpu").learner for name in ("m", "whole")]
    assert not differing(*map(photograph, models))
    again = itl(*command, "--json").json["lessons"]
    assert ["already learned" in lesson["why_not"] for lesson in again] == [True, True]


def test_the_history_says_what_was_learned(itl, tmp_path):
    itl("learn", "m", "monday", "--no-test", *NEW)
    (entry,) = Model.open(tmp_path / "m", device="cpu").history
    assert (entry["what"], entry["folder"], entry["name"]) == ("learn", "../monday", "monday")
    assert entry["classes"] == {"ant": 10, "bee": 10}
    assert entry["accuracy"] == {"all": None, "task": None, "classes": {}}
    json.dumps(entry)
    assert "learn monday: 20 images of 2 classes\n" in itl("info", "m").out
