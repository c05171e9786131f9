"""Show what a model is: architecture, parameters, limits, shapes and memory.

Everything comes from abstract shapes: no weight is read.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sysone_jax.commands import options

if TYPE_CHECKING:
    from sysone_jax.checkpoint import Manifest
    from sysone_jax.model import Model

EXAMPLE = "sysone inspect sysone-mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="M", nargs="?", help="as --model of sysone decide (default: sysone-mini)")
    parser.add_argument("--json", action="store_true", help="the same facts as JSON, in bytes and tokens")
    parser.add_argument("--dtype", choices=options.DTYPES, help="whose shapes are shown (default: as sysone decide)")
    parser.add_argument("--max-model-len", type=options.whole, metavar="N", help="longest prompt in tokens")


def run(args: argparse.Namespace) -> int:
    facts = gather(args.model, args.dtype, args.max_model_len)
    print(json.dumps(facts, indent=2) if args.json else "\n".join(_table(facts)))
    return 0


def gather(name: str | None, dtype: str | None, max_model_len: int | None) -> dict[str, Any]:
    """Everything that is shown: sizes in bytes, lengths in tokens."""
    import jax
    import numpy as np

    from sysone_jax import builtin, checkpoint, loading
    from sysone_jax.model import abstract_model
    from sysone_jax.reader.grid import KEPT_ABOVE
    from sysone_jax.reader.lowering import grid_programs
    from sysone_jax.sharding import make_mesh

    folder = loading.resolve(name)
    manifest = checkpoint.read_manifest(folder)
    dtype = dtype or loading.default_dtype()
    limit = loading.prompt_limit(manifest, max_model_len)
    model = abstract_model(manifest, np.dtype(np.float32))
    grid = loading.make_grid(loading.media_reader(folder, manifest, limit)[0], limit, dtype)
    strategy = loading.strategy_class(manifest)
    shares = model.backbone.causal  # if not, whole prompts are read
    shapes: dict[str, Any] = {"prefix": grid.prefix, "room": grid.room, "suffix": grid.suffix}
    if manifest.head:
        shapes = {"prompt": grid.prefix, "room": grid.room, "schemas": grid.schemas(grid.room[-1])}
        shapes |= {"continued": grid.continued} if limit > KEPT_ABOVE else {}
    elif not shares:
        shapes = {"prompt": grid.prefix}
    if grid.patches:
        shapes |= {"media": grid.media, "patches": grid.patches}
    return {
        "model": name or builtin.DEFAULT,
        "source": manifest.source,
        "source_revision": manifest.source_revision,
        "converter_version": manifest.converter_version,
        "folder": str(folder),
        "architecture": manifest.architecture,
        "strategy": strategy.name,
        "shares_states": shares,
        "parameters": _parameters(model),
        "stored": _stored(checkpoint.stored_types(folder)),
        "limits": {
            "questions": strategy.limits.questions,
            "options": strategy.limits.options,
            "levels": strategy.limits.levels,
            "max_model_len": limit,
            "model_reads": loading.backbone_config(manifest.architecture, manifest.config).max_positions,
        },
        "grid": {
            "platform": jax.default_backend(),
            "dtype": dtype,
            **shapes,
            "programs": len(grid_programs(model, make_mesh((1, 1)), grid, "exact")),
        },
        "memory": {kind: _memory(manifest, kind, grid, shares) for kind in options.DTYPES},
    }


def _parameters(model: Model) -> dict[str, int]:
    from sysone_jax.sharding import leaves

    parts: Counter[str] = Counter()
    for path, variable in leaves(model):
        root, part = path.split("/")[:2]
        parts[f"backbone {part}" if root == "backbone" else root] += variable.size
    return {"total": parts.total(), **parts}


def _stored(types: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(str(dtype) for dtype in types.values()))


def _memory(manifest: Manifest, dtype: str, grid: Any, shares: bool) -> dict[str, int]:
    """Bytes under one element type of the backbone, as it would be loaded on this machine's devices."""
    import math

    import jax
    import numpy as np

    from sysone_jax.model import abstract_model
    from sysone_jax.reader import programs
    from sysone_jax.sharding import leaves, make_mesh, shardings

    model = abstract_model(manifest, np.dtype(dtype))
    mesh = make_mesh()
    places = shardings(model, mesh)
    weights = sum(
        math.prod(places[path].shard_shape(variable.shape)) * variable.dtype.itemsize
        for path, variable in leaves(model)
    )
    room = grid.room[-1]
    tokens, length = jax.ShapeDtypeStruct((grid.prefix[-1],), np.int32), jax.ShapeDtypeStruct((), np.int32)
    with jax.set_mesh(make_mesh((1, 1))):
        if shares:
            program = programs.prefill if manifest.head is None else programs.begin
            kept = jax.eval_shape(program, model, tokens, length, room=room)
        else:
            kept = jax.eval_shape(lambda model, *given: model.backbone.encode(*given), model, tokens, length)
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
    return {
        "devices": mesh.size,
        "weights_per_device": weights,
        "state_per_token": state // room,
        "largest_state": state,
    }


