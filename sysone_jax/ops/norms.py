"""Normalisations. Variants differ in where they round, which shows in bfloat16: a backbone names the one it uses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... D"], weight: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    """``w * cast(x / sqrt(mean(x^2) + eps))``: normed in float32, rounded to x's type, scaled (Llama, Qwen3)."""
    return _unit(x, eps).astype(x.dtype) * jnp.expand_dims(weight, range(x.ndim - 1)).astype(x.dtype)


def rms_norm_plus_one(x: Float[Array, "... D"], weight: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    """``cast(x / sqrt(mean(x^2) + eps) * (1 + w))``, rounded once at the end (Qwen3.5)."""
    return (_unit(x, eps) * (1 + jnp.expand_dims(weight, range(x.ndim - 1)).astype(jnp.float32))).astype(x.dtype)


def gated_rms_norm(
    x: Float[Array, "T N H"], gate: Float[Array, "T N H"], weight: Float[Array, " H"], eps: float
) -> Float[Array, "T N H"]:
    """``cast(w * cast(norm(x)) * silu(gate))`` per head: a plain weight, the norm before the gate (delta layers)."""
    normed = _unit(x, eps).astype(x.dtype).astype(jnp.float32) * weight[None, None].astype(jnp.float32)
    return (normed * jax.nn.silu(gate.astype(jnp.float32))).astype(x.dtype)


def layer_norm(
    x: Float[Array, "... D"], weight: Float[Array, " D"], bias: Float[Array, " D"], eps: float
) -> Float[Array, "... D"]:
    """``(x - mean) / sqrt(var + eps) * w + b`` with the biased variance, in float32, as torch's LayerNorm."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    leading = range(x.ndim - 1)
    scaled = _unit(centred, eps) * jnp.expand_dims(weight, leading) + jnp.expand_dims(bias, leading)
    return scaled.astype(x.dtype)


def _unit(x: Float[Array, "... D"], eps: float) -> Float[Array, "... D"]:
    """``x / sqrt(mean(x^2) + eps)`` in float32."""
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
