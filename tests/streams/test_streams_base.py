"""Tests of `Images`, `Task` and `Stream`."""

import pytest
import torch

from itl.errors import UserError
from itl.streams import Images, from_arrays


def some_images(count: int = 6) -> Images:
    source = torch.arange(count * 4, dtype=torch.uint8).reshape(count, 1, 2, 2)
    return Images(source, torch.arange(count))


def test_pixels_without_rows_are_the_source():
    images = some_images()
    assert images.pixels is images.source
    assert len(images) == 6


def test_take_of_consecutive_rows_is_a_view_and_of_other_rows_a_copy():
    images = some_images()
    part = images.take(torch.tensor([2, 3, 4]))
    assert part.pixels.data_ptr() == images.source[2].data_ptr()
    assert torch.equal(part.pixels, images.source[2:5])
    scattered = images.take(torch.tensor([5, 0, 3]))
    assert torch.equal(scattered.pixels, images.source[[5, 0, 3]])
    assert torch.equal(scattered.labels, torch.tensor([5, 0, 3]))


def test_take_of_descending_or_repeated_rows_keeps_their_order():
    images = some_images()
    for rows in ([3, 2, 1], [1, 1, 3], [0, 2, 2]):
        assert torch.equal(images.take(torch.tensor(rows)).pixels, images.source[rows])


def test_nested_take_and_gather_agree_with_plain_indexing():
    images = some_images().take(torch.tensor([5, 4, 1, 0]))
    inner = images.take(torch.tensor([3, 1]))
    assert torch.equal(inner.pixels, images.source[[0, 4]])
    assert torch.equal(images.gather(torch.tensor([3, 1])), images.source[[0, 4]])
    assert torch.equal(some_images().gather(torch.tensor([2])), images.source[[2]])


def test_take_of_no_rows_is_empty():
    empty = some_images().take(torch.tensor([], dtype=torch.int64))
    assert len(empty) == 0
    assert empty.pixels.shape == (0, 1, 2, 2)


@pytest.mark.parametrize(
    ("source", "labels"),
    [
        (torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2)),
    ],
)
def test_images_reject_wrong_types_and_shapes(source, labels):
    with pytest.raises(UserError, match="must be"):
        Images(source, labels)


def test_stream_has_shape_classes_length_and_iterates_over_tasks():
    x = torch.randint(0, 256, (40, 3, 5, 6), dtype=torch.uint8)
    stream = from_arrays(x, torch.arange(40) % 4, tasks=2)
    assert stream.shape == (3, 5, 6)
    assert stream.classes == 4
    assert len(stream) == 2
    assert [task.index for task in stream] == [0, 1]


def test_repr_of_stream_task_and_images_is_one_useful_line():
    x = torch.randint(0, 256, (40, 3, 5, 6), dtype=torch.uint8)
    stream = from_arrays(x, torch.arange(40) % 4, tasks=2, name="mine")
    assert repr(stream) == "Stream('mine', tasks=2, classes=4, shape=(3, 5, 6), split='test')"
    assert repr(stream.tasks[1]) == "Task('mine', index=1, classes=(2, 3), train=16, test=4)"
    assert repr(stream.tasks[1].test) == "Images(4, shape=(3, 5, 6))"
