"""Reference augmentation: the same views made by Pillow, one image at a time, as in the benchmark."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itl.augment import Augment, Draws
from itl.augment.policy import OPERATION_NAMES, magnitudes


def _benchmark() -> ModuleType:
    """Import `benchmarks/augment.py`."""
    path = Path(__file__).parents[2] / "benchmarks" / "augment.py"
    spec = importlib.util.spec_from_file_location("benchmark_augment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = _benchmark()
pillow_op = benchmark.pillow_op


def to_pillow(pixels: Tensor) -> Image.Image:
    """Convert uint8 [C, H, W] to a Pillow image of mode L or RGB."""
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())


def from_pillow(image: Image.Image) -> Tensor:
    """Convert a Pillow image to uint8 [C, H, W]."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def pillow_views(augment: Augment, images: Tensor, draws: Draws) -> Tensor:
    """Expected result of `augment(images, draws)`: pad, crop, flip and the drawn operations, all by Pillow."""
    views = []
    for i, pixels in enumerate(images):
        (top, left), flip = draws.shift[i].tolist(), bool(draws.flip[i])
        image = benchmark.pillow_crop_and_flip(to_pillow(pixels), top, left, flip, augment.padding)
        for op, level in zip(draws.ops[i].tolist(), draws.levels[i].tolist(), strict=True):
            if op:
                strength = magnitudes(OPERATION_NAMES[op], *images.shape[2:])[abs(level)].item()
                image = pillow_op(image, OPERATION_NAMES[op], -strength if level < 0 else strength, augment.fill)
        views.append(from_pillow(image))
    return torch.stack(views)


@lru_cache(maxsize=1)
def _photographs() -> list[np.ndarray]:
    from sklearn.datasets import load_sample_images

    return load_sample_images().images


def photo_crops(n: int, channels: int, height: int, width: int) -> Tensor:
    """Crops of scikit-learn's two photographs, some of them darkened: uint8 [n, C, H, W]."""
    rng = np.random.default_rng(7)
    pieces = []
    for i in range(n):
        photo = _photographs()[i % 2]
        zoom = min(1 + i % 3, photo.shape[0] // (height + 1))
        top, left = rng.integers(photo.shape[0] - zoom * height), rng.integers(photo.shape[1] - zoom * width)
        piece = photo[top : top + zoom * height : zoom, left : left + zoom * width : zoom]
        pieces.append(piece // (1, 2, 4, 1)[i % 4] + (0, 0, 9, 0)[i % 4])
    pixels = torch.from_numpy(np.stack(pieces).astype(np.uint8)).permute(0, 3, 1, 2)
    return pixels[:, :channels].contiguous()


def sample_images(channels: int, height: int, width: int) -> Tensor:
    """Photographs, noise with many and with few gray levels, and uniform images: uint8 [16, C, H, W]."""
    generator = torch.Generator().manual_seed(channels * height + width)
    noise = torch.randint(0, 256, (4, channels, height, width), generator=generator)
    few_levels = torch.randint(0, 3, (3, channels, height, width), generator=generator) * 40 + 30
    uniform = torch.tensor([0, 255, 77]).view(3, 1, 1, 1).expand(3, channels, height, width)
    synthetic = torch.cat([noise, few_levels, uniform]).to(torch.uint8)
    return torch.cat([photo_crops(6, channels, height, width), synthetic])
