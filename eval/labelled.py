"""Accuracy on states whose questions have known answers, beside what chance alone would give.

A file of items holds one a line: ``id``, ``domain``, ``state``, ``questions`` in their wire form, and ``expected``, the
right answer by question id: an option's name, true or false, or a level's number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sysone_jax.decider import Decider
from sysone_jax.questions import Limits, Question, parse_questions

DECISIONS = Path(__file__).parent / "data" / "decisions.jsonl"
"""27 short states of everyday work with 47 questions, written by hand."""


@dataclass(frozen=True, slots=True)
class Item:
    """One state with its questions. ``expected`` maps each question's id to the index of the right option."""

    name: str
    domain: str
    state: Any
    questions: Mapping[str, Question]
    expected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of how many questions were right; ``chance`` is how many guessing would get."""

    right: int = 0
    count: int = 0
    chance: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.right / self.count

    @property
    def margin(self) -> float:
        """Half the width of the 95 % interval of a proportion: 1.96 sqrt(p (1 - p) / n)."""
        return 1.96 * math.sqrt(self.accuracy * (1 - self.accuracy) / self.count)

    @property
    def chance_accuracy(self) -> float:
        return self.chance / self.count

    def plus(self, right: bool, options: int) -> Tally:
        return Tally(self.right + right, self.count + 1, self.chance + 1 / options)


def load_items(path: Path = DECISIONS) -> list[Item]:
    """The items of a file, in its order.

    Raises:
        InputError: a question is malformed.
        ValueError: an expected answer is none of the question's options.
    """
    return [_item(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def evaluate(decider: Decider, items: Iterable[Item], progress: Callable[[], None] = lambda: None) -> dict[str, Tally]:
    """Ask all questions of a state together, one request a state.

    Args:
        progress: called after each state.

    Returns:
        Tallies by question type, those that occur, and under ``all``. The answer is the likeliest option, the first of
        equals.
    """
    tallies: dict[str, Tally] = {"all": Tally()}
    for item in items:
        decision = decider.decide(state=item.state, questions=item.questions)
        for name, question in item.questions.items():
            probabilities = decision.reads[name].probabilities
            right = probabilities.index(max(probabilities)) == item.expected[name]
            for group in ("all", question.type):
                tallies[group] = tallies.get(group, Tally()).plus(right, len(probabilities))
        progress()
    return tallies


def _item(raw: Mapping[str, Any]) -> Item:
    questions = parse_questions(raw["questions"], Limits(questions=None, options=None, levels=None, min_levels=1))
    return Item(
        name=raw["id"],
        domain=raw["domain"],
        state=raw["state"],
        questions=questions,
        expected={name: _index(question, raw["expected"][name]) for name, question in questions.items()},
    )


def _index(question: Question, expected: Any) -> int:
    match question.type:
        case "noul" if isinstance(expected, bool):
            return 0 if expected else 1
        case "score" if isinstance(expected, int) and 0 <= expected < len(question.options):
            return expected
        case "choice" if isinstance(expected, str):
            return [option.name for option in question.options].index(expected)
    raise ValueError(f"{expected!r} is no answer to a {question.type} question with {len(question.options)} options")
