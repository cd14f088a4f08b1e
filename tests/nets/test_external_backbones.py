"""Backbones of timm, torchvision and a user's function: weights files, errors, and saved learners."""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import itl
from itl import UserError, nets
from itl.nets import external, registry
from itl.nets.weights import load_backbone_weights

SOURCE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(stem, nn.Linear(16, 8), nn.Linear(8, 1000))

def needs_an_argument(size):
    return make()

def returns_a_word():
    return "resnet"

def exits():
    raise SystemExit(0)

number = 3
"""
NAME = "own_network:make"
REGISTERED = """
from itl.nets import Backbone, ModuleAdapter

def build(classes, channels, width, strided):
    return ModuleAdapter(nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, classes)))

BACKBONE = Backbone("own", "a small network", build)
"""
FAST = {"specialist.epochs": 2, "tangent.epochs": 2, "projection.epochs": 2, "specialist.lr": 0.01}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a user's module, which no test has allowed yet."""
    (tmp_path / "own_network.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITL_CACHE", "off")
    monkeypatch.setattr(external, "_allowed", set())
    monkeypatch.delitem(sys.modules, "own_network", raising=False)
    return tmp_path


def images(count: int = 12, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat([0, 1], count)
    pixels = np.random.default_rng(0).integers(0, 256, (2 * count, size, size, 3)).astype(np.uint8)
    pixels[labels == 1, :, :, 0] //= 4
    return pixels, labels


def weights_of(name: str, file: Path, **changed: torch.Tensor) -> str:
    """Write weights of the named network, drawn from another seed, as a safetensors file; returns its hash."""
    net = nets.build(name, 7, generator=torch.Generator().manual_seed(5))
    assert isinstance(net, nets.ModuleAdapter)
    tensors = {
        n: t + 0.01 * torch.rand_like(t) if t.is_floating_point() else t for n, t in net.module.state_dict().items()
    }
    save_file({**tensors, **changed}, file)
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ------------------------------------------------------------------ a user's function


def test_users_function_with_a_weights_file_learns_and_is_saved(own_folder: Path) -> None:
    nets.find_named(NAME)
    sha256 = weights_of(NAME, own_folder / "w.safetensors")
    learner = itl.Learner("ridge", backbone=NAME, settings={"net.weights": "w.safetensors"}, device="cpu")
    learner.learn(*images())
    learner.save("model")
    assert learner.backbone is not None
    assert learner.backbone.to_dict()["name"] == NAME
    assert learner.backbone.weights_sha256 == sha256
    assert learner.backbone.preprocessing.mean == learner.traits.mean
    (own_folder / "w.safetensors").unlink()  # the folder has all weights
    loaded = itl.load("model", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(images()[0]), learner.predict_proba(images()[0]))
    assert loaded.backbone == learner.backbone


def test_function_named_by_a_folder_is_not_imported_unasked(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = itl.Learner("er", 8, backbone=NAME, settings=FAST, device="cpu")
    learner.learn(*images())
    learner.save("model")
    monkeypatch.setattr(external, "_allowed", set())
    with pytest.raises(
        UserError, match=r"model cannot be opened here, and is unchanged: .* if you trust it, give --back"
    ):
        itl.load("model", device="cpu")
    monkeypatch.setenv("ITL_BACKBONES", f"other:one, {NAME}")
    loaded = itl.load("model", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(images()[0]), learner.predict_proba(images()[0]))
    (own_folder / "own_network.py").unlink()
    monkeypatch.delitem(sys.modules, "own_network")
    with pytest.raises(
        UserError, match=r"model cannot be opened here, and is unchanged: Unknown backbone 'own_network:"
    ):
        itl.load("model", device="cpu")


def test_backbone_that_a_script_registered_is_found_by_the_listed_object(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a model names `own`, which another process does not know."""
    with (own_folder / "own_network.py").open("a") as file:
        file.write(REGISTERED)
    monkeypatch.syspath_prepend(own_folder)
    monkeypatch.setitem(registry.REGISTERED, "own", import_module("own_network").BACKBONE)
    learner = itl.Learner("er", 8, settings={**FAST, "net.name": "own"}, device="cpu")
    learner.learn(*images())
    learner.save("model")
    monkeypatch.delitem(registry.REGISTERED, "own")
    with pytest.raises(
        UserError, match=r"Unknown backbone 'own'\. .* set the environment variable ITL_BACKBONES=MODULE:"
    ):
        itl.load("model", device="cpu")
    monkeypatch.setenv("ITL_BACKBONES", "own_network:BACKBON")
    with pytest.raises(UserError, match=r"is unchanged: Unknown backbone 'own_network:BACKBON': .* Python module$"):
        itl.load("model", device="cpu")
    monkeypatch.setenv("ITL_BACKBONES", "timm:x, no_such_module:one, own_network:make, own_network:BACKBONE")
    loaded = itl.load("model", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(images()[0]), learner.predict_proba(images()[0]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:make", "Unknown backbone 'no_such_module:make': No module named 'no_such_module'; use"),
        ("own_network:mak", "Unknown backbone 'own_network:mak': module 'own_network' has no attribute 'mak'"),
        ("own_network:number", "own_network:number is a int, not a function"),
        ("own_network:needs_an_argument", "cannot be built without arguments: needs_an_argument.. missing 1"),
        ("own_network:exits", "cannot be built without arguments: 0; correct it"),
        ("own_script:make", "Unknown backbone 'own_script:make': SystemExit; use"),
        ("own_network:returns_a_word", "own_network:returns_a_word returns a str, not a torch.nn.Module"),
    ],
)
def test_wrong_function_is_refused_in_one_line(own_folder: Path, name: str, message: str) -> None:
    (own_folder / "own_script.py").write_text("import sys\nsys.path.remove(sys.path[0])\nsys.exit()\n")
    external.allow(name)
    with pytest.raises(UserError, match=message) as caught:
        nets.build(name, 2)
    assert "\n" not in str(caught.value)


def test_joint_training_starts_from_the_saved_initial_weights(own_folder: Path) -> None:
    """A method that resets the network needs the initial weights, but not their file."""
    nets.find_named(NAME)
    weights_of(NAME, own_folder / "w.safetensors")
    settings = {**FAST, "net.weights": "w.safetensors", "net.trained": 2, "tangent.layers": 2}
    learner = itl.Learner("joint", 8, backbone=NAME, settings=settings, device="cpu")
    learner.learn(*images())
    learner.save("model")
    (own_folder / "w.safetensors").unlink()
    loaded = itl.load("model", device="cpu")
    for one in (learner, loaded):
        one.net.reinitialize(torch.Generator().manual_seed(0))
    for name, tensor in learner.net.state_dict().items():
        assert torch.equal(tensor, loaded.net.state_dict()[name]), name


# ------------------------------------------------------------------ weights files


def test_weights_file_of_a_registered_backbone_is_checked(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = own_folder / "w.safetensors"
    sha256 = weights_of_own(file)
    build = nets.find_named(NAME).build
    monkeypatch.setattr(registry, "REGISTERED", {})
    nets.register(nets.Backbone("mine", "", build, weights_file=file, weights_sha256=sha256))
    learner = itl.Learner("ncm", backbone="mine", device="cpu")
    learner.learn(*images())
    assert learner.backbone is not None
    assert learner.backbone.weights_sha256 == sha256
    weights_of_own(file, **{"1.bias": torch.ones(8)})
    with pytest.raises(
        UserError, match=r"is not the file of weights that was expected \(another sha256\); get it again"
    ):
        itl.Learner("ncm", backbone="mine", device="cpu").learn(*images())


def weights_of_own(file: Path, **changed: torch.Tensor) -> str:
    nets.find_named(NAME)
    return weights_of(NAME, file, **changed)


def test_weights_file_that_does_not_fit_is_refused(own_folder: Path) -> None:
    file = own_folder / "w.safetensors"
    weights_of_own(file, **{"1.bias": torch.ones(9)})
    net = nets.build(NAME, 2)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(
        UserError, match=r"has 1.bias of shape \[9\], the network \[8\]; the weights must be those of a"
    ):
        load_backbone_weights(net, file)
    weights_of_own(file, **{"1.bias": torch.full((8,), torch.nan)})
    with pytest.raises(UserError, match=r"non-finite values in 1.bias"):
        load_backbone_weights(net, file)
    torch.save({"1.bias": torch.ones(8)}, own_folder / "w.pth")
    with pytest.raises(UserError, match=r"w.pth is a pickle, which can run code when it is read; convert it"):
        load_backbone_weights(net, own_folder / "w.pth")
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


# ------------------------------------------------------------------ timm and torchvision


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_missing_library_names_the_command_that_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"needs the package {library}, .* pip install 'itl\[{library}\]'"):
        nets.find(name)


def test_torchvision_network_learns_with_weights_from_a_file(own_folder: Path) -> None:
    pytest.importorskip("torchvision")
    name, file = "torchvision:mobilenet_v3_small", own_folder / "w.safetensors"
    weights_of(name, file)
    settings = {**FAST, "net.weights": str(file), "net.size": 32, "net.trained": 2, "tangent.layers": 2}
    learner = itl.Learner("itl", 8, backbone=name, settings=settings, device="cpu")
    learner.learn(*images())
    learner.save("model")
    loaded = itl.load("model", device="cpu")
    np.testing.assert_allclose(loaded.predict_proba(images()[0]), learner.predict_proba(images()[0]), atol=1e-5)
    assert loaded.backbone is not None
    assert loaded.backbone.preprocessing == nets.Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
    with pytest.raises(
        UserError, match=r"Unknown backbone 'torchvision:resnet19'. Did you mean .*'torchvision:resnet18'"
    ):
        nets.find("torchvision:resnet19")
    with pytest.raises(UserError, match="needs images with 3 channels, not 1"):
        nets.build(name, 2, channels=1)


def test_failed_download_of_weights_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    monkeypatch.setenv("TORCH_HOME", "empty")
    with pytest.raises(UserError, match=r"cannot be loaded \(no network\); connect .* --weights FILE"):
        nets.build("torchvision:mobilenet_v3_small", 2, pretrained=True)


def test_layers_of_torchvision_networks_are_their_blocks() -> None:
    models = pytest.importorskip("torchvision").models
    with torch.device("meta"):
        vit, resnet = (nets.ModuleAdapter(models.get_model(name)) for name in ("vit_b_16", "resnet18"))
    assert vit.layer_modules[-3:] == (
        ("encoder.layers.encoder_layer_10",),
        ("encoder.layers.encoder_layer_11", "encoder.ln"),
        ("heads.head",),
    )
    assert resnet.layers == ("conv1", *(f"layer{k}.{b}" for k in range(1, 5) for b in range(2)), "fc")
    assert nets.fixed_input_size("torchvision:vit_b_16") == 224
    assert nets.fixed_input_size("torchvision:resnet18") is None


def test_vision_transformer_of_timm_trains_its_last_block(own_folder: Path) -> None:
    timm = pytest.importorskip("timm")
    name, file = "timm:test_vit", own_folder / "w.safetensors"
    timm.create_model("test_vit")  # exists
    weights_of(name, file)
    settings = {**FAST, "net.weights": str(file), "net.trained": 2, "tangent.layers": 2}
    learner = itl.Learner("itl", 8, backbone=name, settings=settings, device="cpu")
    learner.learn(*images())
    trained = [n for n, p in learner.net.named_parameters() if p.requires_grad]
    assert {n.split(".")[2] for n in trained} == {"blocks", "norm", "head"}
    learner.save("model")
    loaded = itl.load("model", device="cpu")
    np.testing.assert_allclose(loaded.predict_proba(images()[0]), learner.predict_proba(images()[0]), atol=1e-5)
    with pytest.raises(UserError, match=r"Unknown backbone 'timm:test_vot'. Did you mean .*'timm:test_vit'"):
        nets.find("timm:test_vot")
