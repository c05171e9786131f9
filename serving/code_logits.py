"""vLLM's ``/classify`` and ``/pooling`` for models that are read by answer codes: the raw logits of every code.

The input is a prompt as it stands, not a state and questions: text whose control tokens count, token ids, or a chat.
Only the first codes, one for each option, belong to a question that such a prompt asks; which they are, and the
temperature, is the business of ``/v1/systemone``.
"""

import base64
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from serving.body import read_object, shown
from serving.dialects.system_one import MOST_ID
from serving.dialects.vllm_bodies import ErrorResponse
from serving.door import served_name
from sysone_jax.answers import softmax
from sysone_jax.decider import CodeLogits, Decider
from sysone_jax.errors import InputError
from sysone_jax.questions import check_json, check_text

MOST_PROMPTS = 64
"""Of one request: each is a read of its own, as many as the questions of a decision."""
TASK = "classify"


class ClassifyRequest(Struct, forbid_unknown_fields=True):
    """``input`` or ``messages``: a prompt, several, or a chat."""

    input: str | list[str | int | list[int]] | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    request_id: str | None = None
    use_activation: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class PoolingRequest(ClassifyRequest, forbid_unknown_fields=True):
    task: str | None = None
    encoding_format: Literal["float", "base64"] | None = None


class TokenUsage(Struct, forbid_unknown_fields=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: None


class Classification(Struct, forbid_unknown_fields=True):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(Struct, forbid_unknown_fields=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Classification]
    usage: TokenUsage


class Pooled(Struct, forbid_unknown_fields=True):
    index: int
    object: Literal["pooling"]
    data: list[float] | str


class PoolingResponse(Struct, forbid_unknown_fields=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Pooled]
    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class PendingLogits:
    """A request that was accepted: ``decision`` is what the engine will answer, the rest is how it is to be written."""

    decision: Future[CodeLogits]
    model: str
    request_id: str | None
    softmax: bool
    base64: bool


class CodeDoor:
    """The way through one of the two routes: a body's bytes in, logits asked for, the response's body out."""

    ERROR = ErrorResponse
    EXAMPLE: Mapping[str, Any] = {"input": "<|im_start|>user\nState:\n...<|im_end|>\n<|im_start|>assistant\n"}

    def __init__(self, path: Literal["/classify", "/pooling"], decider: Decider, names: Sequence[str]) -> None:
        self.path = path
        self.REQUEST, self.RESPONSE = (
            (ClassifyRequest, ClassifyResponse) if path == "/classify" else (PoolingRequest, PoolingResponse)
        )
        self.names = tuple(names)
        self._decider = decider

    def begin(self, raw: bytes) -> PendingLogits:
        """Check a body, encode its prompts and queue their reads.

        Raises:
            InputError: the body is at fault.
        """
        body = read_object(raw)
        fields = self.REQUEST.__struct_fields__
        if "normalize" in body:
            raise InputError(
                "normalize was removed; use_activation says whether a softmax is taken",
                kind="unknown_field",
                field="normalize",
            )
        if unknown := sorted(set(body) - set(fields)):
            raise InputError(
                f"unknown field(s) {shown(unknown)}; this endpoint takes {', '.join(sorted(fields))}",
                kind="unknown_field",
                field=unknown[0],
            )
        for name, (said, holds) in _KINDS.items():
            if (value := body.get(name)) is not None and not holds(value):
                raise InputError(f"{name}: must be {said}", kind="type", field=name)
        if (task := body.get("task")) not in (None, TASK):
            raise InputError(
                f"task: {shown(task)} is not supported by this model; supported: {TASK}",
                kind="unsupported",
                field="task",
            )
        if body.get("request_id") is not None:
            check_text(body["request_id"], "request_id")
        keep = body.get("truncate_prompt_tokens")
        prompts = [self._kept(ids, keep) for ids in self._prompts(body)]
        return PendingLogits(
            decision=self._decider.code_logits(prompts),
            model=served_name(body.get("model"), self.names),
            request_id=body.get("request_id") or None,
            softmax=body.get("use_activation") is True,
            base64=body.get("encoding_format") == "base64",
        )

    def answer(self, pending: PendingLogits, decision: CodeLogits, request_id: str | None = None) -> dict[str, Any]:
        """The body of the 200 response; ``request_id`` is used where the request gave itself none."""
        rows = decision.logits.astype(np.float64)
        if pending.softmax:
            rows = np.array([softmax(row) for row in rows])
        tokens = sum(decision.tokens)
        classify = self.path == "/classify"
        return {
            "id": f"{'classify' if classify else 'pool'}-{pending.request_id or request_id or uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": pending.model,
            "data": [
                {
                    "index": index,
                    "label": decision.codes[int(row.argmax())],
                    "probs": row.tolist(),
                    "num_classes": len(row),
                }
                if classify
                else {"index": index, "object": "pooling", "data": _data(row, pending.base64)}
                for index, row in enumerate(rows)
            ],
            "usage": {
                "prompt_tokens": tokens,
                "total_tokens": tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }

    def _prompts(self, body: Mapping[str, Any]) -> list[list[int]]:
        """Token ids of every prompt."""
        given, messages = body.get("input"), body.get("messages")
        if (given is None) == (messages is None):
            raise InputError("input: give either input or messages", kind="missing", field="input")
        for name in ("add_generation_prompt", "chat_template_kwargs"):
            if messages is None and body.get(name) is not None:
                raise InputError(f"{name}: belongs to messages; leave it out", field=name)
        if messages is not None:
            turns = [_turn(number, message) for number, message in enumerate(messages)]
            if not turns:
                raise InputError("messages: needs at least one message", field="messages")
            return [
                self._decider.encode_chat(
                    turns,
                    add_generation_prompt=bool(body.get("add_generation_prompt")),
                    chat_template_kwargs=body.get("chat_template_kwargs"),
                )
            ]
        assert given is not None
        single = isinstance(given, str) or (bool(given) and all(map(_is_id, given)))
        prompts: list[Any] = [given] if single else list(given)
        if not prompts:
            raise InputError("input: needs at least one prompt", field="input")
        if len(prompts) > MOST_PROMPTS:
            raise InputError(f"input: at most {MOST_PROMPTS} prompts; send them in several requests", field="input")
        return [
            self._decider.encode(prompt, f"input.{number}") if isinstance(prompt, str) else prompt
            for number, prompt in enumerate(prompts)
        ]

    def _kept(self, ids: list[int], keep: int | None) -> list[int]:
        """The last ``keep`` tokens; -1 keeps as many as the model reads."""
        if keep is None:
            return ids
        if not -1 <= keep <= self._decider.max_model_len or keep == 0:
            raise InputError(
                f"truncate_prompt_tokens: must be -1 or from 1 to {self._decider.max_model_len}, not {keep}",
                field="truncate_prompt_tokens",
            )
        return ids[-(self._decider.max_model_len if keep == -1 else keep) :]


def _data(row: np.ndarray, as_base64: bool) -> list[float] | str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") if as_base64 else row.tolist()


def _turn(number: int, message: Any) -> dict[str, str]:
    """One message as role and text; its parts are joined by a newline, as vLLM joins them."""
    field = f"messages.{number}"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"{field}: must be an object with role and content", kind="type", field=field)
    if unknown := sorted(set(message) - {"role", "content", "name"}):
        raise InputError(f"{field}: unknown field(s) {shown(unknown)}", kind="unknown_field", field=field)
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) and set(part) == {"type", "text"} for part in content):
            raise InputError(
                f"{field}.content: only text parts are read here", kind="unsupported", field=f"{field}.content"
            )
        content = "\n".join(str(part["text"]) for part in content)
    if not isinstance(content, str):
        raise InputError(
            f"{field}.content: must be text or a list of text parts", kind="type", field=f"{field}.content"
        )
    check_json({"role": message["role"], "content": content}, field)
    return {"role": message["role"], "content": content}


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_input(value: Any) -> bool:
    if isinstance(value, str):
        return True
    if not isinstance(value, list):
        return False
    return (
        all(isinstance(item, str) for item in value)
        or all(map(_is_id, value))
        or all(isinstance(item, list) and all(map(_is_id, item)) for item in value)
    )


_TEXT = ("text", lambda value: isinstance(value, str))
_FLAG = ("true or false", lambda value: isinstance(value, bool))
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "input": ("text, token ids, or a list of either", _is_input),
    "messages": ("a list of messages", lambda value: isinstance(value, list)),
    "model": _TEXT,
    "user": _TEXT,
    "truncate_prompt_tokens": ("a whole number", _is_id),
    "priority": ("a whole number", _is_id),
    "request_id": (
        f"text of at most {MOST_ID} characters",
        lambda value: isinstance(value, str) and len(value) <= MOST_ID,
    ),
    "use_activation": _FLAG,
    "add_generation_prompt": _FLAG,
    "chat_template_kwargs": ("an object", lambda value: isinstance(value, dict)),
    "task": _TEXT,
    "encoding_format": ("float or base64", lambda value: value in ("float", "base64")),
}
