"""Where media stand in a prompt: a chat template writes one token for each, and the model reads as many as it shows.

After transformers' ``Qwen3VLProcessor`` (5.24), which Qwen3.5 has too. An image's ``<|image_pad|>`` is repeated. A
video's ``<|video_pad|>`` becomes, for each group of frames, the time at which they are shown and a pair of vision
tokens around the repeated pad: ``<0.3 seconds><|vision_start|>...<|vision_end|>``. The pair that the template wrote
stays around the whole.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.media.positions import IMAGE, TEXT, VIDEO, rope_positions
from sysone_jax.media.request import Media
from sysone_jax.text import Tokenizer

IMAGE_PAD, VIDEO_PAD, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
TOKENS = {
    IMAGE_PAD: "image_token_id",
    VIDEO_PAD: "video_token_id",
    START: "vision_start_token_id",
    END: "vision_end_token_id",
}
"""Spelling -> what ``config.json`` calls its id."""


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The tokens of media in one tokenizer, and the patches on a side of what one of them stands for."""

    tokenizer: Tokenizer
    image: int
    video: int
    start: int
    end: int
    merge: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, merge: int) -> Placeholders:
        """CheckpointError when the tokenizer lacks one of the tokens."""
        found = []
        for spelling in TOKENS:
            ids = tokenizer.encode(spelling)
            if len(ids) != 1 or ids[0] not in tokenizer.added_ids:
                raise CheckpointError(f"the tokenizer has no token {spelling}, which stands for media in a prompt")
            found += ids
        image, video, start, end = found
        return cls(tokenizer, image, video, start, end, merge)

    def check(self, config: Mapping[str, Any]) -> None:
        """CheckpointError when a ``config.json`` gives one of the tokens another id."""
        ids = (self.image, self.video, self.start, self.end)
        for (spelling, key), token in zip(TOKENS.items(), ids, strict=True):
            if config.get(key) not in (None, token):
                raise CheckpointError(
                    f"config.json: {key!r} is {reprlib.repr(config[key])}, and the tokenizer's {spelling} is {token}"
                )

    def expand(self, ids: Sequence[int], media: Media) -> list[int]:
        """``ids`` with as many tokens for each of the media as the model reads of it.

        Raises:
            InputError: the prompt's text spells a placeholder of its own, so which stands for what is unknown; or the
                chat template wrote none for an item.
        """
        images, videos = iter(media.images), iter(media.videos)
        counts = [sum(token == pad for token in ids) for pad in (self.image, self.video)]
        if counts[0] < len(media.images) or counts[1] < len(media.videos):
            raise InputError(
                "this model's chat template leaves images or videos out of the prompt; send text alone",
                kind="unsupported",
                field="images" if counts[0] < len(media.images) else "videos",
            )
        if counts != [len(media.images), len(media.videos)]:
            self.check_own(ids)
        expanded: list[int] = []
        for token in ids:
            if token == self.image:
                expanded += [token] * next(images).tokens
            elif token == self.video:
                video = next(videos)
                frame = video.tokens // len(video.seconds)
                for seconds in video.seconds:
                    expanded += self.tokenizer.encode(f"<{seconds:.1f} seconds>")
                    expanded += [self.start, *[token] * frame, self.end]
            else:
                expanded.append(token)
        return expanded

    def shown(self, media: Media, ending: str = "") -> list[int]:
        """What stands for media in a prompt that no template writes: images, videos, ``ending``; nothing for none."""
        if not media:
            return []
        text = f"{START}{IMAGE_PAD}{END}" * len(media.images) + f"{START}{VIDEO_PAD}{END}" * len(media.videos)
        return [*self.expand(self.tokenizer.encode(text), media), *self.tokenizer.encode(ending)]

    def check_own(self, ids: Sequence[int]) -> None:
        """InputError where a request's own text spells a placeholder: beside media, what stands for what is unclear."""
        if self.image in ids or self.video in ids:
            raise InputError("the state or question contains a literal image or video placeholder token", field="state")

    def layout(self, ids: Sequence[int], media: Media, size: int) -> Layout:
        """Where the tokens of an expanded prompt stand, which ends within ``size`` rows."""
        kinds = np.full(len(ids), TEXT)
        along = np.asarray(ids)
        kinds[along == self.image], kinds[along == self.video] = IMAGE, VIDEO
        known, delta = rope_positions(
            kinds, [item.grid for item in media.images], [item.grid for item in media.videos], self.merge
        )
        positions = np.empty((3, size), np.int32)
        positions[:, : len(ids)] = known
        positions[:, len(ids) :] = np.arange(len(ids), size) + delta
        rows = np.zeros(size, np.int64)
        rows[: len(ids)] = kinds
        return Layout(rows == IMAGE, rows == VIDEO, positions, len(ids) + delta)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Rows of a padded prompt.

    Attributes:
        images, videos: [size] bool, the rows that image and video tokens have.
        positions: [3, size] int32: time, row and column of every token.
        next_position: of the token that follows the prompt.
    """

    images: np.ndarray
    videos: np.ndarray
    positions: np.ndarray
    next_position: int
