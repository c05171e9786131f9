"""Metrics against scikit-learn, against published examples, and against what they must do by their definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn

from eval.metrics import Outcome
from eval.metrics.answers import accuracy, auroc, brier, brier_parts, log_loss, macro_f1
from eval.metrics.calibration import bins, expected_calibration_error, noise_floor
from eval.metrics.ordinal import mean_absolute_error, quadratic_weighted_kappa, ranked_probability_score
from eval.metrics.resampling import bootstrap, mcnemar, paired_difference
from eval.metrics.selective import area_under_risk_coverage, coverage_at_risk, risk_coverage

TIGHT = 1e-9


def draw(count: int, options: int, seed: int = 0, sharpness: float = 1.5) -> list[Outcome]:
    """Outcomes of a model that is right as often as it says."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(options, 1 / sharpness), count)
    return [Outcome(tuple(row / row.sum()), int(rng.choice(options, p=row / row.sum()))) for row in rows]


def arrays(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right options, probabilities [outcomes, options], and picked options."""
    return (
        np.array([each.right for each in outcomes]),
        np.array([each.probabilities for each in outcomes]),
        np.array([each.picked for each in outcomes]),
    )


@pytest.mark.parametrize("options", [2, 3, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_answers_equal_scikit_learn(options: int, seed: int):
    outcomes = draw(400, options, seed)
    right, p, picked = arrays(outcomes)
    names = list(range(options))
    assert accuracy(outcomes) == pytest.approx(sklearn.accuracy_score(right, picked), abs=TIGHT)
    assert macro_f1(outcomes) == pytest.approx(sklearn.f1_score(right, picked, average="macro"), abs=TIGHT)
    assert log_loss(outcomes) == pytest.approx(sklearn.log_loss(right, p, labels=names), abs=TIGHT)
    sure, came = p.max(axis=1), picked == right
    assert auroc(sure, came) == pytest.approx(sklearn.roc_auc_score(came, sure), abs=TIGHT)
    assert brier_parts(sure, came).score == pytest.approx(sklearn.brier_score_loss(came, sure), abs=TIGHT)
    assert quadratic_weighted_kappa(outcomes, options) == pytest.approx(
        sklearn.cohen_kappa_score(right, picked, weights="quadratic", labels=names), abs=TIGHT
    )
    if options == 2:
        assert brier(outcomes) == pytest.approx(2 * sklearn.brier_score_loss(right, p[:, 1]), abs=TIGHT)
        assert ranked_probability_score(outcomes) == pytest.approx(brier(outcomes) / 2, abs=TIGHT)


def test_brier_of_a_published_forecast():
    """Brier (1950), table 1: ten forecasts of rain, and on which days it came; his score for them is 0.19."""
    rain = [0.7, 0.9, 0.8, 0.4, 0.2, 0.0, 0.0, 0.0, 0.0, 0.1]
    came = [False, True, True, True, False, False, False, False, False, False]
    outcomes = [Outcome((p, 1 - p), 0 if wet else 1) for p, wet in zip(rain, came, strict=True)]
    assert brier(outcomes) == pytest.approx(0.19, abs=TIGHT)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.none() | st.integers(1, 20))
def test_the_parts_of_brier_are_the_whole(drawn: list[tuple[float, bool]], count: int | None):
    p, came = zip(*drawn, strict=True)
    parts = brier_parts(p, came, count)
    assert parts.score == pytest.approx(np.mean((np.array(p) - np.array(came)) ** 2), abs=TIGHT)
    assert parts.reliability >= 0 and parts.resolution >= 0
    if count is None:
        assert parts.within == pytest.approx(0, abs=1e-12)


def test_ties_count_half():
    assert auroc([0.5, 0.5, 0.5], [True, False, True]) == 0.5
    assert auroc([0.1, 0.2, 0.2], [False, True, False]) == 0.75
    with pytest.raises(ValueError, match="at least once"):
        auroc([0.1, 0.2], [True, True])


def test_labels_join_questions_of_many_options():
    outcomes = [
        Outcome((0.6, 0.4), 0, ("yes", "no")),
        Outcome((0.1, 0.2, 0.7), 1, ("a", "yes", "b")),
        Outcome((0.3, 0.7), 1, ("yes", "no")),
    ]
    # yes: right twice, picked once, one hit; no: once each, a hit; b: picked once and never right
    assert macro_f1(outcomes) == pytest.approx((2 / 3 + 1 + 0) / 3, abs=TIGHT)


def test_a_right_answer_of_no_probability_is_not_the_end():
    assert log_loss([Outcome((1.0, 0.0), 1)]) == pytest.approx(-math.log(np.finfo(float).eps), abs=TIGHT)


def test_calibration_error_by_hand():
    """Three answers at 0.6, one right of them; one at 0.9, right: 3/4 |0.6 - 1/3| + 1/4 |0.9 - 1|."""
    outcomes = [Outcome((0.6, 0.4), 0), Outcome((0.6, 0.4), 1), Outcome((0.4, 0.6), 0), Outcome((0.9, 0.1), 0)]
    assert expected_calibration_error(outcomes, 10) == pytest.approx(0.75 * (0.6 - 1 / 3) + 0.25 * 0.1, abs=TIGHT)
    assert [(each.count, each.accuracy) for each in bins(outcomes, 10)] == [(3, pytest.approx(1 / 3)), (1, 1.0)]
    halves = bins(outcomes, 2, adaptive=True)
    assert [each.count for each in halves] == [2, 2]


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_noise_floor_holds_a_calibrated_model_and_not_an_overconfident_one(adaptive: bool):
    calibrated = draw(500, 3)
    floor = noise_floor(calibrated, adaptive=adaptive, draws=300)
    assert 0 < floor.mean < floor.high
    assert expected_calibration_error(calibrated, adaptive=adaptive) < floor.high
    sharper = []
    for each in calibrated:
        p = np.array(each.probabilities) ** 3
        sharper.append(Outcome(tuple(p / p.sum()), each.right))
    assert expected_calibration_error(sharper, adaptive=adaptive) > 2 * noise_floor(sharper, adaptive=adaptive).high


def test_scores_by_hand():
    outcomes = [Outcome((0.2, 0.3, 0.5), 2), Outcome((1.0, 0.0, 0.0), 1)]
    assert mean_absolute_error(outcomes) == pytest.approx((0.7 + 1.0) / 2, abs=TIGHT)
    assert ranked_probability_score(outcomes) == pytest.approx(((0.04 + 0.25) / 2 + 1 / 2) / 2, abs=TIGHT)
    assert ranked_probability_score([Outcome((1.0,), 0)]) == 0
    with pytest.raises(ValueError, match="not defined"):
        quadratic_weighted_kappa([Outcome((1.0, 0.0), 0)], 2)
    with pytest.raises(ValueError, match="more than 2 levels"):
        quadratic_weighted_kappa(outcomes, 2)


def test_risk_and_coverage_by_hand():
    outcomes = [
        Outcome((0.9, 0.1), 0),
        Outcome((0.8, 0.2), 1),
        Outcome((0.8, 0.2), 0),
        Outcome((0.6, 0.4), 1),
    ]
    assert risk_coverage(outcomes) == [(0.9, 0.25, 0.0), (0.8, 0.75, pytest.approx(1 / 3)), (0.6, 1.0, 0.5)]
    assert area_under_risk_coverage(outcomes) == pytest.approx(0.5 / 3 + 0.5 * 0.25, abs=TIGHT)
    best = coverage_at_risk(outcomes, 0.34)
    assert best is not None and best.coverage == 0.75
    assert coverage_at_risk(outcomes[3:], 0.1) is None


def test_an_interval_covers_as_often_as_it_says():
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        outcomes = [Outcome((1.0, 0.0), int(rng.random() > 0.7)) for _ in range(80)]
        interval = bootstrap(accuracy, outcomes, draws=200, seed=seed)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= 0.7 <= interval.high
    assert 86 <= covered <= 99


def test_groups_widen_an_interval_whose_questions_go_together():
    outcomes = [Outcome((1.0, 0.0), number // 8 % 2) for number in range(160)]
    apart = bootstrap(accuracy, outcomes, draws=300)
    together = bootstrap(accuracy, outcomes, groups=[number // 8 for number in range(160)], draws=300)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_two_models_are_told_apart_only_where_they_differ():
    right = Outcome((0.9, 0.1), 0), Outcome((0.1, 0.9), 0)
    better = [right[number % 10 == 0] for number in range(200)]
    worse = [right[number % 4 == 0] for number in range(200)]
    found = paired_difference(accuracy, better, worse, draws=300)
    assert found.interval.value == pytest.approx(0.15) and found.interval.low > 0 and found.p_value < 0.01
    same = paired_difference(accuracy, better, better, draws=100)
    assert (same.interval.value, same.p_value) == (0, 1)
    assert mcnemar(better, worse) < 0.001 and mcnemar(better, better) == 1
    with pytest.raises(ValueError, match="the same questions"):
        paired_difference(accuracy, better, worse[1:])


def test_mcnemar_is_the_sign_test():
    """Nine questions that the first alone got right and one the other way: 2 (1 + 10) / 2^10."""
    hit, miss = Outcome((0.9, 0.1), 0), Outcome((0.1, 0.9), 0)
    first, second = [hit] * 9 + [miss] + [hit] * 5, [miss] * 9 + [hit] + [hit] * 5
    assert mcnemar(first, second) == pytest.approx(22 / 1024, abs=TIGHT)


@pytest.mark.parametrize(
    ("probabilities", "right"), [((), 0), ((0.5, 0.4), 0), ((1.5, -0.5), 0), ((math.nan, 1.0), 0), ((1.0,), 1)]
)
def test_an_outcome_that_cannot_be(probabilities: tuple[float, ...], right: int):
    with pytest.raises(ValueError):
        Outcome(probabilities, right)


@pytest.mark.parametrize(
    "metric",
    [accuracy, macro_f1, log_loss, brier, expected_calibration_error, mean_absolute_error, risk_coverage],
)
def test_nothing_has_no_metric(metric):
    with pytest.raises(ValueError, match="no outcomes"):
        metric([])
