"""The frame of a causal decoder: embedding, a stack of layers, a final norm, an output table.

A family supplies its ``Config`` and its ``Layer``; this file supplies the ways a decision model runs one:

- ``prefill``: a prefix leaves its state behind, nothing else is computed;
- ``read``: a suffix continues from a prefix's state and gives the hidden state of its last token;
- ``encode``: one pass that gives the hidden state of every token;
- ``begin`` and ``resume``: the same in two passes, the state of the first kept for any number of the second.

A decoder whose attention reads both ways has ``encode`` alone: what a token comes to depends on the tokens after it,
so a prefix has no state that questions could share.

Every sequence is right-padded to a static length, and the true length comes beside it. Causality makes padding inert
for the rows before it; the state keeps the true length so that later tokens never see the padding's keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from sysone_jax.ops.attention import KeyValues
from sysone_jax.ops.linear import product
from sysone_jax.ops.stack import run, stack
from sysone_jax.sharding import weight


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrefixState:
    """What a prefix leaves behind: enough to continue from it, any number of times."""

    layers: Any  # every layer's own state, in the stack's form: a leading layer axis, or a list
    length: Any  # [] int32, true tokens; keys from here on are padding
    position: Any  # [] int32, of the next token; not the length once media were read


class MediaRows(NamedTuple):
    """Where media stand in a padded sequence, and what stands there instead of a token's embedding."""

    features: Any  # [T, D] of the tower, at the rows of its tokens; zeros elsewhere
    present: Any  # [T] bool, the rows that hold features
    positions: Any  # [3, T] int32: time, row, column of every token, text included
    next_position: Any  # [] int32, of the token after the last true one


class Context(NamedTuple):
    """What every layer of one pass sees beside its input."""

    cos: Float[Array, "T 1 R"]
    sin: Float[Array, "T 1 R"]
    length: Int[Array, ""]
    """True tokens of this pass; rows from here on are padding."""
    prefix_length: Int[Array, ""] | None


@runtime_checkable
class DecoderConfig(Protocol):
    """What the frame needs to know of a family's config."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def embed(self) -> int: ...
    @property
    def stacked(self) -> int: ...  # periods of layers
    @property
    def period(self) -> int: ...  # layers in one
    @property
    def norm_eps(self) -> float: ...
    @property
    def tied(self) -> bool: ...


Norm = Callable[[Array, Array, float], Array]
RotaryTables = Callable[[Any, Array], tuple[Array, Array]]
"""(config, positions [3, T]: time, row, column) -> cos and sin [T, 1, R]."""


class Decoder(nnx.Module):
    """A causal decoder over a stack of layers, each called as ``layer(x, context, kept) -> (x, state)``.

    ``kept`` is the state that the same layer left behind for the prefix, or None at the start. ``causal`` says whether
    every layer sees earlier tokens only.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layer: Callable[[], nnx.Module],
        dtype: jnp.dtype,
        *,
        norm: Norm,
        rotary: RotaryTables,
        causal: bool = True,
    ) -> None:
        self.config = config
        self.causal = causal
        self._norm = norm
        self._rotary = rotary
        self.embed = weight((config.vocab_size, config.embed), ("vocab", "embed"), dtype)
        self.layers = stack(config.stacked, layer)
        self.norm = weight((config.embed,), ("embed",), dtype)
        self.lm_head = None if config.tied else weight((config.vocab_size, config.embed), ("vocab", "embed"), dtype)

    def prefill(
        self, tokens: Int[Array, " S"], length: Int[Array, ""], room: int, media: MediaRows | None = None
    ) -> PrefixState:
        """The state after ``length`` tokens, with ``room`` >= S (static) for their keys."""
        return self.begin(tokens, length, room, media)[0]

    def begin(
        self, tokens: Int[Array, " S"], length: Int[Array, ""], room: int, media: MediaRows | None = None
    ) -> tuple[PrefixState, Float[Array, "S D"]]:
        """As ``prefill``, and every token after the final norm."""
        self._refuse_both_ways()
        x, layers = self._run(tokens, length, None, media)
        more = room - tokens.shape[0]

        def grow(state: Any) -> Any:
            if not isinstance(state, KeyValues):
                return state
            return jax.tree.map(lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, more), (0, 0)]), state)

        padded = jax.tree.map(grow, layers, is_leaf=lambda state: isinstance(state, KeyValues))
        state = PrefixState(padded, length, position=length if media is None else media.next_position)
        return state, self._norm(x, self.norm[...], self.config.norm_eps)

    def read(self, state: PrefixState, tokens: Int[Array, " T"], length: Int[Array, ""]) -> Float[Array, " D"]:
        """The last of ``length`` tokens that continue from ``state``, after the final norm."""
        self._refuse_both_ways()
        x, _ = self._run(tokens, length, state)
        return self._norm(x[length - 1], self.norm[...], self.config.norm_eps)

    def resume(self, state: PrefixState, tokens: Int[Array, " T"], length: Int[Array, ""]) -> Float[Array, "T D"]:
        """Every one of ``length`` tokens that continue from ``state``, after the final norm."""
        self._refuse_both_ways()
        x, _ = self._run(tokens, length, state)
        return self._norm(x, self.norm[...], self.config.norm_eps)

    def encode(
        self, tokens: Int[Array, " T"], length: Int[Array, ""], media: MediaRows | None = None
    ) -> Float[Array, "T D"]:
        """Every token after the final norm, from an empty state."""
        x, _ = self._run(tokens, length, None, media)
        return self._norm(x, self.norm[...], self.config.norm_eps)

    def output_embedding(self) -> Float[Array, "V D"]:
        """The table that turns hidden states into logits: the input table when the two are tied."""
        return (self.embed if self.lm_head is None else self.lm_head)[...]

    def logits(self, hidden: Float[Array, " D"]) -> Float[Array, " V"]:
        """float32 logits over the full vocabulary.

        Computed as two equal rows: on CPU, a bfloat16 product with a single row first copies the table to float32.
        """
        rows = jnp.broadcast_to(hidden, (2, hidden.shape[0]))
        return product("RD,VD->RV", rows, self.output_embedding())[0]

    def _refuse_both_ways(self) -> None:
        if not self.causal:
            raise ValueError("a decoder that reads both ways leaves no prefix state; encode whole prompts")

    def _run(
        self,
        tokens: Int[Array, " T"],
        length: Int[Array, ""],
        prefix: PrefixState | None,
        media: MediaRows | None = None,
    ) -> tuple[Array, Any]:
        x = self.embed[...].at[tokens].get(out_sharding=P(None, None), mode="clip")
        if media is None:
            start = jnp.int32(0) if prefix is None else prefix.position
            along = start + jnp.arange(tokens.shape[0], dtype=jnp.int32)
            positions = jnp.broadcast_to(along[None], (3, tokens.shape[0]))
        else:
            x = jnp.where(media.present[:, None], media.features.astype(x.dtype), x)
            positions = media.positions
        cos, sin = self._rotary(self.config, positions)
        context = Context(cos, sin, length, None if prefix is None else prefix.length)

        def step(layer: Any, x: Array, kept: Any) -> tuple[Array, Any]:
            return layer(x, context, kept)

        return run(self.layers, step, x, None if prefix is None else prefix.layers)
