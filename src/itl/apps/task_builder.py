"""Turn images with output labels into a learner's next task."""

from __future__ import annotations

import torch

from itl.learner import Learner
from itl.streams import Images, Task, Traits
from itl.streams.arrays import statistics


def next_task(learner: Learner, images: Images, *, flip: bool, policy: str | None) -> Task:
    """Return the next task of a learner, without test images.

    Args:
        learner: The learner. Its first task determines the image statistics and the augmentation.
        images: The training images; their labels are network outputs.
        flip: Whether horizontal flips preserve the class.
        policy: AutoAugment policy that preserves the class, or None.
    """
    if learner.is_built:
        traits = learner.traits
    else:
        mean, std = statistics(images, None, None)
        padding = min(4, images.source.shape[-1] // 8)
        traits = Traits(mean, std, flip=flip, padding=padding, policy=policy, tasks=0)
    classes = tuple(sorted(set(images.labels.tolist())))
    return Task(len(learner.tasks), classes, images, images.take(torch.arange(0)), "", traits)
