"""From probabilities to answers: softmax on the host, five named confidences, and the answer's wire form.

``confidence`` means something else at every host of these models, so here each definition has a name. A probability is
never rounded, a choice is the first argmax of the probabilities beside it, and a value that is not finite is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sysone_jax.errors import InputError, NonFiniteError
from sysone_jax.questions import JSON, Choice, Noul, Question, Score

SUM_TOLERANCE = 1e-9
"""How far rounding in float64 may carry the sum of the probabilities from 1."""

MASS_TOLERANCE = 1e-6
"""How far rounding may carry a label mass above 1: it is a sum over a float32 softmax of a whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a model said about one question. What rounding carried above 1 is brought back to 1.

    Args:
        probabilities: one per option, in the order of ``question.options``; they sum to 1.
        label_mass: the probability that the model put on the labels across its whole vocabulary; 1 for a model that
            scores its options directly.
        argmax_is_label: whether the likeliest token of the whole vocabulary was one of the labels.

    Raises:
        NonFiniteError: a probability or the label mass is NaN or infinite.
        ValueError: no probabilities, a negative one, a sum that is not 1, or a label mass outside [0, 1].
    """

    probabilities: tuple[float, ...]
    label_mass: float = 1.0
    argmax_is_label: bool = True

    def __post_init__(self) -> None:
        probabilities = tuple(float(p) for p in self.probabilities)
        label_mass = float(self.label_mass)
        if not all(math.isfinite(p) for p in probabilities) or not math.isfinite(label_mass):
            raise NonFiniteError(f"a read is not finite: probabilities {probabilities}, label mass {label_mass}")
        if not probabilities:
            raise ValueError("a read needs at least one probability")
        if min(probabilities) < 0 or abs(math.fsum(probabilities) - 1) > SUM_TOLERANCE:
            raise ValueError(f"probabilities must be at least 0 and sum to 1, not {probabilities}")
        if not 0 <= label_mass <= 1 + MASS_TOLERANCE:
            raise ValueError(f"label mass must lie in [0, 1], not {label_mass}")
        object.__setattr__(self, "probabilities", tuple(min(1.0, p) for p in probabilities))
        object.__setattr__(self, "label_mass", min(1.0, label_mass))
        object.__setattr__(self, "argmax_is_label", bool(self.argmax_is_label))


def softmax(logits: ArrayLike) -> tuple[float, ...]:
    """Probabilities from the logits of one question, in float64.

    The sum is correctly rounded, so the order of the options does not change a single bit of the result.

    Args:
        logits: [O], natural-log scale, any offset; a list, a NumPy array or a JAX array.

    Returns:
        One probability per logit, as Python floats that sum to 1.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        ValueError: ``logits`` is empty or not one-dimensional.
    """
    array = np.asarray(logits, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"softmax needs the logits of one question, [O] with O >= 1, not shape {array.shape}")
    values: list[float] = array.tolist()
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise NonFiniteError(f"the logit of option {index} is {value}; the answer is refused")
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def _mass(question: Question, read: Read) -> float:
    """Share of the labels times label mass: the winner's probability over the whole vocabulary (vLLM, both routes)."""
    return max(read.probabilities) * read.label_mass


def _top(question: Question, read: Read) -> float:
    """The winner's share of the options (Clef's and Liquid d1's reference code)."""
    return max(read.probabilities)


def _distance(question: Question, read: Read) -> float:
    """How far from a uniform answer, 0, to a certain one, 1 (TypeSafe's API, and the hosts that follow it).

    A choice counts how far the winner stands above 1/n. A score counts how far the mass lies from its mode, in levels,
    over the mean distance of a uniform answer from the centre, floor(n^2 / 4) / n. At n = 2 the two agree: |2p - 1|.
    """
    p = read.probabilities
    n = len(p)
    if n == 1:
        return 1.0
    if isinstance(question, Score):
        mode = p.index(max(p))
        return 1 - n * math.fsum(p_i * abs(i - mode) for i, p_i in enumerate(p)) / (n * n // 4)
    return (n * max(p) - 1) / (n - 1)


def _entropy(question: Question, read: Read) -> float:
    """1 - H(p) / ln n (Decision 3.0's reference code, for choices and scores alike)."""
    p = read.probabilities
    if len(p) == 1:
        return 1.0
    return 1 + math.fsum(p_i * math.log(p_i) for p_i in p if p_i > 0) / math.log(len(p))


def _purity(question: Question, read: Read) -> float:
    """(sum p^2 - 1/n) / (1 - 1/n) (Clef as Cloudflare Workers AI serves it)."""
    p = read.probabilities
    n = len(p)
    if n == 1:
        return 1.0
    return (math.fsum(p_i * p_i for p_i in p) - 1 / n) / (1 - 1 / n)


_DEFINITIONS = {"mass": _mass, "top": _top, "distance": _distance, "entropy": _entropy, "purity": _purity}
CONFIDENCES = tuple(_DEFINITIONS)


def confidence(name: str, question: Question, read: Read) -> float:
    """The confidence of one answer, in [0, 1], by a named definition.

    Args:
        name: one of ``CONFIDENCES``. ``mass``: the winner's probability over the whole vocabulary. ``top``: its share
            of the options. ``distance``: TypeSafe's. ``entropy``: Decision 3.0's. ``purity``: Workers AI's.
        question: the question that was read.
        read: its read.

    Raises:
        InputError: there is no such definition.
        ValueError: the read has another number of options than the question.
    """
    if name not in CONFIDENCES:
        raise InputError(f"unknown confidence {name!r}; supported: {list(CONFIDENCES)}", field="confidence")
    _check_fits(question, read)
    return min(1.0, max(0.0, _DEFINITIONS[name](question, read)))


def answer(question: Question, read: Read, confidence_name: str = "mass") -> dict[str, JSON]:
    """The answer in the wire form of ``/v1/systemone``, as plain Python values and unrounded.

    Args:
        question: the question that was read.
        read: its read.
        confidence_name: which definition ``confidence`` follows, one of ``CONFIDENCES``.

    Returns:
        choice: ``{type, choice, probabilities by option name, confidence}``; ties go to the first option.
        noul: ``{type, noul: probability of yes, probabilities {yes, no}, confidence}``.
        score: ``{type, score: expected level, legend, probabilities by level index, confidence}``.

    Raises:
        InputError: there is no such confidence.
        ValueError: the read has another number of options than the question.
    """
    sure = confidence(confidence_name, question, read)
    p = read.probabilities
    names = [option.name for option in question.options]
    match question:
        case Choice():
            return {
                "type": "choice",
                "choice": names[p.index(max(p))],
                "probabilities": dict(zip(names, p, strict=True)),
                "confidence": sure,
            }
        case Noul():
            yes, no = p
            return {"type": "noul", "noul": yes, "probabilities": {"yes": yes, "no": no}, "confidence": sure}
        case Score():
            # Rounding may carry the sum of p past 1 by one bit; the level it gives never passes the last.
            expected = min(len(p) - 1.0, math.fsum(i * p_i for i, p_i in enumerate(p)))
            return {
                "type": "score",
                "score": expected,
                "legend": {str(i): name for i, name in enumerate(names)},
                "probabilities": {str(i): p_i for i, p_i in enumerate(p)},
                "confidence": sure,
            }


def _check_fits(question: Question, read: Read) -> None:
    if len(read.probabilities) != len(question.options):
        raise ValueError(f"{len(read.probabilities)} probabilities for {len(question.options)} options")
