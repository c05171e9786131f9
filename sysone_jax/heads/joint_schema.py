"""Clef's joint schema head: all questions of a record at once, from the hidden states of one prompt.

The head sees hidden states after the backbone's final norm, text or media alike, and where the questions and options
stand in the prompt. It gives one logit per option; a softmax within each question makes the answer.

What is unusual, checked against Clef's published weights and its reference outputs:

- Options read the prompt by cross-attention and do not see each other. Questions do, in the decoder's self-attention:
  an answer depends on the other questions of the record.
- The memory is normalised in the evidence layers and not in the decoder, whose layers are torch's
  ``TransformerDecoderLayer(norm_first=True)``.
- The last prompt token stands for the whole record, so the prompt must be complete.
- The lexical vector of an option is the mean of rows of the *output* embedding at its prompt tokens.
- GELU is the exact one, LayerNorm's eps is 1e-5, and both scales are capped at ln 100 before ``exp``.

Arithmetic is float32 at the highest precision unless the head is asked to work in bfloat16, as the published run did:
then every step rounds to it where torch's layers do (after the bias of a linear layer, after a softmax, at the end of a
norm or a mean), and sums in float32 on the way. The element type of the activations says which of the two it is. Every
weight is replicated: the largest published head is 0.5 GB in float32, and none of its axes is one that the mesh splits.

Many options are worked through in blocks of rows, so that attention holds the scores of one block alone.

Padding is inert. Padded tokens, questions and options are masked wherever a real one could read them, whatever values
they hold, and their own rows stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from sysone_jax.errors import CheckpointError
from sysone_jax.ops.attention import MASKED
from sysone_jax.ops.norms import layer_norm
from sysone_jax.ops.stack import run, stack
from sysone_jax.sharding import abstract, leaves, weight

QUESTION_TYPES = ("noul", "choice", "score")
"""A question's type is its index here, a row of the head's type embedding."""

SCALE_CAP = math.log(100.0)

ROW_BLOCK = 512
"""Rows of queries that attention works on together."""

Leaf = Any
"""An array, or what a tree of the same form holds in its place: a shape, a sharding, an axis."""


@dataclass(frozen=True)
class JointHeadConfig:
    """The numbers of a checkpoint's ``joint_head_config.json``, under its own names."""

    hidden_size: int  # of the backbone
    width: int  # of the head itself
    routing_layers: int  # in which options read the prompt
    layers: int  # in which questions read each other and the prompt
    heads: int
    feedforward: int

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> JointHeadConfig:
        """Raises CheckpointError when a key is missing, unknown or no positive integer, or the heads do not fit."""
        names = {field.name for field in fields(cls)}
        if faults := sorted(names.symmetric_difference(mapping)):
            raise CheckpointError(
                f"joint_head_config.json must hold exactly {sorted(names)}; missing or unknown: {faults}"
            )
        for name, value in mapping.items():
            if type(value) is not int or value < 1:
                raise CheckpointError(f"joint_head_config.json: {name} must be a positive integer, not {value!r}")
        config = cls(**mapping)
        if config.width % config.heads:
            raise CheckpointError(
                f"joint_head_config.json: width {config.width} must be a multiple of heads {config.heads}"
            )
        return config

    @property
    def parameter_count(self) -> int:
        """Values in the head's weights; computed from shapes alone."""
        return sum(variable.size for _, variable in leaves(abstract(lambda: JointSchemaHead(self))))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Schema:
    """Where one record's questions and options stand in its prompt, padded to T tokens, Q questions and O options.

    Spans are ``[start, end)`` in the record's tokens. Entries past a count are padding and may hold anything.
    """

    length: Leaf  # [] int32: tokens of the prompt
    tokens: Leaf  # [T] int32
    question_start: Leaf  # [Q] int32
    question_end: Leaf  # [Q] int32
    question_type: Leaf  # [Q] int32: index in QUESTION_TYPES
    question_count: Leaf  # [] int32
    option_start: Leaf  # [O] int32
    option_end: Leaf  # [O] int32
    option_question: Leaf  # [O] int32: index of the question that offers the option
    option_count: Leaf  # [] int32


class LayerNorm(nnx.Module):
    def __init__(self, size: int, axis: str, dtype: jnp.dtype) -> None:
        self.weight = weight((size,), (axis,), dtype)
        self.bias = weight((size,), (axis,), dtype)

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return layer_norm(x, self.weight[...], self.bias[...], eps=1e-5)


