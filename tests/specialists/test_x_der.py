"""The equations of X-DER, written out number by number, against what the specialist computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl import nets
from itl.specialists.losses import supervised_contrast
from itl.specialists.x_der import graft, hinge
from support.specialist_batches import C, ce, log_softmax, make_batch, mean, specialist
from support.tiny import tiny_net, tiny_stream
from support.tiny_methods import baseline_learner


@pytest.fixture
def net() -> nets.ResNet:
    return tiny_net(classes=C, dtype=torch.float64).train()


def test_graft_bounds_logits_by_gamma_times_the_labels_logit() -> None:
    old, new = torch.randn(40, C).abs() + 0.1, torch.randn(40, C) * 3
    y, columns = torch.arange(40) % 2, torch.tensor([False, False, True, True, True, True])
    actual = graft(old, new, y, columns, 0.85)
    assert torch.equal(actual[:, :2], old[:, :2])
    high = 0
    for k in range(40):
        own, top = float(old[k, y[k]]), float(new[k, 2:].max())
        scale = 0.85 * own / top if top > own else 1.0
        high += top > own
        torch.testing.assert_close(actual[k, 2:], new[k, 2:] * scale)
    assert 0 < high < 40


def test_hinge_is_the_mean_of_positive_values() -> None:
    assert hinge(torch.tensor([-1.0, 2.0, 4.0])).item() == 3
    assert hinge(torch.tensor([-1.0, -2.0])).item() == 0


def test_x_der_loss_is_the_sum_of_its_seven_terms(net: nets.ResNet) -> None:
    options = {"consistency": 0.05, "temperature": 5.0, "eta": 0.1, "margin": 0.3}
    method: Any = specialist("x-der", net, alpha=0.3, beta=0.8, replay=4, options=options)
    method.on_task_start()
    method.training_phase()
    batch = make_batch(5, (2, 3), 0, views=3)
    replay_batches = tuple(make_batch(4, (0, 1), k, logits=True, views=3) for k in (1, 2))
    replay_batches[1].slots = torch.tensor([3, 4, 5, 0])  # the first and the last are in both batches
    batch.extra = {"chance": torch.ones(2, 4)}
    out, *replayed = (net(v.x) for v in (batch, *replay_batches))
    expected = ce(out, batch.y, [2, 3])
    expected += 0.3 * ((replayed[0] - replay_batches[0].stored_logits) ** 2).mean().item()
    expected += 0.8 * ce(replayed[1], replay_batches[1].y, [0, 1])
    past_excess = []
    for row in out.tolist():
        p = [math.exp(v) for v in log_softmax(row[:4])]
        past_excess.append(max(p[:2]) + 0.3 - max(p[2:]))
    expected += 0.1 * mean([v for v in past_excess if v > 0] or [0.0])
    future_excess = [max(row[4:]) + 0.3 - max(row[2:4]) for row in out.tolist()]
    once = [*replayed[0].tolist(), *replayed[1].tolist()[1:3]]  # an image in both batches counts once
    future_excess += [max(row[4:]) + 0.3 - max(row[:2]) for row in once]
    assert sum(v > 0 for v in future_excess) > 3
    expected += 0.1 * mean([v for v in future_excess if v > 0] or [0.0])
    x = torch.cat(
        [batch.extra_views[0], replay_batches[0].extra_views[0], batch.extra_views[1], replay_batches[0].extra_views[1]]
    )
    y = torch.cat([batch.y, replay_batches[0].y]).repeat(2)
    expected += 0.05 * supervised_contrast(F.normalize(net(x)[:, 4:6], dim=1), y, 5.0).mean().item()
    assert method.loss(net, batch, replay_batches).item() == pytest.approx(expected, abs=1e-8)


def test_x_der_updates_running_statistics_with_task_and_replay_batches_only(net: nets.ResNet) -> None:
    """The forward pass of the contrastive loss uses its batch's statistics, but running statistics ignore it."""
    method: Any = specialist("x-der", net, alpha=0.3, beta=0.8, replay=4)
    method.on_task_start()
    method.training_phase()
    batch = make_batch(5, (2, 3), 0, views=3)
    replay_batches = tuple(make_batch(4, (0, 1), k, logits=True, views=3) for k in (1, 2))
    batch.extra = {"chance": torch.ones(2, 4)}
    expected = tiny_net(classes=C, dtype=torch.float64).train()
    expected.load_state_dict(net.state_dict())
    for part in (batch, *replay_batches):
        expected(part.x)
    before = {name: tensor.clone() for name, tensor in net.named_buffers()}
    method.loss(net, batch, replay_batches)
    for (name, actual), other in zip(net.named_buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(actual, other, rtol=0, atol=1e-12, msg=name)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in net.named_buffers())
    assert all(m.momentum and m.track_running_stats for m in net.modules() if isinstance(m, nn.BatchNorm2d))


