"""Whom a task is put to: a model in this process, a server, or a die.

All answer alike, with unrounded probabilities in the order of a question's options, so that what is measured does not
depend on the way there: a server of ours gives the bits that the same model gives in process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

from sysone_jax.decider import Decider
from sysone_jax.errors import SysoneError
from sysone_jax.questions import Choice, Noul, Question, Score

Answers = dict[str, tuple[float, ...]]
"""Question id -> probabilities in the order of the question's options."""

TRIES = 5
"""Of a request that a server is too busy for; whatever else it refuses is not asked again."""


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

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None, timeout: float = 120) -> None:
        import httpx

        self._url, self._model = url.rstrip("/"), model
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(headers=headers, timeout=timeout)
        self._broken = httpx.HTTPError

    def describe(self) -> dict[str, Any]:
        return {"kind": "server", "url": self._url, "model": self._model}

    def answer(self, state: Any, questions: Mapping[str, Question]) -> Answers:
        body = {"state": state, "questions": {name: wire(question) for name, question in questions.items()}}
        told = self._post(body | ({} if self._model is None else {"model": self._model}))
        try:
            return {name: _probabilities(question, told["answers"][name]) for name, question in questions.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise SysoneError(f"{self._url} gave an answer without {error}; is it a server of decisions?") from None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _post(self, body: Mapping[str, Any]) -> Any:
        for left in reversed(range(TRIES)):
            try:
                response = self._http.post(f"{self._url}/v1/systemone", json=body)
            except self._broken as error:
                raise SysoneError(f"{self._url} cannot be reached: {error}") from None
            if response.status_code not in (429, 503, 529) or not left:
                break
            time.sleep(min(30.0, float(response.headers.get("Retry-After", "1") or 1)))
        if response.status_code != 200:
            raise SysoneError(f"{self._url} answered {response.status_code}: {response.text[:300]}")
        try:
            return response.json()
        except ValueError:
            raise SysoneError(f"{self._url} gave no JSON; is it a server of decisions?") from None


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


def wire(question: Question) -> dict[str, Any]:
    """A question in its wire form."""
    criteria: Any = question.criteria
    match question:
        case Choice() | Noul():
            criteria = None if criteria is None else dict(criteria)
        case Score():
            criteria = list(criteria)
    shown = {"type": question.type, "instructions": question.instructions}
    return shown if criteria is None else {**shown, "criteria": criteria}


def _probabilities(question: Question, answer: Mapping[str, Any]) -> tuple[float, ...]:
    told = answer["probabilities"]
    names = [option.name for option in question.options]
    if isinstance(question, Score):
        names = [str(level) for level in range(len(names))]
    return tuple(float(told[name]) for name in names)