def _table(facts: dict[str, Any]) -> Iterator[str]:
    """The facts as aligned lines."""
    limits, grid, memory = facts["limits"], facts["grid"], facts["memory"]
    joint, shares = facts["strategy"] == "joint_schema", facts["shares_states"]
    rows: list[tuple[str, str]] = [
        ("model", facts["model"]),
        ("source", f"{facts['source']}, revision {facts['source_revision']}, converter {facts['converter_version']}"),
        ("folder", facts["folder"]),
        ("architecture", facts["architecture"]),
        ("strategy", facts["strategy"] + (": all questions in one read" if joint else ": one read a question")),
        ("", ""),
        ("parameters", f"{facts['parameters']['total']:,}"),
        *((f"  {part}", f"{count:,}") for part, count in facts["parameters"].items() if part != "total"),
        ("stored as", ", ".join(f"{dtype} ({count} arrays)" for dtype, count in facts["stored"].items())),
        ("", ""),
        ("limits", "the model's own; a dialect of requests may have lower ones, which /v1/models tells"),
        ("  questions", _cap(limits["questions"])),
        ("  options", _cap(limits["options"])),
        ("  levels", _cap(limits["levels"])),
        ("  prompt", f"{limits['max_model_len']:,} tokens; the backbone reads {limits['model_reads']:,}"),
        ("", ""),
        ("shapes", f"{grid['programs']} programs, on {grid['platform']} in {grid['dtype']}"),
        *(
            (f"  {name}", _sizes(grid[name]))
            for name in ("prompt", "prefix", "room", "suffix", "continued", "schemas", "media", "patches")
            if name in grid
        ),
        ("", ""),
        ("memory", "".join(f"{dtype:>16}" for dtype in memory)),
        (f"  weights on each of {_devices(memory)}", _bytes(memory, "weights_per_device")),
        (f"  {'state' if shares else 'hidden states'} a token", _bytes(memory, "state_per_token")),
        (f"  largest {'prefix' if shares else 'prompt'}", _bytes(memory, "largest_state")),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return (f"{name:<{width}}{value}".rstrip() for name, value in rows)


def _cap(limit: int | None) -> str:
    return "no cap" if limit is None else f"at most {limit}"


def _sizes(sizes: Any) -> str:
    return " ".join("x".join(map(str, size)) if isinstance(size, tuple) else f"{size}" for size in sizes)


def _devices(memory: dict[str, dict[str, int]]) -> str:
    count = next(iter(memory.values()))["devices"]
    return f"{count} device{'s' if count > 1 else ''}"


def _bytes(memory: dict[str, dict[str, int]], name: str) -> str:
    return "".join(f"{human(plan[name]):>16}" for plan in memory.values())


def human(size: int) -> str:
    """``1.2 MiB``"""
    number, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
