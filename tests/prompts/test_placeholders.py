"""Placeholders of media: their expansion, their rows and positions, and what makes them ambiguous."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizer import write_tokenizer

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.media.embedding import Embedding
from sysone_jax.media.request import NOTHING, Media
from sysone_jax.prompts.placeholders import TOKENS, Placeholders
from sysone_jax.text import Tokenizer

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
CLIP = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, "qwen3")
    return Tokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def placeholders(tokenizer: Tokenizer) -> Placeholders:
    return Placeholders.of(tokenizer, merge=2)


def item(frames: int, rows: int, columns: int, *seconds: float) -> Embedding:
    return Embedding(np.zeros((frames * rows * columns // 4, 4), np.float32), (frames, rows, columns), seconds)


def test_an_expansion_is_the_text_that_the_processor_writes(tokenizer: Tokenizer, placeholders: Placeholders) -> None:
    media = Media((item(1, 2, 6), item(1, 2, 2)), (item(2, 4, 2, 0.25, 10.95),))
    ids = placeholders.expand(tokenizer.encode(f"a {PICTURE}{PICTURE}{CLIP} b"), media)
    frame = "<|vision_start|>" + "<|video_pad|>" * 2 + "<|vision_end|>"
    assert ids == tokenizer.encode(
        f"a <|vision_start|>{'<|image_pad|>' * 3}<|vision_end|>{PICTURE}"
        f"<|vision_start|><0.2 seconds>{frame}<{10.95:.1f} seconds>{frame}<|vision_end|> b"
    )


def test_rows_and_positions_of_an_expanded_prompt(tokenizer: Tokenizer, placeholders: Placeholders) -> None:
    media = Media((item(1, 4, 6),), (item(2, 2, 4, 0.0, 1.0),))
    ids = placeholders.expand(tokenizer.encode(f"{PICTURE}{CLIP} end"), media)
    layout = placeholders.layout(ids, media, len(ids) + 5)
    pads = [tokenizer.encode(spelling)[0] for spelling in ("<|image_pad|>", "<|video_pad|>")]
    for rows, pad, count in ((layout.images, pads[0], 6), (layout.videos, pads[1], 4)):
        assert rows.sum() == count and all(ids[row] == pad for row in np.flatnonzero(rows))
    # The image stands behind one token, fills 2 x 3 places, and what follows it goes on past the longer side.
    assert layout.positions[:, 1:7].tolist() == [[1] * 6, [1, 1, 1, 2, 2, 2], [1, 2, 3, 1, 2, 3]]
    assert layout.positions[:, 7].tolist() == [4] * 3
    # Text behind the prompt, padding included, counts on from where it ended.
    assert layout.next_position == layout.positions[0, len(ids) - 1] + 1
    assert layout.positions[:, len(ids) :].tolist() == [[layout.next_position + step for step in range(5)]] * 3


@pytest.mark.parametrize("text", [f"{PICTURE} <|image_pad|>", f"{PICTURE}{CLIP}"])
def test_a_placeholder_too_many(tokenizer: Tokenizer, placeholders: Placeholders, text: str) -> None:
    with pytest.raises(InputError, match="contains a literal image or video placeholder token"):
        placeholders.expand(tokenizer.encode(text), Media((item(1, 2, 2),)))
    with pytest.raises(InputError, match="contains a literal image or video placeholder token"):
        placeholders.expand(tokenizer.encode(text), NOTHING)


def test_a_template_that_leaves_media_out(tokenizer: Tokenizer, placeholders: Placeholders) -> None:
    with pytest.raises(InputError, match="chat template leaves images or videos out") as refused:
        placeholders.expand(tokenizer.encode(PICTURE), Media((item(1, 2, 2),), (item(1, 2, 2, 0.0),)))
    assert refused.value.field == "videos"


def test_a_config_that_numbers_the_tokens_otherwise(tokenizer: Tokenizer, placeholders: Placeholders) -> None:
    right = {key: tokenizer.encode(spelling)[0] for spelling, key in TOKENS.items()}
    placeholders.check(right)
    placeholders.check({})
    for key in right:
        with pytest.raises(CheckpointError, match=rf"config.json: '{key}' is 7, and the tokenizer's <\|\w+\|> is"):
            placeholders.check({**right, key: 7})


def test_a_tokenizer_without_the_tokens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "llama")
    with pytest.raises(CheckpointError, match=r"no token <\|image_pad\|>"):
        Placeholders.of(Tokenizer.from_pretrained(tmp_path), merge=2)
