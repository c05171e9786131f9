"""Answer code reads (Decision 3.0): one prompt a question, read by a softmax over its own codes at its last token.

A causal checkpoint reads the state once for all questions, as label reads do. In most releases full attention reads
both ways: a token of the state then attends to the question behind it, so the state comes to something else under every
question and nothing of it can be shared. Each question is a pass of its own, and passes of one size run together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sysone_jax.answers import Read, softmax
from sysone_jax.errors import InputError, NonFiniteError
from sysone_jax.heads.answer_codes import CODES, AnswerCodesConfig
from sysone_jax.media.images import ImageLimits
from sysone_jax.media.request import Media, MediaReader
from sysone_jax.media.video import VideoLimits
from sysone_jax.prompts.answer_codes import CodePrompt, CodePrompts
from sysone_jax.questions import Limits, Question
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import check_length, check_vocabulary
from sysone_jax.reader.media import EncodedMedia
from sysone_jax.reader.rows import fill_tokens, plan_calls, plan_whole
from sysone_jax.strategies import code_questions
from sysone_jax.strategies.permutation import averaged, questions_and_reversed
from sysone_jax.strategies.request import Plan, Request, Vision
from sysone_jax.text import Tokenizer

MOST_VIDEO_TOKENS = 16_384


def released_budgets(reader: MediaReader) -> MediaReader:
    """A checkpoint's processor, with the budgets and limits that the release reads media with."""
    return replace(
        reader,
        images=replace(reader.images, fewest=65_536, most=1_638_400),
        videos=replace(
            reader.videos,
            fewest=4096,
            most=32 * 200_704,
            fps=2.0,
            min_frames=4,
            max_frames=32,
            frame_tokens=200_704 // reader.videos.factor**2,
            array_fps=2.0,
            repeat_first=True,
        ),
        max_video_tokens=MOST_VIDEO_TOKENS,
        image_limits=ImageLimits(max_bytes=8_000_000, max_pixels=16_000_000),
        video_limits=VideoLimits(max_bytes=32_000_000, max_seconds=300, max_pixels=8_294_400),
        transparency="dropped",
    )


class CodeReads:
    """Decision 3.0's readout over the codes of a question's options."""

    name = "answer_codes"
    limits = Limits(questions=None, options=CODES, levels=10, min_levels=2)

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Engine,
        config: AnswerCodesConfig,
        max_model_len: int,
        read_mode: str,
        vision: Vision | None = None,
    ) -> None:
        self.vision = vision
        self.codes = config.codes
        self.tokenizer = tokenizer
        self._placeholders = None if vision is None else vision.placeholders
        self._prompts = CodePrompts(tokenizer, config.codes, self._placeholders)
        self._engine = engine
        self._config = config
        self._max_model_len = max_model_len
        self._read_mode = read_mode

    def parse(self, questions: Any, limits: Limits) -> dict[str, Question]:
        return code_questions.parse(questions, limits)

    def plan(self, request: Request) -> Plan:
        if request.instructions:
            raise InputError(
                "this model reads a fixed prompt, so it takes no instructions", kind="unsupported", field="instructions"
            )
        prompts = [
            self._prompts.build(
                state=request.state, questions=questions, rendering=request.rendering, media=request.media
            )
            for questions in questions_and_reversed(request)
        ]
        for part in prompts:
            for qid, prompt in part.items():
                self._check_length(qid, prompt, request.media)
                check_vocabulary(prompt.ids, self._engine.vocab_size)
        return Plan(
            request=request,
            prompts=prompts,
            input_tokens=sum(len(prompt.ids) for part in prompts for prompt in part.values()),
            output_tokens=0,
            truncated_tokens=0,
        )

    def run(self, plan: Plan) -> dict[str, Read]:
        asked: Sequence[Mapping[str, CodePrompt]] = plan.prompts
        prompts = [prompt for part in asked for prompt in part.values()]
        media = self._engine.encoded(plan.request.media, self._placeholders)
        logits = self.logits(prompts, plan.request.cache_salt, media)
        return averaged(asked, [self._read(row, prompt) for row, prompt in zip(logits, prompts, strict=True)])

    def raw(self, prompts: Sequence[Sequence[int]]) -> list[CodePrompt]:
        """Prompts that come as ids, checked. They share nothing and belong to no question."""
        rows = []
        for number, ids in enumerate(prompts):
            if not ids:
                raise InputError(f"input.{number}: a prompt needs at least one token", field=f"input.{number}")
            if len(ids) > self._max_model_len:
                raise InputError(
                    f"input.{number}: the prompt has {len(ids)} tokens, more than max_model_len={self._max_model_len}; "
                    "nothing is truncated unless truncate_prompt_tokens says so",
                    kind="too_long",
                    field=f"input.{number}",
                )
            if min(ids) < 0 or max(ids) >= self._engine.vocab_size:
                raise InputError(
                    f"input.{number}: token ids must be from 0 to {self._engine.vocab_size - 1}",
                    field=f"input.{number}",
                )
            rows.append(CodePrompt(tuple(ids), max(0, len(ids) - 1), ()))
        return rows

    def logits(
        self, prompts: Sequence[CodePrompt], salt: str | None = None, media: EncodedMedia | None = None
    ) -> np.ndarray:
        """[prompts, 255] raw logits of every code, whichever of them belong to a question."""
        rows = np.empty((len(prompts), len(self.codes)), np.float32)
        if self._config.causal:
            planned = sorted(plan_calls(prompts, self._engine.grid, self._read_mode), key=lambda call: call.prefix)
            for prefix, calls in itertools.groupby(planned, key=lambda call: call.prefix):
                state = self._engine.prefix_state(prefix, salt, media)  # held one at a time: raw prompts share none
                for call in calls:
                    result = self._engine.read_codes(state, fill_tokens(prompts, call))
                    rows[list(call.questions)] = result[: len(call.questions)]
        else:
            for call in plan_whole(prompts, self._engine.grid, media is not None):
                result = self._engine.encode_codes(fill_tokens(prompts, call), prompts[call.questions[0]].ids, media)
                rows[list(call.questions)] = result[: len(call.questions)]
        if not np.isfinite(rows).all():
            raise NonFiniteError(
                "the model gave a logit that is not finite; its weights or this element type are at fault"
            )
        return rows

    def _check_length(self, qid: str, prompt: CodePrompt, media: Media) -> None:
        count, images = len(prompt.ids), len(media.images)
        shown = f" ({sum(item.tokens for item in media.images)} for {images} image(s))" if images else ""
        try:
            check_length(count, self._max_model_len, qid)
        except InputError as error:
            raise InputError(
                f"question {qid!r}: the question prompt has {count} tokens{shown}, over the maximum context "
                f"length of {self._max_model_len} tokens; nothing was truncated",
                kind=error.kind,
                field=error.field,
                served=str(error),
            ) from None

    def _read(self, logits: np.ndarray, prompt: CodePrompt) -> Read:
        count = len(prompt.order)
        own = np.empty(count)
        own[list(prompt.order)] = logits[:count].astype(np.float64) / self._config.temperature
        return Read(softmax(own), argmax_is_label=int(logits.argmax()) < count)
