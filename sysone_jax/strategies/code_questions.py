"""The questions that Decision 3.0 takes, refused in the words of its release.

Servers of these models use vLLM's words for the same faults: an error carries both (``InputError.served``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from sysone_jax.errors import InputError
from sysone_jax.heads.answer_codes import CODES
from sysone_jax.questions import JSON, Choice, Limits, Noul, Question, Score, check_json, parse_questions
from sysone_jax.text import json_text

LEVELS = (2, 10)


def parse(raw: Any, limits: Limits) -> dict[str, Question]:
    """As ``parse_questions``, and what the release asks beyond it: names and levels that say something.

    Raises:
        InputError: the first thing that is wrong.
    """
    fault = next(_faults(raw), None)
    try:
        questions = parse_questions(raw, dataclasses.replace(limits, levels=None))
        for qid, question in questions.items():
            _check(qid, question)
    except InputError as error:
        if fault is None:
            raise
        raise InputError(fault, kind=error.kind, field=error.field, served=str(error)) from None
    if fault is not None:
        raise InputError(fault, field="questions")
    return questions


def _check(qid: str, question: Question) -> None:
    """Refuse, in vLLM's words, what the general rules let pass."""
    path = f"questions.{qid}.criteria"
    match question:
        case Choice(criteria=options) if not all(options):
            raise InputError(f"question {qid!r}: option names must be non-empty", field=path)
        case Score(criteria=levels):
            texts = [json_text(level, path) for level in levels]
            if not LEVELS[0] <= len(levels) <= LEVELS[1] or not all(texts):
                raise InputError(
                    f"question {qid!r}: a score has {LEVELS[0]} to {LEVELS[1]} non-empty levels", field=path
                )
            if len(set(texts)) < len(texts):
                raise InputError(f"question {qid!r}: duplicate option names", field=path)


def _faults(raw: Any) -> Iterator[str]:
    """What the release says about a request's questions, in order."""
    if not isinstance(raw, Mapping) or not raw:
        yield "questions must be a nonempty mapping of question IDs to questions"
        return
    for qid, question in raw.items():
        if not isinstance(qid, str) or not qid:
            yield "question IDs must be nonempty strings"
        elif fault := _fault(question):
            yield f"question {qid!r}: {fault}"


def _fault(raw: Any) -> str | None:
    if isinstance(raw, Choice | Noul | Score):
        kind, instructions, criteria = raw.type, raw.instructions, raw.criteria
    elif isinstance(raw, Mapping) and isinstance(raw.get("type"), str):
        kind, instructions, criteria = raw["type"], raw.get("instructions"), raw.get("criteria")
    else:
        return "a question is an object with a type"
    if kind not in ("choice", "noul", "score"):
        return f"unsupported question type {_shown(kind)} (choice, noul or score)"
    if not (_is_json(instructions) and _is_json(_values(criteria))):
        return "value is not JSON data"
    match kind:
        case "choice":
            if not isinstance(criteria, Mapping) or not 1 <= len(criteria) <= CODES:
                return f"choice criteria must map 1 to {CODES} option keys to descriptions"
            if not all(isinstance(key, str) and key for key in criteria):
                return "choice option keys must be nonempty strings"
        case "noul":
            if criteria is not None and not (isinstance(criteria, Mapping) and set(criteria) <= {"true", "false"}):
                return 'noul criteria may only describe "false" and "true"'
        case _:
            if not isinstance(criteria, list | tuple) or not LEVELS[0] <= len(criteria) <= LEVELS[1]:
                return f"score criteria must be an ordered list of {LEVELS[0]} to {LEVELS[1]} levels"
            texts = [json_text(level, "criteria") for level in criteria]
            if not all(texts) or len(set(texts)) < len(texts):
                return "score levels must be distinct and nonempty"
    return None


def _values(criteria: Any) -> JSON:
    return list(criteria.values()) if isinstance(criteria, Mapping) else criteria


def _is_json(value: Any) -> bool:
    """Whether a value is of JSON's types; text that no tokenizer carries has errors of its own."""
    try:
        check_json(value, "value")
    except InputError as error:
        return error.kind != "type"
    return True


def _shown(value: str) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
