"""Hugging Face safetensors, one file or sharded with an index, read lazily one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from converters.tables import Shape
from sysone_jax.config import read_json
from sysone_jax.errors import CheckpointError

FLOATS = {"F32", "F16", "BF16", "F64"}


class SafetensorsSource:
    """The tensors of ``model.safetensors``, or of every shard that ``model.safetensors.index.json`` names."""

    def __init__(self, folder: Path, stem: str = "model") -> None:
        """Open the headers; CheckpointError names a missing shard, a truncated file or a tensor of another type."""
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, Shape] = {}
        index = folder / f"{stem}.safetensors.index.json"
        if index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
                raise CheckpointError(f"{index} has no weight_map")
            for shard in sorted(set(weight_map.values())):
                if Path(shard).name != shard:
                    raise CheckpointError(f"{index} names a file outside its folder: {shard}")
                self._open(folder / shard, {name for name, file in weight_map.items() if file == shard})
        else:
            self._open(folder / f"{stem}.safetensors", None)

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        with safe_open(self._files[name], framework="np") as file:
            return file.get_tensor(name)

    def _open(self, path: Path, expected: set[str] | None) -> None:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; download the checkpoint again")
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():
                    tensor = file.get_slice(name)
                    if tensor.get_dtype() not in FLOATS:
                        raise CheckpointError(
                            f"{path}: {name} is stored as {tensor.get_dtype()}; only float checkpoints "
                            f"({', '.join(sorted(FLOATS))}) are supported, not quantized ones"
                        )
                    self._files[name], self._shapes[name] = path, tuple(tensor.get_shape())
                present = set(file.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or cut short ({error}); download it again") from None
        if expected is not None and expected - present:
            missing = ", ".join(sorted(expected - present)[:3])
            raise CheckpointError(f"{path} lacks tensors that the index puts there: {missing}; download it again")
