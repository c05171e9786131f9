"""Small random Qwen3.5 checkpoints with a vision tower, and what transformers makes of a prompt with media."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tiny_qwen3_5 import DENSE, EXPERTS, TEXT
from tiny_tokenizer import QWEN3_TEMPLATE, write_tokenizer
from transformers import (
    AutoTokenizer,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.utils.chat_template_utils import render_jinja_template

from sysone_jax.media.request import Media

CLASSES: dict[str, tuple[Any, Any]] = {
    "dense": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "moe": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
}
LAYERS: dict[str, Any] = {
    "max_position_embeddings": 1024,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 3,
}
MLP = {"dense": DENSE, "moe": EXPERTS}
VISION = {
    "depth": 2,
    "hidden_size": 48,
    "num_heads": 3,
    "intermediate_size": 76,
    "patch_size": 8,
    "out_hidden_size": TEXT["hidden_size"],
    "num_position_embeddings": 49,
    "initializer_range": 0.2,
}
PIXELS = {"patch_size": 8, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.5, 0.25, 0.3]}
IMAGES = {**PIXELS, "size": {"shortest_edge": 1024, "longest_edge": 8192}}
VIDEOS = {**PIXELS, "size": {"shortest_edge": 512, "longest_edge": 8192}}
TEMPLATE = QWEN3_TEMPLATE.replace(
    "message.content",
    "(message.content if message.content is string else turn(message.content))",
)
PARTS = """\
{%- macro turn(parts) -%}
    {%- for part in parts -%}
        {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
        {%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
        {%- else -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
"""


def write_vision(folder: Path, kind: str = "dense", seed: int = 0) -> Any:
    """A random checkpoint of transformers' own making with processor files, and the model itself."""
    vocab = write_tokenizer(folder, "qwen3", seed)
    (folder / "chat_template.jinja").write_text(PARTS + TEMPLATE, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config_class, model_class = CLASSES[kind]
    tokens = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{spelled}|>")
        for name, spelled in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    config = config_class(text_config={**TEXT, **LAYERS, **MLP[kind], **vocab}, vision_config=VISION, **tokens)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = model_class._from_config(config, attn_implementation="eager").eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias") and "dt_bias" not in name:
                weight.normal_(std=0.2)
            elif weight.ndim == 1 and "visual" in name:
                weight.uniform_(0.5, 1.5)
            elif weight.ndim == 1:
                weight.uniform_(-0.5, 0.5)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES), encoding="utf-8")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEOS), encoding="utf-8")
    return model


def pictures(seed: int = 0) -> list[np.ndarray]:
    """Two images of odd sizes, one far larger than its budget."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in ((70, 31, 3), (150, 190, 3))]


def films(seed: int = 0) -> list[np.ndarray]:
    """Two videos, one with an odd number of frames."""
    rng = np.random.default_rng(seed + 99)
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in ((5, 40, 52, 3), (48, 33, 20, 3))]


def expanded_ids(folder: Path, texts: Sequence[str], media: Media) -> list[list[int]]:
    """Ids of one-turn chats that open with ``media``, expanded by transformers' processor itself."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)  # its constructor wants torchvision, its prompts do not
    processor.image_processor = SimpleNamespace(merge_size=2)
    processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    processor.image_token, processor.video_token = "<|image_pad|>", "<|video_pad|>"
    processor.vision_start_token, processor.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    pictures = {"image_grid_thw": np.array([item.grid for item in media.images])}
    clips = {
        "video_grid_thw": np.array([item.grid for item in media.videos]),
        "video_metadata": [
            # one frame for each end of a group, at its middle: the processor averages the two
            SimpleNamespace(fps=1.0, frames_indices=[second for second in item.seconds for _ in range(2)])
            for item in media.videos
        ],
    }
    parts = [{"type": "image"}] * len(media.images) + [{"type": "video"}] * len(media.videos)
    rows = []
    for text in texts:
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
        rendered, _ = render_jinja_template(
            conversations=[chat],
            chat_template=tokenizer.chat_template,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        whole = rendered[0]
        for pad, count, replace, inputs in (
            ("<|image_pad|>", len(media.images), processor.replace_image_token, pictures),
            ("<|video_pad|>", len(media.videos), processor.replace_video_token, clips),
        ):
            head, *tails = whole.split(pad, count)
            whole = head + "".join(replace(inputs, index) + tail for index, tail in enumerate(tails))
        rows.append(tokenizer(whole, add_special_tokens=False).input_ids)
    return rows


@torch.no_grad()
def reference_logits(model: Any, ids: Sequence[int], media: Media) -> np.ndarray:
    """float32 logits [V] behind the last token of one prompt with media."""
    tokens = torch.tensor([ids])
    kinds = (tokens == model.config.image_token_id).int() + 2 * (tokens == model.config.video_token_id).int()
    given: dict[str, Any] = {}
    for items, values, grid in (
        (media.images, "pixel_values", "image_grid_thw"),
        (media.videos, "pixel_values_videos", "video_grid_thw"),
    ):
        if items:
            given[values] = torch.from_numpy(np.concatenate([item.values for item in items]))
            given[grid] = torch.tensor([item.grid for item in items])
    return model(input_ids=tokens, mm_token_type_ids=kinds, **given).logits[0, -1].float().numpy()
