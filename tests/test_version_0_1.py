"""Folders written by version 0.1.0 load, and resume to the results that version 0.1.0 computed.

Weights are compared with a tolerance because other processors and libraries round differently.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import itl
from itl import metrics
from itl.apps.model import Model
from itl.experiments.config import Config
from itl.experiments.refine import refine
from itl.experiments.run import run
from itl.results import RunFolder, read_config
from itl.streams import Images
from support.tiny import learner_snapshot, tiny_images, tiny_stream

ARCHIVES = Path(__file__).parent / "fixtures" / "version-0.1"


@pytest.fixture
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Content of the archive that the test names."""
    with zipfile.ZipFile(ARCHIVES / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def check_expected(folder: Path, found: dict[str, Tensor]) -> None:
    """Compare tensors with those that version 0.1.0 computed."""
    expected = load_file(folder / "expected.safetensors")
    assert found.keys() >= expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-4, msg=name)


def archives(prefix: str) -> list[str]:
    return sorted(path.stem for path in ARCHIVES.glob(f"{prefix}*.zip"))


@pytest.mark.parametrize("unpacked", archives("learner-"), indirect=True)
def test_learner_folder_resumes_to_the_recorded_state(unpacked: Path) -> None:
    stream = tiny_stream()
    learner = itl.load(unpacked / "model", device="cpu")
    if learner.position[0] != "done":
        learner.learn(stream.tasks[1])
    logits = learner.logits(Images.join([task.test for task in stream]))
    check_expected(unpacked, {**learner_snapshot(learner), "test_logits": logits})


@pytest.mark.parametrize("unpacked", ["run-finished"], indirect=True)
def test_finished_run_is_read_and_refined(unpacked: Path) -> None:
    folder = unpacked / "run"
    config = Config.from_dict(read_config(folder))
    stream = config.load_stream("data")
    stored = RunFolder(folder).read("result.json")
    result = run(config, stream, folder, device="cpu", resume=True)
    assert {name: result[name] for name in stored} == stored
    assert result["signed_forgetting"] == metrics.signed_forgetting(stored["class_il_matrix"])  # it was not stored
    check_expected(unpacked, learner_snapshot(itl.load(folder / "model", device="cpu")))
    expected = RunFolder(folder).read("result.json")["class_il"]
    assert refine(folder, stream, 2, device="cpu")["stages"]["expert"]["class_il"] == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("unpacked", ["run-interrupted"], indirect=True)
def test_interrupted_run_resumes_to_the_recorded_result(unpacked: Path) -> None:
    folder = unpacked / "run"
    config = Config.from_dict(json.loads((folder / "config.json").read_text()))
    result = run(config, config.load_stream("data"), folder, device="cpu", resume=True)
    expected = json.loads((unpacked / "result.expected.json").read_text())
    for key in ("method", "stream", "buffer", "seed", "memory", "tasks"):
        assert result[key] == expected[key]
    for key in ("class_il", "task_il", "average_incremental"):
        assert result[key] == pytest.approx(expected[key], abs=0.5)
    check_expected(unpacked, learner_snapshot(itl.load(folder / "model", device="cpu")))


@pytest.mark.parametrize("unpacked", ["model"], indirect=True)
def test_model_folder_predicts_as_recorded(unpacked: Path) -> None:
    model = Model.open(unpacked / "model", device="cpu")
    expected = json.loads((unpacked / "expected.json").read_text())
    assert model.classes == expected["classes"]
    assert [entry["what"] for entry in model.history] == expected["history"]
    images = torch.from_numpy(tiny_images(4, 6, channels=3, seed=1)[0])
    probabilities = torch.from_numpy(model.predict_proba(images))
    check_expected(unpacked, {**learner_snapshot(model.learner), "test_probabilities": probabilities})
    model.save()
    assert Model.open(unpacked / "model", device="cpu").classes == expected["classes"]


@pytest.mark.parametrize("unpacked", ["search"], indirect=True)
def test_search_continues_to_the_recorded_trials(unpacked: Path) -> None:
    pytest.importorskip("optuna")
    from itl.experiments.search import study
    from itl.experiments.search.space import Dimension, Space
    from support import tiny_sweeps

    record = json.loads((unpacked / "search" / "search.json").read_text())
    space = Space([Dimension(**choice) for choice in record["space"]])
    plan = study.SearchPlan(Config.from_dict(record["config"]), space, trials=2, prune=False)
    trials = study.open_search(replace(plan, trials=4), unpacked / "search")
    tiny_sweeps.RecordingRunner(trials, unpacked / "search").run()
    found = [[t.number, t.params, t.value, t.state.name] for t in trials.study.get_trials()]
    for actual, recorded in zip(found, json.loads((unpacked / "expected.json").read_text()), strict=True):
        assert (actual[0], actual[3]) == (recorded[0], recorded[3])
        assert actual[1] == pytest.approx(recorded[1])
        assert actual[2] == pytest.approx(recorded[2], abs=1.0)
