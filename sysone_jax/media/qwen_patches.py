"""What the Qwen processors make of pixels: sizes, frames, normalised patches and how many tokens they become.

After transformers' ``Qwen2VLImageProcessor`` and ``Qwen3VLVideoProcessor`` (5.24), down to the rounding: both sides are
brought to multiples of patch times merge size (Python's round, ties to even) within a budget of pixels, the resize is
``resize.resize``, and values are ``(x - 255 mean) / (255 std)`` in float32. A video's budget counts the pixels of all
its frames together; an odd last frame is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import numpy as np

from sysone_jax.config import read_json
from sysone_jax.errors import CheckpointError
from sysone_jax.media.embedding import Embedding
from sysone_jax.media.images import ImageLimits, Picture, Transparency, open_image
from sysone_jax.media.resize import resize
from sysone_jax.media.sources import fault
from sysone_jax.media.video import UNKNOWN_RATE, Video, VideoLimits, open_video

MOST_RATIO = 200
"""Of the longer side to the shorter one: the references refuse more."""

BICUBIC = 3


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """The numbers of a ``preprocessor_config.json``.

    Attributes:
        patch: pixels on a patch's side.
        merge: patches on the side of what one token stands for.
        temporal: frames in a patch; an image is repeated to so many.
        mean, std: of each channel, with pixels from 0 to 1.
        fewest, most: pixels of a resized image, or of all frames of a resized video.
    """

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    fewest: int = 65_536
    most: int = 16_777_216

    @property
    def factor(self) -> int:
        """What both sides are a multiple of, in pixels."""
        return self.patch * self.merge

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The size that an image is resized to. ValueError when it is too long and thin."""
        return _fit(1, 1, height, width, self.factor, self.fewest, self.most)

    def tokens(self, frames: int, height: int, width: int) -> int:
        """Of so many frames of a resized size."""
        return -(-frames // self.temporal) * (height // self.factor) * (width // self.factor)


@dataclass(frozen=True, slots=True)
class VideoSettings(ImageSettings):
    """The numbers of a ``video_preprocessor_config.json``.

    Attributes:
        fps: frames per second that are read of a video; None reads all.
        min_frames, max_frames: bounds of how many are read, where the video has them.
        frame_tokens: most tokens of one frame, whatever the others leave; None for no such cap.
        array_fps: the frame rate of frames that come decoded.
        repeat_first: whether the last frame is repeated until groups are whole before the size is chosen. The processor
            repeats it afterwards, and refuses a video of one frame; a reference may have done it already.
    """

    fewest: int = 4096
    most: int = 25_165_824
    fps: float | None = 2.0
    min_frames: int = 4
    max_frames: int = 768
    frame_tokens: int | None = None
    array_fps: float = UNKNOWN_RATE
    repeat_first: bool = False

    def indices(self, total: int, fps: float) -> np.ndarray:
        """Which of a video's frames are read, first and last included [count]."""
        if self.fps is None:
            return np.arange(total)
        count = min(max(int(total / fps * self.fps), self.min_frames), self.max_frames, total)
        return np.linspace(0, total - 1, count).round().astype(int)

    def seconds(self, indices: Sequence[int] | np.ndarray, fps: float) -> tuple[float, ...]:
        """When each group of ``temporal`` frames is shown: midway between its first and last, counted at ``fps``."""
        times = [int(index) / fps for index in indices]
        times += times[-1:] * (-len(times) % self.temporal)
        return tuple((times[i] + times[i + self.temporal - 1]) / 2 for i in range(0, len(times), self.temporal))

    def video_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """The size that every frame is resized to. ValueError for a single frame and for one too long and thin."""
        if self.repeat_first:
            frames += -frames % self.temporal
        if frames < self.temporal:
            raise ValueError(f"the video has {frames} frame; one of fewer than {self.temporal} can be sent as an image")
        if height < self.factor or width < self.factor:
            scale = max(self.factor / height, self.factor / width)
            height, width = int(height * scale), int(width * scale)
        most = self.most
        if self.frame_tokens is not None:
            share = min(self.frame_tokens * self.factor**2, self.most // frames)
            most = max(share, int(self.fewest * 1.05)) * frames
        return _fit(frames, self.temporal, height, width, self.factor, self.fewest, most)


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """One image or one video, as the tower reads it.

    Attributes:
        values: [frames * rows * columns, channels * temporal * patch * patch] float32. Patches of one merge block stand
            together, blocks go row by row, frames follow each other; in a patch: channel, frame, y, x.
        grid: frames, rows and columns of patches.
        tokens: how many stand for it in the prompt.
        seconds: of a video, when each group of frames is shown.
    """

    values: np.ndarray
    grid: tuple[int, int, int]
    tokens: int
    seconds: tuple[float, ...] = ()


def _fit(frames: int, temporal: int, height: int, width: int, factor: int, fewest: int, most: int) -> tuple[int, int]:
    ratio = max(height, width) / min(height, width)
    if ratio > MOST_RATIO:
        raise ValueError(f"absolute aspect ratio must be smaller than {MOST_RATIO}, got {ratio}")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    volume = round(frames / temporal) * temporal * rows * columns
    if volume > most:
        shrink = math.sqrt(frames * height * width / most)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif volume < fewest:
        grow = math.sqrt(fewest / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns


def cut(frames: np.ndarray, settings: ImageSettings, seconds: tuple[float, ...] = ()) -> Patches:
    """Resized frames [N, H, W, C] uint8 -> their normalised patches."""
    frames = np.concatenate([frames, frames[-1:].repeat(-len(frames) % settings.temporal, axis=0)])
    patch, merge, temporal = settings.patch, settings.merge, settings.temporal
    grid = len(frames) // temporal, frames.shape[1] // patch, frames.shape[2] // patch
    blocks = frames.reshape(
        grid[0], temporal, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch, frames.shape[3]
    ).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    values = blocks.astype(np.float32)
    values -= _scaled(settings.mean)
    values /= _scaled(settings.std)
    tokens = settings.tokens(len(frames), *frames.shape[1:3])
    return Patches(values.reshape(math.prod(grid), -1), grid, tokens, seconds)


def _scaled(channels: tuple[float, ...]) -> np.ndarray:
    """Per-channel numbers for pixels from 0 to 255, rounded as the reference rounds them [C, 1, 1, 1]."""
    return (np.asarray(channels, np.float32) * np.float32(255))[:, None, None, None]


class Opened(NamedTuple):
    """An item that was measured and not decoded: the tokens it takes, and what decodes it."""

    tokens: int
    decoded: Callable[[], Patches | Embedding]


def open_images(
    sources: Iterable[Any],
    settings: ImageSettings,
    limits: ImageLimits | None = None,
    *,
    transparency: Transparency = "white",
    files: bool = False,
    embed: int | None = None,
) -> list[Opened]:
    """A request's images, in order.

    Args:
        sources: what ``open_image`` takes, or an ``Embedding``.
        settings: of the model's image processor.
        limits: of each image.
        transparency: see ``images.Transparency``.
        files: whether texts may be paths; never for texts that strangers sent.
        embed: width of the model's embeddings, which an ``Embedding`` must have.
    """
    opened = []
    for i, source in enumerate(sources):
        name = f"images[{i}]"
        if isinstance(source, Embedding):
            source.check(name, merge=settings.merge, embed=embed, video=False)
            opened.append(Opened(source.tokens, partial(_itself, source)))
            continue
        picture = open_image(source, name, limits, transparency=transparency, files=files)
        size = _named(name, settings.size, picture.height, picture.width)

        def decoded(picture: Picture = picture, size: tuple[int, int] = size) -> Patches:
            return cut(resize(picture.pixels(), *size)[None], settings)

        opened.append(Opened(settings.tokens(1, *size), decoded))
    return opened


def open_videos(
    sources: Iterable[Any],
    settings: VideoSettings,
    limits: VideoLimits | None = None,
    *,
    files: bool = False,
    embed: int | None = None,
) -> list[Opened]:
    """A request's videos, in order; arguments as of ``open_images``. Beyond its first frame, none is decoded early."""
    opened = []
    for i, source in enumerate(sources):
        name = f"videos[{i}]"
        if isinstance(source, Embedding):
            source.check(name, merge=settings.merge, embed=embed, video=True)
            opened.append(Opened(source.tokens, partial(_itself, source)))
            continue
        video = open_video(source, name, limits, array_fps=settings.array_fps, files=files)
        indices = settings.indices(video.total, video.fps)
        size = _named(name, settings.video_size, len(indices), video.height, video.width)

        def decoded(video: Video = video, indices: np.ndarray = indices, size: tuple[int, int] = size) -> Patches:
            frames = np.empty((len(indices), *size, 3), np.uint8)
            for at, frame in enumerate(video.frames(indices)):
                frames[at] = resize(frame, *size)
            return cut(frames, settings, settings.seconds(indices, video.fps))

        opened.append(Opened(settings.tokens(len(indices), *size), decoded))
    return opened


def _itself(item: Embedding) -> Embedding:
    return item


def _named(name: str, size: Callable[..., tuple[int, int]], *numbers: int) -> tuple[int, int]:
    try:
        return size(*numbers)
    except ValueError as error:
        raise fault(name, str(error)) from None


def has_settings(folder: Path) -> bool:
    """Whether a model's folder says how images are prepared. Without that, its other processor files say too little."""
    whole = folder / "processor_config.json"
    return (folder / "preprocessor_config.json").exists() or (
        whole.exists() and bool(read_json(whole).get("image_processor"))
    )


def read_settings(folder: Path) -> tuple[ImageSettings, VideoSettings]:
    """The settings of a model's folder, from the files that transformers would take them from.

    ``processor_config.json`` goes first where it holds them; then ``preprocessor_config.json`` and
    ``video_preprocessor_config.json``; and a folder without the last gives its image settings to videos too.
    """
    whole = read_json(folder / "processor_config.json") if (folder / "processor_config.json").exists() else {}
    pictures = folder / "preprocessor_config.json"
    videos = folder / "video_preprocessor_config.json"
    image = whole.get("image_processor") or read_json(pictures)
    video = whole.get("video_processor") or (read_json(videos) if videos.exists() else image)
    return image_settings(image), video_settings(video)


def image_settings(config: Mapping[str, Any]) -> ImageSettings:
    """From a ``preprocessor_config.json``; CheckpointError on what this version does not know or do."""
    reader = _Reader(config, "preprocessor_config.json")
    settings = ImageSettings(**reader.shared())
    reader.finish()
    return settings


def video_settings(config: Mapping[str, Any]) -> VideoSettings:
    """From a ``video_preprocessor_config.json``; CheckpointError on what this version does not know or do."""
    reader = _Reader(config, "video_preprocessor_config.json")
    capped, tokens = reader.take("cap_pixels_per_frame", False, kind=bool), reader.take("max_video_tokens", 768)
    sampled, fps = reader.take("do_sample_frames", True, kind=bool), reader.take("fps", 2.0, kind=int | float)
    settings = VideoSettings(
        **reader.shared(),
        fps=fps if sampled else None,
        min_frames=reader.take("min_frames", 4),
        max_frames=reader.take("max_frames", 768),
        frame_tokens=tokens if capped else None,
    )
    reader.require("num_frames")
    reader.finish()
    return settings


class _Reader:
    """Takes keys out of a processor's config; ``finish`` refuses what nobody took. A null is an absent key."""

    INERT = frozenset(
        """
        processor_class image_processor_type video_processor_type feature_extractor_type auto_map data_format
        input_data_format device return_metadata disable_grouping default_to_square max_image_size return_tensors
        max_duration crop_size pad_size video_metadata
        """.split()
    )

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self._left = {key: value for key, value in config.items() if value is not None and key not in self.INERT}
        self._file = file

    def take(self, key: str, *default: Any, kind: type | UnionType = int) -> Any:
        """A number above 0 (or a flag), ``default`` when the key is absent."""
        value = self._left.pop(key, *default or (None,))
        fits = isinstance(value, kind) and (isinstance(value, bool) or 0 < value < 1 << 40)
        if not fits or (isinstance(value, bool) and kind is not bool):
            found = "is missing" if value is None else f"has the unexpected value {value!r}"
            raise CheckpointError(f"{self._file}: {key!r} {found}")
        return value

    def require(self, key: str, *allowed: Any) -> None:
        if key in self._left and (value := self._left.pop(key)) not in allowed:
            raise CheckpointError(f"{self._file}: {key!r} is {value!r}, which this version does not do")

    def shared(self) -> dict[str, Any]:
        """The fields that images and videos have in common."""
        size = self._left.pop("size", {})
        if not isinstance(size, Mapping) or size.keys() - {"shortest_edge", "longest_edge"}:
            raise CheckpointError(f"{self._file}: 'size' must hold shortest_edge and longest_edge, not {size!r}")
        budget = {"min_pixels": size.get("shortest_edge"), "max_pixels": size.get("longest_edge"), **self._left}
        for key in ("min_pixels", "max_pixels"):  # the older names go before the newer ones, as in transformers
            self._left[key] = budget[key]
        self.require("resample", BICUBIC)
        self.require("rescale_factor", 1 / 255)
        for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            self.require(key, True)
        for key in ("do_center_crop", "do_pad"):
            self.require(key, False)
        return {
            "patch": self.take("patch_size"),
            "merge": self.take("merge_size", 2),
            "temporal": self.take("temporal_patch_size", 2),
            "mean": self._channels("image_mean"),
            "std": self._channels("image_std"),
            "fewest": self.take("min_pixels"),
            "most": self.take("max_pixels"),
        }

    def finish(self) -> None:
        if self._left:
            unknown = ", ".join(map(repr, sorted(self._left)))
            raise CheckpointError(f"{self._file} has keys this version does not know: {unknown}")

    def _channels(self, key: str) -> tuple[float, ...]:
        value = self._left.pop(key, None)
        numbers = isinstance(value, list | tuple) and all(type(each) in (int, float) for each in value)
        if not numbers or len(value) != 3 or (key == "image_std" and not all(value)):
            raise CheckpointError(f"{self._file}: {key!r} must be three numbers, not {value!r}")
        return tuple(map(float, value))
