"""The shapes. Nothing reaches a compiled function in a shape that is not here; a longer input is refused by name.

A size is always chosen from the row alone: its own prefix, its own suffix, the platform. That is what makes ``exact``
mode exact, since a row's arithmetic is then the same whoever it is computed beside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from sysone_jax.errors import CheckpointError, InputError, shown

SCHEMAS = ((4, 16), (16, 64), (64, 256), (256, 1024))
"""(questions, options) of one joint read, below the most that its prompt has tokens for."""
QUESTION_TOKENS, OPTION_TOKENS = 7, 3
"""Pieces of a question with one option, and of an option, in a joint prompt: each is at least a token."""

KEPT_ABOVE = 512
"""A joint read keeps what a state of more tokens comes to. A shorter one is read again with its schema: two passes over
few tokens take longer than one, because each reads all weights."""

ROW_TOKENS = {("cpu", "float32"): 128, ("cpu", "bfloat16"): 384}
"""Suffix tokens worked on in one call, by platform and element type. A call pays for its empty rows too, so this is no
more than a CPU gains from: in bfloat16 eight rows of 48 tokens take a twelfth less time each than four, and a third
less than one; in float32 two take a tenth less than one (``scripts/bench_read.py`` measures whole requests)."""
ROW_TOKENS_ELSEWHERE = 2048

WIDEST = 64
"""Most rows of one call."""


def ladder(smallest: int, largest: int, steps: int, fine_from: int = 128) -> tuple[int, ...]:
    """Sizes from ``smallest`` to at least ``largest``: ``steps`` an octave from ``fine_from`` on, two below it."""
    sizes, base = [], smallest
    while base < largest:
        parts = steps if base >= fine_from else 2
        sizes += [base + base * part // parts for part in range(parts)]
        base *= 2
    return (*(size for size in sizes if size < largest), largest)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Every static size of one loaded model.

    Attributes:
        max_len: most tokens of a prompt.
        prefix: lengths at which a prefix is prefilled, or a whole prompt encoded.
        room: tokens that a prefix state, or a joint read's memory, has room for; coarser than ``prefix``, because each
            multiplies the programs of every suffix length.
        suffix: lengths of a question's own part.
        continued: lengths of a joint read's schema behind a state that is kept.
        row_tokens: suffix tokens of one call; see ROW_TOKENS.
        media: lengths at which a prefix or prompt with media is read; coarser than ``prefix``, which it comes beside.
        patches: patches of one frame for the vision tower; none for a model without one.
    """

    max_len: int
    prefix: tuple[int, ...]
    room: tuple[int, ...]
    suffix: tuple[int, ...]
    row_tokens: int
    continued: tuple[int, ...] = ()
    media: tuple[int, ...] = ()
    patches: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, max_len: int, platform: str, dtype: str, token_patches: int = 0, frame_tokens: int | None = None
    ) -> Grid:
        """The sizes for prompts of up to ``max_len``.

        Args:
            token_patches: how many patches of a frame one token shows; 0 for a model that reads text alone.
            frame_tokens: most tokens of one frame; ``max_len`` when None.
        """
        frames = ladder(16, frame_tokens or max_len, 2) if token_patches else ()
        return cls(
            max_len=max_len,
            prefix=ladder(32, max_len, 4),
            room=ladder(256, max_len, 1),
            suffix=ladder(16, max_len, 1, fine_from=256),
            row_tokens=ROW_TOKENS.get((platform, dtype), ROW_TOKENS_ELSEWHERE),
            continued=ladder(128, max(128, max_len // 2), 1, fine_from=512),
            media=ladder(128, max_len, 2) if token_patches else (),
            patches=tuple(size * token_patches for size in frames),
        )

    def rows(self, suffix: int) -> int:
        """How many rows of this suffix size one call holds, in exact mode always: a power of two."""
        return (
            max(1, min(WIDEST, 1 << (self.row_tokens // suffix).bit_length() - 1)) if suffix <= self.row_tokens else 1
        )

    def schemas(self, room: int) -> tuple[tuple[int, int], ...]:
        """Every (questions, options) of prompts in this room. The last holds all that so many tokens can spell."""
        most = max(1, room // QUESTION_TOKENS), max(1, room // OPTION_TOKENS)
        return (*(size for size in SCHEMAS if size[0] <= most[0] and 2 * size[1] <= most[1]), most)

    def schema(self, room: int, questions: int, options: int) -> tuple[int, int]:
        """The smallest of ``schemas`` that holds a joint read."""
        return next(size for size in self.schemas(room) if questions <= size[0] and options <= size[1])

    def keeps(self, shared: int, length: int) -> bool:
        """Whether a joint read of ``length`` tokens continues from what the first ``shared`` leave behind.

        It follows from the prompt alone: a state long enough, and no shorter than its schema.
        """
        return shared > KEPT_ABOVE and length - shared <= shared

    def continuations(self) -> Iterator[tuple[int, int, int]]:
        """Every (room of the state, size of the schema, room of both) that a joint read which keeps can need."""
        for below, room in zip((0, *self.room), self.room, strict=False):
            for shorter, size in zip((0, *self.continued), self.continued, strict=False):
                first = max(below, shorter, KEPT_ABOVE) + 1  # tokens of the state, from here
                last = min(room, self.max_len - shorter - 1)  # to here
                if first > last:
                    continue
                shortest, longest = first + shorter + 1, min(self.max_len, last + min(size, last))
                for lower, joined in zip((0, *self.room), self.room, strict=False):
                    if lower < longest and shortest <= joined:
                        yield room, size, joined

    def reads(self) -> Iterator[tuple[int, int]]:
        """Every (room, suffix) that a prompt within ``max_len`` can need."""
        below = 0
        for room in self.room:
            for suffix in self.suffix:
                shortest = 1 + max((size for size in self.suffix if size < suffix), default=0)
                if below + 1 + shortest <= self.max_len:
                    yield room, suffix
            below = room


def pick(sizes: Sequence[int], count: int) -> int:
    """The smallest size that holds ``count``. Prompts are checked against ``max_len`` before they come here."""
    for size in sizes:
        if count <= size:
            return size
    raise ValueError(f"{count} exceeds the grid's largest size {sizes[-1]}")


def check_vocabulary(ids: Sequence[int], size: int) -> None:
    """CheckpointError for a token that the model has no row for: read on, it would silently be another."""
    if max(ids) >= size:
        raise CheckpointError(
            f"the tokenizer gives token {max(ids)}, and the model has {size} of them; the tokenizer is not this model's"
        )


def check_length(count: int, max_len: int, qid: str) -> None:
    """InputError, in vLLM's words, for a prompt that is longer than the model reads."""
    if count > max_len:
        raise InputError(
            f"question {shown(qid)}: the prompt has {count} tokens, more than max_model_len={max_len}; nothing is "
            "truncated",
            kind="too_long",
            field=f"questions.{qid}",
        )
