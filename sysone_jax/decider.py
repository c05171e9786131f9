"""The Decider: a state and typed questions in, a probability for every allowed answer out.

Evaluation, the server and the command line all go through it, so all of them get the same numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, get_args

import numpy as np

from sysone_jax.answers import Read, answer
from sysone_jax.compile import COUNTER
from sysone_jax.errors import InputError
from sysone_jax.media.request import NOTHING
from sysone_jax.prompts.joint_schema import Overlong
from sysone_jax.questions import JSON, Limits, Question, check_json
from sysone_jax.reader.engine import Engine
from sysone_jax.strategies.answer_codes import CodeReads
from sysone_jax.strategies.request import Plan, ReadStrategy, Request
from sysone_jax.text import Rendering

READ_MODES = ("exact", "throughput")
RENDERINGS = get_args(Rendering)


class Decision(dict[str, dict[str, JSON]]):
    """Question id -> answer, in the wire form of ``/v1/systemone``; json.dumps writes it as it is.

    Attributes:
        model: the name of the model that answered.
        usage: ``input_tokens``, ``output_tokens`` and, when the state was cut, ``truncated_tokens``.
        diagnostics: question id -> ``label_mass`` and ``argmax_is_label``.
        reads: question id -> unrounded probabilities in the order of the question's options.
        questions: question id -> question.
        read_mode: ``exact`` or ``throughput``.
    """

    def __init__(self, plan: Plan, reads: Mapping[str, Read], model: str, read_mode: str) -> None:
        self.model = model
        self.read_mode = read_mode
        self.reads = dict(reads)
        self.questions = dict(plan.request.questions)
        self.usage = {"input_tokens": plan.input_tokens, "output_tokens": plan.output_tokens}
        if plan.truncated_tokens:
            self.usage["truncated_tokens"] = plan.truncated_tokens
        self.diagnostics = {
            name: {"label_mass": read.label_mass, "argmax_is_label": read.argmax_is_label}
            for name, read in reads.items()
        }
        super().__init__({name: answer(question, self.reads[name]) for name, question in self.questions.items()})


class CodeLogits(NamedTuple):
    """Raw logits of every answer code, not divided by the temperature: [prompts, codes], and each prompt's tokens."""

    codes: tuple[str, ...]
    logits: np.ndarray
    tokens: tuple[int, ...]


