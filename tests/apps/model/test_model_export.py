"""Exported files give the same probabilities, contain the labels, and contain no memory image."""

from __future__ import annotations

import errno
import io
import json
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itl import UserError
from itl.apps.model import Model
from itl.apps.model.calibration import Calibration
from itl.apps.model.edit import rename
from itl.apps.model.export import to_onnx, to_torch, write_script
from itl.apps.model.input_format import read_model_images
from support.tiny import TINY
from support.tiny_model import tiny_model, tiny_task, trained_model

SIZES = (1, 2, 3, 5, 7, 16, 33)  # batch sizes
LABELS = ["fox", "dog", "eel"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A calibrated model with merged classes."""
    model = trained_model(tmp_path_factory.mktemp("export") / "m", buffer=20)
    rename(model, "cat", "fox", merge=True)
    model.calibration = Calibration(temperature=0.4, threshold=0.6, images=20)
    return model


@pytest.fixture(scope="module")
def onnx_file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    to_onnx(model, path)
    return path


def images(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def test_onnx_file_gives_the_same_probabilities_for_any_batch_size(model: Model, onnx_file: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(onnx_file))
    for n in SIZES:
        (probabilities,) = session.run(["probabilities"], {"pixels": images(n).numpy()})
        np.testing.assert_allclose(probabilities, model.predict_proba(images(n)), atol=1e-4)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["labels"]) == LABELS == model.classes
    assert json.loads(about["itl"])["input"]["shape"] == ["batch", 3, 8, 8]
    assert json.loads(about["itl"])["unknown_below"] == 0.6


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_script_for_an_onnx_file_agrees_with_predict_on_pictures_that_are_not_square(
    kind: str, model: Model, onnx_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    script, pictures = write_script(tmp_path), [tmp_path / f"{k}.{kind}" for k in range(40)]
    tiles = [Image.fromarray(tile.permute(1, 2, 0).numpy()) for tile in tiny_task("cat", "dog", "eel", "fox")[0]]
    for k, picture in enumerate(pictures):  # an image in the central square, and another one behind it
        size = (400, 256) if k % 2 else (256, 400)
        image = tiles[(k + 11) % len(tiles)].resize(size)
        corner = (72, 0) if k % 2 else (0, 72)
        image.paste(tiles[k % len(tiles)].resize((256, 256), Image.Resampling.NEAREST), corner)
        exif = Image.Exif()
        exif[0x0112] = 1 + k % 8
        image.save(picture, exif=exif)
    expected = model.predict_proba(read_model_images(model, pictures).pixels)
    labels, probabilities = runpy.run_path(str(script))["classify"](str(onnx_file), [str(path) for path in pictures])
    squashed = [np.asarray(Image.open(path).convert("RGB").resize((8, 8))).transpose(2, 0, 1) for path in pictures]
    assert np.abs(model.predict_proba(np.stack(squashed)) - expected).max() > 0.01  # preparation matters
    assert [labels[row.argmax()] for row in probabilities] == [model.classes[row.argmax()] for row in expected]
    np.testing.assert_allclose(probabilities, expected, atol=1e-3)


def test_script_runs_without_itl(model: Model, onnx_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    Image.new("L", (40, 20), 99).save(tmp_path / "gray.png")
    script = write_script(tmp_path)
    assert not re.search(r"^\s*(import|from) itl", script.read_text(), re.MULTILINE)
    command = [sys.executable, "-I", str(script), str(onnx_file), str(tmp_path / "gray.png")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (row,) = model.predict_proba(read_model_images(model, [tmp_path / "gray.png"]).pixels)
    assert printed == f"{tmp_path / 'gray.png'}  {model.classes[row.argmax()]}  {100 * row.max():.1f} %\n"


@pytest.mark.parametrize(("method", "size"), [("itl", 28), ("icarl", 32)])
def test_common_widths_and_image_sizes_are_exported(method: str, size: int, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "m", method, size=size, settings={**TINY, "net.width": 16}, buffer=8)
    pixels, labels = tiny_task("cat", "dog")
    large = torch.nn.functional.interpolate(pixels.float(), size=(size, size)).to(torch.uint8)
    with model.lock():
        model.teach(large, labels)
        model.finish({})
    to_torch(model, tmp_path / "m.pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    for n in (1, 2, 30):
        many = large[torch.arange(n) % len(large)]
        np.testing.assert_allclose(program(many).detach().numpy(), model.predict_proba(many), atol=1e-4)


def test_torch_program_gives_the_same_probabilities_for_any_batch_size(model: Model, tmp_path: Path) -> None:
    to_torch(model, tmp_path / "m.pt2")
    about = {"itl.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=about).module()
    for n in SIZES:
        np.testing.assert_allclose(program(images(n)), model.predict_proba(images(n)), atol=1e-6)
    assert json.loads(about["itl.json"])["labels"] == LABELS


def test_exported_files_contain_no_memory_image_and_no_local_path(
    model: Model, onnx_file: Path, tmp_path: Path
) -> None:
    to_torch(model, tmp_path / "m.pt2")
    packed = zipfile.ZipFile(io.BytesIO((tmp_path / "m.pt2").read_bytes()))
    contents = onnx_file.read_bytes() + b"".join(packed.read(name) for name in packed.namelist())
    stored = model.learner.memory.pixels[: len(model.learner.memory)]
    assert len(stored) == 20
    for image in (*stored, *tiny_task("cat")[0]):
        for kind in (torch.uint8, torch.float32, torch.int64):
            assert image.to(kind).numpy().tobytes() not in contents
    assert str(Path(__file__).parents[3]).encode() not in contents
    assert (
        model.learner.net.classifier.weight.detach().numpy().tobytes() in contents
    )  # the same search finds the weights


def test_missing_onnx_error_says_how_to_install_it(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"pip install 'itl\[onnx\]'"):
        to_onnx(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_read_only_file_system_is_a_user_error(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("itl.atomic.os.open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)  # fails on a read-only file system even for a missing file
    with pytest.raises(UserError, match=r"cannot write .*m\.pt2: Read-only file system"):
        to_torch(model, tmp_path / "m.pt2")
