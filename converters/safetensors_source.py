"""Hugging Face safetensors, one file or sharded with an index, read lazily one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from converters.tables import Shape, shown
from sysone_jax.config import read_json
from sysone_jax.errors import CheckpointError

FLOATS = {"F32", "F16", "BF16", "F64"}


class SafetensorsSource:
    """The tensors of ``model.safetensors``, or of every shard that ``model.safetensors.index.json`` names.

    A folder with both is read as transformers reads it: the single file goes first.
    """

    def __init__(self, folder: Path, stem: str = "model") -> None:
        """Open the headers; CheckpointError names a missing shard, a truncated file or a tensor of another type."""
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, Shape] = {}
        single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
        if single.exists() or not index.exists():
            self._open(single, set())
            return
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise CheckpointError(f"{index} has no weight_map of tensor names to file names; download it again")
        for shard in sorted(set(weight_map.values())):
            if Path(shard).name != shard or not shard.isprintable():
                raise CheckpointError(f"{index} names a file that is not beside it: {shard!r}; download it again")
            self._open(folder / shard, {name for name, file in weight_map.items() if file == shard})

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        try:
            with safe_open(self._files[name], framework="np") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{self._files[name]} is damaged or cut short ({shown(str(error))}); download it again"
            ) from None

    def _open(self, path: Path, expected: set[str]) -> None:
        try:
            if not path.is_file():
                raise CheckpointError(f"{path} is missing; download the checkpoint again")
            with safe_open(path, framework="np") as file:
                names = list(file.keys())
                for name in names:
                    tensor = file.get_slice(name)
                    if tensor.get_dtype() not in FLOATS:
                        raise CheckpointError(
                            f"{path}: {shown(name)} is stored as {tensor.get_dtype()}; only float checkpoints "
                            f"({', '.join(sorted(FLOATS))}) are supported, not quantized ones"
                        )
                    if name in self._files:
                        raise CheckpointError(f"{path} and {self._files[name].name} both hold {shown(name)}")
                    self._files[name], self._shapes[name] = path, tuple(tensor.get_shape())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or cut short ({shown(str(error))}); download it again") from None
        if missing := sorted(expected.difference(names)):
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise CheckpointError(
                f"{path} lacks tensors that the index puts there: {', '.join(map(shown, missing[:3]))}{more}; "
                "download it again"
            )
