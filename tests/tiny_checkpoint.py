"""Small random checkpoints in the layout of real ones, for tests that need a model of their own.

The numbers are chosen so that no mistake can hide: fewer key heads than query heads, a head size that is no power of
two and (Qwen3) no share of the hidden size, odd widths, a rope theta of no released model, weights wide enough for
peaked attention, and norm weights and biases that are not the ones and zeros a model starts from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tiny_tokenizer import write_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

Architecture = Literal["Qwen3ForCausalLM", "LlamaForCausalLM"]

CLASSES: dict[str, tuple[Any, Any]] = {
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
}
SIZES: dict[str, dict[str, Any]] = {
    "Qwen3ForCausalLM": {
        "hidden_size": 44,
        "intermediate_size": 76,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 2048,
        "rope_theta": 70_000.0,
    },
    "LlamaForCausalLM": {
        "hidden_size": 60,
        "intermediate_size": 92,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rope_theta": 30_000.0,
        "rms_norm_eps": 1e-5,
    },
}
HEAD = {"width": 64, "routing_layers": 1, "layers": 2, "heads": 4, "feedforward": 96}


def write_checkpoint(
    folder: Path,
    architecture: Architecture = "Qwen3ForCausalLM",
    seed: int = 0,
    tied: bool = False,
    head: bool = False,
    dtype: str = "float32",
    shards: int = 1,
    **overrides: Any,
) -> Path:
    """Write a random checkpoint, through transformers' own ``save_pretrained``, with a tokenizer and a chat template.

    Args:
        folder: where to write; made if it is not there.
        architecture: the transformers class.
        seed: every number depends on it and the other arguments alone.
        tied: whether the embedding is the output table.
        head: add a random joint schema head, which makes the folder a joint model.
        dtype: of the files; drawn in float32 and rounded.
        shards: 1 writes one file; more splits it into at least so many, with an index.
        overrides: keys of ``config.json``, such as ``num_key_value_heads`` or ``attention_bias``.

    Returns:
        ``folder``.
    """
    family = "qwen3" if architecture == "Qwen3ForCausalLM" else "llama"
    vocab = write_tokenizer(folder, family, seed)
    config_class, model_class = CLASSES[architecture]
    numbers = {**SIZES[architecture], **vocab, "tie_word_embeddings": tied, "initializer_range": 0.15, **overrides}
    rope = {"rope_theta": numbers.pop("rope_theta"), "rope_type": "default"}
    numbers.setdefault("rope_parameters", rope)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = model_class(config_class(**numbers)).eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.2)
            elif weight.ndim == 1:
                weight.uniform_(0.5, 1.5)
        if head:
            write_head(folder, model.config.hidden_size, getattr(torch, dtype))
    size = sum(weight.nbytes for weight in model.to(getattr(torch, dtype)).parameters())
    model.save_pretrained(folder, max_shard_size=size + 1 if shards == 1 else -(-size // shards))
    return folder


def reference(folder: Path) -> Any:
    """The checkpoint in transformers, in float32 with the plainest attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def write_head(folder: Path, hidden: int, dtype: torch.dtype, **overrides: int) -> None:
    """A head of Clef's layout: torch's ``[out, in]`` matrices, norms around 1, small biases; numbers as of ``HEAD``."""
    numbers = {**HEAD, **overrides}
    width, inner = numbers["width"], numbers["feedforward"]
    shapes: dict[str, tuple[int, ...]] = {"hidden_norm.weight": (hidden,), "hidden_norm.bias": (hidden,)}
    for name in ("memory", "question", "option_question", "global", "option_context", "option_lexical"):
        shapes[f"{name}_projection.weight"] = (width, hidden)
    shapes["type_embedding.weight"] = (3, width)

    def linear(name: str, size: int, out: int) -> None:
        shapes.update({f"{name}.weight": (out, size), f"{name}.bias": (out,)})

    def norm(name: str) -> None:
        shapes.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def attention(name: str) -> None:
        shapes.update({f"{name}.in_proj_weight": (3 * width, width), f"{name}.in_proj_bias": (3 * width,)})
        linear(f"{name}.out_proj", width, width)

    for layer in range(numbers["routing_layers"]):
        for name in ("query_norm", "memory_norm", "feedforward_norm"):
            norm(f"evidence_layers.{layer}.{name}")
        attention(f"evidence_layers.{layer}.attention")
        linear(f"evidence_layers.{layer}.feedforward.0", width, inner)
        linear(f"evidence_layers.{layer}.feedforward.3", inner, width)
    for layer in range(numbers["layers"]):
        for name in ("norm1", "norm2", "norm3"):
            norm(f"layers.{layer}.{name}")
        attention(f"layers.{layer}.self_attn")
        attention(f"layers.{layer}.multihead_attn")
        linear(f"layers.{layer}.linear1", width, inner)
        linear(f"layers.{layer}.linear2", inner, width)
    for name in ("option_summary_norm", "field_norm", "option_norm"):
        norm(name)
    linear("residual_scorer.0", 4 * width, width)
    linear("residual_scorer.3", width, 1)
    for name in ("prior_logit_scale", "joint_logit_scale", "residual_gate"):
        shapes[name] = ()

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(shape)
        if len(shape) == 2:
            return values / shape[1] ** 0.5
        return 1 + 0.25 * values if "norm" in name and name.endswith("weight") else 0.2 * values + (shape == ())

    save_file({name: draw(name, shape).to(dtype) for name, shape in shapes.items()}, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps({"hidden_size": hidden, **numbers}), encoding="utf-8")
