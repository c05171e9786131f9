"""Small triangular systems against float64 and against LAPACK."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from sysone_jax.ops.triangular import BLOCK, solve_unit_lower

KINDS = {
    "random": lambda rng, shape: rng.normal(0, 0.3, shape),
    "aligned": lambda rng, shape: np.full(shape, 0.999),  # keys that are one another, written with beta near 1
    "opposed": lambda rng, shape: np.full(shape, -0.3),  # the solution grows from row to row
    "empty": lambda rng, shape: np.zeros(shape),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 15, BLOCK, BLOCK + 1, 48, 64])
def test_systems_are_solved_as_float64_and_lapack_do(kind: str, size: int):
    rng = np.random.default_rng(size)
    lower = np.tril(KINDS[kind](rng, (2, 3, size, size)), -1).astype(np.float32)
    right = rng.normal(size=(2, 3, size, 5)).astype(np.float32)
    truth = np.linalg.solve(np.eye(size) + lower.astype(np.float64), right.astype(np.float64))
    lapack = jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True, unit_diagonal=True)
    ours = np.asarray(jax.jit(solve_unit_lower)(lower, right))
    largest = np.abs(truth).max()
    assert np.abs(ours - truth).max() <= 1e-6 * largest
    assert np.abs(ours - lapack).max() <= 1e-6 * largest


def test_what_stands_in_later_rows_does_not_touch_earlier_ones():
    rng = np.random.default_rng(0)
    lower = np.tril(rng.normal(size=(40, 40)), -1).astype(np.float32)
    right = rng.normal(size=(40, 2)).astype(np.float32)
    solve = jax.jit(solve_unit_lower)
    whole = np.asarray(solve(lower, right))
    lower[30:, :30], right[30:] = 7, 9
    np.testing.assert_array_equal(np.asarray(solve(lower, right))[:30], whole[:30])
