"""The gated delta rule: a recurrent memory that is decayed, corrected towards each new value, and read.

Per value head, with state S [Dk, Dv], decay ``exp(g_t)`` and write strength ``beta_t``:

    S = exp(g_t) S;   S += k_t (beta_t (v_t - S^T k_t))^T;   o_t = S^T q_t

``recurrent`` is that, token by token: the slow reference. ``chunked`` gives the same for 64 tokens at a time: inside a
chunk the corrections form a unit lower-triangular system, which is solved exactly, in float32. (A truncated power
series of its inverse is cheaper and cancels catastrophically where keys are aligned, beta is near 1 and decay near 0.)
Everything is float32, and products use the highest precision, because errors in the state add up over the sequence.

A step with ``beta = 0`` and ``g = 0`` leaves the state as it was: that is how padding is made inert.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sysone_jax.ops.triangular import solve_unit_lower

CHUNK = 64


def recurrent(
    q: Float[Array, "T N Dk"],
    k: Float[Array, "T N Dk"],
    v: Float[Array, "T N Dv"],
    g: Float[Array, "T N"],
    beta: Float[Array, "T N"],
    state: Float[Array, "N Dk Dv"],
) -> tuple[Float[Array, "T N Dv"], Float[Array, "N Dk Dv"]]:
    """Outputs of every token and the state after the last; q is already scaled, q and k already normed."""

    def step(s: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
        q_t, k_t, v_t, g_t, beta_t = token
        s = s * jnp.exp(g_t)[:, None, None]
        correction = (v_t - _einsum("NKV,NK->NV", s, k_t)) * beta_t[:, None]
        s = s + _einsum("NK,NV->NKV", k_t, correction)
        return s, _einsum("NKV,NK->NV", s, q_t)

    state, out = jax.lax.scan(step, state, (q, k, v, g, beta))
    return out, state


def chunked(
    q: Float[Array, "T N Dk"],
    k: Float[Array, "T N Dk"],
    v: Float[Array, "T N Dv"],
    g: Float[Array, "T N"],
    beta: Float[Array, "T N"],
    state: Float[Array, "N Dk Dv"],
    chunk: int = CHUNK,
) -> tuple[Float[Array, "T N Dv"], Float[Array, "N Dk Dv"]]:
    """As ``recurrent``, ``chunk`` tokens at a time; the tail of the last chunk is padded with inert steps."""
    tokens = q.shape[0]
    chunk = min(chunk, tokens)
    q, k, v, g, beta = (_chunks(x, chunk) for x in (q, k, v, g, beta))  # [C, N, c, ...]
    total = jnp.cumsum(g, axis=-1)  # log decay from the chunk's start through each token
    # Log decay between two tokens, summed from the earlier one on. As a difference of two entries of ``total`` it would
    # lose its last digits wherever the memory forgets fast, and above the diagonal its exp would overflow.
    later = jnp.tril(jnp.ones((chunk, chunk), bool), -1)[None, None]
    between = jnp.cumsum(jnp.where(later, g[..., :, None], 0.0), axis=-2)
    decay = jnp.tril(jnp.exp(between))
    written = k * beta[..., None]
    system = jnp.tril(_einsum("CNiK,CNjK->CNij", written, k) * decay, -1)
    wanted = jnp.concatenate([v * beta[..., None], written * jnp.exp(total)[..., None]], axis=-1)
    solved = solve_unit_lower(system, wanted)
    values, keys = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    within = _einsum("CNiK,CNjK->CNij", q, k) * decay
    reading = q * jnp.exp(total)[..., None]
    last = total[..., -1]
    leaving = k * jnp.exp(between[..., -1, :])[..., None]

    def step(s: Array, part: tuple[Array, ...]) -> tuple[Array, Array]:
        values, keys, within, reading, leaving, last = part
        corrected = values - _einsum("NcK,NKV->NcV", keys, s)
        out = _einsum("NcK,NKV->NcV", reading, s) + _einsum("Nij,NjV->NiV", within, corrected)
        return s * jnp.exp(last)[:, None, None] + _einsum("NcK,NcV->NKV", leaving, corrected), out

    state, out = jax.lax.scan(step, state, (values, keys, within, reading, leaving, last))
    return out.transpose(0, 2, 1, 3).reshape(-1, *out.shape[1:2], out.shape[-1])[:tokens], state


def _chunks(x: Float[Array, "T N *_"], chunk: int) -> Float[Array, "C N c *_"]:
    pad = -x.shape[0] % chunk
    x = jnp.pad(x, ((0, pad), *((0, 0),) * (x.ndim - 1)))
    return x.reshape(-1, chunk, *x.shape[1:]).swapaxes(1, 2)


def _einsum(equation: str, *operands: Array) -> Array:
    return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)
