"""Qwen3.5 (``Qwen3_5ForConditionalGeneration``, ``Qwen3_5MoeForConditionalGeneration`` and their text-only classes):
a causal decoder that mixes gated delta-rule layers with full attention, its MLP dense or a mixture of experts.

What is unusual, each checked against transformers 5.24 by the parity tests:

- every RMSNorm scales by ``1 + w``, the per-head norms of q and k included, except the one inside the delta layers,
which
  has a plain weight, runs per head and comes *before* its gate ``silu(z)``;
- full attention has an output gate: ``q_proj`` is twice as wide, per head ``[query | gate]``, and the heads' output is
  multiplied by ``sigmoid(gate)`` before the output projection; the gate is neither normed nor rotated;
- only the first ``partial_rotary_factor`` of a head is rotated, with frequencies over that part; each plane turns by
the
  time, row or column position (interleaved t, h, w, t, h, w, ...), which are equal for text;
- delta layers have no positions. Their convolution covers q, k and v, SiLU comes after it, and what they carry on is
the
  last inputs *before* it, and a float32 matrix a head. q and k are l2-normed with the eps inside the root;
- the pattern of layer types is read from ``layer_types``, never assumed: pruned checkpoints are irregular. The shortest
  pattern that repeats is the stacked period, and an irregular list is one period;
- Decision 3.0's checkpoints may have full attention read both ways (``causal`` False); their delta layers stay causal;
- experts are chosen by a softmax over all of them, renormalised over the chosen; the shared expert's gate is one
sigmoid a
  token and multiplies its output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from sysone_jax.backbones.decoder import Context, Decoder
from sysone_jax.config import ConfigReader
from sysone_jax.errors import CheckpointError
from sysone_jax.ops.attention import KeyValues, causal_attention, full_attention
from sysone_jax.ops.gated_delta import chunked
from sysone_jax.ops.linear import heads_product, product
from sysone_jax.ops.mlp import gated_mlp
from sysone_jax.ops.moe import experts_mlp, route
from sysone_jax.ops.norms import gated_rms_norm, rms_norm_plus_one
from sysone_jax.ops.rope import Rope, make_rope, rotate, tables_of
from sysone_jax.ops.short_conv import causal_conv
from sysone_jax.sharding import weight

LINEAR, FULL = "linear_attention", "full_attention"


@dataclasses.dataclass(frozen=True)
class Experts:
    """The mixture in place of a dense MLP."""

    count: int
    chosen: int
    mlp: int
    shared_mlp: int


@dataclasses.dataclass(frozen=True)
class Config:
    """The numbers that decide what the weights compute; names follow the axis alphabet."""

    vocab_size: int
    embed: int
    layer_types: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope  # over the rotated part of a head
    sections: tuple[int, int, int]  # planes that turn by time, row and column
    delta_k_heads: int
    delta_v_heads: int
    delta_k_dim: int
    delta_v_dim: int
    conv_width: int
    mlp: int | Experts
    norm_eps: float
    tied: bool
    max_positions: int
    causal: bool = True  # full attention sees earlier tokens only; False: the whole sequence

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """From a ``config.json``, multimodal or text-only; CheckpointError on what is unknown or not supported."""
        tied = config.get("tie_word_embeddings")
        if "text_config" in config:
            outer = ConfigReader(config)
            text = dict(outer.take("text_config", dict))
            outer.drop("vision_config", "image_token_id", "video_token_id", "vision_start_token_id")
            outer.drop("vision_end_token_id", "tie_word_embeddings")
            outer.finish()
            if tied is not None:
                text["tie_word_embeddings"] = tied
            config = text
        reader = ConfigReader(config)
        heads, head_dim = reader.take("num_attention_heads", int), reader.take("head_dim", int, 256)
        layers = reader.take("num_hidden_layers", int)
        interval = reader.take("full_attention_interval", int, 4)
        kinds = reader.take("layer_types", list, [FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers)])
        if len(kinds) != layers or any(kind not in (LINEAR, FULL) for kind in kinds):
            raise CheckpointError(f"config.json: 'layer_types' must name {layers} layers, each {LINEAR!r} or {FULL!r}")
        rope, sections = _take_rope(reader, head_dim)
        reader.require("hidden_act", "silu")
        reader.require("attention_bias", False)
        reader.require("attn_output_gate", True)
        reader.require("mlp_only_layers", [])
        reader.drop("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
        reader.drop("output_router_logits", "router_aux_loss_coef", "decoder_sparse_step", "norm_topk_prob")
        result = cls(
            vocab_size=reader.take("vocab_size", int),
            embed=reader.take("hidden_size", int),
            layer_types=tuple(kinds),
            heads=heads,
            kv_heads=reader.take("num_key_value_heads", int, heads),
            head_dim=head_dim,
            rope=rope,
            sections=sections,
            delta_k_heads=reader.take("linear_num_key_heads", int),
            delta_v_heads=reader.take("linear_num_value_heads", int),
            delta_k_dim=reader.take("linear_key_head_dim", int),
            delta_v_dim=reader.take("linear_value_head_dim", int),
            conv_width=reader.take("linear_conv_kernel_dim", int, 4),
            mlp=_take_mlp(reader),
            norm_eps=float(reader.take("rms_norm_eps", (int, float), 1e-6)),
            tied=reader.take("tie_word_embeddings", bool, False),
            max_positions=reader.take("max_position_embeddings", int, 32768),
        )
        reader.finish()
        if heads % result.kv_heads or result.delta_v_heads % result.delta_k_heads:
            raise CheckpointError("config.json: query heads must divide among key heads, and value heads likewise")
        return result

    @property
    def period(self) -> int:
        """Length of the shortest pattern of layer types that repeats to make the whole list."""
        kinds = self.layer_types
        return next(
            p for p in range(1, len(kinds) + 1) if len(kinds) % p == 0 and kinds == kinds[:p] * (len(kinds) // p)
        )

    @property
    def stacked(self) -> int:
        return len(self.layer_types) // self.period


def _take_rope(reader: ConfigReader, head_dim: int) -> tuple[Rope, tuple[int, int, int]]:
    parameters = dict(reader.take("rope_parameters", dict, {}))
    theta = parameters.pop("rope_theta", reader.take("rope_theta", (int, float), 10_000.0))
    part = parameters.pop("partial_rotary_factor", reader.take("partial_rotary_factor", (int, float), 0.25))
    sections = tuple(parameters.pop("mrope_section", (11, 11, 10)))
    if parameters.pop("mrope_interleaved", True) is not True:
        raise CheckpointError("config.json: 'mrope_interleaved' must be true")
    rotated = int(head_dim * part)
    if len(sections) != 3 or sum(sections) < rotated // 2:
        raise CheckpointError(f"config.json: 'mrope_section' {list(sections)} does not cover {rotated // 2} planes")
    return make_rope(rotated, float(theta), parameters), sections


def _take_mlp(reader: ConfigReader) -> int | Experts:
    count = reader.take("num_experts", int, 0)
    if not count:
        return reader.take("intermediate_size", int)
    reader.drop("intermediate_size")
    return Experts(
        count=count,
        chosen=reader.take("num_experts_per_tok", int),
        mlp=reader.take("moe_intermediate_size", int),
        shared_mlp=reader.take("shared_expert_intermediate_size", int),
    )


def rotary_tables(config: Config, positions: Int[Array, "3 T"]) -> tuple[Float[Array, "T 1 R"], Float[Array, "T 1 R"]]:
    """cos and sin for the rotated part of a head: plane j turns by row if j % 3 == 1, by column if j % 3 == 2, within
    the first ``3 * section`` planes, and by time otherwise."""
    planes = jnp.arange(len(config.rope.frequencies))
    row = (planes % 3 == 1) & (planes < 3 * config.sections[1])
    column = (planes % 3 == 2) & (planes < 3 * config.sections[2])
    turned = jnp.where(row, 1, jnp.where(column, 2, 0))
    angles = positions.astype(jnp.float32)[turned].T * jnp.asarray(config.rope.frequencies, jnp.float32)[None]
    return tables_of(angles)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeltaState:
    """What a delta layer leaves behind."""

    q: Any  # [W - 1, Kd, Dk] last inputs of the convolution
    k: Any  # [W - 1, Kd, Dk]
    v: Any  # [W - 1, Vd, Dv]
    memory: Any  # [Vd, Dk, Dv] float32


class Attention(nnx.Module):
    """Full attention with an output gate and partial rotation."""

    def __init__(self, c: Config, dtype: jnp.dtype) -> None:
        self.config = c
        self.q = weight((c.embed, c.heads, c.head_dim), ("embed", "heads", "head_dim"), dtype)
        self.gate = weight((c.embed, c.heads, c.head_dim), ("embed", "heads", "head_dim"), dtype)
        self.k = weight((c.embed, c.kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), dtype)
        self.v = weight((c.embed, c.kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), dtype)
        self.o = weight((c.heads, c.head_dim, c.embed), ("heads", "head_dim", "embed"), dtype)
        self.q_norm = weight((c.head_dim,), ("head_dim",), dtype)
        self.k_norm = weight((c.head_dim,), ("head_dim",), dtype)

    def __call__(self, h: Float[Array, "T D"], context: Context, kept: KeyValues | None) -> tuple[Array, KeyValues]:
        c = self.config
        q, gate, k, v = (product("TD,DNH->TNH", h, w[...]) for w in (self.q, self.gate, self.k, self.v))
        q = self._rotated(rms_norm_plus_one(q.astype(h.dtype), self.q_norm[...], c.norm_eps), context)
        k = self._rotated(rms_norm_plus_one(k.astype(h.dtype), self.k_norm[...], c.norm_eps), context)
        own = KeyValues(k=k.transpose(1, 0, 2), v=v.astype(h.dtype).transpose(1, 0, 2))
        if c.causal:
            mixed = causal_attention(q, own, kept, context.prefix_length, scale=c.head_dim**-0.5)
        else:
            mixed = full_attention(q, own, context.length, scale=c.head_dim**-0.5)
        gated = (mixed * jax.nn.sigmoid(gate)).astype(h.dtype)
        return heads_product(gated, self.o[...]), own

    def _rotated(self, x: Float[Array, "T N H"], context: Context) -> Float[Array, "T N H"]:
        size = 2 * len(self.config.rope.frequencies)
        return jnp.concatenate([rotate(x[..., :size], context.cos, context.sin), x[..., size:]], axis=-1)


class DeltaNet(nnx.Module):
    """A gated delta-rule layer: short convolutions, the recurrence, a gated norm."""

    def __init__(self, c: Config, dtype: jnp.dtype) -> None:
        self.config = c
        keys, values = (c.delta_k_heads, c.delta_k_dim), (c.delta_v_heads, c.delta_v_dim)
        key_axes, value_axes = ("delta_k_heads", "head_dim"), ("delta_v_heads", "head_dim")
        self.q = weight((c.embed, *keys), ("embed", *key_axes), dtype)
        self.k = weight((c.embed, *keys), ("embed", *key_axes), dtype)
        self.v = weight((c.embed, *values), ("embed", *value_axes), dtype)
        self.q_conv = weight((*keys, c.conv_width), (*key_axes, "window"), dtype)
        self.k_conv = weight((*keys, c.conv_width), (*key_axes, "window"), dtype)
        self.v_conv = weight((*values, c.conv_width), (*value_axes, "window"), dtype)
        self.z = weight((c.embed, *values), ("embed", *value_axes), dtype)
        self.a = weight((c.embed, c.delta_v_heads), ("embed", "delta_v_heads"), dtype)
        self.b = weight((c.embed, c.delta_v_heads), ("embed", "delta_v_heads"), dtype)
        self.a_log = weight((c.delta_v_heads,), ("delta_v_heads",), jnp.float32)
        self.dt_bias = weight((c.delta_v_heads,), ("delta_v_heads",), jnp.float32)
        self.norm = weight((c.delta_v_dim,), ("head_dim",), jnp.float32)
        self.o = weight((*values, c.embed), (*value_axes, "embed"), dtype)

    def __call__(self, h: Float[Array, "T D"], context: Context, kept: DeltaState | None) -> tuple[Array, DeltaState]:
        c = self.config
        windows = (None, None, None) if kept is None else (kept.q, kept.k, kept.v)
        (q, q_window), (k, k_window), (v, v_window) = (
            causal_conv(product("TD,DNH->TNH", h, w[...]).astype(h.dtype), conv[...], window, context.length)
            for w, conv, window in zip(
                (self.q, self.k, self.v), (self.q_conv, self.k_conv, self.v_conv), windows, strict=True
            )
        )
        q, k, v = (jax.nn.silu(x.astype(jnp.float32)) for x in (q, k, v))
        real = (jnp.arange(h.shape[0]) < context.length)[:, None]
        beta = jnp.where(real, jax.nn.sigmoid(product("TD,DN->TN", h, self.b[...])), 0.0)
        step = jax.nn.softplus(product("TD,DN->TN", h, self.a[...]) + self.dt_bias[...][None])
        g = jnp.where(real, -jnp.exp(self.a_log[...])[None] * step, 0.0)
        q, k = self._for_values(_l2_norm(q)), self._for_values(_l2_norm(k))
        memory = self._blank(v) if kept is None else kept.memory
        out, memory = chunked(q * c.delta_k_dim**-0.5, k, v, g, beta, memory)
        z = product("TD,DNH->TNH", h, self.z[...])
        normed = gated_rms_norm(out.astype(h.dtype), z, self.norm[...], c.norm_eps)
        state = DeltaState(q=q_window, k=k_window, v=v_window, memory=memory)
        return heads_product(normed, self.o[...]), state

    def _for_values(self, x: Float[Array, "T Kd Dk"]) -> Float[Array, "T Vd Dk"]:
        """Each key head, once for every value head that it serves."""
        c = self.config
        tokens, heads, size = x.shape
        repeated = jnp.broadcast_to(x[:, :, None], (tokens, heads, c.delta_v_heads // heads, size))
        return repeated.reshape(tokens, c.delta_v_heads, size)

    def _blank(self, v: Float[Array, "T Vd Dv"]) -> Float[Array, "Vd Dk Dv"]:
        """The memory before the first token, split over devices as the values are."""
        c = self.config
        heads = jax.typeof(v).sharding.spec[1]
        shape = (c.delta_v_heads, c.delta_k_dim, c.delta_v_dim)
        return jnp.zeros(shape, jnp.float32, out_sharding=P(heads, None, None))


def _l2_norm(x: Float[Array, "T N H"]) -> Float[Array, "T N H"]:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


class DenseMlp(nnx.Module):
    def __init__(self, c: Config, width: int, dtype: jnp.dtype) -> None:
        self.gate = weight((c.embed, width), ("embed", "mlp"), dtype)
        self.up = weight((c.embed, width), ("embed", "mlp"), dtype)
        self.down = weight((width, c.embed), ("mlp", "embed"), dtype)

    def __call__(self, h: Float[Array, "T D"]) -> Float[Array, "T D"]:
        return gated_mlp(h, self.gate[...], self.up[...], self.down[...])


class ExpertsMlp(nnx.Module):
    def __init__(self, c: Config, experts: Experts, dtype: jnp.dtype) -> None:
        self.chosen = experts.chosen
        count, width = experts.count, experts.mlp
        self.router = weight((c.embed, count), ("embed", "routes"), dtype)
        self.gate = weight((count, c.embed, width), ("experts", "embed", "expert_mlp"), dtype)
        self.up = weight((count, c.embed, width), ("experts", "embed", "expert_mlp"), dtype)
        self.down = weight((count, width, c.embed), ("experts", "expert_mlp", "embed"), dtype)
        self.shared = DenseMlp(c, experts.shared_mlp, dtype)
        self.shared_gate = weight((c.embed,), ("embed",), dtype)

    def __call__(self, h: Float[Array, "T D"]) -> Float[Array, "T D"]:
        weights, experts = route(h, self.router[...], self.chosen)
        mixed = experts_mlp(h, weights, experts, self.gate[...], self.up[...], self.down[...])
        share = jax.nn.sigmoid(product("TD,D->T", h, self.shared_gate[...]))[:, None]
        return mixed + share * self.shared(h)


class Layer(nnx.Module):
    """One mixer and one MLP, each on a normed input and added back."""

    def __init__(self, c: Config, kind: str, dtype: jnp.dtype) -> None:
        self.norm_eps = c.norm_eps
        self.mixer_norm = weight((c.embed,), ("embed",), dtype)
        self.mixer = Attention(c, dtype) if kind == FULL else DeltaNet(c, dtype)
        self.mlp_norm = weight((c.embed,), ("embed",), dtype)
        self.mlp = DenseMlp(c, c.mlp, dtype) if isinstance(c.mlp, int) else ExpertsMlp(c, c.mlp, dtype)

    def __call__(self, x: Float[Array, "T D"], context: Context, kept: Any) -> tuple[Float[Array, "T D"], Any]:
        out, state = self.mixer(rms_norm_plus_one(x, self.mixer_norm[...], self.norm_eps), context, kept)
        x = x + out.astype(x.dtype)
        return x + self.mlp(rms_norm_plus_one(x, self.mlp_norm[...], self.norm_eps)).astype(x.dtype), state


class Period(nnx.Module):
    """The layers of one period, in order; their states are a tuple."""

    def __init__(self, c: Config, dtype: jnp.dtype) -> None:
        self.slots = nnx.List([Layer(c, kind, dtype) for kind in c.layer_types[: c.period]])

    def __call__(self, x: Float[Array, "T D"], context: Context, kept: Any) -> tuple[Float[Array, "T D"], Any]:
        states = []
        for layer, state in zip(self.slots, kept or [None] * len(self.slots), strict=True):
            x, left = layer(x, context, state)
            states.append(left)
        return x, tuple(states)


def build(config: Config, dtype: jnp.dtype) -> Decoder:
    """The text network of ``config``; call it under ``sharding.abstract``."""
    return Decoder(
        config,
        lambda: Period(config, dtype),
        dtype,
        norm=rms_norm_plus_one,
        rotary=rotary_tables,
        causal=config.causal,
    )
