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


def heads_product(x: Float[Array, "T N H"], w: Float[Array, "N H D"]) -> Float[Array, "T D"]:
    """``product`` over heads and their dimensions, replicated over devices.

    The two axes are contracted as one: ``einsum`` would order them by letter, and copy the weight to do so.
    """
    (tokens, heads, head_dim), out = x.shape, w.shape[-1]
    flat = x.reshape(tokens, heads * head_dim), w.reshape(heads * head_dim, out)
    return product("TX,XD->TD", *flat, out_sharding=P(None, None))
