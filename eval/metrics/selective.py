"""What it is worth to leave the least confident answers to someone else.

El-Yaniv and Wiener (2010), "On the foundations of noise-free selective classification". Answers of equal confidence are
taken or left together: no threshold could part them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eval.metrics.outcome import Outcome


class Point(NamedTuple):
    """Answering from ``threshold`` up: the share of questions answered, and the share of those that is wrong."""

    threshold: float
    coverage: float
    risk: float


def risk_coverage(outcomes: Sequence[Outcome]) -> list[Point]:
    """The points of every threshold that occurs, from the most confident answers to all of them."""
    if not outcomes:
        raise ValueError("a metric of no outcomes is not defined")
    said = np.array([each.confidence for each in outcomes])
    order = np.argsort(-said, kind="stable")
    said = said[order]
    wrong = np.cumsum([not outcomes[place].is_right for place in order])
    last = np.flatnonzero(np.append(said[1:] != said[:-1], True))  # of each run of equal confidence
    return [Point(float(said[at]), (at + 1) / len(said), float(wrong[at] / (at + 1))) for at in last]


def area_under_risk_coverage(outcomes: Sequence[Outcome]) -> float:
    """Mean risk over coverages, each point standing for the questions that it adds."""
    points = risk_coverage(outcomes)
    before = [0.0, *(point.coverage for point in points)]
    return sum(point.risk * (point.coverage - start) for point, start in zip(points, before, strict=False))


def coverage_at_risk(outcomes: Sequence[Outcome], most: float) -> Point | None:
    """The point of the largest coverage whose risk is at most ``most``; None where there is none."""
    return max(
        (point for point in risk_coverage(outcomes) if point.risk <= most),
        key=lambda point: point.coverage,
        default=None,
    )
