"""Whom a task is put to: a model in this process, a server, or a die.

All answer alike, with unrounded probabilities in the order of a question's options, so that what is measured does not
depend on the way there: a server of ours gives the bits that the same model gives in process.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from sysone_jax.client import Client as HttpClient
from sysone_jax.decider import Decider
from sysone_jax.errors import SysoneError
from sysone_jax.questions import Question, Score

Answers = dict[str, tuple[float, ...]]
"""Question id -> probabilities in the order of the question's options."""


class Client(Protocol):
    def describe(self) -> dict[str, Any]:
        """What the answers follow from, for a result to say: JSON, without secrets."""
        ...

    def answer(self, state: Any, questions: Mapping[str, Question]) -> Answers:
        """SysoneError when there is no answer."""
        ...


class InProcess:
    """A loaded model."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    def describe(self) -> dict[str, Any]:
        return {"kind": "model", "model": self._decider.name, **self._decider.reading}

    def answer(self, state: Any, questions: Mapping[str, Question]) -> Answers:
        return {
            name: read.probabilities
            for name, read in self._decider.decide(state=state, questions=questions).reads.items()
        }


class Server:
    """Any server that answers ``POST /v1/systemone``.

    Args:
        url: up to, and without, ``/v1/systemone``.
        model: the name to ask for; None leaves it out.
        api_key: sent as a bearer token.
    """

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        self._url, self._model = url, model
        self._client = HttpClient(url, model=model, api_key=api_key)

    def describe(self) -> dict[str, Any]:
        return {"kind": "server", "url": self._url, "model": self._model}

    def answer(self, state: Any, questions: Mapping[str, Question]) -> Answers:
        told = self._client.decide(state=state, questions=questions)
        try:
            return {name: _probabilities(question, told[name]) for name, question in questions.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise SysoneError(f"{self._url} gave an answer without {error}; is it a server of decisions?") from None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


class Dice:
    """Random probabilities: what a metric is worth by luck alone. The same question gets the same ones."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def describe(self) -> dict[str, Any]:
        return {"kind": "dice", "seed": self._seed}

    def answer(self, state: Any, questions: Mapping[str, Question]) -> Answers:
        answers = {}
        for name, question in questions.items():
            thrown = random.Random(f"{self._seed} {state} {name}")
            weights = [thrown.expovariate(1) for _ in question.options]
            answers[name] = tuple(weight / sum(weights) for weight in weights)
        return answers


def _probabilities(question: Question, answer: Mapping[str, Any]) -> tuple[float, ...]:
    told = answer["probabilities"]
    names = [option.name for option in question.options]
    if isinstance(question, Score):
        names = [str(level) for level in range(len(names))]
    return tuple(float(told[name]) for name in names)
