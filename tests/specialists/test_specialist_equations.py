"""The methods' published equations, written out number by number, against what the specialists compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl import nets
from itl.settings import SpecialistSettings
from itl.specialists import Batch, build
from itl.specialists.co2l import relations, three_steps
from itl.specialists.gdumb import cosine_cycles
from itl.specialists.losses import distillation, supervised_contrast
from itl.specialists.model_copies import frozen_copy
from support.specialist_batches import C, ce, log_softmax, make_batch, mean, specialist
from support.tiny import tiny_net, tiny_stream
from support.tiny_methods import baseline_learner


@pytest.fixture
def net() -> nets.ResNet:
    return tiny_net(classes=C, dtype=torch.float64).train()


def test_joint_loss_is_cross_entropy(net: nn.Module) -> None:
    batch = make_batch(5, (0, 1, 2, 3), 0)
    expected = ce(net(batch.x), batch.y, list(range(C)))
    assert specialist("joint", net).loss(net, batch, ()).item() == pytest.approx(expected, abs=1e-10)


def test_er_separate_loss_is_one_cross_entropy_per_batch_with_separate_batch_statistics(net: nn.Module) -> None:
    batch, replay = make_batch(5, (2, 3), 0), make_batch(3, (0, 1), 1)
    expected = ce(net(batch.x), batch.y, list(range(C))) + ce(net(replay.x), replay.y, list(range(C)))
    together = ce(net(torch.cat([batch.x, replay.x])), torch.cat([batch.y, replay.y]), list(range(C)))
    assert specialist("er-separate", net).loss(net, batch, (replay,)).item() == pytest.approx(expected, abs=1e-10)
    assert abs(together - expected / 2) > 1e-3  # differs from er's loss


def test_er_separate_loss_uses_the_memorys_sample_weights(net: nn.Module) -> None:
    batch, replay = make_batch(5, (2, 3), 0), make_batch(4, (0, 1), 1)
    replay.weights = torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    each = F.cross_entropy(net(replay.x), replay.y, reduction="none")
    expected = ce(net(batch.x), batch.y, list(range(C))) + ((3 * each[0] + each[1]) / 4).item()
    assert specialist("er-separate", net).loss(net, batch, (replay,)).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["agem", "der", "derpp", "er-ace", "er-separate"])
def test_replayed_samples_of_weight_zero_do_not_count(name: str, net: nn.Module) -> None:
    method, batch = specialist(name, net.eval(), alpha=0.3, beta=0.7), make_batch(5, (2, 3), 0)
    weighted = [make_batch(4, (0, 1), seed, logits=True) for seed in (1, 2)]
    counted = []
    for k, replay in enumerate(weighted):
        assert replay.stored_logits is not None
        replay.weights = 2 * F.one_hot(torch.tensor(k), 4).double()
        counted.append(Batch(replay.x[k : k + 1], replay.y[k : k + 1], replay.stored_logits[k : k + 1]))
    results = [
        [method.loss(net, batch, tuple(replay_batches)), *getattr(method, "memory_gradient", [])]
        for replay_batches in (weighted, counted)
    ]
    torch.testing.assert_close(*results)


def test_der_loss_is_cross_entropy_plus_squared_error_to_stored_logits(net: nn.Module) -> None:
    batch, replay = make_batch(5, (2, 3), 0), make_batch(3, (0, 1), 1, logits=True)
    assert replay.stored_logits is not None
    square = mean((a - b) ** 2 for p, z in zip(net(replay.x).tolist(), replay.stored_logits.tolist(), strict=True)
                  for a, b in zip(p, z, strict=True))  # fmt: skip
    expected = ce(net(batch.x), batch.y, list(range(C))) + 0.3 * square
    assert specialist("der", net, alpha=0.3).loss(net, batch, (replay,)).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(8))
def test_agem_gradient_is_the_nearest_one_that_does_not_oppose_the_memorys(seed: int) -> None:
    method: Any = build(SpecialistSettings(name="agem"))
    rng = torch.Generator().manual_seed(seed)
    g, reference = ([torch.randn(s, generator=rng) for s in ((4, 3), (5,), ())] for _ in range(2))
    method.memory_gradient = list(reference)
    projected = method.transform_gradients(list(g))
    flat, ref, out = (torch.cat([t.flatten() for t in ts]).double() for ts in (g, reference, projected))
    dot = float(flat @ ref)
    assert float(out @ ref) >= -1e-5
    expected = flat - min(dot, 0.0) / float(ref @ ref) * ref
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_er_ace_task_term_covers_batch_and_unseen_classes_only(net: nn.Module) -> None:
    batch, replay = make_batch(5, (2, 3), 0), make_batch(4, (0, 1, 2), 1)
    expected = ce(net(batch.x), batch.y, [2, 3, 4, 5]) + ce(net(replay.x), replay.y, list(range(C)))
    assert specialist("er-ace", net).loss(net, batch, (replay,)).item() == pytest.approx(expected, abs=1e-10)
    alone = make_batch(4, (3,), 2)  # class 2 is not in the batch, so it does not count
    expected = ce(net(alone.x), alone.y, [3, 4, 5]) + ce(net(replay.x), replay.y, list(range(C)))
    assert specialist("er-ace", net).loss(net, alone, (replay,)).item() == pytest.approx(expected, abs=1e-10)


def test_er_ace_task_term_has_no_gradient_for_old_outputs(net: nets.ResNet) -> None:
    specialist("er-ace", net).loss(net, make_batch(5, (2, 3), 0), ()).backward()
    assert net.classifier.weight.grad is not None
    assert (net.classifier.weight.grad[:2] == 0).all()
    assert (net.classifier.weight.grad[2:] != 0).any()


def test_lwf_loss_is_cross_entropy_over_seen_classes_plus_distillation(net: nets.ResNet) -> None:
    method = specialist("lwf", net, alpha=3.0)
    method.model_copies["old"] = old = frozen_copy(tiny_net(classes=C, seed=3, dtype=torch.float64))
    batch = make_batch(5, (2, 3), 0)
    logits, old_logits = net(batch.x).tolist(), old(batch.x).tolist()
    kd = 0.0
    for a, b in zip(logits, old_logits, strict=True):
        p, q = log_softmax([v / 2 for v in a[:2]]), log_softmax([v / 2 for v in b[:2]])
        kd -= sum(math.exp(t) * s for s, t in zip(p, q, strict=True)) / 5
    expected = ce(torch.tensor(logits), batch.y, [0, 1, 2, 3]) + 3 * kd
    assert method.loss(net, batch, ()).item() == pytest.approx(expected, abs=1e-6)


def test_icarl_targets_are_labels_for_new_classes_and_old_outputs_for_old_ones(net: nets.ResNet) -> None:
    method = specialist("icarl", net)
    method.model_copies["old"] = old = frozen_copy(tiny_net(classes=C, seed=3, dtype=torch.float64))
    batch = make_batch(6, (0, 2, 3), 0)  # one of them is a memory sample
    total = 0.0
    for a, b, y in zip(net(batch.x).tolist(), old(batch.x).tolist(), batch.y.tolist(), strict=True):
        for c in range(4):  # the classes seen
            q = 1 / (1 + math.exp(-b[c])) if c < 2 else float(c == y)
            p = 1 / (1 + math.exp(-a[c]))
            total -= q * math.log(p) + (1 - q) * math.log(1 - p)
    assert method.loss(net, batch, ()).item() == pytest.approx(total / (6 * 4), abs=1e-8)


@pytest.mark.parametrize("classes", [4, None])
def test_icarl_loss_and_gradient_equal_the_benchmarks(classes: int | None) -> None:
    """aimagelab/mammoth, models/icarl.py, get_loss: the first `ac` outputs and targets, `pc` of them past."""
    stream, learner, compared = tiny_stream(), baseline_learner("icarl", classes=classes), []
    learner.prepare(stream.tasks[0])
    loss = learner.specialist.loss

    def checked_loss(net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        task, weights = len(learner.tasks) - 1, list(net.parameters())
        pc, ac = task * 2, (task + 1) * 2
        outputs, targets = net(batch.x)[:, :ac], torch.eye(4)[batch.y][:, :ac]
        if task:
            with torch.no_grad():
                logits = torch.sigmoid(learner.specialist.model_copies["old"](batch.x))
            targets = torch.cat((logits[:, :pc], targets[:, pc:ac]), dim=1)
        expected, actual = F.binary_cross_entropy_with_logits(outputs, targets), loss(net, batch, replay_batches)
        torch.testing.assert_close(actual, expected)
        grads = (torch.autograd.grad(value, weights, retain_graph=True) for value in (actual, expected))
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)
        compared.append(net.classifier.out_features)  # type: ignore[union-attr, arg-type]
        return actual

    learner.specialist.loss = checked_loss  # type: ignore[method-assign]
    for task in stream:
        learner.learn(task)
    assert set(compared) == ({4} if classes else {2, 4})


@pytest.mark.parametrize("flip", [False, True])
def test_icarl_predicts_the_class_of_the_nearest_mean(flip: bool) -> None:
    stream, learner = tiny_stream(), baseline_learner("icarl", augment__flip=flip)
    for task in stream:
        learner.learn(task)
    net = learner.net.eval()
    with torch.no_grad():
        held = learner.normalize(learner.memory.pixels[: len(learner.memory)])
        means = []
        for c in range(4):
            x = held[torch.from_numpy(learner.memory.labels) == c]
            views = [x, x.flip(3)] if flip else [x]
            unit = torch.stack([torch.stack([v / v.norm() for v in net.features(view)]).mean(0) for view in views])
            means.append(unit.mean(0) / unit.mean(0).norm())
        x = learner.normalize(stream.tasks[0].test.pixels)
        expected = [[-float(((v / v.norm()) - m).square().sum()) for m in means] for v in net.features(x)]
    torch.testing.assert_close(learner.logits(stream.tasks[0].test), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_cls_er_target_comes_from_the_average_with_the_higher_label_probability(net: nets.ResNet) -> None:
    method = specialist("cls-er", net, options={"reg": 0.15})
    for name, seed in (("stable", 3), ("plastic", 4)):
        method.model_copies[name] = frozen_copy(tiny_net(classes=C, seed=seed, dtype=torch.float64))
    batch, replay = make_batch(5, (2, 3), 0), make_batch(8, (0, 1), 1)
    stable, plastic = (method.model_copies[n].train()(replay.x).tolist() for n in ("stable", "plastic"))
    logits, both = net(replay.x).tolist(), net(torch.cat([batch.x, replay.x]))
    square, choices = 0.0, set()
    for p, s, q, y in zip(logits, stable, plastic, replay.y.tolist(), strict=True):
        slow = log_softmax(s)[y] > log_softmax(q)[y]
        choices.add(slow)
        square += sum((a - b) ** 2 for a, b in zip(p, s if slow else q, strict=True)) / (8 * C)
    assert choices == {True, False}  # both averages occur
    expected = ce(both, torch.cat([batch.y, replay.y]), list(range(C))) + 0.15 * square
    assert method.loss(net, batch, (replay,)).item() == pytest.approx(expected, abs=1e-10)


def test_cls_er_evaluates_the_stable_average(net: nets.ResNet) -> None:
    method = specialist("cls-er", net)
    for name, seed in (("stable", 3), ("plastic", 4)):
        method.model_copies[name] = frozen_copy(tiny_net(classes=C, seed=seed, dtype=torch.float64)).train()
    x = make_batch(5, (2, 3), 0).x
    expected = tiny_net(classes=C, seed=3, dtype=torch.float64)(x)
    torch.testing.assert_close(method.evaluate_logits(net, x), expected.detach())


def test_cls_er_weights_replayed_samples_as_er_does(net: nets.ResNet) -> None:
    method = specialist("cls-er", net, options={"reg": 0.0})
    method.model_copies |= {name: frozen_copy(net) for name in ("stable", "plastic")}
    batch, replay = make_batch(5, (2, 3), 0), make_batch(4, (0, 1), 1)
    replay.weights = torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    expected = specialist("er", net).loss(net, batch, (replay,))
    torch.testing.assert_close(method.loss(net, batch, (replay,)), expected)


def test_cls_er_averages_are_updated_at_their_rate_with_warm_up(net: nets.ResNet) -> None:
    method = specialist("cls-er", net, options={"stable_rate": 0.25, "stable_alpha": 0.9, "plastic_rate": 1.0})
    decays = method.draw_inputs(np.random.default_rng(0), 4000, 0)
    assert abs((decays["stable"] < 1).mean() - 0.25) < 0.03
    assert (decays["plastic"] < 1).all()
    assert decays["plastic"][:3] == pytest.approx([1 / 2, 2 / 3, 3 / 4])  # 1 − 1/(step + 1), up to alpha
    assert decays["plastic"][-1] == pytest.approx(0.999)
    assert set(np.round(decays["stable"][100:], 6)) == {np.float32(0.9).round(6), np.float32(1.0)}
    method.model_copies |= {
        name: frozen_copy(tiny_net(classes=C, seed=3, dtype=torch.float64)) for name in ("stable", "plastic")
    }
    before = [p.clone() for p in method.model_copies["stable"].parameters()]
    batch = make_batch(2, (2, 3), 0)
    batch.extra = {"stable": torch.tensor(0.75), "plastic": torch.tensor(1.0)}
    with torch.no_grad():
        method.after_step(net, batch, ())
    for a, b, theta in zip(before, method.model_copies["stable"].parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(b, 0.75 * a + 0.25 * theta.detach())
    same = zip(method.model_copies["plastic"].parameters(), before, strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def unit(m: int, d: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


def test_supervised_contrast_equals_its_definition() -> None:
    z, y, t = unit(6, 3, 0), [0, 1, 0, 1, 1, 0], 0.5
    actual = supervised_contrast(z, torch.tensor(y), t).tolist()
    for i in range(6):
        total = sum(math.exp(float(z[i] @ z[j]) / t) for j in range(6) if j != i)
        chances = [math.log(math.exp(float(z[i] @ z[j]) / t) / total) for j in range(6) if j != i and y[j] == y[i]]
        assert actual[i] == pytest.approx(-mean(chances), abs=1e-10)


def test_relations_are_log_softmax_over_the_other_samples() -> None:
    z, t = unit(5, 3, 0), 0.2
    actual = relations(z, t)
    assert actual.shape == (5, 4)
    for i in range(5):
        expected = log_softmax([float(z[i] @ z[j]) / t for j in range(5) if j != i])
        assert actual[i].tolist() == pytest.approx(expected, abs=1e-10)


def test_co2l_loss_has_task_anchors_and_distills_relations(net: nets.ResNet) -> None:
    options = {"width": 4, "temperature": 0.5, "now_temperature": 0.2, "past_temperature": 0.1, "distil": 2.0}
    method: Any = specialist("co2l", net, tasks=((0, 1),), options=options)
    method.on_task_start()
    method.context = specialist("co2l", net, options=options).context
    method.on_task_start()
    method.head, method.old_head = method.head.double(), method.old_head.double()
    with torch.no_grad():
        method.old_head[0].weight.add_(0.3)
    batch = make_batch(4, (0, 2, 3, 2), 0, views=2)
    x, y = torch.cat([batch.x, *batch.extra_views]), [0, 2, 3, 2] * 2
    z = F.normalize(method.head(net.features(x)), dim=1).detach()
    before = F.normalize(method.old_head(method.model_copies["old"].features(x)), dim=1).detach()
    asym = 0.0
    for i in (k for k in range(8) if y[k] != 0):
        total = sum(math.exp(float(z[i] @ z[j]) / 0.5) for j in range(8) if j != i)
        alike = [math.log(math.exp(float(z[i] @ z[j]) / 0.5) / total) for j in range(8) if j != i and y[j] == y[i]]
        asym -= (0.5 / 0.07) * mean(alike) / 8  # the mean over all rows; old classes contribute 0
    ird = 0.0
    for i in range(8):
        p = log_softmax([float(z[i] @ z[j]) / 0.2 for j in range(8) if j != i])
        q = log_softmax([float(before[i] @ before[j]) / 0.1 for j in range(8) if j != i])
        ird -= sum(math.exp(b) * a for a, b in zip(p, q, strict=True)) / 8
    assert method.loss(net, batch, ()).item() == pytest.approx(asym + 2.0 * ird, abs=1e-8)


def test_co2l_trains_features_and_head_then_classifier(net: nets.ResNet) -> None:
    method: Any = specialist("co2l", net, tasks=((0, 1),), batch=512, epochs=100, lr=0.5, options={"first_epochs": 500})
    method.on_task_start()
    phase, closing_phase = method.training_phase(), method.closing_phase()
    assert phase.epochs == 500
    assert not any(name.startswith("classifier.") for name in phase.parameters)
    assert {name for name in phase.parameters if name.startswith("head.")}
    assert set(closing_phase.parameters) == {"classifier.weight", "classifier.bias"}
    assert (closing_phase.data, closing_phase.balanced, closing_phase.training) == ("both", True, False)
    rates = phase.optimizer.rates(0, 5000, 5000)
    assert rates[0] < 0.02  # warm-up
    assert rates.argmax() == pytest.approx(100, abs=2)  # 10 of 500 epochs
    assert rates[-1] == pytest.approx(0.5 * 1e-3, rel=0.01)
    steps = three_steps(torch.arange(100, dtype=torch.float64), 100)
    assert steps[[0, 59, 60, 75, 90]].tolist() == pytest.approx([1, 1, 0.2, 0.04, 0.008])


def test_gdumb_learning_rate_follows_doubling_cosine_cycles() -> None:
    """Equal to PyTorch's warm restarts from the third epoch on; the first is at a tenth, the second at the maximum."""
    weight = nn.Parameter(torch.zeros(()))
    sgd = torch.optim.SGD([weight], lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, T_0=1, T_mult=2, eta_min=0.0005)
    expected = [0.005, 0.05]
    for _ in range(60):
        sgd.step()
        scheduler.step()
        expected.append(sgd.param_groups[0]["lr"])
    assert [0.05 * cosine_cycles(e, 0.01) for e in range(62)] == pytest.approx(expected, abs=1e-12)


