"""Every program that a model's grid can ask for, by name, and how to trace each without running any.

The engine compiles them all before the first request; a memory plan compiles some for devices that are not there. Both
trace with the model's mesh and matmul precision set: a program is compiled for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sysone_jax.backbones.decoder import MediaRows
from sysone_jax.heads.joint_schema import JointSchemaHead
from sysone_jax.model import Model
from sysone_jax.reader import programs
from sysone_jax.reader.grid import Grid, pick
from sysone_jax.reader.rows import LABEL_SLOTS, THROUGHPUT_WIDTHS, blank_schema


class Program(NamedTuple):
    """One program of a grid: ``prefill 2048``, and what traces it."""

    name: str
    lower: Callable[[], jax.stages.Lowered]


def grid_programs(model: Model, mesh: Mesh, grid: Grid, read_mode: str) -> list[Program]:
    """All of them, in the order in which they are worth compiling. The model's arrays may be shapes with shardings."""
    if not model.backbone.causal:
        return [*_whole_prompts(model, grid), *_frames(model, grid)]
    joint = isinstance(model.head, JointSchemaHead)
    first, name = (programs.begin, "begin") if joint else (programs.prefill, "prefill")

    def firsts(sizes: tuple[int, ...], media: Callable[[int], MediaRows | None], what: str) -> Iterator[Program]:
        for size in sizes:
            room = pick(grid.room, size)
            yield Program(
                f"{name} {size}{what}", functools.partial(first.lower, model, _ints(size), _ints(), room, media(size))
            )

    returned = functools.cache(lambda room: _as_returned(model, mesh, first, _ints(room), _ints(), room=room))
    return [
        *firsts(grid.prefix, lambda size: None, ""),
        *_frames(model, grid),
        *firsts(grid.media, functools.partial(_blank_media, model), " with media"),
        *(_schemas(model, mesh, grid, returned) if joint else _reads(model, grid, read_mode, returned)),
    ]


def _whole_prompts(model: Model, grid: Grid) -> Iterator[Program]:
    """Prompts of answer codes, where attention reads both ways."""

    def program(size: int, media: MediaRows | None, what: str) -> Program:
        rows = programs.Tokens(_ints(grid.rows(size), size), _ints(grid.rows(size)))
        return Program(f"encode {size}{what}", functools.partial(programs.encode_codes.lower, model, rows, media))

    yield from (program(size, None, "") for size in grid.prefix)
    yield from (program(size, _blank_media(model, size), " with media") for size in grid.media)


def _frames(model: Model, grid: Grid) -> Iterator[Program]:
    tower = model.tower
    if tower is None:
        return
    for size in grid.patches:
        patches = jax.ShapeDtypeStruct((size, tower.config.patch_values), np.float32)
        yield Program(f"frame of {size}", functools.partial(programs.encode_frame.lower, tower, patches, _ints(2)))


def _reads(model: Model, grid: Grid, read_mode: str, returned: Callable[[int], Any]) -> Iterator[Program]:
    """Questions' own tokens after a prefix."""
    for room, suffix in grid.reads():
        for width in (grid.rows(suffix),) if read_mode == "exact" else THROUGHPUT_WIDTHS:
            read, rows = programs.read_codes, programs.Tokens(_ints(width, suffix), _ints(width))
            if model.head is None:
                read, rows = programs.read_labels, programs.Row(*rows, _ints(width, LABEL_SLOTS))
            yield Program(
                f"read {width}x{suffix} after {room}",
                lambda room=room, read=read, rows=rows: read.lower(model, returned(room), rows),
            )


def _schemas(model: Model, mesh: Mesh, grid: Grid, begun: Callable[[int], Any]) -> Iterator[Program]:
    """The head after a whole prompt, and the schemas that continue from a state."""
    for room in grid.room:
        for size in grid.schemas(room):
            yield Program(
                f"score {size[0]}x{size[1]} after {room}",
                lambda room=room, size=size: programs.score_schema.lower(
                    model, begun(room)[1], blank_schema(room, *size)
                ),
            )
    resumed = functools.cache(
        lambda room, size: _as_returned(model, mesh, programs.resume, begun(room)[0], _ints(size), _ints())
    )
    shapes = list(grid.continuations())
    for room, size in dict.fromkeys(shape[:2] for shape in shapes):
        yield Program(
            f"resume {size} after {room}",
            lambda room=room, size=size: programs.resume.lower(model, begun(room)[0], _ints(size), _ints()),
        )
    for room, size, joined in shapes:
        yield Program(
            f"join {size} to {room} in {joined}",
            lambda room=room, size=size, joined=joined: programs.join.lower(
                begun(room)[1], resumed(room, size), _ints(), joined
            ),
        )


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def _blank_media(model: Model, size: int) -> MediaRows:
    """The shapes of ``EncodedMedia.rows``."""
    table, shape = model.backbone.embed, jax.ShapeDtypeStruct
    return MediaRows(
        shape((size, table.shape[1]), table.dtype), shape((size,), np.bool_), shape((3, size), np.int32), _ints()
    )


def _as_returned(model: Model, mesh: Mesh, program: Callable[..., Any], *arguments: Any, **static: Any) -> Any:
    """What ``program`` gives, abstractly, on the devices where it really lies: a program is compiled for both."""
    result = jax.eval_shape(program, model, *arguments, **static)

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        spec = P() if leaf.sharding is None else leaf.sharding.spec
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(placed, result)
