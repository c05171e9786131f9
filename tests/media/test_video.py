"""Videos: what is read of a file, which frames are decoded, and what is refused before one is."""

from __future__ import annotations

import base64
import io
import re
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysone_jax.errors import InputError
from sysone_jax.media import video
from sysone_jax.media.video import VideoFile, VideoLimits, open_video

STORED = np.load(Path(__file__).parents[1] / "data" / "media" / "videos.npz")
FILES = {name.split("/")[0]: STORED[name].tobytes() for name in STORED.files if name.endswith("/file")}
EVEN = FILES["even.mp4"]  # 60 frames of 48 x 80, 30 a second, a key frame in 12


def every_frame(data: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("name", FILES)
def test_any_choice_of_frames_is_what_a_full_decode_gives(name: str) -> None:
    wanted = every_frame(FILES[name])
    clip = open_video(FILES[name], "videos[0]")
    assert (clip.total, clip.height, clip.width) == (len(wanted), *wanted[0].shape[:2])
    for step in (1, 2, 7, 30):
        for start in range(min(step, clip.total)):
            indices = range(start, clip.total, step)
            got = list(clip.frames(indices))
            assert len(got) == len(indices)
            assert all(np.array_equal(frame, wanted[index]) for frame, index in zip(got, indices, strict=True))
    assert np.array_equal(next(clip.frames([clip.total - 1])), wanted[-1])
    assert list(clip.frames([])) == []


@pytest.mark.parametrize("kind", ["url", "bytes", "path", "array"])
def test_every_source_gives_the_same_frames(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    file.write_bytes(EVEN)
    source = {
        "url": "data:video/mp4;base64," + base64.b64encode(EVEN).decode(),
        "bytes": EVEN,
        "path": file,
        "array": np.stack(every_frame(EVEN)),
    }[kind]
    clip = open_video(source, "videos[0]", array_fps=30.0)
    assert (clip.total, clip.fps, clip.height, clip.width) == (60, 30.0, 48, 80)
    assert np.array_equal(np.stack(list(clip.frames([0, 59]))), np.stack(every_frame(EVEN))[[0, 59]])


def test_groups_without_a_wanted_frame_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    decode = VideoFile._decode
    monkeypatch.setattr(VideoFile, "_decode", lambda self, group: decoded.append(len(group)) or decode(self, group))
    clip = open_video(EVEN, "videos[0]")
    decoded.clear()
    list(clip.frames([0, 30]))
    assert sum(decoded) <= 24


@pytest.mark.parametrize("degrees", [90, 180, -90])
def test_frames_are_turned_upright(degrees: int) -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 64, "yuv420p"
        stream.set_display_rotation(degrees)
        for _ in range(3):
            pixels = np.zeros((32, 64, 3), np.uint8)
            pixels[:, :16, 0] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode(None))
    clip = open_video(out.getvalue(), "videos[0]")
    red = next(clip.frames([1]))[..., 0] > 128
    sides = {"left": red[:, 0], "right": red[:, -1], "top": red[0], "bottom": red[-1]}
    where = {90: "bottom", 180: "right", -90: "top"}[degrees]  # where its left side is after a turn to the left
    assert (clip.height, clip.width) == ((32, 64) if degrees == 180 else (64, 32))
    assert [side for side, values in sides.items() if values.all()] == [where]


def test_a_rate_that_makes_no_sense_is_taken_for_24() -> None:
    assert video._rate(None, 5, video.Fraction(0)) == 24.0
    assert video._rate(None, 5, video.Fraction(2)) == 2.5
    assert video._rate(video.Fraction(90_000), 5, video.Fraction(2)) == 24.0
    assert video._rate(video.Fraction(30_000, 1001), 5, video.Fraction(2)) == 30_000 / 1001


def sound_only() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream: Any = container.add_stream("aac", rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


FRAMES = np.zeros((60, 4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("source", "limits", "said"),
    [
        (b"no video", None, "invalid video data: no MP4, MOV, WebM or MKV file"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", None, "invalid video data: no MP4, MOV, WebM or MKV file"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", None, "invalid video data: no MP4, MOV, WebM or MKV file"),
        (EVEN[:300], None, "invalid video data (InvalidDataError)"),
        (FILES["short.mkv"][:200], None, "invalid video data"),
        (sound_only(), None, "the file has no video stream"),
        (EVEN, VideoLimits(max_bytes=1000), "each video must be at most 1,000 bytes; this one has"),
        (EVEN, VideoLimits(max_pixels=1000), "at most 1,000 pixels per frame; this one has 80 x 48"),
        (EVEN, VideoLimits(max_frames=59), "each video must have at most 59 frames"),
        (EVEN, VideoLimits(max_seconds=1.5), "each video must be at most 1.5 seconds long; this one has 2.0"),
        (FRAMES, VideoLimits(max_pixels=10), "at most 10 pixels per frame; this one has 6 x 4"),
        (FRAMES, VideoLimits(max_frames=59), "each video must have at most 59 frames"),
        (FRAMES, VideoLimits(max_seconds=2), "each video must be at most 2 seconds long; this one has 2.5"),
        (FRAMES[:0], None, "frames must be [count, height, width, 3] of uint8, not [0, 4, 6, 3] uint8"),
        (FRAMES / 255, None, "frames must be [count, height, width, 3] of uint8, not [60, 4, 6, 3] float64"),
        (FRAMES[0], None, "frames must be [count, height, width, 3] of uint8, not [4, 6, 3] uint8"),
        ("https://example.org/a.mp4", None, "other URLs are not fetched"),
        ("data:video/avi;base64,AAAA", None, "videos must be base64 MP4, WebM, QuickTime or Matroska data URLs"),
        (3.5, None, "videos must be data URLs, bytes or paths, not float"),
    ],
)
def test_what_cannot_be_read_is_named(source: Any, limits: VideoLimits | None, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        open_video(source, "videos[1]", limits)
    assert str(caught.value).startswith("videos[1]: ") and "\n" not in str(caught.value)
    assert (caught.value.kind, caught.value.field) == ("media", "videos.1")


def test_no_frame_is_decoded_before_the_limits_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(VideoFile, "_decode", never)
    for limits in (VideoLimits(max_pixels=1000), VideoLimits(max_frames=59), VideoLimits(max_seconds=1)):
        with pytest.raises(InputError, match="each video must"):
            open_video(EVEN, "videos[0]", limits)


def test_a_frame_that_is_larger_than_the_file_says_is_not_decoded() -> None:
    """The decoder has the limit too, for streams whose own header disagrees with the container's."""
    at = EVEN.index(b"avc1", EVEN.index(b"stsd")) + 28
    assert EVEN[at : at + 4] == b"\x00\x50\x00\x30"  # width and height
    with pytest.raises(InputError, match="videos.0.: "):
        open_video(EVEN[:at] + b"\x00\x10\x00\x10" + EVEN[at + 4 :], "videos[0]", VideoLimits(max_pixels=1000))


def test_without_pyav_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=re.escape("pip install 'sysone-jax[media]'")) as caught:
        open_video(EVEN, "videos[0]")
    assert (caught.value.kind, caught.value.field) == ("unsupported", "videos")


@given(
    data=st.sampled_from([FILES["short.mkv"], FILES["two_frames.mp4"], FILES["fragments.mp4"]]),
    changes=st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), max_size=6),
    length=st.integers(1, 100_000),
)
def test_damage_gives_frames_or_one_error(data: bytes, changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        clip = open_video(bytes(damaged[:length]), "videos[0]")
        assert len(list(clip.frames(range(0, clip.total, 3)))) == -(-clip.total // 3)
    except InputError as error:
        assert error.field == "videos.0"
