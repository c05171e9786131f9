"""Chat prompts that end where the reply begins, so that its first token is the answer's label.

The format is that of vLLM's ``NextTokenStrategy``.

The user's turn is the state, an empty line and the question: ``Question: {instructions}`` if there are instructions, a
line for each option, and how to reply.

    choice   ``A: name`` or ``A: name - description``, and so on to Z
    noul     ``yes`` or ``yes: description``, then ``no`` likewise
    score    ``0: level``, and so on to 9

Values that are not text are written as Python prints them, again as vLLM does; an empty description counts as none.
Each question of a request is a prompt of its own.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.media.request import NOTHING, Media
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.prompts.prefix import common_prefix
from sysone_jax.questions import JSON, Question, check_json
from sysone_jax.text import MediaCount, Rendering, Tokenizer, json_text

LABELS = {"choice": tuple(string.ascii_uppercase), "noul": ("yes", "no"), "score": tuple(string.digits)}
"""Question type -> the labels of its options, in order."""

REPLIES = {
    "choice": "Answer with the letter of one option only.",
    "noul": "Answer with yes or no only.",
    "score": "Answer with the number of one level only.",
}

NO_QUESTION = "#"  # questions begin with "Question: ", "A: ", "yes" or "0: "


@dataclass(frozen=True, slots=True)
class LabelPrompt:
    """One question's prompt.

    Attributes:
        ids: [T] the whole prompt.
        shared: how many leading ids belong to the state rather than to the question; at least one id is left over.
            It depends on the state, the instructions, the template's options and the rendering, never on sibling
            questions: it is where this prompt parts from the prompt of the same state whose question is ``#``, which
            is no question's first character. So a prompt is split at the same place whoever asks beside it, and its
            numbers come out of the same shapes.
        label_ids: [O] the token that each option's label would be, in the order of the question's options.
    """

    ids: tuple[int, ...]
    shared: int
    label_ids: tuple[int, ...]


class LabelPrompts:
    """Writes label prompts for one tokenizer.

    A label's token is found in the reply's own surroundings: the *tail* is what the template writes after its last
    added token (``\\n\\n`` after ``</think>``), and tail plus label must encode to the tail and one more token.

    Raises:
        CheckpointError: the tokenizer has no chat template, or one that leaves the message out.
    """

    def __init__(self, tokenizer: Tokenizer, placeholders: Placeholders | None = None) -> None:
        self._tokenizer = tokenizer
        self._placeholders = placeholders
        self._ending, tail = _reply_opening(tokenizer)
        text = tokenizer.decode(tail)
        self._label_ids = {
            label: _next_token(tokenizer, tail, text, label) for labels in LABELS.values() for label in labels
        }

    def build(
        self,
        *,
        state: JSON,
        questions: Mapping[str, Question],
        instructions: str | None = None,
        chat_template_kwargs: Mapping[str, JSON] | None = None,
        rendering: Rendering = "reference",
        media: Media = NOTHING,
    ) -> dict[str, LabelPrompt]:
        """The prompt of every question.

        Args:
            state: text as it is, anything else as JSON.
            questions: question id -> question.
            instructions: the system turn; none if empty.
            chat_template_kwargs: variables for the chat template.
            rendering: see ``sysone_jax.text``.
            media: what the user's turn opens with; only for a model with placeholders.

        Raises:
            InputError: the text spells a placeholder beside media; thinking is on; the options end the prompt
                differently; a label is no token of its own here.
        """
        if isinstance(chat_template_kwargs, Mapping) and chat_template_kwargs.get("enable_thinking"):
            raise InputError(
                "a read is the reply's first token, so thinking must be off",
                field="chat_template_kwargs.enable_thinking",
            )
        label_ids = {qid: self._labels_of(qid, question) for qid, question in questions.items()}
        opening = json_text(state, "state") + "\n\n"
        contents = [opening + question_text(question, f"questions.{qid}") for qid, question in questions.items()]
        probe, *rows = self._tokenizer.chats(
            [opening + NO_QUESTION, *contents],
            system=instructions or None,
            template_kwargs=chat_template_kwargs,
            rendering=rendering,
            media=MediaCount(len(media.images), len(media.videos)),
        )
        if media:
            assert self._placeholders is not None
            probe, *rows = (self._placeholders.expand(row, media) for row in (probe, *rows))
        for row in rows:
            if row[len(row) - len(self._ending) :] != self._ending:
                raise InputError(
                    "these chat options end the prompt differently, so the labels' tokens are unknown",
                    field="chat_template_kwargs",
                )
        return {
            qid: LabelPrompt(tuple(row), min(common_prefix(row, probe), len(row) - 1), label_ids[qid])
            for qid, row in zip(questions, rows, strict=True)
        }

    def _labels_of(self, qid: str, question: Question) -> tuple[int, ...]:
        labels = LABELS[question.type]
        count = len(question.options)
        if count > len(labels):
            raise InputError(
                f"question {qid!r}: at most {len(labels)} options for this model", field=f"questions.{qid}.criteria"
            )
        found: list[int] = []
        for label in labels[:count]:
            token = self._label_ids[label]
            if token is None or token in found:
                raise InputError(
                    f"label {label!r} is not one distinct token after this model's chat prompt",
                    kind="unsupported",
                    field=f"questions.{qid}",
                )
            found.append(token)
        return tuple(found)


def question_text(question: Question, field: str = "question") -> str:
    """A question as the user's turn states it.

    Args:
        question: what is asked.
        field: its dotted path in the request, for errors.
    """
    instructions = _printed(question.instructions, f"{field}.instructions")
    lines = [f"Question: {instructions}"] if instructions else []
    for label, option in zip(LABELS[question.type], question.options, strict=False):
        description = _printed(option.description, f"{field}.criteria")
        if question.type == "noul":
            lines.append(f"{label}: {description}" if description else label)
        else:
            lines.append(f"{label}: {option.name} - {description}" if description else f"{label}: {option.name}")
    return "\n".join([*lines, REPLIES[question.type]])


def _printed(value: JSON, field: str) -> str:
    if value is None:
        return ""
    check_json(value, field)
    return str(value)


def _reply_opening(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What every prompt ends with, (ending [T], tail [T]): the last added token and the tail, and the tail."""
    if tokenizer.chat_template is None:
        raise CheckpointError(
            "this tokenizer has no chat template, so where a reply begins is unknown; add a chat_template.jinja to the "
            "model's folder"
        )
    first, second = tokenizer.chats([f"a\n{REPLIES['choice']}", f"9\n{REPLIES['noul']}"])
    common = common_prefix(first[::-1], second[::-1])
    if first == second:
        raise CheckpointError("this model's chat template leaves the user's message out, so it cannot ask anything")
    ending = first[len(first) - common :]
    for at in range(len(ending) - 1, -1, -1):
        if ending[at] in tokenizer.added_ids:
            return ending[at:], ending[at + 1 :]
    while ending and tokenizer.encode(tokenizer.decode(ending)) != ending:  # cut inside a word or a character
        ending = ending[1:]
    return ending, ending


def _next_token(tokenizer: Tokenizer, tail: list[int], text: str, label: str) -> int | None:
    ids = tokenizer.encode(text + label)
    return ids[-1] if ids[:-1] == tail else None
