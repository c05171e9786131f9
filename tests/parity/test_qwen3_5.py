"""Qwen3.5's text network, dense and mixture of experts, against transformers in float32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import devices_of_hybrids
import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from safetensors.torch import load_file, save_file
from tiny_qwen3_5 import DENSE, TEXT, write_hybrid
from transformers import (
    Qwen3_5TextConfig,
)

import sysone_jax
from converters.convert import convert
from sysone_jax.checkpoint import read_manifest
from sysone_jax.errors import CheckpointError
from sysone_jax.loading import load_weights
from sysone_jax.model import Model, backbone_config
from sysone_jax.reader.rows import pad_tokens
from sysone_jax.sharding import make_mesh

ROOM = 192
LOGITS = 5e-5
"""Of the largest reference logit; transformers itself is 1e-6 to 2e-5 from float64."""

PADDING = 5e-6


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    mesh = make_mesh((1, 1))
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture(scope="module")
def load(mesh: Mesh) -> Callable[..., Model]:
    def load(source: Path, target: Path, on: Mesh = mesh, dtype: str = "float32") -> Model:
        if not target.exists():
            convert(source, target, name="tiny")
        return load_weights(target, read_manifest(target), on, dtype)

    return load


@jax.jit
def full(model: Model, tokens: jax.Array, length: jax.Array) -> jax.Array:
    return jax.vmap(model.backbone.logits)(model.backbone.encode(tokens, length))


@jax.jit
def last(model: Model, tokens: jax.Array, length: jax.Array) -> jax.Array:
    return model.backbone.logits(model.backbone.encode(tokens, length)[length - 1])


@jax.jit
def forked(model: Model, prefix: jax.Array, split: jax.Array, suffixes: jax.Array, lengths: jax.Array) -> jax.Array:
    state = model.backbone.prefill(prefix, split, ROOM)
    return jax.vmap(lambda tokens, length: model.backbone.logits(model.backbone.read(state, tokens, length)))(
        suffixes, lengths
    )


def theirs(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens[None].astype(np.int64)), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize(
    "kind, pattern, seed, tied",
    [("dense", "regular", 0, False), ("dense", "pruned", 1, True), ("experts", "regular", 2, False)]
    + [("experts", "pruned", 3, False), ("dense", "regular", 4, True), ("experts", "regular", 5, True)],
)
def test_logits_and_forks_match_torch(
    kind: str, pattern: str, seed: int, tied: bool, load: Callable[..., Model], tmp_path: Path
) -> None:
    reference = write_hybrid(tmp_path / "hf", kind, pattern, seed, tied)
    model = load(tmp_path / "hf", tmp_path / "ours")
    for length in (1, 2, 5, 63, 64, 65, 150):
        tokens = np.random.default_rng(length).integers(0, 400, length, dtype=np.int32)
        wanted = theirs(reference, tokens)
        got = np.asarray(full(model, pad_tokens(tokens, ROOM), np.int32(length)))[:length]
        assert np.abs(got - wanted).max() <= LOGITS * np.abs(wanted).max()
        for split in {1, length // 2, length - 3} - {0, length}:
            if not 0 < split < length:
                continue
            rest = tokens[split:]
            suffixes = np.stack([pad_tokens(rest, ROOM), pad_tokens(rest[:1], ROOM)])
            lengths = np.array([len(rest), 1], np.int32)
            whole, first = forked(model, pad_tokens(tokens[:split], ROOM), np.int32(split), suffixes, lengths)
            assert np.abs(whole - wanted[-1]).max() <= LOGITS * np.abs(wanted).max()
            assert np.abs(first - wanted[split]).max() <= LOGITS * np.abs(wanted).max()


def test_padding_leaves_no_trace_in_a_state(load: Callable[..., Model], tmp_path: Path) -> None:
    write_hybrid(tmp_path / "hf", "dense", "pruned", 6)
    model = load(tmp_path / "hf", tmp_path / "ours")
    tokens = np.random.default_rng(0).integers(0, 400, 40, dtype=np.int32)
    suffix = pad_tokens(tokens[33:], ROOM)[None]
    answers = []
    for filler in (0, 7, 399):
        prefix = np.full(ROOM, filler, np.int32)
        prefix[:33] = tokens[:33]
        answers.append(np.asarray(forked(model, prefix, np.int32(33), suffix, np.array([7], np.int32))))
    assert all(np.array_equal(answers[0], other) for other in answers[1:])


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_no_padding_moves_the_last_logits(kind: str, load: Callable[..., Model], tmp_path: Path) -> None:
    """Every length of two buckets, one within a chunk of the delta rule and one of two, against one pass that fills the
    larger and has no padding. Deeper random models differ by more between buckets, and from float64 by more still."""
    write_hybrid(tmp_path / "hf", kind, "pruned", 10)
    model = load(tmp_path / "hf", tmp_path / "ours")
    tokens = np.random.default_rng(0).integers(0, 400, 128, dtype=np.int32)
    wanted = np.asarray(full(model, tokens, np.int32(128)))
    for bucket in (32, 128):
        for length in range(1, bucket + 1):
            got = last(model, pad_tokens(tokens[:length], bucket), np.int32(length))
            assert np.abs(got - wanted[length - 1]).max() <= PADDING * np.abs(wanted).max(), (bucket, length)


def test_experts_map_from_one_set_of_matrices_an_expert(load: Callable[..., Model], tmp_path: Path) -> None:
    write_hybrid(tmp_path / "hf", "experts", "pruned", 7)
    fused = load(tmp_path / "hf", tmp_path / "fused")
    tensors = load_file(tmp_path / "hf/model.safetensors")
    split: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2)
                stem = name.replace("gate_up_proj", str(expert))
                split[f"{stem}.gate_proj.weight"], split[f"{stem}.up_proj.weight"] = gate.clone(), up.clone()
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(tensor):
                split[name.replace("down_proj", f"{expert}.down_proj.weight")] = matrix.clone()
        else:
            split[name] = tensor
    assert any("experts.7.up_proj" in name for name in split)
    save_file(split, tmp_path / "hf/model.safetensors")
    apart = load(tmp_path / "hf", tmp_path / "apart")
    assert all(np.array_equal(one, other) for one, other in zip(*map(jax.tree.leaves, (fused, apart)), strict=True))
    del split[next(name for name in split if "experts.5.gate_proj" in name)]
    save_file(split, tmp_path / "hf/model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensor .*experts\.5\.gate_proj\.weight"):
        convert(tmp_path / "hf", tmp_path / "never", name="tiny")


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("dense", {}), ("experts", {}), ("experts", {"num_experts": 7})],
    ids=["heads and width", "whole experts", "the experts' width"],
)
def test_two_devices_give_the_answers_of_one(
    kind: str, numbers: dict[str, int], load: Callable[..., Model], tmp_path: Path
) -> None:
    write_hybrid(tmp_path / "hf", kind, "regular", 8, **numbers)
    tokens = np.random.default_rng(0).integers(0, 400, 70, dtype=np.int32)
    padded, length = pad_tokens(tokens, ROOM), np.int32(70)
    one = np.asarray(full(load(tmp_path / "hf", tmp_path / "ours"), padded, length))[:70]
    several = make_mesh((1, 2))
    split = load(tmp_path / "hf", tmp_path / "ours", on=several)
    with jax.set_mesh(several):
        assert np.abs(np.asarray(full(split, padded, length))[:70] - one).max() <= 1e-5 * np.abs(one).max()


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_eight_devices_give_the_answers_of_one(kind: str, tmp_path: Path) -> None:
    """Heads, delta heads and width an eighth each; experts one on each device."""
    split = {"num_attention_heads": 16, "num_key_value_heads": 8, "linear_num_key_heads": 8}
    numbers = {**split, "linear_num_value_heads": 16, "intermediate_size": 80}
    write_hybrid(tmp_path / "hf", kind, "shortest", 8, **numbers)
    convert(tmp_path / "hf", tmp_path / "ours", name="tiny")
    done = subprocess.run(
        [sys.executable, str(Path(devices_of_hybrids.__file__)), str(tmp_path / "ours")],
        env=os.environ | devices_of_hybrids.ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    apart = json.loads(done.stdout)
    assert set(apart) == {"1x8", "2x4", "8x1"} and max(apart.values()) <= 1e-5, apart


def test_a_decision_is_read_off_a_hybrid_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path / "cache"))
    write_hybrid(tmp_path / "hf", "experts", "pruned", 9)
    questions = {name: {"type": "noul", "instructions": f"Is it {name}?"} for name in ("late", "angry")}
    with sysone_jax.load(tmp_path / "hf", max_model_len=512) as model:
        both = model.decide(state="The parcel is late.", questions=questions)
        alone = model.decide(state="The parcel is late.", questions={"late": questions["late"]})
    assert alone.reads["late"] == both.reads["late"]


@pytest.mark.parametrize(
    "changed",
    [{"layer_types": ["sliding"]}, {"attn_output_gate": False}, {"linear_num_key_heads": 4}, {"novel_key": 1}]
    + [{"rope_parameters": {"mrope_interleaved": False}}, {"rope_parameters": {"mrope_section": [1, 1, 1]}}],
)
def test_a_config_that_is_not_computed_here_is_refused(changed: dict[str, Any]) -> None:
    config = json.loads(Qwen3_5TextConfig(**TEXT, **DENSE, num_hidden_layers=4).to_json_string(use_diff=False))
    backbone_config("Qwen3_5ForCausalLM", config)
    with pytest.raises(CheckpointError, match="config.json"):
        backbone_config("Qwen3_5ForCausalLM", {**config, **changed})
