"""From a request's media to the rows of a padded prompt that hold their features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sysone_jax.backbones.decoder import MediaRows
from sysone_jax.media.embedding import Embedding
from sysone_jax.media.qwen_patches import Patches
from sysone_jax.media.request import Media
from sysone_jax.prompts.placeholders import Placeholders


class EncodedMedia:
    """One request's media. The vision tower runs once, when the first pass asks for rows.

    Args:
        media: what the request shows.
        placeholders: the tokens that stand for it.
        tower: features [tokens, D] of one image or video.
        width, dtype: of the backbone's embeddings.

    Attributes:
        digest: tells the states of prompts apart whose ids are equal and whose media are not.
    """

    def __init__(
        self,
        media: Media,
        placeholders: Placeholders,
        tower: Callable[[Patches], np.ndarray],
        width: int,
        dtype: Any,
    ) -> None:
        self.digest = media.digest
        self._media = media
        self._placeholders = placeholders
        self._tower = tower
        self._width = width
        self._dtype = dtype

    def rows(self, ids: Sequence[int], size: int) -> MediaRows:
        """Host arrays for a prompt that is padded to ``size``."""
        layout = self._placeholders.layout(ids, self._media, size)
        features = np.zeros((size, self._width), self._dtype)
        images, videos = self._features
        features[layout.images], features[layout.videos] = images, videos
        return MediaRows(features, layout.images | layout.videos, layout.positions, np.int32(layout.next_position))

    @cached_property
    def _features(self) -> tuple[np.ndarray, np.ndarray]:
        """[tokens, D] of all images, and of all videos."""
        images, videos = (
            [item.features if isinstance(item, Embedding) else self._tower(item) for item in items]
            for items in (self._media.images, self._media.videos)
        )
        return self._joined(images), self._joined(videos)

    def _joined(self, features: Sequence[np.ndarray]) -> np.ndarray:
        none = np.zeros((0, self._width), self._dtype)
        return np.concatenate([none, *(each.astype(self._dtype) for each in features)])
