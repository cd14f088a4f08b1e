"""Engine steps against hand-written SGD, schedules, and non-finite values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from itl.engine.bf16_weights import BF16Weights
from itl.engine.device import Engine
from itl.engine.loop import train
from itl.engine.stage import Diverged, OptimizerConfig, Stage, StepChunk, StepInputs
from itl.settings import SpecialistSettings
from itl.specialists import Batch, build
from support.tiny import tiny_net

CPU = Engine(torch.device("cpu"))


@dataclass
class GivenRounds:
    """A planner with given inputs: `rounds[r]` is a list of batches of one shape."""

    rounds: list[list[StepInputs]]
    committed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_rounds, self.total_steps = len(self.rounds), sum(map(len, self.rounds))

    def plan(self, index: int) -> int:
        return index

    def load(self, plan: int) -> Iterator[StepChunk]:
        steps = self.rounds[plan]
        yield StepChunk([{name: torch.stack([s[name] for s in steps]) for name in steps[0]}], [(0, len(steps))])

    def commit(self, plan: int) -> None:
        self.committed.append(plan)

    def epochs_done(self, index: int) -> int:
        return index + 1

    def first_step(self, index: int) -> int:
        return sum(map(len, self.rounds[:index]))


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_steps_equal_sgd_with_momentum_and_l2_penalty(momentum: float, schedule: str) -> None:
    """v ← μ v + ∇(loss + λ‖w‖²); w ← w − η v, by hand, in float64."""
    target = torch.randn(5, 3, dtype=torch.float64)
    w = leaf(1.0, -2.0, 3.0)
    rounds = GivenRounds([[{"t": t} for t in target[:2]], [{"t": t} for t in target[2:]]])
    optimizer = OptimizerConfig(0.1, momentum, l2=0.05, schedule=schedule)
    train(Stage("stage", {"w": w}, optimizer, rounds, lambda b: ((w - b["t"]) ** 2).sum()), CPU)

    by_hand, velocity = [1.0, -2.0, 3.0], [0.0, 0.0, 0.0]
    for k, t in enumerate(target.tolist()):
        rate = 0.1 if schedule == "constant" else 0.1 * (1 + math.cos(math.pi * k / 5)) / 2
        for i in range(3):
            velocity[i] = momentum * velocity[i] + 2 * (by_hand[i] - t[i]) + 2 * 0.05 * by_hand[i]
            by_hand[i] -= rate * velocity[i]
    assert w.tolist() == pytest.approx(by_hand, rel=1e-6)  # the learning rate is a float32
    assert rounds.committed == [0, 1]


def test_gradients_with_other_strides_are_applied_correctly() -> None:
    """Autograd may return a transposed or expanded tensor; fused kernels read raw memory."""
    w, v = torch.zeros(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True)
    t = torch.arange(6.0).view(3, 2)
    rounds = GivenRounds([[{"t": t}]])
    train(Stage("s", {"w": w, "v": v}, OptimizerConfig(1.0), rounds, lambda b: (w.t() * b["t"]).sum() + v.sum()), CPU)
    assert torch.equal(w.detach(), -t.t())
    assert v.tolist() == [-1.0] * 4


@pytest.mark.parametrize("name", ["sgd", "er", "derpp"])
def test_specialist_steps_equal_pytorch_sgd(name: str) -> None:
    method = build(SpecialistSettings(name=name, alpha=0.3, beta=0.7))
    ours, theirs = tiny_net(classes=4).train(), tiny_net(classes=4).train()
    batches = [
        {"x": torch.randn(5, 1, 8, 8), "p": torch.randn(3, 1, 8, 8), "y": torch.arange(5) % 4, "z": torch.randn(3, 4)}
        for _ in range(4)
    ]

    def loss(net: torch.nn.Module, b: StepInputs) -> Tensor:
        replay_batches = (Batch(b["p"], b["y"][:3], b["z"]),) if method.num_replay_batches else ()
        return method.loss(net, Batch(b["x"], b["y"]), replay_batches)

    stage = Stage(
        "specialist",
        dict(ours.named_parameters()),
        OptimizerConfig(0.05, 0.9, 1e-3),
        GivenRounds([batches]),
        lambda b: loss(ours, b),
    )
    train(stage, CPU)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-3)
    for batch in batches:
        optimizer.zero_grad()
        loss(theirs, batch).backward()
        optimizer.step()
    for (key, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=key)
    assert all(p.grad is None for p in ours.parameters())  # nothing is left behind


def test_training_constructs_no_optimizer_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constructing one imports TorchDynamo, which takes seconds in every process."""

    def fail(*args: object) -> None:
        raise AssertionError("an optimizer of PyTorch was constructed")

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", fail)
    weight = torch.ones((), requires_grad=True)
    stage = Stage(
        "test", {"w": weight}, OptimizerConfig(0.5), GivenRounds([[{"x": torch.ones(())}]]), lambda b: weight * b["x"]
    )
    train(stage, CPU)
    assert weight.item() == 0.5


def test_cosine_schedule_decays_to_zero_over_all_rounds() -> None:
    optimizer = OptimizerConfig(0.4, schedule="cosine")
    whole = optimizer.rates(0, 100, 100)
    assert whole[0] == pytest.approx(0.4)
    assert whole[50] == pytest.approx(0.2)
    assert whole[25] == pytest.approx(0.2 * (1 + math.sqrt(0.5)), rel=1e-6)
    assert 0 < whole[99] < 1e-3
    assert bool((whole.diff() < 0).all())
    pieces = torch.cat([optimizer.rates(0, 30, 100), optimizer.rates(30, 70, 100)])
    assert torch.equal(pieces, whole)
    assert torch.equal(OptimizerConfig(0.4).rates(7, 3, 100), torch.full((3,), 0.4))


