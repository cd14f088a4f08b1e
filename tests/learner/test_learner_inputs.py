"""Learner inputs: arrays, tensors, Pillow images and torch datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from itl import UserError
from support.tiny import differing_keys, learner_snapshot, tiny_images, tiny_learner


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
    grey = Image.new("L", (8, 8), 9)
    learner = tiny_learner("er", classes=None)
    transparent = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    sixteen_bit = Image.fromarray(np.full((8, 8), 512, np.uint16))
    learner.learn([grey, transparent, sixteen_bit] * 3, [0, 1, 2] * 3)
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
        ([Image.new("L", (8, 8))], ["cat"], "labels must be integers"),
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
