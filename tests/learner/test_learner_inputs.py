"""Learner inputs: arrays, tensors, Pillow images and torch datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import itl
from itl import Learner, UserError
from itl.learner import load_learner
from support.tiny import TINY, differing_keys, learner_snapshot, tiny_images, tiny_learner
from support.tiny_model import tiny_task, trained_model


class PairDataset(torch.utils.data.Dataset[Any]):
    """A dataset of (Pillow image, label) pairs."""

    def __init__(self, images: list[Image.Image], labels: list[int]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, k: int) -> tuple[Image.Image, int]:
        return self.images[k], self.labels[k]


@pytest.mark.parametrize("channels", [1, 3])
def test_learning_is_equal_for_arrays_pillow_images_and_datasets(channels: int) -> None:
    pixels, labels = tiny_images(4, channels=channels)
    channels_last = pixels[:, 0] if channels == 1 else pixels.transpose(0, 2, 3, 1)
    pictures = [Image.fromarray(image) for image in channels_last]
    learners = []
    for arguments in (
        (pixels, labels),
        (torch.from_numpy(pixels), torch.from_numpy(labels)),
        (pictures, labels.tolist()),
        (PairDataset(pictures, labels.tolist()),),
        (torch.utils.data.TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels)),),
        (torch.utils.data.Subset(PairDataset(pictures, labels.tolist()), range(len(pictures))),),
    ):
        learner = tiny_learner("itl", classes=None)
        learner.learn(*arguments)
        learners.append(learner)
        expected = learners[0].predict_proba(pixels)
        np.testing.assert_array_equal(learner.predict_proba(arguments[0]), expected)
    assert not any(differing_keys(learner_snapshot(learners[0]), learner_snapshot(other)) for other in learners[1:])


def test_pillow_images_of_mixed_modes_become_rgb() -> None:
    gray = Image.new("L", (8, 8), 9)
    learner = tiny_learner("er", classes=None)
    transparent = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    sixteen_bit = Image.fromarray(np.full((8, 8), 512, np.uint16))
    learner.learn([gray, transparent, sixteen_bit] * 3, [0, 1, 2] * 3)
    stored = {label: learner.memory.pixels[slot, :, 0, 0].tolist() for slot, label in enumerate(learner.memory.labels)}
    assert stored == {0: [9, 9, 9], 1: [255, 255, 255], 2: [2, 2, 2]}


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([Image.new("L", (8, 8)), Image.new("L", (8, 9))], [0, 1], r"image 1 is \(8, 9\) pixels.*resize all images"),
        ([Image.new("L", (8, 8)), "a.png"], [0, 1], "image 1 of the list is a str"),
        ([Image.new("L", (8, 8))], None, "no labels; call learn"),
        (Image.new("RGB", (8, 8)), [0] * 8, r"a single Pillow image; give a list, as in \[image\]"),
        ([Image.new("L", (8, 8))], [0, 1], "there are 1 images but 2 labels"),
        ([Image.new("L", (8, 8))] * 2, ["cat", 1], "labels must be integers"),
        ([Image.new("L", (8, 8))], [10**9], "labels must be under 131,072, not 1000000000"),
        (np.zeros((0, 8, 8), np.uint8), np.zeros(0, np.int64), "there are no images to learn from"),
    ],
)
def test_invalid_images_or_labels_are_refused(images: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_learner("er", classes=None).learn(images, labels)


def test_evaluate_accepts_the_same_inputs_as_learn() -> None:
    pixels, labels = tiny_images(4)
    learner = tiny_learner("er", classes=None)
    with pytest.raises(UserError, match="learned nothing"):
        learner.evaluate(pixels, labels)
    learner.learn(pixels, labels)
    accuracy = 100 * float((learner.predict(pixels) == labels).mean())
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
    assert learner.evaluate(pixels, labels).class_il == pytest.approx(accuracy)
    assert learner.evaluate(dataset).class_il == pytest.approx(accuracy)
    first_class = labels == labels[0]
    assert learner.evaluate(pixels[first_class], labels[first_class]).task_il == 100  # only one class to choose from
    with pytest.raises(UserError, match=r"no labels; call evaluate\(images, labels\)"):
        learner.evaluate(pixels)


def test_labels_may_be_class_names(tmp_path: Path) -> None:
    images, labels = tiny_images()
    names = np.array(["pear", "apple", "fig", "date"])[labels]
    named, numbered = (Learner("er", 20, settings=TINY, device="cpu") for _ in range(2))
    for first, second in ((0, 1), (2, 3)):
        chosen = np.isin(labels, (first, second))
        named.learn(images[chosen], names[chosen] if first else names[chosen].tolist())
        outputs = np.where(labels == first, second, first)  # new names are sorted: apple and pear, then date and fig
        numbered.learn(images[chosen], outputs[chosen])
    assert named.class_names == ["apple", "pear", "date", "fig"]
    predicted = np.array(named.class_names)[numbered.predict(images)]
    np.testing.assert_array_equal(named.predict(images), predicted)
    accuracy = 100 * (predicted == names).mean()
    assert named.evaluate(images, names).class_il == pytest.approx(accuracy)
    named.save(tmp_path / "model")
    np.testing.assert_array_equal(load_learner(tmp_path / "model", device="cpu").predict(images), predicted)
    np.testing.assert_array_equal(itl.Model.open(tmp_path / "model", device="cpu").predict(images), predicted)
    with pytest.raises(UserError, match=r"Unknown class 'figs'. Did you mean 'fig'"):
        named.evaluate(images[:1], ["figs"])
    with pytest.raises(UserError, match="labels were names so far, such as 'apple'; give names again"):
        named.learn(images[:4], labels[:4])
    with pytest.raises(UserError, match="labels were integers so far; give integers again"):
        numbered.learn(images[:4], names[:4])


@pytest.mark.parametrize("kind", ["integers", "names"])
def test_data_loader_is_learned_like_arrays(kind: str) -> None:
    images, labels = tiny_images(classes=2)
    given = labels if kind == "integers" else np.array(["ant", "bee"])[labels]
    pairs = [
        (torch.from_numpy(image).float() / 255, label) for image, label in zip(images, given.tolist(), strict=True)
    ]
    from_arrays, from_loader = (Learner("er", 20, settings=TINY, device="cpu") for _ in range(2))
    from_arrays.learn(images, given)
    from_loader.learn(DataLoader(pairs, batch_size=3))  # type: ignore[arg-type]
    assert torch.equal(from_arrays.net.classifier.weight, from_loader.net.classifier.weight)
    assert from_loader.evaluate(DataLoader(pairs, batch_size=8)).class_il  # type: ignore[arg-type]
    with pytest.raises(UserError, match="batch 0 of the DataLoader is not a pair"):
        from_loader.learn(DataLoader([torch.zeros(1, 8, 8)]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"batch 0 of the DataLoader: images of floats must be in 0..1"):
        from_loader.learn(DataLoader([(torch.full((1, 8, 8), 7.0), 0)]))  # type: ignore[arg-type]


def test_dataset_and_loader_are_predicted_like_arrays_with_or_without_labels() -> None:
    images, labels = tiny_images(classes=2)
    names = np.array(["ant", "bee"])[labels]
    learner = Learner("er", 20, settings=TINY, device="cpu")
    learner.learn(images, names)
    expected = learner.predict(images).tolist()
    tensors = [torch.from_numpy(image) for image in images]
    pairs = list(zip(tensors, names.tolist(), strict=True))
    for data in (DataLoader(tensors, batch_size=5), DataLoader(pairs, batch_size=5), Pairs(pairs)):  # type: ignore[arg-type]
        assert learner.predict(data).tolist() == expected


class ArrayLike:
    """What array libraries have in common."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: object) -> object:
        return self.array[index]


def test_model_predicts_datasets_loaders_and_objects_like_arrays(tmp_path: Path) -> None:
    model = trained_model(tmp_path / "m")
    pixels = tiny_task("cat", "dog")[0]
    expected = model.predict(pixels).tolist()
    pairs = [(image, "any") for image in pixels]
    for data in (DataLoader(list(pixels), batch_size=5), Pairs(pairs), ArrayLike(pixels.numpy())):  # type: ignore[arg-type]
        assert model.predict(data).tolist() == expected


class Pairs(Dataset):  # type: ignore[type-arg]
    """A dataset of the given pairs."""

    def __init__(self, pairs: list[tuple[torch.Tensor, str]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, str]:
        return self.pairs[k]
