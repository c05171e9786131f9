"""The tables against the released models' real sizes: every tensor's name and shape, and the published totals.

Nothing is allocated: transformers builds its model on the meta device, and ours is abstract.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from converters.convert import TABLES
from converters.convert import assigned as assigned_weights
from sysone_jax import sharding
from sysone_jax.checkpoint import Manifest
from sysone_jax.heads.joint_schema import JointHeadConfig, JointSchemaHead
from sysone_jax.model import abstract_model

CONFIGS = Path(__file__).parents[1] / "data" / "real_configs"
PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3.5-0.8b": 873_438_784,
    "qwen3.5-2b": 2_274_069_824,
    "qwen3.5-4b": 4_659_865_088,
    "qwen3.5-9b": 9_653_104_368,
    "qwen3.8-27b": 27_781_427_952,
    "qwen3.5-35b-a3b": None,  # no total was published that could be checked
}
"""Parameters of the released files; Qwen3.5's hold one layer of multi-token prediction (MTP) that no read runs."""


class Shapes:
    """A checkpoint of names and shapes alone."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        raise AssertionError(f"{name} is read")


def config_of(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


def meta_tensors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What transformers' own class of this config holds; a tied table is named once."""
    model_class = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = model_class._from_config(model_class.config_class(**config))
    tensors = dict(model.state_dict())
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    return tensors


def mtp_parameters(config: dict[str, Any]) -> int:
    """Of one layer of multi-token prediction: a full-attention layer, the joining of hidden state and embedding (2D to
    D), and three norms (of both before they are joined, and at the end)."""
    if "text_config" not in config:
        return 0
    text = config["text_config"]
    embed, head = text["hidden_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    attention = embed * (2 * queries + 2 * keys) + queries * embed + 2 * head
    return attention + 3 * embed * text["intermediate_size"] + 2 * embed + 2 * embed * embed + 3 * embed


def count(module: Any) -> int:
    return sum(math.prod(variable.shape) for _, variable in sharding.leaves(module))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_of_a_released_size_is_covered_once(name: str):
    config = config_of(name)
    manifest = Manifest(config["architectures"][0], config, None, "real", "0", vision="vision_config" in config)
    tensors = meta_tensors(config)
    assigned_weights(manifest, Shapes(tensors), None, None)  # checks both sides of every table before it reads

    total = sum(tensor.numel() for tensor in tensors.values())
    assert count(abstract_model(manifest, np.dtype("float32"))) == total
    if PUBLISHED[name] is not None:
        assert total + mtp_parameters(config) == PUBLISHED[name]


def test_the_architectures_of_the_released_sizes_are_those_with_tables():
    assert {config_of(name)["architectures"][0] for name in PUBLISHED} <= set(TABLES)


@pytest.mark.parametrize(("hidden", "published"), [(5120, 128_056_324), (4096, 121_762_820)])
def test_clefs_heads_have_the_published_sizes(hidden: int, published: int):
    config = JointHeadConfig(hidden_size=hidden, width=1024, routing_layers=2, layers=4, heads=16, feedforward=4096)
    assert count(sharding.abstract(lambda: JointSchemaHead(config, np.dtype("float32")))) == published
