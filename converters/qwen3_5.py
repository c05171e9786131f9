"""The table of Qwen3.5, dense and mixture of experts, in the hub's layout and in what ``save_pretrained`` writes.

The text network lies under ``model.language_model.`` in multimodal files, ``model.`` in text-only ones and
``language_model.`` in bare ones. Experts are fused tensors ``[E, 2F, D]`` on the hub, or one set of matrices an expert.
``mtp.`` (multi-token prediction) takes no part in a read and is left out by name.
"""

from __future__ import annotations

import math

import numpy as np

from converters.tables import Rule, Shape, Transform, as_is, heads_in, heads_out, transposed

PREFIXES = ("model.language_model.", "model.", "language_model.")
SKIP = (r"mtp\..*", r"(model\.)?visual\..*")


def head_half(half: int) -> Transform:
    """Queries (0) or gates (1) of ``[heads * 2 * head_dim, in]``, per head [query | gate] -> ``[in, heads, H]``."""

    def transform(array: np.ndarray, shape: Shape) -> np.ndarray:
        inner, heads, head_dim = shape
        return array.T.reshape(inner, heads, 2, head_dim)[:, :, half]

    return transform


def delta_rows(part: int) -> Transform:
    """q, k or v (0, 1, 2) of the rows q | k | v of ``[rows, in]`` -> ``[in, heads, head_dim]``."""

    def transform(array: np.ndarray, shape: Shape) -> np.ndarray:
        return _rows(array, part, math.prod(shape[1:])).T.reshape(shape)

    return transform


def delta_channels(part: int) -> Transform:
    """q, k or v of a depthwise kernel ``[rows, 1, W]`` -> ``[heads, head_dim, W]``."""

    def transform(array: np.ndarray, shape: Shape) -> np.ndarray:
        return _rows(array, part, math.prod(shape[:-1])).reshape(shape)

    return transform


def _rows(array: np.ndarray, part: int, count: int) -> np.ndarray:
    return array[-count:] if part == 2 else array[part * count : (part + 1) * count]


def expert_half(half: int) -> Transform:
    """Gate (0) or up (1) of the fused ``[E, 2F, D]`` -> ``[E, D, F]``."""

    def transform(array: np.ndarray, shape: Shape) -> np.ndarray:
        width = shape[2]
        return array[:, half * width : (half + 1) * width].swapaxes(1, 2)

    return transform


def experts_transposed(array: np.ndarray, shape: Shape) -> np.ndarray:
    """``[E, out, in]`` -> ``[E, in, out]``."""
    return array.swapaxes(1, 2)


def row(array: np.ndarray, shape: Shape) -> np.ndarray:
    """``[1, in]`` -> ``[in]``."""
    return array.reshape(shape)


_LAYER = (
    ("input_layernorm.weight", "mixer_norm", as_is),
    ("post_attention_layernorm.weight", "mlp_norm", as_is),
    ("self_attn.q_proj.weight", "mixer/q", head_half(0)),
    ("self_attn.q_proj.weight", "mixer/gate", head_half(1)),
    ("self_attn.k_proj.weight", "mixer/k", heads_out),
    ("self_attn.v_proj.weight", "mixer/v", heads_out),
    ("self_attn.o_proj.weight", "mixer/o", heads_in),
    ("self_attn.q_norm.weight", "mixer/q_norm", as_is),
    ("self_attn.k_norm.weight", "mixer/k_norm", as_is),
    ("linear_attn.in_proj_qkv.weight", "mixer/q", delta_rows(0)),
    ("linear_attn.in_proj_qkv.weight", "mixer/k", delta_rows(1)),
    ("linear_attn.in_proj_qkv.weight", "mixer/v", delta_rows(2)),
    ("linear_attn.conv1d.weight", "mixer/q_conv", delta_channels(0)),
    ("linear_attn.conv1d.weight", "mixer/k_conv", delta_channels(1)),
    ("linear_attn.conv1d.weight", "mixer/v_conv", delta_channels(2)),
    ("linear_attn.in_proj_z.weight", "mixer/z", heads_out),
    ("linear_attn.in_proj_a.weight", "mixer/a", transposed),
    ("linear_attn.in_proj_b.weight", "mixer/b", transposed),
    ("linear_attn.A_log", "mixer/a_log", as_is),
    ("linear_attn.dt_bias", "mixer/dt_bias", as_is),
    ("linear_attn.norm.weight", "mixer/norm", as_is),
    ("linear_attn.out_proj.weight", "mixer/o", heads_in),
    ("mlp.gate_proj.weight", "mlp/gate", transposed),
    ("mlp.up_proj.weight", "mlp/up", transposed),
    ("mlp.down_proj.weight", "mlp/down", transposed),
    ("mlp.gate.weight", "mlp/router", transposed),
    ("mlp.experts.gate_up_proj", "mlp/gate", expert_half(0)),
    ("mlp.experts.gate_up_proj", "mlp/up", expert_half(1)),
    ("mlp.experts.down_proj", "mlp/down", experts_transposed),
    ("mlp.experts.{e}.gate_proj.weight", "mlp/gate", transposed),
    ("mlp.experts.{e}.up_proj.weight", "mlp/up", transposed),
    ("mlp.experts.{e}.down_proj.weight", "mlp/down", transposed),
    ("mlp.shared_expert.gate_proj.weight", "mlp/shared/gate", transposed),
    ("mlp.shared_expert.up_proj.weight", "mlp/shared/up", transposed),
    ("mlp.shared_expert.down_proj.weight", "mlp/shared/down", transposed),
    ("mlp.shared_expert_gate.weight", "mlp/shared_gate", row),
)

RULES = (
    Rule("lm_head.weight", "lm_head", as_is),
    *(
        rule
        for prefix in PREFIXES
        for rule in (
            Rule(prefix + "embed_tokens.weight", "embed", as_is),
            Rule(prefix + "norm.weight", "norm", as_is),
            *(
                Rule(f"{prefix}layers.{{i}}.{source}", f"layers/slots/{{slot}}/{target}", transform)
                for source, target, transform in _LAYER
            ),
        )
    ),
)
