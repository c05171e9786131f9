"""Joint schema reads: every option of every question scored in one pass over one prompt.

The backbone is causal, so what a state comes to does not depend on the schema behind it. A long state is read in a pass
of its own, whose layer states and hidden states are kept, and another schema about it costs its own tokens alone. Which
prompts are read so follows from their lengths (``Grid.keeps``), so an answer has the same bits whether its state was
kept or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sysone_jax.answers import Read, softmax
from sysone_jax.errors import InputError
from sysone_jax.prompts import joint_schema
from sysone_jax.prompts.joint_schema import JointPrompt
from sysone_jax.questions import Limits, Question, parse_questions
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import check_vocabulary
from sysone_jax.reader.media import EncodedMedia
from sysone_jax.reader.rows import fill_schema
from sysone_jax.strategies.request import Plan, Request, Vision
from sysone_jax.text import Tokenizer


class JointReads:
    """Clef's joint schema head: every option of every question scored in one pass over one prompt."""

    name = "joint_schema"
    limits = Limits(questions=None, options=None, levels=None, min_levels=1)

    def __init__(self, tokenizer: Tokenizer, engine: Engine, max_model_len: int, vision: Vision | None = None) -> None:
        self.vision = vision
        self._placeholders = None if vision is None else vision.placeholders
        self._tokenizer = tokenizer
        self._engine = engine
        self._max_model_len = max_model_len

    def parse(self, questions: Any, limits: Limits) -> dict[str, Question]:
        return parse_questions(questions, limits)

    def plan(self, request: Request) -> Plan:
        if request.instructions:
            raise InputError(
                "this model reads a fixed prompt, so it takes no instructions", kind="unsupported", field="instructions"
            )
        if request.permutation_average:
            raise InputError(
                "permutation_average: this model reads all questions in one prompt, with every choice's options in an "
                "order of its own; leave it out",
                kind="unsupported",
                field="permutation_average",
            )
        prompt = joint_schema.build(
            self._tokenizer,
            state=request.state,
            questions=request.questions,
            max_length=self._max_model_len,
            overlong=request.overlong,
            rendering=request.rendering,
            media=request.media,
            placeholders=self._placeholders,
        )
        check_vocabulary(prompt.ids, self._engine.vocab_size)
        return Plan(
            request=request,
            prompts=prompt,
            input_tokens=len(prompt.ids),
            output_tokens=0,
            truncated_tokens=prompt.truncated_tokens,
        )

    def run(self, plan: Plan) -> dict[str, Read]:
        prompt: JointPrompt = plan.prompts
        media = self._engine.encoded(plan.request.media, self._placeholders)
        logits = self.logits(prompt, plan.request.cache_salt, media)
        reads, start = {}, 0
        for name, order in zip(plan.request.questions, prompt.orders, strict=True):
            own = np.empty(len(order))
            own[list(order)] = logits[start : start + len(order)]
            reads[name] = Read(softmax(own))
            start += len(order)
        return reads

    def logits(self, prompt: JointPrompt, salt: str | None = None, media: EncodedMedia | None = None) -> np.ndarray:
        """[O] of every option of every question, in the prompt's order."""
        schema = fill_schema(prompt, self._engine.grid)
        scored = self._engine.score_schema(prompt.ids, prompt.shared, schema, salt, media)
        return scored[: len(prompt.option_spans)].astype(np.float64)
