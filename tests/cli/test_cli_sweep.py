"""`itl sweep` and `itl search`: their output and their errors."""

from __future__ import annotations

import json
import shutil

import pytest

from support.cli_process import tiny
from support.packages import require

require("optuna", "ray", "yaml")

GRID = "methods: [er, b]\nseeds: [0, 1]\ntasks: 2\n"


def test_sweep_dry_run_summarizes_the_runs_without_starting_them(itl, tmp_path):
    (tmp_path / "mine.yaml").write_text(GRID)
    done = itl("sweep", "mine.yaml", "--dry-run")
    assert done.code == 0
    assert "mine: 4 waiting" in done.out
    rows = [line.split() for line in done.out.splitlines() if line.startswith("seq-digits")]
    assert rows == [["seq-digits", method, "20", "0,1", "2", "0"] for method in ("er", "b")]
    assert "runs/mine" in done.out
    listed = itl("sweep", "mine.yaml", "--dry-run", "--json").json
    assert [cell["state"] for cell in listed["cells"].values()] == ["waits"] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_sweep_whose_time_is_over_starts_no_run_and_says_how_to_continue(itl, tmp_path):
    (tmp_path / "mine.yaml").write_text(GRID)
    done = itl("sweep", "mine.yaml", "--minutes", "0.0001", "--device", "cpu", "--workers", "1")
    assert done.code == 0, done
    assert "mine: 4 waiting" in done.out
    assert "repeat the command" in done.out
    assert list(tmp_path.rglob("config.json")) == []


def test_sweep_without_a_grid_lists_the_included_grids(itl):
    assert "paper-table1" in itl("sweep").out
    assert itl("sweep", "--json").json.keys() >= {"paper-ablation", "paper-memory"}


