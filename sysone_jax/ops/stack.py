"""A stack of equal layers, run as one scanned program or as a plain loop.

Stacked weights carry a leading layer axis and are scanned: compile time and program size stay flat with depth.
Unstacked weights are a list and are unrolled: XLA's CPU backend only hands bfloat16 products to its fast kernels when
the weight is a whole array, not a slice of a stack. ``unstack`` turns the first form into the second; ``run`` takes
either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def stack(layers: int, build: Callable[[], nnx.Module]) -> nnx.Module:
    """One module whose every weight has a leading axis of ``layers``; only meaningful abstractly."""
    return jax.vmap(lambda _: build())(jnp.arange(layers))


def unstack(stacked: nnx.Module) -> nnx.List:
    """The layers of a stacked module, each with its own arrays."""
    count = jax.tree.leaves(stacked)[0].shape[0]
    return nnx.List([jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(count)])


def run(
    layers: nnx.Module | nnx.List, step: Callable[..., tuple[Any, Any]], carry: Any, inputs: Any
) -> tuple[Any, Any]:
    """Feed ``carry`` through ``step(layer, carry, input) -> (carry, output)`` layer by layer.

    ``inputs`` and the returned outputs have the stack's own form: a leading layer axis, or a list with one entry a
    layer.
    """
    if not isinstance(layers, nnx.List):
        return jax.lax.scan(lambda state, item: step(item[0], state, item[1]), carry, (layers, inputs))
    outputs = []
    for layer, value in zip(layers, [None] * len(layers) if inputs is None else inputs, strict=True):
        carry, output = step(layer, carry, value)
        outputs.append(output)
    return carry, outputs
