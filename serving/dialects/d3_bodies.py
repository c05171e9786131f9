"""The bodies of the hosted Decision 3.0 as types: vLLM's, without what it does not have."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from serving.dialects.vllm_bodies import EXAMPLE, ChoiceAnswer, Diagnostics, NoulAnswer, Question, ScoreAnswer, Usage

__all__ = ["EXAMPLE", "D3Request", "D3Response"]


class D3Request(Struct, forbid_unknown_fields=True):
    state: Annotated[Any, Meta(description="What the questions are about: text, or any JSON.")]
    questions: Annotated[dict[str, Question], Meta(min_length=1, max_length=64)]
    model: str | None = None
    images: Annotated[list[str] | None, Meta(description="PNG, JPEG or WebP as base64 data URLs.")] = None
    videos: Annotated[list[str] | None, Meta(description="MP4, WebM, QuickTime or Matroska as data URLs.")] = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None


class D3Response(Struct, forbid_unknown_fields=True):
    id: str
    object: Literal["structured_decision"]
    created: int
    model: str
    answers: dict[str, ChoiceAnswer | NoulAnswer | ScoreAnswer]
    usage: Usage
    diagnostics: dict[str, Diagnostics]
