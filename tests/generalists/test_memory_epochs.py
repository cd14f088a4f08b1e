"""Tests of the epochs that a generalist trains on: order, augmentation and step inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.augment import Augment
from itl.engine.device import Engine
from itl.engine.keyed_random import generator
from itl.engine.stage import StepInputs
from itl.generalists.round_planner import SampleRoundPlanner
from support.tiny import tiny_stream


def test_every_epoch_has_its_own_order_and_views() -> None:
    """Three epochs in batches of 4 and 5, each image with the augmentation that was drawn for its position."""
    images, key, augment = tiny_stream().tasks[0].train.take(torch.arange(9)), (0, 1, "tangent"), Augment(padding=2)

    def prepare(images: Tensor, rows: Tensor) -> StepInputs:
        return {"x": images, "row": rows}

    cpu = Engine(torch.device("cpu"))
    planner = SampleRoundPlanner(images, 9, 24, None, 4, key, augment, prepare, 64, cpu)
    groups = next(iter(planner.load(range(3)))).groups
    assert [tuple(group["row"].shape) for group in groups] == [(3, 4), (3, 5)]
    orders = []
    for epoch in range(3):
        order = generator(*key, epoch, "order").permutation(9)
        views = augment(images.gather(torch.from_numpy(order)), augment.draw(generator(*key, epoch, "views"), 9))
        assert np.concatenate([group["row"][epoch] for group in groups]).tolist() == order.tolist()
        assert torch.equal(torch.cat([group["x"][epoch] for group in groups]), views)
        orders.append(order.tolist())
    assert orders[0] != orders[1] != orders[2]
