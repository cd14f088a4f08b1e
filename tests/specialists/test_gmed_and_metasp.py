"""GMED's edits of images in memory and MetaSP's influences, compared with their equations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl import Learner
from itl.replay.online_memory import OnlineSelectionStep
from itl.settings import SpecialistSettings
from itl.specialists import Batch, build
from itl.specialists.base import LabeledImages
from itl.specialists.gmed import GMED
from itl.specialists.metasp import influences, min_norm_combination, step_weights
from support.golden_net import GoldenNet, trained_learner, wave
from support.tiny import LambdaCallback, tiny_learner, tiny_net, tiny_stream


def test_gmed_edit_equals_its_equation() -> None:
    """α (∇ℓ(x; θ') - ∇ℓ(x; θ) + β ∇ℓ(x; θ)), θ' = θ - lr ∇ℓ(batch), computed on copies of the weights."""
    net = GoldenNet()
    settings = SpecialistSettings(lr=0.2, options={"stride": 0.3, "regularise": 0.1})
    specialist = GMED(settings)
    batch, x, y = (
        Batch(wave(3, 4, k=0.3).float(), torch.tensor([0, 1, 2])),
        wave(2, 4, k=0.8).float(),
        torch.tensor([2, 1]),
    )
    edited = specialist.edit(net.float(), batch, x, y)

    def image_gradient(model: nn.Module) -> Tensor:
        at = x.clone().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(model(at), y), at)[0]

    before = image_gradient(net)
    virtual = GoldenNet().float()
    grads = torch.autograd.grad(F.cross_entropy(virtual(batch.x), batch.y), list(virtual.parameters()))
    with torch.no_grad():
        for p, g in zip(virtual.parameters(), grads, strict=True):
            p -= 0.2 * g
    expected = x + 0.3 * (image_gradient(virtual) - before + 0.1 * before)
    assert torch.allclose(edited, expected, atol=1e-6)


def test_gmed_edits_follow_their_images() -> None:
    learner = trained_learner("gmed", specialist__options__stride=5.0)
    specialist: Any = learner.specialist
    slots = learner.memory.slots
    moved = specialist.edits[:7].flatten(1).abs().amax(1) > 0
    assert moved.any()
    fresh = torch.from_numpy(slots.written == slots.step)  # written by the last step, so not edited yet
    assert not moved[fresh].any()


@pytest.mark.parametrize("policy", ["stratified", "herding", "entropy", "coreset"])
def test_gmed_image_written_at_task_end_has_no_edit(policy: str) -> None:
    edited: list[bool] = []

    def check_edits(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        memory = learner.memory
        if event == "on_memory_update":
            assert memory.edits is not None
            moved = memory.edits[: len(memory)].flatten(1).any(1).numpy()
            assert not moved[memory.labels >= 2 * (len(learner.tasks) - 1)].any()
            edited.extend(moved)

    stream = tiny_stream(classes=6, tasks=3, each=9)
    options = {"memory__policy": policy, "specialist__options__stride": 5.0}
    learner = tiny_learner("gmed", 7, 6, callback=LambdaCallback(check_edits), **options)
    for task in stream:
        learner.learn(task)
    assert any(edited)  # images of earlier tasks


def test_gmed_image_written_in_a_step_has_no_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    write, lost = OnlineSelectionStep.write, []

    def checked_write(self: OnlineSelectionStep, *args: Any) -> None:
        edits, written = self.memory.edits, self.selector.slot_fields["written"].clone()
        assert edits is not None
        before = edits.flatten(1).any(1)
        write(self, *args)
        new = (self.selector.slot_fields["written"] != written)[:-1].nonzero().flatten()
        lost.extend(before[new].tolist())
        assert not edits[new].any()

    monkeypatch.setattr(OnlineSelectionStep, "write", checked_write)
    learner = trained_learner("gmed", memory__policy="loss-aware", specialist__options__stride=5.0)
    assert any(lost)
    assert learner.memory.edits is not None
    assert learner.memory.edits[:-1].any()


# ---------------------------------------------------------------------------------------------------------- MetaSP


def influence_batches(dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], list[tuple[Tensor, Tensor]]]:
    """A batch to learn from and two held-out sets."""
    draw = torch.Generator().manual_seed(1)
    batches = [(torch.randn(n, 1, 8, 8, generator=draw).to(dtype), torch.arange(n) % 3) for n in (6, 4, 5)]
    return batches[0], batches[1:]


def test_metasp_influence_is_the_derivative_through_the_virtual_step() -> None:
    net = tiny_net(classes=3, dtype=torch.float64)
    (x, y), held_out = influence_batches(torch.float64)
    computed = influences(net, (x, y), held_out, 0.1)
    weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    eps = torch.zeros(6, requires_grad=True, dtype=torch.float64)
    each = F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y, reduction="none")
    grads = torch.autograd.grad(((1 + eps) * each).sum() / 6, list(weights.values()), create_graph=True)
    virtual = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
    for influence, (held_out_x, held_out_y) in zip(computed, held_out, strict=True):
        loss = F.cross_entropy(torch.func.functional_call(net, virtual, (held_out_x,)), held_out_y)
        (raw,) = torch.autograd.grad(loss, eps, retain_graph=True)
        assert torch.allclose(influence, raw * loss.detach() / raw.norm(), rtol=1e-10, atol=1e-10)


def test_metasp_influence_is_computed_in_float32_with_bf16_weights() -> None:
    net, (batch, held_out) = tiny_net(classes=3), influence_batches(torch.float32)
    masters = {layer: layer.weight for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    for layer in masters:
        layer._parameters["weight"] = nn.Parameter(layer.weight.detach().bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        computed = influences(net, batch, held_out, 0.1)
    for layer, weight in masters.items():
        layer._parameters["weight"] = nn.Parameter(weight.detach().bfloat16().float())
    for influence, expected in zip(computed, influences(net, batch, held_out, 0.1), strict=True):
        assert influence.dtype == torch.float32
        assert torch.equal(influence, expected)


def test_metasp_influence_is_zero_if_the_virtual_step_overflows() -> None:
    """A virtual step in evaluation mode may overflow where the actual step does not; it must not stop the run."""
    net, (batch, held_out) = tiny_net(classes=3), influence_batches(torch.float32)
    each = influences(net, batch, held_out, 1e30)
    assert [t.tolist() for t in each] == [[0.0] * 6] * 2
    assert step_weights(min_norm_combination(*each)).tolist() == pytest.approx([1 / 6] * 6)
    assert any(t.abs().sum() > 0 for t in influences(net, batch, held_out, 0.1))


def test_metasp_step_is_in_training_mode_after_the_influences() -> None:
    net, ((x, y), ((old_x, old_y), (new_x, new_y))) = tiny_net(classes=3).train(), influence_batches(torch.float32)
    method: Any = build(SpecialistSettings(name="metasp", lr=0.1))
    method.context = SimpleNamespace(normalize=lambda images: images)
    batch, replay, old = Batch(x[:4], y[:4]), Batch(x[4:], y[4:]), Batch(old_x, old_y)
    batch.lookups = {"judge": LabeledImages(new_x, new_y)}
    method.loss(net, batch, (replay, old))
    assert net.training
    assert batch.outputs is not None
    torch.testing.assert_close(batch.outputs, net(x)[:4].detach())  # batch statistics of the step's images


def test_metasp_replays_after_the_plain_share_of_the_epochs() -> None:
    method: Any = build(SpecialistSettings(name="metasp", epochs=4, options={"plain": 0.5}))
    replaying = []
    for index in range(4):
        method.on_epoch_start(index)
        replaying.append(method.replaying)
    assert replaying == [False, False, True, True]


def test_min_norm_combination_has_the_smallest_norm() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        a, b = torch.randn(2, 5, generator=draw)
        shortest = min(float((g * a + (1 - g) * b).norm()) for g in torch.linspace(0.001, 0.999, 300))
        assert float(min_norm_combination(a, b).norm()) == pytest.approx(shortest, abs=5e-3)


def test_metasp_weights_are_nonnegative_and_sum_to_one() -> None:
    assert step_weights(torch.tensor([0.5, -0.5, 0.2, 0.8])).tolist() == pytest.approx(
        [0.5 / 3, 1.5 / 3, 0.8 / 3, 0.2 / 3]
    )
    assert step_weights(torch.tensor([3.0, 3.0, -2.0, 0.0])).tolist() == pytest.approx([0.0, 0.0, 0.75, 0.25])
