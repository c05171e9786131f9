"""What a strategy takes and makes: a checked request, a plan of its prompts, a read of every question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sysone_jax.answers import Read
from sysone_jax.media.request import NOTHING, Media, MediaReader
from sysone_jax.prompts.joint_schema import Overlong
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.questions import JSON, Limits, Question
from sysone_jax.text import Rendering


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request. ``Decider.request`` makes it from what a caller sends."""

    state: JSON
    questions: Mapping[str, Question]
    instructions: str | None
    chat_template_kwargs: Mapping[str, JSON]
    cache_salt: str | None
    rendering: Rendering
    overlong: Overlong
    permutation_average: bool = False
    media: Media = NOTHING


@dataclass(frozen=True, slots=True)
class Plan:
    """A request as token ids, checked against the model's length.

    Attributes:
        prompts: what ``run`` takes, the strategy's own.
        input_tokens: tokens of all prompts.
        output_tokens: reads that count as generated tokens: one a question where the answer is a next token.
        truncated_tokens: tokens of the state left out.
    """

    request: Request
    prompts: Any
    input_tokens: int
    output_tokens: int
    truncated_tokens: int


@dataclass(frozen=True, slots=True)
class Vision:
    """How a model takes images and videos: what it reads of them, and the tokens that stand for them."""

    reader: MediaReader
    placeholders: Placeholders


class ReadStrategy(Protocol):
    name: str
    limits: Limits
    vision: Vision | None

    def parse(self, questions: Any, limits: Limits) -> dict[str, Question]: ...

    def plan(self, request: Request) -> Plan: ...

    def run(self, plan: Plan) -> dict[str, Read]: ...
