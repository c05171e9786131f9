"""Attention over itself, causal and both ways, and over a prefix, against the plainest form in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sysone_jax.ops.attention import KeyValues, causal_attention, full_attention, query_block

HEAD = 6
SCALE = 0.37


def slow_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, prefix_k: np.ndarray, prefix_v: np.ndarray
) -> np.ndarray:
    """[T, N, H] from q [T, N, H], k and v [K, T, H] and a prefix [K, S, H] of true length S: one row at a time."""
    out = np.empty(q.shape)
    group = q.shape[1] // k.shape[0]
    for head in range(q.shape[1]):
        keys, values = (np.concatenate([a[head // group], b[head // group]]) for a, b in ((prefix_k, k), (prefix_v, v)))
        for token in range(q.shape[0]):
            seen = prefix_k.shape[1] + token + 1
            scores = SCALE * (keys[:seen] @ q[token, head])
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ values[:seen] / weights.sum()
    return out


def draw(tokens: int, prefix: int, heads: int, kv_heads: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [(tokens, heads, HEAD), *[(kv_heads, tokens, HEAD)] * 2, *[(kv_heads, prefix, HEAD)] * 2]
    return [(2 * rng.normal(size=shape)).astype(np.float32) for shape in shapes]


@functools.partial(jax.jit, static_argnames="with_prefix")
def run(q: jax.Array, k: jax.Array, v: jax.Array, pk: jax.Array, pv: jax.Array, length: jax.Array, with_prefix: bool):
    if not with_prefix:
        return causal_attention(q, KeyValues(k, v), scale=SCALE)
    return causal_attention(q, KeyValues(k, v), KeyValues(pk, pv), length, scale=SCALE)


def close(ours: jax.Array, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(ours), wanted, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (4, 2), (6, 2), (5, 1)])
def test_query_heads_read_the_key_head_of_their_group(heads: int, kv_heads: int) -> None:
    arrays = draw(9, 0, heads, kv_heads)
    close(run(*arrays, 0, with_prefix=False), slow_attention(*arrays))


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 127, 129, 513, 700])
def test_lengths_around_the_edges_of_query_blocks(tokens: int) -> None:
    arrays = draw(tokens, 0, 2, 1)
    close(run(*arrays, 0, with_prefix=False), slow_attention(*arrays))


def test_sequences_are_worked_through_in_blocks() -> None:
    assert query_block(64) == 64 and query_block(8192) == 512
    assert all(64 <= query_block(tokens) <= 512 for tokens in range(1, 9000, 37))


@pytest.mark.parametrize("tokens", [1, 7, 65])
def test_a_prefix_is_seen_up_to_its_true_length(tokens: int) -> None:
    room = 12
    q, k, v, pk, pv = draw(tokens, room, 4, 2)
    for length in range(room + 1):
        spoiled = [np.where(np.arange(room)[None, :, None] < length, x, np.float32(1e4)) for x in (pk, pv)]
        wanted = slow_attention(q, k, v, pk[:, :length], pv[:, :length])
        close(run(q, k, v, *spoiled, length, with_prefix=True), wanted)


def test_a_prefix_of_length_zero_is_no_prefix() -> None:
    q, k, v, pk, pv = draw(17, 8, 4, 2)
    np.testing.assert_array_equal(run(q, k, v, pk, pv, 0, with_prefix=True), run(q, k, v, pk, pv, 0, with_prefix=False))


def test_a_prefix_and_a_suffix_are_one_sequence() -> None:
    q, k, v, _, _ = draw(40, 0, 6, 2)
    whole = np.asarray(run(*draw(40, 0, 6, 2), 0, with_prefix=False))
    for split in (1, 13, 39):
        pk, pv = (np.pad(x[:, :split], ((0, 0), (0, 5), (0, 0)), constant_values=9.0) for x in (k, v))
        part = run(q[split:], k[:, split:], v[:, split:], pk, pv, split, with_prefix=True)
        close(part, whole[split:])


def test_later_tokens_and_padding_change_no_earlier_row() -> None:
    q, k, v, pk, pv = draw(20, 0, 4, 2)
    cut = np.asarray(run(q, k, v, pk, pv, 0, with_prefix=False))[:11]
    for x, axis in ((q, 0), (k, 1), (v, 1)):
        x[(slice(None),) * axis + (slice(11, None),)] = 1e4
    np.testing.assert_array_equal(np.asarray(run(q, k, v, pk, pv, 0, with_prefix=False))[:11], cut)


def test_large_scores_stay_finite() -> None:
    arrays = [100 * x for x in draw(33, 5, 2, 1)]
    assert np.isfinite(run(*arrays, 5, with_prefix=True)).all()
    close(run(*arrays, 5, with_prefix=True) / 100, slow_attention(*arrays) / 100)


def test_questions_share_a_prefix_under_vmap() -> None:
    _, _, _, pk, pv = draw(6, 9, 4, 2)
    rows = [draw(6, 9, 4, 2, seed)[:3] for seed in range(3)]
    stacked = [jnp.stack(part) for part in zip(*rows, strict=True)]
    every = jax.vmap(lambda q, k, v: run(q, k, v, pk, pv, 7, with_prefix=True))(*stacked)
    for row, (q, k, v) in zip(every, rows, strict=True):
        close(row, slow_attention(q, k, v, pk[:, :7], pv[:, :7]))


# ------------------------------------------------------------------------------------ both ways


@jax.jit
def both_ways(q: jax.Array, k: jax.Array, v: jax.Array, length: jax.Array):
    return full_attention(q, KeyValues(k, v), length, scale=SCALE)


@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (2, 1), (65, 40), (129, 129), (300, 257)])
def test_every_token_sees_the_whole_sequence_and_no_padding(tokens: int, length: int) -> None:
    q, k, v, _, _ = draw(tokens, 0, 6, 2)
    spoiled = [np.where(np.arange(tokens)[None, :, None] < length, x, np.float32(1e4)) for x in (k, v)]
    got = np.asarray(both_ways(q, *spoiled, length))[:length]
    weights = np.exp(SCALE * np.einsum("TNH,NSH->NTS", q[:length], np.repeat(k[:, :length], 3, axis=0)))
    values = np.repeat(v[:, :length], 3, axis=0)
    close(got, np.einsum("NTS,NSH->TNH", weights / weights.sum(-1, keepdims=True), values))


def test_both_ways_the_last_token_reads_as_it_does_causally() -> None:
    q, k, v, pk, pv = draw(70, 0, 4, 2)
    close(both_ways(q, k, v, 70)[-1], np.asarray(run(q, k, v, pk, pv, 0, with_prefix=False))[-1])
