"""Speed of batched augmentation against the usual way, one Pillow image at a time in one process, as a ratio.

    python benchmarks/augment.py [--images 10000] [--device cpu] [--json FILE]

Both sides do the same work: draw, augment, and hand over normalised float32 images. Pillow's side follows torchvision's
RandomCrop, RandomHorizontalFlip, AutoAugment, ToTensor, Normalize, written by hand without torchvision's overhead.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from itl.augment import Augment
from itl.augment.policy import POLICIES, SIGNED, magnitudes

MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32).reshape(3, 1, 1)
STD = np.array([0.2470, 0.2435, 0.2615], dtype=np.float32).reshape(3, 1, 1)


def pillow_crop_and_flip(image: Image.Image, top: int, left: int, flip: bool, padding: int) -> Image.Image:
    """The usual way: pad with black, cut out, mirror."""
    width, height = image.size
    if padding:
        image = ImageOps.expand(image, padding).crop((left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


def pillow_op(image: Image.Image, name: str, magnitude: float, fill: int = 0) -> Image.Image:
    """One AutoAugment operation by Pillow alone, with the arguments torchvision passes to it."""
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


def pillow_way(images: np.ndarray, policy: str | None, meaning: dict[str, list[float]]) -> None:
    """All images (uint8 [n, H, W, C]) one at a time, each to float32 [C, H, W]; not even collated."""
    for pixels in images:
        top, left, flip = random.randint(0, 8), random.randint(0, 8), random.random() < 0.5
        image = pillow_crop_and_flip(Image.fromarray(pixels), top, left, flip, padding=4)
        for name, chance, level in random.choice(POLICIES[policy]) if policy else ():
            if random.random() <= chance:
                negative = name in SIGNED and random.random() < 0.5
                image = pillow_op(image, name, -meaning[name][level] if negative else meaning[name][level])
        channels_first = np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255
        channels_first -= MEAN
        channels_first /= STD


def our_way(images: torch.Tensor, augment: Augment, rng: np.random.Generator) -> None:
    """All images (uint8 [n, C, H, W]) at once, then handed over in batches of float32, as training takes them."""
    scale = torch.from_numpy(1 / (255 * STD)).to(images.device)
    bias = torch.from_numpy(-MEAN / STD).to(images.device)
    views = augment(images, augment.draw(rng, len(images)))
    for batch in torch.split(views, 500):
        batch.float().mul_(scale).add_(bias)


def best_seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """The shortest of a few runs: what the work takes when nothing else disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def natural_like(n: int, size: int = 32) -> torch.Tensor:
    """Smooth coloured noise with a little grain, with histograms as photographs have: uint8 [n, 3, size, size]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 3, 5, 5, generator=generator) * 300 - 20
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    grain = torch.randn(n, 3, size, size, generator=generator) * 6
    return (smooth + grain).clamp(0, 255).to(torch.uint8)


def measure(n: int, device: str) -> list[dict[str, object]]:
    """A row per recipe: microseconds an image for both ways, and their ratio."""
    images = natural_like(n)
    by_pillow = images[: min(n, 2000)].permute(0, 2, 3, 1).contiguous().numpy()
    here = images.to(device)
    rows: list[dict[str, object]] = []
    for policy in (None, *sorted(POLICIES)):
        augment, rng = Augment(policy=policy), np.random.default_rng(0)
        random.seed(0)
        meaning = {
            name: magnitudes(name, 32, 32).tolist() for steps in POLICIES[policy or "cifar10"] for name, _, _ in steps
        }
        theirs = best_seconds(lambda p=policy, m=meaning: pillow_way(by_pillow, p, m), "cpu", 3) / len(by_pillow)
        ours = best_seconds(lambda a=augment, r=rng: our_way(here, a, r), device, 7) / n
        recipe = "crop + flip" + (f" + AutoAugment {policy}" if policy else "")
        rows.append({"recipe": recipe, "pillow_us": theirs * 1e6, "ours_us": ours * 1e6, "ratio": theirs / ours})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()

    rows = measure(options.images, options.device)
    print(f"{options.images} images of 32x32 on {options.device}, {torch.get_num_threads()} CPU threads; µs an image")
    print(f"{'':34}{'Pillow':>10}{'ours':>10}{'ratio':>10}")
    for row in rows:
        print(f"{row['recipe']:34}{row['pillow_us']:10.1f}{row['ours_us']:10.2f}{row['ratio']:9.1f}x")
    if options.json:
        report = {"images": options.images, "device": options.device, "threads": torch.get_num_threads(), "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
