"""Names for the array types that signatures use; shapes follow the axis alphabet (CONTRIBUTING.md)."""

from __future__ import annotations

from jax import Array
from jaxtyping import Bool, Float, Int

Scalar = Int[Array, ""]

__all__ = ["Array", "Bool", "Float", "Int", "Scalar"]
