"""Speed of batched augmentation compared with Pillow, one image at a time in one process, as a ratio.

python benchmarks/augment.py [--images 10000] [--device cpu] [--json FILE]

Both draw, augment and normalize the same images to float32. The Pillow loop follows torchvision's RandomCrop,
RandomHorizontalFlip, AutoAugment, ToTensor and Normalize, without torchvision's overhead.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from itl.augment import Augment
from itl.augment.policy import POLICIES, SIGNED, magnitudes

MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32).reshape(3, 1, 1)
STD = np.array([0.2470, 0.2435, 0.2615], dtype=np.float32).reshape(3, 1, 1)


def pillow_crop_and_flip(image: Image.Image, top: int, left: int, flip: bool, padding: int) -> Image.Image:
    """Pad with black, crop and flip one image with Pillow."""
    width, height = image.size
    if padding:
        image = ImageOps.expand(image, padding).crop((left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


def pillow_op(image: Image.Image, name: str, magnitude: float, fill: int = 0) -> Image.Image:
    """Apply one AutoAugment operation with Pillow, with the arguments that torchvision passes."""
    color: int | tuple[int, ...] = fill if image.mode == "L" else (fill, fill, fill)

    def affine(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=color)

    tangent = math.tan(math.radians(math.degrees(math.atan(magnitude))))
    enhance: dict[str, Callable[[Image.Image], ImageEnhance._Enhance]] = {
        "Brightness": ImageEnhance.Brightness,
        "Color": ImageEnhance.Color,
        "Contrast": ImageEnhance.Contrast,
        "Sharpness": ImageEnhance.Sharpness,
    }
    if name in enhance:
        return enhance[name](image).enhance(1.0 + magnitude)
    return {
        "ShearX": lambda: affine(1, tangent, 0, 0, 1, 0),
        "ShearY": lambda: affine(1, 0, 0, tangent, 1, 0),
        "TranslateX": lambda: affine(1, 0, -int(magnitude), 0, 1, 0),
        "TranslateY": lambda: affine(1, 0, 0, 0, 1, -int(magnitude)),
        "Rotate": lambda: image.rotate(magnitude, Image.Resampling.NEAREST, fillcolor=color),
        "Posterize": lambda: ImageOps.posterize(image, int(magnitude)),
        "Solarize": lambda: ImageOps.solarize(image, magnitude),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
        "Invert": lambda: ImageOps.invert(image),
    }[name]()


def augment_with_pillow(images: np.ndarray, policy: str | None, strengths: dict[str, list[float]]) -> None:
    """Augment uint8 images `[n, H, W, C]` one at a time, each to float32 `[C, H, W]`, without collating them.

    `strengths` holds the magnitude of every level by operation.
    """
    for pixels in images:
        top, left, flip = random.randint(0, 8), random.randint(0, 8), random.random() < 0.5
        image = pillow_crop_and_flip(Image.fromarray(pixels), top, left, flip, padding=4)
        for name, chance, level in random.choice(POLICIES[policy]) if policy else ():
            if random.random() <= chance:
                negative = name in SIGNED and random.random() < 0.5
                image = pillow_op(image, name, -strengths[name][level] if negative else strengths[name][level])
        channels_first = np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255
        channels_first -= MEAN
        channels_first /= STD


def augment_batched(images: torch.Tensor, augment: Augment, rng: np.random.Generator) -> None:
    """Augment all uint8 images `[n, C, H, W]` at once, then normalize them to float32 in batches, as in training."""
    scale = torch.from_numpy(1 / (255 * STD)).to(images.device)
    bias = torch.from_numpy(-MEAN / STD).to(images.device)
    views = augment(images, augment.draw(rng, len(images)))
    for batch in torch.split(views, 500):
        batch.float().mul_(scale).add_(bias)


def best_seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """Shortest time of several calls, the one least disturbed by other processes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def smooth_noise(n: int, size: int = 32) -> torch.Tensor:
    """Smooth colored noise with histograms similar to those of photographs: uint8 `[n, 3, size, size]`."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 5, 5, generator=generator) * 300 - 20
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    grain = torch.randn(n, 3, size, size, generator=generator) * 6
    return (smooth + grain).clamp(0, 255).to(torch.uint8)


def measure(n: int, device: str) -> list[dict[str, object]]:
    """One row per recipe: microseconds per image of both implementations, and their ratio."""
    images = smooth_noise(n)
    pillow_images = images[: min(n, 2000)].permute(0, 2, 3, 1).contiguous().numpy()
    device_images = images.to(device)
    rows: list[dict[str, object]] = []
    for policy in (None, *sorted(POLICIES)):
        augment, rng = Augment(policy=policy), np.random.default_rng(0)
        random.seed(0)
        strengths = {
            name: magnitudes(name, 32, 32).tolist() for steps in POLICIES[policy or "cifar10"] for name, _, _ in steps
        }
        with_pillow = partial(augment_with_pillow, pillow_images, policy, strengths)
        pillow = best_seconds(with_pillow, "cpu", 3) / len(pillow_images)
        batched = best_seconds(partial(augment_batched, device_images, augment, rng), device, 7) / n
        recipe = "crop + flip" + (f" + AutoAugment {policy}" if policy else "")
        rows.append({"recipe": recipe, "pillow_us": pillow * 1e6, "ours_us": batched * 1e6, "ratio": pillow / batched})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    options = parser.parse_args()

    rows = measure(options.images, options.device)
    print(f"{options.images} images of 32x32 on {options.device}, {torch.get_num_threads()} CPU threads; µs per image")
    print(f"{'':34}{'Pillow':>10}{'batched':>10}{'ratio':>10}")
    for row in rows:
        print(f"{row['recipe']:34}{row['pillow_us']:10.1f}{row['ours_us']:10.2f}{row['ratio']:9.1f}x")
    if options.json:
        report = {"images": options.images, "device": options.device, "threads": torch.get_num_threads(), "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
