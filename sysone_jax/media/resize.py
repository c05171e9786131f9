"""The resize of the reference image processors: torchvision's antialiased bicubic on uint8, bit for bit.

Three choices decide the last bit, and each is torch's: the weights are computed in float64 and rounded to int16 with
the largest common shift that they allow; the width is resized first; and the result is rounded to uint8 between the two
passes. Pillow and ``jax.image.resize``, which choose otherwise, differ by one level in up to a fifth of the pixels.
"""

from __future__ import annotations

import numpy as np

RADIUS = 2.0
"""A cubic reaches two source pixels to either side, or two target pixels when the image shrinks."""

SHARPNESS = -0.5
"""Keys' ``a`` as torch sets it when it antialiases; without antialiasing it is -0.75."""

ROWS = 16
"""Target rows worked on together: few enough to stay in the processor's cache."""


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """``pixels`` [H, W, C] uint8 -> [height, width, C] uint8, antialiased bicubic."""
    if width != pixels.shape[1]:
        pixels = _resize_rows(pixels.swapaxes(0, 1), width).swapaxes(0, 1)
    if height != pixels.shape[0]:
        pixels = _resize_rows(pixels, height)
    return np.ascontiguousarray(pixels)


def _resize_rows(pixels: np.ndarray, height: int) -> np.ndarray:
    """One pass, along the first axis: every target row is a sum of the source rows that its filter reaches."""
    source = np.ascontiguousarray(pixels).reshape(pixels.shape[0], -1)
    out = np.empty((height, source.shape[1]), np.uint8)
    first, weights, shift = taps(source.shape[0], height)
    for start in range(0, height, ROWS):
        block = slice(start, min(start + ROWS, height))
        sums = np.full((block.stop - block.start, source.shape[1]), 1 << (shift - 1), np.int32)
        term = np.empty_like(sums)
        for tap in range(weights.shape[1]):
            rows = np.minimum(first[block] + tap, len(source) - 1)  # past the end every weight is zero
            sums += np.multiply(source[rows], weights[block, tap, None], out=term)
        sums >>= shift
        out[block] = np.clip(sums, 0, 255, out=sums)
    return out.reshape(height, *pixels.shape[1:])


def taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The fixed-point filter of one axis, after ``_compute_index_ranges_int16_weights`` of ATen's UpSampleKernel.

    Returns:
        The first source index of each target index [target]; its weights [target, reach] int32, zero past the filter's
        end; and the shift: the weights are in units of ``2^-shift``, the finest that keeps them all within int16.
    """
    scale = source / target
    stretch = max(scale, 1.0)
    centre = scale * (np.arange(target) + 0.5)
    first = np.maximum((centre - RADIUS * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + RADIUS * stretch + 0.5).astype(np.int64), source)
    offset = np.arange(int((last - first).max()))
    weights = _cubic((offset + first[:, None] - centre[:, None] + 0.5) / stretch)
    weights[offset >= (last - first)[:, None]] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    peak, shift = weights.max(), 0
    while shift < 22 and int(0.5 + peak * (1 << (shift + 1))) < 1 << 15:
        shift += 1
    return first, np.trunc(weights * (1 << shift) + np.copysign(0.5, weights)).astype(np.int32), shift


def _cubic(distance: np.ndarray) -> np.ndarray:
    x, a = np.abs(distance), SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