def test_x_der_updates_logits_with_decreasing_probability_and_once_per_step(net: nets.ResNet) -> None:
    method: Any = specialist("x-der", net, replay=4)
    method.on_task_start()
    method.training_phase()
    replay_batches = tuple(make_batch(4, (0, 1), k, logits=True, views=3) for k in (1, 2))
    replay_batches[1].slots = torch.tensor([3, 4, 5, 6])  # one image is in both batches
    for replay in replay_batches:
        replay.stored_logits = replay.stored_logits.float()
    outputs = [torch.randn(4, C) for _ in replay_batches]
    method._update_logits(replay_batches, outputs, torch.full((2, 4), 0.6))
    assert method.count.tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert not torch.equal(replay_batches[0].updated_logits, replay_batches[0].stored_logits)
    assert torch.equal(
        replay_batches[0].updated_logits[:, :2], replay_batches[0].stored_logits[:, :2]
    )  # known columns stay
    assert torch.equal(replay_batches[1].updated_logits[0], replay_batches[0].updated_logits[3])
    method._update_logits(replay_batches, outputs, torch.full((2, 4), 0.6))  # 0.6 is not under 1/2
    assert torch.equal(replay_batches[0].updated_logits, replay_batches[0].stored_logits)


def bounded(new: Tensor, own: Tensor) -> Tensor:
    """Logits of another task after eq. 6: if the largest exceeds the own class's logit, it becomes 0.85 · own."""
    return new * (0.85 * own / new.max() if new.max() > own else 1.0)


def test_x_der_counts_the_replays_of_each_task_anew(net: nets.ResNet) -> None:
    method: Any = specialist("x-der", net)
    method.on_task_start()
    method.count += 3
    method.on_task_start()
    assert not method.count.any()


def test_x_der_stores_bounded_logits_at_task_end() -> None:
    stream, learner = tiny_stream(), baseline_learner("x-der")
    for task in stream:
        learner.learn(task)
    memory, net = learner.memory, learner.net.eval()
    assert memory.logits is not None
    with torch.no_grad():
        current = net(learner.normalize(memory.pixels[: len(memory)]))
    exceeding = 0
    for k, label in enumerate(memory.labels.tolist()):
        other_task = [0, 1] if label >= 2 else [2, 3]
        own, new = memory.logits[k, label], current[k, other_task]
        torch.testing.assert_close(memory.logits[k, other_task], bounded(new, own))
        exceeding += int(new.max() > own)
    assert 0 < exceeding < len(memory)
    assert (memory.slots.task[: len(memory)] == memory.labels // 2).all()


def test_x_der_updates_stored_logits_at_task_end() -> None:
    """Old samples keep the columns of past tasks; new samples have the network's logits for their own task."""
    stream, learner = tiny_stream(), baseline_learner("x-der")
    for task in stream:
        learner.learn(task)
    memory, net, count = learner.memory, learner.net.eval(), len(learner.memory)
    assert memory.logits is not None
    old = 3 * torch.randn(memory.logits.shape, generator=torch.Generator().manual_seed(0)).abs()
    memory.logits.copy_(old)
    learner.specialist.on_task_end()
    with torch.no_grad():
        current = net(learner.normalize(memory.pixels[:count]))
    past, task_columns = [0, 1], [2, 3]
    for k, label in enumerate(memory.labels.tolist()):
        is_new = label in task_columns
        kept, replaced = (task_columns, past) if is_new else (past, task_columns)
        base = current[k] if is_new else old[k]
        torch.testing.assert_close(memory.logits[k][kept], base[kept])
        torch.testing.assert_close(memory.logits[k][replaced], bounded(current[k][replaced], base[label]))
