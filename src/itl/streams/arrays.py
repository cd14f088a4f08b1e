"""Streams from data in memory: NumPy arrays, tensors, any torch Dataset."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from itl.errors import UserError, unknown
from itl.streams.base import Dataset, Images, Stream, Traits
from itl.streams.pillow_images import as_rgb
from itl.streams.split import build
from itl.streams.stable_permutation import stratified_split

if TYPE_CHECKING:
    from torch.utils import data

Array = npt.NDArray[Any] | Tensor
_LAYOUTS = ("NHW", "NHWC", "NCHW")


def from_arrays(
    images: Array,
    labels: Array | Sequence[int],
    test_images: Array | None = None,
    test_labels: Array | Sequence[int] | None = None,
    *,
    name: str = "arrays",
    class_names: Sequence[str] | None = None,
    layout: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    flip: bool = True,
    padding: int = 4,
    policy: str | None = None,
    tasks: int = 1,
    order: Sequence[int] | None = None,
    order_seed: int | None = None,
    split: str = "test",
) -> Stream:
    """Make a stream of images in memory.

    Args:
        images: Training images, uint8 `[N, H, W]`, `[N, H, W, C]` or `[N, C, H, W]`.
        labels: Their labels, integers `[N]`. With `class_names` they are indices of it; else the classes are the
            distinct labels in ascending order.
        test_images: Test images. Default: a fixed quarter of every class is held out.
        test_labels: Their labels.
        name: Name of the stream.
        class_names: Names of the classes. Default: the labels.
        layout: "NHW", "NHWC" or "NCHW". Needed only if the shape is ambiguous.
        mean: Mean of each channel, for pixels in 0..1. Default: measured on the training images.
        std: Standard deviation of each channel, for pixels in 0..1. Default: measured on the training images.
        flip: Whether a mirrored image keeps its label.
        padding: Padding of random crops.
        policy: Name of an AutoAugment policy, or None.
        tasks: Number of tasks.
        order: Class numbers in the order in which they are learned. Default: ascending.
        order_seed: Draw the class order from this seed.
        split: "test", or "validation" to evaluate on a fixed tenth of the training set, which is removed from it.

    Returns:
        The stream.

    Raises:
        UserError: The arrays do not fit together, or an option is invalid.
    """
    x, y = as_pixels(images, layout), as_labels(labels)
    names, classes = _classes(class_names, y, None if test_labels is None else as_labels(test_labels))
    train = _labeled(x, y, classes)
    if test_images is not None and test_labels is not None:
        test = _labeled(as_pixels(test_images, layout), as_labels(test_labels), classes)
    elif test_images is None and test_labels is None:
        kept, held_out = stratified_split(train.labels, fraction=0.25)
        train, test = train.take(kept), train.take(held_out)
    else:
        raise UserError("give test_images and test_labels together, or neither to hold out a quarter")
    if test.source.shape[1:] != train.source.shape[1:]:
        shapes = f"{list(train.source.shape[1:])} and {list(test.source.shape[1:])}"
        raise UserError(f"training and test images must have one shape [C,H,W]; they have {shapes}")
    if not len(train):
        raise UserError("there are no training images; give at least one of every class")
    traits = Traits(*statistics(train, mean, std), flip, padding, policy, tasks)
    return build(name, Dataset(train, test, names, traits), order=order, order_seed=order_seed, split=split)


def from_dataset(train: data.Dataset[Any], test: data.Dataset[Any] | None = None, **options: Any) -> Stream:
    """Make a stream from a map-style torch Dataset of (image, label) pairs.

    Args:
        train: Training data. Its images are Pillow images, or arrays or tensors of uint8 or of floats from 0 to 1,
            without augmentation or normalization: the learner does both. If it has a list `classes`,
            that names the classes.
        test: Test data. Default: a fixed quarter of every class is held out.
        **options: As in `from_arrays`.

    Returns:
        The stream.

    Raises:
        UserError: A sample is not a pair of a raw image and an integer, or the images differ in shape.
    """
    names = getattr(train, "classes", None)
    if names is not None and "class_names" not in options:
        options["class_names"] = tuple(str(name) for name in names)
    options.setdefault("name", type(train).__name__)
    arrays = collect(train) if test is None else (*collect(train), *collect(test))
    return from_arrays(*arrays, layout="NCHW", **options)


def as_images(images: Any, labels: Any) -> Images:
    """Convert an array, a tensor or a list of Pillow images, and integer labels `[N]`.

    Raises:
        UserError: The images cannot be read as such, or the number of labels differs.
    """
    pixels, y = as_pixels(images), as_labels(labels)
    if len(y) != len(pixels):
        raise UserError(f"there are {len(pixels)} images but {len(y)} labels; give one label for each image")
    return Images(pixels, y)


def as_pixels(images: Any, layout: str | None = None) -> Tensor:
    """Convert images of any layout, or a list of Pillow images, to uint8 `[N, C, H, W]`."""
    if isinstance(images, Image.Image):
        raise UserError("this is a single Pillow image; give a list, as in [image]")
    if isinstance(images, list | tuple) and any(isinstance(image, Image.Image) for image in images):
        return _stack_pillow_images(images)
    x = images if isinstance(images, Tensor) else _array(images)
    if x.dtype not in (torch.uint8, np.uint8):
        x = _from_floats(x)
    layout = _guess_layout(tuple(x.shape)) if layout is None else layout
    if layout not in _LAYOUTS:
        raise unknown("layout", str(layout), _LAYOUTS)
    if x.ndim != len(layout):
        raise UserError(f"images of layout {layout} must have {len(layout)} dimensions, not shape {list(x.shape)}")
    t = x.cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    if layout == "NHW":
        return t.unsqueeze(1)
    return t.permute(0, 3, 1, 2).contiguous() if layout == "NHWC" else t


def _from_floats(x: Array) -> Tensor:
    """Convert images of floats from 0 to 1, as `ToTensor` gives them, to uint8."""
    t = x.cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x)) if x.dtype.kind in "biuf" else None
    if t is None or not t.is_floating_point():
        raise UserError(f"images must be uint8, 0..255, or floats, 0..1, not {x.dtype}; convert them")
    if t.numel() and not (float(t.min()) >= 0 and float(t.max()) <= 1):
        raise UserError(
            f"images of floats must be in 0..1, but these are in {float(t.min()):.3g}..{float(t.max()):.3g}; give them "
            "before normalization, or as uint8"
        )
    return (t.double() * 255).round().to(torch.uint8)


def _array(images: Any) -> np.ndarray:
    try:
        return np.asarray(images)
    except (ValueError, TypeError) as error:  # for example rows of different lengths, or a dataset
        raise UserError(
            f"cannot read a {type(images).__name__} as images ({error}); give an array, a tensor, a list of Pillow "
            "images, or a dataset without labels="
        ) from None


def _stack_pillow_images(images: Sequence[Any]) -> Tensor:
    """Stack Pillow images of one size: one channel if all are gray, else three."""
    invalid = next((k for k, image in enumerate(images) if not isinstance(image, Image.Image)), None)
    if invalid is not None:
        raise UserError(f"image {invalid} of the list is a {type(images[invalid]).__name__}, others are Pillow images")
    sizes = [image.size for image in images]
    other = next((k for k, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise UserError(f"image {other} is {sizes[other]} pixels, image 0 is {sizes[0]}; resize all images to one size")
    if all(image.mode == "L" for image in images):
        return torch.from_numpy(np.stack([np.asarray(image) for image in images])).unsqueeze(1)
    stack = np.stack([np.asarray(as_rgb(image)) for image in images])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()


def as_labels(labels: Array | Sequence[int]) -> Tensor:
    """Convert labels to int64 `[N]`."""
    y = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.ndim != 1 or (y.dtype.kind not in "iu" and y.size):
        raise UserError(f"labels must be integers [N], not {y.dtype} of shape {list(y.shape)}")
    return torch.from_numpy(y.astype(np.int64))


def _guess_layout(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return "NHW"
    first, last = (len(shape) == 4 and shape[axis] in (1, 3) for axis in (1, -1))
    if first == last:
        raise UserError(f"cannot tell the channels in images of shape {list(shape)}; give layout='NCHW' or 'NHWC'")
    return "NCHW" if first else "NHWC"


def _classes(names: Sequence[str] | None, *labels: Tensor | None) -> tuple[tuple[str, ...], Tensor]:
    """Class names, and the label of each class in the arrays (int64, ascending)."""
    if names is not None:
        return tuple(names), torch.arange(len(names))
    found = torch.unique(torch.cat([y for y in labels if y is not None]))
    return tuple(str(int(label)) for label in found), found


def _labeled(pixels: Tensor, labels: Tensor, classes: Tensor) -> Images:
    if len(pixels) != len(labels):
        raise UserError(f"there are {len(pixels)} images but {len(labels)} labels; give one label for each image")
    unnamed = labels[~torch.isin(labels, classes)]
    if len(unnamed):
        raise UserError(f"label {int(unnamed[0])} has no name; labels must be in 0..{len(classes) - 1}")
    return Images(pixels, torch.searchsorted(classes, labels))


def statistics(
    train: Images, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, for pixels in 0..1, computed from its histogram.

    Args:
        train: The images to measure.
        mean: Mean of each channel, if it is known.
        std: Standard deviation of each channel, if it is known.
    """
    channels = train.source.shape[1]
    for name, given in (("mean", mean), ("std", std)):
        if given is not None and len(given) != channels:
            raise UserError(f"{name} must hold {channels} numbers, one for each channel, not {len(given)}")
    if mean is not None and std is not None:
        return tuple(mean), tuple(std)
    levels = torch.arange(256, dtype=torch.float64) / 255
    pixels, means, stds = train.pixels, [], []
    for channel in range(channels):
        frequency = torch.bincount(pixels[:, channel].flatten(), minlength=256).double()
        frequency /= frequency.sum()
        center = float(frequency @ levels)
        means.append(center)
        stds.append(max(float(frequency @ (levels - center) ** 2) ** 0.5, 1 / 255))  # images are divided by it
    return tuple(mean or means), tuple(std or stds)


