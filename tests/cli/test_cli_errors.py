"""User errors: one line on stderr that says what is wrong and what to do, exit code 2, nothing written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from itl.callbacks.base import Callback
from itl.errors import UserError
from itl.experiments.run import Config, run
from itl.learner import load_learner
from support.cli_process import Outcome, tiny


def assert_user_error(outcome: Outcome, *words: str) -> None:
    """The command failed with one line that contains all `words`, in upper or lower case."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("itl: ")
    assert outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word.casefold() in outcome.err.casefold(), outcome.err


MISTAKES = {
    "unknown command": (["rnu"], "unknown command 'rnu'", "did you mean 'run"),
    "unknown option": (["run", "--sed", "1"], "unknown option '--sed'", "--seed"),
    "option without a similar one": (["methods", "--zzz"], "unknown option '--zzz'", "--json"),
    "option of the program": (["--verison"], "--version"),
    "no value": (["run", "--seed"], "--seed", "requires an argument"),
    "not a number": (["run", "--buffer", "many"], "--buffer", "many", "itl run --help"),
    "extra argument": (["run", "seq-digits"], "seq-digits"),
    "no run to refine": (["refine"], "RUN"),
    "unknown method": (["run", "--method", "itll"], "unknown method 'itll'", "'itl-l', 'itl' or 'itl-l-na'"),
    "unknown method to show": (["methods", "errr"], "unknown method 'errr'", "er"),
    "unknown stream": (["run", "--stream", "seq-digit"], "unknown stream", "seq-digits"),
    "unknown split": (["run", "--split", "validate"], "unknown split", "validation"),
    "unknown device": (["run", "--device", "gpu0"], "unknown device 'gpu0'", "auto, cpu or cuda"),
    "no GPU": (["run", "--device", "cuda"], "--device cpu"),
    "unknown setting": (["run", "--set", "tangent.l=1"], "unknown setting 'tangent.l'", "tangent.lr", "tangent.l2"),
    "unknown network": (["run", "--set", "net.name=resnet19"], "unknown backbone", "resnet18"),
    "unknown specialist": (["run", "--set", "specialist.name=derp"], "unknown specialist", "derpp"),
    "unknown policy": (["run", "--set", "augment.task=cifar"], "unknown AutoAugment policy", "cifar10"),
    "unknown memory policy": (["run", "--set", "memory.policy=stratifed"], "unknown memory policy", "stratified"),
    "wrong type": (["run", "--set", "specialist.epochs=few"], "specialist.epochs", "'few'", "integer"),
    "out of range": (["run", "--set", "tangent.momentum=1"], "tangent.momentum", "less than 1"),
    "no epochs": (["run", "--epochs", "0"], "specialist.epochs", "greater than or equal to 1"),
    "epochs twice": (["run", "--epochs", "2", "--set", "specialist.epochs=3"], "use one of them"),
    "setting without value": (["run", "--set", "tangent.lr"], "key=value", "tangent.lr"),
    "setting without key": (["run", "--set", "=3"], "key=value"),
    "contradictory settings": (["run", "--set", "generalist=none", "--set", "project=true"], "generalist=none"),
    "no memory": (["run", "--set", "memory.policy=none"], "memory.policy=stratified"),
    "small buffer": (["run", "--buffer", "5"], "buffer of 5", "10 classes", "--buffer 10"),
    "absurd buffer": (["run", "--buffer", "100000000000000000000"], "too large", "at most 10000000"),
    "name too long": (["run", "--out", 300 * "x"], "xxx", "too long"),
    "model's name too long": (["predict", 300 * "x", "a.png"], "xxx", "too long"),
    "negative buffer": (["run", "--buffer", "-1"], "negative"),
    "more tasks than classes": (["run", "--tasks", "11"], "10 classes", "11 tasks"),
    "no tasks": (["run", "--tasks", "0"], "tasks must be 1 or more"),
    "order that is not a number": (["run", "--order", "a,b"], "--order", "a,b"),
    "order with a class twice": (["run", "--order", "0,0,1,2,3,4,5,6,7,8"], "exactly once"),
    "two orders": (["run", "--order", "9,8,7,6,5,4,3,2,1,0", "--order-seed", "1"], "order_seed"),
    "seeds that are not numbers": (["run", "--seeds", "0-4"], "--seeds", "0,1,2"),
    "a seed twice": (["run", "--seeds", "1,1"], "twice"),
    "seed and seeds": (["run", "--seed", "0", "--seeds", "1,2"], "not both"),
    "negative seed": (["run", "--seed", "-3"], "0 or more"),
    "variant that is a path": (["run", "--variant", "../x"], "--variant"),
    "two output formats": (["run", "--json", "--quiet"], "not both"),
    "missing dataset": (["run", "--stream", "seq-cifar10"], "cifar-10-binary.tar.gz", "data", "--download"),
    "missing dataset elsewhere": (["run", "--stream", "seq-mnist", "--data", "there"], "there", "--download"),
    "missing configuration": (["run", "--config", "none.json"], "cannot read", "none.json", "No such file"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_run_with_a_wrong_option_fails_and_writes_nothing(itl, quick_itl, tmp_path, name):
    args, *words = MISTAKES[name]
    command = itl if name == "no GPU" else quick_itl  # this process may see a GPU
    assert_user_error(command(*args), *words)
    assert list(tmp_path.iterdir()) == []


CONFIGURATIONS = {
    "invalid JSON": ("{stream", "not valid JSON"),
    "a list": ("[1]", "JSON object"),
    "settings not an object": ('{"settings": 3}', "JSON object"),
    "unknown entry": ('{"bufer": 20}', "unknown entry of --config 'bufer'", "buffer"),
    "wrong type": ('{"buffer": "20"}', "buffer", "integer"),
    "unknown setting": ('{"settings": {"tangent": {"rl": 1}}}', "unknown setting 'tangent.rl'", "tangent.lr"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_run_with_an_invalid_config_file_fails(quick_itl, tmp_path, name):
    text, *words = CONFIGURATIONS[name]
    (tmp_path / "my.json").write_text(text)
    assert_user_error(quick_itl("run", "--config", "my.json"), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["my.json"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_run_does_not_overwrite_an_existing_run(quick_itl, finished_run):
    before = contents(finished_run)
    assert_user_error(quick_itl("run", *tiny(), "--out", finished_run), "already contains a run", "--out", "--resume")
    assert_user_error(
        quick_itl("run", *tiny("tangent.lr=0.5"), "--keep-specialists", "--out", finished_run, "--resume"),
        "different options: tangent.lr the default, not 0.5",
    )
    assert contents(finished_run) == before


def test_run_refuses_an_out_that_is_a_file(quick_itl, tmp_path):
    (tmp_path / "notes").write_text("mine")
    assert_user_error(quick_itl("run", *tiny(), "--out", "notes"), "is a file")
    assert_user_error(quick_itl("run", *tiny(), "--out", "notes/run"), "--out")
    assert contents(tmp_path) == {"notes": b"mine"}


REFINEMENTS = {
    "forbidden setting": (["--set", "specialist.lr=1"], "specialist.lr", "tangent.*"),
    "forbidden option": (
        ["--set", "specialist.options.average=0.5"],
        "cannot change specialist.options.average",
        "tangent.*",
    ),
    "forbidden augmentation": (["--set", "augment.task=none"], "augment.task", "augment.memory"),
    "unknown setting": (["--set", "tangnet.lr=1"], "unknown setting", "tangent.lr"),
    "one bad value of several": (["--set", "tangent.lr=0.1,high"], "tangent.lr", "'high'"),
    "setting without value": (["--set", "tangent.lr"], "key=value"),
    "logits that are not stored": (["--set", "tangent.alpha=1"], "stored logits"),
    "no such task": (["--tasks", "3"], "task 3", "1, 2"),
    "tasks that are not numbers": (["--tasks", "first"], "last, all"),
    "existing output file": (["--out", "mine.json"], "mine.json already exists"),
    "no GPU": (["--device", "cuda"], "--device cpu"),
}


@pytest.mark.parametrize("name", REFINEMENTS)
def test_refine_with_a_wrong_option_fails_and_writes_nothing(itl, quick_itl, tmp_path, finished_run, name):
    args, *words = REFINEMENTS[name]
    (tmp_path / "mine.json").write_text("mine")
    before = contents(finished_run)
    command = itl if name == "no GPU" else quick_itl
    assert_user_error(command("refine", finished_run, *args), *words)
    assert contents(finished_run) == before
    assert contents(tmp_path) == {"mine.json": b"mine"}


def test_refine_needs_a_run_with_saved_specialists(quick_itl, tmp_path, finished_run):
    (tmp_path / "empty").mkdir()
    assert_user_error(quick_itl("refine", "empty"), "no config.json", "run")
    assert_user_error(quick_itl("refine", "nowhere"), "no config.json")
    shutil.copytree(finished_run, tmp_path / "bare", ignore=shutil.ignore_patterns("specialists"))
    assert_user_error(quick_itl("refine", "bare"), "--keep-specialists")


def test_refine_refuses_a_damaged_specialist(itl, tmp_path, finished_run):
    shutil.copytree(finished_run, tmp_path / "run")
    (tensors,) = (tmp_path / "run/specialists/task-02").rglob("tensors.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-9])
    assert_user_error(itl("refine", "run"), "damaged", "checksum")


def test_an_internal_error_prints_a_traceback_and_exits_with_1(monkeypatch, capfd, tmp_path):
    import itl.experiments.run
    from itl.cli import main

    def fails(*args, **options):
        raise RuntimeError("boom")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(itl.experiments.run, "run", fails)
    with pytest.raises(SystemExit) as stop:
        main(["run"])
    err = capfd.readouterr().err
    assert stop.value.code == 1
    assert err.startswith("itl: Internal error (RuntimeError).")
    assert "Traceback" in err
    assert "boom" in err


def test_the_installed_program_runs_this_command_line(tmp_path):
    command = Path(sys.executable).with_name("itl")
    done = subprocess.run([command, "run", "--method", "ilt"], cwd=tmp_path, capture_output=True, text=True)
    assert_user_error(Outcome(done.returncode, done.stdout, done.stderr), "unknown method 'ilt'", "itl")


def test_a_diverging_run_reports_task_stage_epoch_and_setting(itl, tmp_path):
    done = itl("run", *tiny("specialist.lr=100", "specialist.weight_decay=1", "specialist.steps=30"), "--out", "run")
    assert_user_error(done, "task 1, learning the new images, epoch", "specialist.lr (now 100)")
    assert not (tmp_path / "run/result.json").exists()


def test_a_diverging_run_keeps_the_last_good_state(tmp_path):
    class Poison(Callback):
        def on_stage_start(self, learner, stage):
            if len(learner.tasks) == 2:
                learner.net.classifier.weight.data.fill_(float("inf"))

    config = Config(tasks=2, method="er", settings={"net.width": 2, "specialist.steps": 2})
    pattern = r"task 2, learning the new images, epoch 1.*specialist\.lr.*last saved state is unchanged"
    with pytest.raises(UserError, match=pattern):
        run(config, config.load_stream("data"), tmp_path / "run", device="cpu", callbacks=[Poison()])
    learner = load_learner(tmp_path / "run/model", device="cpu")
    assert (len(learner.tasks), learner.position[0]) == (1, "done")
    assert not (tmp_path / "run/result.json").exists()


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "itl", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "  streams " in done.stdout


def test_a_full_standard_output_is_reported_in_one_line() -> None:
    words = [sys.executable, "-m", "itl", "methods"]  # does not import torch, which takes seconds
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert (
        done.stderr == "itl: Cannot write the output: No space left on device. Everything finished before is saved.\n"
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [  # commands that do not import torch
        ("methods >&-", 0),
        ("run --method ilt 2>&-", 2),
        ("run --method ilt >&- 2>&-", 2),
        ("run --method ilt 2>/dev/full", 2),
        ("run --method ilt 2>&1 | true", 2),
        ("methods 2>&1 | true", 0),
    ],
)
def test_exit_code_does_not_depend_on_a_reader_of_the_output(words: str, code: int) -> None:
    command = f"{sys.executable} -m itl {words}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_lack_of_file_descriptors_is_reported_in_one_line(monkeypatch, capfd, tmp_path):
    import itl.experiments.run
    from itl.cli import main

    def fails(*args, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "model")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(itl.experiments.run, "run", fails)
    with pytest.raises(SystemExit) as stop:
        main(["run"])
    assert (stop.value.code, capfd.readouterr().err) == (2, "itl: Cannot use model: Too many open files.\n")
