"""`itl run`: its output, its files, and reproducibility."""

from __future__ import annotations

import json
import shutil

import pytest

from support.cli_process import tiny
from support.records import without_keys


def without_times(result: dict) -> dict:
    return without_keys(result, "seconds")


def read(path) -> dict:
    return json.loads(path.read_text())


def test_run_prints_the_accuracy_of_every_stage_and_the_files_written(itl, tmp_path):
    done = itl("run", *tiny())
    assert (done.code, done.err) == (0, "")
    result = read(tmp_path / "runs/seq-digits-itl-20-seed0/result.json")
    for word in ("itl on seq-digits, buffer 20, seed 0", "specialist", "tangent", "expert", "Class-IL", "Task-IL"):
        assert word in done.out
    for stages in result["stages"]:
        for reached in stages.values():
            assert f"{reached['class_il']:.1f}" in done.out
    assert f"Class-IL {result['class_il']:.1f} %" in done.out
    assert f"forgetting {result['forgetting']:.1f}" in done.out
    assert "projection" in done.out
    assert "wrote runs/seq-digits-itl-20-seed0\n" in done.out
    assert "config.json metrics.jsonl result.json predictions.npz pictures.npz model/" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out


def test_run_json_is_the_result_and_the_seed_reproduces_it(itl, tmp_path):
    first, second = (itl("run", *tiny(), "--json") for _ in range(2))
    assert (first.code, first.err) == (0, "")
    assert first.json == read(tmp_path / "runs/seq-digits-itl-20-seed0/result.json")
    assert second.json == read(tmp_path / "runs/seq-digits-itl-20-seed0-2/result.json")
    assert without_times(first.json) == without_times(second.json)
    assert without_times(itl("run", *tiny(), "--seed", "1", "--json").json) != without_times(first.json)


def test_the_recorded_command_and_config_repeat_the_run(itl, tmp_path):
    import shlex

    options = ["--order-seed", "3", "--split", "validation", "--variant", "x", "--method", "derpp", "--buffer", "20"]
    own = ["augment.memory=none", "augment.flip=true", "specialist.weight_decay=1e-4", "memory.policy=reservoir"]
    first = itl("run", *tiny(*own), *options, "--json")
    assert first.code == 0, first.err
    again = itl(*shlex.split(first.json["command"])[1:], "--json")
    assert without_times(again.json) == without_times(first.json)
    file = tmp_path / "runs/seq-digits-derpp-x-20-validation-seed0/config.json"
    assert without_times(itl("run", "--config", file, "--json").json) == without_times(first.json)


def test_a_recorded_config_repeats_the_run_after_defaults_have_changed(itl, tmp_path):
    """The record was made when a default was different and when one more setting existed."""
    first = itl("run", *tiny(), "--tasks", "2", "--buffer", "20", "--json")
    file = tmp_path / "runs/seq-digits-itl-20-seed0/config.json"
    then = json.loads(file.read_text())
    usual = then["resolved"]["specialist"]["lr"]
    then["resolved"]["specialist"] |= {"lr": usual / 2, "gone": 1}
    (tmp_path / "then.json").write_text(json.dumps(then))
    again = itl("run", "--config", "then.json", "--json").json
    assert again["settings"]["specialist"]["lr"] == usual / 2
    assert f"--set specialist.lr={usual / 2}" in again["command"]
    own = itl("run", "--config", "then.json", "--set", f"specialist.lr={usual}", "--json").json
    assert own["settings"] == first.json["settings"]
    other = itl("run", "--config", "then.json", "--buffer", "30", "--json").json
    assert other["settings"]["specialist"]["lr"] == usual  # another buffer: today's defaults apply


def test_options_override_the_config_file(itl, tmp_path):
    settings = {"net": {"width": 4}, "specialist.steps": 4, "tangent.steps": 3, "projection.steps": 3}
    (tmp_path / "my.json").write_text(json.dumps({"buffer": 20, "tasks": 5, "settings": settings}))
    result = itl("run", "--config", "my.json", "--tasks", "2", "--set", "tangent.steps=2", "--json").json
    assert result["buffer"] == 20
    assert len(result["tasks"]) == 2
    assert result["settings"]["tangent"]["steps"] == 2
    assert result["settings"]["projection"]["steps"] == 3


def test_order_sets_the_order_of_the_classes(itl):
    result = itl("run", *tiny(), "--method", "sgd", "--order", "9,8,7,6,5,4,3,2,1,0", "--epochs", "1", "--json").json
    assert result["class_names"] == list("9876543210")
    assert result["settings"]["specialist"]["epochs"] == 1


def test_run_quiet_prints_only_the_folder(itl, tmp_path):
    done = itl("run", *tiny(), "--method", "er", "--out", "here/it", "--quiet")
    assert (done.code, done.out, done.err) == (0, "here/it\n", "")
    assert (tmp_path / "here/it/result.json").exists()


def test_several_seeds_have_one_folder_each_and_a_summary(itl, tmp_path):
    done = itl("run", *tiny(), "--method", "er", "--seeds", "1,0", "--out", "all", "--json")
    results, summary = done.json["results"], done.json["summary"]
    folders = ["all/seq-digits-er-20-seed1", "all/seq-digits-er-20-seed0"]
    assert done.json["folders"] == folders
    assert results == [read(tmp_path / folder / "result.json") for folder in folders]
    a, b = (result["class_il"] for result in results)
    assert summary["class_il"]["mean"] == pytest.approx((a + b) / 2)
    assert summary["class_il"]["std"] == pytest.approx(abs(a - b) / 2**0.5)

    again = itl("run", *tiny(), "--method", "er", "--seeds", "1,0,2", "--out", "all", "--resume")
    assert again.code == 0, again.err
    assert f"{(a + b) / 2:.1f}" not in again.out.splitlines()[0]
    assert "3 seeds" in again.out
    assert "±" in again.out
    assert [read(tmp_path / folder / "result.json") for folder in folders] == results


def test_an_existing_run_among_several_seeds_is_refused_before_the_first_starts(itl, tmp_path, finished_run):
    shutil.copytree(finished_run, tmp_path / "all/seq-digits-itl-20-seed1")
    done = itl("run", *tiny(), "--seeds", "0,1", "--out", "all")
    assert done.code == 2
    assert "seed1 already contains a run" in done.err
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["seq-digits-itl-20-seed1"]


def test_a_missing_dataset_is_not_downloaded_without_the_option(itl):
    assert "--download" in itl("run", "--stream", "seq-fmnist").err


def test_the_default_buffer_depends_on_the_stream():
    from itl.cli.parsing import build_config

    assert build_config({}, {}, {}).buffer == 20
    assert build_config({}, {"stream": "seq-cifar10"}, {}).buffer == 200
    assert build_config({}, {"stream": "seq-cifar10", "buffer": 500}, {}).buffer == 500
    assert build_config({"stream": "seq-mnist"}, {}, {}).buffer == 200


def test_tensorboard_files_are_written_to_the_folder_of_the_run(itl, tmp_path):
    pytest.importorskip("tensorboard")
    done = itl("run", *tiny(), "--out", "run", "--tensorboard")
    assert (done.code, done.err) == (0, "")
    assert list((tmp_path / "run/tensorboard").glob("events.out.tfevents.*"))
    assert "tensorboard/" in done.out
