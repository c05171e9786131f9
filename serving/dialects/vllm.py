"""vLLM's ``/v1/systemone``: flat bodies, confidence as the winner's probability over the whole vocabulary, 400 errors.

Answers also carry ``read_mode``, which vLLM does not have.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from serving.dialects import Asked, Dialect, Refusal, limits, row
from serving.dialects.system_one import (
    PASSED_ON,
    own_id,
    refuse_joint,
    refuse_unknown,
    shaped_answers,
    without_strangers,
)
from serving.dialects.vllm_bodies import EXAMPLE, ErrorResponse, SystemOneRequest, SystemOneResponse
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError
from sysone_jax.questions import Limits


class Vllm(Dialect):
    NAME = "vllm"
    CONFIDENCE = "mass"
    LIMITS = Limits(questions=64, options=26, levels=10, min_levels=2)
    """The same for every model, also for those that read more; ``serving.dialects.limits`` knows the exception."""
    REQUEST: type = SystemOneRequest
    RESPONSE: type = SystemOneResponse
    ERROR: type = ErrorResponse
    EXAMPLE = EXAMPLE

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        if self._options.unknown_fields == "ignore":
            body = {name: value for name, value in body.items() if name in _FIELDS}
            if "questions" in body:
                body["questions"] = without_strangers(body["questions"])
        refuse_unknown(body, _FIELDS)
        for name in ("state", "questions"):
            if name not in body:
                raise InputError(f"{name}: field required", kind="missing", field=name)
        for name, value in body.items():
            wanted = _FIELDS[name]
            if value is not None and wanted is not None and not wanted.holds(value):
                raise InputError(f"{name}: must be {wanted.said}", kind="type", field=name)
        refuse_joint(body)
        request_id = own_id(body)
        asked = {name: body[name] for name in ("state", "questions", *PASSED_ON) if name in body}
        return Asked(body.get("model"), request_id, {**asked, "limits": limits(self.LIMITS, decider)})

    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        return {
            "id": f"decision-{request_id}",
            "object": "structured_decision",
            "created": created,
            "model": model,
            "answers": shaped_answers(decision, self._options, self.CONFIDENCE, bare=False, levels_as_sent=False),
            "usage": decision.usage,
            "diagnostics": decision.diagnostics,
            "read_mode": decision.read_mode,
        }

    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        status, name = row(STATUS, refusal.kind, (400, "BadRequestError"), self._options)
        told = {"message": refusal.message, "type": name, "param": refusal.field, "code": status}
        return status, {"error": told}


DIALECT = Vllm

STATUS = {
    "auth_missing": (401, "AuthenticationError"),
    "auth": (401, "AuthenticationError"),
    "unknown_model": (404, "NotFoundError"),
    "not_found": (404, "NotFoundError"),
    "method": (405, "MethodNotAllowedError"),
    "timeout": (408, "RequestTimeoutError"),
    "body_size": (413, "ContentTooLargeError"),
    "content_encoding": (415, "UnsupportedMediaTypeError"),
    "rate": (429, "RateLimitError"),
    "internal": (500, "InternalServerError"),
    "overload": (503, "ServiceUnavailableError"),
    "starting": (503, "ServiceUnavailableError"),
    "ending": (503, "ServiceUnavailableError"),
}
"""Everything else is a 400, also what other servers answer with 422."""


class _Kind(NamedTuple):
    said: str
    holds: Callable[[Any], bool]


_TEXT = _Kind("text", lambda value: isinstance(value, str))
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_COUNT = _Kind("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
_MEDIA = _Kind(
    "a list of URLs or data URLs",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)

# None: the Decider checks the field, in vLLM's words where vLLM has words for it.
_FIELDS: dict[str, _Kind | None] = {
    "model": _TEXT,
    "state": None,
    "questions": None,
    "instructions": None,
    "images": _MEDIA,
    "audio": _MEDIA,
    "videos": _MEDIA,
    "chat_template_kwargs": None,
    "joint": _FLAG,
    "cache_salt": None,
    "priority": _COUNT,
    "request_id": _TEXT,
}
