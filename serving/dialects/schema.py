"""The faults of a System One body against its schema, each with its place and the name that pydantic gives it.

TypeSafe and SGLang check bodies with pydantic before anything else, answer 422 and list what is wrong.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from serving.dialects import Fact, SchemaError

MOST_FACTS = 10
"""Faults that one answer lists."""

Place = tuple[str | int, ...]


def check_body(body: Mapping[str, Any], *, any_state: bool, strangers: bool, require_model: bool) -> None:
    """Refuse a body whose fields have the wrong shape.

    Args:
        any_state: whether a state may be null, a number or a boolean; else it is text, an object or a list.
        strangers: whether questions may have fields that no document has.
        require_model: whether ``model`` must be there.

    Raises:
        SchemaError: lists the first ``MOST_FACTS`` faults.
    """
    facts = []
    for fact in _faults(body, any_state, strangers, require_model):
        facts.append(fact)
        if len(facts) == MOST_FACTS:
            break
    if facts:
        raise SchemaError(facts)


def _faults(body: Mapping[str, Any], any_state: bool, strangers: bool, require_model: bool) -> Iterator[Fact]:
    if body.get("model") is None:
        if require_model:
            yield _missing(("model",))
    elif not isinstance(body["model"], str):
        yield _no_text(("model",))
    if "state" not in body:
        yield _missing(("state",))
    elif not any_state:
        yield from _no_content(body["state"], ("state",))
    if "questions" not in body:
        yield _missing(("questions",))
        return
    questions = body["questions"]
    if not isinstance(questions, Mapping):
        yield _no_object(("questions",))
    elif not questions:
        yield Fact(("questions",), "too_short", "Dictionary should have at least 1 item after validation, not 0")
    else:
        for qid, question in questions.items():
            yield from _question(question, ("questions", qid), strangers)


def _question(question: Any, place: Place, strangers: bool) -> Iterator[Fact]:
    if not isinstance(question, Mapping):
        message = "Input should be a valid dictionary or object to extract fields from"
        yield Fact(place, "model_attributes_type", message)
        return
    if "type" not in question:
        yield Fact(place, "union_tag_not_found", "Unable to extract tag using discriminator 'type'")
        return
    kind = question["type"]
    if not isinstance(kind, str) or kind not in _CRITERIA:
        tag = str(kind)[:_SHOWN]
        message = f"Input tag '{tag}' found using 'type' does not match any of the expected tags: {_TAGS}"
        yield Fact(place, "union_tag_invalid", message)
        return
    inside = (*place, kind)
    if question.get("instructions") is not None:
        yield from _no_content(question["instructions"], (*inside, "instructions"))
    yield from _CRITERIA[kind](question, (*inside, "criteria"), strangers)
    if not strangers:
        for name in sorted(set(question) - {"type", "instructions", "criteria"}):
            yield Fact((*inside, name), "extra_forbidden", "Extra inputs are not permitted")


def _choice(question: Mapping[str, Any], place: Place, strangers: bool) -> Iterator[Fact]:
    if "criteria" not in question:
        yield _missing(place)
    elif not isinstance(question["criteria"], Mapping):
        yield _no_object(place)
    else:
        for name, description in question["criteria"].items():
            if description is not None:
                yield from _no_content(description, (*place, name))


def _noul(question: Mapping[str, Any], place: Place, strangers: bool) -> Iterator[Fact]:
    criteria = question.get("criteria")
    if criteria is None:
        return
    if not isinstance(criteria, Mapping):
        yield _no_object(place)
        return
    for side in ("true", "false"):
        if criteria.get(side) is not None:
            yield from _no_content(criteria[side], (*place, side))
    if not strangers:
        for name in sorted(set(criteria) - {"true", "false"}):
            yield Fact((*place, name), "extra_forbidden", "Extra inputs are not permitted")


def _score(question: Mapping[str, Any], place: Place, strangers: bool) -> Iterator[Fact]:
    if "criteria" not in question:
        yield _missing(place)
    elif not isinstance(question["criteria"], list):
        yield Fact(place, "list_type", "Input should be a valid list")
    elif not question["criteria"]:
        yield Fact(place, "too_short", "List should have at least 1 item after validation, not 0")
    else:
        for index, level in enumerate(question["criteria"]):
            yield from _no_content(level, (*place, index))


_CRITERIA = {"choice": _choice, "noul": _noul, "score": _score}
_TAGS = ", ".join(f"'{kind}'" for kind in _CRITERIA)
_SHOWN = 200


def _missing(place: Place) -> Fact:
    return Fact(place, "missing", "Field required")


def _no_text(place: Place) -> Fact:
    return Fact(place, "string_type", "Input should be a valid string")


def _no_object(place: Place) -> Fact:
    return Fact(place, "dict_type", "Input should be a valid dictionary")


def _no_content(value: Any, place: Place) -> Iterator[Fact]:
    """What is neither text nor an object nor a list: a fault for each that it could have been."""
    if not isinstance(value, str | Mapping | list):
        yield _no_text((*place, "str"))
        yield _no_object((*place, "dict[any,any]"))
        yield Fact((*place, "list[any]"), "list_type", "Input should be a valid list")
