"""One decision model's weights: a backbone and, for models that score options themselves, a head."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from sysone_jax import sharding
from sysone_jax.backbones import BARE_QWEN3_5, QWEN3_5, family, qwen_vision
from sysone_jax.backbones.decoder import Decoder
from sysone_jax.backbones.qwen_vision import Tower
from sysone_jax.checkpoint import Manifest
from sysone_jax.errors import CheckpointError
from sysone_jax.heads.answer_codes import FILE as DECISION_FILE
from sysone_jax.heads.answer_codes import AnswerCodes, AnswerCodesConfig
from sysone_jax.heads.joint_schema import JointHeadConfig, JointSchemaHead

Head = JointSchemaHead | AnswerCodes

HEAD_DTYPE = jnp.float32
"""Heads compute in float32 whatever the backbone's type: their cost is small and their logits are the answer. A joint
head may be asked for bfloat16, in which Clef was published."""


class Model(nnx.Module):
    """``backbone`` gives hidden states; ``head`` is None where the backbone's own next-token logits are read.

    ``tower`` turns frames into features that stand in the prompt; None for a model that reads text alone.
    """

    def __init__(self, backbone: Decoder, head: Head | None, tower: Tower | None = None) -> None:
        self.backbone = backbone
        self.head = head
        self.tower = tower


def backbone_config(architecture: str, config: dict[str, Any]) -> Any:
    """The family's frozen ``Config`` of a checkpoint's ``config.json``."""
    return family(architecture).Config.from_hf(config)


def tower_config(manifest: Manifest) -> qwen_vision.Config | None:
    """The vision tower's numbers; None for a model that reads text alone."""
    return qwen_vision.Config.from_hf(manifest.config["vision_config"]) if manifest.vision else None


def abstract_model(manifest: Manifest, dtype: jnp.dtype, head_dtype: DTypeLike = HEAD_DTYPE) -> Model:
    """The model a manifest describes, shapes in place of arrays; CheckpointError when its parts do not fit together.

    Args:
        manifest: of the converted folder.
        dtype: of the backbone and the tower.
        head_dtype: what a joint head is stored and computed in.
    """
    config = backbone_config(manifest.architecture, manifest.config)
    if manifest.decision is not None:
        config, head = _with_codes(manifest, config)
    elif manifest.architecture in BARE_QWEN3_5:
        raise CheckpointError(
            f"{manifest.architecture} has no output table, so it is read by a head of its own; the folder lacks its "
            f"{DECISION_FILE}"
        )
    else:
        head = None if manifest.head is None else _joint_head(manifest.head, config.embed, head_dtype)

    vision = tower_config(manifest)
    if vision is not None and vision.out != config.embed:
        raise CheckpointError(
            f"config.json: the vision tower gives features of {vision.out} values; the embeddings have {config.embed}"
        )

    def build() -> Model:
        return Model(
            family(manifest.architecture).build(config, dtype),
            None if head is None else head(),
            None if vision is None else qwen_vision.build(vision, dtype),
        )

    return sharding.abstract(build)


def _joint_head(numbers: dict[str, Any], embed: int, dtype: DTypeLike) -> Callable[[], JointSchemaHead]:
    config = JointHeadConfig.from_json(numbers)
    if config.hidden_size != embed:
        raise CheckpointError(
            f"joint_head_config.json: the head reads hidden states of {config.hidden_size} values; "
            f"the backbone's have {embed}"
        )
    return lambda: JointSchemaHead(config, dtype, arithmetic=dtype)


def _with_codes(manifest: Manifest, config: Any) -> tuple[Any, Callable[[], AnswerCodes]]:
    """The backbone as the codes' config has it run, and the readout."""
    assert manifest.decision is not None
    codes = AnswerCodesConfig.from_json(manifest.decision)
    if manifest.architecture not in QWEN3_5:
        raise CheckpointError(
            f"{DECISION_FILE} beside a {manifest.architecture} is not supported; answer codes are read from "
            f"{', '.join(QWEN3_5)}"
        )
    if manifest.architecture in BARE_QWEN3_5:  # whatever their config says: there is no table to be tied or not
        config = dataclasses.replace(config, tied=True)
    config = dataclasses.replace(config, causal=codes.causal)
    return config, lambda: AnswerCodes(codes, config.embed, HEAD_DTYPE)
