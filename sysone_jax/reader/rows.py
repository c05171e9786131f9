"""Prompts -> rows of the grid: which questions share a prefix, and which are computed in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sysone_jax.heads.joint_schema import Schema
from sysone_jax.prompts.joint_schema import JointPrompt
from sysone_jax.prompts.labels import LabelPrompt
from sysone_jax.reader.grid import WIDEST, Grid, pick
from sysone_jax.reader.programs import Row, Tokens

LABEL_SLOTS = 26
"""Labels a row has room for; no question type has more."""

THROUGHPUT_WIDTHS = (1, 4, 8, 16, WIDEST)


class Prompt(Protocol):
    """One question's prompt: its ids, and how many leading ones belong to the state that it shares with others."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def shared(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Call:
    """Rows that continue from one prefix, computed together; ``questions`` are their numbers in the request."""

    prefix: tuple[int, ...]
    suffix: int
    width: int
    questions: tuple[int, ...]


def plan_calls(prompts: Sequence[Prompt], grid: Grid, read_mode: str) -> Iterator[Call]:
    """Group prompts by prefix and suffix size.

    ``exact``: a row's call has the shape that its own lengths give, and the width that goes with that shape.
    ``throughput``: all rows of a prefix go together, at the size of the longest and a width that their number gives.
    """
    groups: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for number, prompt in enumerate(prompts):
        prefix = prompt.ids[: prompt.shared]
        size = pick(grid.suffix, len(prompt.ids) - prompt.shared) if read_mode == "exact" else 0
        groups.setdefault((prefix, size), []).append(number)
    for (prefix, size), numbers in groups.items():
        if read_mode == "exact":
            width = grid.rows(size)
        else:
            size = pick(grid.suffix, max(len(prompts[n].ids) - len(prefix) for n in numbers))
            width = pick(THROUGHPUT_WIDTHS, min(len(numbers), WIDEST))
        for start in range(0, len(numbers), width):
            yield Call(prefix, size, width, tuple(numbers[start : start + width]))


def plan_whole(prompts: Sequence[Prompt], grid: Grid, with_media: bool) -> Iterator[Call]:
    """Group whole prompts by size, for a backbone that shares nothing between questions.

    The same in both read modes: a prompt is long enough to be worth its own shape.
    """
    sizes = grid.media if with_media else grid.prefix
    groups: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        groups.setdefault(pick(sizes, len(prompt.ids)), []).append(number)
    for size, numbers in groups.items():
        width = grid.rows(size)
        for start in range(0, len(numbers), width):
            yield Call((), size, width, tuple(numbers[start : start + width]))


def fill_tokens(prompts: Sequence[Prompt], call: Call) -> Tokens:
    """What each row of a call has after its prefix: [width, T] tokens, [width] lengths. Empty slots hold one token."""
    tokens = np.zeros((call.width, call.suffix), np.int32)
    lengths = np.ones(call.width, np.int32)
    for slot, number in enumerate(call.questions):
        own = prompts[number].ids[len(call.prefix) :]
        tokens[slot, : len(own)] = own
        lengths[slot] = len(own)
    return Tokens(tokens, lengths)


def fill_rows(prompts: Sequence[LabelPrompt], call: Call) -> Row:
    """The arrays of a call: as ``fill_tokens``, and [width, 26] labels."""
    labels = np.zeros((call.width, LABEL_SLOTS), np.int32)
    for slot, number in enumerate(call.questions):
        own = prompts[number].label_ids
        labels[slot, : len(own)] = own
    return Row(*fill_tokens(prompts, call), labels)


def blank_schema(room: int, questions: int, options: int) -> Schema:
    """A schema of these sizes with nothing in it."""
    many, few = np.zeros(options, np.int32), np.zeros(questions, np.int32)
    return Schema(
        length=np.int32(0),
        tokens=np.zeros(room, np.int32),
        question_start=few.copy(),
        question_end=few.copy(),
        question_type=few.copy(),
        question_count=np.int32(0),
        option_start=many.copy(),
        option_end=many.copy(),
        option_question=many.copy(),
        option_count=np.int32(0),
    )


def fill_schema(prompt: JointPrompt, grid: Grid) -> Schema:
    """A joint prompt's spans at the sizes of the grid that hold them."""
    counts = [len(order) for order in prompt.orders]
    room = pick(grid.room, len(prompt.ids))
    blank = blank_schema(room, *grid.schema(room, len(counts), sum(counts)))
    blank.tokens[: len(prompt.ids)] = prompt.ids
    blank.question_start[: len(counts)], blank.question_end[: len(counts)] = zip(*prompt.question_spans, strict=True)
    blank.question_type[: len(counts)] = prompt.types
    blank.option_start[: sum(counts)], blank.option_end[: sum(counts)] = zip(*prompt.option_spans, strict=True)
    blank.option_question[: sum(counts)] = np.repeat(np.arange(len(counts)), counts)
    return dataclasses.replace(
        blank,
        length=np.int32(len(prompt.ids)),
        question_count=np.int32(len(counts)),
        option_count=np.int32(sum(counts)),
    )


def pad_tokens(ids: Sequence[int], size: int) -> np.ndarray:
    """[size] int32, zeros after the ids."""
    tokens = np.zeros(size, np.int32)
    tokens[: len(ids)] = ids
    return tokens