class FeedForward(nnx.Module):
    """Linear, exact GELU, Linear, both with a bias."""

    def __init__(self, size: int, inner: int, out: int, dtype: jnp.dtype) -> None:
        self.up = weight((size, inner), ("width", "width_inner"), dtype)
        self.up_bias = weight((inner,), ("width_inner",), dtype)
        self.down = weight((inner, out), ("width_inner", "width"), dtype)
        self.down_bias = weight((out,), ("width",), dtype)

    def __call__(self, x: Float[Array, "R W"]) -> Float[Array, "R out"]:
        inner = _linear("RW,WF->RF", x, self.up[...], self.up_bias[...])
        inner = jax.nn.gelu(inner.astype(jnp.float32), approximate=False).astype(x.dtype)
        return _linear("RF,FW->RW", inner, self.down[...], self.down_bias[...])


class Attention(nnx.Module):
    """Multi-head attention with biases, as torch's ``MultiheadAttention``, over the visible rows of a memory."""

    def __init__(self, config: JointHeadConfig, dtype: jnp.dtype) -> None:
        width, heads, head_dim = config.width, config.heads, config.width // config.heads
        split, split_axes = (heads, head_dim), ("width_heads", "head_dim")
        self.q = weight((width, *split), ("width", *split_axes), dtype)
        self.q_bias = weight(split, split_axes, dtype)
        self.k = weight((width, *split), ("width", *split_axes), dtype)
        self.k_bias = weight(split, split_axes, dtype)
        self.v = weight((width, *split), ("width", *split_axes), dtype)
        self.v_bias = weight(split, split_axes, dtype)
        self.o = weight((*split, width), (*split_axes, "width"), dtype)
        self.o_bias = weight((width,), ("width",), dtype)

    def __call__(
        self, x: Float[Array, "R W"], memory: Float[Array, "T W"], visible: Bool[Array, " T"]
    ) -> Float[Array, "R W"]:
        q = _linear("RW,WNH->RNH", x, self.q[...], self.q_bias[...])
        k = _linear("TW,WNH->TNH", memory, self.k[...], self.k_bias[...])
        v = _linear("TW,WNH->TNH", memory, self.v[...], self.v_bias[...])

        def attend(rows: Float[Array, "R N H"]) -> Float[Array, "R N H"]:
            scores = _product("RNH,TNH->NRT", rows, k) * rows.shape[-1] ** -0.5
            weights = jax.nn.softmax(jnp.where(visible[None, None], scores, MASKED), axis=-1)
            return _product("NRT,TNH->RNH", weights.astype(rows.dtype), v).astype(rows.dtype)

        blocks = [attend(q[start : start + ROW_BLOCK]) for start in range(0, q.shape[0], ROW_BLOCK)]
        return _linear("RNH,NHW->RW", jnp.concatenate(blocks), self.o[...], self.o_bias[...])


class EvidenceLayer(nnx.Module):
    """Options gather what the prompt says about them; none sees another."""

    def __init__(self, config: JointHeadConfig, dtype: jnp.dtype) -> None:
        self.query_norm = LayerNorm(config.width, "width", dtype)
        self.memory_norm = LayerNorm(config.width, "width", dtype)
        self.attention = Attention(config, dtype)
        self.feedforward_norm = LayerNorm(config.width, "width", dtype)
        self.feedforward = FeedForward(config.width, config.feedforward, config.width, dtype)

    def __call__(
        self, options: Float[Array, "O W"], memory: Float[Array, "T W"], seen: Bool[Array, " T"]
    ) -> Float[Array, "O W"]:
        options = options + self.attention(self.query_norm(options), self.memory_norm(memory), seen)
        return options + self.feedforward(self.feedforward_norm(options))


class DecoderLayer(nnx.Module):
    """Questions read each other, then the prompt."""

    def __init__(self, config: JointHeadConfig, dtype: jnp.dtype) -> None:
        self.self_norm = LayerNorm(config.width, "width", dtype)
        self.self_attention = Attention(config, dtype)
        self.cross_norm = LayerNorm(config.width, "width", dtype)
        self.cross_attention = Attention(config, dtype)
        self.feedforward_norm = LayerNorm(config.width, "width", dtype)
        self.feedforward = FeedForward(config.width, config.feedforward, config.width, dtype)

    def __call__(
        self,
        questions: Float[Array, "Q W"],
        asked: Bool[Array, " Q"],
        memory: Float[Array, "T W"],
        seen: Bool[Array, " T"],
    ) -> Float[Array, "Q W"]:
        normed = self.self_norm(questions)
        questions = questions + self.self_attention(normed, normed, asked)
        questions = questions + self.cross_attention(self.cross_norm(questions), memory, seen)
        return questions + self.feedforward(self.feedforward_norm(questions))