def collect_batches(loader: data.DataLoader[Any], labeled: bool = True) -> tuple[Tensor, Any]:
    """All batches of a torch `DataLoader`: uint8 `[N, C, H, W]`, and labels, which are integers or strings.

    Args:
        loader: The loader.
        labeled: Whether a batch must be a pair. Otherwise it may also be images only, and there are no labels.

    Raises:
        UserError: A batch is not a pair of raw images and labels, or the images differ in shape.
    """
    images: list[Tensor] = []
    labels: list[Any] = []
    for k, batch in enumerate(loader):
        if not labeled:
            batch = (batch[0] if isinstance(batch, list | tuple) else batch, ())
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise UserError(f"batch {k} of the DataLoader is not a pair (images, labels); give a dataset of pairs")
        try:
            images.append(as_pixels(batch[0], "NCHW" if getattr(batch[0], "ndim", 0) == 4 else None))
        except UserError as error:
            raise UserError(f"batch {k} of the DataLoader: {error}") from None
        if images[-1].shape[1:] != images[0].shape[1:]:
            raise UserError(f"batch {k} of the DataLoader has images of another shape; resize all images to one size")
        labels += batch[1].tolist() if isinstance(batch[1], Tensor | np.ndarray) else list(batch[1])
    if not images:
        raise UserError("the DataLoader is empty; give a dataset with at least one image of every class")
    return torch.cat(images), labels