def test_gdumb_loss_mixes_images_and_labels_by_cutmix(net: nn.Module) -> None:
    batch = make_batch(4, (0, 1, 2, 3), 0)
    batch.extra = {"box": torch.tensor([2, 1, 5, 7]), "keys": torch.tensor([0.3, 0.1, 0.4, 0.2, 0.0])}
    other = [1, 3, 0, 2]  # the order of the first four keys
    mixed = batch.x.clone()
    mixed[:, :, 2:5, 1:7] = batch.x[other][:, :, 2:5, 1:7]
    share = 1 - 3 * 6 / 64
    logits, every = net(mixed), list(range(C))
    expected = share * ce(logits, batch.y, every) + (1 - share) * ce(logits, batch.y[other], every)
    assert specialist("gdumb", net).loss(net, batch, ()).item() == pytest.approx(expected, abs=1e-10)


def test_gdumb_boxes_have_the_drawn_area_at_half_of_the_steps(net: nn.Module) -> None:
    box = specialist("gdumb", net).draw_inputs(np.random.default_rng(0), 4000, 0)["box"]
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    assert (box[:, :2] >= 0).all()
    assert (box[:, 2:] <= 8).all()
    assert 0.5 < (area == 0).mean() < 0.7  # half of the steps, and boxes smaller than a pixel
    none = specialist("gdumb", net, options={"cutmix": 0.0}).draw_inputs(np.random.default_rng(0), 50, 0)["box"]
    assert ((none[:, 2] - none[:, 0]) * (none[:, 3] - none[:, 1]) == 0).all()


def test_distillation_is_minimal_for_equal_logits() -> None:
    a, b = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    assert distillation(a, a, 2.0) < distillation(b, a, 2.0)
