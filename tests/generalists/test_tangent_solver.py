"""Tests of L-BFGS on the tangent objective: against closed forms, SciPy and finite differences."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itl import Learner, nets
from itl.callbacks.base import Callback
from itl.engine.device import choose_engine
from itl.engine.keyed_random import torch_generator
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.refine import refine
from itl.experiments.run import run
from itl.generalists import TangentModel, fixed_views
from itl.generalists.fixed_views import FixedViews
from itl.generalists.lbfgs import Solution, minimize
from itl.generalists.tangent_model import Linearization
from itl.learner import load_learner
from itl.learner.stages import memory_context
from itl.settings import build
from support.records import lines_of
from support.tiny import (
    ONE_BLOCK,
    TINY,
    LambdaCallback,
    differing_keys,
    learner_snapshot,
    tiny_learner,
    tiny_net,
    tiny_stream,
)

LBFGS: dict[str, Any] = {"tangent__solver": "lbfgs", "tangent__views": 3, "tangent__l2": 1e-2}


class DenseProblem:
    """A linear model with a random, badly scaled Jacobian in float64, and any loss of its logits `[n, 3]`."""

    def __init__(self, loss: Any, n: int = 20, size: int = 30) -> None:
        rng = torch.Generator().manual_seed(0)
        self.loss, self.size = loss, size
        scales = torch.logspace(-1, 0.5, size, dtype=torch.float64)
        self.jacobian = torch.randn(3 * n, size, dtype=torch.float64, generator=rng) * scales
        self.initial_logits = torch.randn(n, 3, dtype=torch.float64, generator=rng)
        self.labels = torch.randint(0, 3, (n,), generator=rng)

    def jvp(self, w: Tensor) -> Tensor:
        return (self.jacobian @ w).view(-1, 3)

    def vjp(self, cotangent: Tensor) -> Tensor:
        return self.jacobian.T @ cotangent.reshape(-1)


def memory_problem(buffer: int = 8, **settings: Any) -> FixedViews:
    """The problem of a tiny learner's tangent model after its first task, in float64."""
    learner = tiny_learner(buffer=buffer, specialist__epochs=1, **{**LBFGS, **settings})
    task = tiny_stream().tasks[0]
    problems: list[FixedViews] = []

    class Keep(Callback):
        def on_memory_update(self, learner: Learner, task: Any) -> None:
            net = tiny_net(4, dtype=torch.float64)
            context = memory_context(learner, task.traits)
            model = TangentModel(net, learner.settings.tangent.layers)
            model.features = lambda x: model.trunk(x.double())  # type: ignore[method-assign]
            problems.append(FixedViews(model, context))

    learner.callback = Keep()
    learner.learn(task)
    return problems[0]


def dense_jacobian(problem: FixedViews) -> Tensor:
    """J `[views · images · classes, size]`, one backward pass per row."""
    eye = torch.eye(problem.initial_logits.numel(), dtype=torch.float64)
    return torch.stack([problem.vjp(row.view_as(problem.initial_logits)) for row in eye])


def test_quadratic_loss_has_the_closed_form_of_ridge_regression() -> None:
    target = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    problem = DenseProblem(lambda logits: (logits - target).square().mean())
    jacobian, l2 = problem.jacobian, 1e-3
    right = jacobian.T @ (target - problem.initial_logits).reshape(-1) / 60
    expected = torch.linalg.solve(jacobian.T @ jacobian / 60 + l2 * torch.eye(30, dtype=torch.float64), right)
    solution = minimize(problem, l2, 300, 1e-8)
    torch.testing.assert_close(solution.w, expected, rtol=1e-5, atol=1e-6)
    assert solution.gradient_norm <= 1e-8 * solution.initial_gradient_norm
    assert solution.iterations < 300


