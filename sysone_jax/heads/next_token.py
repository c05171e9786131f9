"""Reading labels off the next token: the head of models that answer with one token of their own vocabulary."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int


class LabelLogits(NamedTuple):
    """What an answer needs of a vocabulary's logits, all of it over the full vocabulary in float32."""

    labels: Any  # [O] float32
    total: Any  # [] float32, log of the vocabulary's summed exp: exp(labels - total) are the labels' probabilities
    top: Any  # [] int32, the most probable token, the lowest id among equals


def label_logits(logits: Float[Array, " V"], labels: Int[Array, " O"]) -> LabelLogits:
    """The logits at the label ids, with the log-sum-exp and arg-max of the vocabulary around them."""
    wide = logits.astype(jnp.float32)
    whole = jax.sharding.reshard(wide, P(None))
    return LabelLogits(
        labels=whole[labels],
        total=jax.nn.logsumexp(wide),
        top=jnp.argmax(whole).astype(jnp.int32),
    )
