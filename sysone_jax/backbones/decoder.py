"""The frame of a causal decoder: embedding, a stack of layers, a final norm, an output table.

A family supplies its ``Config`` and its ``Layer``; this file supplies the three ways a decision model runs one:

- ``prefill``: a prefix leaves its state behind, nothing else is computed;
- ``read``: a suffix continues from a prefix's state and gives the hidden state of its last token;
- ``encode``: one pass that gives the hidden state of every token.

Every sequence is right-padded to a static length, and the true length comes beside it. Causality makes padding inert
for the rows before it; the state keeps the true length so that later tokens never see the padding's keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from sysone_jax.ops.attention import KeyValues
from sysone_jax.ops.linear import product
from sysone_jax.ops.norms import rms_norm
from sysone_jax.ops.rope import Rope, rotary_tables
from sysone_jax.ops.stack import run, stack
from sysone_jax.sharding import weight


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrefixState:
    """What a prefix leaves behind: enough to continue from it, any number of times."""

    layers: Any  # KeyValues of every layer, in the stack's form: [L, K, S, H] each, or a list of L
    length: Any  # [] int32, true tokens; keys from here to S are padding


@runtime_checkable
class DecoderConfig(Protocol):
    """What the frame needs to know of a family's config."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def embed(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def tied(self) -> bool: ...
    @property
    def rope(self) -> Rope: ...


class Decoder(nnx.Module):
    """A causal decoder whose layers are ``layer(x, cos, sin, prefix, prefix_length) -> (x, KeyValues)``."""

    def __init__(self, config: DecoderConfig, layer: Callable[[], nnx.Module], dtype: jnp.dtype) -> None:
        self.config = config
        self.embed = weight((config.vocab_size, config.embed), ("vocab", "embed"), dtype)
        self.layers = stack(config.layers, layer)
        self.norm = weight((config.embed,), ("embed",), dtype)
        self.lm_head = None if config.tied else weight((config.vocab_size, config.embed), ("vocab", "embed"), dtype)

    def prefill(self, tokens: Int[Array, " S"], length: Int[Array, ""], capacity: int) -> PrefixState:
        """The state after ``length`` tokens, with room for ``capacity`` >= S of them (static)."""
        _, layers = self._run(tokens, jnp.int32(0), None)
        room = capacity - tokens.shape[0]
        padded = jax.tree.map(lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, room), (0, 0)]), layers)
        return PrefixState(layers=padded, length=length)

    def read(self, state: PrefixState, tokens: Int[Array, " T"], length: Int[Array, ""]) -> Float[Array, " D"]:
        """The last of ``length`` tokens that continue from ``state``, after the final norm."""
        x, _ = self._run(tokens, state.length, state)
        return rms_norm(x[length - 1], self.norm[...], self.config.norm_eps)

    def encode(self, tokens: Int[Array, " T"]) -> Float[Array, "T D"]:
        """Every token after the final norm, from an empty state."""
        x, _ = self._run(tokens, jnp.int32(0), None)
        return rms_norm(x, self.norm[...], self.config.norm_eps)

    def output_embedding(self) -> Float[Array, "V D"]:
        """The table that turns hidden states into logits: the input table when the two are tied."""
        return (self.embed if self.lm_head is None else self.lm_head)[...]

    def logits(self, hidden: Float[Array, " D"]) -> Float[Array, " V"]:
        """float32 logits over the full vocabulary.

        Computed as two equal rows: on CPU, a bfloat16 product with a single row first copies the table to float32.
        """
        rows = jnp.broadcast_to(hidden, (2, hidden.shape[0]))
        return product("RD,VD->RV", rows, self.output_embedding())[0]

    def _run(self, tokens: Int[Array, " T"], start: Int[Array, ""], prefix: PrefixState | None) -> tuple[Array, Any]:
        x = self.embed[...].at[tokens].get(out_sharding=P(None, None), mode="clip")
        cos, sin = rotary_tables(self.config.rope, start + jnp.arange(tokens.shape[0], dtype=jnp.int32))

        def step(layer: Any, x: Array, kept: KeyValues | None) -> tuple[Array, KeyValues]:
            return layer(x, cos, sin, kept, None if prefix is None else prefix.length)

        return run(self.layers, step, x, None if prefix is None else prefix.layers)
