"""Random checkpoints of Qwen3.5's text network. In their numbers no size is a default, follows from another, or divides
where it need not, and there are fewer key heads than query heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_tokenizer import write_tokenizer
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

TEXT: dict[str, Any] = {
    "hidden_size": 44,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 50_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
DENSE = {"intermediate_size": 76}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}

L, F = "linear_attention", "full_attention"
PATTERNS = {"regular": [L, L, L, F, L, L, L, F], "pruned": [L, F, F, L, L], "period": [L, L, L, F], "shortest": [L, F]}


def write_hybrid(folder: Path, kind: str, pattern: str, seed: int, tied: bool = False, **numbers: Any) -> Any:
    """A random checkpoint of transformers' own making, and the model itself."""
    vocab = write_tokenizer(folder, "qwen3", seed)
    shared = {
        **TEXT,
        **vocab,
        "layer_types": PATTERNS[pattern],
        "num_hidden_layers": len(PATTERNS[pattern]),
        "tie_word_embeddings": tied,
        **(DENSE if kind == "dense" else EXPERTS),
        **numbers,
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        if kind == "dense":
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shared)).eval()
        else:
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**shared)).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(-0.5, 0.5)
    model.save_pretrained(folder)
    return model
