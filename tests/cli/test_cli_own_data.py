"""From folders of images to predictions: scikit-learn's digits as files, in five folders and five processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from itl import Learner, streams
from itl.apps.images import read_images
from itl.apps.model import Model
from support.cli_process import ForkServer, Outcome
from support.image_folders import as_options

SETTINGS = {
    "net.name": "resnet8",
    "net.width": 16,
    "net.strided": False,
    "specialist.name": "er-balanced",  # the default of `itl learn`
    "specialist.batch": 32,
    "specialist.epochs": 12,
    "specialist.lr": 0.03,
    "tangent.epochs": 30,
    "projection.epochs": 30,
}
BUFFER = 50
TOLERANCE = 6.0  # points: about twice the standard deviation of itl over ten seeds (docs/digits.md: 85.3 ± 2.8)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stream() -> streams.Stream:
    return streams.load("seq-digits")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, stream: streams.Stream) -> Path:
    """Folders `day1` to `day5`, each with train/ and test/ images of two digits."""
    root = tmp_path_factory.mktemp("digits")
    for number, task in enumerate(stream, 1):
        for part in ("train", "test"):
            images = getattr(task, part)
            for k, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
                folder = root / f"day{number}" / part / f"digit {stream.class_names[label]}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[0].numpy()).save(folder / f"{k:04d}.png")
    return root


@pytest.fixture(scope="module")
def learned(home: Path, fork_server: ForkServer) -> Callable[..., Outcome]:
    """Runs `itl` in the folder of the model `m`, which has learned the digits in five processes."""

    def itl(*words: str) -> Outcome:
        done = fork_server.run(list(words), home)
        assert done.code == 0, done.err
        return done

    options = ["--size", "8", "--buffer", str(BUFFER), *as_options(SETTINGS)]
    for day in range(1, 6):
        itl("learn", "m", f"day{day}", "--device", "cpu", "--quiet", *(options if day == 1 else []))
    return itl


def test_five_folders_in_five_processes_reach_the_accuracy_of_arrays_in_one(
    learned: Callable[..., Outcome], stream: streams.Stream, home: Path
) -> None:
    report = learned("learn", "m", "day5", "--json").json
    assert [task["name"] for task in report["tasks"]] == [f"day{k}" for k in range(1, 6)]
    learner = Learner("itl", BUFFER, 0, settings=SETTINGS, device="cpu")
    for task in stream:
        learner.learn(task.train.pixels, task.train.labels)
    right = [(learner.predict(task.test) == task.test.labels.numpy()) for task in stream]
    in_memory = 100 * np.concatenate(right).mean()
    assert abs(report["accuracy"] - in_memory) < TOLERANCE
    assert in_memory > 75


def test_weights_equal_those_learned_from_arrays_in_the_same_order(learned: Any, home: Path) -> None:
    learner = Learner("itl", BUFFER, 0, settings=SETTINGS, device="cpu")
    for day in range(1, 6):
        files = sorted((home / f"day{day}" / "train").glob("*/*.png"))
        pixels, _, _ = read_images(files, 8)
        learner.learn(pixels, [int(path.parent.name[-1]) for path in files])
    saved = Model.open(home / "m", device="cpu").learner.net.state_dict()
    for name, tensor in learner.net.state_dict().items():
        assert np.array_equal(tensor.numpy(), saved[name].numpy()), name


def test_eval_predict_and_export_agree_with_the_learned_model(learned: Callable[..., Outcome], home: Path) -> None:
    report = learned("learn", "m", "day5", "--json").json
    for day, task in zip(range(1, 6), report["tasks"], strict=True):
        evaluated = learned("eval", "m", f"day{day}", "--json").json
        assert evaluated["accuracy"] == pytest.approx(task["now"])
        assert evaluated["images"] == task["images"]
    files = sorted((home / "day2" / "test").glob("*/*.png"))[:33]
    rows = learned("predict", "m", *(str(path) for path in files), "--json").json["predictions"]
    assert [row["path"] for row in rows] == [str(path) for path in files]
    pixels, _, _ = read_images(files, 8)
    model = Model.open(home / "m", device="cpu")
    expected = model.predict_proba(torch.from_numpy(pixels))
    assert [row["class"] for row in rows] == [model.classes[k] for k in expected.argmax(1)]
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    learned("export", "m", "--out", "m.onnx")
    session = runtime.InferenceSession(str(home / "m.onnx"))
    (probabilities,) = session.run(["probabilities"], {"pixels": pixels})
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)
