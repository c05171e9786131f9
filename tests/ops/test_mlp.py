"""The gated feed-forward block against float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from sysone_jax.ops.mlp import gated_mlp


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("biased", [False, True])
def test_gated_mlp(tokens: int, biased: bool) -> None:
    rng = np.random.default_rng(tokens)
    x, gate, up, down = (
        rng.normal(size=shape).astype(np.float32) for shape in ((tokens, 9), (9, 14), (9, 14), (14, 9))
    )
    biases = tuple(rng.normal(size=size).astype(np.float32) for size in (14, 14, 9))
    gate_bias, up_bias, down_bias = biases if biased else (0.0, 0.0, 0.0)
    gated = np.float64(x) @ gate + gate_bias
    wanted = (gated / (1 + np.exp(-gated)) * (np.float64(x) @ up + up_bias)) @ down + down_bias
    given = tuple(map(jnp.asarray, biases)) if biased else None
    ours = gated_mlp(*map(jnp.asarray, (x, gate, up, down)), given)
    np.testing.assert_allclose(ours, wanted, atol=2e-5)