def test_cross_entropy_has_the_minimum_that_scipy_finds() -> None:
    import scipy.optimize

    problem = DenseProblem(lambda logits: F.cross_entropy(logits, problem.labels))

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(w).requires_grad_()
        value = problem.loss(problem.initial_logits + problem.jvp(leaf)) + 1e-2 * leaf.square().sum()
        return value.item(), torch.autograd.grad(value, leaf)[0].numpy()

    found = scipy.optimize.minimize(objective, np.zeros(30), jac=True, method="BFGS", options={"gtol": 1e-10})
    solution = minimize(problem, 1e-2, 200, 1e-8)
    assert solution.objective == pytest.approx(found.fun, abs=1e-12)
    np.testing.assert_allclose(solution.w.numpy(), found.x, atol=1e-6)


def test_iterations_after_convergence_change_nothing() -> None:
    """Without the guard against pairs of rounding errors, the method leaves the minimum again."""
    problem = DenseProblem(lambda logits: F.cross_entropy(logits, problem.labels))
    problem.jacobian, problem.initial_logits = problem.jacobian.float(), problem.initial_logits.float()
    solutions = [minimize(problem, 1e-2, count, 0.0) for count in (60, 120)]
    assert solutions[1].iterations == 120
    assert solutions[1].objective == pytest.approx(solutions[0].objective, rel=1e-5)
    torch.testing.assert_close(solutions[1].w, solutions[0].w, rtol=0, atol=1e-3)
    one, two = (minimize(problem, 1e-2, count, 3e-4) for count in (80, 160))  # a doubled budget
    assert one.iterations == two.iterations < 80
    assert torch.equal(one.w, two.w)


@pytest.mark.parametrize("layers", [1, 2])
def test_products_with_the_jacobian_equal_finite_differences(layers: int) -> None:
    problem = memory_problem(tangent__layers=layers)
    rng = torch.Generator().manual_seed(3)
    d = torch.randn(problem.size, dtype=torch.float64, generator=rng)
    c = torch.randn(problem.initial_logits.shape, dtype=torch.float64, generator=rng)
    assert float((problem.jvp(d) * c).sum()) == pytest.approx(float((problem.vjp(c) * d).sum()), rel=1e-9)
    model, step = problem.model, 1e-6
    features = torch.cat([part.features for part in problem._linearizations()])
    plus, minus = (
        model.head_logits({n: model.params[n] + sign * step * t for n, t in problem.unflatten(d).items()}, features)
        for sign in (1, -1)
    )
    torch.testing.assert_close(problem.jvp(d), (plus - minus) / (2 * step), rtol=1e-5, atol=1e-6)


def test_solution_on_a_network_is_the_minimum_of_the_dense_problem() -> None:
    """Scipy minimizes the same objective from the dense Jacobian, with labels and stored views in any order."""
    import scipy.optimize

    problem = memory_problem(tangent__layers=1)
    jacobian = dense_jacobian(problem)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(w).requires_grad_()
        logits = problem.initial_logits + (jacobian @ leaf).view_as(problem.initial_logits)
        value = F.cross_entropy(logits, problem.batch["y"]) + 1e-2 * leaf.square().sum()
        return value.item(), torch.autograd.grad(value, leaf)[0].numpy()

    found = scipy.optimize.minimize(objective, np.zeros(problem.size), jac=True, options={"gtol": 1e-9})
    solution = minimize(problem, 1e-2, 300, 1e-8)
    assert solution.objective == pytest.approx(found.fun, abs=1e-10)
    np.testing.assert_allclose(solution.w.numpy(), found.x, atol=1e-5)


def test_share_of_the_classifier_is_that_of_the_dense_kernel() -> None:
    problem = memory_problem()
    squares = problem.unflatten(dense_jacobian(problem).square().sum(0))
    share = sum(t.sum() for n, t in squares.items() if n.startswith("classifier")) / sum(
        map(torch.sum, squares.values())
    )
    assert problem.classifier_share() == pytest.approx(float(share), abs=0.1)
    assert 0.05 < share < 0.95


