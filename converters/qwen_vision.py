"""The table of the Qwen3.5 vision tower, by the names its hub files share."""

from __future__ import annotations

import math

import numpy as np

from converters.tables import Rule, Shape, as_is, expect, heads_in, heads_out, heads_split, transposed

PREFIXES = ("model.visual.", "visual.")
"""Where a whole model keeps its tower, and where a bare backbone does."""


def kernel_flat(array: np.ndarray, shape: Shape) -> np.ndarray:
    """A convolution whose steps are as long as its kernel: ``[out, channel, frame, y, x]`` -> ``[in, out]``."""
    return expect(array.reshape(array.shape[0], -1).T, (math.prod(array.shape[1:]), array.shape[0]))


def rules(source: str, target: str = "") -> tuple[Rule, ...]:
    """The tower's rows.

    Args:
        source: one of ``PREFIXES``.
        target: path of the tower in our module, ``visual/``, or nothing when it is the module.
    """
    block, layer = source + "blocks.{i}.", target + "layers/"
    merger, ours = source + "merger.", target + "merger/"
    return (
        Rule(source + "patch_embed.proj.weight", target + "patch", kernel_flat),
        Rule(source + "patch_embed.proj.bias", target + "patch_bias", as_is),
        Rule(source + "pos_embed.weight", target + "positions", as_is),
        Rule(block + "norm1.weight", layer + "attention_norm", as_is),
        Rule(block + "norm1.bias", layer + "attention_norm_bias", as_is),
        Rule(block + "attn.qkv.weight", layer + "qkv", heads_out),
        Rule(block + "attn.qkv.bias", layer + "qkv_bias", heads_split),
        Rule(block + "attn.proj.weight", layer + "o", heads_in),
        Rule(block + "attn.proj.bias", layer + "o_bias", as_is),
        Rule(block + "norm2.weight", layer + "mlp_norm", as_is),
        Rule(block + "norm2.bias", layer + "mlp_norm_bias", as_is),
        Rule(block + "mlp.linear_fc1.weight", layer + "up", transposed),
        Rule(block + "mlp.linear_fc1.bias", layer + "up_bias", as_is),
        Rule(block + "mlp.linear_fc2.weight", layer + "down", transposed),
        Rule(block + "mlp.linear_fc2.bias", layer + "down_bias", as_is),
        Rule(merger + "norm.weight", ours + "norm", as_is),
        Rule(merger + "norm.bias", ours + "norm_bias", as_is),
        Rule(merger + "linear_fc1.weight", ours + "up", transposed),
        Rule(merger + "linear_fc1.bias", ours + "up_bias", as_is),
        Rule(merger + "linear_fc2.weight", ours + "down", transposed),
        Rule(merger + "linear_fc2.bias", ours + "down_bias", as_is),
    )


RULES = tuple(rule for prefix in PREFIXES for rule in rules(prefix))
SKIP = (r"(?!(model\.)?visual\.).*",)
"""The rest of a whole checkpoint, which other tables cover."""
