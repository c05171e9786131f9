"""Clef as hosted, which runs SGLang: lean answers, TypeSafe's confidence, faults of the schema as a 422 list.

SGLang takes any other field without a word and reads no more of it; here only the documented ones pass.
"""

import unicodedata
from collections.abc import Mapping
from typing import Any

from serving.dialects import Asked, Dialect, Fact, Refusal, SchemaError, limits, row
from serving.dialects.clef_bodies import ClefError, ClefRequest
from serving.dialects.schema import check_body
from serving.dialects.system_one import EXTENSIONS, asked_model, own_id, passed_on, shaped_answers
from serving.dialects.typesafe_bodies import EXAMPLE, TypeSafeResponse
from serving.dialects.vllm import STATUS
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError
from sysone_jax.questions import Limits

KNOWN = ("model", "state", "questions", *(name for name in EXTENSIONS if name != "assets"))
REFUSED = ("temperature", "prompt_format_version", "return_prompt_token_ids")
"""By name, whatever becomes of other unknown fields."""


class Clef(Dialect):
    NAME = "clef"
    LIMITS = Limits(questions=400, options=255, levels=10, min_levels=1)
    """No cap on questions is documented."""
    SCHEMA_STATUS = 422
    REQUEST: type = ClefRequest
    RESPONSE: type = TypeSafeResponse
    ERROR: type = ClefError
    EXAMPLE = EXAMPLE

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        ignores = self._options.unknown_fields == "ignore"
        strangers = [] if ignores else sorted(set(body) - set(KNOWN))
        if refused := [name for name in REFUSED if name in body] or strangers:
            raise SchemaError([Fact((name,), "extra_forbidden", "Extra inputs are not permitted") for name in refused])
        check_body(body, any_state=True, strangers=False, require_model=self._options.require_model)
        taken = limits(self.LIMITS, decider)
        for qid, question in body["questions"].items():
            if fact := _fault(qid, question, taken):
                raise SchemaError([fact])
        keywords = passed_on(body)
        if keywords.get("images"):
            keywords["images"] = [_url(image) for image in keywords["images"]]
        asked = {**keywords, "state": body["state"], "questions": body["questions"], "limits": taken}
        return Asked(asked_model(body, self._options), own_id(body), asked)

    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        return {
            "answers": shaped_answers(decision, self._options, "distance", bare=True, levels_as_sent=True),
            "usage": decision.usage | {"output_tokens": 0},
            "model": model,
        }

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        match refusal.kind:
            case "schema":
                faults = [
                    {"loc": ["body", *fact.place], "msg": fact.message, "type": fact.code} for fact in refusal.facts
                ]
                return 422, {"detail": faults}
            case "json":
                place = ["body", refusal.position]
                return 422, {"detail": [{"loc": place, "msg": refusal.message, "type": "json_invalid"}]}
        status, name = row(_STATUS, refusal.kind, (400, "BadRequestError"), self._options)
        told = {"message": refusal.message, "type": name, "param": refusal.field, "code": status}
        return status, {"object": "error", **told}


DIALECT = Clef

_STATUS = {**STATUS, "content_type": (415, "UnsupportedMediaTypeError")}
"""vLLM's, and a type of its own for content that is no JSON; everything else is a 400."""


def _fault(qid: str, question: Mapping[str, Any], taken: Limits) -> Fact | None:
    place = ("questions", qid, question["type"])
    inside = (*place, "criteria")
    criteria: Any = question.get("criteria")
    match question["type"]:
        case "noul" if not question.get("instructions") and not any((criteria or {}).values()):
            return Fact(place, "value_error", "a noul question needs instructions, criteria, or both")
        case "choice" if not criteria:
            return Fact(inside, "too_short", "Dictionary should have at least 1 item after validation, not 0")
        case "choice" if taken.options is not None and len(criteria) > taken.options:
            count = f"at most {taken.options} items after validation, not {len(criteria)}"
            return Fact(inside, "too_long", f"Dictionary should have {count}")
        case "choice" if len({name.strip().casefold() for name in criteria}) < len(criteria):
            return Fact(inside, "value_error", "option names must differ, whatever their case and outer spaces")
        case "choice" if any(unicodedata.category(letter) == "Cc" for name in criteria for letter in name):
            return Fact(inside, "value_error", "option names must hold no control characters")
        case "score" if taken.levels is not None and len(criteria) > taken.levels:
            count = f"at most {taken.levels} items after validation, not {len(criteria)}"
            return Fact(inside, "too_long", f"List should have {count}")
    return None


def _url(image: Any) -> Any:
    """SGLang also takes ``{"url", "detail"}``."""
    if isinstance(image, Mapping):
        if not isinstance(image.get("url"), str) or not set(image) <= {"url", "detail"}:
            raise InputError("images: an image is a data URL, or an object with a url", kind="type", field="images")
        return image["url"]
    return image
