"""Tests of tangent learning, fine-tuning and projection on small problems."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itl import Learner
from itl.callbacks.base import Callback
from itl.engine.keyed_random import generator
from itl.errors import UserError
from itl.generalists import TangentModel
from itl.generalists.learning import memory_loss
from itl.settings import TangentSettings, build
from itl.specialists.losses import squared_error
from support.tiny import LambdaCallback, tiny_learner, tiny_stream


def test_projection_reaches_the_tangent_models_outputs() -> None:
    """Without augmentation the distance shrinks by a large factor from the weights after the half-pipe."""
    distance: list[float] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        x = learner.normalize(learner.memory.pixels[:8])
        if (event, stage) == ("on_stage_end", "tangent"):
            assert learner._generalist is not None
            learner.notes["target"] = learner._generalist.logits(x)
        if stage == "projection":
            with torch.no_grad():
                logits = learner.net.eval()(x)
            learner.net.train(learner.settings.projection.batch_norm == "train")
            distance.append(F.mse_loss(logits, learner.notes["target"]).item())

    learner = tiny_learner(
        callback=LambdaCallback(listen),
        augment__padding=0,
        tangent__epochs=30,
        tangent__lr=0.1,
        projection__epochs=100,
        projection__lr=0.05,
        projection__momentum=0.9,
        projection__batch_norm="eval",
        projection__l2=0.0,
    )
    learner.learn(tiny_stream().tasks[0])
    assert distance[-1] < distance[0] / 100


def record_logits() -> tuple[dict[str, Tensor], LambdaCallback]:
    """A callback that records the tangent model's logits of the memory, by event, and its dictionary."""
    logits: dict[str, Tensor] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if stage == "tangent" and event != "on_round_end":
            assert learner._generalist is not None
            logits[event] = learner._generalist.logits(learner.normalize(learner.memory.pixels[:8]))

    return logits, LambdaCallback(listen)


def test_tangent_learning_fits_the_memory() -> None:
    logits, callback = record_logits()
    settings = {"net__name": "resnet8", "augment__padding": 0, "tangent__epochs": 60, "tangent__lr": 0.1}
    learner = tiny_learner(callback=callback, **settings)
    learner.learn(tiny_stream().tasks[0])
    labels = torch.from_numpy(learner.memory.labels)
    before, after = (F.cross_entropy(logits[e], labels).item() for e in ("on_stage_start", "on_stage_end"))
    assert after < before / 4
    assert (logits["on_stage_end"].argmax(1) == labels).all()


def test_tangent_learning_step_is_gradient_descent_on_w() -> None:
    """One epoch of two steps over the memory: w ← w − η (∇ CE(g(w; x), y) + 2 λ w), with momentum, from w = 0."""
    learned: dict[str, Tensor] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage) == ("on_stage_end", "tangent"):
            learned.update(learner._generalist.tensors())  # type: ignore[union-attr]

    learner = tiny_learner(
        callback=LambdaCallback(listen), augment__padding=0, tangent__epochs=1, tangent__lr=0.2, tangent__l2=0.3
    )
    learner.learn(tiny_stream().tasks[0])
    anchor = tiny_learner(augment__padding=0)
    anchor.prepare(tiny_stream().tasks[0])
    anchor.net.load_state_dict({n.removeprefix("anchor."): t for n, t in learned.items() if n.startswith("anchor.")})
    model = TangentModel(anchor.net, 2)
    order = generator(0, 1, "tangent", 0, "order").permutation(8)
    w, velocity = model.zero(), model.zero()
    for rows in (order[:4], order[4:]):
        x = learner.normalize(learner.memory.pixels[torch.from_numpy(rows)])
        y = torch.from_numpy(learner.memory.slots.label[rows])
        leaves = {name: t.clone().requires_grad_() for name, t in w.items()}
        grads = torch.autograd.grad(F.cross_entropy(model.logits(leaves, model.features(x)), y), list(leaves.values()))
        for name, grad in zip(w, grads, strict=True):
            velocity[name] = 0.9 * velocity[name] + grad + 2 * 0.3 * w[name]
            w[name] = w[name] - 0.2 * velocity[name]
    assert {n for n in learned if n.startswith("w.")} == {f"w.{n}" for n in w}
    for name, value in w.items():
        torch.testing.assert_close(learned[f"w.{name}"], value, rtol=1e-4, atol=1e-6, msg=name)


