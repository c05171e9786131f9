"""Typed questions: the three types, the checks on what a caller sends, and the limits of a model.

A question arrives as an object of this module or in its wire form, ``{"type", "instructions", "criteria"}``. Both go
through ``parse_questions``, so both are refused for the same reasons in the same words. Where vLLM's ``/v1/systemone``
has a message for it, the words are vLLM's.

Criteria stay as they were sent: how a description is written into a prompt differs from model to model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sysone_jax.errors import InputError, shown

JSON = Any
"""Any JSON value: None, bool, int, float, str, list or tuple, dict with string keys. NaN and the infinities count."""

MAX_DEPTH = 100
"""Lists and objects inside one another. Python's own json module fails near 1,000; no useful state comes close."""

MAX_DIGITS = 4300
"""Digits of an integer. CPython refuses to print more (``sys.int_info.default_max_str_digits``)."""


@dataclass(frozen=True, slots=True)
class Option:
    """One allowed answer. A ``description`` of None means that none was given."""

    name: str
    description: JSON


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several named options.

    Args:
        instructions: what is asked; text or any JSON.
        criteria: option name -> description or None, in the order in which ties are broken.
    """

    type: ClassVar[str] = "choice"
    instructions: JSON = ""
    criteria: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(Option(str(name), description) for name, description in self.criteria.items())


@dataclass(frozen=True, slots=True)
class Noul:
    """Yes or no.

    Args:
        instructions: what is asked; text or any JSON.
        criteria: what yes (``"true"``) and no (``"false"``) mean. A key that is absent and a key that is None are kept
            apart: models whose prompt has a default description read them differently.
    """

    type: ClassVar[str] = "noul"
    instructions: JSON = ""
    criteria: Mapping[str, JSON] | None = None

    @property
    def options(self) -> tuple[Option, ...]:
        sides = self.criteria or {}
        return Option("yes", sides.get("true")), Option("no", sides.get("false"))


@dataclass(frozen=True, slots=True)
class Score:
    """A place on ordered levels, numbered from 0.

    Args:
        instructions: what is asked; text or any JSON.
        criteria: the levels, lowest first; text or any JSON but None.
    """

    type: ClassVar[str] = "score"
    instructions: JSON = ""
    criteria: Sequence[JSON] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(Option(str(level), None) for level in self.criteria)


Question = Choice | Noul | Score


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold: questions, options of a choice, levels of a score. None is no cap."""

    questions: int | None = 64
    options: int | None = 26
    levels: int | None = 10
    min_levels: int = 2


def parse_questions(raw: Mapping[str, Question | Mapping[str, JSON]], limits: Limits) -> dict[str, Question]:
    """Check a request's questions and return them as objects, in the order they were asked.

    Args:
        raw: question id -> a question object, or its wire form ``{"type", "instructions", "criteria"}``.
        limits: what the model reads.

    Returns:
        Question id -> question, with criteria copied one level deep, so that a caller may reuse his own.

    Raises:
        InputError: the first thing that is wrong, with ``field`` at ``questions`` or below it.
    """
    if not isinstance(raw, Mapping):
        raise InputError(
            "questions: must be an object that maps each question id to its question", kind="type", field="questions"
        )
    if not raw:
        raise InputError("questions: needs at least one question", field="questions")
    if limits.questions is not None and len(raw) > limits.questions:
        raise InputError(f"questions: at most {limits.questions} for this model", field="questions")
    return {qid: _parse_question(qid, question, limits) for qid, question in raw.items()}


