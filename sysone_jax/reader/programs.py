"""The compiled programs: every function of the device, jitted once, at module level."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sysone_jax.backbones.decoder import MediaRows, PrefixState
from sysone_jax.backbones.qwen_vision import Tower
from sysone_jax.heads.answer_codes import AnswerCodes
from sysone_jax.heads.joint_schema import JointSchemaHead, Schema
from sysone_jax.heads.next_token import LabelLogits, label_logits
from sysone_jax.model import Model


class Row(NamedTuple):
    """One question's own part; ``[Q, ...]`` of them are read in one call."""

    tokens: Any  # [T] int32
    length: Any  # [] int32, true tokens
    labels: Any  # [O] int32, token ids of the labels, padded


class Tokens(NamedTuple):
    """A row that is read by what its last token comes to; ``[Q, ...]`` of them are read in one call."""

    tokens: Any  # [T] int32
    length: Any  # [] int32, true tokens


@jax.jit
def encode_frame(tower: Tower, patches: Float[Array, "P X"], grid: Int[Array, " 2"]) -> Float[Array, "T E"]:
    """The features of one frame of an image or a video, and meaningless rows after them."""
    return tower(patches, grid)


@functools.partial(jax.jit, static_argnames="room")
def prefill(
    model: Model, tokens: Int[Array, " S"], length: Int[Array, ""], room: int, media: MediaRows | None = None
) -> PrefixState:
    """The state that a prefix leaves behind, with room for ``room`` tokens."""
    return model.backbone.prefill(tokens, length, room, media)


@jax.jit
def read_labels(model: Model, state: PrefixState, rows: Row) -> LabelLogits:
    """The label logits of rows [Q, ...] that continue from one state; the state is not copied per row."""

    def one(row: Row) -> LabelLogits:
        hidden = model.backbone.read(state, row.tokens, row.length)
        return label_logits(model.backbone.logits(hidden), row.labels)

    return jax.vmap(one)(rows)


@jax.jit
def read_codes(model: Model, state: PrefixState, rows: Tokens) -> Float[Array, "Q C"]:
    """The logits of all answer codes after rows [Q, ...] that continue from one state."""
    return jax.vmap(lambda row: _codes(model)(model.backbone.read(state, row.tokens, row.length)))(rows)


@jax.jit
def encode_codes(model: Model, rows: Tokens, media: MediaRows | None = None) -> Float[Array, "Q C"]:
    """The logits of all answer codes after whole prompts [Q, ...], whose media, if any, are the same."""

    def one(row: Tokens) -> Array:
        return _codes(model)(model.backbone.encode(row.tokens, row.length, media)[row.length - 1])

    return jax.vmap(one)(rows)


def _codes(model: Model) -> AnswerCodes:
    assert isinstance(model.head, AnswerCodes)
    return model.head


@functools.partial(jax.jit, static_argnames="room")
def begin(
    model: Model, tokens: Int[Array, " S"], length: Int[Array, ""], room: int, media: MediaRows | None = None
) -> tuple[PrefixState, Float[Array, "R D"]]:
    """As ``prefill``, and the hidden states of the prefix, or of a whole prompt, with as much room."""
    state, hidden = model.backbone.begin(tokens, length, room, media)
    return state, jnp.pad(hidden, ((0, room - tokens.shape[0]), (0, 0)))


@jax.jit
def resume(model: Model, state: PrefixState, tokens: Int[Array, " T"], length: Int[Array, ""]) -> Float[Array, "T D"]:
    """Hidden states of tokens that continue from a state."""
    return model.backbone.resume(state, tokens, length)


@functools.partial(jax.jit, static_argnames="room")
def join(
    prefix: Float[Array, "R D"], suffix: Float[Array, "T D"], length: Int[Array, ""], room: int
) -> Float[Array, "S D"]:
    """The hidden states of a prefix of ``length`` tokens and of what continues it, as ``room`` rows of one prompt."""
    whole = jnp.zeros((max(room, prefix.shape[0] + suffix.shape[0]), prefix.shape[1]), prefix.dtype)
    whole = jax.lax.dynamic_update_slice(whole, prefix, (0, 0))
    return jax.lax.dynamic_update_slice(whole, suffix, (length, 0))[:room]


@jax.jit
def score_schema(model: Model, hidden: Float[Array, "S D"], schema: Schema) -> Float[Array, " O"]:
    """The joint head's logit of every option."""
    assert isinstance(model.head, JointSchemaHead)
    return model.head(hidden, model.backbone.output_embedding(), schema)
