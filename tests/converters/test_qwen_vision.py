"""Checkpoints with a vision tower: every tensor of it has its place, and its processor's files come along."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tiny_vision import write_vision

from converters.convert import convert
from sysone_jax.checkpoint import PROCESSOR, Manifest, read_manifest
from sysone_jax.errors import CheckpointError
from sysone_jax.loading import load_weights
from sysone_jax.model import Model
from sysone_jax.sharding import leaves, make_mesh

Tensors = dict[str, Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_vision(tmp_path / "hf")
    return tmp_path / "hf"


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def renamed(change: Callable[[str], str]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {change(name): tensor for name, tensor in tensors.items()}


def read(source: Path, target: Path) -> tuple[Manifest, Model]:
    manifest = convert(source, target, name="tiny")
    assert read_manifest(target) == manifest
    return manifest, load_weights(target, manifest, make_mesh((1, 1)), "float32")


def test_a_bare_backbones_names_are_the_same_tower(source: Path, tmp_path: Path) -> None:
    manifest, whole = read(source, tmp_path / "whole")
    assert manifest.vision and whole.tower is not None
    rewrite(source, renamed(lambda name: name.removeprefix("model.")))
    _, bare = read(source, tmp_path / "bare")
    paths, others = (dict(leaves(model)) for model in (whole, bare))
    assert all(np.array_equal(paths[path][...], others[path][...]) for path in paths | others)


def test_a_tensor_that_is_lost_strange_or_misshapen_is_named(source: Path, tmp_path: Path) -> None:
    def spoiled(tensors: Tensors) -> Tensors:
        del tensors["model.visual.blocks.1.attn.qkv.bias"]
        tensors["model.visual.extra.weight"] = tensors["model.visual.merger.norm.weight"].clone()
        tensors["model.visual.pos_embed.weight"] = tensors["model.visual.pos_embed.weight"][1:].clone()
        return tensors

    rewrite(source, spoiled)
    with pytest.raises(CheckpointError) as refused:
        convert(source, tmp_path / "never", name="tiny")
    for said in ("model.visual.blocks.1.attn.qkv.bias", "model.visual.extra.weight", "model.visual.pos_embed.weight"):
        assert said in str(refused.value)
    assert not (tmp_path / "never").exists()


def test_a_checkpoint_whose_tower_was_taken_out_is_one_for_text(source: Path, tmp_path: Path) -> None:
    rewrite(source, lambda tensors: {name: x for name, x in tensors.items() if ".visual." not in name})
    manifest, model = read(source, tmp_path / "ours")
    assert not manifest.vision and model.tower is None and not (tmp_path / "ours" / PROCESSOR).exists()


def test_a_tower_that_the_config_does_not_describe_is_left_out(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    del config["vision_config"]
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    manifest, model = read(source, tmp_path / "ours")
    assert not manifest.vision and model.tower is None


def test_the_processors_files_come_along_and_a_lost_one_is_missed(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ours", name="tiny")
    kept = tmp_path / "ours" / PROCESSOR
    names = ["preprocessor_config.json", "video_preprocessor_config.json"]
    assert sorted(path.name for path in kept.iterdir()) == names
    assert all((kept / name).read_bytes() == (source / name).read_bytes() for name in names)
    (kept / names[1]).unlink()
    with pytest.raises(CheckpointError, match=r"video_preprocessor_config\.json is missing or not whole"):
        read_manifest(tmp_path / "ours")


def test_a_processor_that_is_not_known_is_refused_by_its_key(source: Path, tmp_path: Path) -> None:
    path = source / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "do_sharpen": True}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="preprocessor_config.json has keys this version does not know: 'do_sha"):
        convert(source, tmp_path / "never", name="tiny")
    assert not (tmp_path / "never").exists()


def test_a_config_that_means_other_tokens(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["video_token_id"] += 1
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match="config.json: 'video_token_id' is"):
        convert(source, tmp_path / "never", name="tiny")
    assert not (tmp_path / "never").exists()


def test_a_towers_width_must_be_the_embeddings(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["vision_config"]["out_hidden_size"] = 48
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the vision tower gives features of 48 values; the embeddings have 44"):
        convert(source, tmp_path / "never", name="tiny")


def test_weights_are_rounded_with_the_backbones(source: Path, tmp_path: Path) -> None:
    manifest = convert(source, tmp_path / "half", name="tiny", dtype="bfloat16")
    model = load_weights(tmp_path / "half", manifest, make_mesh((1, 1)), "bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(model.tower)} == {"bfloat16"}
