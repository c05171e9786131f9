"""A stack of layers: the scanned form and the unrolled form are one function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from sysone_jax.ops.stack import run, stack, unstack
from sysone_jax.sharding import abstract, fill, leaves, weight

LAYERS, SIZE = 4, 7


class Layer(nnx.Module):
    def __init__(self) -> None:
        self.w = weight((SIZE, SIZE), ("embed", "mlp"), jnp.dtype(jnp.float32))
        self.b = weight((SIZE,), ("mlp",), jnp.dtype(jnp.float32))


class Net(nnx.Module):
    def __init__(self) -> None:
        self.layers = stack(LAYERS, Layer)


def make() -> nnx.Module:
    rng = np.random.default_rng(0)
    net = abstract(Net)
    return fill(net, {path: jnp.float32(rng.normal(size=leaf.shape)) for path, leaf in leaves(net)}).layers


@jax.jit
def forward(layers: Any, x: jax.Array, inputs: Any) -> tuple[jax.Array, Any]:
    def step(layer: Any, x: jax.Array, added: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        x = jnp.tanh(x @ layer.w[...] + layer.b[...])
        return (x if added is None else x + added), 2 * x

    return run(layers, step, x, inputs)


def test_every_weight_leads_with_the_layers() -> None:
    shapes = {path: leaf.shape for path, leaf in leaves(abstract(Net))}
    assert shapes == {"layers/w": (LAYERS, SIZE, SIZE), "layers/b": (LAYERS, SIZE)}


def test_unstacked_layers_are_the_rows_of_the_stack() -> None:
    stacked = make()
    layers = unstack(stacked)
    assert isinstance(layers, nnx.List) and len(layers) == LAYERS
    for number, layer in enumerate(layers):
        np.testing.assert_array_equal(layer.w[...], stacked.w[...][number])
        np.testing.assert_array_equal(layer.b[...], stacked.b[...][number])


def test_scan_and_loop_agree() -> None:
    stacked = make()
    rng = np.random.default_rng(1)
    x, added = jnp.float32(rng.normal(size=SIZE)), jnp.float32(rng.normal(size=(LAYERS, SIZE)))
    carry, outputs = forward(stacked, x, added)
    loop_carry, loop_outputs = forward(unstack(stacked), x, list(added))
    np.testing.assert_allclose(loop_carry, carry, atol=1e-6)
    np.testing.assert_allclose(np.stack(loop_outputs), outputs, atol=1e-6)

    wanted = np.float64(x)
    for layer in range(LAYERS):
        wanted = np.tanh(wanted @ np.float64(stacked.w[...][layer]) + stacked.b[...][layer]) + added[layer]
    np.testing.assert_allclose(carry, wanted, atol=1e-5)


def test_layers_may_take_no_input() -> None:
    stacked = make()
    carry, outputs = forward(stacked, jnp.ones(SIZE), None)
    loop_carry, loop_outputs = forward(unstack(stacked), jnp.ones(SIZE), None)
    np.testing.assert_allclose(loop_carry, carry, atol=1e-6)
    np.testing.assert_allclose(np.stack(loop_outputs), outputs, atol=1e-6)
