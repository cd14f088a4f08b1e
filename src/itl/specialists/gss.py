"""GSS: gradient-based sample selection (Aljundi et al., 2019), the greedy rule with cosine scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from itl.specialists.base import View
from itl.specialists.er import ER

FIRST = 0.1  # the score of what enters an empty memory


class GSS(ER):
    """Experience replay from a memory of images whose gradients point different ways.

    After a step the batch's gradient is compared with those of some images held (a second draw of `replay`). The
    largest cosine plus 1 is its score: what lies near in gradient space is old news. The memory's side of the rule is
    `memory.live.GreedyCosine`. Gradients are by all weights, of raw images, in evaluation mode.
    """

    name = "gss"
    needs_policy = "gss"
    capturable = False
    forwards, backwards = 5, 5  # and those of the batch and of the images compared, alone

    @property
    def draws(self) -> int:
        """One batch to replay, one to compare with."""
        return 2

    def loss(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> Tensor:
        """ER's, over the first draw."""
        return super().loss(net, now, pasts[:1])

    def after_step(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> None:
        """Leave the batch's score, and its samples' own where they are going to challenge slots."""
        scores = alone = torch.full((len(now.y),), FIRST, device=now.y.device)
        if pasts:
            compared, memory = pasts[-1], self.here.memory
            assert compared.slots is not None
            training = net.training
            net.eval()
            held = gradients(net, self.here.normalise(memory.pixels.index_select(0, compared.slots)), compared.y)
            each = gradients(net, self.here.normalise(now.extra["raw"]), now.y)
            net.train(training)
            score = closeness(each.mean(0, keepdim=True), held)
            scores, alone = score.expand(len(now.y)), closeness(each, held)
        now.extra |= {"score": scores, "alone": alone}


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Each sample's gradient of the cross-entropy by all weights: `[n, weights]`."""
    weights = {name: p.detach() for name, p in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(net, {**weights, **buffers}, (x[None],))
        return F.cross_entropy(logits, y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    return torch.cat([each[name].flatten(1) for name in weights], 1)


def closeness(one: Tensor, held: Tensor) -> Tensor:
    """The largest cosine of each of `one` `[k, weights]` with those `held` `[m, weights]`, plus 1: `[k]`."""
    return (F.normalize(one) @ F.normalize(held).T).amax(1) + 1
