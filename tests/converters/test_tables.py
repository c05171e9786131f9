"""Weight tables: every transform, and both sides covered or a refusal that names what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from converters.tables import (
    Assignment,
    Rule,
    Transform,
    as_is,
    heads_in,
    heads_out,
    heads_split,
    transposed,
)
from sysone_jax.errors import CheckpointError
from sysone_jax.ops.stack import stack
from sysone_jax.sharding import abstract, weight

F32 = jnp.dtype(jnp.float32)
RULES = (
    Rule("table.weight", "table", as_is),
    Rule("layers.{i}.q.weight", "layers/q", heads_out),
    Rule("layers.{i}.norm", "layers/norm", as_is),
)


class Layer(nnx.Module):
    def __init__(self) -> None:
        self.q = weight((5, 2, 3), ("embed", "heads", "head_dim"), F32)
        self.norm = weight((5,), ("embed",), F32)


class Net(nnx.Module):
    def __init__(self) -> None:
        self.table = weight((7, 5), ("vocab", "embed"), F32)
        self.layers = stack(2, Layer)


class Arrays:
    """A checkpoint in memory that knows which tensors were read."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)
        self.read_names: list[str] = []

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        self.read_names.append(name)
        return self.arrays[name]


def draw(**changes: Any) -> Arrays:
    rng = np.random.default_rng(0)
    arrays = {"table.weight": rng.normal(size=(7, 5))}
    for layer in range(2):
        arrays[f"layers.{layer}.q.weight"] = rng.normal(size=(6, 5))
        arrays[f"layers.{layer}.norm"] = rng.normal(size=5)
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return Arrays({name: array for name, array in {**arrays, **changes}.items() if array is not None})


def refusal(source: Arrays, *args: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        Assignment(RULES, source, abstract(Net), *args)
    assert not source.read_names, "refused before anything is read"
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_every_weight_is_filled_from_its_tensor() -> None:
    source = draw()
    assignment = Assignment(RULES, source, abstract(Net))
    assert not source.read_names
    arrays = dict(assignment.arrays())
    assert sorted(source.read_names) == sorted(source.arrays)
    np.testing.assert_array_equal(arrays["table"], source.arrays["table.weight"])
    for layer in range(2):
        np.testing.assert_array_equal(arrays["layers/norm"][layer], source.arrays[f"layers.{layer}.norm"])
        q = source.arrays[f"layers.{layer}.q.weight"]
        for head in range(2):
            np.testing.assert_array_equal(arrays["layers/q"][layer][:, head], q[3 * head : 3 * head + 3].T)


@pytest.mark.parametrize("transform", [as_is, transposed, heads_out, heads_in, heads_split])
def test_a_transform_takes_one_layout_only(transform: Transform) -> None:
    given, target = {
        "as_is": ((4, 6), (4, 6)),
        "transposed": ((4, 6), (6, 4)),
        "heads_out": ((6, 4), (4, 2, 3)),
        "heads_in": ((4, 6), (2, 3, 4)),
        "heads_split": ((6,), (2, 3)),
    }[transform.__name__]
    x = np.arange(np.prod(given)).reshape(given)
    out = transform(x, target)
    assert out.shape == target
    for number, index in enumerate(np.ndindex(*given)):
        where = {
            "as_is": lambda i: i,
            "transposed": lambda i: (i[1], i[0]),
            "heads_out": lambda i: (i[1], i[0] // 3, i[0] % 3),
            "heads_in": lambda i: (i[1] // 3, i[1] % 3, i[0]),
            "heads_split": lambda i: (i[0] // 3, i[0] % 3),
        }[transform.__name__](index)
        assert out[where] == number
    if len(given) == 2:
        try:
            assert transform(x.T, target).shape != target
        except ValueError:
            pass


def test_a_tensor_that_no_row_takes() -> None:
    assert "unknown tensor layers.0.q.bias" in refusal(draw(**{"layers.0.q.bias": np.zeros(6)}))
    assert "unknown tensor layers.00.norm" in refusal(draw(**{"layers.00.norm": np.zeros(5)}))
    assert "unknown tensor layers.0.norm.x" in refusal(draw(**{"layers.0.norm.x": np.zeros(5)}))
    assert r"unknown tensor 'a\nb'" in refusal(draw(**{"a\nb": np.zeros(5)}))


def test_tensors_left_out_by_name_are_no_fault() -> None:
    source = draw(**{"layers.0.cached": np.zeros(6)})
    arrays = dict(Assignment(RULES, source, abstract(Net), (r"layers\.\d+\.cached",)).arrays())
    assert arrays.keys() == {"table", "layers/q", "layers/norm"} and "layers.0.cached" not in source.read_names
    assert "unknown tensor layers.0.cached.weight" in refusal(
        draw(**{"layers.0.cached.weight": np.zeros(6)}), (r"layers\.\d+\.cached",)
    )


def test_a_tensor_that_is_not_there() -> None:
    assert "missing tensor table.weight" in refusal(draw(**{"table.weight": None}))
    assert "missing tensor layers.1.q.weight" in refusal(draw(**{"layers.1.q.weight": None}))


def test_a_layer_beyond_the_config() -> None:
    told = refusal(draw(**{"layers.2.norm": np.zeros(5), "layers.999999.norm": np.zeros(5)}))
    assert "layers.2.norm is beyond the 2 layers of the config" in told
    assert "layers.999999.norm is beyond" in told


def test_two_tensors_for_one_weight() -> None:
    rules = (*RULES, Rule("layers.{i}.norm.weight", "layers/norm", as_is))
    source = draw(**{"layers.1.norm.weight": np.zeros(5)})
    with pytest.raises(CheckpointError, match="layers.1.norm and layers.1.norm.weight are the same weight"):
        Assignment(rules, source, abstract(Net))


@pytest.mark.parametrize("shape", [(5, 6), (6, 6), (30,), (6, 5, 1), (), (6, 0)])
def test_a_tensor_of_another_shape(shape: tuple[int, ...]) -> None:
    told = refusal(draw(**{"layers.1.q.weight": np.zeros(shape)}))
    assert f"layers.1.q.weight has shape {list(shape)}, which does not make layers/q [5, 2, 3]" in told


def test_all_faults_are_told_at_once() -> None:
    told = refusal(draw(**{"x": np.zeros(1), "table.weight": None, "layers.0.norm": np.zeros(4)}))
    assert told.startswith("the checkpoint does not fit its config: ")
    assert all(
        part in told for part in ("unknown tensor x", "missing tensor table.weight", "layers.0.norm has shape [4]")
    )
    many = refusal(draw(**{f"x{number}": np.zeros(1) for number in range(40)}))
    assert many.count("unknown") == 12 and many.endswith("; and 28 more")


def test_layers_of_several_types_keep_the_widest() -> None:
    narrow, wide = ml_dtypes.bfloat16, np.float32
    for first, second in ((narrow, wide), (wide, narrow)):
        source = draw()
        for layer, dtype in enumerate((first, second)):
            name = f"layers.{layer}.norm"
            source.arrays[name] = source.arrays[name].astype(dtype)
        norm = dict(Assignment(RULES, source, abstract(Net)).arrays())["layers/norm"]
        assert norm.dtype == np.float32
        for layer in range(2):
            np.testing.assert_array_equal(norm[layer], np.float32(source.arrays[f"layers.{layer}.norm"]))
