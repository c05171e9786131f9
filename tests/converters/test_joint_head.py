"""The joint head's table: every tensor of the head once, at its published sizes, in no other layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_checkpoint import HEAD, write_checkpoint

from converters.joint_head import RULES, in_proj
from converters.tables import Assignment
from sysone_jax.errors import CheckpointError
from sysone_jax.heads.joint_schema import JointHeadConfig, JointSchemaHead
from sysone_jax.sharding import abstract, leaves

MODULE = abstract(lambda: JointSchemaHead(JointHeadConfig(hidden_size=44, **HEAD)))


class Arrays:
    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("model"), head=True)
    return load_file(folder / "joint_head.safetensors")


def assign(tensors: dict[str, np.ndarray]) -> Assignment:
    return Assignment(RULES, Arrays(tensors), MODULE)


def test_every_value_of_the_file_is_used_once(tensors: dict[str, np.ndarray]) -> None:
    filled = dict(assign(tensors).arrays())
    shapes = {path: variable.shape for path, variable in leaves(MODULE)}
    assert {path: array.shape for path, array in filled.items()} == shapes
    ours = np.sort(np.concatenate([array.ravel() for array in filled.values()]))
    theirs = np.sort(np.concatenate([array.ravel() for array in tensors.values()]))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("hidden", [5120, 4096])
def test_clefs_heads_have_122_tensors(hidden: int) -> None:
    config = JointHeadConfig(hidden, width=1024, routing_layers=2, layers=4, heads=16, feedforward=4096)
    sources = set()
    for rule in RULES:
        layers = 2 if rule.source.startswith("evidence") else 4
        sources |= {rule.source.replace("{i}", str(layer)) for layer in range(layers)}
    assert len(sources) == 122
    assert config.parameter_count == {5120: 128_056_324, 4096: 121_762_820}[hidden]


def test_each_tensor_is_needed_and_none_may_come_beside_it(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        with pytest.raises(CheckpointError, match=f"missing tensor {name}"):
            assign({key: array for key, array in tensors.items() if key != name})
    with pytest.raises(CheckpointError, match="unknown tensor layers.0.norm4.weight$"):
        assign({**tensors, "layers.0.norm4.weight": np.ones(64)})
    with pytest.raises(CheckpointError, match="layers.2.norm1.weight is beyond the 2 layers"):
        assign({**tensors, "layers.2.norm1.weight": np.ones(64)})


def test_each_tensor_takes_one_shape_only(tensors: dict[str, np.ndarray]) -> None:
    for name, array in tensors.items():
        wrong = [np.ones((*array.shape, 1)), np.ones(array.size + 1), np.ones(())]
        if array.ndim == 2 and array.shape[0] != array.shape[1]:
            wrong += [array.T]
        for other in wrong:
            if other.shape != array.shape:
                with pytest.raises(CheckpointError, match=f"{name} has shape"):
                    assign({**tensors, name: other})


def test_the_thirds_of_a_projection() -> None:
    width, heads, size = 12, 3, 4
    matrix, bias = np.arange(36 * 12).reshape(36, 12), np.arange(36)
    for part in range(3):
        turned = in_proj(part)(matrix, (width, heads, size))
        added = in_proj(part)(bias, (heads, size))
        for head, at in np.ndindex(heads, size):
            row = part * width + head * size + at
            np.testing.assert_array_equal(turned[:, head, at], matrix[row])
            assert added[head, at] == bias[row]
    with pytest.raises(ValueError, match="expected"):
        in_proj(0)(matrix.T, (width, heads, size))
