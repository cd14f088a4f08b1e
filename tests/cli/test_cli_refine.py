"""`itl refine`: repeating the generalist step from saved specialists."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def run(finished_run, tmp_path):
    return shutil.copytree(finished_run, tmp_path / "run")


def test_refine_without_changes_reproduces_the_run_exactly(itl, run):
    result = json.loads((run / "result.json").read_text())
    tries = itl("refine", "run", "--tasks", "all", "--json").json["tries"]
    assert [one["task"] for one in tries] == [1, 2]
    for one, stages, row, masked in zip(
        tries, result["stages"], result["class_il_matrix"], result["task_il_matrix"], strict=True
    ):
        assert one["stages"] == stages
        assert one["class_il_tasks"] == row[: one["task"]]
        assert one["task_il_tasks"] == masked[: one["task"]]
        assert one["settings"] == {}
        assert one["seconds"]["total"] > 0


def test_refine_uses_the_last_task_and_records_into_the_run(itl, run):
    first = itl("refine", "run", "--set", "tangent.lr=0.5", "--json")
    assert (first.code, first.err) == (0, "")
    (one,) = first.json["tries"]
    assert one["task"] == 2
    assert one["settings"] == {"tangent.lr": 0.5}
    assert set(one["stages"]) == {"specialist", "tangent", "expert"}
    itl("refine", "run", "--out", "mine.json")
    itl("refine", "run")
    record = json.loads((run / "refine-001.json").read_text())
    assert record["tries"] == first.json["tries"]
    assert record["command"] == "itl refine run --set tangent.lr=0.5"
    assert sorted(path.name for path in run.glob("refine-*")) == ["refine-001.json", "refine-002.json"]
    assert (run.parent / "mine.json").exists()


def test_refine_tries_every_combination_and_shows_the_best_first(itl, run):
    done = itl("refine", "run", "--set", "tangent.lr=0.01,0.3", "--set", "projection.lr=0.001,0.1")
    assert (done.code, done.err) == (0, "")
    tries = json.loads((run / "refine-001.json").read_text())["tries"]
    assert [tuple(one["settings"].values()) for one in tries] == [(0.01, 0.001), (0.01, 0.1), (0.3, 0.001), (0.3, 0.1)]
    rows = [line.split() for line in done.out.splitlines() if line.startswith(("tangent.lr=", "(original run)"))]
    assert len(rows) == 5
    assert rows[-1][0] == "(original"
    reached = [float(row[-2]) for row in rows[:-1]]
    assert reached == sorted(reached, reverse=True)
    assert done.out.endswith("wrote run/refine-001.json\n")


def test_refine_can_use_another_generalist(itl, run):
    (full,) = itl("refine", "run", "--set", "generalist=full", "--json").json["tries"]
    assert set(full["stages"]) == {"specialist", "full", "expert"}
    (none,) = itl("refine", "run", "--set", "generalist=none", "--json").json["tries"]
    assert none["stages"]["expert"] == none["stages"]["specialist"] == full["stages"]["specialist"]


def test_a_diverging_attempt_does_not_end_the_others(itl, run):
    diverging = ["--set", "projection.l2=1000", "--set", "projection.steps=60"]
    done = itl("refine", "run", *diverging, "--set", "projection.lr=1e-6,1")
    assert done.code == 0, done.err
    tries = json.loads((run / "refine-001.json").read_text())["tries"]
    assert ["error" in one for one in tries] == [False, True]
    assert "lower projection.lr (now 1)" in done.out
    alone = itl("refine", "run", *diverging, "--set", "projection.lr=1")
    assert alone.code == 2
    assert "projection.lr (now 1)" in alone.err
    assert alone.err.count("\n") == 1


def test_refine_can_be_called_from_python(run):
    from itl.experiments.config import Config
    from itl.experiments.refine import refine

    stream = Config.from_dict(json.loads((run / "config.json").read_text())).load_stream("data")
    one = refine(run, stream, 2, {"tangent.epochs": 1}, device="cpu")
    assert one["task"] == 2
    assert len(one["class_il_tasks"]) == 2
    assert list(run.glob("refine-*")) == []


def test_damaged_metrics_are_reported_before_anything_is_trained(quick_itl, run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    done = quick_itl("refine", "run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is damaged: 'kind' is missing" in done.err
    assert not list(run.glob("refine-*"))
