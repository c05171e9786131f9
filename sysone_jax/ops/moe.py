"""A mixture of experts that drops nothing: every token gets its own experts, whatever the other tokens chose.

Tokens are sorted by expert and each expert multiplies its own run of rows (``ragged_dot``). A row is multiplied alone,
so a token's result does not depend on its neighbours. ``ragged_dot`` has no batching rule for shared weights, so under
``vmap`` the batch is folded into the tokens instead; and it does not know sharded operands, so it runs inside
``shard_map``, each device on its share of the experts' width.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from sysone_jax.ops.linear import product


def route(
    x: Float[Array, "T D"], router: Float[Array, "D E"], top_k: int
) -> tuple[Float[Array, "T top"], Int[Array, "T top"]]:
    """(weights, experts): softmax over all experts in float32, the ``top_k`` largest, renormalised to sum to 1."""
    probabilities = jax.nn.softmax(product("TD,DE->TE", x, router), axis=-1)
    weights, experts = jax.lax.top_k(probabilities, top_k)
    return weights / weights.sum(axis=-1, keepdims=True), experts


def experts_mlp(
    x: Float[Array, "T D"],
    weights: Float[Array, "T top"],
    experts: Int[Array, "T top"],
    gate: Float[Array, "E D F"],
    up: Float[Array, "E D F"],
    down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """``sum_j weights_j down_e(silu(gate_e x) * up_e x)`` over a token's experts e, float32."""
    return _folding(x, weights, experts, gate, up, down)


@jax.custom_batching.custom_vmap
def _folding(x: Array, weights: Array, experts: Array, gate: Array, up: Array, down: Array) -> Array:
    width = P(None, None, "model") if jax.typeof(gate).sharding.spec[2] == "model" else P()
    height = P(None, "model", None) if width != P() else P()
    return jax.shard_map(
        functools.partial(_ragged, summed=width != P()),
        in_specs=(P(), P(), P(), width, width, height),
        out_specs=P(),
        check_vma=False,
    )(x, weights, experts, gate, up, down)


@_folding.def_vmap
def _fold(axis_size: int, batched: list[bool], x: Array, weights: Array, experts: Array, *shared: Array):
    if any(batched[3:]):
        raise ValueError("experts' weights are shared by the batch")
    rows = [
        array if is_batched else jnp.broadcast_to(array[None], (axis_size, *array.shape))
        for array, is_batched in zip((x, weights, experts), batched[:3], strict=True)
    ]
    flat = [array.reshape(-1, array.shape[-1]) for array in rows]
    return _folding(*flat, *shared).reshape(rows[0].shape), True


def _ragged(x: Array, weights: Array, experts: Array, gate: Array, up: Array, down: Array, *, summed: bool) -> Array:
    tokens, top = experts.shape
    flat = experts.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    counts = jnp.bincount(flat, length=gate.shape[0]).astype(jnp.int32)
    rows = x[order // top]
    dot = functools.partial(jax.lax.ragged_dot, group_sizes=counts, preferred_element_type=jnp.float32)
    hidden = jax.nn.silu(dot(rows, gate)) * dot(rows, up)
    out = dot(hidden.astype(x.dtype), down)
    unsorted = jnp.zeros_like(out).at[order].set(out).reshape(tokens, top, -1)
    mixed = (unsorted * weights[..., None]).sum(axis=1)
    return jax.lax.psum(mixed, "model") if summed else mixed
