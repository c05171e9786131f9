"""Label reads: each question's answer is the reply's first token, and the state is read once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sysone_jax.answers import Read, softmax
from sysone_jax.errors import NonFiniteError
from sysone_jax.prompts.labels import LabelPrompt, LabelPrompts
from sysone_jax.questions import Limits, Question, parse_questions
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import check_length, check_vocabulary
from sysone_jax.reader.rows import fill_rows, plan_calls
from sysone_jax.strategies.permutation import averaged, questions_and_reversed
from sysone_jax.strategies.request import Plan, Request, Vision
from sysone_jax.text import Tokenizer


class LabelReads:
    """vLLM's ``NextTokenStrategy``: the probability of each label as the reply's first token."""

    name = "labels"
    limits = Limits()

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Engine,
        max_model_len: int,
        read_mode: str,
        vision: Vision | None = None,
    ) -> None:
        self.vision = vision
        self._placeholders = None if vision is None else vision.placeholders
        self._prompts = LabelPrompts(tokenizer, self._placeholders)
        self._engine = engine
        self._max_model_len = max_model_len
        self._read_mode = read_mode

    def parse(self, questions: Any, limits: Limits) -> dict[str, Question]:
        return parse_questions(questions, limits)

    def plan(self, request: Request) -> Plan:
        prompts = [
            self._prompts.build(
                state=request.state,
                questions=questions,
                instructions=request.instructions,
                chat_template_kwargs=request.chat_template_kwargs,
                rendering=request.rendering,
                media=request.media,
            )
            for questions in questions_and_reversed(request)
        ]
        for part in prompts:
            for qid, prompt in part.items():
                check_length(len(prompt.ids), self._max_model_len, qid)
                check_vocabulary(prompt.ids, self._engine.vocab_size)
        return Plan(
            request=request,
            prompts=prompts,
            input_tokens=sum(len(prompt.ids) for part in prompts for prompt in part.values()),
            output_tokens=sum(map(len, prompts)),
            truncated_tokens=0,
        )

    def run(self, plan: Plan) -> dict[str, Read]:
        asked: Sequence[Mapping[str, LabelPrompt]] = plan.prompts
        prompts = [prompt for part in asked for prompt in part.values()]
        calls = list(plan_calls(prompts, self._engine.grid, self._read_mode))
        media = self._engine.encoded(plan.request.media, self._placeholders)
        states = {
            prefix: self._engine.prefix_state(prefix, plan.request.cache_salt, media)
            for prefix in dict.fromkeys(call.prefix for call in calls)
        }
        reads: dict[int, Read] = {}
        for call in calls:
            result = self._engine.read_labels(states[call.prefix], fill_rows(prompts, call))
            for slot, number in enumerate(call.questions):
                count = len(prompts[number].label_ids)
                logits = result.labels[slot, :count].astype(np.float64)
                reads[number] = _read(logits, result.total[slot], int(result.top[slot]), prompts[number])
        return averaged(asked, [reads[number] for number in range(len(prompts))])


def _read(logits: np.ndarray, total: np.float32, top: int, prompt: LabelPrompt) -> Read:
    if not (np.isfinite(logits).all() and np.isfinite(total)):
        raise NonFiniteError("the model gave a logit that is not finite; its weights or this element type are at fault")
    mass = float(np.exp(logits - np.float64(total)).sum())
    return Read(softmax(logits), label_mass=min(mass, 1.0), argmax_is_label=top in prompt.label_ids)
