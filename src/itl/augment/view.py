"""What a training view is, and the draws that make one."""

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

# Bytes of images taken at once. On a CPU, few enough that the temporaries (up to eight times as large) are reused and
# not asked anew of the system; for a policy, yet many enough that each operation finds many samples.
CROP_CHUNK = {"cpu": 2 << 20, "cuda": 256 << 20}
POLICY_CHUNK = {"cpu": 10 << 20, "cuda": 256 << 20}


@dataclass(frozen=True)
class Draws:
    """The random choices behind n views; some of them make the same views.

    They are drawn on the CPU; those of an `Augment` without a policy may be brought to the images' device.
    """

    shift: Tensor  # int64 [n, 2]: the crop's top and left corner in the padded image
    flip: Tensor  # bool [n]
    ops: Tensor  # int64 [n, 2]: AutoAugment's operations, 0 for none; [n, 0] without a policy
    levels: Tensor  # int64, like ops: the magnitude's bin, negative where the sign is

    def __len__(self) -> int:
        return len(self.flip)

    def __getitem__(self, index: slice | Tensor) -> Draws:
        return Draws(self.shift[index], self.flip[index], self.ops[index], self.levels[index])

    @staticmethod
    def cat(draws: Sequence[Draws]) -> Draws:
        """The draws of several batches as those of one."""
        return Draws(*(torch.cat([getattr(d, name) for d in draws]) for name in ("shift", "flip", "ops", "levels")))


@dataclass(frozen=True)
class Augment:
    """What a training view is: crop with padding, flip, then AutoAugment.

    `padding` zeros on each side and a random crop back to the image's size (0: no crop); a mirror image half the time;
    then the `policy` (None, "cifar10", "imagenet"), whose geometric operations fill what they uncover with `fill`.

    The paper trains with AutoAugment but leaves open where it stands and what it fills with. Here it comes after crop
    and flip, as in the common CIFAR recipe and on the pixels the network will see, and fills with 0, torchvision's
    default and the same black as the padding.
    """

    padding: int = 4
    flip: bool = True
    policy: str | None = None
    fill: int = 0

    def __post_init__(self) -> None:
        if self.policy is not None and self.policy not in policies.POLICIES:
            raise unknown("AutoAugment policy", self.policy, policies.policies())
        if self.padding < 0:
            raise UserError(f"padding is {self.padding}; give 0 (no crop) or the number of pixels to pad with")
        if not 0 <= self.fill <= 255:
            raise UserError(f"fill is {self.fill}; give a grey level from 0 to 255")

    def draw(self, rng: np.random.Generator, n: int) -> Draws:
        """The random choices for n views, from `rng` alone."""
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
        """The views of images (uint8 [n, C, H, W], any device) that `draws` describes: the same shape, type and device.

        Deterministic and in integers: neither the device nor how a batch is cut into chunks changes a bit. The host is
        never made to wait for a CUDA device. AutoAugment takes one channel (grey) or three (RGB).
        """
        self._check(images, draws)
        if fused.fits(images, draws.ops.shape[1] if self.policy is not None else 0):
            return fused.views(images, self._drawn(draws), self.fill)
        views = images.clone(memory_format=torch.contiguous_format)
        if self.padding or self.flip:
            for part in _chunks(images, CROP_CHUNK):
                views[part] = crop_and_flip(images[part], draws.shift[part], draws.flip[part], self.padding)
        if self.policy is not None:
            for part in _chunks(images, POLICY_CHUNK):
                views[part] = autoaugment(views[part], draws.ops[part], draws.levels[part], self.fill)
        return views

    def _drawn(self, draws: Draws) -> Tensor:
        """The draws side by side, int64 [n, 3 or 7], as the kernel takes them."""
        flip = draws.flip.long().unsqueeze(1)
        steps = () if self.policy is None else (draws.ops, draws.levels)
        return torch.cat([draws.shift - self.padding, flip, *steps], 1)

    def _check(self, images: Tensor, draws: Draws) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(f"augmentation takes uint8 images [n, C, H, W], not {images.dtype} {list(images.shape)}")
        if self.policy is not None and images.shape[1] not in (1, 3):
            raise UserError(f"AutoAugment takes images of 1 or 3 channels, not {images.shape[1]}; use policy=None")
        if len(images) != len(draws):
            raise UserError(f"{len(images)} images but draws for {len(draws)}; draw for as many as there are images")
        if self.policy is not None and draws.ops.shape[1] == 0:
            raise UserError("these draws hold no AutoAugment steps; draw them from an Augment with the same settings")


def _chunks(images: Tensor, limits: dict[str, int]) -> Iterator[slice]:
    """Cuts a batch into slices of about `limits[device]` bytes. No view depends on where the cuts are."""
    size = max(1, limits.get(images.device.type, limits["cpu"]) // max(1, images[:1].numel()))
    return (slice(start, start + size) for start in range(0, len(images), size))
