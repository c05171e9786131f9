"""Normalisations against float64, and where they round in bfloat16."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from sysone_jax.ops.norms import layer_norm, rms_norm

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(13,), (5, 13), (3, 4, 10)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x = (3 * RNG.normal(size=shape) + 1).astype(np.float32)
    weight = RNG.uniform(0.5, 1.5, shape[-1:]).astype(np.float32)
    wide = np.float64(x)
    wanted = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-3) * weight
    np.testing.assert_allclose(rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-3), wanted, rtol=1e-6)


def test_rms_norm_rounds_before_the_weight() -> None:
    x = jnp.asarray(RNG.normal(size=(50, 64)), jnp.bfloat16)
    weight = jnp.asarray(RNG.uniform(0.5, 1.5, 64), jnp.bfloat16)
    ours = rms_norm(x, weight, 1e-6)
    wide = torch.from_numpy(np.array(x, np.float32))
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
    wanted = torch.from_numpy(np.array(weight, np.float32)).bfloat16() * normed
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(ours), wanted.float().numpy())


def test_rms_norm_of_zeros_is_zero() -> None:
    assert not np.any(rms_norm(jnp.zeros((2, 8)), jnp.ones(8), 1e-6))


@pytest.mark.parametrize("shape", [(13,), (5, 13)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    x = (3 * RNG.normal(size=shape) + 1).astype(np.float32)
    weight, bias = RNG.normal(size=(2, shape[-1])).astype(np.float32)
    wide = np.float64(x)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    wanted = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * weight + bias
    ours = layer_norm(jnp.asarray(x), jnp.asarray(weight), jnp.asarray(bias), 1e-5)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
