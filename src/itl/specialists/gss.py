"""GSS: gradient-based sample selection (Aljundi et al., 2019), greedy variant with cosine scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itl.gradients.grad_sample import gradient_gram
from itl.specialists.base import Batch
from itl.specialists.er import ER

INITIAL_SCORE = 0.1  # of samples written to an empty memory
MIN_NORM = 1e-12  # lower bound of a gradient's norm: a zero gradient has cosine 0 with every other


class GSS(ER):
    """Experience replay from a memory of images with diverse gradients.

    After a step, the gradient of the batch is compared with those of stored images (a second draw from memory). Its
    score is the largest cosine plus 1; samples with similar gradients are redundant. The selection rule itself is the
    memory policy `gss`. Gradients are with respect to all weights, for raw images, in evaluation mode.
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
    required_policy = "gss"
    num_replay_batches = 2  # one batch to replay, one to compare with
    forward_batches, backward_batches = 5, 5  # including the per-sample gradients

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """ER's loss with the first draw."""
        return super().loss(net, batch, replay_batches[:1])

    def after_step(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> None:
        """Compute the scores `[n]` for the memory policy: the batch's (equal for all samples) and each sample's."""
        scores = sample_scores = torch.full((len(batch.y),), INITIAL_SCORE, device=batch.y.device)
        if replay_batches:
            compared, memory = replay_batches[-1], self.context.memory
            assert compared.slots is not None
            assert batch.raw is not None
            stored = memory.pixels.index_select(0, compared.slots)
            x, y = self.context.normalize(torch.cat([stored, batch.raw])), torch.cat([compared.y, batch.y])
            training = net.training
            net.eval()
            score, sample_scores = cosine_scores(gradient_gram(net, x, y), len(stored))
            net.train(training)
            scores = score.expand(len(batch.y))
        batch.extra |= {"batch_score": scores, "sample_score": sample_scores}


def cosine_scores(gram: Tensor, stored: int) -> tuple[Tensor, Tensor]:
    """The largest cosine with the gradients of the stored samples, plus 1.

    Args:
        gram: Inner products of the gradients `[stored + n, stored + n]`, stored samples first.
        stored: The number of stored samples.

    Returns:
        The score of the mean gradient of the n other samples `[]`, and that of each of them `[n]`.
    """
    norms = gram.diagonal().clamp_min(0).sqrt().clamp_min(MIN_NORM)
    products = gram[stored:, :stored] / norms[:stored]
    mean_norm = gram[stored:, stored:].mean().clamp_min(0).sqrt().clamp_min(MIN_NORM)
    return (products.mean(0) / mean_norm).amax() + 1, (products / norms[stored:, None]).amax(1) + 1
