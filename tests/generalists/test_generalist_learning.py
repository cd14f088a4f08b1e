"""Tangent learning and projection on small problems: they reach what they aim at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itl import Learner
from itl.errors import UserError
from itl.generalists import TangentModel
from itl.generalists.learning import memory_loss
from itl.settings import TangentSettings, build
from itl.specialists.losses import squared_error
from support.tiny import Teller, tiny_learner, tiny_stream


def test_the_projection_reaches_the_tangent_models_outputs_on_the_memory() -> None:
    """By a large factor, from the half-piped start, where no augmentation blurs the target."""
    distance: list[float] = []

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        x = learner.normalize(learner.memory.pixels[:8])
        if (event, stage) == ("stage_ends", "tangent"):
            assert learner._generalist is not None
            learner.notes["target"] = learner._generalist.logits(x)
        if stage == "projection":
            with torch.no_grad():
                logits = learner.net.eval()(x)
            learner.net.train(learner.settings.projection.batch_norm == "train")
            distance.append(F.mse_loss(logits, learner.notes["target"]).item())

    learner = tiny_learner(
        callback=Teller(listen),
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


def test_tangent_learning_fits_the_memory_without_moving_the_network() -> None:
    said: dict[str, Tensor] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if stage == "tangent" and event != "round_ends":
            assert learner._generalist is not None
            said[event] = learner._generalist.logits(learner.normalize(learner.memory.pixels[:8]))

    learner = tiny_learner(callback=Teller(listen), augment__padding=0, tangent__epochs=60, tangent__lr=0.1)
    learner.learn(tiny_stream().tasks[0])
    labels = torch.from_numpy(learner.memory.labels)
    before, after = (F.cross_entropy(said[e], labels).item() for e in ("stage_begins", "stage_ends"))
    assert after < before / 4
    assert (said["stage_ends"].argmax(1) == labels).all()


def test_a_step_of_tangent_learning_is_gradient_descent_on_w_by_hand() -> None:
    """One epoch of two steps over the memory: w ← w − η (∇ CE(g(w; x), y) + 2 λ w), with momentum, from w = 0."""
    learned: dict[str, Tensor] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage) == ("stage_ends", "tangent"):
            learned.update(learner._generalist.tensors())  # type: ignore[union-attr]

    learner = tiny_learner(
        callback=Teller(listen), augment__padding=0, tangent__epochs=1, tangent__lr=0.2, tangent__l2=0.3
    )
    learner.learn(tiny_stream().tasks[0])
    from itl.engine.keyed_random import generator

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


def test_a_step_of_projection_is_gradient_descent_on_the_squared_error_by_hand() -> None:
    """One epoch of two steps: θ' ← θ' − η (∇ mean (p(θ'; x) − g(w; x))² + 2 λ θ'), batch norm in training mode."""
    import copy

    from itl.engine.keyed_random import generator

    kept: dict[str, object] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage) == ("stage_ends", "tangent"):
            kept["teacher"] = learner._generalist
            kept["start"] = copy.deepcopy(learner.net)

    learner = tiny_learner(
        callback=Teller(listen), augment__padding=0, projection__epochs=1, projection__lr=0.1, projection__l2=0.02
    )
    learner.learn(tiny_stream().tasks[0])
    net, teacher = kept["start"].train(), kept["teacher"]  # type: ignore[attr-defined]
    order = generator(0, 1, "projection", 0, "order").permutation(8)
    for rows in (order[:4], order[4:]):
        x = learner.normalize(learner.memory.pixels[torch.from_numpy(rows)])
        loss = ((net(x) - teacher.logits(x)) ** 2).mean()  # type: ignore[attr-defined]
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, grad in zip(net.parameters(), grads, strict=True):
                p -= 0.1 * (grad + 2 * 0.02 * p)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(learner.net.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("how", ["mean", "sum", "classes"])
def test_itl_ls_loss_is_beta_cross_entropy_plus_alpha_squared_distance(how: str) -> None:
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


def test_a_relative_squared_error_does_not_know_how_large_the_logits_are() -> None:
    said, aim = torch.randn(5, 4), torch.randn(5, 4)
    expected = ((said - aim) ** 2).mean() / (aim**2).mean()
    for scale in (0.01, 1.0, 100.0):
        torch.testing.assert_close(squared_error(scale * said, scale * aim, "relative"), expected)
    assert squared_error(said, torch.zeros(5, 4), "relative").isfinite()
    with pytest.raises(UserError, match=r"tangent\.reduction"):
        build({"tangent.reduction": "relative"})


def test_itl_l_learns_from_the_logits_stored_in_its_memory() -> None:
    """With β = 0 nothing but the stored logits can pull the tangent model: it must come closer to them."""
    said: dict[str, Tensor] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if stage == "tangent" and event != "round_ends":
            assert learner._generalist is not None
            said[event] = learner._generalist.logits(learner.normalize(learner.memory.pixels[:8]))

    learner = tiny_learner(
        "itl-l",
        callback=Teller(listen),
        augment__padding=0,
        tangent__beta=0.0,
        tangent__alpha=1.0,
        tangent__epochs=50,
        tangent__lr=0.05,
    )
    learner.learn(tiny_stream().tasks[0])
    assert learner.memory.logits is not None
    target = learner.memory.logits[:8]
    before, after = (F.mse_loss(said[e], target).item() for e in ("stage_begins", "stage_ends"))
    assert after < before / 3


def test_steps_cut_a_stage_short_and_epochs_of_any_length_give_the_same_views() -> None:
    counted: list[tuple[str, int, int, int]] = []

    def listen(learner: Learner, stage: object, *_: object) -> None:
        rounds = stage.planner  # type: ignore[attr-defined]
        counted.append((stage.name, rounds.total_steps, rounds.epochs_done(rounds.num_rounds - 1), rounds.num_rounds))  # type: ignore[attr-defined]

    learner = tiny_learner(tangent__epochs=50, tangent__steps=5, projection__epochs=16)
    learner.callback.stage_begins = listen  # type: ignore[method-assign]
    learner.learn(tiny_stream().tasks[0])
    assert counted == [("specialist", 6, 2, 2), ("tangent", 5, 3, 3), ("projection", 32, 16, 8)]