class Decider:
    """A loaded model. ``sysone_jax.load`` makes one; its methods may be called from any thread.

    Attributes:
        name: what answers call the model.
        architecture: of the backbone, as ``config.json`` names it.
        strategy: ``labels``, ``joint_schema`` or ``answer_codes``.
        revision: of the source it was converted from, and of the converter.
        dtype: of the backbone, ``float32`` or ``bfloat16``.
        head_dtype: of a joint head; None for models without one.
        read_mode: ``exact`` (an answer's bits depend on its request alone) or ``throughput``.
        limits: what a request may hold.
        max_model_len: most tokens of a prompt.
    """

    def __init__(
        self,
        *,
        name: str,
        architecture: str,
        revision: str,
        dtype: str,
        read_mode: str,
        rendering: Rendering,
        max_model_len: int,
        strategy: ReadStrategy,
        engine: Engine,
        head_dtype: str | None = None,
        no_media: str | None = None,
    ) -> None:
        self.name = name
        self.architecture = architecture
        self.revision = revision
        self.strategy = strategy.name
        self.dtype = dtype
        self.head_dtype = head_dtype
        self.read_mode = read_mode
        self.limits = strategy.limits
        self.max_model_len = max_model_len
        self._rendering: Rendering = rendering
        self._strategy = strategy
        self._no_media = no_media
        self._engine = engine

    def decide(
        self,
        *,
        state: JSON,
        questions: Mapping[str, Question | Mapping[str, JSON]],
        instructions: str | None = None,
        images: Sequence[Any] | None = None,
        videos: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, JSON] | None = None,
        cache_salt: str | None = None,
        rendering: Rendering | None = None,
        overlong: Overlong = "refuse",
        permutation_average: bool = False,
    ) -> Decision:
        """Answer questions about a state.

        Args:
            state: text, or any JSON value.
            questions: id -> ``Choice``, ``Noul`` or ``Score``, or the wire form ``{type, instructions, criteria}``.
            instructions: the system turn, for models that have one.
            images: for models with a vision tower: data URLs, bytes, ``pathlib.Path``s, Pillow images, arrays
                [H, W, 3] of uint8, or ``media.embedding.Embedding``s. They stand before the state.
            videos: the same, decoded ones being arrays of frames [N, H, W, 3]; they follow the images.
            audio: no model of this version takes any.
            chat_template_kwargs: variables for the chat template of models that use one.
            cache_salt: states read under one salt are not reused under another.
            rendering: ``reference`` (byte for byte as the reference writes it) or ``escape`` (text that spells a
                control token stays text); the loaded default when None.
            overlong: for models whose reference cuts a long state: ``refuse`` it, or ``truncate`` its end.
            permutation_average: read every choice a second time with its options reversed and give each option the
                mean, for models that read one question at a time; twice the work and the tokens.

        Raises:
            InputError: the request is at fault; the message names the field, the limit and the fix.
            NonFiniteError: the model gave a logit that is no number.
        """
        request = self.request(
            state=state,
            questions=questions,
            instructions=instructions,
            images=images,
            videos=videos,
            audio=audio,
            chat_template_kwargs=chat_template_kwargs,
            cache_salt=cache_salt,
            rendering=rendering,
            overlong=overlong,
            permutation_average=permutation_average,
        )
        return self.submit(request).result()

    def decide_batch(self, requests: Sequence[Request | Mapping[str, Any]]) -> list[Decision]:
        """Answer many requests, each the keywords of ``decide`` or a ``Request``; all are checked before any is run."""
        checked = [self._checked(each, number) for number, each in enumerate(requests)]
        plans = [self._strategy.plan(request) for request in checked]
        return [future.result() for future in [self._run(plan) for plan in plans]]

    def _checked(self, request: Request | Mapping[str, Any], number: int) -> Request:
        if isinstance(request, Request):
            return request
        if not isinstance(request, Mapping):
            raise InputError(
                f"requests[{number}]: must be a Request or the keywords of decide, not {type(request).__name__}",
                kind="type",
                field=f"requests.{number}",
            )
        try:
            inspect.signature(self.request).bind(**request)
        except TypeError as error:  # a keyword that is missing, or that there is not
            raise InputError(f"requests[{number}]: {error}", kind="type", field=f"requests.{number}") from None
        return self.request(**request)

    def request(
        self,
        *,
        state: JSON,
        questions: Mapping[str, Question | Mapping[str, JSON]],
        instructions: str | None = None,
        images: Sequence[Any] | None = None,
        videos: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, JSON] | None = None,
        cache_salt: str | None = None,
        rendering: Rendering | None = None,
        overlong: Overlong = "refuse",
        permutation_average: bool = False,
        limits: Limits | None = None,
    ) -> Request:
        """Check a request without reading it. ``limits`` narrows the model's own, for a dialect that has fewer."""
        self._check_kinds(images, videos, audio)
        check_json(state, "state")
        if instructions is not None and not isinstance(instructions, str):
            raise InputError("instructions: must be text", kind="type", field="instructions")
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise InputError("cache_salt: must be non-empty text", kind="type", field="cache_salt")
        check_json(instructions, "instructions")
        check_json(cache_salt, "cache_salt")
        template = {} if chat_template_kwargs is None else chat_template_kwargs
        if not isinstance(template, Mapping):
            raise InputError("chat_template_kwargs: must be an object", kind="type", field="chat_template_kwargs")
        check_json(dict(template), "chat_template_kwargs")
        chosen = rendering or self._rendering
        if chosen not in RENDERINGS:
            raise InputError(f"rendering: must be one of {', '.join(RENDERINGS)}, not {chosen!r}", field="rendering")
        if overlong not in get_args(Overlong):
            raise InputError(
                f"overlong: must be one of {', '.join(get_args(Overlong))}, not {overlong!r}", field="overlong"
            )
        if not isinstance(permutation_average, bool):
            raise InputError("permutation_average: must be true or false", kind="type", field="permutation_average")
        parsed = self._strategy.parse(questions, limits or self.limits)
        vision = self._strategy.vision
        return Request(
            state=state,
            questions=parsed,
            instructions=instructions,
            chat_template_kwargs=template,
            cache_salt=cache_salt,
            rendering=chosen,
            overlong=overlong,
            permutation_average=permutation_average,
            media=NOTHING if vision is None else vision.reader.read(images or (), videos or ()),
        )

    def _check_kinds(self, images: Any, videos: Any, audio: Any) -> None:
        for kind, items in (("image", images), ("video", videos), ("audio", audio)):
            if items is None or (isinstance(items, list | tuple) and not items):
                continue
            if kind == "audio" or self._strategy.vision is None:
                why = f"this model does not take {kind} inputs"
                if kind != "audio" and self._no_media is not None:
                    why = f"{kind} inputs are not available: {self._no_media}"
                raise InputError(why, kind="unsupported", field=kind if kind == "audio" else f"{kind}s")

    def submit(self, request: Request) -> Future[Decision]:
        """Write the prompts here and now (InputError is raised here), and queue the reading of them."""
        return self._run(self._strategy.plan(request))

    def encode(self, text: str, field: str = "text") -> list[int]:
        """A prompt's token ids, control tokens included, for ``code_logits``."""
        check_json(text, field)
        return self._codes().tokenizer.encode(text)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, JSON] | None = None,
    ) -> list[int]:
        """A chat's token ids by the model's template, for ``code_logits``; messages are ``{"role", "content"}``."""
        return self._codes().tokenizer.conversation(
            messages, add_generation_prompt=add_generation_prompt, template_kwargs=chat_template_kwargs
        )

    def code_logits(self, prompts: Sequence[Sequence[int]]) -> Future[CodeLogits]:
        """Queue the raw logits of every answer code after whole prompts, for models that are read by answer codes.

        Raises:
            InputError: the model has no answer codes, or a prompt is empty, too long, or holds an id it does not have.
        """
        strategy = self._codes()
        rows = strategy.raw(prompts)
        return self._engine.submit(
            lambda: CodeLogits(strategy.codes, strategy.logits(rows, None), tuple(len(row.ids) for row in rows))
        )

    def warm(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Compile every shape of the grid, so that no request does; ``progress(done, of)`` is called meanwhile."""
        self._engine.submit(lambda: self._engine.warm(self.read_mode, progress or (lambda done, of: None))).result()

    @property
    def reading(self) -> dict[str, JSON]:
        """What the bits of an answer follow from beside the request: the weights, the devices, how it is loaded."""
        return {
            "revision": self.revision,
            "devices": self._engine.devices,
            "dtype": self.dtype,
            **({} if self.head_dtype is None else {"head_dtype": self.head_dtype}),
            "read_mode": self.read_mode,
            "rendering": self._rendering,
            "max_model_len": self.max_model_len,
        }

    @property
    def modalities(self) -> tuple[str, ...]:
        """What a state may hold: ``text``, and ``image`` and ``video`` where the model sees."""
        return ("text",) if self._strategy.vision is None else ("text", "image", "video")

    @property
    def compile_count(self) -> int:
        """Programs built or read from disk in this process so far."""
        return COUNTER.requested

    @property
    def cache_hits(self) -> int:
        """Prefix states that were reused instead of computed."""
        return self._engine.cache.hits

    def close(self) -> None:
        """Finish what was submitted and let go of the device."""
        self._engine.close()

    def __enter__(self) -> Decider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _codes(self) -> CodeReads:
        if not isinstance(self._strategy, CodeReads):
            raise InputError(
                f"this model is read by {self.strategy}; raw logits of answer codes need a Decision 3.0 model",
                kind="unsupported",
            )
        return self._strategy

    def _run(self, plan: Plan) -> Future[Decision]:
        def work() -> Decision:
            return Decision(plan, self._strategy.run(plan), self.name, self.read_mode)

        return self._engine.submit(work)
