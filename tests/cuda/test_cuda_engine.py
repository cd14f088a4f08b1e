"""GPU only: captured steps, fused kernels and concurrent runs equal plain training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from itl import Learner
from itl.engine.concurrency import run_concurrently
from itl.engine.stepper import Stepper
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.run import run
from itl.generalists.round_planner import SampleRoundPlanner
from itl.learner import inference
from itl.nets import overlapped_conv
from itl.streams import Stream, from_arrays
from support.small_backbone import register_small_backbone

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

SHORT = {
    "net.name": "resnet8",
    "net.width": 8,
    "specialist.epochs": 2,
    "tangent.epochs": 4,
    "projection.epochs": 4,
    "tangent.lr": 1e-3,
    "projection.lr": 1e-3,
}


def stream() -> Stream:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 160)
    pixels = rng.integers(0, 64, (640, 3, 16, 16), dtype=np.uint8) + (labels * 45).astype(np.uint8)[:, None, None, None]
    return from_arrays(pixels, labels, pixels[::8], labels[::8], tasks=2, policy="cifar10", layout="NCHW")


def trained_state(method: str, seed: int = 0, forget: bool = False, **settings: Any) -> dict[str, Tensor]:
    learner = Learner(method, 50, seed, 4, settings={**SHORT, "exact": True, **settings}, device="cuda")
    for task in stream():
        learner.learn(task)
        if forget:
            learner._stepper_cache, learner._last_generalist = {}, None
    state = {name: t.clone() for name, t in learner.net.state_dict().items()}
    return state | {"memory": learner.memory.pixels[:-1].clone()}


def bit_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["er", "derpp", "itl", "itl-l", "b+hp+ff+pd", "b+lf"])
def test_captured_and_eager_training_are_bit_equal(method: str, precision: str) -> None:
    captured = trained_state(method, precision=precision, capture=True)
    assert bit_equal(captured, trained_state(method, precision=precision, capture=False))
    assert bit_equal(captured, trained_state(method, precision=precision, capture=True, forget=True))


@pytest.mark.parametrize("classes", [4, None])
def test_cached_steppers_work_across_tasks_with_cudnn_search(classes: int | None) -> None:
    """Without exact mode, with growing classifier and memory: another step shape at every task."""
    learner = Learner("itl", 400, 0, classes, settings=SHORT, device="cuda")
    for task in (*stream(), *stream()):
        learner.learn(task)
    assert all(torch.isfinite(t).all() for t in learner.net.state_dict().values())


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize(
    ("method", "rate"), [("derpp", "specialist.lr"), ("itl-l", "tangent.lr"), ("itl", "projection.lr")]
)
def test_non_finite_loss_stops_training(method: str, rate: str, capture: bool) -> None:
    learner = Learner(method, 50, 0, 4, settings={**SHORT, rate: 100.0, "capture": capture}, device="cuda")
    with pytest.raises(UserError, match="the loss is not finite"):
        learner.learn(stream().tasks[0])


def test_cudnn_search_is_limited_to_captured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation in one run must not wait for the queued work of the others."""
    seen: dict[str, set[bool]] = {"captured": set(), "else": set()}
    step, forward = Stepper.step, inference._forward

    def watched(where: str, inner: Any) -> Any:
        def call(*given: Any) -> Any:
            seen[where].add(torch.backends.cudnn.benchmark)
            return inner(*given)

        return call

    monkeypatch.setattr(Stepper, "step", watched("captured", step))
    monkeypatch.setattr(inference, "_forward", watched("else", forward))
    learner = Learner("itl", 50, 0, 4, settings=SHORT, device="cuda")
    learner.learn(stream().tasks[0])
    learner.scores(stream().tasks[:1], [stream().tasks[0].test])
    assert True in seen["captured"]
    assert seen["else"] == {False}


