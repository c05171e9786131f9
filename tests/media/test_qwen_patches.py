"""Patches against transformers' processors, on odd images and videos; ``reference.py`` beside it wrote both."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.media.embedding import Embedding
from sysone_jax.media.qwen_patches import (
    ImageSettings,
    Patches,
    VideoSettings,
    image_settings,
    open_images,
    open_videos,
    read_settings,
    video_settings,
)
from sysone_jax.media.request import MediaReader

DATA = Path(__file__).parents[1] / "data" / "media"
IMAGES, VIDEOS = np.load(DATA / "images.npz"), np.load(DATA / "videos.npz")
COMMON = {"patch_size": 16, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.5, 0.25, 0.3]}
IMAGE = {**COMMON, "size": {"shortest_edge": 2048, "longest_edge": 4096}}
VIDEO = {**COMMON, "size": {"shortest_edge": 4096, "longest_edge": 12288}}


def names(stored: Any) -> list[str]:
    return [name.removesuffix("/file") for name in stored.files if name.endswith("/file")]


def levels(patches: Patches) -> np.ndarray:
    """The pixels behind normalised patches; asserts that each stands on a level of its own."""
    mean, std = (np.array(COMMON[key])[:, None] for key in ("image_mean", "image_std"))
    pixels = (patches.values.reshape(len(patches.values), 3, -1) * std + mean) * 255
    assert np.abs(pixels - np.rint(pixels)).max() < 1e-3
    return np.rint(pixels).astype(int).reshape(len(patches.values), -1)


def read_images(*arguments: Any, **options: Any) -> list[Patches | Embedding]:
    return [each.decoded() for each in open_images(*arguments, **options)]


def read_videos(*arguments: Any, **options: Any) -> list[Patches | Embedding]:
    return [each.decoded() for each in open_videos(*arguments, **options)]


@pytest.mark.parametrize("name", names(IMAGES))
def test_odd_images_equal_the_references(name: str) -> None:
    (got,) = read_images([IMAGES[f"{name}/file"].tobytes()], image_settings(IMAGE))
    assert isinstance(got, Patches)
    assert got.grid == tuple(IMAGES[f"{name}/grid"])
    assert got.tokens == np.prod(got.grid) // 4 and got.seconds == ()
    # A lossy file's pixels are the decoder library's; everything after it is exact.
    assert np.abs(levels(got) - IMAGES[f"{name}/pixels"]).max() <= (0 if name.endswith(".png") else 1)


@pytest.mark.parametrize("name", names(VIDEOS))
def test_odd_videos_equal_the_references(name: str) -> None:
    (got,) = read_videos([VIDEOS[f"{name}/file"].tobytes()], video_settings(VIDEO))
    assert isinstance(got, Patches)
    assert got.grid == tuple(VIDEOS[f"{name}/grid"])
    assert got.seconds == tuple(VIDEOS[f"{name}/seconds"])
    assert np.abs(levels(got) - VIDEOS[f"{name}/pixels"]).max() <= 1


def test_values_are_normalised_in_float32() -> None:
    (got,) = read_images([np.full((32, 64, 3), 200, np.uint8)], image_settings(IMAGE))
    assert isinstance(got, Patches) and got.values.dtype == np.float32
    mean, std = (np.float32(COMMON[key]) * np.float32(255) for key in ("image_mean", "image_std"))
    assert np.array_equal(np.unique(got.values), np.unique((np.float32(200) - mean) / std))


# (height, width) -> size, with Qwen3.5's budget and with 1,638,400 pixels at most
@pytest.mark.parametrize(
    ("height", "width", "most", "size"),
    [
        (200, 300, 1_638_400, (224, 320)),
        (64, 64, 1_638_400, (256, 256)),
        (1080, 1920, 1_638_400, (960, 1696)),
        (1280, 1280, 1_638_400, (1280, 1280)),
        (1200, 1600, 1_638_400, (1088, 1472)),
        (1080, 1920, 16_777_216, (1088, 1920)),
        (4000, 6000, 16_777_216, (3328, 4992)),
        (1, 200, 16_777_216, (32, 3648)),
        (48, 80, 16_777_216, (224, 352)),
    ],
)
def test_image_sizes(height: int, width: int, most: int, size: tuple[int, int]) -> None:
    assert ImageSettings(most=most).size(height, width) == size


@pytest.mark.parametrize(
    ("frames", "height", "width", "size"), [(4, 1080, 1920, (320, 576)), (32, 64, 48, (64, 64)), (2, 8, 16, (32, 64))]
)
def test_video_sizes_with_a_cap_on_each_frame(frames: int, height: int, width: int, size: tuple[int, int]) -> None:
    capped = VideoSettings(most=32 * 200_704, frame_tokens=196)
    assert capped.video_size(frames, height, width) == size


@pytest.mark.parametrize(
    ("total", "fps", "indices"),
    [(48, 24.0, [0, 16, 31, 47]), (3, 30.0, [0, 1, 2]), (61, 30.0, [0, 20, 40, 60]), (12, 8.0, [0, 4, 7, 11])],
)
def test_which_frames_are_read(total: int, fps: float, indices: list[int]) -> None:
    settings = VideoSettings(max_frames=32)
    assert settings.indices(total, fps).tolist() == indices


def test_times_stand_midway_in_each_pair() -> None:
    settings = VideoSettings()
    assert [f"{seconds:.1f}" for seconds in settings.seconds([0, 4, 7, 11], 8.0)] == ["0.2", "1.1"]
    assert settings.seconds([0, 10, 20], 10.0) == (0.5, 2.0)


def test_decoded_frames_have_a_rate_of_their_own() -> None:
    frames = np.zeros((40, 32, 32, 3), np.uint8)
    for settings, grid in ((VideoSettings(), 2), (VideoSettings(array_fps=2.0, max_frames=32), 16)):
        (got,) = read_videos([frames], settings)
        assert got.grid[0] == len(got.seconds) == grid
    (got,) = read_videos([frames[:5]], VideoSettings(fps=None, array_fps=2.0))
    assert got.seconds == (0.25, 1.25, 2.0)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(2, 900))
def test_sizes_divide_and_keep_the_budget(height: int, width: int, frames: int) -> None:
    image, clip = ImageSettings(), VideoSettings()
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ValueError, match="aspect ratio"):
            image.size(height, width)
        return
    rows, columns = image.size(height, width)
    assert rows % 32 == columns % 32 == 0 and rows * columns >= image.fewest
    assert rows * columns <= image.most or min(rows, columns) == 32
    rows, columns = clip.video_size(frames, height, width)
    assert rows % 32 == columns % 32 == 0
    assert frames // 2 * 2 * rows * columns <= clip.most or min(rows, columns) == 32


def test_a_request_that_takes_too_many_tokens_is_refused_before_a_pixel_is_decoded() -> None:
    cut_short, clip = IMAGES["large.png/file"].tobytes()[:-200], VIDEOS["even.mp4/file"].tobytes()
    reader = MediaReader(ImageSettings(), VideoSettings(), embed=8, max_tokens=200, max_video_tokens=200)
    shown = sum(each.tokens for each in open_videos([clip], VideoSettings()))
    with pytest.raises(InputError, match=r"images\[1\]: invalid image data"):
        reader.read([IMAGES["large.png/file"].tobytes(), cut_short], [])
    for change, items, said, field in (
        ({"max_tokens": 100}, ([cut_short, cut_short], []), "the images take 140 input tokens, over the 100", "images"),
        ({"max_video_tokens": 2}, ([cut_short], [clip]), "the videos take .* send fewer or shorter videos", "videos"),
        (
            {"max_tokens": 139 + shown},
            ([cut_short, cut_short], [clip]),
            f"the images and videos take {140 + shown} input tokens, over the {139 + shown} tokens a request may",
            "images",
        ),
    ):
        with pytest.raises(InputError, match=said) as caught:
            dataclasses.replace(reader, **change).read(*items)
        assert (caught.value.kind, caught.value.field) == ("too_long", field)


def test_shapes_that_no_grid_fits_are_named() -> None:
    with pytest.raises(InputError, match=r"images\[1\]: absolute aspect ratio must be smaller than 200, got 201"):
        read_images([np.zeros((9, 9, 3), np.uint8), np.zeros((1, 201, 3), np.uint8)], ImageSettings())
    with pytest.raises(InputError, match=r"videos\[0\]: the video has 1 frame"):
        read_videos([np.zeros((1, 40, 40, 3), np.uint8)], VideoSettings())


def test_embeddings_stand_where_they_were_sent() -> None:
    given = Embedding(np.ones((6, 8), np.float32), (1, 4, 6))
    got = read_images([np.zeros((9, 9, 3), np.uint8), given], ImageSettings(), embed=8)
    assert got[1] is given and given.tokens == 6
    clip = Embedding(np.ones((12, 8), np.float16), (2, 4, 6), (0.2, 1.1))
    assert read_videos([clip], VideoSettings(), embed=8) == [clip]


@pytest.mark.parametrize(
    ("shape", "grid", "seconds", "said"),
    [
        ((6, 9), (1, 4, 6), (), "must be [6, 8], not [6, 9]"),
        ((5, 8), (1, 4, 6), (), "must be [6, 8], not [5, 8]"),
        ((6, 8), (1, 3, 6), (), "a grid of 1 x 3 x 6 does not fit this model"),
        ((12, 8), (2, 4, 6), (), "a grid of 2 x 4 x 6 does not fit this model"),
        ((6, 8), (0, 4, 6), (), "three whole numbers"),
        ((6, 8), (4, 6), (), "three whole numbers"),
        ((6, 8), (1, 4, 6), (0.5,), "0 times are needed as seconds, not 1"),
    ],
)
def test_embeddings_that_do_not_fit_are_named(shape: tuple, grid: tuple, seconds: tuple, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        read_images([Embedding(np.zeros(shape, np.float32), grid, seconds)], ImageSettings(), embed=8)
    assert str(caught.value).startswith("images[0]: ") and caught.value.field == "images.0"


def test_embeddings_must_be_finite_floats() -> None:
    for features, said in ((np.zeros((6, 8), int), "must be floats"), (np.full((6, 8), np.nan), "NaN")):
        with pytest.raises(InputError, match=said):
            read_images([Embedding(features, (1, 4, 6))], ImageSettings(), embed=8)


def write(folder: Path, **files: dict) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_settings_come_from_the_files_that_transformers_reads(tmp_path: Path) -> None:
    folder = write(tmp_path, preprocessor_config=IMAGE)
    image, clip = read_settings(folder)
    assert (image.fewest, image.most, image.std) == (2048, 4096, (0.5, 0.25, 0.3))
    assert (clip.fewest, clip.most, clip.fps) == (2048, 4096, 2.0)
    write(folder, video_preprocessor_config={**VIDEO, "fps": 1, "max_frames": 16})
    clip = read_settings(folder)[1]
    assert (clip.most, clip.fps, clip.max_frames, clip.frame_tokens) == (12288, 1, 16, None)
    nested = {**VIDEO, "cap_pixels_per_frame": True, "max_video_tokens": 196, "do_sample_frames": False}
    write(folder, processor_config={"processor_class": "Qwen3VLProcessor", "video_processor": nested})
    image, clip = read_settings(folder)
    assert (image.most, clip.frame_tokens, clip.fps) == (4096, 196, None)


def test_the_older_names_of_the_budget_go_first() -> None:
    assert image_settings({**IMAGE, "min_pixels": 3000, "max_pixels": 9000}) == ImageSettings(
        mean=(0.5, 0.45, 0.4), std=(0.5, 0.25, 0.3), fewest=3000, most=9000
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"crop_margin": 3}, "'crop_margin'"),
        ({"resample": 2}, "'resample' is 2"),
        ({"do_resize": False}, "'do_resize' is False"),
        ({"rescale_factor": 1.0}, "'rescale_factor'"),
        ({"size": {"height": 224, "width": 224}}, "'size'"),
        ({"size": None}, "'min_pixels' is missing"),
        ({"patch_size": 0}, "'patch_size'"),
        ({"patch_size": None}, "'patch_size' is missing"),
        ({"image_mean": 0.5}, "'image_mean'"),
        ({"image_std": [0.5, 0.5, 0]}, "'image_std'"),
    ],
)
def test_settings_that_are_not_done_are_refused(change: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said)):
        image_settings({**IMAGE, **change})
