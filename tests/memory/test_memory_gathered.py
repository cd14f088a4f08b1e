"""Candidates gathered during a task: a weighted reservoir without replacement, held to enumeration."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from itl.engine.device import Engine
from itl.engine.keyed_random import generator
from itl.memory import PolicyOptions, Slots
from itl.memory.candidates import Candidates
from itl.memory.policies.coreset import Coreset
from itl.memory.policies.entropy import Entropy, entropy
from itl.memory.policies.ring import ring
from itl.memory.policies.stratified import merge

CPU = Engine(torch.device("cpu"))


def inclusion(weights: list[float], size: int) -> np.ndarray:
    """The chance of each sample to be among the first `size` drawn one after another, by weight; every order counts."""
    out, n = np.zeros(len(weights)), len(weights)
    for order in permutations(range(n), size):
        chance, left = 1.0, sum(weights)
        for k in order:
            chance *= weights[k] / left
            left -= weights[k]
        out[list(order)] += chance
    return out


class Weighed(Candidates):
    """Samples with given rates."""

    rates = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5], dtype=torch.float64)

    def rate(self, logits: torch.Tensor | None, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.rates[batch["row"]]


def offer(held: Candidates, rng: np.random.Generator, rows: np.ndarray, logits: torch.Tensor | None = None) -> None:
    inputs = held.draw(rng, rows, None)
    held.observe(logits, {name: torch.from_numpy(array) for name, array in inputs.items()})


@pytest.mark.parametrize("epochs", [1, 3])
def test_inclusion_probabilities_of_the_weighted_reservoir_match_enumeration(epochs: int) -> None:
    """Over several epochs too: the rates add up, which changes no chance when all are offered equally often."""
    runs, size = 2000, 2
    counts = np.zeros(5)
    for run in range(runs):
        held, rng = Weighed(5, None, PolicyOptions(), CPU), generator("inclusion", run, epochs)
        for _ in range(epochs):
            order = rng.permutation(5)
            for batch in (order[:3], order[3:]):
                offer(held, rng, batch)
        counts[held.ranked()[:size]] += 1
    expected = inclusion(Weighed.rates.tolist(), size)
    spread = np.sqrt(expected * (1 - expected) / runs)
    assert (abs(counts / runs - expected) < 4 * spread).all(), (counts / runs, expected)


def test_entropys_weights_are_the_papers() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    for temperature in (0.5, 1.0, 4.0):
        by_hand = []
        for row in logits.tolist():
            p = np.exp(np.array(row) / temperature)
            p /= p.sum()
            by_hand.append(-(p * np.log(p)).sum())
        assert np.allclose(entropy(logits, temperature).numpy(), by_hand)
        held = Entropy(3, None, PolicyOptions(temperature=temperature), CPU)
        assert np.allclose(held.rate(logits, {}).numpy(), np.array(by_hand) / sum(by_hand))


def test_a_certain_prediction_is_hardly_ever_a_candidate() -> None:
    held = Entropy(4, None, PolicyOptions(), CPU)
    logits = torch.tensor([[50.0, 0.0], [0.1, 0.0], [0.0, 0.2], [0.0, 0.3]])
    offer(held, generator("certain"), np.arange(4), logits)
    assert held.ranked().tolist()[-1] == 0


def test_what_was_said_and_weighed_when_the_clock_struck_is_kept() -> None:
    held = Coreset(3, 2, PolicyOptions(), CPU)
    clocks, said = torch.tensor([5.0, 1.0], dtype=torch.float64), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    first = {"row": torch.tensor([0, 1]), "clock": clocks, "weight": torch.tensor([2.0, 3.0])}
    held.observe(said, first)
    held.observe(-said, {**first, "clock": torch.tensor([4.0, 6.0], dtype=torch.float64), "weight": torch.ones(2) * 9})
    assert held.keys.tolist() == [1 / 5, 1 / 2, 0]
    assert held.weights.tolist() == [9.0, 3.0, 1.0]
    assert held.logits is not None
    assert held.logits.tolist() == [[-1.0, -2.0], [3.0, 4.0], [0.0, 0.0]]
    assert held.ranked().tolist() == [1, 0]  # the third was never offered


def test_only_the_present_coreset_is_offered_and_its_weights_have_a_mean_of_one() -> None:
    held = Coreset(6, None, PolicyOptions(), CPU)
    chosen = np.array([0, 4.0, 0, 1.0, 1.0, 0])
    inputs = held.draw(generator("draw"), np.array([3, 0, 1, 5]), chosen)
    assert np.isfinite(inputs["clock"]).tolist() == [True, False, True, False]
    assert inputs["weight"].tolist() == [0.5, 0, 2.0, 0]
    assert not held.present.any()  # nothing holds before the epoch is trained
    held.settle(chosen)
    later = held.draw(generator("later"), np.array([4, 2]), None)
    assert np.isfinite(later["clock"]).tolist() == [True, False]


def test_merging_keeps_classes_balanced_and_takes_the_best_ranked() -> None:
    slots, labels = Slots.empty(8), np.array([0, 1] * 20)
    ranked = np.r_[np.arange(20, 40), np.arange(20)]
    targets, rows = merge(slots, labels, generator("merge"), ranked)
    assert sorted(rows) == list(range(20, 28))
    slots.write(targets, labels[rows], 0, rows, 4)
    targets, rows = merge(slots, labels + 2, generator("merge", 2), ranked)
    assert sorted(rows) == list(range(20, 24))
    slots.write(targets, labels[rows] + 2, 1, rows, 4)
    assert np.bincount(slots.label).tolist() == [2, 2, 2, 2]


def test_a_herded_class_gives_up_what_it_ranked_last() -> None:
    slots, labels = Slots.empty(6), np.zeros(10, np.int64)
    ranked = np.array([7, 3, 5, 1, 0, 2, 4, 6, 8, 9])
    targets, rows = merge(slots, labels, generator("a"), ranked, last_first=True)
    slots.write(targets, labels[rows], 0, rows, 2)
    targets, rows = merge(slots, labels + 1, generator("b"), ranked, last_first=True)
    slots.write(targets, labels[rows] + 1, 1, rows, 2)
    assert slots.row[slots.label == 0].tolist() == [7, 3, 5]
    assert slots.row[slots.label == 1].tolist() == [7, 3, 5]


def test_a_ring_holds_the_last_samples_of_every_class() -> None:
    slots, seen = Slots.empty(9), []
    for task, classes in enumerate(([0, 1], [2], [1])):
        for part in range(30):
            labels = np.array([classes[part % len(classes)]])
            slots.clock += 1
            targets = ring(slots, labels, generator("unused"))
            slots.write(targets, labels, task, np.array([len(seen)]), 3)
            seen.append(int(labels[0]))
        shares = np.unique(slots.label[: slots.count], return_counts=True)[1]
        assert shares.max() - shares.min() <= 1
        for label in slots.classes():
            held = np.sort(slots.row[slots.label == label])
            last = np.flatnonzero(np.array(seen) == label)[-len(held) :]
            assert held.tolist() == last.tolist()


def test_a_ring_planned_for_many_samples_is_the_ring_of_one_after_another() -> None:
    labels = generator("ring").integers(0, 3, 40)
    at_once = ring(Slots.empty(7), labels, generator("unused"))
    slots = Slots.empty(7)
    for k, label in enumerate(labels):
        slots.clock += 1
        target = ring(slots, np.array([label]), generator("unused"))
        assert target[0] == at_once[k]
        slots.write(target, np.array([label]), 0, np.array([k]), 3)
