"""Weights by table: what a source tensor is called, which of our weights it fills, and how it is turned.

A table is complete or the conversion fails: a source tensor that no row takes, a weight that no row fills, one filled
twice and one of the wrong shape are all found before any large array is read, and reported together.
"""

from __future__ import annotations

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

LAYER = "(0|[1-9][0-9]{0,5})"
"""How a layer's number is written."""


class Source(Protocol):
    """A checkpoint's tensors: names and shapes are cheap, ``read`` touches the data of one tensor."""

    def shapes(self) -> Mapping[str, Shape]: ...

    def read(self, name: str) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. ``{i}`` in ``source`` is a layer's number, and fills row i of a stacked ``target``."""

    source: str
    target: str
    transform: Transform


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
    """Row ``layer`` of ``target`` (the whole of it when None) comes from ``source``."""

    source: str
    target: str
    layer: int | None
    transform: Transform


class Assignment:
    """A table laid over one checkpoint and one module, checked on both sides."""

    def __init__(self, rules: Iterable[Rule], source: Source, module: nnx.Module, skip: Iterable[str] = ()) -> None:
        """CheckpointError names everything that does not fit; ``skip`` are patterns of tensors left out by name."""
        self._source = source
        self._targets = {path: tuple(variable.shape) for path, variable in leaves(module)}
        self._stacked = {
            path: len(variable.shape) > len(variable.get_metadata()["axes"]) for path, variable in leaves(module)
        }
        self._rules = tuple(rules)
        shapes = source.shapes()
        self._fills: dict[str, list[Fill]] = defaultdict(list)
        patterns = [(re.compile(re.escape(rule.source).replace(r"\{i\}", LAYER)), rule) for rule in self._rules]
        skipped = [re.compile(pattern) for pattern in skip]
        unknown = []
        for name in shapes:
            fills = [
                Fill(name, rule.target, int(match[1]) if match.groups() else None, rule.transform)
                for pattern, rule in patterns
                if (match := pattern.fullmatch(name)) and rule.target in self._targets
            ]
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
            if not self._stacked[path]:
                yield path, self._filled(fills[0], shape)
                continue
            whole = None
            for fill in fills:
                array = self._filled(fill, shape[1:])
                if whole is None:
                    whole = np.empty(shape, array.dtype)
                elif array.dtype != whole.dtype:  # layers of several types: none may be rounded to another's
                    whole = whole.astype(np.float32, copy=False)
                whole[fill.layer] = array
            assert whole is not None
            yield path, whole

    def _filled(self, fill: Fill, shape: Shape) -> np.ndarray:
        array = np.asarray(fill.transform(self._source.read(fill.source), shape), order="C")
        if array.shape != shape:
            raise CheckpointError(f"{fill.source} has {array.shape} where {fill.target} needs {shape}")
        return array

    def _uncovered(self, path: str) -> Iterator[str]:
        sources: dict[int | None, list[str]] = defaultdict(list)
        for fill in self._fills[path]:
            sources[fill.layer].append(shown(fill.source))
        wanted = range(self._targets[path][0]) if self._stacked[path] else (None,)
        for layer in wanted:
            if layer not in sources:
                names = (rule.source.replace("{i}", str(layer)) for rule in self._rules if rule.target == path)
                yield f"missing tensor {' or '.join(names) or f'for {path}'}"
            elif len(sources[layer]) > 1:
                yield f"{' and '.join(sources[layer])} are the same weight"
        for layer in sources.keys() - set(wanted):
            yield f"{', '.join(sources[layer])} is beyond the {len(wanted)} layers of the config"

    def _misshapen(self, path: str, shapes: Mapping[str, Shape]) -> Iterator[str]:
        shape = self._targets[path][1:] if self._stacked[path] else self._targets[path]
        for fill in self._fills[path]:
            try:
                got = fill.transform(np.broadcast_to(np.int8(0), shapes[fill.source]), shape).shape
            except (ValueError, IndexError):
                got = None
            if got != shape:
                given = list(shapes[fill.source])
                yield f"{shown(fill.source)} has shape {given}, which does not make {path} {list(shape)}"
