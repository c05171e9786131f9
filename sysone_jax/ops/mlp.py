"""Feed-forward blocks."""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from sysone_jax.ops.linear import product


def gated_mlp(
    x: Float[Array, "T D"],
    gate: Float[Array, "D F"],
    up: Float[Array, "D F"],
    down: Float[Array, "F D"],
    biases: tuple[Float[Array, " F"], Float[Array, " F"], Float[Array, " D"]] | None = None,
) -> Float[Array, "T D"]:
    """``(silu(x @ gate) * (x @ up)) @ down`` in float32 sums, rounded once before the second product."""
    gated, wide = product("TD,DF->TF", x, gate), product("TD,DF->TF", x, up)
    if biases is not None:
        gated, wide = gated + biases[0][None], wide + biases[1][None]
    out = product("TF,FD->TD", (jax.nn.silu(gated) * wide).astype(x.dtype), down, out_sharding=P(None, None))
    return out if biases is None else out + biases[2][None]
