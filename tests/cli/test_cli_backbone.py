"""A user's network on the command line: `--backbone MODULE:FUNCTION`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from itl import nets
from itl.apps.model import Model
from itl.nets import external
from support.command_line import assert_refused, run_in_process
from support.image_folders import write_images

OWN_NETWORK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layers = nn.LayerNorm(12), nn.Sequential(nn.Linear(12, 12), nn.GELU())

    def forward(self, x):
        return x + self.layers(self.norm(x))

class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, 12, 4, 4), nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))

def make():
    torch.manual_seed(0)
    return ViT()
"""


def test_own_network_is_taught_used_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block is trained on the frozen trunk's features; the exported file agrees with the model to 1e-4."""
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITL_CACHE", "off")
    monkeypatch.delitem(sys.modules, "own_vit", raising=False)
    monkeypatch.setattr(external, "_allowed", set())
    (tmp_path / "own_vit.py").write_text(OWN_NETWORK)
    write_images(tmp_path / "monday", "ant", "bee")
    nets.find_named("own_vit:make")
    module = nets.build("own_vit:make", 2)
    assert isinstance(module, nets.ModuleAdapter)
    save_file(module.module.state_dict(), tmp_path / "w.safetensors")
    options = ["--backbone", "own_vit:make", "--weights", "w.safetensors", "--size", "16", "--device", "cpu"]
    train_last_block = ["--method", "itl", "--set", "net.trained=2", "--set", "tangent.layers=2", "--epochs", "2"]
    done = run_in_process("learn", "m", "monday", *options, *train_last_block)
    assert (done.code, done.err) == (0, "")
    done = run_in_process("learn", "without-memory", "monday", *options, "--method", "ridge")
    assert (done.code, done.err) == (0, "")
    lines = run_in_process("info", "without-memory").out.splitlines()
    assert "network  own_vit:make, 26 weights after the frozen trunk" in lines  # 12 inputs, a bias and 2 classes
    assert {"memory   none", "2 classes", "  ant"} <= set(lines)
    monkeypatch.setattr(external, "_allowed", set())
    assert_refused(
        "predict", "m", "monday", word="m cannot be opened here, and is unchanged: the backbone own_vit:make"
    )
    monkeypatch.setenv("ITL_BACKBONES", "own_vit:make")
    predicted = run_in_process("predict", "m", "monday", "--json", "--device", "cpu")
    assert predicted.code == 0, predicted.err
    exported = run_in_process("export", "m", "--out", "m.onnx")
    assert exported.code == 0, exported.err
    model = Model.open(tmp_path / "m", device="cpu")
    assert model.learner.backbone is not None
    assert model.learner.backbone.name == "own_vit:make"
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16)).astype(np.uint8)
    session = onnxruntime.InferenceSession("m.onnx")
    outputs = session.run(None, {session.get_inputs()[0].name: pixels})[0]
    np.testing.assert_allclose(outputs, model.predict_proba(pixels), atol=1e-4)
