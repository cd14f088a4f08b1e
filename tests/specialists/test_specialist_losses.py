"""Each specialist's loss against the same computation written out number by number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from itl.settings import SpecialistSettings
from itl.specialists import Batch, build
from itl.specialists.losses import cross_entropy, squared_error
from support.specialist_batches import mean, sample_ce
from support.tiny import tiny_net


def specialist(name: str, **settings: object):  # type: ignore[no-untyped-def]
    return build(SpecialistSettings(name=name, **settings))  # type: ignore[arg-type]


def squares(logits: Tensor, stored: Tensor, logit_widths: list[int] | None = None) -> list[list[float]]:
    """(logit − stored)² for each sample, over the known columns of the stored logits."""
    rows = zip(logits.tolist(), stored.tolist(), logit_widths or [logits.shape[1]] * len(logits), strict=True)
    return [[(a - b) ** 2 for a, b in zip(p[:width], z[:width], strict=True)] for p, z, width in rows]


@pytest.fixture
def net() -> nn.Module:
    return tiny_net(classes=4).train()


def make_batch(n: int, seed: int, logits: bool = False, logit_widths: list[int] | None = None) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 1, 8, 8, generator=rng), torch.randint(0, 4, (n,), generator=rng)
    stored = torch.randn(n, 4, generator=rng) if logits else None
    return Batch(x, y, stored, None if logit_widths is None else torch.tensor(logit_widths))


def test_sgd_loss_is_cross_entropy_of_the_task(net: nn.Module) -> None:
    batch = make_batch(5, 0)
    expected = mean(sample_ce(net(batch.x), batch.y))
    assert specialist("sgd").loss(net, batch, ()).item() == pytest.approx(expected, rel=1e-5)
    assert specialist("sgd").num_replay_batches == 0
    assert specialist("sgd", reduction="sum").loss(net, batch, ()).item() == pytest.approx(5 * expected, rel=1e-5)


@pytest.mark.parametrize("draws", [0, 1, 2])
def test_er_loss_is_one_mean_over_the_concatenated_batch(net: nn.Module, draws: int) -> None:
    batch, replay_batches = make_batch(5, 0), tuple(make_batch(3, k) for k in range(1, draws + 1))
    joint_logits = net(torch.cat([batch.x, *(p.x for p in replay_batches)]))  # batch norm mixes the batches
    expected = sample_ce(joint_logits, torch.cat([batch.y, *(p.y for p in replay_batches)]))
    assert specialist("er").loss(net, batch, replay_batches).item() == pytest.approx(mean(expected), rel=1e-5)
    assert specialist("er", reduction="sum").loss(net, batch, replay_batches).item() == pytest.approx(
        sum(expected), rel=1e-5
    )
    if draws:
        separate = mean(
            sample_ce(net(batch.x), batch.y) + [v for p in replay_batches for v in sample_ce(net(p.x), p.y)]
        )
        assert abs(separate - mean(expected)) > 1e-4  # separate forward passes give another loss


REDUCTIONS = {
    "mean": (mean, lambda rows: mean([v for row in rows for v in row])),
    "sum": (sum, lambda rows: sum(v for row in rows for v in row)),
    "classes": (mean, lambda rows: mean([sum(row) for row in rows])),
}


@pytest.mark.parametrize("how", list(REDUCTIONS))
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("logit_widths", [None, [2, 4, 2]])
def test_derpp_loss_is_three_terms_with_separate_forward_passes(
    net: nn.Module, how: str, draws: int, logit_widths: list[int] | None
) -> None:
    batch = make_batch(5, 0)
    replay_batches = (
        make_batch(3, 1, logits=True, logit_widths=logit_widths),
        make_batch(3, 2, logits=True, logit_widths=logit_widths),
    )[:draws]
    over_samples, over_all = REDUCTIONS[how]
    expected = (
        over_samples(sample_ce(net(batch.x), batch.y))
        + 0.3 * over_all(squares(net(replay_batches[0].x), replay_batches[0].stored_logits, logit_widths))
        + 0.7 * over_samples(sample_ce(net(replay_batches[-1].x), replay_batches[-1].y))
    )
    method = specialist("derpp", alpha=0.3, beta=0.7, draws=draws, reduction=how)
    assert method.loss(net, batch, replay_batches).item() == pytest.approx(expected, rel=1e-4)


def test_derpp_with_empty_memory_is_plain_training(net: nn.Module) -> None:
    batch = make_batch(5, 0)
    expected = mean(sample_ce(net(batch.x), batch.y))
    assert specialist("derpp", alpha=9.0, beta=9.0).loss(net, batch, ()).item() == pytest.approx(expected, rel=1e-5)


def test_derpp_outputs_are_detached_training_mode_logits(net: nn.Module) -> None:
    batch = make_batch(5, 0)
    expected = net(batch.x).detach()
    specialist("derpp").loss(net, batch, ())
    assert batch.outputs is not None
    assert not batch.outputs.requires_grad
    torch.testing.assert_close(batch.outputs, expected, rtol=1e-5, atol=1e-6)


def test_squared_error_ignores_columns_beyond_the_stored_width() -> None:
    logits = torch.randn(2, 4, requires_grad=True)
    squared_error(logits, torch.zeros(2, 4), "mean", torch.tensor([1, 3])).backward()
    counted = torch.tensor([[True, False, False, False], [True, True, True, False]])
    assert torch.equal(logits.grad != 0, counted)
    torch.testing.assert_close(logits.grad, torch.where(counted, 2 * logits.detach() / 4, 0.0))


def test_losses_are_computed_in_float32() -> None:
    logits, y = torch.randn(4, 3).bfloat16(), torch.tensor([0, 1, 2, 0])
    assert cross_entropy(logits, y).dtype == torch.float32
    assert squared_error(logits, logits).dtype == torch.float32
    assert cross_entropy(logits, y).item() == pytest.approx(mean(sample_ce(logits.float(), y)), rel=1e-6)
