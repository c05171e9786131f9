"""Small random Decision 3.0 checkpoints in the hub's layout: a bare Qwen3.5 with vision, a readout, 255 codes."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_qwen3_5 import DENSE, EXPERTS, TEXT
from tiny_tokenizer import QWEN3_ADDED, write_tokenizer
from transformers import Qwen3_5Config, Qwen3_5Model, Qwen3_5MoeConfig, Qwen3_5MoeModel

from sysone_jax.media.request import NOTHING, Media

LETTERS = string.ascii_uppercase
CODES = [*LETTERS, *map("".join, itertools.product(LETTERS, LETTERS))][:255]
L, F = "linear_attention", "full_attention"
PATTERNS = {"regular": [L, F, L, F], "pruned": [F, L, F]}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_position_embeddings": 64,
    "out_hidden_size": 44,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "initializer_range": 0.15,
}
NORMALIZED: dict[str, Any] = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "processor_class": "Qwen3VLProcessor",
}
# ChatML that trims each turn, as Qwen3.5's template does; media come before the text as parts of the content.
TEMPLATE = """\
{%- macro parts(content) %}
    {%- if content is string %}{{- content }}{% else %}
        {%- for part in content %}
            {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- else %}{{- part.text }}{% endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + parts(message.content)|trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""


def write_decision(
    folder: Path,
    mode: str = "noncausal_full_attention",
    pattern: str = "regular",
    seed: int = 0,
    *,
    prefix: str = "",
    experts: bool = False,
    readout_dtype: str | None = None,
    **decision: Any,
) -> Qwen3_5Model:
    """Write a random checkpoint; every number depends on the arguments alone.

    Args:
        folder: where to write; made if it is not there.
        mode: ``attention_mode``.
        pattern: of ``PATTERNS``, the layer types.
        seed: of weights, readout and tokenizer.
        prefix: before every weight's name: nothing, or ``model.``.
        experts: whether a mixture of experts takes the place of the MLPs.
        readout_dtype: ``float32``, ``bfloat16`` or left out.
        decision: further keys of ``decision_config.json``.

    Returns:
        The backbone in torch, its attention as ``mode`` says.
    """
    ids = write_decision_tokenizer(folder, seed)
    config_class, model_class = (Qwen3_5MoeConfig, Qwen3_5MoeModel) if experts else (Qwen3_5Config, Qwen3_5Model)
    config = config_class(
        text_config={
            **TEXT,
            **(EXPERTS if experts else DENSE),
            "max_position_embeddings": 40_960,
            "vocab_size": -(-(max(ids.values()) + 1) // 64) * 64,
            "layer_types": PATTERNS[pattern],
            "num_hidden_layers": len(PATTERNS[pattern]),
        },
        vision_config=VISION,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model: Any = model_class._from_config(config, attn_implementation="eager").eval().float()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(-0.5, 0.5)
        readout = torch.randn(len(CODES), TEXT["hidden_size"])
    save_file(
        {prefix + name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        folder / "model.safetensors",
    )
    save_file({"weight": readout}, folder / "readout.safetensors")
    written = json.loads(config.to_json_string(use_diff=False))
    written |= {"architectures": [model_class.__name__], "auto_map": {"AutoModel": "modeling_d3.D3Model"}}
    written |= {"custom_pipelines": {"decision": {"impl": "pipeline_d3.D3Pipeline"}}}
    _write(folder / "config.json", written)
    settings: dict[str, Any] = {
        "format_version": 1,
        "format_id": "d3-code-readout-v1",
        "prompt": "d3",
        "base_model": "Qwen/Qwen3.5-0.8B",
        "revision": "2fc06364",
        "codes": CODES,
        "token_ids": [ids[code] for code in CODES],
        "temperature": 1.37,
        "attention_mode": mode,
        "pooling": "last",
        "max_length": None,
        **decision,
    }
    if readout_dtype is not None:
        settings["readout_dtype"] = readout_dtype
    _write(folder / "decision_config.json", settings)
    images, videos = (
        {"shortest_edge": 65_536, "longest_edge": 16_777_216},
        {"shortest_edge": 4096, "longest_edge": 25_165_824},
    )
    processor = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": images}
    _write(folder / "preprocessor_config.json", NORMALIZED | processor)
    processor = {"video_processor_type": "Qwen3VLVideoProcessor", "size": videos}
    _write(folder / "video_preprocessor_config.json", NORMALIZED | processor)
    model.config.text_config.is_causal = mode == "causal"
    return model


def code_logits(model: Qwen3_5Model, readout: torch.Tensor, ids: list[int], media: Media = NOTHING) -> torch.Tensor:
    """The reference: logits [255] of every code after a prompt."""
    tokens = torch.tensor([ids])
    given: dict[str, Any] = {}
    for items, values, grid in (
        (media.images, "pixel_values", "image_grid_thw"),
        (media.videos, "pixel_values_videos", "video_grid_thw"),
    ):
        if items:
            given[values] = torch.from_numpy(np.concatenate([item.values for item in items]))
            given[grid] = torch.tensor([item.grid for item in items])
    if given:
        kinds = (tokens == model.config.image_token_id).int() + 2 * (tokens == model.config.video_token_id).int()
        given["mm_token_type_ids"] = kinds
    with torch.no_grad():
        model.rope_deltas = None
        hidden = model(input_ids=tokens, use_cache=False, **given).last_hidden_state[0, -1]
        return readout.float() @ hidden.float()


def write_decision_tokenizer(folder: Path, seed: int = 0) -> dict[str, int]:
    """Write a tokenizer in which every code is a token, and one token that its config alone lists; token -> id."""
    write_tokenizer(folder, "qwen3", seed)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    words = len(vocab)
    for code in CODES:
        if code not in vocab:
            vocab[code] = len(vocab)
            merges.append(list(code))
    for token in tokenizer["added_tokens"]:  # they stay behind the words
        token["id"] += len(vocab) - words
    _write(path, tokenizer)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"chat_template": TEMPLATE, "tokenizer_class": "Qwen2Tokenizer"}
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids["<|audio_pad|>"] = max(ids.values()) + 1
    config["added_tokens_decoder"] = {
        str(number): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": content not in QWEN3_ADDED,
        }
        for content, number in ids.items()
    }
    _write(folder / "tokenizer_config.json", config)
    return vocab | ids


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
