"""Read strategies: how a kind of decision model turns a request into one read per question.

A strategy joins a prompt format, the engine's programs and a limit on questions. It works in two steps, because they
belong to different threads: ``plan`` writes and checks the prompts in the caller's, ``run`` computes in the engine's.

    labels        each question is a prompt; the state's part is read once and shared, each question pays for its own
    joint_schema  all questions are one prompt and are scored together, so nothing is shared between questions: every
                  question's answer may depend on its siblings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sysone_jax.answers import Read, softmax
from sysone_jax.errors import InputError, NonFiniteError
from sysone_jax.prompts import joint_schema
from sysone_jax.prompts.labels import LabelPrompt, LabelPrompts
from sysone_jax.questions import JSON, Limits, Question
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import check_length
from sysone_jax.reader.rows import fill_rows, fill_schema, plan_calls
from sysone_jax.text import Rendering, Tokenizer


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request. ``Decider.request`` makes it from what a caller sends."""

    state: JSON
    questions: Mapping[str, Question]
    instructions: str | None
    chat_template_kwargs: Mapping[str, JSON]
    cache_salt: str | None
    rendering: Rendering
    overlong: joint_schema.Overlong


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
    prompts: Mapping[str, LabelPrompt] | joint_schema.JointPrompt
    input_tokens: int
    output_tokens: int
    truncated_tokens: int


class ReadStrategy(Protocol):
    name: str
    limits: Limits

    def plan(self, request: Request) -> Plan: ...

    def run(self, plan: Plan) -> dict[str, Read]: ...


class LabelReads:
    """vLLM's ``NextTokenStrategy``: the probability of each label as the reply's first token."""

    name = "labels"
    limits = Limits()

    def __init__(self, tokenizer: Tokenizer, engine: Engine, max_model_len: int, read_mode: str) -> None:
        self._prompts = LabelPrompts(tokenizer)
        self._engine = engine
        self._max_model_len = max_model_len
        self._read_mode = read_mode

    def plan(self, request: Request) -> Plan:
        prompts = self._prompts.build(
            state=request.state,
            questions=request.questions,
            instructions=request.instructions,
            chat_template_kwargs=request.chat_template_kwargs,
            rendering=request.rendering,
        )
        for qid, prompt in prompts.items():
            check_length(len(prompt.ids), self._max_model_len, qid)
        return Plan(
            request=request,
            prompts=prompts,
            input_tokens=sum(len(prompt.ids) for prompt in prompts.values()),
            output_tokens=len(prompts),
            truncated_tokens=0,
        )

    def run(self, plan: Plan) -> dict[str, Read]:
        assert isinstance(plan.prompts, Mapping)
        names, prompts = list(plan.prompts), list(plan.prompts.values())
        calls = list(plan_calls(prompts, self._engine.grid, self._read_mode))
        states = {
            prefix: self._engine.prefix_state(prefix, plan.request.cache_salt)
            for prefix in dict.fromkeys(call.prefix for call in calls)
        }
        reads: dict[str, Read] = {}
        for call in calls:
            result = self._engine.read_labels(states[call.prefix], fill_rows(prompts, call))
            for slot, number in enumerate(call.questions):
                count = len(prompts[number].label_ids)
                logits = result.labels[slot, :count].astype(np.float64)
                reads[names[number]] = _read(logits, result.total[slot], int(result.top[slot]), prompts[number])
        return {name: reads[name] for name in names}


def _read(logits: np.ndarray, total: np.float32, top: int, prompt: LabelPrompt) -> Read:
    if not (np.isfinite(logits).all() and np.isfinite(total)):
        raise NonFiniteError("the model gave a logit that is not finite; its weights or this element type are at fault")
    mass = float(np.exp(logits - np.float64(total)).sum())
    return Read(softmax(logits), label_mass=min(mass, 1.0), argmax_is_label=top in prompt.label_ids)


class JointReads:
    """Clef's joint schema head: every option of every question scored in one pass over one prompt."""

    name = "joint_schema"
    limits = Limits(questions=None, options=None, levels=None, min_levels=1)

    def __init__(self, tokenizer: Tokenizer, engine: Engine, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._max_model_len = max_model_len

    def plan(self, request: Request) -> Plan:
        if request.instructions:
            raise InputError(
                "this model reads a fixed prompt, so it takes no instructions", kind="unsupported", field="instructions"
            )
        prompt = joint_schema.build(
            self._tokenizer,
            state=request.state,
            questions=request.questions,
            max_length=self._max_model_len,
            overlong=request.overlong,
            rendering=request.rendering,
        )
        self._engine.grid.schema(len(prompt.orders), len(prompt.option_spans))
        return Plan(
            request=request,
            prompts=prompt,
            input_tokens=len(prompt.ids),
            output_tokens=0,
            truncated_tokens=prompt.truncated_tokens,
        )

    def run(self, plan: Plan) -> dict[str, Read]:
        prompt = plan.prompts
        assert isinstance(prompt, joint_schema.JointPrompt)
        logits = self._engine.score_schema(prompt.ids, fill_schema(prompt, self._engine.grid)).astype(np.float64)
        reads, start = {}, 0
        for name, order in zip(plan.request.questions, prompt.orders, strict=True):
            own = np.empty(len(order))
            own[list(order)] = logits[start : start + len(order)]
            reads[name] = Read(softmax(own))
            start += len(order)
        return reads
