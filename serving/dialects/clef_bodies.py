"""The bodies of the hosted Clef as types; its answers are those of ``typesafe_bodies``."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from serving.dialects.vllm_bodies import Question


class ClefRequest(Struct):
    state: Annotated[Any, Meta(description="What the questions are about: text, or any JSON.")]
    questions: Annotated[dict[str, Question], Meta(min_length=1, description="Question id to question.")]
    model: str | None = None
    images: Annotated[
        list[str | dict[str, Any]] | None, Meta(description="Data URLs, or objects with one as their `url`.")
    ] = None


class ClefError(Struct, forbid_unknown_fields=True):
    """A 422 has ``detail``, every other refusal the rest."""

    detail: list[dict[str, Any]] | str | UnsetType = UNSET
    object: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    param: str | None | UnsetType = UNSET
    code: int | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET
