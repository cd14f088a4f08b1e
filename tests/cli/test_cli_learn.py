"""`itl learn`: learning folders, its output, its errors, and interruption."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from itl.apps.model import Model
from itl.checkpoint.lock import lock
from support.cli_process import interrupt_when
from support.image_folders import IMAGE_SETTINGS, as_options, write_images
from support.tiny import differing_keys, learner_snapshot

QUICK = ["--device", "cpu", *as_options(IMAGE_SETTINGS)]
NEW = ["--size", "8", "--buffer", "12", *QUICK]


@pytest.fixture(autouse=True)
def days(tmp_path: Path) -> Path:
    """Three folders: two with new classes, one with a known and a new class. All too small to be cached."""
    write_images(tmp_path / "monday", "ant", "bee")
    write_images(tmp_path / "tuesday", "cat")
    write_images(tmp_path / "friday", "bee", "dog", seed=1)
    return tmp_path


def test_learn_extends_a_model_over_several_processes(itl, tmp_path):
    first = itl("learn", "m", "monday", *NEW)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("monday: ")
    assert "wrote m (2 classes, 12 of 12 images in memory)" in first.out
    second = itl("learn", "m", "tuesday", *QUICK)
    assert second.code == 0
    again = itl("learn", "m", "tuesday", *QUICK)
    assert "tuesday: already learned" in again.out
    assert itl("report", "m").out == "wrote m/report.html\n"
    assert "learn monday" in (tmp_path / "m/report.html").read_text()
    assert "unchanged: m (3 classes, 12 of 12 images in memory)\n" in again.out
    third = itl("learn", "m", "friday", "--json", *QUICK)
    assert third.code == 0, third.err
    outcome = third.json
    assert outcome["lessons"][0]["new_classes"] == ["dog"]
    assert [row["name"] for row in outcome["tasks"]] == ["monday", "tuesday", "friday"]
    assert [row["name"] for row in outcome["classes"]] == ["ant", "bee", "cat", "dog"]
    assert all(row["now"] is not None for row in outcome["tasks"])
    assert outcome["tasks"][0]["forgotten"] == outcome["tasks"][0]["was"] - outcome["tasks"][0]["now"]
    assert Model.open(tmp_path / "m", device="cpu").learner.tasks == [(0, 1), (2,), (1, 3)]


def test_learn_prints_a_row_for_every_task_and_class(itl):
    done = itl("learn", "m", "monday", "tuesday", *NEW)
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines() if line]
    assert ["task", "test", "images", "accuracy", "when", "learned", "forgotten"] in rows
    assert {"monday", "tuesday", "ant", "bee", "cat"} <= {row[0] for row in rows}
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_long_class_names_take_one_line_that_shows_how_they_differ(itl, tmp_path):
    start = "a hummingbird hawk-moth of the southern mountains, wings"
    for old, new in (("ant", f"{start} open"), ("bee", f"{start} closed"), ("cat", "蛾" * 30)):
        write_images(tmp_path / "moths", old)
        (tmp_path / "moths" / old).rename(tmp_path / "moths" / new)
    learned = itl("learn", "m", "moths", *NEW).out
    tables = {"learn": learned.partition("\nclass ")[2].partition("\naccuracy")[0]}
    tables["eval"] = itl("eval", "m", "moths").out.partition("\nconfusion")[0]
    tables["dry run"] = itl("learn", "new", "moths", "--dry-run", *NEW).out
    for name, table in tables.items():
        for end in ("open", "closed", "蛾蛾"):
            rows = [line for line in table.splitlines() if re.search(rf"^\S.*{end} .* [\d.]+", line)]
            assert len(rows) == 1, (name, end, table)
            assert cell_len(rows[0]) <= 80


def test_learn_quiet_prints_only_the_folder(itl):
    assert itl("learn", "m", "monday", "--quiet", *NEW).out == "m\n"


def test_learn_prints_one_plain_line_per_stage_if_the_output_is_not_a_terminal(itl):
    lines = [line for line in itl("learn", "m", "monday", *NEW).out.splitlines() if line.startswith("monday:")]
    stages = ["learning the new images", "learning from the memory", "combining old and new"]
    assert [line.split(": ")[1].partition(",")[0] for line in lines[:-1]] == stages
    assert all(re.fullmatch(r"monday: [a-z ]+, \d+ epochs?, \d:\d\d", line) for line in lines[:-1])
    quiet = itl("learn", "m", "tuesday", "--quiet", *QUICK)
    assert quiet.out == "m\n"


@pytest.mark.parametrize("command", ["learn", "predict", "eval", "info"])
def test_help_of_folder_commands_has_no_terms_of_the_benchmark(quick_itl, command):
    text = quick_itl(command, "--help").out.lower()
    assert not re.findall("specialist|generalist|half-pipe|tangent|class-il|expert", text)


def test_dry_run_refuses_what_learn_refuses(itl, tmp_path):
    write_images(tmp_path / "broken", "eel")
    for file in (tmp_path / "broken/eel").iterdir():
        file.write_bytes(b"no image")
    for words in (["broken"], ["monday", "--set", "memory.outgrown=refuse", "--buffer", "1"]):
        options = [*words, "--size", "8", *QUICK]
        refused, planned = itl("learn", "m", *options), itl("learn", "m", *options, "--dry-run")
        assert (refused.code, planned.code) == (2, 2)
        assert re.fullmatch(rf"{words[0]}: \d+ files of \d class(es)?, \d+( to \d+)? of each class\n", planned.out)
        assert planned.err == refused.err
        assert not (tmp_path / "m" / "CURRENT").exists()


def test_dry_run_decodes_a_sample_and_shows_epochs(itl, tmp_path):
    (tmp_path / "monday/ant/0000.png").write_bytes(b"no image")
    done = itl("learn", "m", "monday", "--dry-run", *NEW)
    epochs = IMAGE_SETTINGS["specialist.epochs"]
    assert f"images to learn; {epochs} epoch" in done.out
    assert "skipped: monday/ant/0000.png: not an image in a supported format" in done.out
    assert not (tmp_path / "m").exists()


def test_learn_dry_run_learns_nothing(itl, tmp_path):
    write_images(tmp_path / "monday", "ant", each=20, seed=9)
    done = itl("learn", "m", "monday", "tuesday", "--dry-run", *NEW)
    assert (done.code, done.err) == (0, "")
    assert "the largest class has" in done.out
    assert "of memory on cpu; dry run, nothing was learned" in done.out
    assert itl("learn", "m", "monday", "--dry-run", "--json", *NEW).json["lessons"][0]["folder"] == "monday"
    assert not (tmp_path / "m").exists()


def test_learn_lists_unreadable_files_and_learns_the_others(itl, tmp_path):
    (tmp_path / "monday" / "ant" / "notes.txt").write_text("hello")
    (tmp_path / "monday" / "bee" / "zero.png").write_bytes(b"")
    (tmp_path / "monday" / "empty").mkdir()
    done = itl("learn", "m", "monday", *NEW)
    assert done.code == 0
    assert "3 items of monday skipped:" in done.out
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
        (["m", "monday", "--weights", "none.safetensors"], ["cannot read --weights none.safetensors: No such file"]),
        (["m", "monday", "--weights", "monday"], ["cannot read --weights monday: not a regular file"]),
        (["m", "monday", "--weights", "monday/ant/0000.png"], ["it is not a safetensors file"]),
        (["m", "monday", "--json", "--quiet"], ["Use either --json or --quiet, not both."]),
        (["m"], ["Missing argument 'FOLDER…'"]),
    ],
)
def test_learn_with_a_wrong_option_fails_and_creates_no_model(quick_itl, tmp_path, args, words):
    done = quick_itl("learn", *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("itl: ")
    assert done.err.count("\n") == 1
    for word in words:
        assert word.casefold() in done.err.casefold(), done.err
    assert not (tmp_path / "m").exists()


def test_learn_refuses_or_waits_for_a_locked_model(itl, tmp_path):
    itl("learn", "m", "monday", *NEW)
    with lock(tmp_path / "m"):
        done = itl("learn", "m", "tuesday", *QUICK)
    assert done.code == 2
    assert str(os.getpid()) in done.err
    assert itl("learn", "m", "tuesday", "--wait", "5", *QUICK).code == 0


def is_learning(model: Path, name: str) -> bool:
    """Whether the saved state is within the specialist stage of the folder `name`."""
    if not (model / "CURRENT").exists():
        return False
    opened = Model.open(model, device="cpu")
    return opened.pending is not None and opened.pending["what"] == name and opened.learner.position[0] == "specialist"


def test_learn_continues_after_ctrl_c_and_ends_with_the_same_weights(itl, fork_server, tmp_path):
    command = ["learn", "m", "monday", "tuesday", *NEW, *as_options({"specialist.epochs": 4})]
    process = fork_server.start(command, tmp_path, env={"ITL_SAVE_EVERY": "0"}, pause_at="CURRENT")
    interrupt_when(process, lambda: is_learning(tmp_path / "m", "tuesday"))
    ended = process.wait()
    assert ended.code == 130
    assert [line.partition(":")[0] for line in ended.out.splitlines() if " images of " in line] == ["monday"]
    assert ended.err == "itl: Interrupted. m keeps what it has learned. To continue, repeat the command.\n"
    done = itl(*command, "--json")
    assert done.code == 0, done.err
    assert [lesson["learned"] for lesson in done.json["lessons"]] == [False, True]
    itl("learn", "uninterrupted", *command[2:])
    models = [Model.open(tmp_path / name, device="cpu").learner for name in ("m", "uninterrupted")]
    assert not differing_keys(*map(learner_snapshot, models))
    again = itl(*command, "--json").json["lessons"]
    assert ["already learned" in lesson["why_not"] for lesson in again] == [True, True]


def test_learn_adds_an_entry_to_the_history(itl, tmp_path):
    itl("learn", "m", "monday", "--no-test", *NEW)
    (entry,) = Model.open(tmp_path / "m", device="cpu").history
    assert (entry["what"], entry["folder"], entry["name"]) == ("learn", "../monday", "monday")
    assert entry["classes"] == {"ant": 10, "bee": 10}
    assert entry["accuracy"] == {"all": None, "task": None, "classes": {}}
    json.dumps(entry)
    assert "learn monday: 20 images of 2 classes\n" in itl("info", "m").out
