"""The bodies of ``/v1/decisions`` as types: what the OpenAPI document says, and what tests hold answers to."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from serving.dialects.vllm_bodies import Probability

EXAMPLE: dict[str, Any] = {
    "input": "The package arrived with a broken screen.",
    "questions": [
        {"type": "predicate", "name": "damaged", "instructions": "Does the customer report a damaged item?"},
        {
            "type": "choice",
            "name": "department",
            "instructions": "Which department should handle this complaint?",
            "choices": [{"value": "returns"}, {"value": "billing"}],
        },
        {
            "type": "score",
            "instructions": "How severe is the damage?",
            "levels": [{"label": "cosmetic"}, {"label": "broken"}],
        },
    ],
}


class Predicate(Struct, tag_field="type", tag="predicate", forbid_unknown_fields=True):
    instructions: str | list[dict[str, Any]]
    name: str | None = None


class ChoiceOption(Struct, forbid_unknown_fields=True):
    value: str | bool
    description: str | None = None


class ChoiceQuestion(Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    instructions: str | list[dict[str, Any]]
    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=255)]
    name: str | None = None


class ScoreLevel(Struct, forbid_unknown_fields=True):
    label: str
    description: str | None = None


class ScoreQuestion(Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    instructions: str | list[dict[str, Any]]
    levels: Annotated[list[ScoreLevel], Meta(min_length=2, max_length=10)]
    name: str | None = None


class DecisionsRequest(Struct, forbid_unknown_fields=True):
    input: Annotated[str | list[dict[str, Any]], Meta(description="Text, or messages.")]
    questions: Annotated[list[Predicate | ChoiceQuestion | ScoreQuestion], Meta(min_length=1, max_length=400)]
    model: str | None = None
    instructions: str | list[dict[str, Any]] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    joint: bool | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class PredicateAnswer(Struct, tag_field="type", tag="predicate", forbid_unknown_fields=True):
    name: str | None
    probability: Probability


class ValueProbability(Struct, forbid_unknown_fields=True):
    value: str | bool
    probability: Probability


class ListedChoiceAnswer(Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    name: str | None
    choice: str | bool
    probabilities: list[ValueProbability]
    confidence: Probability


class LevelProbability(Struct, forbid_unknown_fields=True):
    value: int
    label: str
    probability: Probability


class ListedScoreAnswer(Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    name: str | None
    score: float
    probabilities: list[LevelProbability]
    confidence: Probability


class InputDetails(Struct, forbid_unknown_fields=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct, forbid_unknown_fields=True):
    reasoning_tokens: int


class DecisionsUsage(Struct, forbid_unknown_fields=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class DecisionsResponse(Struct, forbid_unknown_fields=True):
    model: str
    answers: list[PredicateAnswer | ListedChoiceAnswer | ListedScoreAnswer]
    usage: DecisionsUsage


class DecisionsErrorDetail(Struct, forbid_unknown_fields=True):
    message: str
    type: str
    param: str | None
    code: int | str | None


class DecisionsError(Struct, forbid_unknown_fields=True):
    error: DecisionsErrorDetail
    detail: str | UnsetType = UNSET
