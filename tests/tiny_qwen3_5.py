"""The numbers of Qwen3.5's text network in tests: no size is a default, follows from another, or divides where it need
not, and there are fewer key heads than query heads."""

from __future__ import annotations

from typing import Any

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
