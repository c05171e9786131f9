"""OpenAI's ``/v1/decisions`` as vLLM has it, or as OpenAI has it, and the System One body that others send there.

Each question of a list becomes one of ours: a predicate a noul, choices and levels their text. Where a boolean and a
text of the same letters are choices of one question, both are shown to the model as JSON, so that they stay apart.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.body import shown
from serving.dialects import Asked, Dialect, Options, Refusal, limits, row
from serving.dialects.decisions_bodies import EXAMPLE, DecisionsError, DecisionsRequest, DecisionsResponse
from serving.dialects.system_one import (
    EXTENSIONS,
    asked_model,
    own_id,
    passed_on_with_parts,
    refuse_joint,
    refuse_unknown,
    rounded,
    shaped_answers,
    without_strangers,
)
from serving.dialects.vllm import STATUS
from sysone_jax import answers
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError
from sysone_jax.questions import Limits

FIELDS = ("model", "input", "questions", "instructions", "safety_identifier")
VLLM_FIELDS = (*FIELDS, "joint", "cache_salt")
OPENAI_FIELDS = (*FIELDS, "cache_salt", "prompt_cache_key", "prompt_cache_options")
SYSTEM_ONE_FIELDS = ("model", "state", "questions", *(name for name in EXTENSIONS if name != "assets"))
QUESTION_FIELDS = {
    "predicate": ("type", "name", "instructions"),
    "choice": ("type", "name", "instructions", "choices"),
    "score": ("type", "name", "instructions", "levels"),
}
MOST_IDENTIFIER = 128
MOST_SCHEMA_QUESTIONS = 200
"""vLLM's schema has OpenAI's number of the beta, and its models answer 64."""
ROLES = ("user", "developer", "system", "assistant")
MOST_JSON_DEPTH, MOST_JSON_VALUES, MOST_JSON_BYTES = 32, 10_000, 256 << 10
"""Of one input_json part."""


@dataclass(frozen=True, slots=True)
class _Item:
    """How the answer to one question of a list is written: its name, and the values or labels of its options."""

    qid: str
    name: str | None
    values: tuple[Any, ...] = ()


class Decisions(Dialect):
    NAME = "decisions"
    PATH = "/v1/decisions"
    ALSO = ("/v1/decisions",)
    REQUEST: type = DecisionsRequest
    RESPONSE: type = DecisionsResponse
    ERROR: type = DecisionsError
    EXAMPLE = EXAMPLE

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._openai = options.decisions == "openai"
        most, choices = (400, 255) if self._openai else (64, 26)
        self.LIMITS = Limits(questions=most, options=choices, levels=10, min_levels=2)

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        if isinstance(body.get("questions"), Mapping):
            return self._system_one(body, decider)
        ignores = self._options.unknown_fields == "ignore"
        if not ignores:
            refuse_unknown(body, OPENAI_FIELDS if self._openai else VLLM_FIELDS)
        for name in ("model", "input", "questions"):
            if body.get(name) is None and (name != "model" or self._options.require_model):
                raise InputError(f"{name}: field required", kind="missing", field=name)
        model = asked_model(body, self._options)
        _check_identifier(body.get("safety_identifier"))
        if not ignores:
            refuse_joint(body)
        reader = _Reader(self._openai)
        state = reader.state(body["input"])
        instructions = reader.instructions(body.get("instructions"), "instructions")
        taken = limits(self.LIMITS, decider)
        items, questions = self._questions(body["questions"], taken, reader)
        keywords: dict[str, Any] = {"state": state, "questions": questions, "limits": taken}
        if instructions:
            keywords["instructions"] = instructions
        if reader.images:
            keywords["images"] = reader.images
        if body.get("cache_salt") is not None:
            keywords["cache_salt"] = body["cache_salt"]
        return Asked(model, None, keywords, context=items)

    def _system_one(self, body: dict[str, Any], decider: Decider) -> Asked:
        """The body that Perplexity and DeepInfra take on this path."""
        questions = body["questions"]
        if self._options.unknown_fields == "ignore":
            questions = without_strangers(questions)
        else:
            refuse_unknown(body, SYSTEM_ONE_FIELDS)
        if "state" not in body:
            raise InputError("state: field required", kind="missing", field="state")
        keywords = passed_on_with_parts(body, self._options)
        asked = {**keywords, "questions": questions, "limits": limits(self.LIMITS, decider)}
        return Asked(asked_model(body, self._options), own_id(body), asked)

    def _questions(
        self, raw: Any, taken: Limits, reader: "_Reader"
    ) -> tuple[tuple[_Item, ...], dict[str, dict[str, Any]]]:
        if not isinstance(raw, list):
            raise InputError("questions: must be a list of questions", kind="type", field="questions")
        if not raw:
            raise InputError("questions: needs at least one question", field="questions")
        if not self._openai and len(raw) > MOST_SCHEMA_QUESTIONS:
            raise InputError(f"questions: at most {MOST_SCHEMA_QUESTIONS} in a request", field="questions")
        if taken.questions is not None and len(raw) > taken.questions:
            raise InputError(f"questions: at most {taken.questions} for this model", field="questions")
        items: list[_Item] = []
        questions: dict[str, dict[str, Any]] = {}
        for number, question in enumerate(raw):
            name = self._check_question(question, number)
            qid = _fresh_id(name, number, questions)
            path = f"questions.{number}"
            if "instructions" not in question:
                raise InputError(f"{path}.instructions: field required", kind="missing", field=f"{path}.instructions")
            ours: dict[str, Any] = {
                "instructions": reader.instructions(question["instructions"], f"{path}.instructions")
            }
            values: tuple[Any, ...] = ()
            match question["type"]:
                case "predicate":
                    ours["type"] = "noul"
                case "choice":
                    values, ours["criteria"] = _choices(question.get("choices"), path, taken)
                    ours["type"] = "choice"
                case "score":
                    values, ours["criteria"] = _levels(question.get("levels"), path, taken)
                    ours["type"] = "score"
            items.append(_Item(qid, name, values))
            questions[qid] = ours
        return tuple(items), questions

    def _check_question(self, question: Any, number: int) -> str | None:
        """A question's name, once its own fields are in order."""
        path = f"questions.{number}"
        if not isinstance(question, Mapping):
            raise InputError(f"{path}: must be an object", kind="type", field=path)
        if "question" in question or "id" in question:
            raise InputError(
                f"{path}: is a question of SGLang's own API, which is not served here; send OpenAI's predicate, choice "
                "or score with instructions",
                field=path,
            )
        kind = question.get("type")
        if not isinstance(kind, str) or kind not in QUESTION_FIELDS:
            told = "needs a type" if kind is None else f"unknown question type {shown(kind)}"
            raise InputError(f"{path}: {told}; supported: {sorted(QUESTION_FIELDS)}", field=f"{path}.type")
        if self._options.unknown_fields == "refuse" and (strangers := sorted(set(question) - {*QUESTION_FIELDS[kind]})):
            raise InputError(
                f"{path}: unknown field(s) {shown(strangers)}", kind="unknown_field", field=f"{path}.{strangers[0]}"
            )
        name = question.get("name")
        if name is None and "name" in question and not self._openai:
            raise InputError(f"{path}.name: is null; leave it out", kind="type", field=f"{path}.name")
        if name is not None and not isinstance(name, str):
            raise InputError(f"{path}.name: must be text", kind="type", field=f"{path}.name")
        return name

    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        own = "distance" if self._openai else "mass"
        if context is None:
            shaped = shaped_answers(decision, self._options, own, bare=True, levels_as_sent=True)
            return {"model": model, "answers": shaped, "usage": decision.usage}
        given = [_answer(item, decision, self._options, own) for item in context]
        counts = decision.usage
        return {
            "model": model,
            "answers": given,
            "usage": {
                "input_tokens": counts["input_tokens"],
                "input_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0), "cache_write_tokens": 0},
                "output_tokens": counts["output_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["input_tokens"] + counts["output_tokens"],
            },
        }

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        status, name = row(STATUS, refusal.kind, (400, "BadRequestError"), self._options)
        message = refusal.message
        code: int | str | None = status
        if self._openai:
            name = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
            code = _OPENAI_CODES.get(refusal.kind)
            if refusal.kind == "too_long":
                message = f"Decision input exceeds the token limit. {message}"
        return status, {"error": {"message": message, "type": name, "param": refusal.field, "code": code}}


DIALECT = Decisions

_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_OPENAI_CODES = {
    "auth_missing": "invalid_api_key",
    "auth": "invalid_api_key",
    "unknown_model": "model_not_found",
    "rate": "rate_limit_exceeded",
}


def _answer(item: _Item, decision: Decision, options: Options, confidence: str) -> dict[str, Any]:
    question, read = decision.questions[item.qid], decision.reads[item.qid]
    made = answers.answer(question, read, options.confidence or confidence)
    probabilities = [rounded(p, options.rounding) for p in read.probabilities]
    sure = rounded(made["confidence"], options.rounding)
    match made["type"]:
        case "noul":
            return {"type": "predicate", "name": item.name, "probability": probabilities[0]}
        case "choice":
            pairs = zip(item.values, probabilities, strict=True)
            return {
                "type": "choice",
                "name": item.name,
                "choice": item.values[read.probabilities.index(max(read.probabilities))],
                "probabilities": [{"value": value, "probability": p} for value, p in pairs],
                "confidence": sure,
            }
    pairs = zip(item.values, probabilities, strict=True)
    return {
        "type": "score",
        "name": item.name,
        "score": rounded(made["score"], options.rounding),
        "probabilities": [{"value": index, "label": label, "probability": p} for index, (label, p) in enumerate(pairs)],
        "confidence": sure,
    }


def _check_identifier(value: Any) -> None:
    if value is not None and (not isinstance(value, str) or len(value) > MOST_IDENTIFIER):
        raise InputError(
            f"safety_identifier: must be text of at most {MOST_IDENTIFIER} characters",
            kind="type",
            field="safety_identifier",
        )


def _fresh_id(name: str | None, number: int, taken: Mapping[str, Any]) -> str:
    """A question's id: its name where that is one and still free, because some prompts hold ids."""
    if name and name not in taken:
        return name
    qid = f"question {number + 1}"
    while qid in taken:
        qid += "'"
    return qid


def _objects(raw: Any, name: str, path: str, most: int | None, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """The objects of ``choices`` or ``levels``, from 2 to as many as the model reads."""
    field = f"{path}.{name}"
    if not isinstance(raw, list) or not all(isinstance(each, Mapping) for each in raw):
        raise InputError(f"{field}: must be a list of objects", kind="missing" if raw is None else "type", field=field)
    if len(raw) < 2:
        raise InputError(f"{field}: needs at least 2", field=field)
    if most is not None and len(raw) > most:
        raise InputError(f"{field}: This model supports at most {most} {name} per question", field=field)
    for number, each in enumerate(raw):
        if strangers := sorted(set(each) - set(fields)):
            raise InputError(f"{field}.{number}: unknown field(s) {shown(strangers)}", field=f"{field}.{number}")
        if each.get("description") is not None and not isinstance(each["description"], str):
            raise InputError(f"{field}.{number}.description: must be text", kind="type", field=f"{field}.{number}")
    return raw


def _choices(raw: Any, path: str, taken: Limits) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(values, criteria) of a choice."""
    objects = _objects(raw, "choices", path, taken.options, ("value", "description"))
    values = [each.get("value") for each in objects]
    for number, value in enumerate(values):
        if not isinstance(value, str | bool):
            field = f"{path}.choices.{number}.value"
            raise InputError(f"{field}: must be text or a boolean", kind="type", field=field)
    if len({(type(value), value) for value in values}) < len(values):
        raise InputError(f"{path}.choices: values must differ", field=f"{path}.choices")
    names = [value if isinstance(value, str) else json.dumps(value) for value in values]
    if len(set(names)) < len(names):
        names = [json.dumps(value, ensure_ascii=False) for value in values]
    descriptions = [each.get("description") for each in objects]
    return tuple(values), dict(zip(names, descriptions, strict=True))


def _levels(raw: Any, path: str, taken: Limits) -> tuple[tuple[Any, ...], list[str]]:
    """(labels, criteria) of a score."""
    objects = _objects(raw, "levels", path, taken.levels, ("label", "description"))
    labels: list[Any] = [each.get("label") for each in objects]
    for number, label in enumerate(labels):
        if not isinstance(label, str):
            field = f"{path}.levels.{number}.label"
            raise InputError(f"{field}: must be text", kind="type", field=field)
    told = [
        f"{label}: {each['description']}" if each.get("description") else label
        for label, each in zip(labels, objects, strict=True)
    ]
    return tuple(labels), told


class _Reader:
    """Reads ``input`` and instructions, and collects the images on the way in ``images``."""

    def __init__(self, openai: bool) -> None:
        self.images: list[str] = []
        self._openai = openai

    def state(self, value: Any) -> Any:
        """What the questions are about: the text of user messages, else a list of what was said and done by whom."""
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise InputError("input: must be text or a list of messages", kind="type", field="input")
        said = [self._message(each, f"input.{number}") for number, each in enumerate(value)]
        if all(set(each) == {"role", "content"} and each["role"] == "user" for each in said):
            contents = [each["content"] for each in said]
            if all(isinstance(content, str) for content in contents):
                return "\n\n".join(contents)
        return said

    def instructions(self, value: Any, field: str) -> Any:
        if value is None or isinstance(value, str):
            return value
        if self._openai and isinstance(value, list) and value:
            content = self._content(value, field)
            return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        raise InputError(f"{field}: must be text", kind="type", field=field)

    def _message(self, raw: Any, path: str) -> dict[str, Any]:
        if not isinstance(raw, Mapping):
            raise InputError(f"{path}: must be a message", kind="type", field=path)
        kind = raw.get("type", "message")
        if kind == "message":
            roles = ROLES if self._openai else ("user",)
            if raw.get("role") not in roles:
                raise InputError(f"{path}.role: must be one of {', '.join(roles)}", field=f"{path}.role")
            extra = {"phase", "id", "status"} if self._openai else set()
            if strangers := sorted(set(raw) - {"type", "role", "content"} - extra):
                raise InputError(f"{path}: unknown field(s) {shown(strangers)}", kind="unknown_field", field=path)
            return {"role": raw["role"], "content": self._content(raw.get("content"), f"{path}.content")}
        if self._openai and kind in ("function_call", "custom_tool_call"):
            told = raw.get("arguments" if kind == "function_call" else "input")
            if not isinstance(told, str) or not isinstance(raw.get("name"), str):
                raise InputError(f"{path}: a {kind} needs a name and its arguments as text", kind="type", field=path)
            return {"call": raw["name"], "arguments": told}
        if self._openai and kind in ("function_call_output", "custom_tool_call_output"):
            return {"output": self._content(raw.get("output"), f"{path}.output")}
        raise InputError(f"{path}.type: {shown(kind)} is not taken here", kind="unsupported", field=f"{path}.type")

    def _content(self, raw: Any, path: str) -> Any:
        """Text where there is nothing else, else a list of texts, values and places of images."""
        if isinstance(raw, str):
            return raw
        if not isinstance(raw, list) or not raw:
            raise InputError(f"{path}: must be text or a list of parts", kind="type", field=path)
        parts = [self._part(each, f"{path}.{number}") for number, each in enumerate(raw)]
        return "\n".join(parts) if all(isinstance(part, str) for part in parts) else parts

    def _part(self, raw: Any, path: str) -> Any:
        if not isinstance(raw, Mapping):
            raise InputError(f"{path}: must be a part", kind="type", field=path)
        match raw.get("type"):
            case "input_text" | "output_text" as kind if kind == "input_text" or self._openai:
                if not isinstance(raw.get("text"), str):
                    raise InputError(f"{path}.text: must be text", kind="type", field=f"{path}.text")
                return raw["text"]
            case "input_image" if not self._openai:
                raise InputError(
                    "Decisions supports text input only; images are not supported", kind="unsupported", field=path
                )
            case "input_image":
                if not isinstance(raw.get("image_url"), str):
                    raise InputError(f"{path}.image_url: must be a data URL", kind="media", field=f"{path}.image_url")
                self.images.append(raw["image_url"])
                return {"image": len(self.images)}
            case "input_json" if self._openai:
                _check_json_part(raw.get("data"), f"{path}.data")
                return raw["data"]
        raise InputError(
            f"{path}.type: {shown(raw.get('type'))} is not taken here", kind="unsupported", field=f"{path}.type"
        )


def _check_json_part(value: Any, field: str) -> None:
    if not isinstance(value, Mapping) and not (isinstance(value, list) and all(isinstance(v, Mapping) for v in value)):
        raise InputError(f"{field}: must be an object or a list of objects", kind="type", field=field)
    count, pending = 0, [(value, 1)]
    while pending:
        item, depth = pending.pop()
        count += 1
        if depth > MOST_JSON_DEPTH:
            raise InputError(f"{field}: at most {MOST_JSON_DEPTH} levels", field=field)
        if count > MOST_JSON_VALUES:
            raise InputError(f"{field}: at most {MOST_JSON_VALUES:,} values", field=field)
        if isinstance(item, Mapping | list):
            children = item.values() if isinstance(item, Mapping) else item
            pending += [(child, depth + 1) for child in children]
    if len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MOST_JSON_BYTES:
        raise InputError(f"{field}: at most {MOST_JSON_BYTES:,} bytes", field=field)