@pytest.mark.parametrize("layers", [1, 2])
def test_kept_activations_change_no_bit_and_save_forward_passes(layers: int) -> None:
    problem = memory_problem(tangent__layers=layers)
    rng = torch.Generator().manual_seed(3)
    directions = torch.randn((2, problem.size), dtype=torch.float64, generator=rng)
    cotangents = torch.randn((2, *problem.initial_logits.shape), dtype=torch.float64, generator=rng)
    forward_passes = []
    problem.model.net.classifier.register_forward_hook(lambda *_: forward_passes.append(1))

    def products() -> list[Tensor]:
        return [*map(problem.jvp, directions), *map(problem.vjp, cotangents)]

    assert [part.keeps_activations for part in problem.cache] == [True]
    kept = products()
    passes, forward_passes[:] = len(forward_passes), []
    problem.cache[0].keeps_activations = False
    problem.cache[0] = Linearization(problem.model, problem.cache[0].features)
    assert all(torch.equal(one, other) for one, other in zip(kept, products(), strict=True))
    assert (passes, len(forward_passes)) == (1, 2)


def test_activations_are_kept_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_views, "INFERENCE_BATCH", 8)  # three chunks: three views of eight images
    cached = memory_problem().cache
    features = sum(part.features.nbytes for part in cached)
    one = cached[0].activation_bytes()
    # Eight images keep at least the input of the head and the output of its first convolution, in float64.
    assert one >= 2 * cached[0].features.nbytes
    budget = fixed_views.CACHE_BUDGETS * choose_engine("cpu").input_bytes
    for free, expected in ((features + 2.5 * one, [True, True, False]), (features, [False] * 3)):
        monkeypatch.setattr(fixed_views, "CACHE_BUDGETS", free / (budget / fixed_views.CACHE_BUDGETS))
        assert [part.keeps_activations for part in memory_problem().cache] == expected
        monkeypatch.setattr(fixed_views, "CACHE_BUDGETS", 4)
    monkeypatch.setattr(fixed_views, "CACHE_BUDGETS", (features - 1) / (budget / 4))
    beyond = memory_problem()
    assert [part.keeps_activations for part in beyond.cache] == [False, False]  # the third is recomputed


@pytest.mark.slow
def test_features_beyond_the_budget_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learned(net__name="resnet8")
    monkeypatch.setattr(fixed_views, "INFERENCE_BATCH", 5)
    chunks = learned(net__name="resnet8")
    monkeypatch.setattr(fixed_views, "CACHE_BUDGETS", 0)
    recomputed = learned(net__name="resnet8")
    for other in (chunks, recomputed):
        for name, value in whole.items():
            torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-4, msg=name)


def learned(generalist: str = "tangent", **settings: Any) -> dict[str, Tensor]:
    """The trained tensors at the end of the generalist's stage of one task."""
    out: dict[str, Tensor] = {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage) == ("on_stage_end", generalist):
            assert learner._generalist is not None
            out.update({n: t.clone() for n, t in learner._generalist.tensors().items() if n.startswith("w.")})
            out["logits"] = learner._generalist.logits(learner.normalize(learner.memory.pixels[:8]))

    tiny_learner(callback=LambdaCallback(listen), generalist=generalist, **{**LBFGS, **settings}).learn(
        tiny_stream().tasks[0]
    )
    return out


def test_linear_model_is_the_tangent_model_of_the_last_layer() -> None:
    tangent, linear = learned(tangent__layers=1), learned("linear", half_pipe=True)
    torch.testing.assert_close(tangent["logits"], linear["logits"], rtol=1e-4, atol=1e-5)


def test_views_are_reproducible_and_their_number_changes_the_solution() -> None:
    first, again, more = learned(), learned(), learned(tangent__views=6)
    assert not differing_keys(first, again)
    assert differing_keys(first, more)


def test_every_view_is_augmented_differently() -> None:
    problem = memory_problem(tangent__views=4)
    shifts = problem.draws.shift.unflatten(0, (4, -1))
    assert len({tuple(view.flatten().tolist()) for view in shifts}) == 4
    assert problem.rows.unflatten(0, (4, -1)).equal(torch.arange(8).expand(4, 8))


