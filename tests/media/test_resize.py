"""The resize against torchvision's, bit for bit; ``reference.py`` beside it wrote the pixels."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from sysone_jax.media.resize import resize, taps

CASES = np.load(Path(__file__).parents[1] / "data" / "media" / "resize.npz")


@pytest.mark.parametrize("case", sorted({name.split("/")[0] for name in CASES.files}))
def test_every_level_equals_torchvisions(case: str) -> None:
    wanted = CASES[f"{case}/target"]
    assert np.array_equal(resize(CASES[f"{case}/source"], *wanted.shape[:2]), wanted)


def test_the_same_size_is_the_same_pixels() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert np.array_equal(resize(pixels, 4, 5), pixels)


def test_a_plain_colour_stays_plain() -> None:
    for level in (0, 1, 127, 254, 255):
        assert np.unique(resize(np.full((31, 47, 3), level, np.uint8), 64, 32)) == level


@pytest.mark.parametrize(("source", "target"), [(1, 512), (7, 8), (1920, 1696), (6000, 32)])
def test_weights_sum_to_one_within_the_rounding_of_each(source: int, target: int) -> None:
    first, weights, shift = taps(source, target)
    assert np.abs(weights.sum(axis=1) - (1 << shift)).max() <= weights.shape[1] / 2
    assert np.abs(weights).max() < 1 << 15
    assert first.min() >= 0 and first.max() < source


def test_a_large_frame_takes_well_under_a_second() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), dtype=np.uint8)
    start = time.process_time()
    resize(pixels, 960, 1696)
    assert time.process_time() - start < 1
