"""Decision 3.0's readout: one logit for each of 255 answer codes, from the hidden state of the prompt's last token.

The readout is a table of its own, not rows of an embedding: row k belongs to code k, whatever token that code is. A
question's probabilities are a softmax over its own codes alone, the first ones, at the checkpoint's temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from sysone_jax.errors import CheckpointError
from sysone_jax.sharding import weight

FILE = "decision_config.json"
CODES = 255
"""Codes of every release, and so the most options of a question."""

AttentionMode = Literal["causal", "noncausal_full_attention"]
ReadoutDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class AnswerCodesConfig:
    """What a checkpoint's ``decision_config.json`` decides.

    Attributes:
        codes: [255] distinct texts, in the order of the readout's rows.
        token_ids: [255] the token that each code is where a reply begins.
        temperature: that logits are divided by before the softmax.
        causal: whether full-attention layers see earlier tokens only, or the whole prompt.
        max_length: most tokens of a prompt; None where the backbone alone limits it.
        readout_dtype: what hidden states, readout and logits are rounded to: ``float32`` or ``bfloat16``.
    """

    codes: tuple[str, ...]
    token_ids: tuple[int, ...]
    temperature: float
    causal: bool
    max_length: int | None
    readout_dtype: ReadoutDtype

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> AnswerCodesConfig:
        """CheckpointError names a key that is missing, unknown, or set to what this version does not read."""
        reader = _Reader(mapping)
        version = reader.take("format_version", None)
        if type(version) is not int or version != 1:
            raise CheckpointError(f"{FILE}: format_version {_shown(version)} is not supported; this version reads 1")
        reader.one_of("format_id", ("d3-code-readout-v1",))
        if (prompt := reader.take("prompt", None)) != "d3":
            raise CheckpointError(f"{FILE}: unknown decision prompt {_shown(prompt)}; this version writes 'd3'")
        if (pooling := reader.take("pooling", "last")) != "last":
            raise CheckpointError(f"{FILE}: unknown pooling {_shown(pooling)}; this version reads the 'last' token")
        mode = reader.one_of("attention_mode", get_args(AttentionMode))
        readout_dtype = reader.one_of("readout_dtype", get_args(ReadoutDtype))
        for key in ("base_model", "revision"):
            if not isinstance(value := reader.take(key, None), str | None):
                raise CheckpointError(f"{FILE}: {key} must be text, not {_shown(value)}")
        codes = reader.listed("codes", "texts", lambda value: type(value) is str and value != "")
        token_ids = reader.listed("token_ids", "token ids", lambda value: type(value) is int and value >= 0)
        temperature = reader.take("temperature", None)
        if type(temperature) not in (int, float) or not 1e-6 <= temperature <= 1e6:
            raise CheckpointError(f"{FILE}: temperature must be a positive number, not {_shown(temperature)}")
        longest = reader.take("max_length", None)
        if longest is not None and (type(longest) is not int or longest < 1):
            raise CheckpointError(f"{FILE}: max_length must be a positive whole number or null, not {_shown(longest)}")
        reader.finish()
        return cls(
            codes=codes,
            token_ids=token_ids,
            temperature=float(temperature),
            causal=mode == "causal",
            max_length=longest,
            readout_dtype=readout_dtype,
        )


class AnswerCodes(nnx.Module):
    """``[255, D]``, computed in float32 at the highest precision unless the checkpoint reads in bfloat16."""

    def __init__(self, config: AnswerCodesConfig, embed: int, dtype: Any = jnp.float32) -> None:
        self._kind = config.readout_dtype
        self.weight = weight((len(config.codes), embed), ("codes", "embed"), dtype)

    def __call__(self, hidden: Float[Array, " D"]) -> Float[Array, " C"]:
        """float32 logits of every code; those past a question's options belong to no answer."""
        kind = jnp.dtype(self._kind)
        logits = jnp.einsum(
            "D,CD->C",
            hidden.astype(kind),
            self.weight[...].astype(kind),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return logits.astype(kind).astype(jnp.float32)


class _Reader:
    """Takes keys out of the file one by one; ``finish`` refuses what nobody took. A null is an absent key."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._left = {key: value for key, value in mapping.items() if value is not None}

    def take(self, key: str, default: Any) -> Any:
        return self._left.pop(key, default)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> Any:
        """The value of ``key``, the first of ``allowed`` where it is absent."""
        value = self.take(key, allowed[0])
        if value not in allowed:
            raise CheckpointError(
                f"{FILE}: unknown {key} {_shown(value)}; this version supports {', '.join(map(repr, allowed))}"
            )
        return value

    def listed(self, key: str, said: str, holds: Callable[[Any], bool]) -> tuple[Any, ...]:
        values = self.take(key, None)
        if not isinstance(values, list) or not all(map(holds, values)) or not len(values) == len(set(values)) == CODES:
            raise CheckpointError(f"{FILE}: {key} must be a list of {CODES} distinct {said}")
        return tuple(values)

    def finish(self) -> None:
        if self._left:
            unknown = ", ".join(map(repr, sorted(self._left)))
            raise CheckpointError(f"{FILE} has keys this version does not know: {unknown}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