@pytest.mark.parametrize(("generalist", "event"), [*itertools.product(["tangent", "linear"], ["memory", "round"])])
def test_interrupted_solve_gives_the_same_expert(tmp_path: Path, generalist: str, event: str) -> None:
    """The learner is saved before the solve, or after its only round, and continued from there."""
    options = {"generalist": generalist, "half_pipe": "linear", "project": True, **LBFGS}
    stream = tiny_stream()

    class Save(Callback):
        def on_memory_update(self, learner: Learner, task: Any) -> None:
            if event == "memory":
                learner.save(tmp_path)

        def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
            if event == "round" and stage.name == generalist:
                learner.save(tmp_path)

    learner = tiny_learner(callback=Save(), **options)
    learner.learn(stream.tasks[0])
    loaded = load_learner(tmp_path)
    assert loaded.position == ("generalist", int(event == "round"))
    loaded.learn(stream.tasks[0])
    assert not differing_keys(learner_snapshot(learner), learner_snapshot(loaded))


@pytest.mark.slow
def test_record_states_objective_gradient_and_share(tmp_path: Path) -> None:
    settings = {**TINY, "tangent.solver": "lbfgs", "tangent.views": 2, "tangent.l2": 1e-2}
    settings |= {"specialist.steps": 3, "projection.steps": 3}
    config = Config("seq-digits", "itl", 20, settings=settings, keep_specialists=True, tasks=2, curves=0)
    stream = config.load_stream(tmp_path)
    run(config, stream, tmp_path / "run", device="cpu")
    lines = lines_of(tmp_path / "run")
    summaries = [line["summary"] for line in lines if line.get("summary")]
    assert len(summaries) == len(stream.tasks)
    names = {"objective", "gradient_norm", "initial_gradient_norm", "iterations", "classifier_share"}
    assert all(names <= summary.keys() for summary in summaries)
    again = refine(tmp_path / "run", stream, 1, device="cpu")["summaries"]["tangent"]
    assert again == summaries[0]
    assert again["gradient_norm"] <= 3e-4 * again["initial_gradient_norm"]


def test_half_pipe_settings_determine_the_initial_classifier() -> None:
    stream, classifiers, biases = tiny_stream(), {}, {}

    def listen(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if (event, stage) == ("on_stage_start", "tangent"):
            classifiers[name] = learner.net.classifier.weight.detach().clone()
            biases[name] = learner.net.classifier.bias.detach().clone()

    variants: dict[str, dict[str, Any]] = {
        "1": {},
        "own": {"half_pipe": "own"},
        "false": {"half_pipe": False},
        "3": {"half_pipe_scale": 3.0},
        "linear": {"half_pipe": "linear", **LBFGS},
    }
    for name in variants:
        tiny_learner(callback=LambdaCallback(listen), **variants[name]).learn(stream.tasks[0])
    reference = nets.build(ONE_BLOCK, 4, channels=1, width=4)
    reference.reinitialize_classifier(torch_generator(0, 1, "half-pipe"))
    assert torch.equal(classifiers["1"], reference.classifier.weight)
    assert torch.equal(biases["1"], reference.classifier.bias)
    assert torch.equal(classifiers["3"], 3 * classifiers["1"])
    assert torch.equal(biases["3"], 3 * biases["1"])
    assert torch.equal(classifiers["own"], classifiers["false"])
    assert not torch.allclose(classifiers["linear"], classifiers["1"], atol=1e-2)


def test_solver_rejects_full_fine_tuning() -> None:
    with pytest.raises(UserError, match="convex problems"):
        build({"generalist": "full", "tangent.solver": "lbfgs"})
    assert build({"half_pipe": "redrawn"}).half_pipe is True
    with pytest.raises(UserError, match="half_pipe"):
        build({"half_pipe": "fitted"})


def test_numbers_of_a_solution_can_be_written_as_json() -> None:
    problem = DenseProblem(lambda logits: F.cross_entropy(logits, problem.labels))
    solution = minimize(problem, 1e-2, 3, 0.0)
    assert isinstance(solution, Solution)
    json.dumps([solution.objective, solution.gradient_norm, solution.initial_gradient_norm, solution.iterations])
