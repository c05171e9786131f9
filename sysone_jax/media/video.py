"""Videos: MP4, MOV, WebM and MKV from a data URL, bytes or a file, and frames that are already decoded.

A file is read in two steps. Its packets are listed without decoding any: that gives the exact number of frames, their
times and the budget's numbers, also for files that state no duration or frame count. Then the frames asked for are
decoded, and nothing of a group of pictures that holds none of them. Frames are turned upright as the file says.

Only two demuxers are ever tried, each picked by the file's first bytes: FFmpeg has others that open further files.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from sysone_jax.media.sources import fault, load_extra, read_bytes

TYPES = {
    "video/mp4": "MP4",
    "video/webm": "WebM",
    "video/quicktime": "QuickTime",
    "video/x-matroska": "Matroska",
    "video/matroska": "Matroska",
}
MATROSKA = b"\x1aE\xdf\xa3"
QUICKTIME = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
"""Types of the box that an MP4 or MOV file may begin with."""

UNKNOWN_RATE = 24.0
"""Frames per second of a file whose own number makes no sense, as the references assume."""


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """What one video may cost. All are checked before a frame is decoded; bytes before the file is opened."""

    max_bytes: int = 256_000_000
    max_seconds: float = 3600.0
    max_frames: int = 250_000
    max_pixels: int = 8_294_400
    """Of one frame: 3840 x 2160."""


class Video(Protocol):
    """Frames in the order they are shown.

    Attributes:
        total: how many there are.
        fps: frames per second, averaged over the video.
        height, width: of a frame, in pixels.
    """

    @property
    def total(self) -> int: ...
    @property
    def fps(self) -> float: ...
    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...

    def frames(self, indices: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        """The frames of the given numbers, which must rise, one at a time: [H, W, 3] uint8."""
        ...


def open_video(
    source: Any, name: str, limits: VideoLimits | None = None, *, array_fps: float = UNKNOWN_RATE, files: bool = False
) -> Video:
    """Read what a video says of itself, and decode its first frame.

    Args:
        source: a data URL, bytes, a ``pathlib.Path``, or decoded frames [N, H, W, 3] of uint8.
        name: the video's place in the request, which errors name: ``videos[0]``.
        limits: ``VideoLimits()`` when None.
        array_fps: the frame rate of decoded frames.
        files: whether other texts are paths of files; never for texts that strangers sent.
    """
    limits = limits or VideoLimits()
    if isinstance(source, np.ndarray):
        return FrameArray(source, name, limits, array_fps)
    load_extra("av", name)
    return VideoFile(
        read_bytes(source, name, plural="videos", types=TYPES, max_bytes=limits.max_bytes, files=files), name, limits
    )


class FrameArray:
    """Frames that the caller decoded."""

    def __init__(self, array: np.ndarray, name: str, limits: VideoLimits, fps: float) -> None:
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or 0 in array.shape:
            raise fault(
                name, f"frames must be [count, height, width, 3] of uint8, not {list(array.shape)} {array.dtype}"
            )
        self._array = array
        self.total, self.height, self.width = array.shape[:3]
        self.fps = fps
        _check_frame(self.width, self.height, name, limits)
        _check_length(self.total, self.total / fps, name, limits)

    def frames(self, indices: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        return (self._array[index] for index in indices)


class VideoFile:
    """A file that PyAV reads from memory."""

    def __init__(self, data: bytes, name: str, limits: VideoLimits) -> None:
        import av
        from av.error import FFmpegError

        self._name, self._limits, self._errors = name, limits, (FFmpegError, ValueError)
        try:
            self._container: Any = av.open(io.BytesIO(data), format=_demuxer(data, name))
            stream = self._container.streams.best("video")
            if stream is None:
                raise fault(name, "the file has no video stream")
            self._decoder = stream.codec_context
            if self._decoder is None:
                raise fault(name, "the video's codec is not one that can be decoded")
            _check_frame(self._decoder.width, self._decoder.height, name, limits)
            self._decoder.options = {**self._decoder.options, "max_pixels": str(limits.max_pixels)}
            self._decoder.thread_type = "AUTO"
            self._packets = self._list_packets(stream)
        except self._errors as error:
            raise self._broken(error) from None
        shown = [packet for packet in self._packets if not packet.is_discard]
        if not shown:
            raise fault(name, "the video has no frames")
        self._times = sorted(_time(packet) for packet in shown)
        end = max(_time(packet) + (packet.duration or 0) for packet in shown)
        seconds = (end - self._times[0]) * stream.time_base
        self.total = len(shown)
        self.fps = _rate(stream.average_rate, self.total, seconds)
        _check_length(self.total, float(seconds), name, limits)
        first = next(self.frames([0]))
        self.height, self.width = first.shape[:2]

    def frames(self, indices: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        wanted = [self._times[index] for index in indices]
        at = 0
        for group in _groups(self._packets):
            last = max(map(_time, group))
            if at == len(wanted) or wanted[at] > last:
                continue
            for frame in self._decode(group):
                while at < len(wanted) and frame.pts == wanted[at]:
                    yield self._pixels(frame)
                    at += 1
                if at == len(wanted) or wanted[at] > last:
                    break
            if at < len(wanted) and wanted[at] <= last:
                raise fault(self._name, f"frame {indices[at] + 1} of {self.total} cannot be decoded")

    def _list_packets(self, stream: Any) -> list[Any]:
        packets, size = [], 0
        for packet in self._container.demux(stream):
            if not packet.size:
                continue
            size += packet.size
            if size > self._limits.max_bytes:  # Matroska may compress what it holds
                raise fault(self._name, f"each video must be at most {self._limits.max_bytes:,} bytes")
            if len(packets) >= self._limits.max_frames:
                raise fault(self._name, _too_many(self._limits))
            if packet.pts is None and packet.dts is None:
                raise fault(self._name, "the video's frames have no times")
            packets.append(packet)
        return packets

    def _decode(self, group: list[Any]) -> Iterator[Any]:
        self._decoder.flush_buffers()
        try:
            for packet in (*group, None):
                yield from self._decoder.decode(packet)
        except self._errors as error:
            raise self._broken(error) from None

    def _pixels(self, frame: Any) -> np.ndarray:
        _check_frame(frame.width, frame.height, self._name, self._limits)
        try:
            pixels = frame.to_ndarray(format="rgb24")
        except self._errors as error:
            raise self._broken(error) from None
        return np.rot90(pixels, round(frame.rotation / 90))

    def _broken(self, error: Exception) -> Exception:
        return fault(self._name, f"invalid video data ({type(error).__name__})")


def _demuxer(data: bytes, name: str) -> str:
    if data[:4] == MATROSKA:
        return "matroska"
    if data[4:8] in QUICKTIME:
        return "mov"
    raise fault(name, "invalid video data: no MP4, MOV, WebM or MKV file")


def _time(packet: Any) -> int:
    return packet.dts if packet.pts is None else packet.pts


def _groups(packets: list[Any]) -> Iterator[list[Any]]:
    """The packets, cut before every key frame that nothing after it is shown before: each group decodes alone."""
    earliest, starts = math.inf, []
    for index in range(len(packets) - 1, -1, -1):
        earliest = min(earliest, _time(packets[index]))
        if packets[index].is_keyframe and _time(packets[index]) == earliest:
            starts.append(index)
    starts = [0, *(index for index in reversed(starts) if index)]
    for start, stop in zip(starts, [*starts[1:], len(packets)], strict=True):
        yield packets[start:stop]


def _rate(average: Fraction | None, total: int, seconds: Fraction) -> float:
    """The file's average rate; its content's when it states none; what the references assume when neither can be."""
    rate = float(average) if average else float(total / seconds) if seconds > 0 else 0.0
    return rate if 0.1 <= rate <= 1000 else UNKNOWN_RATE


def _check_frame(width: int, height: int, name: str, limits: VideoLimits) -> None:
    if width * height > limits.max_pixels:
        raise fault(
            name,
            f"each video must have at most {limits.max_pixels:,} pixels per frame; this one has {width:,} x {height:,}",
        )


def _check_length(total: int, seconds: float, name: str, limits: VideoLimits) -> None:
    if total > limits.max_frames:
        raise fault(name, _too_many(limits))
    if seconds > limits.max_seconds:
        raise fault(
            name, f"each video must be at most {limits.max_seconds:g} seconds long; this one has {seconds:,.1f}"
        )


def _too_many(limits: VideoLimits) -> str:
    return f"each video must have at most {limits.max_frames:,} frames"
