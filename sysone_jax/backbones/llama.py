"""Llama (``LlamaForCausalLM``), which is also SmolLM2: a dense causal decoder.

What is unusual, each checked against transformers 5.24 by the parity tests:

- the head size is ``hidden_size / heads`` unless the config says otherwise, and need not be a power of two;
- ``rope_interleaved`` in SmolLM2's config does not change the rotation; it is rotate-half like the rest;
- ``attention_bias`` adds a bias to q, k, v and o, ``mlp_bias`` to gate, up and down;
- long-context checkpoints change the frequencies by ``rope_scaling`` (``linear``, ``llama3``, ``yarn``).
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
    mlp_bias: bool
    tied: bool
    max_positions: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """From a checkpoint's ``config.json``; CheckpointError on unknown keys and on what is not supported."""
        reader = ConfigReader(config)
        heads, embed = reader.take_size("num_attention_heads"), reader.take_size("hidden_size")
        head_dim = reader.take_size("head_dim", None)
        if head_dim is None:
            if embed % heads:
                raise CheckpointError(f"config.json: hidden_size {embed} does not divide among {heads} attention heads")
            head_dim = embed // heads
        theta, scaling = take_rope(reader)
        reader.require("hidden_act", "silu")
        reader.require("rope_interleaved", False)
        result = cls(
            vocab_size=reader.take_size("vocab_size"),
            embed=embed,
            layers=reader.take_size("num_hidden_layers", most=MOST_LAYERS),
            heads=heads,
            kv_heads=reader.take_size("num_key_value_heads", heads),
            head_dim=head_dim,
            mlp=reader.take_size("intermediate_size"),
            norm_eps=reader.take_positive("rms_norm_eps", 1e-6),
            rope=make_rope(head_dim, theta, scaling),
            attention_bias=reader.take("attention_bias", bool, False),
            mlp_bias=reader.take("mlp_bias", bool, False),
            tied=reader.take("tie_word_embeddings", bool, False),
            max_positions=reader.take_size("max_position_embeddings", 2048),
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
        if c.attention_bias:
            self.q_bias = weight((c.heads, c.head_dim), ("heads", "head_dim"), dtype)
            self.k_bias = weight((c.kv_heads, c.head_dim), ("kv_heads", "head_dim"), dtype)
            self.v_bias = weight((c.kv_heads, c.head_dim), ("kv_heads", "head_dim"), dtype)
            self.o_bias = weight((c.embed,), ("embed",), dtype)
        self.mlp_norm = weight((c.embed,), ("embed",), dtype)
        self.gate = weight((c.embed, c.mlp), ("embed", "mlp"), dtype)
        self.up = weight((c.embed, c.mlp), ("embed", "mlp"), dtype)
        self.down = weight((c.mlp, c.embed), ("mlp", "embed"), dtype)
        if c.mlp_bias:
            self.gate_bias = weight((c.mlp,), ("mlp",), dtype)
            self.up_bias = weight((c.mlp,), ("mlp",), dtype)
            self.down_bias = weight((c.embed,), ("embed",), dtype)

    def __call__(
        self, x: Float[Array, "T D"], context: Context, kept: KeyValues | None
    ) -> tuple[Float[Array, "T D"], KeyValues]:
        c = self.config
        h = rms_norm(x, self.attention_norm[...], c.norm_eps)
        q, k, v = (product("TD,DNH->TNH", h, w[...]) for w in (self.q, self.k, self.v))
        if c.attention_bias:
            q, k, v = q + self.q_bias[...][None], k + self.k_bias[...][None], v + self.v_bias[...][None]
        q, k = rotate(q.astype(x.dtype), context.cos, context.sin), rotate(k.astype(x.dtype), context.cos, context.sin)
        own = KeyValues(k=k.transpose(1, 0, 2), v=v.astype(x.dtype).transpose(1, 0, 2))
        mixed = causal_attention(q, own, kept, context.prefix_length, scale=c.head_dim**-0.5)
        out = heads_product(mixed, self.o[...])
        if c.attention_bias:
            out = out + self.o_bias[...][None]
        x = x + out.astype(x.dtype)
        biases = (self.gate_bias[...], self.up_bias[...], self.down_bias[...]) if c.mlp_bias else None
        h = rms_norm(x, self.mlp_norm[...], c.norm_eps)
        return x + gated_mlp(h, self.gate[...], self.up[...], self.down[...], biases).astype(x.dtype), own


def build(config: Config, dtype: jnp.dtype) -> Decoder:
    """The network of ``config``; call it under ``sharding.abstract``."""
    return Decoder(config, lambda: Layer(config, dtype), dtype, norm=rms_norm, rotary=text_rotary)
