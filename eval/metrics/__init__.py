"""How good probabilities are: right or wrong, sharp or calibrated, and what it is worth to answer less often.

Every metric takes a sequence of ``Outcome``s, one for each question that was asked, in any order.

    answers.py      accuracy, macro F1, log loss, Brier score and its parts, AUROC
    calibration.py  expected calibration error, in even or equally filled bins, and its noise floor
    ordinal.py      scores: mean absolute error, quadratic weighted kappa, ranked probability score
    selective.py    risk against coverage
    resampling.py   intervals of a metric, and whether two models differ
"""

from eval.metrics.outcome import Outcome

__all__ = ["Outcome"]
