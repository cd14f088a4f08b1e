"""A lesson and a run survive a power failure, and an error of the disk, at their file operations.

Both commands save after every round, so their operations include those of unfinished states. After each failure the
folder opens to a complete state, and the repeated command ends as if nothing had happened.

A power failure is simulated before every operation. States with equal content are checked once, and the command is
repeated in about twenty of them.

Disk errors are simulated for groups of equivalent operations, which do the same to files of the same name, except for
numbers and class names. The last operation of a group fails with ENOSPC and with EIO, the first one with one of the
two. The command is repeated once for each set of file names that a failure leaves behind.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from itl.apps.model import Model
from itl.apps.model.generations import pending_lesson, saved_history
from itl.checkpoint import store
from itl.experiments.config import Config
from itl.results import RunFolder
from support.cli_process import Outcome
from support.command_line import run_in_process
from support.image_folders import as_options, write_images
from support.records import without_keys
from support.simulated_disk import Operation, SimulatedDisk, Tree, read_tree, watch, write_tree
from support.tiny import learner_snapshot, tiny_stream

pytestmark = pytest.mark.slow
SETTINGS = {"net.name": "resnet8", "net.width": 4, "specialist.epochs": 1, "specialist.batch": 8}
LEARN = ["learn", "disk/m", "one", "two", "--method", "er", "--buffer", "4", "--size", "8", "--no-test", "--quiet"]
RUN = ["run", "--resume", "--out", "disk/run", "--method", "er", "--buffer", "4", "--curves", "1"]
COMMANDS = {
    "learn": [*LEARN, "--device", "cpu", *as_options({**SETTINGS, "net.strided": False})],
    "run": [*RUN, "--quiet", "--device", "cpu", *as_options({**SETTINGS, "specialist.steps": 2})],
}
MIXED_FAILURES = 1  # random power failures before each operation
RESUMED_STATES = 20  # states after a power failure in which the command is repeated
VARYING = ("seconds", "date", "generations")  # a failure may skip numbers of generations


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: images to learn and an empty folder, `disk`, to write to."""
    write_images(tmp_path / "one", "ant", "bee", each=4)
    write_images(tmp_path / "two", "cat", each=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITL_CACHE", "off")
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    monkeypatch.setattr(Config, "load_stream", lambda *_: tiny_stream())
    clear_disk()
    return tmp_path


def clear_disk() -> None:
    shutil.rmtree("disk", ignore_errors=True)
    os.mkdir("disk")


def lesson_state(disk: Path) -> str:
    """The last finished state of the model in a folder, as text; empty if there is none."""
    if not (disk / "m" / "CURRENT").exists():
        return ""
    current = disk / "m" / store.current(disk / "m")
    if pending_lesson(current) is not None:
        store.read(disk / "m")
        if not saved_history(disk / "m"):  # the first lesson is unfinished
            return ""
    model = Model.open(disk / "m", device="cpu", last_finished=True)
    assert not model.damaged_images
    arrays = {name: tensor.tolist() for name, tensor in learner_snapshot(model.learner).items()}
    return json.dumps([arrays, model.output_names, without_keys(model.history, *VARYING)])


def run_state(disk: Path) -> str:
    """The result of the run in a folder, as text; empty if it is unfinished."""
    run = RunFolder(disk / "run")
    if not (run.path / "config.json").exists():
        return ""
    assert run.read("config.json")["method"] == "er"
    if (run.model / "CURRENT").exists():
        state = store.read(run.model)[1]
        assert len(run.read_lines()) >= state["notes"].get("lines", 0)
    if not (run.path / "result.json").exists():
        return ""
    assert run.read_arrays("predictions.npz") is not None
    assert run.read_arrays("pictures.npz") is not None
    return json.dumps([without_keys(run.read("result.json"), *VARYING), run.read_lines()])


STATES: dict[str, Callable[[Path], str]] = {"learn": lesson_state, "run": run_state}


def errors(outcome: Outcome) -> str:
    """Standard error without the line on what `--resume` found."""
    return re.sub(r"^itl: (Resuming|No unfinished run|disk/run is finished).*\n", "", outcome.err)


def record(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """Run a command on the empty disk and return its operations."""
    with watch(Path("disk"), monkeypatch) as log:
        outcome = run_in_process(*COMMANDS[name])
    assert (outcome.code, errors(outcome)) == (0, "")
    return log


def crashes(log: list[Operation]) -> Iterator[tuple[str, bool, Tree]]:
    """What a power failure before each operation and at the end can leave: description, whether the minimum, tree."""
    disk = SimulatedDisk({})
    for number, operation in enumerate([*log, None]):
        where = f"before operation {number}, {operation and (operation.kind, operation.path, operation.target)}"
        yield f"{where}: nothing unflushed survives", True, disk.after_power_failure(names_survive=False)
        yield f"{where}: names survive, data do not", False, disk.after_power_failure(names_survive=True)
        yield f"{where}: everything survives", False, disk.present()
        for seed in range(MIXED_FAILURES):
            rng = random.Random(f"{number}/{seed}")
            yield f"{where}: a part survives, seed {seed}", False, disk.after_random_failure(rng)
        if operation is not None:
            disk.apply(operation)
    assert disk.present() == read_tree(Path("disk"))  # otherwise something was written past the watched functions


def expected_states(name: str) -> list[str]:
    """The complete states in their order: nothing, the first lesson (of a model), everything."""
    final = STATES[name](Path("disk"))
    clear_disk()
    if name == "run":
        return ["", final]
    words = [word for word in COMMANDS["learn"] if word != "two"]
    assert run_in_process(*words).code == 0
    return ["", lesson_state(Path("disk")), final]


@pytest.mark.parametrize("name", COMMANDS)
def test_folder_survives_a_power_failure(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = list(crashes(record(name, monkeypatch)))
    states = expected_states(name)
    distinct = {repr(sorted(tree.items())): (where, tree) for where, _, tree in found}
    indices: dict[str, int] = {}
    for number, (key, (where, tree)) in enumerate(distinct.items()):
        disk = write_tree(tree, folder / f"crash-{number}")
        try:
            indices[key] = states.index(STATES[name](disk))
        except Exception as error:
            raise AssertionError(f"{where}: {error}") from error
        if number % (len(distinct) // RESUMED_STATES + 1) == 0:
            shutil.rmtree("disk")
            disk.rename("disk")
            assert_repeats(name, states[-1], where)
        shutil.rmtree(disk, ignore_errors=True)
    minimum = [indices[repr(sorted(tree.items()))] for _, is_minimum, tree in found if is_minimum]
    assert minimum == sorted(minimum)  # what was once durable stays
    assert minimum[-1] == len(states) - 1  # what a command reports as done is durable


def assert_repeats(name: str, final: str, where: str) -> None:
    """Assert that the repeated command finishes as if it had not been interrupted."""
    outcome = run_in_process(*COMMANDS[name])
    assert (outcome.code, errors(outcome)) == (0, ""), f"{where}: {outcome.err}"
    assert STATES[name](Path("disk")) == final, where


def chosen_failures(log: list[Operation]) -> Iterator[tuple[tuple[str, str], int, int]]:
    """The operations that fail: the group, the number in it, and the error."""
    counts = Counter(operation.group for operation in log)
    for number, (group, count) in enumerate(counts.items()):
        if count > 1:
            yield group, 0, (errno.ENOSPC, errno.EIO)[number % 2]
        yield group, count - 1, errno.ENOSPC
        yield group, count - 1, errno.EIO


@pytest.mark.parametrize("name", COMMANDS)
def test_command_survives_an_error_of_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    record(name, monkeypatch)
    states = expected_states(name)  # leaves a model with the first lesson on the disk
    start = read_tree(Path("disk"))
    log = record(name, monkeypatch)
    failures = []
    seen_outcomes: set[tuple[str, ...]] = set()
    for group, number, code in chosen_failures(log):
        shutil.rmtree("disk")
        write_tree(start, Path("disk"))
        try:
            state = fail_once(name, monkeypatch, group, number, code, states)
            names = state, *sorted({re.sub("[0-9a-f]{16}", "#", path) for path in read_tree(Path("disk"))})
            if names not in seen_outcomes:
                seen_outcomes.add(names)
                assert_repeats(name, states[-1], "repeated")
        except Exception as error:
            failures.append(f"{errno.errorcode[code]} at {group}, number {number}: {error!r}"[:400])
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:30])


@pytest.mark.parametrize("group", [("mkdir", "m"), ("fsync", "."), ("create", "m/LOCK"), ("write", "m/.CURRENT.#.tmp")])
def test_first_lesson_survives_an_error_of_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: tuple[str, str]
) -> None:
    record("learn", monkeypatch)
    states = expected_states("learn")
    clear_disk()
    assert fail_once("learn", monkeypatch, group, 0, errno.EIO, states) == ""
    assert_repeats("learn", states[-1], "repeated")


def fail_once(
    name: str, monkeypatch: pytest.MonkeyPatch, group: tuple[str, str], number: int, code: int, states: list[str]
) -> str:
    """Run a command in which one operation fails, check its message, and return the state that it leaves."""
    counts: Counter[tuple[str, str]] = Counter()

    def before(operation: Operation) -> None:
        counts[operation.group] += 1
        if operation.group == group and counts[group] == number + 1:
            named = () if operation.kind in ("write", "fsync") else (os.path.join("disk", operation.path),)
            raise OSError(code, os.strerror(code), *named)

    with watch(Path("disk"), monkeypatch, before):
        outcome = run_in_process(*COMMANDS[name])
    assert counts[group] > number, "the operation was not reached"
    state = STATES[name](Path("disk"))
    assert state in states
    if outcome.code == 0:
        assert (state == states[-1], errors(outcome)) == (True, "")
    else:
        assert (outcome.code, errors(outcome).count("\n")) == (2, 1), outcome
        assert re.match(r"itl: .* disk/\w.*: (No space left|Input/output error)", errors(outcome)), outcome
        assert ".tmp" not in outcome.err, outcome  # names of temporary files say nothing to users
    return state
