"""The networks, one file a family. Each takes one sequence; batching is the caller's ``vmap``."""

from __future__ import annotations

import importlib
from types import ModuleType

from sysone_jax.errors import CheckpointError

BARE_QWEN3_5 = ("Qwen3_5Model", "Qwen3_5MoeModel")
"""Without an output table: what they are read by is a head of its own."""

QWEN3_5 = (
    *BARE_QWEN3_5,
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)

FAMILIES = {
    **dict.fromkeys(QWEN3_5, "sysone_jax.backbones.qwen3_5"),
    "LlamaForCausalLM": "sysone_jax.backbones.llama",
    "Qwen3ForCausalLM": "sysone_jax.backbones.qwen3",
}
"""Architecture, as ``config.json`` names it -> the module with its ``Config`` and ``build``."""


def family(architecture: str) -> ModuleType:
    """The module of an architecture; CheckpointError names those that are supported."""
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"architecture {architecture!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"
        )
    return importlib.import_module(FAMILIES[architecture])
