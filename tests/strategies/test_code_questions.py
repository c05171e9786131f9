"""Decision 3.0's questions: what is refused, in the release's words and in those of its servers."""

from __future__ import annotations

from typing import Any

import pytest

from sysone_jax.errors import InputError
from sysone_jax.questions import Choice, Limits, Noul, Score
from sysone_jax.strategies.answer_codes import CodeReads
from sysone_jax.strategies.code_questions import parse

SERVED = Limits(questions=64, options=255, levels=10, min_levels=2)
CHOICE = "choice criteria must map 1 to 255 option keys to descriptions"
SCORE = "score criteria must be an ordered list of 2 to 10 levels"
LEVELS = "score levels must be distinct and nonempty"
KEYS = "choice option keys must be nonempty strings"


def choice(criteria: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "criteria": criteria}


def score(*levels: Any) -> dict[str, Any]:
    return {"type": "score", "instructions": "?", "criteria": list(levels)}


# what is asked -> (the release's words, the server's)
QUESTIONS: dict[str, tuple[Any, str, str]] = {
    "no object": (
        1,
        "a question is an object with a type",
        "question 'q': must be an object with type, instructions and criteria",
    ),
    "no type": (
        {"instructions": "?"},
        "a question is an object with a type",
        "question 'q': needs a type; supported: ['choice', 'noul', 'score']",
    ),
    "an unknown type": (
        {"type": "bogus"},
        "unsupported question type 'bogus' (choice, noul or score)",
        "unknown question type 'bogus'; supported: ['choice', 'noul', 'score']",
    ),
    "a choice without options": (
        choice({}),
        CHOICE,
        "question 'q': choice criteria must map option names to a description or null",
    ),
    "a choice of a list": (
        choice(["a"]),
        CHOICE,
        "question 'q': choice criteria must map option names to a description or null",
    ),
    "256 options": (
        choice(dict.fromkeys(map(str, range(256)))),
        CHOICE,
        "question 'q': at most 255 options for this model",
    ),
    "an option without a name": (choice({"": "?"}), KEYS, "question 'q': option names must be non-empty"),
    "noul of a list": (
        {"type": "noul", "criteria": []},
        'noul criteria may only describe "false" and "true"',
        "question 'q': noul criteria must be an object with true and false",
    ),
    "noul of other sides": (
        {"type": "noul", "criteria": {"maybe": "?"}},
        'noul criteria may only describe "false" and "true"',
        "question 'q': noul criteria must be an object with true and false",
    ),
    "one level": (score("a"), SCORE, "question 'q': score criteria must be an ordered list of levels"),
    "eleven levels": (score(*range(11)), SCORE, "question 'q': a score has 2 to 10 non-empty levels"),
    "levels of an object": (
        {"type": "score", "criteria": {"a": 1}},
        SCORE,
        "question 'q': score criteria must be an ordered list of levels",
    ),
    "an empty level": (score("a", ""), LEVELS, "question 'q': a score has 2 to 10 non-empty levels"),
    "a level twice": (score("a", "a"), LEVELS, "question 'q': duplicate option names"),
    "levels that are written alike": (score({"a": 1}, '{"a": 1}'), LEVELS, "question 'q': duplicate option names"),
    "no JSON": (
        {"type": "noul", "instructions": {1, 2}},
        "value is not JSON data",
        "questions.q.instructions: set is not a JSON type; give text, a number, a boolean, null, a list or an object",
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_refused_in_both_words(name: str) -> None:
    question, released, served = QUESTIONS[name]
    with pytest.raises(InputError) as caught:
        parse({"fine": {"type": "noul"}, "q": question}, SERVED)
    assert str(caught.value) == f"question 'q': {released}"
    assert caught.value.served == served
    assert caught.value.field is not None and caught.value.field.startswith("questions.q")


@pytest.mark.parametrize("questions", [None, [], {}, "q"])
def test_questions_are_an_object(questions: Any) -> None:
    with pytest.raises(InputError, match="questions must be a nonempty mapping of question IDs to questions") as caught:
        parse(questions, SERVED)
    assert caught.value.served is not None and caught.value.served.startswith("questions: ")


@pytest.mark.parametrize("qid", ["", 1])
def test_ids_are_text(qid: Any) -> None:
    with pytest.raises(InputError, match="question IDs must be nonempty strings") as caught:
        parse({qid: {"type": "noul"}}, SERVED)
    assert caught.value.served is not None and caught.value.served.startswith("question ids must be")


def test_a_key_that_is_no_text_is_refused_where_the_general_rules_would_print_it() -> None:
    with pytest.raises(InputError, match=KEYS):
        parse({"q": Choice("?", {1: "one"})}, CodeReads.limits)  # type: ignore[dict-item]


def test_what_a_server_adds_has_its_words_alone() -> None:
    with pytest.raises(InputError, match="questions: at most 64 for this model") as caught:
        parse({str(n): {"type": "noul"} for n in range(65)}, SERVED)
    assert caught.value.served is None
    with pytest.raises(InputError, match=r"unknown field\(s\) \['note'\]"):
        parse({"q": {"type": "noul", "note": 1}}, SERVED)


def test_what_is_right_passes() -> None:
    questions = {
        "a": choice({"only": None}),
        "b": choice({str(n): {"n": n} for n in range(255)}),
        "c": {"type": "noul"},
        "d": {"type": "noul", "criteria": {"true": None}},
        "e": score(0, "0.0", {"a": 1}),
    }
    parsed = parse(questions, CodeReads.limits)
    assert list(parsed) == list(questions)
    assert isinstance(parsed["b"], Choice) and len(parsed["b"].criteria) == 255
    assert parse({"q": Noul("?")}, CodeReads.limits) == {"q": Noul("?")}
    assert parse({"q": Score("?", ("a", "b"))}, CodeReads.limits) == {"q": Score("?", ("a", "b"))}
