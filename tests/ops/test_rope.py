"""Rotary tables: the reference's frequencies to the bit, exact cosines, a rotation that depends on distance alone."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sysone_jax.errors import CheckpointError
from sysone_jax.ops.rope import make_rope, rotary_tables, rotate

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3 of Llama 3.2": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192},
    "yarn": YARN,
    "yarn, every value": {**YARN, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False},
    "yarn that shrinks": {**YARN, "factor": 1.0},
}


def expected(head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """What transformers computes."""
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": theta, **scaling},
    )
    kind = scaling.get("rope_type", "default")
    compute = LlamaRotaryEmbedding.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    frequencies, magnitude = compute(config)
    return frequencies.numpy(), magnitude


@pytest.mark.parametrize("theta", [10_000.0, 70_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [10, 64, 80, 96, 128])
def test_frequencies_are_those_of_transformers(head_dim: int, theta: float) -> None:
    rope = make_rope(head_dim, theta)
    ours, theirs = np.float32(rope.frequencies), expected(head_dim, theta, {})[0]
    np.testing.assert_allclose(ours, theirs, rtol=1.3e-7)  # torch's power and numpy's differ in a last place
    assert np.mean(ours == theirs) > 0.9
    assert rope.magnitude == 1.0


@pytest.mark.parametrize("head_dim", [10, 64, 80, 128])
@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_are_those_of_transformers(name: str, head_dim: int) -> None:
    frequencies, magnitude = expected(head_dim, 500_000.0, dict(SCALINGS[name]))
    rope = make_rope(head_dim, 500_000.0, SCALINGS[name])
    np.testing.assert_allclose(np.float32(rope.frequencies), frequencies, rtol=3e-7)
    assert rope.magnitude == magnitude


def test_the_old_spelling_of_a_scaling_is_the_same() -> None:
    old = {"type": "linear", "factor": 2.5, "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    assert make_rope(64, 10_000.0, old) == make_rope(64, 10_000.0, SCALINGS["linear"])
    assert make_rope(64, 10_000.0, {"rope_type": "default"}) == make_rope(64, 10_000.0)


def test_tables_are_exact_at_far_positions() -> None:
    rope = make_rope(64, 10_000.0, {**YARN, "attention_factor": 1.25})
    positions = np.r_[0:2000:7, 8191, 32_767, 40_959].astype(np.int32)
    angles = positions.astype(np.float32)[:, None] * np.float32(rope.frequencies)[None]  # rounded as torch rounds
    cos, sin = rotary_tables(rope, jnp.asarray(positions))
    assert cos.shape == sin.shape == (positions.size, 1, 64)
    for half, sign in ((slice(0, 32), -1), (slice(32, 64), 1)):
        np.testing.assert_allclose(cos[:, 0, half], 1.25 * np.cos(np.float64(angles)), atol=3e-7)
        np.testing.assert_allclose(sin[:, 0, half], sign * 1.25 * np.sin(np.float64(angles)), atol=3e-7)


def test_rotation_turns_the_planes_of_the_two_halves() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 3, 10)).astype(np.float32)
    rope = make_rope(10, 70_000.0)
    positions = np.arange(5, 12, dtype=np.int32)
    turned = np.asarray(rotate(jnp.asarray(x), *rotary_tables(rope, jnp.asarray(positions))))
    planes = np.float64(x[..., :5]) + 1j * np.float64(x[..., 5:])
    wanted = planes * np.exp(1j * positions[:, None, None] * np.float64(rope.frequencies))
    np.testing.assert_allclose(turned, np.concatenate([wanted.real, wanted.imag], axis=-1), atol=1e-5)


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 64)).astype(np.float32)
    rope = make_rope(64, 10_000.0)

    def score(at: int, distance: int) -> float:
        turned = [
            rotate(jnp.asarray(x), *rotary_tables(rope, jnp.asarray([position], jnp.int32)))
            for x, position in ((q, at + distance), (k, at))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(0, 9) == pytest.approx(score(1500, 9), abs=1e-3)
    assert abs(score(0, 9) - score(0, 10)) > 1e-2


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic' is not supported; supported: default, linear"),
        ({"rope_type": ["yarn"]}, "is not supported"),
        ({"rope_type": "linear"}, "'linear' needs a positive number as 'factor', not None"),
        ({"rope_type": "linear", "factor": "2"}, "not '2'"),
        ({"rope_type": "linear", "factor": True}, "not True"),
        ({"rope_type": "linear", "factor": 0}, "not 0"),
        ({"rope_type": "linear", "factor": -1.0}, "not -1.0"),
        ({"rope_type": "linear", "factor": float("nan")}, "not nan"),
        ({"rope_type": "linear", "factor": float("inf")}, "not inf"),
        ({"rope_type": "linear", "factor": 1e300}, "not 1e[+]300"),
        ({"rope_type": "linear", "factor": 2.0, "beta": 1, "alpha": 2}, "does not know: 'alpha', 'beta'"),
        ({"factor": 2.0}, "'default' has keys this version does not know: 'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor 1.0 must exceed low_freq_factor 1.0"),
        ({**LLAMA3, "original_max_position_embeddings": None}, "'original_max_position_embeddings', not None"),
        ({**YARN, "truncate": "no"}, "needs true or false as 'truncate', not 'no'"),
        ({**YARN, "mscale": 1.0}, "does not know: 'mscale'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(scaling: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        make_rope(64, 10_000.0, scaling)


@pytest.mark.parametrize("head_dim", [1, 7])
def test_a_head_of_odd_size_is_refused(head_dim: int) -> None:
    with pytest.raises(CheckpointError, match=f"a head of size {head_dim} cannot be rotated"):
        make_rope(head_dim, 10_000.0)
