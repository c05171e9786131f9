"""Decision 3.0 with images and videos: the release's budgets, prompts, and logits against torch in float32."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_decision import code_logits, write_decision

import sysone_jax
from sysone_jax import Decider, InputError
from sysone_jax.media.qwen_patches import Patches
from sysone_jax.media.request import MediaReader
from sysone_jax.reader import programs
from sysone_jax.strategies.answer_codes import released_budgets

LOGITS = 5e-5
"""Of the largest reference logit."""
NOUL = {"type": "noul", "instructions": "Is it so?"}
QUESTIONS: dict[str, Any] = {
    "side": {"type": "choice", "instructions": "Which side?", "criteria": {"left": None, "right": "the label's"}},
    "so": NOUL,
    "how much of it": {"type": "score", "instructions": "How much of it is shown?", "criteria": ["none", "all"]},
}
RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 256, (70, 31, 3), np.uint8), RNG.integers(0, 256, (90, 290, 3), np.uint8)]
FILM = RNG.integers(0, 256, (5, 40, 52, 3), np.uint8)
SHOWN: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {
    "images": (PICTURES, []),
    "both": (PICTURES[:1], [FILM]),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


Case = tuple[Path, Any, Decider]


CHECKPOINTS = [
    ("causal", "pruned", 0),
    ("noncausal_full_attention", "regular", 1),
    ("noncausal_full_attention", "pruned", 2),
]


@pytest.fixture(scope="module", params=CHECKPOINTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: None) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("d3")
    reference = write_decision(folder, *request.param)
    with sysone_jax.load(folder, max_model_len=512) as decider:
        yield folder, reference, decider


@pytest.mark.parametrize("shown", SHOWN)
def test_logits_with_media_are_those_of_torch(case: Case, shown: str) -> None:
    folder, reference, decider = case
    readout = load_file(folder / "readout.safetensors")["weight"]
    images, videos = SHOWN[shown]
    request = decider.request(state="What is shown.", questions=QUESTIONS, images=images, videos=videos)
    plan = decider._strategy.plan(request)
    strategy: Any = decider._strategy
    media = decider._engine.encoded(request.media, strategy._placeholders)
    prompts = list(plan.prompts[0].values())
    got = decider._engine.submit(lambda: strategy.logits(prompts, None, media)).result()
    for prompt, logits in zip(prompts, got, strict=True):
        wanted = code_logits(reference, readout, list(prompt.ids), request.media).numpy()
        assert np.abs(logits - wanted).max() <= LOGITS * np.abs(wanted).max()
    decision = decider.submit(request).result()
    assert decision.usage["input_tokens"] == sum(len(prompt.ids) for prompt in prompts)
    alone = decider.decide(state="What is shown.", questions={"so": NOUL}, images=images, videos=videos)
    assert alone.reads["so"] == decision.reads["so"]


def test_media_are_encoded_once_for_all_questions(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    decider, calls = case[2], []
    encode = programs.encode_frame
    monkeypatch.setattr(programs, "encode_frame", lambda *given: calls.append(given) or encode(*given))
    decider.decide(state="s", questions=QUESTIONS, images=PICTURES, permutation_average=True)
    assert len(calls) == len(PICTURES)


def test_prompts_hold_as_many_tokens_as_the_media_take(case: Case) -> None:
    folder, _, decider = case
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    images = [np.zeros((200, 300, 3), np.uint8)]
    videos = [np.zeros((5, 64, 48, 3), np.uint8)]  # of 5 frames the last is shown twice; at 2 a second
    request = decider.request(state="s", questions={"so": NOUL}, images=images, videos=videos)
    video = request.media.videos[0]
    assert (request.media.images[0].tokens, video.grid, video.seconds) == (70, (3, 4, 4), (0.25, 1.25, 2.0))
    frames = "".join(
        f"<{seconds} seconds><|vision_start|>{'<|video_pad|>' * 4}<|vision_end|>" for seconds in ("0.2", "1.2", "2.0")
    )
    text = (
        "<|im_start|>user\n"
        f"<|vision_start|>{'<|image_pad|>' * 70}<|vision_end|>"
        f"<|vision_start|>{frames}<|vision_end|>"
        "State:\ns\n\nQuestion:\nIs it so"
    )
    prompt = decider._strategy.plan(request).prompts[0]["so"]
    wanted = backend.encode(text, add_special_tokens=False).ids
    start = next(at for at in range(len(prompt.ids)) if list(prompt.ids[at : at + len(wanted)]) == wanted)
    assert start > 0


def test_nothing_compiles_after_warming(cache: None, tmp_path: Path) -> None:
    write_decision(tmp_path, seed=3)
    with sysone_jax.load(tmp_path, max_model_len=320) as decider:
        decider.warm()
        before = decider.compile_count
        for images, videos in ([], []), *SHOWN.values():
            decider.decide(state="s", questions=QUESTIONS, images=images[:1], videos=videos, permutation_average=True)
        decider.code_logits([[1], [1, 2], [3] * 320]).result()
        assert decider.compile_count == before


# ------------------------------------------------------------------------------ the release's budgets


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> MediaReader:
    folder = tmp_path_factory.mktemp("files")
    write_decision(folder)
    return released_budgets(MediaReader.of(folder, embed=44, max_tokens=32_768))


@pytest.mark.parametrize(
    ("size", "resized", "tokens"),
    [
        ((200, 300), (224, 320), 70),
        ((64, 64), (256, 256), 64),
        ((1080, 1920), (960, 1696), 1590),
        ((1280, 1280), (1280, 1280), 1600),
        ((1200, 1600), (1088, 1472), 1564),
    ],
)
def test_sizes_of_images(reader: MediaReader, size: tuple[int, int], resized: tuple[int, int], tokens: int) -> None:
    assert reader.images.size(*size) == resized
    assert reader.images.tokens(1, *resized) == tokens


@pytest.mark.parametrize(
    ("total", "fps", "indices", "seconds"),
    [
        (48, 24.0, [0, 16, 31, 47], ["0.3", "1.6"]),
        (3, 30.0, [0, 1, 2], ["0.0", "0.1"]),
        (61, 30.0, [0, 20, 40, 60], ["0.3", "1.7"]),
        (12, 8.0, [0, 4, 7, 11], ["0.2", "1.1"]),
    ],
)
def test_frames_of_videos(reader: MediaReader, total: int, fps: float, indices: list[int], seconds: list[str]) -> None:
    chosen = reader.videos.indices(total, fps)
    assert chosen.tolist() == indices
    assert [f"{time:.1f}" for time in reader.videos.seconds(chosen, fps)] == seconds


def test_long_videos_give_32_frames(reader: MediaReader) -> None:
    assert len(reader.videos.indices(9000, 30.0)) == 32
    assert reader.videos.indices(100, reader.videos.array_fps).tolist() == np.linspace(0, 99, 32).round().tolist()


@pytest.mark.parametrize(
    ("frames", "size", "resized", "tokens"),
    [(4, (1080, 1920), (320, 576), 360), (32, (64, 48), (64, 64), 64)],
)
def test_sizes_of_videos(
    reader: MediaReader, frames: int, size: tuple[int, int], resized: tuple[int, int], tokens: int
) -> None:
    assert reader.videos.video_size(frames, *size) == resized
    assert reader.videos.tokens(frames, *resized) == tokens


@pytest.mark.parametrize("frames", [1, 3, 5, 31])
def test_an_odd_last_frame_is_repeated_before_the_size_is_chosen(reader: MediaReader, frames: int) -> None:
    for size in ((448, 448), (500, 447), (96, 160)):
        assert reader.videos.video_size(frames, *size) == reader.videos.video_size(frames + 1, *size)
    (video,) = reader.read([], [np.zeros((frames, 64, 48, 3), np.uint8)]).videos
    assert video.grid[0] == len(video.seconds) == (frames + 1) // 2


def test_no_frame_takes_more_than_is_compiled_for(reader: MediaReader) -> None:
    assert reader.frame_tokens == 1600
    rng = np.random.default_rng(0)
    for height, width in rng.integers(1, 4000, (2000, 2)).tolist():
        if max(height, width) / min(height, width) <= 200:
            assert reader.images.tokens(1, *reader.images.size(height, width)) <= 1600
            frames = int(rng.integers(1, 33))
            size = reader.videos.video_size(frames, height, width)
            assert reader.videos.tokens(2, *size) <= 1600
    assert reader.images.tokens(1, *reader.images.size(10, 2000)) <= 1600


def test_videos_share_16384_tokens(reader: MediaReader) -> None:
    video = np.zeros((32, 448, 448, 3), np.uint8)
    assert sum(item.tokens for item in reader.read([], [video] * 5).videos) == 5 * 16 * 196
    with pytest.raises(InputError) as caught:
        reader.read([], [video] * 6)
    assert str(caught.value) == (
        "the videos take 18,816 input tokens, over the 16,384 tokens a request may spend on videos; send fewer or "
        "shorter videos"
    )


def png(width: int = 4, height: int = 4, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(options.pop("mode", "RGB"), (width, height), **options).save(file, "PNG")
    return file.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def clip(frames: int = 12, fps: int = 8, side: int = 64) -> bytes:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            pixels = np.full((side, side, 3), number * 20 % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


REFUSED: dict[str, tuple[list[Any], list[Any], str]] = {
    "a remote image": (
        ["https://example.org/a.png"],
        [],
        "images[0]: images must be base64 PNG, JPEG or WebP data URLs",
    ),
    "an image of another type": (
        [data_url(png(), "image/gif")],
        [],
        "images[0]: images must be base64 PNG, JPEG or WebP data URLs",
    ),
    "an image of too many bytes": (
        [b"\x89PNG" + bytes(8_000_000)],
        [],
        "images[0]: each image must be at most 8,000,000 bytes",
    ),
    "an image of too many pixels": (
        [data_url(png()), data_url(png(16_000_001, 1))],
        [],
        "images[1]: each image must have at most 16,000,000 pixels",
    ),
    "no base64": (["data:image/png;base64,%%%"], [], "images[0]: invalid base64 image data"),
    "no image": ([data_url(b"no image")], [], "images[0]: invalid image data (UnidentifiedImageError)"),
    "half an image": ([data_url(png(64, 64)[:60])], [], "images[0]: invalid image data ("),
    "a strip": ([np.zeros((2, 500, 3), np.uint8)], [], "absolute aspect ratio must be smaller than 200, got 250.0"),
    "a remote video": ([], ["https://example.org/a.mp4"], "videos[0]: videos must be base64 MP4"),
    "a video of too many bytes": ([], [bytes(32_000_001)], "videos[0]: each video must be at most 32,000,000 bytes"),
    "a video that is too long": ([], [clip(602, 2, 16)], "videos[0]: each video must be at most 300 seconds long"),
    "a video of large frames": (
        [],
        [np.zeros((2, 2881, 2880, 3), np.uint8)],
        "videos[0]: each video must have at most 8,294,400 pixels per frame",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_media_beyond_the_limits_are_refused(reader: MediaReader, name: str) -> None:
    images, videos, message = REFUSED[name]
    with pytest.raises(InputError) as caught:
        reader.read(images, videos)
    assert message in str(caught.value)
    assert caught.value.kind == "media"


@pytest.mark.parametrize("field", ["images", "videos"])
def test_media_are_lists(case: Case, field: str) -> None:
    with pytest.raises(InputError, match=f"{field} must be a list of {field}"):
        case[2].decide(state="s", questions={"q": NOUL}, **{field: {"a": 1}})


def test_what_lies_behind_a_transparent_pixel_shows(reader: MediaReader) -> None:
    """As ``convert("RGB")`` leaves it: the hidden colour, and no white."""
    item = reader.read([data_url(png(64, 64, mode="RGBA", color=(255, 0, 0, 0)))], []).images[0]
    assert isinstance(item, Patches)
    channels = item.values.reshape(len(item.values), 3, -1)
    assert (channels[:, 0] == 1).all() and (channels[:, 1:] == -1).all()


@pytest.mark.parametrize("spelled", ["<|image_pad|>", "<|video_pad|>"])
def test_a_placeholder_in_the_text_is_refused_beside_media_alone(case: Case, spelled: str) -> None:
    decider = case[2]
    message = "the state or question contains a literal image or video placeholder token"
    for spoiled in (
        {"state": f"a {spelled}", "questions": {"q": NOUL}},
        {"state": "s", "questions": {"q": {"type": "choice", "instructions": "?", "criteria": {spelled: None}}}},
    ):
        plan = decider._strategy.plan
        assert plan(decider.request(**spoiled))
        for rendering in ("reference", "escape"):
            with pytest.raises(InputError, match=message):
                plan(decider.request(**spoiled, images=PICTURES[:1], rendering=rendering))


def test_a_long_prompt_says_what_its_images_take(case: Case) -> None:
    with pytest.raises(InputError, match=r"has \d+ tokens \(128 for 2 image\(s\)\), over the maximum context length"):
        case[2].decide(state="late " * 300, questions={"q": NOUL}, images=[np.zeros((64, 64, 3), np.uint8)] * 2)


def test_a_video_file_is_read(case: Case) -> None:
    request = case[2].request(state="s", questions={"q": NOUL}, videos=[data_url(clip(), "video/mp4")])
    assert [f"{seconds:.1f}" for seconds in request.media.videos[0].seconds] == ["0.2", "1.1"]
    assert set(case[2].submit(request).result()) == {"q"}


def test_a_checkpoint_without_a_tower_is_one_for_text(cache: None, tmp_path: Path) -> None:
    write_decision(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    text = {name: tensor for name, tensor in weights.items() if not name.startswith("visual.")}
    save_file(text, tmp_path / "model.safetensors")
    with sysone_jax.load(tmp_path, max_model_len=256) as decider:
        assert decider.modalities == ("text",)
        with pytest.raises(InputError, match="video inputs are not available: the checkpoint holds no vision tower"):
            decider.request(state="s", questions={"q": NOUL}, videos=[FILM])


def test_a_checkpoint_without_a_processor_says_why_it_takes_no_images(cache: None, tmp_path: Path) -> None:
    write_decision(tmp_path)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (tmp_path / name).unlink()
    with sysone_jax.load(tmp_path, max_model_len=256) as decider:
        with pytest.raises(InputError, match="image inputs are not available: the checkpoint had no preprocessor"):
            decider.request(state="s", questions={"q": NOUL}, images=PICTURES[:1])
