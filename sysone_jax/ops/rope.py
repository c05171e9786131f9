"""Rotary position embedding, rotate-half (NeoX) form: the two halves of a head are the two coordinates of each plane.

Frequencies are computed as the reference computes them, step by step in float32. Exact ones would be further from it: a
unit in the last place of a frequency is a thousandth of a radian at position 8,000.
"""

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
    computes it. CheckpointError on any other type, on a value out of its range, on a missing or unknown one, and on a
    head of odd size.
    """
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(f"config.json: a head of size {head_dim} cannot be rotated; its size must be even")
    left = _Scaling(scaling or {})
    if left.number("partial_rotary_factor", 1.0) != 1:
        raise CheckpointError("config.json: partial_rotary_factor must be 1; this backbone rotates whole heads")
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    period = (np.float64(theta) ** exponents).astype(np.float32)
    frequencies, magnitude = _SCALINGS[left.kind](period, head_dim, theta, left)
    left.finish()
    return Rope(tuple(frequencies.tolist()), magnitude)


class _Scaling:
    """Takes values out of a ``rope_scaling`` one by one; ``finish`` refuses what nobody took."""

    def __init__(self, scaling: Mapping[str, Any]) -> None:
        self._left = {key: value for key, value in scaling.items() if key not in ("rope_type", "type", "rope_theta")}
        self.kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if not isinstance(self.kind, str) or self.kind not in _SCALINGS:
            raise CheckpointError(
                f"config.json: rope_type {self.kind!r} is not supported; supported: {', '.join(_SCALINGS)}"
            )

    def number(self, key: str, *default: float | None) -> Any:
        """A positive number of a size that float32 can work with; ``default`` when the key is absent or null."""
        value = self._left.pop(key, None)
        if value is None and default:
            return default[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-9 <= value <= 1e12:
            raise CheckpointError(
                f"config.json: rope type {self.kind!r} needs a positive number as {key!r}, not {value!r}"
            )
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._left.pop(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: rope type {self.kind!r} needs true or false as {key!r}, not {value!r}")
        return value

    def finish(self) -> None:
        if self._left:
            unknown = ", ".join(map(repr, sorted(self._left)))
            raise CheckpointError(
                f"config.json: rope type {self.kind!r} has keys this version does not know: {unknown}"
            )


def _default(period: np.ndarray, head_dim: int, theta: float, scaling: _Scaling) -> tuple[np.ndarray, float]:
    return 1 / period, 1.0


def _linear(period: np.ndarray, head_dim: int, theta: float, scaling: _Scaling) -> tuple[np.ndarray, float]:
    return 1 / period / scaling.number("factor"), 1.0


def _llama3(period: np.ndarray, head_dim: int, theta: float, scaling: _Scaling) -> tuple[np.ndarray, float]:
    """Long waves are stretched by ``factor``, short ones kept, those between blended by how often they turn."""
    factor, original = scaling.number("factor"), scaling.number("original_max_position_embeddings")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise CheckpointError(f"config.json: high_freq_factor {high!r} must exceed low_freq_factor {low!r}")
    frequencies = 1 / period
    wave = 2 * math.pi / frequencies
    smooth = (original / wave - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    stretched = np.where(wave > original / low, frequencies / factor, blended)
    return np.where(wave < original / high, frequencies, stretched), 1.0


def _yarn(period: np.ndarray, head_dim: int, theta: float, scaling: _Scaling) -> tuple[np.ndarray, float]:
    """YaRN: planes that turn more than ``beta_fast`` times keep their speed, those below ``beta_slow`` slow down."""
    factor, original = scaling.number("factor"), scaling.number("original_max_position_embeddings")
    fast, slow = scaling.number("beta_fast", 32.0), scaling.number("beta_slow", 1.0)
    magnitude = scaling.number("attention_factor", None)
    if theta <= 1:
        raise CheckpointError(f"config.json: rope type 'yarn' needs a rope_theta above 1, not {theta!r}")

    def plane(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = plane(fast), plane(slow)
    if scaling.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - low) / ((high - low) or 0.001)
    kept = 1 - np.clip(ramp, 0, 1)
    if magnitude is None:
        magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return 1 / (factor * period) * (1 - kept) + 1 / period * kept, magnitude


_SCALINGS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def rotary_tables(rope: Rope, positions: Int[Array, " T"]) -> tuple[Float[Array, "T 1 H"], Float[Array, "T 1 H"]]:
    """What ``rotate`` multiplies with: cos and sin of every position's angles."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(rope.frequencies, jnp.float32)[None]
    return tables_of(angles, rope.magnitude)


def tables_of(
    angles: Float[Array, "T H2"], magnitude: float = 1.0
) -> tuple[Float[Array, "T 1 H"], Float[Array, "T 1 H"]]:
    """cos and sin of the angles, float32, with an axis for the heads.

    Both span the whole head, with the sine's sign in its first half. That is more than the H/2 angles there are, but
    XLA keeps it as arrays, where it would compute half-wide tables again for every head of every layer.
    """
    cos, sin = jnp.cos(angles)[:, None] * magnitude, jnp.sin(angles)[:, None] * magnitude
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


def text_rotary(config: Any, positions: Int[Array, "3 T"]) -> tuple[Float[Array, "T 1 H"], Float[Array, "T 1 H"]]:
    """Tables of ``config.rope`` for text, whose three positions (time, row, column) are one."""
    return rotary_tables(config.rope, positions[0])


def rotate(x: Float[Array, "T N H"], cos: Float[Array, "T 1 H"], sin: Float[Array, "T 1 H"]) -> Float[Array, "T N H"]:
    """``(a, b) -> (a cos - b sin, b cos + a sin)`` on the halves a, b of each head, in float32, rounded to x's type."""
    wide = x.astype(jnp.float32)
    a, b = jnp.split(wide, 2, axis=-1)
    return (wide * cos + jnp.concatenate([b, a], axis=-1) * sin).astype(x.dtype)
