"""A causal depthwise convolution with a short kernel, and the window of inputs it carries on to later tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def causal_conv(
    x: Float[Array, "T N H"],
    weight: Float[Array, "N H W"],
    window: Float[Array, "W1 N H"] | None,
    length: Int[Array, ""],
) -> tuple[Float[Array, "T N H"], Float[Array, "W1 N H"]]:
    """``y[t] = sum_j weight[..., j] x[t - (W - 1) + j]``, float32 sums, and the last ``W - 1`` true inputs.

    ``window`` holds the W - 1 inputs before the first, None being zeros. The returned one is gathered at ``length``, so
    inputs that are padding never reach it.
    """
    width = weight.shape[-1]
    if window is None:
        joined = jnp.pad(x, ((width - 1, 0), (0, 0), (0, 0)))
    else:
        joined = jnp.concatenate([window, x])
    wide = joined.astype(jnp.float32)
    y = sum(wide[j : j + x.shape[0]] * weight[..., j].astype(jnp.float32)[None] for j in range(width))
    kept = jax.lax.dynamic_slice_in_dim(joined, length, width - 1)
    return jnp.asarray(y).astype(x.dtype), kept
