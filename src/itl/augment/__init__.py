"""Training views of a whole batch on the device: crop with padding, flip, AutoAugment; every sample its own draw.

    augment = Augment(policy="cifar10")
    draws = augment.draw(np.random.default_rng(0), len(images))     # on the CPU, beforehand
    views = augment(images, draws)                                  # uint8 in, uint8 out, on the images' device

All chance is in the draws; applying them is integer arithmetic, so batch size and device change no bit of a view.
"""

from itl.augment.ops import OPS
from itl.augment.policy import policies
from itl.augment.view import Augment, Draws

__all__ = ["OPS", "Augment", "Draws", "policies"]
