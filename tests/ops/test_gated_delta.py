"""The chunked delta rule and the short convolution against their slow forms, where it is easy and where it is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sysone_jax.ops.gated_delta import chunked, recurrent
from sysone_jax.ops.short_conv import causal_conv

HEADS, KEY, VALUE = 3, 16, 24

by_token, by_chunk = jax.jit(recurrent), jax.jit(chunked)


def draw(tokens: int, kind: str, seed: int = 0) -> list[np.ndarray]:
    """(q, k, v, g, beta, state) in float64. ``aligned``: keys that nearly coincide, written at full strength, hardly
    decaying: the system inside a chunk is then as far from the identity as it gets."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, tokens, HEADS, KEY))
    v = rng.standard_normal((tokens, HEADS, VALUE))
    if kind == "aligned":
        k = 1 + 1e-3 * k
        beta, g = 1 - 1e-4 * rng.random((tokens, HEADS)), -1e-5 * rng.random((tokens, HEADS))
    elif kind == "forgetting":
        beta, g = rng.random((tokens, HEADS)), -50 * rng.random((tokens, HEADS))
    else:
        beta, g = rng.random((tokens, HEADS)), -np.exp(rng.standard_normal((tokens, HEADS)))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return [q, k, v, g, beta, 0.1 * rng.standard_normal((HEADS, KEY, VALUE))]


def in_float64(q, k, v, g, beta, state) -> tuple[np.ndarray, np.ndarray]:
    state, outputs = state.copy(), []
    for q_t, k_t, v_t, g_t, beta_t in zip(q, k, v, g, beta, strict=True):
        state *= np.exp(g_t)[:, None, None]
        correction = beta_t[:, None] * (v_t - np.einsum("nkv,nk->nv", state, k_t))
        state += np.einsum("nk,nv->nkv", k_t, correction)
        outputs.append(np.einsum("nkv,nk->nv", state, q_t))
    return np.array(outputs), state


@pytest.mark.parametrize("kind", ["random", "aligned", "forgetting"])
@pytest.mark.parametrize("tokens", [1, 5, 63, 64, 65, 150, 4096])
def test_both_forms_match_float64(tokens: int, kind: str) -> None:
    drawn = draw(tokens, kind)
    wanted, wanted_state = in_float64(*drawn)
    single = [jnp.asarray(x, jnp.float32) for x in drawn]
    for form in (by_token, by_chunk):
        out, state = form(*single)
        assert np.abs(out - wanted).max() <= 1e-5 * max(1, np.abs(wanted).max())
        assert np.abs(state - wanted_state).max() <= 1e-5 * max(1, np.abs(wanted_state).max())


@pytest.mark.parametrize("split", [1, 63, 64, 100, 149])
def test_a_state_carries_a_sequence_on(split: int) -> None:
    *tokens, state = (jnp.asarray(x, jnp.float32) for x in draw(150, "random"))
    whole, end = by_chunk(*tokens, state)
    first, middle = by_chunk(*(x[:split] for x in tokens), state)
    second, last = by_chunk(*(x[split:] for x in tokens), middle)
    assert np.abs(np.concatenate([first, second]) - whole).max() < 5e-6
    assert np.abs(last - end).max() < 5e-6


@pytest.mark.parametrize("form", [by_token, by_chunk])
def test_steps_without_decay_or_strength_leave_the_state_as_it_was(form) -> None:
    q, k, v, g, beta, state = (jnp.asarray(x, jnp.float32) for x in draw(70, "random"))
    real = (np.arange(70) < 33)[:, None]
    out, padded = form(q, k, v, jnp.where(real, g, 0), jnp.where(real, beta, 0), state)
    alone, wanted = form(*(x[:33] for x in (q, k, v, g, beta)), state)
    assert np.abs(padded - wanted).max() < 2e-6
    assert np.abs(out[:33] - alone).max() < 2e-6


@pytest.mark.parametrize("length", [0, 1, 2, 3, 9])
def test_the_convolution_carries_its_last_true_inputs(length: int) -> None:
    rng = np.random.default_rng(length)
    x, weight, window = (rng.standard_normal(s).astype(np.float32) for s in ((9, 2, 5), (2, 5, 4), (3, 2, 5)))
    y, kept = jax.jit(causal_conv)(x, weight, window, np.int32(length))
    joined = np.concatenate([window, x])
    wanted = np.stack([(joined[t : t + 4] * weight.transpose(2, 0, 1)).sum(0) for t in range(9)])
    assert np.abs(y - wanted).max() < 1e-6
    assert np.array_equal(kept, joined[length : length + 3])
    blank, _ = jax.jit(causal_conv, static_argnums=2)(x, weight, None, np.int32(length))
    assert np.abs(blank - jax.jit(causal_conv)(x, weight, np.zeros_like(window), np.int32(length))[0]).max() == 0
