"""Requests in the System One form: one that every dialect answers, and a row for each that all or some refuse."""

from __future__ import annotations

import json
from typing import Any

EXAMPLE = {
    "state": {"invoice": {"vendor": "Acme", "total": 1250.0, "currency": "USD", "status": "overdue"}},
    "questions": {
        "status": {
            "type": "choice",
            "instructions": "What is the invoice status?",
            "criteria": {"paid": "Invoice is paid.", "overdue": "Invoice is past due.", "draft": "Not sent."},
        },
        "large": {"type": "noul", "instructions": "Is the total above 1000 USD?"},
        "urgency": {
            "type": "score",
            "instructions": "How urgent is follow-up?",
            "criteria": ["Can wait", {"due": "This week"}, "Today"],
        },
    },
}
NOUL = {"type": "noul", "instructions": "Is it so?"}
DEEP = json.loads("[" * 200 + "]" * 200)


def body(**changes: Any) -> dict[str, Any]:
    return {"state": "s", "questions": {"q": NOUL}} | changes


def asking(**question: Any) -> dict[str, Any]:
    return body(questions={"q": question})


def options(count: int) -> dict[str, None]:
    return {f"o{number}": None for number in range(count)}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in body().items() if key != name}


ROWS: dict[str, Any] = {
    "no state": without("state"),
    "no questions": without("questions"),
    "state null": body(state=None),
    "state a number": body(state=7),
    "model no text": body(model=7),
    "questions a list": body(questions=[NOUL]),
    "questions empty": body(questions={}),
    "question no object": body(questions={"q": 1}),
    "empty id": body(questions={"": NOUL}),
    "unknown type": asking(type="bogus"),
    "no type": asking(instructions="?"),
    "unknown field": body(mode="fast"),
    "unknown question field": asking(type="noul", instructions="?", x=1),
    "instructions a number": asking(type="noul", instructions=7),
    "noul about nothing": asking(type="noul"),
    "noul stray criteria": asking(type="noul", instructions="?", criteria={"maybe": "x"}),
    "noul false null": asking(type="noul", instructions="?", criteria={"true": "x", "false": None}),
    "choice without criteria": asking(type="choice", instructions="?"),
    "choice of 0": asking(type="choice", instructions="?", criteria={}),
    "choice of 1": asking(type="choice", instructions="?", criteria={"a": None}),
    "choice of a list": asking(type="choice", instructions="?", criteria=["a", "b"]),
    "choice of 27": asking(type="choice", instructions="?", criteria=options(27)),
    "choice with a number": asking(type="choice", instructions="?", criteria={"a": 1, "b": None}),
    "choice of equal names": asking(type="choice", instructions="?", criteria={"a ": None, "A": None}),
    "choice with a control character": asking(type="choice", instructions="?", criteria={"a\x07": None, "b": None}),
    "score of 0": asking(type="score", instructions="?", criteria=[]),
    "score of 1": asking(type="score", instructions="?", criteria=["a"]),
    "score of an object": asking(type="score", instructions="?", criteria={"a": "b"}),
    "score with a null": asking(type="score", instructions="?", criteria=["a", None]),
    "score of 11": asking(type="score", instructions="?", criteria=[f"l{number}" for number in range(11)]),
    "score with equal levels": asking(type="score", instructions="?", criteria=["a", "a"]),
    "65 questions": body(questions=dict.fromkeys(map(str, range(65)), NOUL)),
    "129 questions": body(questions=dict.fromkeys(map(str, range(129)), NOUL)),
    "unknown model": body(model="gpt-9"),
    "too long": body(state="word " * 500),
    "remote image": body(images=["http://example.com/a.png"]),
    "images": body(images=["data:image/png;base64,AA=="]),
    "images no list": body(images="a"),
    "instructions at the top": body(instructions="Be kind."),
    "deep state": body(state=DEEP),
}
