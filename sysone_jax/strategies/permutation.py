"""Permutation averaging: a choice is read a second time with its options reversed, and each option gets its mean.

It evens out what a model prefers because of where it stands. Nouls, scores and choices of one option are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sysone_jax.answers import Read
from sysone_jax.questions import Choice, Question
from sysone_jax.strategies.request import Request


def questions_and_reversed(request: Request) -> list[Mapping[str, Question]]:
    """What a request's questions are read as: as they are, and, where it is asked for, its choices once more."""
    if not request.permutation_average:
        return [request.questions]
    choices = {
        qid: Choice(question.instructions, dict(reversed([*question.criteria.items()])))
        for qid, question in request.questions.items()
        if isinstance(question, Choice) and len(question.criteria) > 1
    }
    return [request.questions, choices]


def averaged(asked: Sequence[Mapping[str, Any]], reads: Sequence[Read]) -> dict[str, Read]:
    """Question id -> read.

    Args:
        asked: what ``questions_and_reversed`` gives, or mappings with the same keys.
        reads: one for each key of each, in order.
    """
    following = iter(reads)
    found = {qid: next(following) for qid in asked[0]}
    for reversed_choices in asked[1:]:
        for qid in reversed_choices:
            found[qid] = _mean(found[qid], next(following))
    return found


def _mean(read: Read, reverse: Read) -> Read:
    pairs = zip(read.probabilities, reversed(reverse.probabilities), strict=True)
    return Read(
        tuple((one + other) / 2 for one, other in pairs),
        label_mass=(read.label_mass + reverse.label_mass) / 2,
        argmax_is_label=read.argmax_is_label and reverse.argmax_is_label,
    )
