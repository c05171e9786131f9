"""The bodies of vLLM's ``/v1/systemone`` as types: what the OpenAPI document says, and what tests hold answers to."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from serving.dialects.system_one import MOST_ID


class Question(Struct, forbid_unknown_fields=True):
    type: Literal["choice", "noul", "score"]
    instructions: Annotated[Any, Meta(description="What is asked: text, or any JSON.")] = ""
    criteria: Annotated[
        dict[str, Any] | list[Any] | None,
        Meta(
            description="choice: option name to description or null. noul: null, or an object with optional `true` and "
            "`false` descriptions. score: the levels, lowest first."
        ),
    ] = None


class SystemOneRequest(Struct, forbid_unknown_fields=True):
    state: Annotated[Any, Meta(description="What the questions are about: text, or any JSON.")]
    questions: Annotated[
        dict[str, Question],
        Meta(min_length=1, max_length=64, description="Question id to question, asked in this order."),
    ]
    model: Annotated[str | None, Meta(description="A served model's name; left out, the first.")] = None
    instructions: Annotated[
        str | None, Meta(description="Context ahead of the questions, for models that have a system turn.")
    ] = None
    images: Annotated[
        list[str] | None,
        Meta(description="PNG, JPEG or WebP as base64 data URLs, shown before the state; nothing is fetched."),
    ] = None
    audio: Annotated[list[str] | None, Meta(description="Refused: no model here hears.")] = None
    videos: Annotated[
        list[str] | None,
        Meta(description="MP4, WebM, QuickTime or Matroska as base64 data URLs, shown after the images."),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description='Variables for the chat template, such as {"enable_thinking": false}.')
    ] = None
    joint: Annotated[bool | None, Meta(description="Only false: no model here reads questions jointly on request.")] = (
        None
    )
    cache_salt: Annotated[str | None, Meta(description="States read under one salt are not reused under another.")] = (
        None
    )
    priority: Annotated[int | None, Meta(description="Taken and not used: requests run in the order they come.")] = None
    request_id: Annotated[
        Annotated[str, Meta(max_length=MOST_ID)] | None,
        Meta(description="The response's id is this after `decision-`."),
    ] = None


Probability = Annotated[float, Meta(ge=0, le=1)]


class ChoiceAnswer(Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    choice: str
    probabilities: Annotated[dict[str, Probability], Meta(description="By option name.")]
    confidence: Probability


class NoulAnswer(Struct, tag_field="type", tag="noul", forbid_unknown_fields=True):
    noul: Annotated[Probability, Meta(description="Probability of yes.")]
    probabilities: Annotated[dict[str, Probability], Meta(description="`yes` and `no`.")]
    confidence: Probability


class ScoreAnswer(Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    score: Annotated[float, Meta(description="Expected level, counted from 0.")]
    legend: Annotated[dict[str, str], Meta(description="Level to its name.")]
    probabilities: Annotated[dict[str, Probability], Meta(description="By level.")]
    confidence: Probability


class Usage(Struct, forbid_unknown_fields=True):
    input_tokens: int
    output_tokens: int
    truncated_tokens: Annotated[
        int | UnsetType, Meta(description="Tokens of the state that were left out, where any were.")
    ] = UNSET


class Diagnostics(Struct, forbid_unknown_fields=True):
    label_mass: Annotated[Probability, Meta(description="Probability of all labels over the whole vocabulary.")]
    argmax_is_label: bool


class SystemOneResponse(Struct, forbid_unknown_fields=True):
    id: str
    object: Literal["structured_decision"]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: str
    answers: dict[str, ChoiceAnswer | NoulAnswer | ScoreAnswer]
    usage: Usage
    diagnostics: dict[str, Diagnostics]
    read_mode: Annotated[
        Literal["exact", "throughput"],
        Meta(description="exact: the same request gives the same bits, whatever else runs."),
    ]


class ErrorDetail(Struct, forbid_unknown_fields=True):
    message: str
    type: str
    param: Annotated[str | None, Meta(description="Dotted path of the field at fault.")]
    code: Annotated[int, Meta(description="The status.")]


class ErrorResponse(Struct, forbid_unknown_fields=True):
    error: ErrorDetail
    detail: str | UnsetType = UNSET


EXAMPLE: dict[str, Any] = {
    "state": {"ticket": "My card was charged twice for one order."},
    "questions": {
        "team": {
            "type": "choice",
            "instructions": "Which team should handle this ticket?",
            "criteria": {"billing": "payments and refunds", "shipping": "deliveries", "security": "account access"},
        },
        "urgent": {"type": "noul", "instructions": "Does the customer need a reply within the hour?"},
        "tone": {
            "type": "score",
            "instructions": "How upset is the customer?",
            "criteria": ["calm", "annoyed", "furious"],
        },
    },
}
