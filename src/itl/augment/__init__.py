"""Per-sample augmentation of a whole batch on the device: crop with padding, flip, AutoAugment.

    augment = Augment(policy="cifar10")
    draws = augment.draw(np.random.default_rng(0), len(images))     # random choices, made on the CPU
    views = augment(images, draws)                                  # uint8 in, uint8 out, on the images' device

All randomness is in the draws. Applying them is integer arithmetic, so neither the batch size nor the device changes
the result.
"""

from itl.augment.draws import Augment, Draws
from itl.augment.ops import OPS
from itl.augment.policy import policies

__all__ = ["OPS", "Augment", "Draws", "policies"]
