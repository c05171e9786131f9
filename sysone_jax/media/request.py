"""A request's images and videos, read within one model's budgets before anything of it is queued."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.media.embedding import Embedding
from sysone_jax.media.images import ImageLimits, Transparency
from sysone_jax.media.qwen_patches import (
    MOST_RATIO,
    ImageSettings,
    Opened,
    Patches,
    VideoSettings,
    open_images,
    open_videos,
    read_settings,
)
from sysone_jax.media.video import VideoLimits

SETTINGS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files that say how a model's processor prepares media; a checkpoint has some of them."""

Item = Patches | Embedding


@dataclass(frozen=True)
class Media:
    """What a request shows beside its state, in the order that the prompt has it: images, then videos."""

    images: tuple[Item, ...] = ()
    videos: tuple[Item, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.images or self.videos)

    @cached_property
    def digest(self) -> bytes:
        """Equal for media that the model cannot tell apart; empty when there are none."""
        if not self:
            return b""
        whole = hashlib.sha256()
        for item in (*self.images, *self.videos):
            values = item.features if isinstance(item, Embedding) else item.values
            whole.update(f"{type(item).__name__} {item.grid} {item.seconds} {values.dtype} {values.shape}".encode())
            whole.update(np.ascontiguousarray(values).view(np.uint8).data)
        return whole.digest()


NOTHING = Media()


@dataclass(frozen=True, slots=True)
class MediaReader:
    """How one model reads media, and how much of them.

    Attributes:
        images, videos: the settings of its processor.
        merge: patches on a side of what one token stands for.
        embed: width of its embeddings, which precomputed ones must have.
        max_tokens: most tokens that a request's images may take together, and with its videos.
        max_video_tokens: and its videos.
        image_limits, video_limits: what one item may cost, checked before it is decoded.
        transparency: see ``images.Transparency``.
    """

    images: ImageSettings
    videos: VideoSettings
    embed: int
    max_tokens: int
    max_video_tokens: int
    image_limits: ImageLimits = field(default_factory=ImageLimits)
    video_limits: VideoLimits = field(default_factory=VideoLimits)
    transparency: Transparency = "white"

    @classmethod
    def of(cls, folder: Path, *, embed: int, max_tokens: int) -> MediaReader:
        """The reader of a model whose processor's files are in ``folder``; CheckpointError when they cannot be used."""
        images, videos = read_settings(folder)
        return cls(images, videos, embed, max_tokens, max_tokens)

    @property
    def frame_tokens(self) -> int:
        """No image, and no group of a video's frames, takes more.

        Rounding may add a token to each side of what is brought up to the least size, or hold a thin side at one token:
        with sides a and b of a ratio r, ``(a + 1)(b + 1) < ab + 1 + sqrt(ab) (sqrt(r) + 1)``, and ``b <= r`` where
        a < 1.
        """
        most = [MOST_RATIO]
        for settings, cap in ((self.images, None), (self.videos, self.videos.frame_tokens)):
            largest, least = settings.most // settings.factor**2, settings.fewest // settings.factor**2
            grown = least + 2 + math.ceil(math.sqrt(least + 1) * (math.sqrt(MOST_RATIO) + 1))
            most.append(max(grown, largest if cap is None else min(cap, largest)))
        return max(most)

    def check(self, patch_values: int, merge: int) -> None:
        """CheckpointError when the processor's patches are not those that the tower reads."""
        for settings in (self.images, self.videos):
            made = 3 * settings.temporal * settings.patch**2
            if (made, settings.merge) != (patch_values, merge):
                raise CheckpointError(
                    f"the processor's files make patches of {made} values, {settings.merge} to a token's side; the "
                    f"vision tower reads {patch_values} and {merge}"
                )

    def read(self, images: Sequence[Any], videos: Sequence[Any]) -> Media:
        """Decode, resize and cut a request's media; InputError names the item that cannot be.

        Args:
            images: data URLs, bytes, ``pathlib.Path``s, Pillow images, arrays [H, W, 3] of uint8, or ``Embedding``s.
            videos: data URLs, bytes, ``pathlib.Path``s, arrays of frames [N, H, W, 3] of uint8, or ``Embedding``s.
        """
        for items, name in ((images, "images"), (videos, "videos")):
            if not isinstance(items, list | tuple):
                raise InputError(f"{name} must be a list of {name}", kind="type", field=name)
        # All are measured before the first is decoded.
        pictures = open_images(images, self.images, self.image_limits, transparency=self.transparency, embed=self.embed)
        films = open_videos(videos, self.videos, self.video_limits, embed=self.embed)
        _check_tokens(pictures, "images", self.max_tokens, "smaller")
        _check_tokens(films, "videos", self.max_video_tokens, "shorter")
        _check_tokens([*pictures, *films], "images and videos", self.max_tokens, "smaller")
        media = Media(tuple(item.decoded() for item in pictures), tuple(item.decoded() for item in films))
        _ = media.digest  # here, in the caller's thread: the engine's has better to do
        return media


def _check_tokens(opened: Sequence[Opened], plural: str, most: int, instead: str) -> None:
    total = sum(item.tokens for item in opened)
    if total > most:
        raise InputError(
            f"the {plural} take {total:,} input tokens, over the {most:,} tokens a request may spend on {plural}; "
            f"send fewer or {instead} {plural}",
            kind="too_long",
            field=plural.split()[0],
        )