class JointSchemaHead(nnx.Module):
    """The head of one record.

    Args:
        config: the checkpoint's numbers.
        dtype: type that the weights are stored in.
        arithmetic: type that every step is rounded to.
    """

    def __init__(
        self, config: JointHeadConfig, dtype: DTypeLike = jnp.float32, arithmetic: DTypeLike = jnp.float32
    ) -> None:
        embed, width, dtype = config.hidden_size, config.width, jnp.dtype(dtype)
        self.arithmetic = jnp.dtype(arithmetic)
        self.hidden_norm = LayerNorm(embed, "embed", dtype)
        self.memory_projection = weight((embed, width), ("embed", "width"), dtype)
        self.global_projection = weight((embed, width), ("embed", "width"), dtype)
        self.question_projection = weight((embed, width), ("embed", "width"), dtype)
        self.option_context_projection = weight((embed, width), ("embed", "width"), dtype)
        self.option_lexical_projection = weight((embed, width), ("embed", "width"), dtype)
        self.option_question_projection = weight((embed, width), ("embed", "width"), dtype)
        self.type_embedding = weight((len(QUESTION_TYPES), width), ("type", "width"), dtype)
        self.evidence = stack(config.routing_layers, lambda: EvidenceLayer(config, dtype))
        self.option_summary_norm = LayerNorm(width, "width", dtype)
        self.decoder = stack(config.layers, lambda: DecoderLayer(config, dtype))
        self.field_norm = LayerNorm(width, "width", dtype)
        self.option_norm = LayerNorm(width, "width", dtype)
        self.residual_scorer = FeedForward(4 * width, width, 1, dtype)
        self.residual_gate = weight((), (), dtype)
        self.prior_logit_scale = weight((), (), dtype)
        self.joint_logit_scale = weight((), (), dtype)

    def __call__(
        self, hidden: Float[Array, "T D"], output_embedding: Float[Array, "V D"], schema: Schema
    ) -> Float[Array, " O"]:
        """Logits of the record's options, as float32; entries past ``schema.option_count`` are finite and meaningless.

        Args:
            hidden: the whole prompt after the backbone's final norm; rows past ``schema.length`` may hold anything.
            output_embedding: the table that makes the backbone's own logits; may be split over its vocabulary.
            schema: where questions and options stand.
        """
        seen = jnp.arange(hidden.shape[0]) < schema.length
        asked = jnp.arange(schema.question_start.shape[0]) < schema.question_count
        offered = jnp.arange(schema.option_start.shape[0]) < schema.option_count
        question_spans = _spans(schema.question_start, schema.question_end, asked, seen)
        option_spans = _spans(schema.option_start, schema.option_end, offered, seen)
        question_of = schema.option_question

        x = self.hidden_norm(_kept(hidden, seen).astype(self.arithmetic))
        memory = _linear("TD,DW->TW", x, self.memory_projection[...])
        last = x[schema.length - 1][None]
        question = _means(question_spans, x)
        lexical = _means(option_spans, _kept(_rows(output_embedding, schema.tokens), seen).astype(self.arithmetic))

        options = (
            _linear("OD,DW->OW", _means(option_spans, x), self.option_context_projection[...])
            + _linear("OD,DW->OW", lexical, self.option_lexical_projection[...])
            + _linear("QD,DW->QW", question, self.option_question_projection[...])[question_of]
        )
        options, _ = run(self.evidence, lambda layer, state, _: (layer(state, memory, seen), None), options, None)

        base = _linear("QD,DW->QW", question, self.question_projection[...])
        fit = (_dot(options, base[question_of]) * base.shape[-1] ** -0.5).astype(base.dtype)
        own = (jnp.arange(asked.shape[0])[:, None] == question_of[None]) & offered[None]
        shares = jax.nn.softmax(jnp.where(own, fit[None].astype(jnp.float32), MASKED), axis=-1).astype(base.dtype)
        summary = self.option_summary_norm(_product("QO,OW->QW", shares, options).astype(base.dtype))
        field = (
            base
            + summary
            + _linear("ZD,DW->ZW", last, self.global_projection[...])
            + _rows(self.type_embedding[...], schema.question_type).astype(base.dtype)
        )
        field, _ = run(self.decoder, lambda layer, state, _: (layer(state, asked, memory, seen), None), field, None)

        field, options = self.field_norm(field)[question_of], self.option_norm(options)
        prior = _cosine(lexical, (question + last)[question_of], eps=1e-12)
        joint = _cosine(field, options, eps=1e-8)
        pair = jnp.concatenate([field, options, field * options, jnp.abs(field - options)], axis=-1)
        residual = self.residual_scorer(pair)[:, 0]
        gate = jax.nn.sigmoid(self.residual_gate[...].astype(jnp.float32)).astype(residual.dtype)
        joint = _scale(self.joint_logit_scale, residual.dtype) * joint + residual
        logits = (_scale(self.prior_logit_scale, residual.dtype) * prior + gate * joint).astype(jnp.float32)
        if self.arithmetic == jnp.float32:
            return logits
        kind = jnp.finfo(self.arithmetic)  # by name: the compiler may leave out a conversion there and back
        return jax.lax.reduce_precision(logits, kind.nexp, kind.nmant)


