"""Methods whose memory depends on the network, compared with the authors' code and equations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import itl
from itl import Learner, UserError
from itl.augment import Augment
from itl.engine.device import Engine
from itl.gradients.grad_sample import gradient_gram
from itl.memory import FeaturesAndLogits, ModelOutputs, OfferedBatch, PolicyOptions, ReplayedBatch, Slots
from itl.memory.online_selection import CHOOSE_ON_DEVICE
from itl.memory.policies.gcr import GradientCoresetCandidates, select_and_weight
from itl.memory.policies.gss import GradientSimilaritySelector
from itl.memory.policies.loss_aware import LossAwareSelector, eviction_probabilities
from itl.replay.online_memory import OnlineSelectionStep
from itl.replay.step_inputs import ReplayInputs
from itl.settings import SpecialistSettings
from itl.specialists import Batch
from itl.specialists.gcr import GCR
from itl.specialists.gss import INITIAL_SCORE, cosine_scores
from support.golden_net import GoldenNet, trained_learner, wave
from support.matching_pursuit import reference_pursuit
from support.tiny import (
    LambdaCallback,
    assert_slots_hold_their_images,
    differing_keys,
    learner_snapshot,
    tiny_learner,
    tiny_stream,
)

CPU = Engine(torch.device("cpu"))
GOLDEN = json.loads((Path(__file__).parent / "gss_golden.json").read_text())
METHODS = ["gss", "er-t", "gmed", "metasp", "gcr"]


# ------------------------------------------------------------------------------------------------------------- GSS


def test_gss_steps_equal_the_benchmarks_code() -> None:
    """Ten steps from the same weights, batches and draws: loss and weights agree to 1e-8, slots and scores too."""
    net, size = GoldenNet(), 6
    selector = GradientSimilaritySelector(Slots.empty(size), torch.zeros(size + 1, dtype=torch.float64), CPU)
    held_x, held_y, filled = torch.zeros(size + 1, 4, dtype=torch.float64), torch.zeros(size + 1, dtype=torch.int64), 0
    for t, step in enumerate(GOLDEN["steps"]):
        x = (wave(3, 4, k=0.37 + 0.11 * t) * (1 + 0.2 * t)).float().double()
        y = torch.full((3,), t % 3)
        replay = torch.tensor(step["replay"][:4], dtype=torch.int64)
        loss = F.cross_entropy(net(torch.cat([x, held_x[replay]])), torch.cat([y, held_y[replay]]))
        assert loss.item() == pytest.approx(step["loss"], abs=1e-8)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                p -= 0.05 * g
            projected = sum(float((p * wave(*p.shape, k=0.9)).sum()) for p in net.parameters())
        assert projected == pytest.approx(step["weights"], abs=1e-8)
        score = alone = torch.full((3,), INITIAL_SCORE, dtype=torch.float64)
        if step["compare"]:
            compare = torch.tensor(step["compare"])
            both = gradient_gram(net, torch.cat([held_x[compare], x]), torch.cat([held_y[compare], y]))
            score, alone = cosine_scores(both, len(compare))
            score = score.expand(3)
        planned_slots = [min(filled + k, size) if filled + k < size else CHOOSE_ON_DEVICE for k in range(3)]
        draws = [torch.tensor(step[name] or [0.0] * 3, dtype=torch.float64) for name in ("where", "whether")]
        inputs = {"slot": torch.tensor(planned_slots), "slot_draw": draws[0], "accept_draw": draws[1]}
        extra = {"batch_score": score, "sample_score": alone}
        targets = selector.choose_slots(OfferedBatch(y, None, inputs, extra), [])
        for k, target in enumerate(targets.tolist()):
            held_x[target], held_y[target] = x[k], y[k]
        filled = min(size, filled + 3)
        assert held_y[:filled].tolist() == step["labels"][:filled]
        assert selector.scores[:filled].tolist() == pytest.approx(step["scores"][:filled], abs=1e-6)


def test_gss_scores_are_the_largest_cosines_plus_one() -> None:
    each = torch.randn(7, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each[6] = 0  # a zero gradient has cosine 0
    score, alone = cosine_scores(each @ each.T, 4)
    assert score.item() == pytest.approx(float(F.cosine_similarity(each[4:].mean(0), each[:4]).max()) + 1, abs=1e-12)
    cosines = F.cosine_similarity(each[4:, None], each[None, :4], 2).amax(1) + 1
    assert torch.allclose(alone, cosines, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("stored", "own"), [(0.9, 0.3), (0.3, 0.9)])
def test_gss_replaces_similar_images_with_higher_probability(stored: float, own: float) -> None:
    """The probability is s / (s + own), where s is the stored image's score and own that of the offered sample."""
    probability = stored / (stored + own)
    for draw, is_replaced in ((probability - 0.01, True), (probability + 0.01, False)):
        selector = GradientSimilaritySelector(Slots.empty(1), torch.tensor([stored, 0.0], dtype=torch.float64), CPU)
        inputs = {"slot": [CHOOSE_ON_DEVICE], "slot_draw": [0.5], "accept_draw": [draw]}
        extra = {"batch_score": torch.tensor([0.5]), "sample_score": torch.tensor([own])}
        given = {name: torch.tensor(value) for name, value in inputs.items()}
        (target,) = selector.choose_slots(OfferedBatch(torch.tensor([1]), None, given, extra), []).tolist()
        assert target == (0 if is_replaced else 1)
        assert selector.scores[0].item() == pytest.approx(own if is_replaced else stored)


