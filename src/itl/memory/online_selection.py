"""Memories whose slots are chosen in the step, on the device, by what the network says of the samples.

Which slots are replayed is planned like any other epoch's, and so is all chance; what lies in a slot is not known
before the step. So its views are made in the step. Nothing there waits for the device.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itl.engine.device import Engine
from itl.errors import UserError
from itl.memory.slots import Slots

ARRAYS = ("label", "task", "row", "written", "width")
CHOOSE = -1  # a wish: take this sample, the step says where


def filling(slots: Slots, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The part of a live memory that is planned: free slots are filled from the front."""
    place = slots.count + np.arange(len(labels))
    return np.minimum(place, slots.size)


class OnlineSelector:
    """What is known of the slots while a task is trained, on the device; `slots` follow at the end of an epoch.

    `scores` `[size + 1]` belong to the memory: what its rule knows of each image held.
    """

    def __init__(self, slots: Slots, scores: Tensor, engine: Engine) -> None:
        self.size, self.scores, self.engine = slots.size, scores, engine
        self.known = {
            name: engine.send(torch.from_numpy(np.append(getattr(slots, name), 0).astype(np.int64))) for name in ARRAYS
        }

    def draw(self, slots: Slots, targets: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """All that is random about the samples offered in an epoch, each `[n]`; `targets` are those of `filling`.

        `wish` is a slot, the dummy for nowhere, or `CHOOSE`; `where` and `whether` are uniform.
        """
        count = len(targets)
        return {"wish": targets, "where": rng.random(count), "whether": rng.random(count)}

    def choose(self, now: dict[str, Tensor], pasts: list[dict[str, Tensor]]) -> Tensor:
        """The slot each sample of a batch goes to `[n]`, the dummy for nowhere. Of several for one slot the last stays.

        `now` holds what `draw` gave, on the device, labels `y`, and `said`, the logits `[n, classes]` where the
        specialist leaves them; each of `pasts` a replayed batch's `slots`, `y` and `said`.
        """
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        """What a step changes beside the images."""
        return [self.scores, *self.known.values()]

    def placed(self, wish: Tensor) -> list[tuple[slice, bool]]:
        """The samples of a batch that may go anywhere, in order, each with whether its slot may be for it to choose.

        On a GPU all of them and always, for to know better would be to wait for it.
        """
        if wish.device.type != "cpu":
            return [(slice(k, k + 1), True) for k in range(len(wish))]
        return [(slice(k, k + 1), slot == CHOOSE) for k, slot in enumerate(wish.tolist()) if slot != self.size]

    def write(self, targets: Tensor, known: dict[str, Tensor]) -> Tensor:
        """Note what lies in slots `targets` `[n]` now; returns them with all but the last write to a slot gone."""
        same = targets[:, None] == targets[None, :]
        again = torch.triu(same, diagonal=1).any(1)
        targets = torch.where(again, self.size, targets)
        for name, value in known.items():
            self.known[name].index_copy_(0, targets, value)
        return targets

    def tell(self, slots: Slots) -> None:
        """Bring the CPU's knowledge up to date."""
        for name in ARRAYS:
            getattr(slots, name)[:] = self.known[name][: self.size].cpu().numpy()


class LossAware(OnlineSelector):
    """Loss-aware balanced reservoir (Buzzega et al., 2020).

    A plain reservoir says whether a sample is taken; it goes where an image lies whose loss is low and whose class is
    common.
    """

    def draw(self, slots: Slots, targets: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The reservoir's verdict on each sample is drawn here."""
        out = super().draw(slots, targets, rng)
        before = slots.seen + np.arange(len(targets))
        taken = np.floor(out["whether"] * (before + 1)) < slots.size
        out["wish"] = np.where(targets < slots.size, targets, np.where(taken, CHOOSE, slots.size))
        return out

    @torch.no_grad()
    def choose(self, now: dict[str, Tensor], pasts: list[dict[str, Tensor]]) -> Tensor:
        """Scores are losses, renewed whenever an image is replayed; one after another each sample takes its slot."""
        if "said" not in now:
            raise UserError(
                "a loss-aware memory looks at the specialist's predictions, and the specialist leaves none; "
                "set memory.policy=reservoir"
            )
        for past in pasts:
            if "said" in past:
                self.scores.index_copy_(0, past["slots"], _losses(past))
        losses, wish = _losses(now), now["wish"]
        targets = torch.full_like(wish, self.size)
        for this, chooses in self.placed(wish):
            slot = wish[this]
            if chooses:
                chances = replaced(self.scores[: self.size], self.known["label"][: self.size])
                slot = torch.where(slot == CHOOSE, pick(chances, now["where"][this]), slot)
            targets[this] = slot
            self.scores.index_copy_(0, slot, losses[this])
            self.known["label"].index_copy_(0, slot, now["y"][this])
        return targets


def _losses(batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(batch["said"].double(), batch["y"], reduction="none")


def replaced(losses: Tensor, labels: Tensor) -> Tensor:
    """The chance of each slot to be given up, from the losses and classes of what it holds: `[size]`.

    The score is half -loss, scaled, and half the number of images of the same class, brought to [0, 1].
    """
    count = (labels[:, None] == labels[None, :]).sum(1).to(losses.dtype)
    importance = -losses
    score = 0.5 * importance / (importance.abs().mean() * count.mean()).clamp(min=1e-12) + 0.5 * count
    score = score - score.min()
    score = torch.where(score.max() > 0, score / score.max().clamp(min=1e-30), torch.ones_like(score))
    return score / score.sum()


def pick(chances: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index by its chance, from numbers uniform in [0, 1): `[k]`."""
    edges = chances.double().cumsum(0)
    found = torch.searchsorted(edges / edges[-1], uniform.to(edges.device, torch.float64), right=True)
    return found.clamp(max=len(chances) - 1)


class GreedyCosine(OnlineSelector):
    """GSS-Greedy (Aljundi et al., 2019): an image is given up for one whose gradient is less like the others'.

    The specialist leaves in `now` the batch's `score` `[n]` (equal for all) and each sample's own, `alone` `[n]`: the
    largest cosine of its gradient with those of some images held, plus 1.
    """

    def draw(self, slots: Slots, targets: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Once the memory is full every sample is a candidate."""
        out = super().draw(slots, targets, rng)
        out["wish"] = np.where(targets < slots.size, targets, CHOOSE)
        return out

    @torch.no_grad()
    def choose(self, now: dict[str, Tensor], pasts: list[dict[str, Tensor]]) -> Tensor:
        """In a batch whose score is below 1 a sample challenges a slot drawn by score; it wins by s / (s + its own)."""
        wish, targets = now["wish"], torch.full_like(now["wish"], self.size)
        for this, chooses in self.placed(wish):
            slot, score = wish[this], now["score"][this]
            if chooses:
                alone, held, free = now["alone"][this], self.scores[: self.size], slot != CHOOSE
                rival = pick(held / held.sum(), now["where"][this])
                s = held.index_select(0, rival)
                won = (score < 1) & (now["whether"][this] < s / (s + alone))
                slot = torch.where(free, slot, torch.where(won, rival, self.size))
                score = torch.where(free, score, alone)
            targets[this] = slot
            self.scores.index_copy_(0, slot, score.to(self.scores.dtype))
        return targets
