"""A mixture of experts that drops nothing: every token gets its own experts, whatever the other tokens chose.

Tokens are sorted by expert and each expert multiplies its own run of rows (``ragged_dot``). A row is multiplied alone,
so a token's result does not depend on its neighbours. ``ragged_dot`` has no batching rule for shared weights, so under
``vmap`` the batch is folded into the tokens instead; and it does not know sharded operands, so it runs inside
``shard_map``, each device on its own experts (expert parallel) or on its share of the width of all (tensor parallel).
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
    whole, _, wide = jax.typeof(gate).sharding.spec
    if whole == "model":
        work, width, height = _own_experts, P("model", None, None), P("model", None, None)
    elif wide == "model":
        work, width, height = _own_width, P(None, None, "model"), P(None, "model", None)
    else:
        work, width, height = _all_experts, P(), P()
    return jax.shard_map(work, in_specs=(P(), P(), P(), width, width, height), out_specs=P(), check_vma=False)(
        x, weights, experts, gate, up, down
    )


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


def _all_experts(x: Array, weights: Array, experts: Array, gate: Array, up: Array, down: Array) -> Array:
    order, counts = _by_expert(experts, gate.shape[0])
    out = _ragged(x[order // experts.shape[1]], counts, gate, up, down)
    return _mixed(out, order, weights)


def _own_width(x: Array, weights: Array, experts: Array, gate: Array, up: Array, down: Array) -> Array:
    return jax.lax.psum(_all_experts(x, weights, experts, gate, up, down), "model")


def _own_experts(x: Array, weights: Array, experts: Array, gate: Array, up: Array, down: Array) -> Array:
    """The device's experts have a run of rows of their own among the sorted ones: it is turned to the front, and what
    stands behind it belongs to other devices."""
    own = gate.shape[0]
    first = jax.lax.axis_index("model") * own
    order, counts = _by_expert(experts, own * jax.lax.axis_size("model"))
    start = jnp.where(jnp.arange(counts.shape[0]) < first, counts, 0).sum()
    counts = jax.lax.dynamic_slice_in_dim(counts, first, own)
    out = _ragged(jnp.roll(x[order // experts.shape[1]], -start, axis=0), counts, gate, up, down)
    mine = (jnp.arange(out.shape[0]) < counts.sum())[:, None]
    out = jnp.roll(jnp.where(mine, out, 0), start, axis=0)
    return jax.lax.psum(_mixed(out, order, weights), "model")


def _by_expert(experts: Array, count: int) -> tuple[Array, Array]:
    """The order that sorts (token, choice) pairs by expert, and how many pairs each expert has."""
    flat = experts.reshape(-1)
    return jnp.argsort(flat, stable=True), jnp.bincount(flat, length=count).astype(jnp.int32)


def _ragged(rows: Array, counts: Array, gate: Array, up: Array, down: Array) -> Array:
    """Each expert's MLP on its own run of rows; rows behind the last run have no meaning."""
    dot = functools.partial(jax.lax.ragged_dot, group_sizes=counts, preferred_element_type=jnp.float32)
    hidden = jax.nn.silu(dot(rows, gate)) * dot(rows, up)
    return dot(hidden.astype(rows.dtype), down)


def _mixed(out: Array, order: Array, weights: Array) -> Array:
    unsorted = jnp.zeros_like(out).at[order].set(out).reshape(*weights.shape, -1)
    return (unsorted * weights[..., None]).sum(axis=1)