# ---------------------------------------------------------------------------------------------- loss-aware reservoir


def test_loss_aware_eviction_probabilities_equal_the_authors_code() -> None:
    """aimagelab/mammoth, commit e75a491c, utils/buffer.py, LossAwareBalancedSampling.merge_scores."""
    losses = torch.tensor([0.1, 2.3, 0.7, 0.05, 1.1, 0.4, 3.0], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 2, 2, 0])
    first = [0.25351591413767577, 0.19652109548482607, 0.2379718726868986, 0.0]
    first += [0.05773501110288674, 0.07586972612879347, 0.17838638045891936]
    assert eviction_probabilities(losses, labels).tolist() == pytest.approx(first, abs=1e-8)
    losses[[1, 6]] = torch.tensor([0.2, 0.9], dtype=torch.float64)
    then = [0.2491883116883117, 0.2435064935064935, 0.21509740259740262, 0.0]
    then += [0.024350649350649338, 0.06412337662337661, 0.20373376623376624]
    assert eviction_probabilities(losses, labels).tolist() == pytest.approx(then, abs=1e-8)
    assert eviction_probabilities(torch.ones(4), torch.tensor([0, 1, 2, 3])).tolist() == [0.25] * 4


def test_loss_aware_memory_accepts_like_a_reservoir_and_evicts_by_score() -> None:
    rng, accepted, evicted, runs = np.random.default_rng(0), 0, np.zeros(4), 600
    losses = torch.tensor([0.01, 0.02, 4.0, 5.0, 0.0], dtype=torch.float64)
    for _ in range(runs):
        slots = Slots.empty(4)
        slots.write(np.arange(4), np.zeros(4, np.int64), 0, np.arange(4), 2)
        slots.seen = 9
        selector = LossAwareSelector(slots, losses.clone(), CPU)
        batch = {
            name: torch.from_numpy(array) for name, array in selector.draw_inputs(slots, np.array([4]), rng).items()
        }
        targets = selector.choose_slots(OfferedBatch(torch.tensor([1]), torch.zeros(1, 2), batch, {}), [])
        accepted += int(targets[0] < 4)
        evicted[targets[targets < 4].numpy()] += 1
    assert abs(accepted / runs - 0.4) < 4 * math.sqrt(0.24 / runs)  # 4 of 10
    chances = eviction_probabilities(losses[:4], torch.zeros(4, dtype=torch.int64)).numpy()
    assert (abs(evicted / accepted - chances) <= 4 * np.sqrt(chances * (1 - chances) / accepted)).all()


def test_loss_aware_scores_of_replayed_images_are_their_latest_losses() -> None:
    slots, labels = Slots.empty(3), torch.tensor([0, 1])
    slots.write(np.arange(3), np.array([0, 1, 0]), 0, np.arange(3), 2)
    selector = LossAwareSelector(slots, torch.full((4,), 9.0, dtype=torch.float64), CPU)
    logits, discarded = torch.tensor([[2.0, 0.0], [1.0, 4.0]]), {"slot": torch.tensor([3]), "slot_draw": torch.zeros(1)}
    offered = OfferedBatch(torch.tensor([1]), torch.zeros(1, 2), discarded, {})
    selector.choose_slots(offered, [ReplayedBatch(torch.tensor([2, 1]), labels, logits)])
    losses = F.cross_entropy(logits.double(), labels, reduction="none").tolist()
    assert selector.scores[:3].tolist() == pytest.approx([9.0, losses[1], losses[0]])


