"""Positions against transformers' ``get_rope_index``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model

from sysone_jax.media.positions import IMAGE, TEXT, VIDEO, rope_positions

GRIDS = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))


@pytest.fixture(scope="module")
def reference() -> Qwen3_5Model:
    """Its positions need no weights."""
    config = Qwen3_5Config(text_config={"num_hidden_layers": 1}, vision_config={"depth": 1})
    with torch.device("meta"):
        return Qwen3_5Model(config)


def lay_out(parts: list[tuple[int, tuple[int, int, int]]]) -> tuple[list[int], list, list]:
    """Token types, image grids and video grids of a prompt: each part some text, then a medium of the given blocks."""
    types, images, videos = [], [], []
    for text, (frames, rows, columns) in parts:
        types += [TEXT] * text
        if frames == 1:
            images.append((1, rows * 2, columns * 2))
            types += [IMAGE] * (rows * columns)
        else:
            videos.append((frames, rows * 2, columns * 2))
            types += ([TEXT] * 3 + [VIDEO] * (rows * columns)) * frames
    return [*types, TEXT, TEXT], images, videos


@given(st.lists(st.tuples(st.integers(1, 6), GRIDS), min_size=1, max_size=5))
def test_positions_equal_the_references(reference: Qwen3_5Model, parts: list) -> None:
    types, images, videos = lay_out(parts)
    got, delta = rope_positions(types, images, videos, 2)
    wanted, shift = reference.get_rope_index(
        input_ids=torch.zeros((1, len(types)), dtype=torch.long),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(images) if images else None,
        video_grid_thw=torch.tensor(videos) if videos else None,
    )
    assert np.array_equal(got, wanted[:, 0].numpy())
    assert delta == shift.item()


def test_text_counts_on() -> None:
    positions, delta = rope_positions([TEXT] * 5, [], [], 2)
    assert positions.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert delta == 0


def test_an_image_counts_by_its_longer_side() -> None:
    positions, delta = rope_positions([TEXT, *[IMAGE] * 6, TEXT], [(1, 4, 6)], [], 2)
    assert positions.T.tolist() == [
        [0, 0, 0],
        [1, 1, 1],
        [1, 1, 2],
        [1, 1, 3],
        [1, 2, 1],
        [1, 2, 2],
        [1, 2, 3],
        [4, 4, 4],
    ]
    assert delta == -3


def test_no_tokens() -> None:
    positions, delta = rope_positions([], [], [], 2)
    assert positions.shape == (3, 0) and delta == 0


@pytest.mark.parametrize(
    ("types", "images", "videos"),
    [
        ([TEXT, IMAGE, IMAGE], [(1, 2, 2)], []),
        ([TEXT, IMAGE], [], []),
        ([TEXT, IMAGE], [], [(1, 2, 2)]),
        ([TEXT, VIDEO], [], [(2, 2, 2)]),
        ([TEXT], [(1, 2, 2)], []),
    ],
)
def test_tokens_that_do_not_fit_the_media_are_refused(types: list, images: list, videos: list) -> None:
    with pytest.raises(ValueError, match="media"):
        rope_positions(types, images, videos, 2)
