"""Matrix products with float32 sums."""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float


def product(
    equation: str, x: Float[Array, "*_"], w: Float[Array, "*_"], out_sharding: P | None = None
) -> Float[Array, "*_"]:
    """``einsum(equation, x, w)`` summed in float32 and returned in float32; the caller rounds once, where it must.

    In bfloat16 the float32 sum is also the fast one on CPU: XLA hands bfloat16 x bfloat16 -> float32 to kernels that
    use the processor's bfloat16 instructions, and converts both operands to float32 for every other output type.
    """
    return jnp.einsum(equation, x, w, preferred_element_type=jnp.float32, out_sharding=out_sharding)
