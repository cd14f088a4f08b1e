"""GSS: gradient-based sample selection (Aljundi et al., 2019), the greedy rule with cosine scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.gradients.per_sample import gram
from itl.specialists.base import Batch
from itl.specialists.er import ER

FIRST = 0.1  # the score of what enters an empty memory
SHORTEST = 1e-12  # of a gradient: one of no length has a cosine of 0 with any other


class GSS(ER):
    """Experience replay from a memory of images whose gradients point different ways.

    After a step the batch's gradient is compared with those of some images held (a second draw of `replay`). The
    largest cosine plus 1 is its score: what lies near in gradient space is old news. The memory's side of the rule is
    `itl.memory.policies.gss`. Gradients are by all weights, of raw images, in evaluation mode.
    """

    name = "gss"
    summary = "experience replay from a memory of images whose gradients differ"
    reference = (
        "Aljundi, Lin, Goujaud, Bengio: Gradient Based Sample Selection for Online Continual Learning, NeurIPS 2019"
    )
    defaults = {"memory.policy": "gss", "specialist.lr": 0.03}
    stream_defaults = {
        ("seq-cifar10", 200): {},
        ("seq-cifar10", 500): {},
        ("seq-cifar10", 5120): {"specialist.epochs": 1},
    }
    needs_policy = "gss"
    forwards, backwards = 5, 5  # and those of the batch and of the images compared, alone

    @property
    def draws(self) -> int:
        """One batch to replay, one to compare with."""
        return 2

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """ER's, over the first draw."""
        return super().loss(net, now, pasts[:1])

    def after_step(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> None:
        """Leave the batch's score, and its samples' own where they are going to challenge slots."""
        scores = alone = torch.full((len(now.y),), FIRST, device=now.y.device)
        if pasts:
            compared, memory = pasts[-1], self.context.memory
            assert compared.slots is not None
            held = memory.pixels.index_select(0, compared.slots)
            x, y = self.context.normalize(torch.cat([held, now.extra["raw"]])), torch.cat([compared.y, now.y])
            training = net.training
            net.eval()
            score, alone = closeness(gram(net, x, y), len(held))
            net.train(training)
            scores = score.expand(len(now.y))
        now.extra |= {"batch_score": scores, "sample_score": alone}


def closeness(products: Tensor, held: int) -> tuple[Tensor, Tensor]:
    """The largest cosine with the first `held` samples, plus 1: of the others' mean gradient `[]`, of each `[n]`.

    `products` `[held + n, held + n]` are the gradients' inner products. The mean's are means of them.
    """
    lengths = products.diagonal().clamp_min(0).sqrt().clamp_min(SHORTEST)
    across = products[held:, :held] / lengths[:held]
    mean = products[held:, held:].mean().clamp_min(0).sqrt().clamp_min(SHORTEST)
    return (across.mean(0) / mean).amax() + 1, (across / lengths[held:, None]).amax(1) + 1