def test_warm_schedule_is_linear_warm_up_then_cosine_decay() -> None:
    optimizer = OptimizerConfig(0.4, schedule="warm")
    whole = optimizer.rates(0, 100, 100)
    assert whole[:25].tolist() == pytest.approx([0.4 * k / 26 for k in range(1, 26)])
    assert torch.allclose(whole[25:], OptimizerConfig(0.4, schedule="cosine").rates(0, 75, 75))
    assert torch.equal(torch.cat([optimizer.rates(0, 10, 100), optimizer.rates(10, 90, 100)]), whole)
    assert torch.equal(
        optimizer.rates(0, 3, 3), OptimizerConfig(0.4, schedule="cosine").rates(0, 3, 3)
    )  # too few steps for a warm-up


def test_each_step_gets_its_own_rate_across_groups() -> None:
    """`StepChunk.order` is chronological: group 0 twice, group 1 once, group 0 again."""
    chunk = StepChunk([{"x": torch.zeros(3, 2)}, {"x": torch.zeros(1, 5)}], [(0, 2), (1, 1), (0, 1)])
    rated = chunk.with_learning_rates(torch.tensor([1.0, 2.0, 3.0, 4.0]), lambda t: t)
    assert rated.groups[0]["lr"].tolist() == [1.0, 2.0, 4.0]
    assert rated.groups[1]["lr"].tolist() == [3.0]


def test_round_reports_its_mean_loss() -> None:
    w, reported = leaf(0.0), []
    rounds = GivenRounds([[{"t": torch.tensor(v)} for v in (1.0, 3.0)], [{"t": torch.tensor(5.0)}]])
    stage = Stage("stage", {"w": w}, OptimizerConfig(1e-12), rounds, lambda b: (w + b["t"]).sum())
    train(stage, CPU, on_round_end=lambda index, loss, momentum: reported.append((index, loss)))
    assert reported == [(0, pytest.approx(2.0)), (1, pytest.approx(5.0))]


def poisoned(poison: float, momentum: float) -> tuple[Tensor, Stage]:
    """Three rounds of two steps; the first step of the second round has a non-finite loss."""
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    values = [[1.0, 1.0], [poison, 1.0], [1.0, 1.0]]
    rounds = GivenRounds([[{"t": torch.tensor(v)} for v in row] for row in values])
    return w, Stage("projection", {"w": w}, OptimizerConfig(0.1, momentum), rounds, lambda b: ((w * b["t"]) ** 2).sum())


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_non_finite_loss_leaves_the_weights_unchanged(poison: float, momentum: float) -> None:
    kept: list[Tensor] = []
    w, stage = poisoned(poison, momentum)
    with pytest.raises(Diverged) as caught:
        train(stage, CPU, on_round_end=lambda *_: kept.append(w.detach().clone()))
    assert (caught.value.stage, caught.value.epoch) == ("projection", 2)
    assert len(kept) == 1  # the round is not reported as done, so it is not saved
    assert torch.equal(w, kept[0])  # the finite second step of the round changed nothing, too


def test_non_finite_statistic_is_detected() -> None:
    """A running variance can overflow while outputs and loss stay finite."""
    w, statistic = torch.ones(2, requires_grad=True), torch.zeros(1)

    def loss(batch: StepInputs) -> Tensor:
        statistic.add_(batch["t"])
        return w.sum()

    rounds = GivenRounds([[{"t": torch.tensor(1.0)}], [{"t": torch.tensor(math.inf)}], [{"t": torch.tensor(1.0)}]])
    with pytest.raises(Diverged) as caught:
        train(Stage("full", {"w": w}, OptimizerConfig(0.1), rounds, loss, mutated=[statistic]), CPU)
    assert caught.value.epoch == 2


def test_non_finite_weight_is_detected_without_a_non_finite_loss() -> None:
    """The derivative of a square root at 0 is infinite while its value is 0, and no loss follows the last step."""
    w = torch.tensor([0.0, 1.0], requires_grad=True)
    reported: list[int] = []
    rounds = GivenRounds([[{"t": torch.tensor(1.0)}]])
    with pytest.raises(Diverged):
        train(
            Stage("specialist", {"w": w}, OptimizerConfig(0.1), rounds, lambda b: (w.sqrt() * b["t"]).sum()),
            CPU,
            on_round_end=lambda *_: reported.append(1),
        )
    assert not reported


def test_stage_resumes_from_any_round_with_its_momentum() -> None:
    def stage() -> tuple[Tensor, Stage]:
        w = leaf(1.0, -1.0)
        rounds = GivenRounds([[{"t": torch.tensor(float(k))}] * 2 for k in range(4)])
        return w, Stage(
            "s", {"w": w}, OptimizerConfig(0.05, 0.9, schedule="cosine"), rounds, lambda b: ((w - b["t"]) ** 2).sum()
        )

    states: list[tuple[Tensor, dict[str, Tensor]]] = []
    w, whole = stage()
    train(
        whole,
        CPU,
        on_round_end=lambda i, _, m: states.append((w.detach().clone(), {n: t.clone() for n, t in m.items()})),
    )
    for done in (1, 2, 3, 4):
        again, rest = stage()
        with torch.no_grad():
            again.copy_(states[done - 1][0])
        train(rest, CPU, start=done, momentum=states[done - 1][1])
        assert torch.equal(again, w)


def test_gradients_without_bf16_copies_are_returned_unchanged() -> None:
    """Example: ER-T's bias correction trains a scale and a shift and no network weight."""
    own = torch.ones(2, requires_grad=True)
    grad = torch.tensor([0.5, -1.0])
    assert [g is grad for g in BF16Weights(tiny_net()).to_float([own], [grad])] == [True]
