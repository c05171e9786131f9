"""Metrics of scores, whose options are levels in order: a near miss is less wrong than a far one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eval.metrics.outcome import Outcome


def mean_absolute_error(outcomes: Sequence[Outcome]) -> float:
    """Mean distance, in levels, between the expected level and the right one."""
    return _mean([abs(_expected(each) - each.right) for each in outcomes])


def quadratic_weighted_kappa(outcomes: Sequence[Outcome], levels: int) -> float:
    """Agreement of the likeliest level with the right one beyond chance, misses weighted by their square.

    ``1 - sum(w O) / sum(w E)``, with O the counts of (right, picked), E those that their margins would give, and
    w = (i - j)^2; Cohen (1968), "Weighted kappa".

    Raises:
        ValueError: a level beyond ``levels``, or one level alone is ever right and picked.
    """
    if max((len(each.probabilities) for each in outcomes), default=0) > levels:
        raise ValueError(f"a question has more than {levels} levels")
    counts = np.zeros((levels, levels))
    for each in outcomes:
        counts[each.right, each.picked] += 1
    distance = (np.arange(levels)[:, None] - np.arange(levels)[None, :]) ** 2
    by_chance = np.outer(counts.sum(1), counts.sum(0)) / counts.sum() if outcomes else counts
    if not (distance * by_chance).sum():
        raise ValueError("kappa is not defined where one level alone is right and picked")
    return float(1 - (distance * counts).sum() / (distance * by_chance).sum())


def ranked_probability_score(outcomes: Sequence[Outcome]) -> float:
    """Mean squared distance of the cumulated probabilities from the certain right level's, over K - 1 thresholds.

    From 0 to 1; with two levels it is half the Brier score. Epstein (1969), "A scoring system for probability forecasts
    of ranked categories", in Murphy's (1971) form.
    """
    return _mean([_ranked(each) for each in outcomes])


def _ranked(outcome: Outcome) -> float:
    thresholds = len(outcome.probabilities) - 1
    if not thresholds:
        return 0.0
    below = np.cumsum(outcome.probabilities)[:-1]
    return float(((below - (np.arange(thresholds) >= outcome.right)) ** 2).sum() / thresholds)


def _expected(outcome: Outcome) -> float:
    return math.fsum(level * p for level, p in enumerate(outcome.probabilities))


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("a metric of no outcomes is not defined")
    return math.fsum(values) / len(values)
