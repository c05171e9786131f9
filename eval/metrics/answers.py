"""Metrics of answers, whatever their type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from eval.metrics.outcome import Outcome

LEAST_PROBABILITY = float(np.finfo(np.float64).eps)
"""A right answer that got less counts as this much in the log loss, as in scikit-learn: one 0 is not the end of all."""


def accuracy(outcomes: Sequence[Outcome]) -> float:
    """Share of questions whose likeliest option, the first of equals, is the right one."""
    return sum(each.is_right for each in _some(outcomes)) / len(outcomes)


def macro_f1(outcomes: Sequence[Outcome]) -> float:
    """Mean over labels, those right or picked at least once, of ``2 hits / (times right + times picked)``."""
    right, picked, hits = Counter[str](), Counter[str](), Counter[str]()
    for each in _some(outcomes):
        right[each.label(each.right)] += 1
        picked[each.label(each.picked)] += 1
        hits[each.label(each.right)] += each.is_right
    return math.fsum(2 * hits[label] / (right[label] + picked[label]) for label in right | picked) / len(right | picked)


def log_loss(outcomes: Sequence[Outcome]) -> float:
    """Mean of ``-ln p`` of the right option, in nats."""
    return math.fsum(
        -math.log(max(each.probabilities[each.right], LEAST_PROBABILITY)) for each in _some(outcomes)
    ) / len(outcomes)


def brier(outcomes: Sequence[Outcome]) -> float:
    """Mean over questions of the squared distance from the certain right answer, over all options: from 0 to 2.

    Brier (1950), "Verification of forecasts expressed in terms of probability", equation 2.
    """
    return math.fsum(
        math.fsum((p - (option == each.right)) ** 2 for option, p in enumerate(each.probabilities))
        for each in _some(outcomes)
    ) / len(outcomes)


@dataclass(frozen=True, slots=True)
class BrierParts:
    """``mean (p - y)^2 = reliability - resolution + uncertainty + within``, of one event's probabilities.

    Attributes:
        reliability: how far bins' probabilities lie from how often the event came; 0 is calibrated.
        resolution: how far bins' frequencies lie from the frequency of all; more is sharper.
        uncertainty: of the event itself.
        within: what the bins hide, variance of their probabilities less twice their covariance with the event; 0 where
            a bin is one probability.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within: float

    @property
    def score(self) -> float:
        return self.reliability - self.resolution + self.uncertainty + self.within


def brier_parts(probabilities: Sequence[float], happened: Sequence[bool], bins: int | None = None) -> BrierParts:
    """Murphy (1973), "A new vector partition of the probability score"; the last part after Stephenson et al. (2008).

    Args:
        probabilities: of an event, such as that the answer picked is right.
        happened: whether it came.
        bins: even ones over [0, 1]; None is a bin for each probability that occurs.
    """
    p, y = _event(probabilities, happened)
    places = np.minimum((p * bins).astype(int), bins - 1) if bins else np.unique(p, return_inverse=True)[1]
    overall = y.mean()
    reliability = resolution = within = 0.0
    for place in np.unique(places):
        mine = places == place
        said, came, share = p[mine].mean(), y[mine].mean(), mine.mean()
        reliability += share * (said - came) ** 2
        resolution += share * (came - overall) ** 2
        within += share * (((p[mine] - said) ** 2).mean() - 2 * ((p[mine] - said) * (y[mine] - came)).mean())
    return BrierParts(float(reliability), float(resolution), float(overall * (1 - overall)), float(within))


def auroc(probabilities: Sequence[float], happened: Sequence[bool]) -> float:
    """The chance that an event that came was given more than one that did not, ties counting half (Mann and Whitney).

    Raises:
        ValueError: the event came always or never.
    """
    p, y = _event(probabilities, happened)
    came = int(y.sum())
    if came in (0, len(y)):
        raise ValueError("auroc needs an event that came at least once and stayed away at least once")
    return float((rankdata(p)[y == 1].sum() - came * (came + 1) / 2) / (came * (len(y) - came)))


def _event(probabilities: Sequence[float], happened: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(probabilities, float), np.asarray(happened, float)
    if p.ndim != 1 or p.shape != y.shape or not p.size:
        raise ValueError(f"as many probabilities as events are needed, not {p.shape} and {y.shape}")
    return p, y


def _some(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    if not outcomes:
        raise ValueError("a metric of no outcomes is not defined")
    return outcomes
