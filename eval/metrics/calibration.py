"""Whether a probability of 0.8 is right eight times of ten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.metrics.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Bin:
    """Outcomes of like confidence: how many, their mean confidence, and the share that was right."""

    count: int
    confidence: float
    accuracy: float


def bins(outcomes: Sequence[Outcome], count: int = 15, *, adaptive: bool = False) -> list[Bin]:
    """The bins of a reliability diagram, those that hold any, by rising confidence.

    Args:
        count: how many at most.
        adaptive: as many outcomes in each as in any other, give or take one, where even bins have even edges on [0, 1].
    """
    said, right = _arrays(outcomes)
    return [
        Bin(len(mine), float(said[mine].mean()), float(right[mine].mean())) for mine in _places(said, count, adaptive)
    ]


def expected_calibration_error(outcomes: Sequence[Outcome], count: int = 15, *, adaptive: bool = False) -> float:
    """Mean distance between a bin's confidence and its accuracy, weighted by its outcomes.

    Naeini et al. (2015), "Obtaining well calibrated probabilities using Bayesian binning".
    """
    said, right = _arrays(outcomes)
    return _error(said, right, _places(said, count, adaptive))


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The calibration error that a perfectly calibrated model of these confidences would show by luck."""

    mean: float
    high: float
    """95 % of such models show less."""


def noise_floor(
    outcomes: Sequence[Outcome], count: int = 15, *, adaptive: bool = False, draws: int = 1000, seed: int = 0
) -> NoiseFloor:
    """Draw whether each answer is right with its own confidence as the chance, over and over.

    An error below the floor says nothing against a model, and the difference of two such says nothing for either.
    """
    said, _ = _arrays(outcomes)
    places = _places(said, count, adaptive)
    rng = np.random.default_rng(seed)
    errors = [_error(said, rng.random(len(said)) < said, places) for _ in range(draws)]
    return NoiseFloor(float(np.mean(errors)), float(np.quantile(errors, 0.95)))


def _arrays(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, np.ndarray]:
    if not outcomes:
        raise ValueError("a metric of no outcomes is not defined")
    return np.array([each.confidence for each in outcomes]), np.array([each.is_right for each in outcomes])


def _places(said: np.ndarray, count: int, adaptive: bool) -> list[np.ndarray]:
    """The members of every bin that has any. Even bins are open below and closed above, as in the paper."""
    if adaptive:
        return [part for part in np.array_split(np.argsort(said, kind="stable"), count) if len(part)]
    place = np.clip(np.ceil(said * count).astype(int) - 1, 0, count - 1)
    return [np.flatnonzero(place == one) for one in np.unique(place)]


def _error(said: np.ndarray, right: np.ndarray, places: list[np.ndarray]) -> float:
    return float(sum(len(mine) * abs(said[mine].mean() - right[mine].mean()) for mine in places) / len(said))