def collect(dataset: object) -> tuple[Tensor, Any]:
    """All samples of a torch Dataset: uint8 `[N, C, H, W]`, and labels, which are integers or strings."""
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UserError(f"{type(dataset).__name__} has no length or index; give a map-style torch Dataset")
    images: list[Tensor] = []
    labels: list[int | str] = []
    for k in range(len(dataset)):
        image, label = _sample(dataset, k)
        if images and image.shape != images[0].shape:
            shapes = f"{list(image.shape)} where sample 0 has {list(images[0].shape)}"
            raise UserError(
                f"sample {k} of {type(dataset).__name__} has shape {shapes}; convert all images to one size and mode"
            )
        images.append(image)
        labels.append(label)
    if not images:
        raise UserError(f"{type(dataset).__name__} is empty; give a dataset with at least one image of every class")
    return torch.stack(images), labels


def _sample(dataset: Any, k: int) -> tuple[Tensor, int | str]:
    """Sample `k`: uint8 `[C, H, W]` and label."""
    try:
        image, label = dataset[k]
        label = label if isinstance(label, str) else int(label)
    except (TypeError, ValueError) as error:
        raise UserError(f"sample {k} of {type(dataset).__name__} is not a pair (image, integer): {error}") from error
    if isinstance(image, Image.Image):
        image = np.array(image if image.mode in ("L", "RGB") else as_rgb(image))
    if not isinstance(image, np.ndarray | Tensor):
        raise UserError(
            f"sample {k} of {type(dataset).__name__} is a {type(image).__name__}; give Pillow images, arrays or tensors"
        )
    try:
        return as_pixels(image[None])[0], label
    except UserError as error:
        raise UserError(f"sample {k} of {type(dataset).__name__}: {error}") from None
