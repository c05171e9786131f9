"""A converted model on disk: weights in an Orbax checkpoint, its manifest inside it, the tokenizer beside it.

    MODEL/weights/     Orbax v1: a flat tree of arrays by path; the manifest is its custom metadata
    MODEL/tokenizer/   tokenizer.json and chat.json
    MODEL/processor/   how images and videos are prepared, in the source's own files; only with a vision tower
    MODEL/files.json   the size of every file of these: a lost or shortened one is found before anything is read

A folder appears whole or not at all: it is written under a temporary name and renamed. The manifest names its format,
and a folder of another format is refused by name.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding

from sysone_jax.config import read_json
from sysone_jax.errors import CheckpointError, InputError, SysoneError
from sysone_jax.locks import unfinished
from sysone_jax.text import Tokenizer

FORMAT = 1
FILES = "files.json"
PROCESSOR = "processor"
_SAVING = threading.Lock()  # orbax counts its saves in a global: two at once write into each other's folders
CONVERTER_VERSION = "3"
"""Raised when the same source would convert to another folder; caches of an older version are then made anew."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a converted model is and where it came from.

    ``config``, ``head`` and ``decision`` are the source's own ``config.json``, ``joint_head_config.json`` and
    ``decision_config.json``; a model without such a head has None. ``vision`` says whether its vision tower is here.
    """

    architecture: str
    config: dict[str, Any]
    head: dict[str, Any] | None
    source: str
    source_revision: str
    decision: dict[str, Any] | None = None
    vision: bool = False
    format: int = FORMAT
    converter_version: str = CONVERTER_VERSION


def save(
    folder: Path,
    manifest: Manifest,
    arrays: Iterable[tuple[str, np.ndarray]],
    tokenizer: Tokenizer,
    processor: Mapping[str, bytes] | None = None,
) -> None:
    """Write a converted model as ``folder``; when another process wrote it meanwhile, theirs is kept.

    ``processor`` holds the processor's files by name.

    Raises:
        InputError: ``folder`` is something else already.
        SysoneError: it cannot be written, for want of permission or space.
    """
    from orbax.checkpoint import v1 as ocp

    tree = dict(arrays)
    try:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not is_converted(folder)):
            raise InputError(f"{folder} exists and is no converted model; name a new folder", field="destination")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(folder.parent, folder.name) as partial:
            with _SAVING:
                ocp.save(_weights(partial), tree, custom_metadata=dataclasses.asdict(manifest))
            tokenizer.save(partial / "tokenizer")
            for name, content in (processor or {}).items():
                (partial / PROCESSOR).mkdir(exist_ok=True)
                (partial / PROCESSOR / name).write_bytes(content)
            _write_sizes(partial)
            partial.chmod(0o755)
            try:
                os.rename(partial, folder)
            except OSError:
                if not is_converted(folder):
                    raise
    except SysoneError:
        raise
    except Exception as error:  # of the file system and of orbax, which has many
        raise SysoneError(f"{folder} cannot be written: {_line(error)}") from error


def is_converted(folder: Path) -> bool:
    return (folder / "weights").is_dir() and (folder / "tokenizer").is_dir()


def is_whole(folder: Path) -> bool:
    """Whether every file of a converted model is there, as long as it was written."""
    try:
        _check_files(folder)
    except CheckpointError:
        return False
    return True


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a converted model; CheckpointError when a file is not whole or its format not this version's."""
    _check_files(folder)
    stored = _stored(folder).custom_metadata
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
    manifest = Manifest(**cast(dict[str, Any], stored))
    texts = (manifest.architecture, manifest.source, manifest.source_revision, manifest.converter_version)
    if not (
        all(isinstance(text, str) for text in texts)
        and isinstance(manifest.config, dict)
        and isinstance(manifest.head, dict | None)
        and isinstance(manifest.decision, dict | None)
        and isinstance(manifest.vision, bool)
    ):
        raise CheckpointError(f"{folder}: the manifest is damaged; convert the model again")
    return manifest


def stored_types(folder: Path) -> dict[str, np.dtype]:
    """Element type on disk of every array by path."""
    return {path: np.dtype(array.dtype) for path, array in _stored(folder).metadata.items()}


def load_arrays(folder: Path, wanted: Mapping[str, tuple[tuple[int, ...], Any, NamedSharding]]) -> dict[str, jax.Array]:
    """The arrays by path as (shape, element type, sharding) asks, each read straight into its shards.

    CheckpointError when the stored paths or shapes are not exactly those wanted.
    """
    from orbax.checkpoint import v1 as ocp

    faults = _misfits(_stored(folder).metadata, wanted)
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(
            f"{folder}: the weights do not fit the manifest ({', '.join(faults[:3])}{more}); convert the model again"
        )
    target = {
        path: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for path, (shape, dtype, sharding) in wanted.items()
    }
    try:
        return ocp.load(_weights(folder), target)
    except Exception as error:
        raise CheckpointError(f"{folder} is damaged ({_line(error)}); convert the model again") from None


def _weights(folder: Path) -> str:
    """Where the Orbax checkpoint of a model lies; Orbax reads nothing at a relative path."""
    return str(folder.absolute() / "weights")


def _write_sizes(folder: Path) -> None:
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    (folder / FILES).write_text(json.dumps(sizes, indent=1, sort_keys=True), encoding="utf-8")


def _check_files(folder: Path) -> None:
    try:
        sizes = read_json(folder / FILES)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; convert the model again") from None
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise CheckpointError(f"{path} is missing or not whole; convert the model again")


def _stored(folder: Path) -> Any:
    """Orbax's metadata: what the arrays are, without their values, and the manifest as it was written."""
    from orbax.checkpoint import v1 as ocp

    try:
        return ocp.metadata(_weights(folder))
    except Exception as error:
        raise CheckpointError(f"{folder} holds no readable weights ({_line(error)}); convert the model again") from None


def _misfits(stored: Any, wanted: Mapping[str, tuple[tuple[int, ...], Any, NamedSharding]]) -> list[str]:
    found = {path: tuple(array.shape) for path, array in stored.items()} if isinstance(stored, Mapping) else {}
    faults = [f"{path} is missing" for path in sorted(wanted.keys() - found.keys())]
    faults += [f"{path} is no weight of it" for path in sorted(found.keys() - wanted.keys())]
    return faults + [
        f"{path} is {list(found[path])}, not {list(shape)}"
        for path, (shape, *_) in wanted.items()
        if found.get(path, shape) != tuple(shape)
    ]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
