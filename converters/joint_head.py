"""The weight table of Clef's joint schema head: every tensor of ``joint_head.safetensors``, each under its name there.

torch keeps a linear layer as ``[out, in]`` and the query, key and value projections of an attention as one matrix.
"""

from __future__ import annotations

import math

import numpy as np

from converters.tables import Rule, Shape, Transform, as_is, expect, heads_in, transposed


def in_proj(part: int) -> Transform:
    """Third ``part`` (0 query, 1 key, 2 value) of ``[3W, W]`` or ``[3W]`` -> ``[W, heads, head_dim]`` or without W."""

    def split(array: np.ndarray, shape: Shape) -> np.ndarray:
        width = math.prod(shape[-2:])
        third = np.split(array, 3)[part]
        return expect(third.T, (*shape[:-2], width)).reshape(shape)

    return split


def _norm(source: str, target: str) -> tuple[Rule, ...]:
    return (Rule(f"{source}.weight", f"{target}/weight", as_is), Rule(f"{source}.bias", f"{target}/bias", as_is))


def _feedforward(up: str, down: str, target: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{up}.weight", f"{target}/up", transposed),
        Rule(f"{up}.bias", f"{target}/up_bias", as_is),
        Rule(f"{down}.weight", f"{target}/down", transposed),
        Rule(f"{down}.bias", f"{target}/down_bias", as_is),
    )


def _attention(source: str, target: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{source}.in_proj_weight", f"{target}/q", in_proj(0)),
        Rule(f"{source}.in_proj_weight", f"{target}/k", in_proj(1)),
        Rule(f"{source}.in_proj_weight", f"{target}/v", in_proj(2)),
        Rule(f"{source}.in_proj_bias", f"{target}/q_bias", in_proj(0)),
        Rule(f"{source}.in_proj_bias", f"{target}/k_bias", in_proj(1)),
        Rule(f"{source}.in_proj_bias", f"{target}/v_bias", in_proj(2)),
        Rule(f"{source}.out_proj.weight", f"{target}/o", heads_in),
        Rule(f"{source}.out_proj.bias", f"{target}/o_bias", as_is),
    )


RULES = (
    *_norm("hidden_norm", "hidden_norm"),
    Rule("memory_projection.weight", "memory_projection", transposed),
    Rule("global_projection.weight", "global_projection", transposed),
    Rule("question_projection.weight", "question_projection", transposed),
    Rule("option_context_projection.weight", "option_context_projection", transposed),
    Rule("option_lexical_projection.weight", "option_lexical_projection", transposed),
    Rule("option_question_projection.weight", "option_question_projection", transposed),
    Rule("type_embedding.weight", "type_embedding", as_is),
    *_norm("evidence_layers.{i}.query_norm", "evidence/query_norm"),
    *_norm("evidence_layers.{i}.memory_norm", "evidence/memory_norm"),
    *_attention("evidence_layers.{i}.attention", "evidence/attention"),
    *_norm("evidence_layers.{i}.feedforward_norm", "evidence/feedforward_norm"),
    *_feedforward("evidence_layers.{i}.feedforward.0", "evidence_layers.{i}.feedforward.3", "evidence/feedforward"),
    *_norm("option_summary_norm", "option_summary_norm"),
    *_norm("layers.{i}.norm1", "decoder/self_norm"),
    *_attention("layers.{i}.self_attn", "decoder/self_attention"),
    *_norm("layers.{i}.norm2", "decoder/cross_norm"),
    *_attention("layers.{i}.multihead_attn", "decoder/cross_attention"),
    *_norm("layers.{i}.norm3", "decoder/feedforward_norm"),
    *_feedforward("layers.{i}.linear1", "layers.{i}.linear2", "decoder/feedforward"),
    *_norm("field_norm", "field_norm"),
    *_norm("option_norm", "option_norm"),
    *_feedforward("residual_scorer.0", "residual_scorer.3", "residual_scorer"),
    Rule("residual_gate", "residual_gate", as_is),
    Rule("prior_logit_scale", "prior_logit_scale", as_is),
    Rule("joint_logit_scale", "joint_logit_scale", as_is),
)
