"""Tests of streams from arrays, tensors and torch Datasets."""

import numpy as np
import pytest
import torch
from PIL import Image

from itl.errors import UserError
from itl.streams import from_arrays, from_dataset
from itl.streams.arrays import as_images, collect

RNG = np.random.default_rng(0)
LABELS = np.arange(48) % 4


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((48, 5, 6), (0, 1, 2), (1, 5, 6)),
        ((48, 5, 6, 3), (0, 3, 1, 2), (3, 5, 6)),
        ((48, 5, 6, 1), (0, 3, 1, 2), (1, 5, 6)),
        ((48, 3, 5, 6), (0, 1, 2, 3), (3, 5, 6)),
    ],
)
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_from_arrays_accepts_every_layout(shape, axes, expected, kind):
    x = pixels(*shape)
    stream = from_arrays(kind(x), LABELS, kind(x), LABELS, tasks=2)
    assert stream.shape == expected
    whole = x.transpose(axes).reshape(-1, *expected)
    first = stream.tasks[0]
    assert torch.equal(first.train.pixels, torch.from_numpy(whole[LABELS < 2]))
    assert first.train.labels.tolist() == LABELS[LABELS < 2].tolist()


def test_from_arrays_needs_a_layout_if_the_shape_is_ambiguous():
    for x in (pixels(48, 3, 3, 3), pixels(48, 5, 6, 7)):
        with pytest.raises(UserError, match="give layout="):
            from_arrays(x, LABELS)
    assert from_arrays(pixels(48, 2, 6, 7), LABELS, layout="NCHW").shape == (2, 6, 7)
    assert from_arrays(pixels(48, 3, 3, 3), LABELS, layout="NHWC").shape == (3, 3, 3)


def test_arbitrary_labels_become_columns_in_ascending_order():
    stream = from_arrays(pixels(48, 4, 4), LABELS * 10 - 5, tasks=2)
    assert stream.class_names == ("-5", "5", "15", "25")
    assert stream.tasks[1].classes == (2, 3)


def test_from_arrays_without_test_set_holds_out_a_quarter_of_every_class():
    stream = from_arrays(pixels(48, 4, 4), LABELS, tasks=4)
    assert [(len(task.train), len(task.test)) for task in stream] == [(9, 3)] * 4
    rows = [row for task in stream for part in (task.train, task.test) for row in part.rows.tolist()]
    assert sorted(rows) == list(range(48))


def test_mean_and_std_are_measured_on_the_training_images():
    x = pixels(48, 3, 5, 5)
    stream = from_arrays(x, LABELS, x[:4], LABELS[:4])
    assert np.allclose(stream.mean, (x / 255).mean((0, 2, 3)))
    assert np.allclose(stream.std, (x / 255).std((0, 2, 3)))
    given = from_arrays(x, LABELS, mean=(0.1, 0.2, 0.3))
    assert given.mean == (0.1, 0.2, 0.3)
    assert min(from_arrays(np.zeros((48, 4, 4), np.uint8), LABELS).std) > 0


