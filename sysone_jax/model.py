"""One decision model's weights: a backbone and, for models that score options themselves, a head."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from sysone_jax import sharding
from sysone_jax.backbones import family
from sysone_jax.backbones.decoder import Decoder
from sysone_jax.checkpoint import Manifest
from sysone_jax.errors import CheckpointError
from sysone_jax.heads.joint_schema import JointHeadConfig, JointSchemaHead

HEAD_DTYPE = jnp.float32
"""Heads compute in float32 whatever the backbone's type: their cost is small and their logits are the answer."""


class Model(nnx.Module):
    """``backbone`` gives hidden states; ``head`` is None where the backbone's own next-token logits are read."""

    def __init__(self, backbone: Decoder, head: JointSchemaHead | None) -> None:
        self.backbone = backbone
        self.head = head


def backbone_config(architecture: str, config: dict[str, Any]) -> Any:
    """The family's frozen ``Config`` of a checkpoint's ``config.json``."""
    return family(architecture).Config.from_hf(config)


def abstract_model(manifest: Manifest, dtype: jnp.dtype) -> Model:
    """The model a manifest describes, shapes in place of arrays; CheckpointError when its parts do not fit together."""
    config = backbone_config(manifest.architecture, manifest.config)
    head = None if manifest.head is None else JointHeadConfig.from_json(manifest.head)
    if head is not None and head.hidden_size != config.embed:
        raise CheckpointError(
            f"joint_head_config.json: the head reads hidden states of {head.hidden_size} values; "
            f"the backbone's have {config.embed}"
        )

    def build() -> Model:
        backbone = family(manifest.architecture).build(config, dtype)
        return Model(backbone, None if head is None else JointSchemaHead(head, HEAD_DTYPE))

    return sharding.abstract(build)
