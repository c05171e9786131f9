"""Positions of tokens in three dimensions (M-RoPE): time, row and column.

Text counts on in all three at once. The tokens of one frame start where the text stopped and spread over rows and
columns, and the text behind them goes on past the longer side, not past their number. After transformers'
``Qwen3_5Model.get_rope_index``: between the frames of a video stands text with their times, so each is placed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

TEXT, IMAGE, VIDEO = 0, 1, 2
"""Types of tokens, as transformers' ``mm_token_type_ids`` numbers them."""

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches."""


def rope_positions(
    types: Sequence[int] | np.ndarray, images: Iterable[Grid], videos: Iterable[Grid], merge: int
) -> tuple[np.ndarray, int]:
    """Where every token stands, and how far later text is moved.

    Args:
        types: TEXT, IMAGE or VIDEO of every token [T].
        images, videos: the grids of the media, in the prompt's order.
        merge: patches on a side of what one token stands for.

    Returns:
        Positions [3, T] int32, and the delta: the token that comes t-th has position ``t + delta`` when t >= T.

    Raises:
        ValueError: the tokens do not fit the grids.
    """
    kinds = np.asarray(types)
    frames = {
        IMAGE: iter([(count, rows // merge, columns // merge) for count, rows, columns in images]),
        VIDEO: iter([(1, rows // merge, columns // merge) for count, rows, columns in videos for _ in range(count)]),
    }
    positions = np.empty((3, len(kinds)), np.int32)
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    at = 0
    for start, stop in zip(edges, edges[1:], strict=False):
        if start == stop:
            continue
        if kinds[start] == TEXT:
            positions[:, start:stop] = at + np.arange(stop - start)
            at += stop - start
            continue
        shape = next(frames[int(kinds[start])], None)
        if shape is None or np.prod(shape) != stop - start:
            raise ValueError(f"{stop - start} media tokens at {start} do not fit a frame of {shape}")
        positions[:, start:stop] = at + np.indices(shape).reshape(3, -1)
        at += max(shape[1:])
    if any(next(left, None) for left in frames.values()):
        raise ValueError("there are more media than the tokens stand for")
    return positions, int(positions.max()) + 1 - len(kinds) if len(kinds) else 0
