"""The bodies of TypeSafe's ``/v1/systemone`` as types: what the OpenAPI document says, and what tests hold answers to.

The hosted Clef and Liquid answer in the same form.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from serving.dialects.vllm_bodies import EXAMPLE, ChoiceAnswer, Probability, Question, Usage

__all__ = ["EXAMPLE", "TypeSafeError", "TypeSafeRequest", "TypeSafeResponse"]


class TypeSafeRequest(Struct):
    state: Annotated[str | dict[str, Any] | list[Any], Meta(description="What the questions are about.")]
    questions: Annotated[dict[str, Question], Meta(min_length=1, description="Question id to question.")]
    model: Annotated[str | None, Meta(description="A served model's name, jev-latest or jev-preview.")] = None
    assets: Annotated[
        dict[str, dict[str, Any]] | None,
        Meta(description="Placeholder in the text to {type: image, format, data_base64} or {type: image, part}."),
    ] = None


class BareNoulAnswer(Struct, tag_field="type", tag="noul", forbid_unknown_fields=True):
    noul: Annotated[Probability, Meta(description="Probability of yes.")]


class SentScoreAnswer(Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    score: Annotated[float, Meta(description="Expected level, counted from 0.")]
    legend: Annotated[dict[str, Any], Meta(description="Level to what was sent for it.")]
    probabilities: Annotated[dict[str, Probability], Meta(description="By level.")]
    confidence: Probability


class TypeSafeResponse(Struct, forbid_unknown_fields=True):
    model: str
    answers: dict[str, ChoiceAnswer | BareNoulAnswer | SentScoreAnswer]
    usage: Usage


class TypeSafeError(Struct, forbid_unknown_fields=True):
    detail: Annotated[Any, Meta(description="A list of faults (422), {error_type, message}, or text.")]
    error: dict[str, Any] | UnsetType = UNSET
