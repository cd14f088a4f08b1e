"""Augmentation settings and the random draws behind each augmented image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itl.augment import fused
from itl.augment import policy as policies
from itl.augment.geometry import crop_and_flip
from itl.augment.ops import autoaugment
from itl.errors import UserError, unknown

# Bytes of images per chunk. On a CPU, small enough that the allocator reuses the temporaries (up to eight times as
# large); for a policy, large enough that each operation has many samples.
CROP_CHUNK = {"cpu": 2 << 20, "cuda": 256 << 20}
POLICY_CHUNK = {"cpu": 10 << 20, "cuda": 256 << 20}


@dataclass(frozen=True)
class Draws:
    """Random choices for n augmented images.

    They are drawn on the CPU. Draws of an `Augment` without a policy may be moved to the images' device.

    Attributes:
        shift: int64 `[n, 2]`, top and left corner of the crop in the padded image.
        flip: bool `[n]`.
        ops: int64 `[n, 2]`, AutoAugment's operations, 0 for none; `[n, 0]` without a policy.
        levels: int64, same shape as `ops`: magnitude bins, negative for a negative sign.
    """

    shift: Tensor
    flip: Tensor
    ops: Tensor
    levels: Tensor

    def __len__(self) -> int:
        return len(self.flip)

    def __getitem__(self, index: slice | Tensor) -> Draws:
        return Draws(self.shift[index], self.flip[index], self.ops[index], self.levels[index])

    @staticmethod
    def cat(draws: Sequence[Draws]) -> Draws:
        """Concatenate the draws of several batches."""
        return Draws(*(torch.cat([getattr(d, name) for d in draws]) for name in ("shift", "flip", "ops", "levels")))


@dataclass(frozen=True)
class Augment:
    """Random crop with padding, horizontal flip, then AutoAugment.

    The paper trains with AutoAugment but specifies neither its position nor its fill value. Here it follows crop and
    flip, as in the common CIFAR recipe, and fills with 0, which is torchvision's default and the color of the padding.

    Attributes:
        padding: Zeros on each side before a random crop to the original size; 0 disables the crop.
        flip: Whether to flip half of the images horizontally.
        policy: None, "cifar10" or "imagenet".
        fill: Gray level of pixels that geometric operations uncover.

    Raises:
        UserError: A setting is out of range or the policy is unknown.
    """

    padding: int = 4
    flip: bool = True
    policy: str | None = None
    fill: int = 0

    def __post_init__(self) -> None:
        if self.policy is not None and self.policy not in policies.POLICIES:
            raise unknown("AutoAugment policy", self.policy, policies.policies())
        if self.padding < 0:
            raise UserError(f"Padding is {self.padding}. Use 0 (no crop) or the number of pixels to pad with.")
        if not 0 <= self.fill <= 255:
            raise UserError(f"Fill is {self.fill}. Use a gray level from 0 to 255.")

    def draw(self, rng: np.random.Generator, n: int) -> Draws:
        """Draw the random choices for n images from `rng`."""
        none = torch.zeros(n, 0, dtype=torch.int64)
        shift, flip, ops, levels = torch.zeros(n, 2, dtype=torch.int64), torch.zeros(n, dtype=torch.bool), none, none
        if self.padding:
            shift = torch.from_numpy(rng.integers(2 * self.padding + 1, size=(n, 2)))
        if self.flip:
            flip = torch.from_numpy(rng.random(n) < 0.5)
        if self.policy is not None:
            ops, levels = policies.draw(self.policy, rng, n)
        return Draws(shift, flip, ops, levels)

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Augment images as `draws` describes.

        The arithmetic is deterministic and in integers: neither the device nor the chunk size changes the result. The
        host never waits for a CUDA device.

        Args:
            images: uint8 `[n, C, H, W]`, on any device. AutoAugment needs one channel (grayscale) or three (RGB).
            draws: Choices for n images, drawn by an `Augment` with the same settings.

        Returns:
            uint8 `[n, C, H, W]` on the same device.

        Raises:
            UserError: Images and draws do not fit together.
        """
        self._check(images, draws)
        if fused.fits(images, draws.ops.shape[1] if self.policy is not None else 0):
            return fused.views(images, self._kernel_draws(draws), self.fill)
        views = images.clone(memory_format=torch.contiguous_format)
        if self.padding or self.flip:
            for part in _chunks(images, CROP_CHUNK):
                views[part] = crop_and_flip(images[part], draws.shift[part], draws.flip[part], self.padding)
        if self.policy is not None:
            for part in _chunks(images, POLICY_CHUNK):
                views[part] = autoaugment(views[part], draws.ops[part], draws.levels[part], self.fill)
        return views

    def _kernel_draws(self, draws: Draws) -> Tensor:
        """The draws as one int64 tensor `[n, 3 or 7]`, as the kernel expects them."""
        flip = draws.flip.long().unsqueeze(1)
        steps = () if self.policy is None else (draws.ops, draws.levels)
        return torch.cat([draws.shift - self.padding, flip, *steps], 1)

    def _check(self, images: Tensor, draws: Draws) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(f"Augmentation needs uint8 images [n, C, H, W], not {images.dtype} {list(images.shape)}.")
        if self.policy is not None and images.shape[1] not in (1, 3):
            raise UserError(f"AutoAugment needs images with 1 or 3 channels, not {images.shape[1]}. Use policy=None.")
        if len(images) != len(draws):
            raise UserError(
                f"There are {len(images)} images but draws for {len(draws)}. Draw for as many as there are images."
            )
        if self.policy is not None and draws.ops.shape[1] == 0:
            raise UserError("These draws hold no AutoAugment steps. Draw them from an Augment with the same settings.")


def _chunks(images: Tensor, limits: dict[str, int]) -> Iterator[slice]:
    """Split a batch into slices of about `limits[device]` bytes."""
    size = max(1, limits.get(images.device.type, limits["cpu"]) // max(1, images[:1].numel()))
    return (slice(start, start + size) for start in range(0, len(images), size))
