"""Products: float32 sums, whatever the operands."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from sysone_jax.ops.linear import product

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("equation", ["TD,DF->TF", "TD,DNH->TNH", "D,VD->V"])
def test_product_is_the_sum_of_products(equation: str) -> None:
    sizes = dict(zip("TDFNHV", (5, 33, 7, 3, 4, 11), strict=True))
    x, w = (RNG.normal(size=[sizes[axis] for axis in part]) for part in equation.split("->")[0].split(","))
    ours = product(equation, jnp.float32(x), jnp.float32(w))
    np.testing.assert_allclose(ours, np.einsum(equation, np.float32(x), np.float32(w), dtype=np.float64), atol=1e-5)


def test_bfloat16_is_summed_in_float32() -> None:
    x, w = jnp.ones((1, 4096), jnp.bfloat16), jnp.full((4096, 1), 1.0 + 2**-7, jnp.bfloat16)
    total = product("TD,DF->TF", x, w)
    assert total.dtype == jnp.float32
    assert total[0, 0] == 4096 + 32  # a bfloat16 sum would stop at 512
