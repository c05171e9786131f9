"""TypeSafe's ``/v1/systemone``, where System One comes from: its shapes, its faults in three forms, its confidence.

Live it refuses every field that it does not document. Here documented extensions of other hosts pass, and a refused
field is named behind TypeSafe's words.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from serving.body import shown
from serving.dialects import Asked, Dialect, Options, Refusal, limits, row
from serving.dialects.schema import check_body
from serving.dialects.system_one import (
    EXTENSIONS,
    asked_model,
    own_id,
    passed_on_with_parts,
    refuse_unknown,
    shaped_answers,
    without_strangers,
)
from serving.dialects.typesafe_bodies import EXAMPLE, TypeSafeError, TypeSafeRequest, TypeSafeResponse
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError
from sysone_jax.questions import Limits

KNOWN = ("model", "state", "questions", *EXTENSIONS)


class TypeSafe(Dialect):
    NAME = "typesafe"
    ALIASES = ("jev-latest", "jev-preview")
    UNKNOWN_MODEL = "Unknown model: {}."
    LIMITS = Limits(questions=400, options=255, levels=10, min_levels=1)
    """No cap on questions is documented, and none was found at 300."""
    TAKES_FORMS = True
    SCHEMA_STATUS = 422
    REQUEST: type = TypeSafeRequest
    RESPONSE: type = TypeSafeResponse
    ERROR: type = TypeSafeError
    EXAMPLE = EXAMPLE

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._ignores = options.unknown_fields == "ignore"

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        if not self._ignores:
            refuse_unknown(body, KNOWN, "Invalid request. Unknown field(s)")
        check_body(body, any_state=False, strangers=self._ignores, require_model=self._options.require_model)
        model = asked_model(body, self._options)
        taken = limits(self.LIMITS, decider)
        questions = without_strangers(body["questions"])
        for qid, question in questions.items():
            _check_question(qid, question, taken)
        keywords = passed_on_with_parts(body, self._options)
        keywords["images"] = [*keywords.get("images", []), *_assets(body)]
        ids = {f"q{number}": qid for number, qid in enumerate(questions, 1)}
        if decider.strategy != "joint_schema":  # the only prompts that ids would stand in
            ids = {qid: qid for qid in questions}
        named = {alias: questions[qid] for alias, qid in ids.items()}
        return Asked(model, own_id(body), {**keywords, "questions": named, "limits": taken}, context=ids)

    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        answers = shaped_answers(decision, self._options, "distance", bare=True, levels_as_sent=True)
        return {
            "model": model,
            "answers": {context[alias]: answer for alias, answer in answers.items()},
            "usage": decision.usage,
        }

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        match refusal.kind:
            case "schema":
                return 422, {
                    "detail": [
                        {"type": fact.code, "loc": ["body", *fact.place], "msg": fact.message} for fact in refusal.facts
                    ]
                }
            case "json":
                reason = {"error": refusal.message}
                fact = {"type": "json_invalid", "loc": ["body", refusal.position], "msg": "JSON decode error"}
                return 422, {"detail": [{**fact, "ctx": reason}]}
            case "not_found":
                return 404, {"detail": "Not Found"}
            case "method":
                return 405, {"detail": "Method Not Allowed"}
            case "auth_missing":
                message = "Must supply an API key! Check your request and try again."
            case "auth":
                message = "Cannot authenticate with the server. Please check your API key and try again."
            case _:
                message = refusal.message
        status, name = row(_STATUS, refusal.kind, (400, "api_usage_error"), self._options)
        return status, {"detail": {"error_type": name, "message": message}}


DIALECT = TypeSafe

_STATUS = {
    "auth_missing": (401, "authentication_error"),
    "auth": (401, "authentication_error"),
    "too_long": (400, "max_tokens_exceeded"),
    "timeout": (408, "timeout_error"),
    "body_size": (413, "request_too_large"),
    "content_type": (422, "api_usage_error"),
    "content_encoding": (415, "api_usage_error"),
    "rate": (429, "rate_limit_error"),
    "internal": (500, "api_error"),
    "starting": (503, "overloaded_error"),
    "ending": (503, "overloaded_error"),
    "overload": (529, "overloaded_error"),
}
"""Everything else is a 400 ``api_usage_error``."""


def _check_question(qid: str, question: Mapping[str, Any], taken: Limits) -> None:
    path = f"questions.{qid}"
    if not qid:
        raise InputError("Question key cannot be empty.", field="questions")
    criteria: Any = question.get("criteria")
    match question["type"]:
        case "choice" if not criteria:
            raise InputError(f"Choice question must have at least one choice: {_named(qid)}", field=f"{path}.criteria")
        case "choice" if taken.options is not None and len(criteria) > taken.options:
            raise InputError(f"Too many choices. Must have at most {taken.options} choices.", field=f"{path}.criteria")
        case "score" if taken.levels is not None and len(criteria) > taken.levels:
            raise InputError(
                f"Too many score levels. Must have at most {taken.levels} levels.", field=f"{path}.criteria"
            )
        case "noul" if not question.get("instructions") and not any((criteria or {}).values()):
            raise InputError(f"Noul question must have criteria or instructions: {_named(qid)}", field=path)


def _named(qid: str) -> str:
    return qid if len(qid) <= _SHOWN and qid.isprintable() else shown(qid)


_SHOWN = 200


def _assets(body: Mapping[str, Any]) -> Iterator[str]:
    """Data URLs of the images in ``assets``, in the order in which the text first names them.

    InputError for one that nothing names, and for one that is no image.
    """
    assets = body.get("assets")
    if assets is None:
        return
    if not isinstance(assets, Mapping) or not assets:
        raise InputError("assets: must map placeholders to images; leave it out when there are none", field="assets")
    places: dict[str, int] = {}
    offset = 0
    for text in _texts([body["state"], body["questions"]]):
        for name in assets:
            if name and name not in places and (found := text.find(name)) >= 0:
                places[name] = offset + found
        offset += len(text) + 1
    for name in assets:
        if name not in places:
            raise InputError(f"assets: nothing names {shown(name)}", kind="media", field=f"assets.{name[:_SHOWN]}")
    for name in sorted(assets, key=places.__getitem__):
        yield _asset_url(assets[name], f"assets.{name[:_SHOWN]}")


def _asset_url(asset: Any, field: str) -> str:
    if not isinstance(asset, Mapping) or asset.get("type", "image") != "image":
        raise InputError(f"{field}: must be an image", kind="media", field=field)
    data, form = asset.get("data_base64"), asset.get("format")
    if not isinstance(data, str) or not isinstance(form, str) or form not in _FORMATS:
        raise InputError(
            f"{field}: needs data_base64 and a format of {', '.join(_FORMATS)}, or a part of a multipart body",
            kind="media",
            field=field,
        )
    return f"data:{_FORMATS[form]};base64,{_SPACES.sub('', data)}"


_FORMATS = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg"}
_SPACES = re.compile(r"\s+")


def _texts(value: Any) -> Iterator[str]:
    """Every text of a JSON value in its order, keys before what they hold; without recursion, so depth is safe."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            for key, child in reversed(list(item.items())):
                pending += (child, key)
        elif isinstance(item, list):
            pending += reversed(item)