def test_from_arrays_supports_the_validation_split():
    stream = from_arrays(pixels(480, 4, 4), np.arange(480) % 4, pixels(4, 4, 4), np.arange(4), split="validation")
    assert (len(stream.tasks[0].train), len(stream.tasks[0].test)) == (432, 48)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((pixels(48, 4, 4) / 127, LABELS), {}, "floats must be in 0..1, but these are in 0"),
        ((torch.full((48, 4, 4), -0.5), LABELS), {}, "floats must be in 0..1, but these are in -0.5..-0.5"),
        ((torch.full((48, 4, 4), torch.nan), LABELS), {}, "floats must be in 0..1"),
        ((torch.zeros(48, 4, 4, dtype=torch.int64), LABELS), {}, "must be uint8, 0..255, or floats"),
        ((pixels(48, 4, 4), LABELS[:5]), {}, "48 images but 5 labels"),
        ((pixels(48, 4, 4), LABELS / 2), {}, "labels must be integers"),
        ((pixels(48, 4, 4), LABELS[:, None]), {}, "labels must be integers"),
        ((pixels(48, 4, 4), LABELS), {"class_names": ["a", "b"]}, "label 2 has no name"),
        ((pixels(48, 4, 4), LABELS), {"layout": "HWC"}, "Unknown layout"),
        ((pixels(48, 4, 4), LABELS), {"layout": "NCHW"}, "4 dimensions"),
        ((pixels(48, 4, 4), LABELS), {"mean": (0.1, 0.2)}, "mean must hold 1"),
        ((pixels(48, 4, 4), LABELS, pixels(48, 4, 4)), {}, "together"),
        ((pixels(48, 4, 4), LABELS, pixels(48, 5, 5), LABELS), {}, "one shape"),
        ((pixels(0, 4, 4), []), {}, "no training images"),
        ((pixels(48, 4, 4), LABELS), {"tasks": 5}, "4 tasks or fewer"),
    ],
)
def test_from_arrays_reports_mistakes_in_one_line(arguments, options, message):
    with pytest.raises(UserError, match=message) as caught:
        from_arrays(*arguments, **options)
    assert "\n" not in str(caught.value)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, images, labels=LABELS, classes=None):
        self.images, self.labels = images, labels
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.images)

    def __getitem__(self, k):
        return self.images[k], self.labels[k]


@pytest.mark.parametrize(
    ("shape", "wrap"),
    [
        ((48, 6, 6, 3), Image.fromarray),
        ((48, 6, 6), Image.fromarray),
        ((48, 6, 6, 3), np.asarray),
        ((48, 3, 6, 6), torch.from_numpy),
    ],
)
def test_from_dataset_accepts_datasets_of_raw_images(shape, wrap):
    x = pixels(*shape)
    stream = from_dataset(Pairs([wrap(image) for image in x], classes=list("abcd")), tasks=2)
    direct = from_arrays(x, LABELS, tasks=2, class_names=list("abcd"))
    assert stream.class_names == ("a", "b", "c", "d")
    assert stream.name == "Pairs"
    for a, b in zip(stream, direct, strict=True):
        assert torch.equal(a.train.pixels, b.train.pixels)
        assert torch.equal(a.test.labels, b.test.labels)


def test_from_dataset_uses_the_test_dataset_and_converts_palette_images():
    x = [Image.fromarray(image).convert("P") for image in pixels(48, 6, 6, 3)]
    stream = from_dataset(Pairs(x), Pairs(x[:8]), name="mine")
    assert stream.shape == (3, 6, 6)
    assert (len(stream.tasks[0].train), len(stream.tasks[0].test)) == (48, 8)
    assert stream.name == "mine"


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Pairs([torch.full((3, 6, 6), 2.0)] * 48), "sample 0 of Pairs: images of floats must be in 0..1"),
        (Pairs([np.zeros((6, 6), np.uint8)] * 3 + [np.zeros((7, 6), np.uint8)]), "sample 3 .* one size"),
        (Pairs([np.zeros((6, 6), np.uint8)] * 3, labels=["cat"] * 3), "labels must be integers"),
        (Pairs([]), "is empty"),
        (iter([]), "map-style"),
        ([np.zeros((6, 6), np.uint8)], "is not a pair"),
    ],
)
def test_from_dataset_reports_unsuitable_datasets(dataset, message):
    with pytest.raises(UserError, match=message):
        from_dataset(dataset)


@pytest.mark.parametrize("images", [Pairs([torch.zeros(3, 6, 6)] * 48), [np.zeros((6, 6), np.uint8), np.zeros((7, 6))]])
def test_as_images_reports_unreadable_images_in_one_line(images):
    with pytest.raises(UserError, match=r"as images .* a dataset without labels=") as caught:
        as_images(images, LABELS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_from_0_to_1_become_the_same_pixels(dtype: torch.dtype) -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, 3, 1, 1)
    floats = (levels.double() / 255).to(dtype)  # what torchvision's ToTensor gives
    np.testing.assert_array_equal(as_images(floats, [0, 1]).pixels, levels)
    np.testing.assert_array_equal(as_images(floats.numpy(), [0, 1]).pixels, levels)
    np.testing.assert_array_equal(collect(Pairs(list(floats)))[0], levels)