def test_projection_step_is_gradient_descent_on_the_squared_error() -> None:
    """One epoch of two steps: θ' ← θ' − η (∇ mean (p(θ'; x) − g(w; x))² + 2 λ θ'), batch norm in training mode."""
    kept: dict[str, Any] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage) == ("on_stage_end", "tangent"):
            kept["teacher"] = learner._generalist
            kept["start"] = copy.deepcopy(learner.net)

    learner = tiny_learner(
        callback=LambdaCallback(listen),
        augment__padding=0,
        projection__epochs=1,
        projection__lr=0.1,
        projection__l2=0.02,
    )
    learner.learn(tiny_stream().tasks[0])
    net, teacher = kept["start"].train(), kept["teacher"]
    order = generator(0, 1, "projection", 0, "order").permutation(8)
    for rows in (order[:4], order[4:]):
        x = learner.normalize(learner.memory.pixels[torch.from_numpy(rows)])
        loss = ((net(x) - teacher.logits(x)) ** 2).mean()
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, grad in zip(net.parameters(), grads, strict=True):
                p -= 0.1 * (grad + 2 * 0.02 * p)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(learner.net.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("how", ["mean", "sum", "classes"])
def test_memory_loss_is_beta_cross_entropy_plus_alpha_squared_distance(how: str) -> None:
    settings = TangentSettings(alpha=0.5, beta=2.0, reduction=how)  # type: ignore[arg-type]
    logits, stored, y = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    widths = torch.tensor([4, 4, 2, 4, 2])
    counted = np.arange(4) < widths.numpy()[:, None]
    square = np.where(counted, (logits - stored).numpy() ** 2, 0)
    ce = (-logits.log_softmax(1)[torch.arange(5), y]).numpy()
    expected = {
        "mean": 2.0 * ce.mean() + 0.5 * square.sum() / counted.sum(),
        "sum": 2.0 * ce.sum() + 0.5 * square.sum(),
        "classes": 2.0 * ce.mean() + 0.5 * square.sum(1).mean(),
    }[how]
    batch = {"y": y, "logits": stored, "width": widths}
    assert memory_loss(logits, batch, settings).item() == pytest.approx(expected, rel=1e-5)
    assert memory_loss(logits, {"y": y}, settings).item() == pytest.approx(
        2.0 * (ce.sum() if how == "sum" else ce.mean()), rel=1e-5
    )


@pytest.mark.parametrize("how", ["mean", "sum", "classes"])
def test_memory_loss_weights_both_terms_with_weights_of_mean_one(how: str) -> None:
    settings = TangentSettings(alpha=0.5, beta=2.0, reduction=how)  # type: ignore[arg-type]
    logits, stored, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    ce, square = F.cross_entropy(logits, y, reduction="none"), (logits - stored).square().sum(1)
    w = torch.tensor([0.5, 2.0, 1.0, 0.5])  # four times those of the batch
    factor = {"mean": (2.0 / 4, 0.5 / 12), "sum": (2.0, 0.5), "classes": (2.0 / 4, 0.5 / 4)}[how]
    expected = factor[0] * (w * ce).sum() + factor[1] * (w * square).sum()
    batch = {"y": y, "logits": stored, "width": torch.full((4,), 3), "weight": w / 4}
    torch.testing.assert_close(memory_loss(logits, batch, settings), expected)


def test_relative_squared_error_is_scale_invariant() -> None:
    logits, target = torch.randn(5, 4), torch.randn(5, 4)
    expected = ((logits - target) ** 2).mean() / (target**2).mean()
    for scale in (0.01, 1.0, 100.0):
        torch.testing.assert_close(squared_error(scale * logits, scale * target, "relative"), expected)
    assert squared_error(logits, torch.zeros(5, 4), "relative").isfinite()
    with pytest.raises(UserError, match=r"tangent\.reduction"):
        build({"tangent.reduction": "relative"})


def test_itl_l_learns_from_stored_logits() -> None:
    """With β = 0 only the stored logits determine the tangent model, which must come closer to them."""
    logits, callback = record_logits()
    learner = tiny_learner(
        "itl-l",
        callback=callback,
        augment__padding=0,
        tangent__beta=0.0,
        tangent__alpha=1.0,
        tangent__epochs=50,
        tangent__lr=0.05,
    )
    learner.learn(tiny_stream().tasks[0])
    assert learner.memory.logits is not None
    target = learner.memory.logits[:8]
    before, after = (F.mse_loss(logits[e], target).item() for e in ("on_stage_start", "on_stage_end"))
    assert after < before / 3


def test_steps_shorten_a_stage_and_rounds_group_epochs() -> None:
    counted: list[tuple[str, int, int, int]] = []

    def listen(learner: Learner, stage: object, *_: object) -> None:
        rounds = stage.planner  # type: ignore[attr-defined]
        counted.append((stage.name, rounds.total_steps, rounds.epochs_done(rounds.num_rounds - 1), rounds.num_rounds))  # type: ignore[attr-defined]

    learner = tiny_learner(tangent__epochs=50, tangent__steps=5, projection__epochs=16)
    learner.callback.on_stage_start = listen  # type: ignore[method-assign]
    learner.learn(tiny_stream().tasks[0])
    assert counted == [("specialist", 6, 2, 2), ("tangent", 5, 3, 3), ("projection", 32, 16, 8)]


@pytest.mark.parametrize("generalist", ["tangent", "full", "linear"])
@pytest.mark.parametrize("augmented", ["task", "memory"])
def test_generalist_and_projection_use_the_memorys_augmentation(generalist: str, augmented: str) -> None:
    """The `-na` variants leave out AutoAugment on the tasks, and only there."""
    is_augmented: dict[str, bool] = {}

    class RecordImages(Callback):
        def on_stage_start(self, learner: Learner, stage: Any) -> None:
            if stage.name == "specialist":
                return
            prepare = stage.planner.prepare

            def recording_prepare(images: Tensor, rows: Tensor) -> Any:
                differs = not torch.equal(images, learner.memory.gather(rows))
                is_augmented[stage.name] = is_augmented.get(stage.name, False) or differs
                return prepare(images, rows)

            stage.planner.prepare = recording_prepare

    policies = {"augment__task": None, "augment__memory": None, f"augment__{augmented}": "cifar10"}
    learner = tiny_learner(
        callback=RecordImages(),
        generalist=generalist,
        project=True,
        augment__padding=0,
        augment__flip=False,
        **policies,
    )
    learner.learn(tiny_stream(channels=3).tasks[0])
    assert is_augmented == {generalist: augmented == "memory", "projection": augmented == "memory"}
