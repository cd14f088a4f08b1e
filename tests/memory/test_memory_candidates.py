"""Tests of candidates collected during a task, of merging by class and of the ring buffer."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from itl.engine.device import Engine
from itl.engine.keyed_random import generator
from itl.memory import PolicyOptions, Slots
from itl.memory.candidates import Candidates
from itl.memory.class_balance import merge_by_class
from itl.memory.policies.coreset import CoresetCandidates
from itl.memory.policies.entropy import EntropyCandidates, entropy
from itl.memory.policies.ring import Ring

CPU = Engine(torch.device("cpu"))


def inclusion(weights: list[float], size: int) -> np.ndarray:
    """Probability of each sample to be among the first `size` drawn without replacement, by enumeration."""
    out, n = np.zeros(len(weights)), len(weights)
    for order in permutations(range(n), size):
        probability, left = 1.0, sum(weights)
        for k in order:
            probability *= weights[k] / left
            left -= weights[k]
        out[list(order)] += probability
    return out


class FixedRates(Candidates):
    """Candidates with given sampling weights."""

    rates = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5], dtype=torch.float64)

    def rate(self, logits: torch.Tensor | None, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.rates[batch["row"]]


def offer(
    candidates: Candidates, rng: np.random.Generator, rows: np.ndarray, logits: torch.Tensor | None = None
) -> None:
    inputs = candidates.draw_inputs(rng, rows, None)
    candidates.observe(logits, {name: torch.from_numpy(array) for name, array in inputs.items()})


@pytest.mark.parametrize("epochs", [1, 3])
def test_inclusion_probabilities_of_the_weighted_reservoir_match_enumeration(epochs: int) -> None:
    """Several epochs add up the rates, which changes no probability if all samples are offered equally often."""
    runs, size = 2000, 2
    counts = np.zeros(5)
    for run in range(runs):
        candidates, rng = FixedRates(5, None, PolicyOptions(), CPU), generator("inclusion", run, epochs)
        for _ in range(epochs):
            order = rng.permutation(5)
            for batch in (order[:3], order[3:]):
                offer(candidates, rng, batch)
        counts[candidates.ranking()[:size]] += 1
    expected = inclusion(FixedRates.rates.tolist(), size)
    standard_error = np.sqrt(expected * (1 - expected) / runs)
    assert (abs(counts / runs - expected) < 4 * standard_error).all(), (counts / runs, expected)


def test_entropy_rates_match_the_papers_formula() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    for temperature in (0.5, 1.0, 4.0):
        expected = []
        for row in logits.tolist():
            p = np.exp(np.array(row) / temperature)
            p /= p.sum()
            expected.append(-(p * np.log(p)).sum())
        assert np.allclose(entropy(logits, temperature).numpy(), expected)
        candidates = EntropyCandidates(3, None, PolicyOptions(temperature=temperature), CPU)
        assert np.allclose(candidates.rate(logits, {}).numpy(), np.array(expected) / sum(expected))


def test_entropy_ranks_a_certain_prediction_last() -> None:
    candidates = EntropyCandidates(4, None, PolicyOptions(), CPU)
    logits = torch.tensor([[50.0, 0.0], [0.1, 0.0], [0.0, 0.2], [0.0, 0.3]])
    offer(candidates, generator("certain"), np.arange(4), logits)
    assert candidates.ranking().tolist()[-1] == 0


def test_observe_keeps_logits_and_weights_of_the_earliest_arrival() -> None:
    candidates = CoresetCandidates(3, 2, PolicyOptions(), CPU)
    times, logits = torch.tensor([5.0, 1.0], dtype=torch.float64), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    first = {"row": torch.tensor([0, 1]), "clock": times, "weight": torch.tensor([2.0, 3.0])}
    candidates.observe(logits, first)
    candidates.observe(
        -logits, {**first, "clock": torch.tensor([4.0, 6.0], dtype=torch.float64), "weight": torch.ones(2) * 9}
    )
    assert candidates.keys.tolist() == [1 / 5, 1 / 2, 0]
    assert candidates.weights.tolist() == [9.0, 3.0, 1.0]
    assert candidates.logits is not None
    assert candidates.logits.tolist() == [[-1.0, -2.0], [3.0, 4.0], [0.0, 0.0]]
    assert candidates.ranking().tolist() == [1, 0]  # row 2 was never offered


def test_coreset_offers_only_its_members_with_mean_weight_one() -> None:
    candidates = CoresetCandidates(6, None, PolicyOptions(), CPU)
    coreset = np.array([0, 4.0, 0, 1.0, 1.0, 0])
    inputs = candidates.draw_inputs(generator("draw"), np.array([3, 0, 1, 5]), coreset)
    assert np.isfinite(inputs["clock"]).tolist() == [True, False, True, False]
    assert inputs["weight"].tolist() == [0.5, 0, 2.0, 0]
    assert not candidates.coreset.any()  # unchanged until the epoch is trained
    candidates.commit_epoch(coreset)
    later = candidates.draw_inputs(generator("later"), np.array([4, 2]), None)
    assert np.isfinite(later["clock"]).tolist() == [True, False]


def test_merge_by_class_balances_classes_and_takes_the_best_ranked() -> None:
    slots, labels = Slots.empty(8), np.array([0, 1] * 20)
    ranked = np.r_[np.arange(20, 40), np.arange(20)]
    targets, rows = merge_by_class(slots, labels, generator("merge"), ranked)
    assert sorted(rows) == list(range(20, 28))
    slots.write(targets, labels[rows], 0, rows, 4)
    targets, rows = merge_by_class(slots, labels + 2, generator("merge", 2), ranked)
    assert sorted(rows) == list(range(20, 24))
    slots.write(targets, labels[rows] + 2, 1, rows, 4)
    assert np.bincount(slots.label).tolist() == [2, 2, 2, 2]


def test_merge_by_class_with_evict_last_evicts_the_lowest_ranked() -> None:
    slots, labels = Slots.empty(6), np.zeros(10, np.int64)
    ranked = np.array([7, 3, 5, 1, 0, 2, 4, 6, 8, 9])
    targets, rows = merge_by_class(slots, labels, generator("a"), ranked, evict_last=True)
    slots.write(targets, labels[rows], 0, rows, 2)
    targets, rows = merge_by_class(slots, labels + 1, generator("b"), ranked, evict_last=True)
    slots.write(targets, labels[rows] + 1, 1, rows, 2)
    assert slots.row[slots.label == 0].tolist() == [7, 3, 5]
    assert slots.row[slots.label == 1].tolist() == [7, 3, 5]


def test_ring_holds_the_last_samples_of_every_class() -> None:
    slots, seen = Slots.empty(9), []
    for task, classes in enumerate(([0, 1], [2], [1])):
        for part in range(30):
            labels = np.array([classes[part % len(classes)]])
            slots.step += 1
            targets = Ring().plan_writes(slots, labels, generator("unused"))
            slots.write(targets, labels, task, np.array([len(seen)]), 3)
            seen.append(int(labels[0]))
        shares = np.unique(slots.label[: slots.count], return_counts=True)[1]
        assert shares.max() - shares.min() <= 1
        for label in slots.classes():
            rows = np.sort(slots.row[slots.label == label])
            last = np.flatnonzero(np.array(seen) == label)[-len(rows) :]
            assert rows.tolist() == last.tolist()


def test_ring_planned_at_once_equals_ring_planned_sample_by_sample() -> None:
    labels = generator("ring").integers(0, 3, 40)
    at_once = Ring().plan_writes(Slots.empty(7), labels, generator("unused"))
    slots = Slots.empty(7)
    for k, label in enumerate(labels):
        slots.step += 1
        target = Ring().plan_writes(slots, np.array([label]), generator("unused"))
        assert target[0] == at_once[k]
        slots.write(target, np.array([label]), 0, np.array([k]), 3)
