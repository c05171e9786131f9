"""A checkpoint with a low-rank update on top, read as if the two had been merged."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from converters.tables import MOST_REPORTED, Shape, Source, shown
from sysone_jax.errors import CheckpointError


class LoraSource:
    """The first ``layers`` layers of a base, each matrix with its update added: ``W + B A``, in float32."""

    def __init__(self, base: Source, lora: Source, layers: int) -> None:
        """CheckpointError names every tensor of ``lora`` that has no partner, or no matrix of its shape to add to."""
        self._base, self._lora = base, lora
        self._shapes = {name: shape for name, shape in base.shapes().items() if _layer(name) < layers}
        self._updated: set[str] = set()
        problems = []
        for name in sorted(lora.shapes()):
            match = re.fullmatch(r"(.+)\.lora_[AB]\.weight", name)
            matrix = f"{match[1]}.weight" if match else ""
            if matrix not in self._shapes:
                problems.append(f"{shown(name)} updates no tensor of the base")
                continue
            down, up = (lora.shapes().get(part) for part in _parts(matrix))
            if down is None or up is None:
                problems.append(f"{shown(name)} has no partner")
            elif (up[:1] + down[1:], up[1:]) != (self._shapes[matrix], down[:1]):
                problems.append(f"{list(up)} x {list(down)} does not make {matrix} {list(self._shapes[matrix])}")
            else:
                self._updated.add(matrix)
        if problems:
            raise CheckpointError("the LoRA does not fit its base: " + "; ".join(problems[:MOST_REPORTED]))

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        array = self._base.read(name)
        if name not in self._updated:
            return array
        down, up = (self._lora.read(part).astype(np.float32) for part in _parts(name))
        return array.astype(np.float32) + up @ down


def _parts(matrix: str) -> tuple[str, str]:
    stem = matrix.removesuffix(".weight")
    return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"


def _layer(name: str) -> int:
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1
