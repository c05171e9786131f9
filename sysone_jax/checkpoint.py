"""A converted model on disk: weights in an Orbax checkpoint, its manifest inside it, the tokenizer beside it.

    MODEL/weights/     Orbax v1: a flat tree of arrays by path; the manifest is its custom metadata
    MODEL/tokenizer/   tokenizer.json and chat.json

A folder appears whole or not at all: it is written under a temporary name and renamed. The manifest names its format,
and a folder of another format is refused by name.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding

from sysone_jax.errors import CheckpointError
from sysone_jax.text import Tokenizer

FORMAT = 1
CONVERTER_VERSION = "1"
"""Raised when the same source would convert to other arrays; caches of an older version are then made anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a converted model is and where it came from. ``config`` is the source's own ``config.json``."""

    architecture: str
    config: dict[str, Any]
    head: dict[str, Any] | None
    source: str
    source_revision: str
    format: int = FORMAT
    converter_version: str = CONVERTER_VERSION


def save(folder: Path, manifest: Manifest, arrays: Iterable[tuple[str, np.ndarray]], tokenizer: Tokenizer) -> None:
    """Write a converted model as ``folder``; when another process wrote it meanwhile, theirs is kept."""
    from orbax.checkpoint import v1 as ocp

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        ocp.save(str(partial / "weights"), dict(arrays), custom_metadata=dataclasses.asdict(manifest))
        tokenizer.save(partial / "tokenizer")
        partial.chmod(0o755)
        try:
            os.rename(partial, folder)
        except OSError:
            if not is_converted(folder):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def is_converted(folder: Path) -> bool:
    return (folder / "weights").is_dir() and (folder / "tokenizer").is_dir()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a converted model; CheckpointError when its format is not this version's."""
    from orbax.checkpoint import v1 as ocp

    try:
        stored = ocp.metadata(str(folder / "weights")).custom_metadata
    except Exception as error:
        raise CheckpointError(f"{folder} holds no readable weights ({_line(error)}); convert the model again") from None
    if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
        found = stored.get("format") if isinstance(stored, Mapping) else None
        raise CheckpointError(
            f"{folder} has format {found!r}; this version reads format {FORMAT}: convert the model again"
        )
    names = {field.name for field in dataclasses.fields(Manifest)}
    if set(stored) != names:
        raise CheckpointError(
            f"{folder}: the manifest's fields {sorted(stored)} are not {sorted(names)}; convert the model again"
        )
    return Manifest(**cast(dict[str, Any], stored))


def load_arrays(folder: Path, wanted: Mapping[str, tuple[tuple[int, ...], Any, NamedSharding]]) -> dict[str, jax.Array]:
    """The arrays by path as (shape, element type, sharding) asks, each read straight into its shards.

    CheckpointError when the stored paths or shapes are not exactly those wanted.
    """
    from orbax.checkpoint import v1 as ocp

    target = {
        path: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for path, (shape, dtype, sharding) in wanted.items()
    }
    try:
        return ocp.load(str(folder / "weights"), target)
    except Exception as error:
        raise CheckpointError(
            f"{folder}: the weights do not fit the manifest ({_line(error)}); convert the model again"
        ) from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
