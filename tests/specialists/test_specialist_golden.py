"""One training step equals the original public code's, from the same weights, batch and memory, in float64.

`golden/steps.json` holds numbers only: a small random network, a batch, two memory batches, and for each case the loss
and the new weights that the named function of the named repository and commit gave. Only the surroundings (a buffer
that hands out the given batches, a model that holds network and SGD) were replaced for it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itl.engine.device import choose_engine
from itl.engine.stage import OptimizerConfig, Stage, StepInputs
from itl.engine.stepper import Stepper
from itl.settings import SpecialistSettings
from itl.specialists import Batch, Specialist, build

GOLDEN = json.loads((Path(__file__).parent / "golden" / "steps.json").read_text())


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 6)).double()
    net.load_state_dict({name: torch.tensor(v, dtype=torch.float64) for name, v in GOLDEN["before"].items()}, False)
    return net.train()


def make_batch(values: dict[str, Any], logits: bool) -> Batch:
    x = torch.tensor(values["x"], dtype=torch.float64).view(-1, 1, 3, 4)
    stored = torch.tensor(values["logits"], dtype=torch.float64) if logits else None
    return Batch(x, torch.tensor(values["y"]), stored)


def build_case(case: str) -> tuple[Specialist, tuple[Batch, ...]]:
    """The specialist and the replay batches of a case."""
    name = case.partition(",")[0]
    own = {key: value for key, value in GOLDEN["cases"][case]["settings"].items() if key in ("alpha", "beta")}
    specialist = build(SpecialistSettings(name=name, draws=2 if name == "derpp" else 1, **own))
    tasks = ((2, 3),) if "first task" in case else ((0, 1), (2, 3))
    seen = torch.tensor([c in {x for task in tasks for x in task} for c in range(6)])
    past = tuple(c for task in tasks[:-1] for c in task)
    specialist.context = SimpleNamespace(past_classes=past, seen_mask=seen)  # type: ignore[assignment]
    if "empty" in case:
        return specialist, ()
    for word, batch in (("conflict", "contradicting"), ("agreeing", "agreeing")):
        if word in case:
            return specialist, (make_batch(GOLDEN[batch], logits=False),)
    return specialist, tuple(
        make_batch(p, specialist.stores_logits) for p in GOLDEN["pasts"][: specialist.num_replay_batches]
    )


@pytest.mark.parametrize("case", list(GOLDEN["cases"]))
def test_one_step_equals_the_original_code(case: str) -> None:
    specialist, replay_batches = build_case(case)
    net, batch = network(), make_batch(GOLDEN["now"], logits=False)
    losses: list[Tensor] = []

    def loss(inputs: StepInputs) -> Tensor:
        losses.append(specialist.loss(net, batch, replay_batches))
        return losses[-1]

    parameters: dict[str, Tensor] = dict(net.named_parameters())
    planner: Any = None  # not used by a single step
    stage = Stage(
        "specialist",
        parameters,
        OptimizerConfig(GOLDEN["lr"]),
        planner,
        loss,
        transform_gradients=specialist.transform_gradients,
    )
    stepper = Stepper(stage, replace(choose_engine("cpu"), precision="fp32"))
    stepper.step({"lr": torch.tensor(GOLDEN["lr"])})
    expected = GOLDEN["cases"][case]
    assert losses[0].item() == pytest.approx(expected["loss"], abs=1e-8)
    moved = 0.0
    for name, value in net.named_parameters():
        after = torch.tensor(expected["after"][name], dtype=torch.float64)
        torch.testing.assert_close(value.detach(), after, rtol=0, atol=1e-8)
        moved += float((after - torch.tensor(GOLDEN["before"][name], dtype=torch.float64)).abs().sum())
    assert moved > 0.01  # the step changed something


@pytest.mark.parametrize("case", ["agem", "agem, in conflict", "agem, agreeing"])
def test_agem_cases_project_only_in_conflict(case: str) -> None:
    """Projected if the gradients conflict, unchanged otherwise."""
    specialist, replay_batches = build_case(case)
    net, batch = network(), make_batch(GOLDEN["now"], logits=False)
    loss = specialist.loss(net, batch, replay_batches)
    reference = list(specialist.memory_gradient)  # type: ignore[attr-defined]
    plain = list(torch.autograd.grad(loss, list(net.parameters())))
    projected = specialist.transform_gradients(list(plain))
    same = all(torch.equal(a, b) for a, b in zip(plain, projected, strict=True))
    assert same == ("agreeing" in case)
    assert sum((a * b).sum() for a, b in zip(projected, reference, strict=True)) >= -1e-12


def test_golden_values_name_their_source() -> None:
    assert GOLDEN["repository"].startswith("https://github.com/")
    assert len(GOLDEN["commit"]) == 40
    assert {case.partition(",")[0] for case in GOLDEN["cases"]} == {"er", "der", "derpp", "agem", "er-ace"}
