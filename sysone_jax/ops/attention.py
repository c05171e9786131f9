"""Causal attention of one sequence over itself and, when there is one, over a shared prefix.

The prefix is a second set of keys and values, never joined to the first: under ``vmap`` over questions a joined copy
would hold the prefix once per question. Both parts keep their sums apart and are merged at the end:
with scores s, m = max over both parts, ``o = sum(exp(s - m) v) / sum(exp(s - m))``.

Queries are worked through in blocks, so that the keys after a block's end are never touched (half of the square) and
the scores of one block are all that is held.
"""

from __future__ import annotations

import dataclasses
from typing import Any

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
    (tokens, heads, head_dim), kv_heads = q.shape, own.k.shape[0]
    grouped = (
        (q * jnp.asarray(scale, q.dtype)).reshape(tokens, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)
    )
    block = query_block(tokens)
    outputs = []
    for start in range(0, tokens, block):
        stop = min(start + block, tokens)
        queries = grouped[:, :, start:stop]
        causal = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None, :]
        parts = [_scores(queries, own.k[:, :stop], causal)]
        values = [own.v[:, :stop]]
        if prefix is not None:
            seen = (jnp.arange(prefix.k.shape[1]) < prefix_length)[None, :]
            parts.append(_scores(queries, prefix.k, seen))
            values.append(prefix.v)
        outputs.append(_merge(parts, values).astype(q.dtype))
    joined = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=2)
    return joined.transpose(2, 0, 1, 3).reshape(tokens, heads, head_dim)


def query_block(tokens: int) -> int:
    """Rows of queries worked on together: an eighth of the sequence, between 64 and 512."""
    return max(64, min(512, tokens // 8))


def _scores(queries: Float[Array, "K G T H"], keys: Float[Array, "K S H"], visible: Array) -> Float[Array, "K G T S"]:
    return jnp.where(visible[None, None], product("KGTH,KSH->KGTS", queries, keys), MASKED)


def _merge(parts: list[Float[Array, "K G T _"]], values: list[Float[Array, "K _ H"]]) -> Float[Array, "K G T H"]:
    peak = jnp.max(jnp.stack([scores.max(axis=-1) for scores in parts]), axis=0)[..., None]
    weights = [jnp.exp(scores - peak) for scores in parts]
    total = sum(w.sum(axis=-1, keepdims=True) for w in weights)
    mixed = sum(product("KGTS,KSH->KGTH", w.astype(v.dtype), v) for w, v in zip(weights, values, strict=True))
    return mixed / total
