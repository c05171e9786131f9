"""Attention of one sequence over itself: causal, over a shared prefix too where there is one, or both ways.

The prefix is a second set of keys and values, never joined to the first: under ``vmap`` over questions a joined copy
would hold the prefix once per question. Each part is a softmax of its own, and the two are merged at the end: with a
part's scores s, peak m, total l = sum(exp(s - m)) and mix x = sum(exp(s - m) v), and M the larger peak,
``o = sum(x exp(m - M)) / sum(l exp(m - M))`` over the parts.

Queries are worked through in blocks, so that the scores of one block are all that is held and, in causal attention, the
keys after a block's end are never touched (half of the square).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sysone_jax.ops.linear import product

MASKED = -1e30
"""Score of a key that must not be seen. Finite, so that a part with no visible key merges with weight 0, not NaN."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
    """What attention leaves behind for later tokens, head-major so that a query block reads it as one matrix."""

    k: Any  # [K, S, H] after norm and rotation; stacked layers lead when stored
    v: Any  # [K, S, H]


def causal_attention(
    q: Float[Array, "T N H"],
    own: KeyValues,
    prefix: KeyValues | None = None,
    prefix_length: Int[Array, ""] | None = None,
    *,
    scale: float,
) -> Float[Array, "T N H"]:
    """Softmax attention where token t sees the first ``prefix_length`` prefix keys and its own sequence up to t.

    Rows past the sequence's true length are computed and meaningless; rows within it never see them. Query head n reads
    key head ``n // (N / K)``.
    """

    def attend(queries: Float[Array, "K G T H"], start: int, stop: int) -> _Part:
        causal = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None, :]
        part = _attend(queries, own.k[:, :stop], own.v[:, :stop], causal)
        if prefix is None:
            return part
        return _merged(part, _attend_prefix(queries, prefix.k, prefix.v, prefix_length))

    return _by_blocks(attend, q, own.k.shape[0], scale)


def full_attention(
    q: Float[Array, "T N H"], own: KeyValues, length: Int[Array, ""], *, scale: float
) -> Float[Array, "T N H"]:
    """Softmax attention where every token sees the whole sequence up to its true ``length``, before and after itself.

    Rows past the length are computed and meaningless.
    """
    seen = (jnp.arange(own.k.shape[1]) < length)[None, :]
    return _by_blocks(lambda queries, start, stop: _attend(queries, own.k, own.v, seen), q, own.k.shape[0], scale)


def _by_blocks(
    attend: Callable[[Array, int, int], _Part], q: Float[Array, "T N H"], kv_heads: int, scale: float
) -> Float[Array, "T N H"]:
    """``attend(scaled queries [K, G, T, H], their first row, the row after their last)``, block by block."""
    tokens, heads, head_dim = q.shape
    grouped = (
        (q * jnp.asarray(scale, q.dtype)).reshape(tokens, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
    )
    block = query_block(tokens)
    outputs = []
    for start in range(0, tokens, block):
        stop = min(start + block, tokens)
        part = attend(grouped[:, :, start:stop], start, stop)
        outputs.append((part.mix / part.total).astype(q.dtype))
    joined = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=2)
    return joined.transpose(2, 0, 1, 3).reshape(tokens, heads, head_dim)


def query_block(tokens: int) -> int:
    """Rows of queries worked on together: a quarter of the sequence, between 64 and 512."""
    return max(64, min(512, tokens // 4))


class _Part(NamedTuple):
    """Softmax attention over some of the keys, before the division; see the formula above."""

    mix: Float[Array, "K G T H"]
    peak: Float[Array, "K G T 1"]
    total: Float[Array, "K G T 1"]


def _attend(
    queries: Float[Array, "K G T H"], keys: Float[Array, "K S H"], values: Float[Array, "K S H"], visible: Array
) -> _Part:
    scores = jnp.where(visible[None, None], product("KGTH,KSH->KGTS", queries, keys), MASKED)
    peak = scores.max(axis=-1, keepdims=True)
    weights = jnp.exp(scores - peak)
    mix = product("KGTS,KSH->KGTH", weights.astype(values.dtype), values)
    return _Part(mix, peak, weights.sum(axis=-1, keepdims=True))


@jax.custom_batching.custom_vmap
def _attend_prefix(
    queries: Float[Array, "K G T H"], keys: Float[Array, "K S H"], values: Float[Array, "K S H"], length: Int[Array, ""]
) -> _Part:
    return _attend(queries, keys, values, (jnp.arange(keys.shape[1]) < length)[None, :])


@_attend_prefix.def_vmap
def _attend_prefix_together(size: int, batched: Any, queries: Array, *prefix: Array) -> tuple[_Part, Any]:
    """Queries of several sequences on one prefix are so many more queries: one product, its scores never transposed."""
    if batched != [True, False, False, False]:
        raise ValueError("sequences are batched over one prefix, or each in a call of its own")
    _, kv_heads, group, tokens, head_dim = queries.shape
    folded = jnp.moveaxis(queries, 0, 1).reshape(kv_heads, size * group, tokens, head_dim)
    part = _attend_prefix(folded, *prefix)
    unfolded = _Part(*(jnp.moveaxis(x.reshape(kv_heads, size, group, tokens, x.shape[-1]), 1, 0) for x in part))
    return unfolded, jax.tree.map(lambda _: True, unfolded)


def _merged(a: _Part, b: _Part) -> _Part:
    peak = jnp.maximum(a.peak, b.peak)
    of_a, of_b = jnp.exp(a.peak - peak), jnp.exp(b.peak - peak)
    return _Part(a.mix * of_a + b.mix * of_b, peak, a.total * of_a + b.total * of_b)
