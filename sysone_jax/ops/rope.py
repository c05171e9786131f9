"""Rotary position embedding in rotate-half (NeoX) form: a head's halves hold the coordinates of its planes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sysone_jax.errors import CheckpointError


@dataclass(frozen=True)
class Rope:
    """The angles per position of one head: ``frequencies`` [H/2], and the factor that YaRN puts on cos and sin."""

    frequencies: tuple[float, ...]
    magnitude: float = 1.0


def make_rope(head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> Rope:
    """Frequencies ``theta^(-2i/H)``, changed by a checkpoint's ``rope_scaling``.

    Supports the types ``default``, ``linear``, ``llama3`` and ``yarn``, each as ``transformers.modeling_rope_utils``
    computes it; any other type raises CheckpointError.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    base = theta**-exponent
    scaling = dict(scaling or {})
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    scaling.pop("rope_theta", None)
    try:
        frequencies, magnitude = _SCALINGS[kind](base, head_dim, theta, scaling)
    except KeyError as error:
        if error.args == (kind,):
            raise CheckpointError(f"rope_type {kind!r} is not supported; supported: {sorted(_SCALINGS)}") from None
        raise CheckpointError(f"rope_scaling of type {kind!r} lacks {error.args[0]!r}") from None
    if scaling:
        raise CheckpointError(f"rope_scaling of type {kind!r} has unknown keys {sorted(scaling)}")
    return Rope(tuple(np.float32(frequencies).tolist()), magnitude)


def _default(base: np.ndarray, head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    return base, 1.0


def _linear(base: np.ndarray, head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    return base / scaling.pop("factor"), 1.0


def _llama3(base: np.ndarray, head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Long waves are stretched by ``factor``, short ones kept, those between blended by how often they turn."""
    factor, low, high = scaling.pop("factor"), scaling.pop("low_freq_factor"), scaling.pop("high_freq_factor")
    turns = scaling.pop("original_max_position_embeddings") * base / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return base * keep + base / factor * (1 - keep), 1.0


def _yarn(base: np.ndarray, head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """YaRN: planes that turn over ``beta_fast`` times keep their speed, those under ``beta_slow`` slow by ``factor``."""
    factor, original = scaling.pop("factor"), scaling.pop("original_max_position_embeddings")
    fast, slow = scaling.pop("beta_fast", None) or 32, scaling.pop("beta_slow", None) or 1
    magnitude = scaling.pop("attention_factor", None)
    truncate = scaling.pop("truncate", True)

    def plane(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = plane(fast), plane(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    slowed = np.clip((np.arange(head_dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
    if magnitude is None:
        magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return base * (1 - slowed) + base / factor * slowed, magnitude


_SCALINGS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def rotary_tables(rope: Rope, positions: Int[Array, " T"]) -> tuple[Float[Array, "T 1 H2"], Float[Array, "T 1 H2"]]:
    """cos and sin of every position's angles, float32, with an axis for the heads."""
    angles = positions.astype(jnp.float32)[:, None, None] * jnp.asarray(rope.frequencies, jnp.float32)[None, None, :]
    return jnp.cos(angles) * rope.magnitude, jnp.sin(angles) * rope.magnitude


def rotate(x: Float[Array, "T N H"], cos: Float[Array, "T 1 H2"], sin: Float[Array, "T 1 H2"]) -> Float[Array, "T N H"]:
    """``(a, b) -> (a cos - b sin, b cos + a sin)`` on the halves a, b of each head, in float32, rounded to x's type."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
