"""Qwen3 (``Qwen3ForCausalLM``): a dense causal decoder.

What is unusual, each checked against transformers 5.24 by the parity tests:

- the head size is independent of ``hidden_size / heads`` (Qwen3-0.6B: 128, not 64);
- queries and keys are normed per head, with one weight for all heads, before the rotation;
- no bias in any projection of the released models; ``attention_bias`` adds them to q, k, v and o;
- the table may have more rows than the tokenizer has tokens, and the softmax runs over all of them;
- sliding-window attention exists in the config and is refused: no released model uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from sysone_jax.backbones.decoder import Context, Decoder
from sysone_jax.config import MOST_LAYERS, ConfigReader, take_rope
from sysone_jax.errors import CheckpointError
from sysone_jax.ops.attention import KeyValues, causal_attention
from sysone_jax.ops.linear import heads_product, product
from sysone_jax.ops.mlp import gated_mlp
from sysone_jax.ops.norms import rms_norm
from sysone_jax.ops.rope import Rope, make_rope, rotate, text_rotary
from sysone_jax.sharding import weight


@dataclasses.dataclass(frozen=True)
class Config:
    """The numbers that decide what the weights compute; names follow the axis alphabet."""

    vocab_size: int
    embed: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    norm_eps: float
    rope: Rope
    attention_bias: bool
    tied: bool
    max_positions: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """From a checkpoint's ``config.json``; CheckpointError on unknown keys and on what is not supported."""
        reader = ConfigReader(config)
        heads, layers = reader.take_size("num_attention_heads"), reader.take_size("num_hidden_layers", most=MOST_LAYERS)
        theta, scaling = take_rope(reader)
        head_dim = reader.take_size("head_dim", 128)
        reader.require("hidden_act", "silu")
        reader.require("use_sliding_window", False)
        if any(kind != "full_attention" for kind in reader.take("layer_types", list, [])):
            raise CheckpointError("config.json: 'layer_types' must all be 'full_attention'")
        reader.take("sliding_window", int, None)
        reader.take("max_window_layers", int, None)
        result = cls(
            vocab_size=reader.take_size("vocab_size"),
            embed=reader.take_size("hidden_size"),
            layers=layers,
            heads=heads,
            kv_heads=reader.take_size("num_key_value_heads", heads),
            head_dim=head_dim,
            mlp=reader.take_size("intermediate_size"),
            norm_eps=reader.take_positive("rms_norm_eps", 1e-6),
            rope=make_rope(head_dim, theta, scaling),
            attention_bias=reader.take("attention_bias", bool, False),
            tied=reader.take("tie_word_embeddings", bool, False),
            max_positions=reader.take_size("max_position_embeddings", 32768),
        )
        reader.finish()
        if heads % result.kv_heads:
            raise CheckpointError(
                f"config.json: {heads} attention heads do not divide among {result.kv_heads} key heads"
            )
        return result

    @property
    def stacked(self) -> int:
        return self.layers

    @property
    def period(self) -> int:
        return 1


class Layer(nnx.Module):
    """Attention, then the gated MLP, each on a normed input and added back."""

    def __init__(self, c: Config, dtype: jnp.dtype) -> None:
        self.config = c
        self.attention_norm = weight((c.embed,), ("embed",), dtype)
        self.q = weight((c.embed, c.heads, c.head_dim), ("embed", "heads", "head_dim"), dtype)
        self.k = weight((c.embed, c.kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), dtype)
        self.v = weight((c.embed, c.kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), dtype)
        self.o = weight((c.heads, c.head_dim, c.embed), ("heads", "head_dim", "embed"), dtype)
        self.q_norm = weight((c.head_dim,), ("head_dim",), dtype)
        self.k_norm = weight((c.head_dim,), ("head_dim",), dtype)
        if c.attention_bias:
            self.q_bias = weight((c.heads, c.head_dim), ("heads", "head_dim"), dtype)
            self.k_bias = weight((c.kv_heads, c.head_dim), ("kv_heads", "head_dim"), dtype)
            self.v_bias = weight((c.kv_heads, c.head_dim), ("kv_heads", "head_dim"), dtype)
            self.o_bias = weight((c.embed,), ("embed",), dtype)
        self.mlp_norm = weight((c.embed,), ("embed",), dtype)
        self.gate = weight((c.embed, c.mlp), ("embed", "mlp"), dtype)
        self.up = weight((c.embed, c.mlp), ("embed", "mlp"), dtype)
        self.down = weight((c.mlp, c.embed), ("mlp", "embed"), dtype)

    def __call__(
        self, x: Float[Array, "T D"], context: Context, kept: KeyValues | None
    ) -> tuple[Float[Array, "T D"], KeyValues]:
        c = self.config
        h = rms_norm(x, self.attention_norm[...], c.norm_eps)
        q, k, v = (product("TD,DNH->TNH", h, w[...]) for w in (self.q, self.k, self.v))
        if c.attention_bias:
            q, k, v = q + self.q_bias[...][None], k + self.k_bias[...][None], v + self.v_bias[...][None]
        q = rotate(rms_norm(q.astype(x.dtype), self.q_norm[...], c.norm_eps), context.cos, context.sin)
        k = rotate(rms_norm(k.astype(x.dtype), self.k_norm[...], c.norm_eps), context.cos, context.sin)
        own = KeyValues(k=k.transpose(1, 0, 2), v=v.astype(x.dtype).transpose(1, 0, 2))
        mixed = causal_attention(q, own, kept, context.prefix_length, scale=c.head_dim**-0.5)
        out = heads_product(mixed, self.o[...])
        if c.attention_bias:
            out = out + self.o_bias[...][None]
        x = x + out.astype(x.dtype)
        h = rms_norm(x, self.mlp_norm[...], c.norm_eps)
        return x + gated_mlp(h, self.gate[...], self.up[...], self.down[...]).astype(x.dtype), own


def build(config: Config, dtype: jnp.dtype) -> Decoder:
    """The network of ``config``; call it under ``sharding.abstract``."""
    return Decoder(config, lambda: Layer(config, dtype), dtype, norm=rms_norm, rotary=text_rotary)
