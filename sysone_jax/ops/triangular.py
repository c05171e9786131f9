"""Unit lower-triangular systems, many small ones at once, solved exactly: block forward substitution out of products.

``jax.lax.linalg.triangular_solve`` is the slow reference. On a CPU it goes through LAPACK one system at a time, and
LAPACK's own threads fight with XLA's for the processor.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BLOCK = 16
"""Rows of a diagonal block, a power of two: such blocks are inverted whole, all at once."""


def solve_unit_lower(lower: Float[Array, "*B c c"], right: Float[Array, "*B c m"]) -> Float[Array, "*B c m"]:
    """x of ``(I + lower) x = right``, where ``lower`` is zero on the diagonal and above it.

    With the matrix cut into blocks, ``x_i = D_i (right_i - sum over j < i of lower_ij x_j)``, where ``D_i`` is the
    inverse of the i-th diagonal block.
    """
    size = lower.shape[-1]
    block = BLOCK
    while block // 2 >= size:
        block //= 2
    if pad := -size % block:  # rows of zeros are rows of the identity here
        lower = jnp.pad(lower, [*((0, 0),) * (lower.ndim - 2), (0, pad), (0, pad)])
        right = jnp.pad(right, [*((0, 0),) * (right.ndim - 2), (0, pad), (0, 0)])
    inverses = _diagonal_inverses(lower, block)
    solved = _matmul(inverses[..., 0, :, :], right[..., :block, :])
    for number in range(1, lower.shape[-1] // block):
        at = slice(number * block, (number + 1) * block)
        part = right[..., at, :] - _matmul(lower[..., at, : number * block], solved)
        solved = jnp.concatenate([solved, _matmul(inverses[..., number, :, :], part)], axis=-2)
    return solved[..., :size, :]


def _diagonal_inverses(lower: Float[Array, "*B c c"], block: int) -> Float[Array, "*B n b b"]:
    """The inverses of the diagonal blocks of ``I + lower``, doubled from single entries, which are 1: with A and B the
    inverses of two neighbours and C what stands between them, theirs together is ``[[A, 0], [-B C A, B]]``."""
    inverses = jnp.ones_like(lower[..., :1])[..., None]
    size = 1
    while size < block:
        a, b = inverses[..., ::2, :, :], inverses[..., 1::2, :, :]
        between = jnp.stack(
            [lower[..., at + size : at + 2 * size, at : at + size] for at in range(0, lower.shape[-1], 2 * size)],
            axis=-3,
        )
        low = -_matmul(_matmul(b, between), a)
        inverses = jnp.concatenate(
            [jnp.concatenate([a, jnp.zeros_like(a)], axis=-1), jnp.concatenate([low, b], axis=-1)], axis=-2
        )
        size *= 2
    return inverses


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
