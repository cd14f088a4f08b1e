"""CLS-ER: complementary learning systems, fast and slow (Arani, Sarfraz, Zonooz, 2022)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from itl.nets import Net
from itl.settings import Weight
from itl.specialists.base import Batch, Options, Specialist
from itl.specialists.losses import cross_entropy, shares, squared_error, wide
from itl.specialists.model_copies import copy_into, lean, twin, widen

Chance = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
AVERAGES = ("plastic", "stable")


class CLSEROptions(Options):
    """`reg` weighs the consistency; each average of the weights is renewed at a step with its chance (`…_rate`), and
    keeps its `…_alpha` share of itself then.
    """

    reg: Weight = 0.15
    plastic_rate: Chance = 0.3
    plastic_alpha: Chance = 0.999
    stable_rate: Chance = 0.1
    stable_alpha: Chance = 0.999


class CLSER(Specialist):
    """ER + reg ‖p(x) − z‖² on the memory batch, z from the plastic or the stable average of the weights.

    For each sample the one of the two counts that gives its label the higher probability. The stable model, which
    changes most slowly, is what is evaluated. Both see the memory batch in training mode, as in the authors' code:
    that is where their batch norms' statistics come from.
    """

    name = "cls-er"
    summary = "replay consistent with two moving averages of the weights; the slower one predicts"
    reference = (
        "Arani, Sarfraz, Zonooz: Learning Fast, Learning Slow: A General Continual Learning Method based on "
        "Complementary Learning System, ICLR 2022"
    )
    defaults = {"memory.policy": "reservoir", "specialist.lr": 0.1}
    stream_defaults = {
        ("seq-cifar10", 200): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.1,
            "specialist.options.plastic_rate": 0.3,
        },
        ("seq-cifar10", 500): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.1,
            "specialist.options.plastic_rate": 0.9,
        },
        ("seq-cifar10", 5120): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.8,
            "specialist.options.plastic_rate": 1.0,
        },
        ("seq-tinyimagenet", 200): {
            "specialist.lr": 0.05,
            "specialist.options.reg": 0.1,
            "specialist.options.stable_rate": 0.04,
            "specialist.options.plastic_rate": 0.08,
        },
        ("seq-tinyimagenet", 500): {
            "specialist.lr": 0.05,
            "specialist.options.reg": 0.1,
            "specialist.options.stable_rate": 0.05,
            "specialist.options.plastic_rate": 0.08,
        },
        ("seq-tinyimagenet", 5120): {
            "specialist.lr": 0.05,
            "specialist.options.reg": 0.1,
            "specialist.options.stable_rate": 0.07,
            "specialist.options.plastic_rate": 0.08,
        },
    }
    Options = CLSEROptions
    options: CLSEROptions
    forwards, backwards = 5, 3

    def task_starts(self) -> None:
        """Both averages begin at the network; later they only gain the outputs it has gained."""
        for name in AVERAGES:
            if name not in self.twins:
                self.twins[name] = twin(self.context.net)
            widen(self.twins[name], self.context.net)

    def inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """How much of itself each average keeps at each step: 1 where it is not renewed."""
        count = first + 1 + np.arange(steps)
        out = {}
        for name in AVERAGES:
            alpha = np.minimum(1 - 1 / (count + 1), getattr(self.options, f"{name}_alpha"))
            renewed = rng.random(steps) < getattr(self.options, f"{name}_rate")
            out[name] = np.where(renewed, alpha, 1.0).astype(np.float32)
        return out

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """CE over S(D_t) ∪ S(B) + reg × consistency on S(B)."""
        how = self.settings.reduction
        if not pasts:
            logits = net(now.x)
            now.said = logits.detach()
            return cross_entropy(logits, now.y, how)
        past = pasts[0]
        with torch.no_grad():
            stable, plastic = (wide(self.twins[name].train()(past.x)) for name in ("stable", "plastic"))
            sure = [logits.softmax(1).gather(1, past.y[:, None]) for logits in (stable, plastic)]
            aim = torch.where(sure[0] > sure[1], stable, plastic)
        consistency = self.options.reg * squared_error(net(past.x), aim, how, weights=shares(past.weights))
        logits = net(torch.cat([now.x, past.x]))
        now.said = logits[: len(now.y)].detach()
        return consistency + cross_entropy(logits, torch.cat([now.y, past.y]), how)

    def after_step(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> None:
        """θ_avg ← α θ_avg + (1 − α) θ."""
        for name in AVERAGES:
            lean(list(self.twins[name].parameters()), list(net.parameters()), now.extra[name])

    def changed(self) -> list[Tensor]:
        """The averages and their statistics."""
        return [t for name in AVERAGES for t in self.twins[name].state_dict().values()]

    def logits(self, net: Net, x: Tensor) -> Tensor:
        """The stable model's."""
        return self.twins["stable"].eval()(x)  # type: ignore[no-any-return]

    def hand_over(self, net: Net) -> bool:
        """A generalist starts from the stable model."""
        copy_into(net, self.twins["stable"])
        return True

    def take_back(self, net: Net) -> None:
        """Both averages go on from the expert."""
        for name in AVERAGES:
            copy_into(self.twins[name], net)
