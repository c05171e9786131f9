"""Weights by table: what a source tensor is called, which of our weights it fills, and how it is turned.

A table is complete or the conversion fails: a source tensor that no row takes, a weight that no row fills, one filled
twice and one of the wrong shape are all found before any large array is read, and reported together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from flax import nnx

from sysone_jax.errors import CheckpointError
from sysone_jax.sharding import leaves

Shape = tuple[int, ...]
Transform = Callable[[np.ndarray, Shape], np.ndarray]
"""(source array, shape of the weight or of one layer of it) -> the array that fills it."""

MOST_REPORTED = 12

NUMBER = "(0|[1-9][0-9]{0,5})"
"""How a layer's number is written."""


class Source(Protocol):
    """A checkpoint's tensors: names and shapes are cheap, ``read`` touches the data of one tensor."""

    def shapes(self) -> Mapping[str, Shape]: ...

    def read(self, name: str) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a table.

    ``{i}`` in ``source`` is a layer's number. Where layers are stacked by a period of p, layer i is slot ``i % p`` of
    its period, which ``{slot}`` names in ``target``, and fills row ``i // p`` of the stack. ``{e}`` is an expert's
    number, and fills its part of that row.
    """

    source: str
    target: str
    transform: Transform

    def pattern(self) -> re.Pattern[str]:
        text = re.escape(self.source)
        return re.compile(text.replace(r"\{i\}", f"(?P<i>{NUMBER})").replace(r"\{e\}", f"(?P<e>{NUMBER})"))


def shown(text: str) -> str:
    """A tensor's name or another's message, as a message of one line can hold it."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 300 else f"{text[:300]}..."


def as_is(array: np.ndarray, shape: Shape) -> np.ndarray:
    return array


def transposed(array: np.ndarray, shape: Shape) -> np.ndarray:
    """torch's ``[out, in]`` -> ``[in, out]``."""
    return array.T


def heads_out(array: np.ndarray, shape: Shape) -> np.ndarray:
    """``[heads * head_dim, in]`` -> ``[in, heads, head_dim]``."""
    return expect(array.T, (shape[0], math.prod(shape[1:]))).reshape(shape)


def heads_in(array: np.ndarray, shape: Shape) -> np.ndarray:
    """``[out, heads * head_dim]`` -> ``[heads, head_dim, out]``."""
    return expect(array.T, (math.prod(shape[:-1]), shape[-1])).reshape(shape)


def heads_split(array: np.ndarray, shape: Shape) -> np.ndarray:
    """``[heads * head_dim]`` -> ``[heads, head_dim]``."""
    return expect(array, (math.prod(shape),)).reshape(shape)


def expect(array: np.ndarray, shape: Shape) -> np.ndarray:
    """The array, or ValueError: a reshape alone would take any shape of as many values."""
    if array.shape != shape:
        raise ValueError(f"shape {array.shape}, expected {shape}")
    return array


@dataclass(frozen=True, slots=True)
class Fill:
    """``target[index]`` comes from ``source``; an empty index is the whole of it."""

    source: str
    target: str
    index: tuple[int, ...]
    transform: Transform