# ------------------------------------------------------------------------------------------------------------ ER-T


def test_er_t_bias_correction_affects_only_the_last_tasks_outputs() -> None:
    learner = trained_learner("er-t")
    specialist: Any = learner.specialist
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net = learner.net.eval()
    with torch.no_grad():
        plain, seen = net(x), specialist.evaluate_logits(net, x)
        scale, shift = specialist.bias.tolist()
        assert (scale, shift) != (1.0, 0.0)
        assert torch.equal(seen[:, [0, 1, 4, 5]], plain[:, [0, 1, 4, 5]])
        assert torch.allclose(seen[:, 2:4], plain[:, 2:4] * scale + shift)
        specialist.on_generalist_start(net)
        assert torch.allclose(net(x), seen, atol=1e-5)


@pytest.mark.parametrize(("each", "sizes"), [(9, [8, 10]), (10, [8, 8, 4]), (12, [8, 8, 8])])
def test_er_t_learning_rate_decays_with_samples_seen(each: int, sizes: list[int]) -> None:
    """Batches of 8, of which the last of an epoch is smaller or larger, count as many samples as they have."""
    stream, epochs = tiny_stream(classes=6, tasks=3, each=each), 3
    learner = tiny_learner("er-t", 7, 6, specialist__epochs=epochs, specialist__options__decay=0.99)
    learner.learn(stream.tasks[0])
    seen = learner.memory.slots.seen
    assert seen == epochs * sum(sizes)
    learner._start_task(stream.tasks[1])
    optimizer = learner.specialist.training_phase().optimizer
    expected, rate = [], learner.settings.specialist.lr * 0.99**seen
    for size in sizes * epochs:
        expected.append(rate)
        rate *= 0.99**size
    steps = len(expected)
    assert optimizer.rates(0, steps, steps).tolist() == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------------- GCR


def test_gcr_selection_equals_a_search_over_full_gradients() -> None:
    """The reference is the gradient of β CE + α MSE w.r.t. the last layer's weights, by autograd, per sample."""
    draw = torch.Generator().manual_seed(3)
    layer = nn.Linear(4, 3, dtype=torch.float64)
    features = torch.randn(12, 4, generator=draw, dtype=torch.float64).abs()
    stored, mass = (
        torch.randn(12, 3, generator=draw, dtype=torch.float64),
        torch.rand(12, generator=draw).double() + 0.5,
    )
    held = GradientCoresetCandidates(12, 3, PolicyOptions(alpha=0.2, beta=0.7), CPU)
    gradients = []
    for k in range(12):
        logits = layer(features[k])
        loss = 0.7 * F.cross_entropy(logits[None], torch.tensor([1])) + 0.2 * ((logits - stored[k]) ** 2).mean()
        grads = torch.autograd.grad(loss, [layer.weight, layer.bias])
        gradients.append(torch.cat([grads[0], grads[1][:, None]], 1).flatten())
    gradient = torch.stack(gradients).numpy()
    seen = FeaturesAndLogits(features, layer(features).detach())
    errors, inputs = held._gradient(seen, 1, stored, None)
    assert np.allclose((errors[:, :, None] * inputs[:, None]).flatten(1).numpy(), gradient)
    chosen, weights = select_and_weight(errors, inputs, mass, 5)
    expected, expected_weights = reference_pursuit(gradient, (gradient * mass[:, None].numpy()).sum(0), 5, 0.5)
    assert chosen[: len(expected)].tolist() == expected
    assert np.allclose(weights[: len(expected)], expected_weights, atol=1e-5)


