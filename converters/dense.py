"""The tables of the dense decoders, ``Qwen3ForCausalLM`` and ``LlamaForCausalLM``: the names their hub files share."""

from __future__ import annotations

from converters.tables import Rule, as_is, heads_in, heads_out, heads_split, transposed

_LAYER = "model.layers.{i}."

RULES = (
    Rule("model.embed_tokens.weight", "embed", as_is),
    Rule("model.norm.weight", "norm", as_is),
    Rule("lm_head.weight", "lm_head", as_is),
    Rule(_LAYER + "input_layernorm.weight", "layers/attention_norm", as_is),
    Rule(_LAYER + "self_attn.q_proj.weight", "layers/q", heads_out),
    Rule(_LAYER + "self_attn.k_proj.weight", "layers/k", heads_out),
    Rule(_LAYER + "self_attn.v_proj.weight", "layers/v", heads_out),
    Rule(_LAYER + "self_attn.o_proj.weight", "layers/o", heads_in),
    Rule(_LAYER + "self_attn.q_proj.bias", "layers/q_bias", heads_split),
    Rule(_LAYER + "self_attn.k_proj.bias", "layers/k_bias", heads_split),
    Rule(_LAYER + "self_attn.v_proj.bias", "layers/v_bias", heads_split),
    Rule(_LAYER + "self_attn.o_proj.bias", "layers/o_bias", as_is),
    Rule(_LAYER + "self_attn.q_norm.weight", "layers/q_norm", as_is),
    Rule(_LAYER + "self_attn.k_norm.weight", "layers/k_norm", as_is),
    Rule(_LAYER + "post_attention_layernorm.weight", "layers/mlp_norm", as_is),
    Rule(_LAYER + "mlp.gate_proj.weight", "layers/gate", transposed),
    Rule(_LAYER + "mlp.up_proj.weight", "layers/up", transposed),
    Rule(_LAYER + "mlp.down_proj.weight", "layers/down", transposed),
    Rule(_LAYER + "mlp.gate_proj.bias", "layers/gate_bias", as_is),
    Rule(_LAYER + "mlp.up_proj.bias", "layers/up_bias", as_is),
    Rule(_LAYER + "mlp.down_proj.bias", "layers/down_bias", as_is),
)

SKIP = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
"""Buffers that old files hold and that the config decides."""