class Assignment:
    """A table laid over one checkpoint and one module, checked on both sides."""

    def __init__(
        self, rules: Iterable[Rule], source: Source, module: nnx.Module, skip: Iterable[str] = (), period: int = 1
    ) -> None:
        """CheckpointError names everything that does not fit.

        Args:
            skip: patterns of tensors that are left out by name.
            period: layers in one row of the module's stack.
        """
        self._source = source
        self._period = period
        self._targets = {path: tuple(variable.shape) for path, variable in leaves(module)}
        self._stacked = {
            path: len(variable.shape) > len(variable.get_metadata()["axes"]) for path, variable in leaves(module)
        }
        self._rules = tuple(rules)
        shapes = source.shapes()
        self._fills: dict[str, list[Fill]] = defaultdict(list)
        patterns = [(rule.pattern(), rule) for rule in self._rules]
        skipped = [re.compile(pattern) for pattern in skip]
        unknown = []
        for name in shapes:
            matches = [(rule, match) for pattern, rule in patterns if (match := pattern.fullmatch(name))]
            fills = [fill for rule, match in matches if (fill := self._fill(rule, match)).target in self._targets]
            for fill in fills:
                self._fills[fill.target].append(fill)
            if not fills and not any(pattern.fullmatch(name) for pattern in skipped):
                unknown.append(name)
        problems = [f"unknown tensor {shown(name)}" for name in sorted(unknown)]
        problems += [problem for path in self._targets for problem in self._uncovered(path)]
        problems += [problem for path in self._targets for problem in self._misshapen(path, shapes)]
        if problems:
            more = f"; and {len(problems) - MOST_REPORTED} more" if len(problems) > MOST_REPORTED else ""
            raise CheckpointError(
                "the checkpoint does not fit its config: " + "; ".join(problems[:MOST_REPORTED]) + more
            )

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each of our weights in turn, in the source's own element type; one weight is in memory at a time."""
        for path, shape in self._targets.items():
            fills = self._fills[path]
            whole = None
            for fill in fills:
                array = self._filled(fill)
                if not fill.index:
                    whole = array
                    break
                if whole is None:
                    whole = np.empty(shape, array.dtype)
                elif array.dtype != whole.dtype:  # layers of several types: none may be rounded to another's
                    whole = whole.astype(np.float32, copy=False)
                with np.errstate(over="ignore"):  # what becomes infinite is refused before it is stored
                    whole[fill.index] = array
            assert whole is not None
            yield path, whole

    def _fill(self, rule: Rule, match: re.Match[str]) -> Fill:
        numbers = {key: int(value) for key, value in match.groupdict().items()}
        index, slot = [], 0
        if "i" in numbers:
            row, slot = divmod(numbers["i"], self._period)
            index.append(row)
        if "e" in numbers:
            index.append(numbers["e"])
        return Fill(match[0], rule.target.replace("{slot}", str(slot)), tuple(index), rule.transform)

    def _part(self, fill: Fill) -> Shape:
        return self._targets[fill.target][len(fill.index) :]

    def _filled(self, fill: Fill) -> np.ndarray:
        shape = self._part(fill)
        array = np.asarray(fill.transform(self._source.read(fill.source), shape), order="C")
        if array.shape != shape:
            raise CheckpointError(f"{fill.source} has {array.shape} where {fill.target} needs {shape}")
        return array

    def _uncovered(self, path: str) -> Iterator[str]:
        fills, shape = self._fills[path], self._targets[path]
        depth = max([len(fill.index) for fill in fills], default=int(self._stacked[path]))
        wanted = list(itertools.product(*map(range, shape[:depth])))
        for index in wanted:
            sources = [shown(fill.source) for fill in fills if fill.index == index[: len(fill.index)]]
            if not sources:
                yield f"missing tensor {' or '.join(self._names(path, index)) or f'for {path}'}"
            elif len(sources) > 1:
                yield f"{' and '.join(sources)} are the same weight"
        within = {index[:size] for index in wanted for size in range(depth + 1)}
        for fill in fills:
            if fill.index not in within:
                row, *expert = zip(fill.index, shape, strict=False)
                beyond = f"{row[1] * self._period} layers" if row[0] >= row[1] else f"{expert[0][1]} experts"
                yield f"{shown(fill.source)} is beyond the {beyond} of the config"

    def _names(self, path: str, index: tuple[int, ...]) -> Iterator[str]:
        """What a tensor that fills ``path[index]`` would be called."""
        for rule in self._rules:
            for slot in range(self._period):
                if rule.target.replace("{slot}", str(slot)) == path and ("{e}" in rule.source) == (len(index) > 1):
                    layer = index[0] * self._period + slot if index else 0
                    yield rule.source.replace("{i}", str(layer)).replace("{e}", str(index[-1] if index else 0))
                    break

    def _misshapen(self, path: str, shapes: Mapping[str, Shape]) -> Iterator[str]:
        for fill in self._fills[path]:
            shape = self._part(fill)
            try:
                got = fill.transform(np.broadcast_to(np.int8(0), shapes[fill.source]), shape).shape
            except (ValueError, IndexError):
                got = None
            if got != shape:
                given = list(shapes[fill.source])
                yield f"{shown(fill.source)} has shape {given}, which does not make {path} {list(shape)}"