def _product(equation: str, x: Array, w: Array) -> Array:
    """A product of x's element type, summed and returned in float32.

    One of float32 values is one that no accelerator may do in fewer bits: its own passes would be tf32 or bfloat16.
    """
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.einsum(equation, x, w.astype(x.dtype), precision=precision, preferred_element_type=jnp.float32)


def _linear(equation: str, x: Array, w: Array, bias: Array | None = None) -> Array:
    """A linear layer, rounded once."""
    out = _product(equation, x, w)
    return (out if bias is None else out + bias[None].astype(jnp.float32)).astype(x.dtype)


def _dot(a: Float[Array, "R D"], b: Float[Array, "R D"]) -> Float[Array, " R"]:
    """The float32 dot product of each pair of rows."""
    return jnp.sum(a.astype(jnp.float32) * b.astype(jnp.float32), axis=-1)


def _rows(table: Float[Array, "V D"], index: Int[Array, " R"]) -> Float[Array, "R D"]:
    """Rows of a table that all records share, whole on every device even where the table is split."""
    return table.at[index].get(mode="clip", out_sharding=P(None, None))


def _kept(rows: Float[Array, "T D"], seen: Bool[Array, " T"]) -> Float[Array, "T D"]:
    """The rows in float32, with zeros for those not seen: a product with a zero mask would keep their NaN."""
    return jnp.where(seen[:, None], rows.astype(jnp.float32), 0.0)


def _spans(
    start: Int[Array, " R"], end: Int[Array, " R"], live: Bool[Array, " R"], seen: Bool[Array, " T"]
) -> Bool[Array, "R T"]:
    position = jnp.arange(seen.shape[0])[None]
    return (position >= start[:, None]) & (position < end[:, None]) & live[:, None] & seen[None]


def _means(spans: Bool[Array, "R T"], x: Float[Array, "T D"]) -> Float[Array, "R D"]:
    """Mean of each span's rows; 0 for a span without any."""
    count = jnp.maximum(jnp.sum(spans, axis=-1, keepdims=True), 1)
    return (_product("RT,TD->RD", spans.astype(x.dtype), x) / count).astype(x.dtype)


def _cosine(a: Float[Array, "R D"], b: Float[Array, "R D"], eps: float) -> Float[Array, " R"]:
    """Cosine of each pair of rows, with norms of at least ``eps``; its gradient is finite at 0, where padding is."""
    return _dot(_unit(a, eps), _unit(b, eps)).astype(a.dtype)


def _unit(x: Float[Array, "R D"], eps: float) -> Float[Array, "R D"]:
    return (x * jax.lax.rsqrt(jnp.maximum(_dot(x, x)[:, None], eps * eps))).astype(x.dtype)


def _scale(logarithm: nnx.Param, dtype: jnp.dtype) -> Float[Array, ""]:
    return jnp.exp(jnp.minimum(logarithm[...].astype(jnp.float32), SCALE_CAP)).astype(dtype)
