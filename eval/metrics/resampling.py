"""How sure a metric is, and whether two models that answered the same questions differ in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from eval.metrics.outcome import Outcome

Metric = Callable[[Sequence[Outcome]], float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A metric's value, and the bounds that hold the middle ``level`` of its resampled values."""

    value: float
    low: float
    high: float
    level: float


def bootstrap(
    metric: Metric,
    outcomes: Sequence[Outcome],
    *,
    groups: Sequence[object] | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap (Efron and Tibshirani 1993, chapter 13).

    Args:
        groups: of each outcome, such as the state it was asked about. What is drawn is a whole group: questions about
            one state are right and wrong together more often than apart.
    """
    rng = np.random.default_rng(seed)
    members = _members(groups if groups is not None else range(len(outcomes)))
    values = [metric([outcomes[at] for at in _drawn(members, rng)]) for _ in range(draws)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(metric(outcomes), float(low), float(high), level)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more the first of two models has of a metric, with its interval.

    Attributes:
        p_value: how often labels swapped at random between the two give as large a difference, either way.
    """

    interval: Interval
    p_value: float


def paired_difference(
    metric: Metric,
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    *,
    groups: Sequence[object] | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Two models on the same questions: a bootstrap of the difference, and a permutation test that swaps per group.

    Raises:
        ValueError: the two did not answer the same questions.
    """
    if [each.right for each in first] != [each.right for each in second]:
        raise ValueError("the two models must have answered the same questions, in the same order")
    rng = np.random.default_rng(seed)
    members = _members(groups if groups is not None else range(len(first)))
    value = metric(first) - metric(second)
    drawn = []
    for _ in range(draws):
        places = _drawn(members, rng)
        drawn.append(metric([first[at] for at in places]) - metric([second[at] for at in places]))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    as_large = 0
    for _ in range(draws):
        one, other = list(first), list(second)
        for places, swap in zip(members, rng.random(len(members)) < 0.5, strict=True):
            if swap:
                for at in places:
                    one[at], other[at] = other[at], one[at]
        as_large += abs(metric(one) - metric(other)) >= abs(value) - 1e-12
    return Difference(Interval(value, float(low), float(high), level), (as_large + 1) / (draws + 1))


def mcnemar(first: Sequence[Outcome], second: Sequence[Outcome]) -> float:
    """The exact test's two-sided p value: of questions that one alone got right, is it as often the one as the other?

    McNemar (1947), "Note on the sampling error of the difference between correlated proportions".
    """
    if [each.right for each in first] != [each.right for each in second]:
        raise ValueError("the two models must have answered the same questions, in the same order")
    pairs = [(one.is_right, other.is_right) for one, other in zip(first, second, strict=True)]
    alone = pairs.count((True, False)), pairs.count((False, True))
    return float(binomtest(alone[0], sum(alone)).pvalue) if sum(alone) else 1.0


def _members(groups: Sequence[object]) -> list[list[int]]:
    found: dict[object, list[int]] = {}
    for at, group in enumerate(groups):
        found.setdefault(group, []).append(at)
    return list(found.values())


def _drawn(members: list[list[int]], rng: np.random.Generator) -> list[int]:
    return [at for group in rng.integers(len(members), size=len(members)) for at in members[group]]