@pytest.mark.parametrize("capture", [True, False])
def test_steps_wait_for_late_inputs(capture: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generalist's inputs are prepared on another stream, which this test delays."""
    expected = trained_state("itl", capture=capture)
    load = SampleRoundPlanner.load

    def late(self: SampleRoundPlanner, plan: Any) -> Any:
        for chunk in load(self, plan):
            torch.cuda._sleep(20_000_000)
            for group in chunk.groups:
                for name, t in group.items():
                    right = t.clone()
                    t.zero_()
                    torch.cuda._sleep(20_000_000)
                    group[name] = t.copy_(right)
            yield chunk

    monkeypatch.setattr(SampleRoundPlanner, "load", late)
    assert bit_equal(expected, trained_state("itl", capture=capture))


OWN: dict[str, dict[str, Any]] = {
    "co2l": {"specialist.batch": 32, "specialist.lr": 0.05, "specialist.options.first_epochs": 2,
             "specialist.options.probe_epochs": 2, "specialist.options.probe_batch": 32,
             "specialist.options.probe_lr": 0.1},
    "gdumb": {"specialist.epochs": 8},
    "metasp": {"specialist.batch": 32, "specialist.epochs": 4, "specialist.options.plain": 0.5},
}  # fmt: skip
CAPTURED = ["joint", "sgd", "agem", "der", "gcr", "er-t", "co2l", "er-ace", "x-der", "cls-er", "gdumb", "icarl", "lwf"]
CAPTURED += ["gss", "gmed", "metasp"]


@pytest.mark.parametrize("generalist", ["none", "tangent"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", CAPTURED)
def test_captured_and_eager_training_are_bit_equal_for_each_method(
    method: str, precision: str, generalist: str
) -> None:
    own = {"precision": precision, "generalist": generalist, **OWN.get(method, {})}
    assert bit_equal(trained_state(method, capture=True, **own), trained_state(method, capture=False, **own))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["itl-l", "derpp"])
def test_weight_average_is_bit_equal_captured_and_eager(method: str, precision: str) -> None:
    own = {"precision": precision, "specialist.options.average": 0.9}
    assert bit_equal(trained_state(method, capture=True, **own), trained_state(method, capture=False, **own))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_uncapturable_step_is_reproducible(precision: str) -> None:
    """AutoAugment inside the step sorts its draws on the host."""
    own = {"precision": precision, "memory.policy": "loss-aware", "augment.memory": "stream"}
    assert bit_equal(trained_state("er", **own), trained_state("er", **own))


def test_eager_work_between_steps_does_not_disturb_captures() -> None:
    """Eager launches of one run must not enter a graph that another run is capturing."""
    methods = ["x-der", "icarl", "gcr", "er-t", "gmed", "itl"] * 2
    jobs = [partial(trained_state, method, seed) for seed, method in enumerate(methods)]
    alone = [job() for job in jobs]
    assert all(bit_equal(*pair) for pair in zip(run_concurrently(jobs, 6, torch.device("cuda")), alone, strict=True))


@pytest.mark.parametrize("method", ["er", "itl"])
def test_captured_and_eager_training_agree_on_resnet18(method: str) -> None:
    """With as many temporaries as a real step, so that memory reuse inside a graph is covered."""
    real = {"net.name": "resnet18", "net.width": 32, "specialist.momentum": 0.9, "specialist.lr": 0.01}
    captured = trained_state(method, precision="bf16", capture=True, **real)
    assert bit_equal(captured, trained_state(method, precision="bf16", capture=False, **real))


@pytest.mark.parametrize(
    ("method", "real"), [("er", {}), ("itl", {"net.name": "resnet18", "net.width": 32, "tangent.epochs": 60})]
)
def test_concurrent_run_equals_a_single_run(method: str, real: dict[str, Any]) -> None:
    """Includes graphs with large matrix products, for which cuBLAS needs a workspace."""
    alone = [trained_state(method, seed, **real) for seed in range(3)]
    concurrent = run_concurrently(
        [lambda s=s: trained_state(method, s, **real) for s in range(3)], 3, torch.device("cuda")
    )
    assert all(bit_equal(a, b) for a, b in zip(alone, concurrent, strict=True))


def test_complete_concurrent_runs_equal_single_runs(tmp_path: Path) -> None:
    """With evaluation, tangent learning and projection: eager work of one run during captures of another."""

    def run_seed(seed: int, folder: str) -> dict[str, Any]:
        config = Config("arrays", "itl", 50, seed, {**SHORT, "exact": True, "net.width": 8 * (1 + seed % 2)})
        return run(config, stream(), tmp_path / folder / str(seed), device="cuda", save=False)

    alone = [run_seed(seed, "alone") for seed in range(6)]
    concurrent = run_concurrently([lambda s=s: run_seed(s, "concurrent") for s in range(6)], 6, torch.device("cuda"))
    for a, b in zip(alone, concurrent, strict=True):
        assert a["class_il_matrix"] == b["class_il_matrix"]
        assert a["stages"] == b["stages"]


@pytest.mark.parametrize(
    ("method", "trained"), [("er", 1), ("itl", 1), ("itl", 3), ("b+hp+ff+pd", 2), ("ridge", 1), ("tangent-ridge", 2)]
)
def test_concurrent_runs_on_a_frozen_trunk_equal_single_runs(
    method: str, trained: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The features are vectors or maps; derivatives by forward mode share state between threads."""
    register_small_backbone(monkeypatch, 16)
    monkeypatch.setenv("ITL_CACHE", str(tmp_path))

    def trained_logits(seed: int) -> Tensor:
        own = {"net.trained": trained, "tangent.layers": trained, "specialist.epochs": 2, "projection.epochs": 4}
        learner = Learner(
            method, 50, seed, 4, backbone="small", settings={"exact": True, "net.size": 16, **own}, device="cuda"
        )
        for task in stream():
            learner.learn(task)
        return torch.from_numpy(learner.predict_proba(stream().tasks[0].test.pixels))

    alone = [trained_logits(seed) for seed in range(4)]
    concurrent = run_concurrently([partial(trained_logits, seed) for seed in range(4)], 4, torch.device("cuda"))
    assert all(torch.equal(*pair) for pair in zip(alone, concurrent, strict=True))


@pytest.mark.parametrize("uses", [1, 2])
def test_side_stream_weight_gradients_are_correct(uses: int) -> None:
    """Repeated on a second stream, so that a race would show. A weight used twice gets the sum of its gradients."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 32, 3, 2, 1, bias=False).cuda().to(memory_format=torch.channels_last)
    side = torch.cuda.Stream()
    for _ in range(50):
        images = [torch.randn(64, 16, 32, 32, device="cuda", requires_grad=True) for _ in range(uses)]
        leaves = [layer.weight, *images]
        expected = torch.autograd.grad(sum(layer(x).square().sum() for x in images), leaves)
        side.wait_stream(torch.cuda.current_stream())
        layer.side_stream, layer.trained_weight, layer.forward_count = side, layer.weight, 0  # type: ignore[assignment]
        found = torch.autograd.grad(sum(overlapped_conv.convolve(layer, x).square().sum() for x in images), leaves)
        torch.cuda.current_stream().wait_stream(side)
        layer.side_stream = layer.trained_weight = None  # type: ignore[assignment]
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