MISTAKES = {
    "no grid": (["sweep", "none.yaml"], "cannot read the grid none.yaml"),
    "unknown grid": (["sweep", "paper-table"], "unknown grid", "paper-table1"),
    "empty grid": (["sweep", "empty.yaml"], "empty"),
    "unknown key": (["sweep", "typo.yaml"], "'sed'", "seed"),
    "out of range": (["sweep", "range.yaml"], "tangent.momentum", "less than 1"),
    "missing dataset": (["sweep", "paper-tasks"], "cifar-10-binary.tar.gz", "--download"),
    "too many processes": (["sweep", "mine.yaml", "--workers", "999"], "999 processes", "--workers"),
    "no cluster": (["sweep", "mine.yaml", "--backend", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers"),
    "no address": (["sweep", "mine.yaml", "--backend", "ray", "--address", "there"], "host:port"),
    "a folder in a file": (["sweep", "mine.yaml", "--out", "mine.yaml/runs"], "cannot write to mine.yaml/runs"),
    "more processes than cores, by Ray": (
        ["sweep", "mine.yaml", "--backend", "ray", "--workers", "999"],
        "cores of this machine",
    ),
    "a stage that is not there": (["search", "--method", "er", "--over", "tangent.lr=0.1,0.2"], "change nothing"),
    "a run twice": (["search", "--space", "paper", "--from", "a", "--from", "a"], "twice"),
    "a time limit for Ray": (["sweep", "mine.yaml", "--backend", "ray", "--minutes", "5"], "--backend local"),
    "no minutes": (["sweep", "mine.yaml", "--minutes", "0"], "--minutes"),
    "an address for local": (["sweep", "mine.yaml", "--address", "auto"], "--backend ray"),
    "nothing to search": (["search"], "nothing to search", "--space paper"),
    "unknown space": (["search", "--space", "papper"], "unknown space", "paper"),
    "value out of range": (["search", "--over", "tangent.momentum=0.5..1.5"], "tangent.momentum", "less than 1"),
    "unknown option": (["search", "--over", "specialist.options.pace=1,2"], "specialist.options.average"),
    "grid of ranges": (["search", "--over", "tangent.lr=0.1..0.2", "--sampler", "grid"], "range"),
    "unknown sampler": (["search", "--space", "paper", "--sampler", "cma"], "tpe, random, grid"),
    "no run to start from": (["search", "--space", "paper", "--from", "nowhere"], "config.json"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_sweep_and_search_with_a_wrong_option_start_nothing(itl, quick_itl, tmp_path, name):
    (tmp_path / "mine.yaml").write_text(GRID)
    (tmp_path / "empty.yaml").write_text("methods: []\n")
    (tmp_path / "typo.yaml").write_text("sed: 1\n")
    (tmp_path / "range.yaml").write_text("settings: {tangent.momentum: 2.0}\n")
    args, *words = MISTAKES[name]
    done = itl(*args) if "ray" in args else quick_itl(*args)  # Ray would stay in this process
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("itl: ")
    assert done.err.count("\n") == 1, done.err
    for word in words:
        assert word.casefold() in done.err.casefold(), done.err
    assert not (tmp_path / "searches").exists()
    assert list(tmp_path.rglob("result.json")) == []


def test_search_refuses_a_run_trained_on_the_validation_images(itl, finished_run):
    done = itl("search", "--space", "paper", "--from", finished_run)
    assert done.code == 2
    assert "--split validation" in done.err


def test_search_refuses_runs_with_different_buffers(itl, finished_run, tmp_path):
    for name, buffer in (("a", 20), ("b", 50)):
        shutil.copytree(finished_run, tmp_path / name)
        config = json.loads((finished_run / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "split": "validation", "buffer": buffer}))
    done = itl("search", "--space", "paper", "--from", "a", "--from", "b")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"{tmp_path / 'a'} and {tmp_path / 'b'} differ in buffer (20, 50)" in done.err
    assert not (tmp_path / "searches").exists()


@pytest.mark.slow
def test_search_leaves_the_test_images_to_the_process_that_finishes_last(itl, tmp_path):
    from itl.experiments.search.trials import TrialJobs

    words = [*tiny(), "--over", "specialist.lr=0.001,0.1", "--method", "b", "--sampler", "grid", "--device", "cpu"]
    words += ["--out", "both", "--workers", "1", "--threads", "1"]
    assert itl("search", *words, "--trials", "1", "--quiet").code == 0
    search = tmp_path / "both" / "search.json"
    search.write_text(search.read_text().replace('"trials": 1', '"trials": 2'))
    job, lock = TrialJobs(tmp_path / "both").claim()
    with lock:
        done = itl("search", *words, "--trials", "2", "--final", "0")
        assert (done.code, done.err.count("\n")) == (0, 1), done.err
        assert (
            "1 trial is being run by another process. The process that finishes last will use the test images."
            in done.err
        )
        assert not (tmp_path / "both" / "final").exists()
    done = itl("search", *words, "--trials", "2", "--final", "0", "--json")
    assert done.code == 0, done.err
    assert len(done.json["final"]) == 1
    assert job.name == "trial-0001"


def test_search_tries_each_point_of_a_small_space_once_and_runs_the_best(itl, tmp_path):
    words = [*tiny(), "--over", "specialist.lr=0.001,0.1", "--method", "b", "--device", "cpu", "--workers", "1"]
    words += ["--threads", "1"]
    words += ["--sampler", "random", "--trials", "9", "--final", "0"]
    done = itl("search", *words)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if " of 2: trial-" in line]
    assert [line[:6] for line in lines] == ["1 of 2", "2 of 2"]
    assert all("Class-IL" in line for line in lines)
    done = itl("search", *words, "--json")
    assert done.code == 0, done.err
    assert len(done.json["trials"]) == 2
    values = {trial["settings"]["specialist.lr"]: trial["value"] for trial in done.json["trials"]}
    assert values.keys() == {0.001, 0.1}
    assert done.json["best"]["value"] == max(values.values())
    config = json.loads((tmp_path / done.json["config"]).read_text())
    assert config["settings"]["specialist.lr"] == done.json["best"]["settings"]["specialist.lr"]
    assert config["split"] == "test"
    (final,) = done.json["final"]
    again = itl("run", "--config", done.json["config"], "--json")
    assert again.json["class_il"] == final["class_il"]
    assert (tmp_path / done.json["out"] / "history.png").stat().st_size > 1000


def test_sweep_without_a_terminal_prints_a_line_per_run(itl, tmp_path):
    settings = {"net.width": 4, "specialist.steps": 4}
    (tmp_path / "mine.json").write_text(
        json.dumps({"methods": ["b"], "seeds": [0, 1], "tasks": 2, "settings": settings})
    )
    done = itl("sweep", "mine.json", "--device", "cpu", "--workers", "1", "--threads", "1")
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith(("1 of 2: ", "2 of 2: ")) and "done" in line]
    assert "1 of 2" not in itl("sweep", "mine.json", "--device", "cpu", "--quiet").out