class FeatureRows:
    """A source of images, each of which is its features."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    def gather(self, rows: Tensor) -> Tensor:
        return self.features[rows]


def test_gcr_selection_matches_the_weighted_gradient_of_memory_and_candidates() -> None:
    """Images in memory count with the weights of their last selection, candidates with 1."""
    draw, size, rows = torch.Generator().manual_seed(0), 4, 6
    layer, slots = nn.Linear(4, 3).requires_grad_(False), Slots.empty(size)
    features, logits = torch.randn(size + rows, 4, generator=draw).abs(), torch.randn(size + rows, 3, generator=draw)
    slots.write(np.arange(size), np.ones(size, np.int64), 0, np.arange(size), 3)
    slots.weight[:] = [5.0, 0.2, 3.0, 0.1]
    candidates = GradientCoresetCandidates(rows, 3, PolicyOptions(alpha=0.2, beta=0.7), CPU)
    candidates.keys[:] = torch.linspace(0.9, 0.1, rows)
    assert candidates.logits is not None
    candidates.logits[:] = logits[size:]
    errors, inputs = candidates._gradient(FeaturesAndLogits(features, layer(features)), 1, logits, None)
    gradient = (errors[:, :, None] * inputs[:, None]).flatten(1).double().numpy()
    expected, weights = reference_pursuit(gradient, np.r_[slots.weight, np.ones(rows)] @ gradient, size, 0.5)
    assert len(expected) == size
    memory, task = FeatureRows(features[:size]), FeatureRows(features[size:])
    outputs: Any = ModelOutputs(lambda x: (x, layer(x)), task, rows, memory, size)  # type: ignore[arg-type]
    stored_logits = torch.cat([logits[:size], torch.zeros(1, 3)])
    overwritten, written = candidates.select(
        slots, np.ones(rows, np.int64), np.random.default_rng(0), outputs, stored_logits
    )
    kept = np.setdiff1d(np.arange(size), overwritten)
    selected = {int(slot): float(slots.weight[slot]) for slot in kept}
    selected |= {size + int(row): candidates.weights[row].item() for row in written}
    assert 0 < len(kept) < size
    assert selected == pytest.approx(dict(zip(expected, weights, strict=True)), rel=1e-4)


def test_gcr_loss_uses_sample_weights() -> None:
    specialist = GCR(SpecialistSettings(alpha=0.3, beta=0.6))
    net = GoldenNet().float()
    batch = Batch(wave(3, 4, k=0.3).float(), torch.tensor([0, 1, 2]))
    replay_batches = tuple(
        Batch(wave(2, 4, k=k).float(), torch.tensor([1, 0]), wave(2, 3, k=k).float(), weights=torch.tensor(w))
        for k, w in ((0.5, [3.0, 1.0]), (0.9, [2.0, 6.0]))
    )
    loss = specialist.loss(net, batch, replay_batches)
    first, last = replay_batches
    mse = ((net(first.x) - first.stored_logits) ** 2).mean(1)
    ce = F.cross_entropy(net(last.x), last.y, reduction="none")
    by_hand = (
        F.cross_entropy(net(batch.x), batch.y) + 0.3 * (3 * mse[0] + mse[1]) / 4 + 0.6 * (2 * ce[0] + 6 * ce[1]) / 8
    )
    assert torch.allclose(loss, by_hand)


def test_gcr_memory_is_balanced_and_holds_correctly_classified_samples() -> None:
    learner = trained_learner("gcr", tasks=3)
    counts = np.bincount(learner.memory.labels)
    assert counts.max() - counts.min() <= 1
    assert (learner.memory.slots.weight > 0).all()
    assert len(set(learner.memory.slots.weight)) > 1


@pytest.mark.parametrize("never", [{1}, {3}, {0, 1, 2, 3}])
def test_gcr_selects_from_all_samples_of_a_class_without_correct_ones(
    never: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, counts = tiny_stream(), []

    def rate(self: GradientCoresetCandidates, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return (~torch.isin(batch["y"], torch.tensor(list(never)))).double()

    def check_logits(event: str, learner: Learner, stage: str | None, epoch: int) -> None:
        if event == "on_memory_update":
            slots, task = learner.memory.slots, len(learner.tasks) - 1
            current = np.flatnonzero((slots.task == task) & np.isin(slots.label, list(never)))
            logits = learner.logits(stream.tasks[task].train)[slots.row[current]]
            assert learner.memory.logits is not None
            assert torch.allclose(learner.memory.logits[current], logits, atol=1e-5)
            counts.append(len(current))

    monkeypatch.setattr(GradientCoresetCandidates, "rate", rate)
    learner = tiny_learner("gcr", buffer=8, classes=4, callback=LambdaCallback(check_logits))
    for task in stream:
        learner.learn(task)
    assert any(counts)
    assert np.bincount(learner.memory.labels).tolist() == [2, 2, 2, 2]
    assert (learner.memory.slots.weight > 0).all()


# ---------------------------------------------------------------------------------------------------- all methods


@pytest.mark.parametrize("method", METHODS)
def test_slots_hold_the_raw_image_of_their_row(method: str) -> None:
    stream = tiny_stream(classes=6, tasks=3, each=9)
    learner = trained_learner(method, tasks=3)
    slots = learner.memory.slots
    assert_slots_hold_their_images(learner, stream)
    written = slots.written[: slots.count]
    assert ((written > 0) & (written <= slots.step)).all()


@pytest.mark.parametrize(("method", "stage"), [*((m, "specialist") for m in METHODS), ("er-t", "generalist")])
def test_interrupted_task_resumes_with_equal_weights_and_memory(method: str, stage: str, tmp_path: Path) -> None:
    stream = tiny_stream(classes=6, tasks=3, each=9)
    at = ("on_round_end", "specialist", 2) if stage == "specialist" else ("on_memory_update", None, 0)

    def save_when_reached(event: str, learner: Learner, name: str | None, epoch: int) -> None:
        if (event, name, epoch) == at and len(learner.tasks) == 2:
            learner.save(tmp_path)

    settings: dict[str, Any] = {"specialist__epochs": 3, "generalist": "tangent"}
    if method == "er-t":
        settings["specialist__options__bias_epochs"] = 3
    uninterrupted = tiny_learner(method, buffer=7, classes=6, callback=LambdaCallback(save_when_reached), **settings)
    for task in stream.tasks[:2]:
        uninterrupted.learn(task)
    again = itl.load(tmp_path, device="cpu")
    again.learn(stream.tasks[1])
    assert not differing_keys(learner_snapshot(uninterrupted), learner_snapshot(again))
    again.learn(stream.tasks[2])
    uninterrupted.learn(stream.tasks[2])
    assert not differing_keys(learner_snapshot(uninterrupted), learner_snapshot(again))


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("gss", {"memory__policy": "reservoir"}, r"gss works with one memory policy only; set memory\.policy=gss"),
        ("gcr", {"memory__policy": "stratified"}, r"gcr works with one memory policy only; set memory\.policy=gcr"),
        ("er", {"memory__policy": "gss"}, r"memory\.policy=gss compares gradients, which er does not"),
        ("er-t", {"specialist__options__decay": 1.5}, r"specialist\.options\.decay = 1\.5 is not valid"),
        ("gcr", {"memory__logits": False}, r"gcr replays stored logits.*set it to true"),
    ],
)
def test_unsuitable_memory_policy_is_a_user_error(method: str, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        tiny_learner(method, **settings).learn(tiny_stream().tasks[0])


def test_edits_and_weights_follow_images_when_the_memory_is_resized() -> None:
    learner = trained_learner("gmed", specialist__options__stride=5.0)
    memory = learner.memory
    assert memory.edits is not None
    edits, rows, weight = memory.edits.clone(), memory.slots.row.copy(), memory.slots.weight.copy()
    memory.keep(np.array([5, 2]), 3)
    memory.grow(4)
    assert memory.slots.row[:2].tolist() == rows[[5, 2]].tolist()
    assert memory.slots.weight[:2].tolist() == weight[[5, 2]].tolist()
    assert torch.equal(memory.edits[:2], edits[[5, 2]])
    assert memory.edits.shape[0] == memory.pixels.shape[0] == 5


def test_replay_from_empty_slots_has_valid_labels() -> None:
    """The warm-up of a captured step replays slots that are still empty."""
    learner = tiny_learner("er-t", buffer=7, classes=6)
    learner.prepare(tiny_stream(classes=6, tasks=3, each=9).tasks[0])
    memory = learner.memory
    memory.begin_task(18, {})
    assert memory.selector is not None
    step = OnlineSelectionStep(memory, memory.selector, Augment(padding=0, flip=False), 0, 6)
    draws = Augment(padding=0, flip=False).draw(np.random.default_rng(0), 4)
    replay = ReplayInputs(torch.arange(4), draws=(draws,))
    assert (memory.selector.slot_fields["label"][:4] < 0).all()
    labels = step.fill_in(replay, with_widths=False).y
    assert labels is not None
    assert (labels == 0).all()