def check_text(text: str, field: str) -> None:
    """Refuse text with a lone surrogate, which no tokenizer and no JSON body can carry.

    Raises:
        InputError: names ``field`` and the surrogate.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{_one_line(field)}: text must be valid Unicode, but character {error.start} is the lone surrogate "
            f"{text[error.start]!r}; remove it or send the whole pair",
            field=field,
        ) from None


def check_json(value: JSON, field: str) -> None:
    """Refuse a value that cannot be written as JSON text in valid Unicode.

    That is: a type JSON does not have, a key that is not text, a lone surrogate in any text or key, an integer of more
    than ``MAX_DIGITS`` digits, or nesting deeper than ``MAX_DEPTH``. It walks without recursion, so depth is safe.

    Args:
        value: what to check.
        field: the dotted path of ``value`` in the request, for the message.

    Raises:
        InputError: ``field`` is the path of the part at fault, such as ``state.ticket.tags.3``.
    """
    pending: list[tuple[JSON, _Trail, int]] = [(value, (None, field), 0)]
    while pending:
        item, trail, depth = pending.pop()
        if item is None or isinstance(item, float):
            continue
        if isinstance(item, str):
            if not item.isascii():
                check_text(item, _path(trail))
        elif isinstance(item, int):
            if abs(item) >= _TOO_LONG_TO_PRINT:
                path = _path(trail)
                raise InputError(
                    f"{_one_line(path)}: an integer may have at most {MAX_DIGITS:,} digits; send it as text", field=path
                )
        elif isinstance(item, dict | list | tuple):
            if depth == MAX_DEPTH:
                raise InputError(
                    f"{_one_line(field)}: at most {MAX_DEPTH} lists and objects inside one another; flatten it",
                    field=field,
                )
            if isinstance(item, dict):
                _check_keys(item, trail)
                pending.extend((child, (trail, key), depth + 1) for key, child in item.items())
            else:
                pending.extend((child, (trail, index), depth + 1) for index, child in enumerate(item))
        else:
            path = _path(trail)
            raise InputError(
                f"{_one_line(path)}: {type(item).__name__} is not a JSON type; give text, a number, a boolean, null, "
                "a list or an object",
                kind="type",
                field=path,
            )


_TOO_LONG_TO_PRINT = 10**MAX_DIGITS

# A path as (parent, key) links, written out only for an error: a long key over many children would cost the square.
_Trail = tuple["_Trail | None", str | int]


def _path(trail: _Trail) -> str:
    keys = []
    link: _Trail | None = trail
    while link is not None:
        link, key = link
        keys.append(str(key))
    return ".".join(reversed(keys))


def _check_keys(item: Mapping[Any, JSON], trail: _Trail) -> None:
    for key in item:
        if not isinstance(key, str):
            path = _path(trail)
            raise InputError(
                f"{_one_line(path)}: the keys of an object must be text, not {type(key).__name__}",
                kind="type",
                field=path,
            )
        if not key.isascii():
            check_text(key, _path(trail))


def _parse_question(qid: str, raw: Question | Mapping[str, JSON], limits: Limits) -> Question:
    if not isinstance(qid, str):
        raise InputError(f"question ids must be text, not {type(qid).__name__}", kind="type", field="questions")
    if not qid:
        raise InputError("question ids must be non-empty", field="questions")
    check_text(qid, "questions")
    path = f"questions.{qid}"
    if isinstance(raw, Choice | Noul | Score):
        name, instructions, criteria = raw.type, raw.instructions, raw.criteria
    elif isinstance(raw, Mapping):
        name, instructions, criteria = _wire_fields(qid, raw)
    else:
        raise InputError(
            f"question {shown(qid)}: must be an object with type, instructions and criteria", kind="type", field=path
        )
    if instructions is None:
        instructions = ""
    check_json(instructions, f"{path}.instructions")
    return _PARSERS[name](qid, instructions, criteria, limits)


def _wire_fields(qid: str, raw: Mapping[str, JSON]) -> tuple[str, JSON, JSON]:
    path = f"questions.{qid}"
    _check_keys(raw, (None, path))
    unknown = sorted(set(raw) - {"type", "instructions", "criteria"})
    if unknown:
        raise InputError(
            f"question {shown(qid)}: unknown field(s) {shown(unknown)}",
            kind="unknown_field",
            field=f"{path}.{unknown[0]}",
        )
    if "type" not in raw:
        raise InputError(
            f"question {shown(qid)}: needs a type; supported: {sorted(_PARSERS)}", kind="missing", field=f"{path}.type"
        )
    name = raw["type"]
    if not isinstance(name, str):
        raise InputError(
            f"question {shown(qid)}: type must be text; supported: {sorted(_PARSERS)}",
            kind="type",
            field=f"{path}.type",
        )
    if name not in _PARSERS:
        raise InputError(f"unknown question type {shown(name)}; supported: {sorted(_PARSERS)}", field=f"{path}.type")
    return name, raw.get("instructions"), raw.get("criteria")


def _parse_choice(qid: str, instructions: JSON, criteria: JSON, limits: Limits) -> Choice:
    path = f"questions.{qid}.criteria"
    if not isinstance(criteria, Mapping) or not criteria:
        raise InputError(
            f"question {shown(qid)}: choice criteria must map option names to a description or null",
            kind="invalid" if isinstance(criteria, Mapping) else "type",
            field=path,
        )
    _check_count(qid, len(criteria), limits.options)
    for name, description in criteria.items():
        # From Python a name may also be a number or a boolean; its text is the option's name.
        if not isinstance(name, str | int | float):
            raise InputError(
                f"question {shown(qid)}: option names must be text, not {type(name).__name__}", kind="type", field=path
            )
        check_json(name, path)
        check_json(description, f"{path}.{name}")
    question = Choice(instructions, dict(criteria))
    _check_distinct(qid, question)
    return question


def _parse_noul(qid: str, instructions: JSON, criteria: JSON, limits: Limits) -> Noul:
    path = f"questions.{qid}.criteria"
    if criteria is None:
        return Noul(instructions)
    if not isinstance(criteria, Mapping) or not set(criteria) <= {"true", "false"}:
        raise InputError(
            f"question {shown(qid)}: noul criteria must be an object with true and false",
            kind="unknown_field" if isinstance(criteria, Mapping) else "type",
            field=path,
        )
    for side, description in criteria.items():
        check_json(description, f"{path}.{side}")
    return Noul(instructions, dict(criteria))


def _parse_score(qid: str, instructions: JSON, criteria: JSON, limits: Limits) -> Score:
    path = f"questions.{qid}.criteria"
    if not isinstance(criteria, list | tuple) or len(criteria) < limits.min_levels:
        raise InputError(
            f"question {shown(qid)}: score criteria must be an ordered list of levels",
            kind="invalid" if isinstance(criteria, list | tuple) else "type",
            field=path,
        )
    _check_count(qid, len(criteria), limits.levels)
    for index, level in enumerate(criteria):
        if level is None:
            raise InputError(
                f"question {shown(qid)}: score level {index} is null; give every level a name",
                kind="type",
                field=f"{path}.{index}",
            )
        check_json(level, f"{path}.{index}")
    question = Score(instructions, tuple(criteria))
    _check_distinct(qid, question)
    return question


_PARSERS = {"choice": _parse_choice, "noul": _parse_noul, "score": _parse_score}


def _check_count(qid: str, count: int, limit: int | None) -> None:
    if count == 0:
        raise InputError(f"question {shown(qid)}: needs at least one option", field=f"questions.{qid}.criteria")
    if limit is not None and count > limit:
        raise InputError(
            f"question {shown(qid)}: at most {limit} options for this model", field=f"questions.{qid}.criteria"
        )


def _check_distinct(qid: str, question: Choice | Score) -> None:
    options = question.options
    if len({option.name for option in options}) < len(options):
        raise InputError(f"question {shown(qid)}: duplicate option names", field=f"questions.{qid}.criteria")


_SHOWN = 200


def _one_line(path: str) -> str:
    text = path if path.isprintable() else repr(path)[1:-1]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
