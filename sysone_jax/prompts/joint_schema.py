"""The prompt of joint schema models (Clef): one prompt for all questions of a request, with a span for each part.

The prompt is made of pieces, each tokenized on its own; tokenizing the joined text would give other ids and move the
spans. It reads

    PREFIX media state "\\n\\nSCHEMA FIELDS:\\n"
    for each question   "\\nFIELD 1\\nID: team\\nTYPE: choice\\nINSTRUCTION: " instructions "\\nALLOWED OPTIONS:\\n"
        for each option   "OPTION 1: " {"description":"payments","option_id":"billing"} "\\n"
        "END FIELD\\n"
    SUFFIX

with the spans over the instructions and over the options' JSON. Media are a line of placeholders, one for each image
and then one for each video, where there are any. What is not text is written as compact JSON with sorted keys. Options
stand in the model's order: a choice by option id in code point order, a noul true then false, a score by level.
Matches the ``joint_schema_model.py`` that the checkpoints ship.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sysone_jax.errors import InputError
from sysone_jax.media.request import NOTHING, Media
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.questions import JSON, Noul, Question, Score
from sysone_jax.text import Rendering, Tokenizer, json_text

Overlong = Literal["refuse", "truncate"]

TYPES = {"noul": 0, "choice": 1, "score": 2}
"""Question type -> row of the head's type embedding."""

PREFIX = (
    "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. Each answer must be exactly "
    "one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n"
)
SUFFIX = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"

NOUL_DESCRIPTIONS: Mapping[str, JSON] = {
    "true": "The proposition is true or the answer is yes.",
    "false": "The proposition is false or the answer is no.",
}


@dataclass(frozen=True, slots=True)
class JointPrompt:
    """One request's prompt.

    Attributes:
        ids: [T] the whole prompt.
        shared: how many leading ids come before the schema: whatever is asked, a state that is not cut begins so.
        types: [Q] noul 0, choice 1, score 2.
        question_spans: [Q] (start, end) in ``ids``, end excluded, of each question's instructions.
        option_spans: [O] (start, end) of each option's JSON: all options of all questions, in the prompt's order.
        orders: [Q] for each question, the request's index of each option, in the prompt's order.
        truncated_tokens: tokens of the state that were left out.
    """

    ids: tuple[int, ...]
    shared: int
    types: tuple[int, ...]
    question_spans: tuple[tuple[int, int], ...]
    option_spans: tuple[tuple[int, int], ...]
    orders: tuple[tuple[int, ...], ...]
    truncated_tokens: int


def build(
    tokenizer: Tokenizer,
    *,
    state: JSON,
    questions: Mapping[str, Question],
    max_length: int,
    overlong: Overlong = "refuse",
    rendering: Rendering = "reference",
    media: Media = NOTHING,
    placeholders: Placeholders | None = None,
) -> JointPrompt:
    """Write a request as one prompt.

    Args:
        tokenizer: the checkpoint's.
        state: text as it is, anything else as compact JSON.
        questions: question id -> question, asked in this order.
        max_length: the most ids that a prompt may have.
        overlong: what becomes of a state that does not fit: ``refuse`` it, or ``truncate`` its end as the reference
            does.
        rendering: under ``escape`` only the fixed pieces hold control tokens.
        media: what stands before the state; never cut.
        placeholders: the checkpoint's, where it reads media.

    Raises:
        InputError: of kind ``too_long`` where the questions and media, or under ``refuse`` the state, do not fit; text
            spells a placeholder beside media.
    """
    if overlong not in get_args(Overlong):
        raise InputError(f"overlong: must be refuse or truncate, not {overlong!r}", field="overlong")

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode(text, rendering)
        if media and placeholders is not None:
            placeholders.check_own(ids)
        return ids

    schema: list[int] = []

    def put(piece: str) -> tuple[int, int]:
        start = len(schema)
        schema.extend(encode(piece))
        return start, len(schema)

    question_spans, option_spans, orders = [], [], []
    put("\n\nSCHEMA FIELDS:\n")
    for number, (qid, question) in enumerate(questions.items(), 1):
        put(f"\nFIELD {number}\nID: {qid}\nTYPE: {question.type}\nINSTRUCTION: ")
        question_spans.append(put(_instructions(qid, question)))
        put("\nALLOWED OPTIONS:\n")
        options = _options(qid, question)
        for place, (_, semantics) in enumerate(options, 1):
            put(f"OPTION {place}: ")
            option_spans.append(put(semantics))
            put("\n")
        put("END FIELD\n")
        orders.append(tuple(index for index, _ in options))

    prefix, suffix = tokenizer.encode(PREFIX), tokenizer.encode(SUFFIX)
    if media:
        assert placeholders is not None
        prefix += placeholders.shown(media, "\n")
    fixed = len(prefix) + len(schema) + len(suffix)
    if fixed > max_length:
        raise InputError(
            f"schema requires {fixed} tokens before state; maximum is {max_length}", kind="too_long", field="questions"
        )
    body = encode(json_text(state, "state", compact=True))
    room = max_length - fixed
    if len(body) > room and overlong == "refuse":
        others = "questions and media" if media else "questions"
        raise InputError(
            f"the state has {len(body)} tokens, but {max_length} less the {others} leave room for {room}; shorten it, "
            "or set overlong to truncate, which leaves out its end",
            kind="too_long",
            field="state",
        )
    start = len(prefix) + min(len(body), room)
    return JointPrompt(
        ids=(*prefix, *body[:room], *schema, *suffix),
        shared=start,
        types=tuple(TYPES[question.type] for question in questions.values()),
        question_spans=tuple((start + first, start + end) for first, end in question_spans),
        option_spans=tuple((start + first, start + end) for first, end in option_spans),
        orders=tuple(orders),
        truncated_tokens=max(0, len(body) - room),
    )


def _instructions(qid: str, question: Question) -> str:
    """What is asked; the question's id where nothing is."""
    asked = question.instructions
    if asked is None or asked == "":
        return qid
    return json_text(asked, f"questions.{qid}.instructions", compact=True)


def _options(qid: str, question: Question) -> list[tuple[int, str]]:
    """(the request's index, option JSON) of every option in the prompt's order."""
    match question:
        case Noul(criteria=criteria):
            # A side that is given as null loses its description; one that is not given keeps the default.
            sides = {**NOUL_DESCRIPTIONS, **(criteria or {})}
            pairs = [(side, sides[side]) for side in NOUL_DESCRIPTIONS]
        case Score(criteria=levels):
            pairs = [(str(index), level) for index, level in enumerate(levels)]
        case _:
            pairs = [(option.name, option.description) for option in question.options]
    order = range(len(pairs))
    if question.type == "choice":
        order = sorted(order, key=lambda index: pairs[index][0])
    return [(index, _semantics(qid, *pairs[index])) for index in order]


def _semantics(qid: str, option_id: str, description: JSON) -> str:
    semantics = {"option_id": option_id}
    if description is not None:
        semantics["description"] = description
    return json_text(semantics, f"questions.{qid}.criteria", compact=True)
