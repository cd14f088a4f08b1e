"""Converts a learner into a `LearnerState`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from itl.checkpoint.learner_state import LearnerState, memory_tensors
from itl.settings import flatten

if TYPE_CHECKING:
    from itl.learner.learner import Learner


def get_state(learner: Learner) -> LearnerState:
    """State of a learner whose network and memory exist."""
    slots = learner.memory.slots
    tensors = {f"net.{name}": t for name, t in learner.net.state_dict().items()}
    tensors |= {f"flight.{name}": t for name, t in learner.stage_state.tensors().items()}
    tensors |= {f"specialist.{name}": t for name, t in learner.specialist.state_dict().items()}
    tensors |= memory_tensors(learner.memory)
    if learner.backbone is not None and learner.specialist.resets_network:
        tensors |= {f"initial.{name}": t for name, t in (learner.net.initial_state or {}).items()}
    if learner.extractor is not None:
        tensors |= {f"trunk.{name}": t for name, t in learner.extractor.trunk.state_dict().items()}
        tensors["memory.pixels"] = learner.memory.pixels.new_zeros((learner.memory.size, *learner.image_shape)).cpu()
        tensors["memory.pixels"][: len(learner.memory)] = memory_images(learner)
    metadata = {
        "method": learner.method,
        "buffer": learner.buffer,
        "seed": learner.seed,
        "classes": learner.classes,
        "settings": flatten(learner.settings.model_dump()),  # all of them: defaults may change in later versions
        "stream": learner.stream,
        "traits": asdict(learner.traits),
        "shape": list(learner.image_shape),
        "outputs": learner.net.classifier.out_features,
        "tasks": [list(task) for task in learner.tasks],
        "position": list(learner.position),
        "slots": {"count": slots.count, "seen": slots.seen, "clock": slots.step},
        "seconds": dict(learner.timer.seconds),
        "notes": learner.notes,
        "class_names": learner.class_names,
        "threads": torch.get_num_threads(),
        "network": None if learner.own_net is None else learner.own_net.describe(),
        "backbone": None if learner.backbone is None else learner.backbone.to_dict(),
    }
    return LearnerState(tensors, metadata)


def memory_images(learner: Learner) -> Tensor:
    """The images in a learner's memory, uint8 `[n, c, h, w]` on the CPU."""
    stored = learner.memory.pixels[: len(learner.memory)]
    return stored.cpu() if learner.extractor is None else learner.extractor.pixels(stored)
