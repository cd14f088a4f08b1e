"""Differences between groups of runs, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping

from itl.results.seed_groups import MeanStd, SeedGroup


def paired_values(above: Mapping[int, float], below: Mapping[int, float]) -> MeanStd:
    """Mean and standard deviation of `above` minus `below`, values by seed, over the seeds that both have."""
    return MeanStd.of([above[seed] - below[seed] for seed in sorted(above.keys() & below.keys())])


def paired_difference(below: SeedGroup, above: SeedGroup, measure: str) -> MeanStd:
    """Mean and standard deviation of `above` minus `below` over the seeds that both have.

    Groups without a common seed give the difference of their means, without a deviation.
    """
    first, second = (
        dict(zip(group.seeds, (result.get(measure) for result in group.results), strict=True))
        for group in (below, above)
    )
    differences = [
        second[seed] - first[seed]
        for seed in first.keys() & second.keys()
        if first[seed] is not None and second[seed] is not None
    ]
    if differences:
        return MeanStd.of(differences)
    low, high = below.mean(measure).mean, above.mean(measure).mean
    return MeanStd(None if low is None or high is None else high - low, None, 0)


def gain_text(gained: MeanStd, digits: int = 1) -> str:
    """A difference ± half its 95 % confidence interval, if there is one."""
    if gained.mean is None:
        return "–"
    return f"{gained.mean:+.{digits}f}" + ("" if gained.interval is None else f" ± {gained.interval:.{digits}f}")
