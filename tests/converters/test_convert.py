"""A folder becomes a converted model, or one line says what is wrong with it."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from converters.convert import convert, revision
from sysone_jax import checkpoint
from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.loading import load_weights
from sysone_jax.model import Model
from sysone_jax.sharding import leaves, make_mesh

Copy = Callable[..., Path]


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of ``config.json``; a key set to ``...`` is taken out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Set tensors of the one weight file; a tensor set to None is taken out."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def converted(folder: Path, dtype: str = "float32", **options: Any) -> tuple[checkpoint.Manifest, Model]:
    manifest = convert(folder, folder / "ours", name="tiny", **options)
    assert checkpoint.read_manifest(folder / "ours") == manifest
    return manifest, load_weights(folder / "ours", manifest, make_mesh((1, 1)), dtype)


def refusal(folder: Path, error: type[Exception] = CheckpointError) -> str:
    with pytest.raises(error) as caught:
        convert(folder, folder / "ours", name="tiny")
    assert type(caught.value) is error
    told = str(caught.value)
    assert told.isprintable() and len(told) < 2500
    assert sorted(path.name for path in folder.iterdir() if "ours" in path.name) == [], "nothing is left behind"
    return told


# ------------------------------------------------------------------------------- what is converted


def test_the_manifest_says_where_a_model_came_from(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy("LlamaForCausalLM", head=True)
    manifest, _ = converted(folder)
    assert manifest.architecture == "LlamaForCausalLM"
    assert manifest.config == json.loads((folder / "config.json").read_text())
    assert manifest.head == json.loads((folder / "joint_head_config.json").read_text())
    assert (manifest.source, manifest.format) == ("tiny", checkpoint.FORMAT)
    assert manifest.source_revision == revision(folder)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_every_value_is_kept(checkpoint_copy: Copy, architecture: str) -> None:
    folder = checkpoint_copy(architecture, shards=3)
    _, model = converted(folder)
    ours = np.sort(np.concatenate([np.ravel(leaf[...]) for _, leaf in leaves(model)]))
    theirs = [tensor.numpy().ravel() for path in folder.glob("*.safetensors") for tensor in load_file(path).values()]
    np.testing.assert_array_equal(ours, np.sort(np.concatenate(theirs)))


def test_one_file_and_many_are_the_same_model(checkpoint_copy: Copy, originals: Copy, tmp_path: Path) -> None:
    _, many = converted(checkpoint_copy(shards=4))
    convert(originals(), tmp_path / "one", name="tiny")
    one = load_weights(tmp_path / "one", checkpoint.read_manifest(tmp_path / "one"), make_mesh((1, 1)), "float32")
    for (path, ours), (_, theirs) in zip(leaves(many), leaves(one), strict=True):
        np.testing.assert_array_equal(ours[...], theirs[...], err_msg=path)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_every_float_type_is_read(checkpoint_copy: Copy, dtype: str) -> None:
    folder = checkpoint_copy()
    wide = load_file(folder / "model.safetensors")
    edit_weights(folder, **{name: tensor.to(getattr(torch, dtype)) for name, tensor in wide.items()})
    _, model = converted(folder)
    rounded = wide["model.norm.weight"].to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(model.backbone.norm[...], rounded)
    stored = load_weights(folder / "ours", checkpoint.read_manifest(folder / "ours"), make_mesh((1, 1)), "float32")
    np.testing.assert_array_equal(stored.backbone.norm[...], rounded)


def test_types_may_be_mixed(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    name = "model.layers.1.mlp.up_proj.weight"
    wide = load_file(folder / "model.safetensors")
    edit_weights(folder, **{key: tensor.bfloat16() for key, tensor in wide.items() if key != name})
    _, model = converted(folder)
    np.testing.assert_array_equal(model.backbone.layers.up[...][1], wide[name].numpy().T)


def test_the_backbone_can_be_rounded_and_the_head_stays_wide(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(head=True)
    manifest, model = converted(folder, dtype="bfloat16")
    assert model.backbone.norm[...].dtype == jnp.bfloat16 and model.head.hidden_norm.weight[...].dtype == jnp.float32
    narrow = folder.parent / "narrow"
    convert(folder, narrow, name="tiny", dtype="bfloat16")
    source = load_file(folder / "model.safetensors")["model.norm.weight"].numpy()
    loaded = load_weights(narrow, manifest, make_mesh((1, 1)), "float32")
    np.testing.assert_array_equal(loaded.backbone.norm[...], source.astype(ml_dtypes.bfloat16).astype(np.float32))
    head = load_file(folder / "joint_head.safetensors")["hidden_norm.weight"].numpy()
    np.testing.assert_array_equal(loaded.head.hidden_norm.weight[...], head)
    with pytest.raises(InputError, match="dtype: must be float32 or bfloat16, not 'int8'"):
        convert(folder, folder.parent / "never", name="tiny", dtype="int8")


@pytest.mark.parametrize(("value", "dtype"), [(math.nan, "float32"), (-math.inf, "bfloat16"), (1e300, "float64")])
def test_weights_that_are_no_numbers(checkpoint_copy: Copy, value: float, dtype: str) -> None:
    folder = checkpoint_copy()
    name = "model.layers.1.mlp.up_proj.weight"
    wide = load_file(folder / "model.safetensors")[name].to(getattr(torch, dtype))
    wide[3, 2] = value
    edit_weights(folder, **{name: wide})
    told = refusal(folder)
    assert told.startswith(f"{folder}: backbone/layers/up holds NaN, or values beyond ")


# ------------------------------------------------------------------------------- tied tables


def test_a_tied_model_whose_file_holds_the_table_twice(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(tied=True)
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, **{"lm_head.weight": table.clone()})
    manifest, model = converted(folder)
    assert manifest.config["tie_word_embeddings"] is True and model.backbone.lm_head is None


@pytest.mark.parametrize("change", [lambda table: table + 1, lambda table: table.bfloat16()])
def test_a_tied_model_whose_file_holds_another_table(checkpoint_copy: Copy, change: Callable[..., Any]) -> None:
    folder = checkpoint_copy(tied=True)
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, **{"lm_head.weight": change(table)})
    manifest, model = converted(folder)
    assert manifest.config["tie_word_embeddings"] is False
    np.testing.assert_array_equal(model.backbone.output_embedding(), change(table).float().numpy())
    np.testing.assert_array_equal(model.backbone.embed[...], table.numpy())


def test_an_untied_model_without_its_table(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    edit_weights(folder, **{"lm_head.weight": None})
    assert refusal(folder) == f"{folder}: the checkpoint does not fit its config: missing tensor lm_head.weight"


# ------------------------------------------------------------------------------- what is refused


def test_faults_of_the_weights_are_told_together(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    edit_weights(
        folder,
        **{
            "model.layers.3.mlp.up_proj.weight": torch.ones(2, 2),
            "model.layers.1.mlp.up_proj.weight": torch.ones(2, 2),
            "model.layers.0.self_attn.q_proj.qweight": torch.ones(2),
            "model.norm.weight": None,
        },
    )
    told = refusal(folder)
    assert told.startswith(f"{folder}: the checkpoint does not fit its config: ")
    for part in (
        "unknown tensor model.layers.0.self_attn.q_proj.qweight",
        "missing tensor model.norm.weight",
        "model.layers.3.mlp.up_proj.weight is beyond the 3 layers of the config",
        "model.layers.1.mlp.up_proj.weight has shape [2, 2], which does not make layers/up [44, 76]",
    ):
        assert part in told


def test_a_config_of_other_sizes(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    edit_config(folder, num_hidden_layers=4, layer_types=None)
    assert "missing tensor model.layers.3.input_layernorm.weight" in refusal(folder)
    edit_config(folder, num_hidden_layers=2)
    assert "model.layers.2.mlp.up_proj.weight is beyond the 2 layers of the config" in refusal(folder)
    edit_config(folder, num_hidden_layers=3, head_dim=12)
    assert "q_proj.weight has shape [60, 44], which does not make layers/q [44, 6, 12]" in refusal(folder)


CONFIG_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not supported; supported: Llama"),
    ({"architectures": []}, "must name one architecture"),
    ({"architectures": ["LlamaForCausalLM", "Qwen3ForCausalLM"]}, "must name one architecture"),
    ({"architectures": "Qwen3ForCausalLM"}, "must name one architecture"),
    ({"architectures": [["Qwen3ForCausalLM"]]}, "must name one architecture"),
    ({"architectures": ...}, "must name one architecture"),
    ({"quantization_config": {"quant_method": "fp8"}}, "has a quantization_config; convert the float checkpoint"),
    ({"hidden_size": 0}, "'hidden_size' must be from 1 to 16,777,216, not 0"),
    ({"hidden_size": -44}, "'hidden_size' must be from 1"),
    ({"hidden_size": 10**30}, "'hidden_size' must be from 1"),
    ({"hidden_size": "44"}, "'hidden_size' has the unexpected value '44'"),
    ({"hidden_size": 44.0}, "'hidden_size' has the unexpected value 44.0"),
    ({"hidden_size": True}, "'hidden_size' has the unexpected value True"),
    ({"hidden_size": ...}, "config.json lacks 'hidden_size'"),
    ({"hidden_size": None}, "config.json lacks 'hidden_size'"),
    ({"num_hidden_layers": 1025}, "'num_hidden_layers' must be from 1 to 1,024"),
    ({"num_attention_heads": 0}, "'num_attention_heads' must be from 1"),
    ({"num_attention_heads": 5}, "5 attention heads do not divide among 2 key heads"),
    ({"num_key_value_heads": 0}, "'num_key_value_heads' must be from 1"),
    ({"num_key_value_heads": 4}, "6 attention heads do not divide among 4 key heads"),
    ({"head_dim": 7}, "a head of size 7 cannot be rotated"),
    ({"head_dim": [10]}, "'head_dim' has the unexpected value"),
    ({"vocab_size": 2**24 + 1}, "'vocab_size' must be from 1"),
    ({"rms_norm_eps": "1e-6"}, "'rms_norm_eps' has the unexpected value '1e-6'"),
    ({"rms_norm_eps": 0}, "'rms_norm_eps' must be a positive number, not 0"),
    ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' must be a positive number, not nan"),
    ({"attention_bias": 0}, "'attention_bias' has the unexpected value 0"),
    ({"tie_word_embeddings": "no"}, "'tie_word_embeddings' has the unexpected value 'no'"),
    ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; this version supports 'silu'"),
    ({"use_sliding_window": True}, "'use_sliding_window' is True; this version supports False"),
    ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "'layer_types' must all be"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
    ({"rope_parameters": {"rope_theta": -1.0}}, "'rope_theta' must be a positive number, not -1.0"),
    ({"rope_parameters": {"rope_theta": "x"}}, "'rope_theta' has the unexpected value 'x'"),
    ({"rope_parameters": [1]}, "'rope_parameters' has the unexpected value"),
    ({"rope_scaling": {"type": "linear"}}, "rope type 'linear' needs a positive number as 'factor', not None"),
    ({"num_experts": 8, "a\nb": 1}, r"has keys this version does not know: 'a\nb', 'num_experts'; a newer"),
    ({"final_logit_softcapping": 30.0}, "does not know: 'final_logit_softcapping'"),
]


@pytest.mark.parametrize(("changes", "told"), CONFIG_FAULTS)
def test_a_faulty_config_is_refused_by_name(checkpoint_copy: Copy, changes: dict[str, Any], told: str) -> None:
    folder = checkpoint_copy()
    edit_config(folder, **changes)
    line = refusal(folder)
    assert told in line and str(folder) in line and "config.json" in line


def test_llama_takes_its_head_size_from_the_hidden_size(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy("LlamaForCausalLM")
    edit_config(folder, head_dim=None, quantization_config=None)
    assert converted(folder)[1].backbone.config.head_dim == 10
    edit_config(folder, num_attention_heads=7, num_key_value_heads=7)
    with pytest.raises(CheckpointError, match="hidden_size 60 does not divide among 7 attention heads"):
        convert(folder, folder / "never", name="tiny")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 1,}', "[" * 100_000, "{" * 5, '"\ud800"', "\0"])
def test_a_config_that_is_no_object(checkpoint_copy: Copy, text: str) -> None:
    folder = checkpoint_copy()
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert refusal(folder).startswith(f"{path} ")


def test_a_config_that_is_missing(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    (folder / "config.json").unlink()
    assert refusal(folder) == f"{folder / 'config.json'} is missing"


def test_a_tokenizer_that_is_missing(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    (folder / "tokenizer.json").unlink()
    assert refusal(folder) == f"{folder}: the tokenizer has no vocabulary; the folder needs its tokenizer.json"
    (folder / "tokenizer_config.json").unlink()
    assert str(folder) in refusal(folder)


def test_a_chat_template_that_is_broken(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}")
    assert refusal(folder).startswith(f"{folder}: this model's chat template is broken: ")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('a system turn is needed') }}")
    convert(folder, folder.parent / "asks-for-more", name="tiny")


def test_a_head_is_whole_or_refused(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(head=True)
    config, weights = folder / "joint_head_config.json", folder / "joint_head.safetensors"
    text, data = config.read_text(), weights.read_bytes()
    config.unlink()
    assert refusal(folder) == f"{config} is missing"
    config.write_text(text)
    weights.unlink()
    assert refusal(folder).startswith(f"{weights} is missing")
    weights.write_bytes(data[:-4])
    assert refusal(folder).startswith(f"{weights} is damaged or cut short")
    weights.write_bytes(data)
    for key, value, told in (
        ("hidden_size", 48, "the head reads hidden states of 48 values; the backbone's have 44"),
        ("width", 60, "which does not make"),
        ("heads", 5, "width 64 must be a multiple of heads 5"),
        ("layers", "2", "layers must be a positive integer, not '2'"),
        ("depth", 2, "missing or unknown: ['depth']"),
    ):
        config.write_text(json.dumps({**json.loads(text), key: value}))
        assert told in refusal(folder)


def test_a_byte_of_damage_to_a_config_is_refused_or_harmless(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    path = folder / "config.json"
    data = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for number in range(150):
        at = rng.randrange(len(data))
        path.write_bytes(
            data[:at] + bytes([rng.choice([rng.randrange(256), *b'0123456789-.eE"{}[],:'])]) + data[at + 1 :]
        )
        try:
            convert(folder, folder.parent / f"ours{number}", name="tiny")
        except CheckpointError as error:
            assert str(error).isprintable(), repr(str(error))
            refused += 1
    assert 50 < refused < 150


# ------------------------------------------------------------------------------- the fingerprint


def test_the_revision_changes_with_every_file_that_matters(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    seen = {revision(folder)}
    (folder / "README.md").write_text("x")
    (folder / "pictures.json").mkdir()
    assert revision(folder) in seen

    edit_config(folder, rms_norm_eps=1e-5)
    seen.add(revision(folder))
    (folder / "chat_template.jinja").write_text("x")
    seen.add(revision(folder))
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    seen.add(revision(folder))
    before, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1000:] = bytes(1000)
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    seen.add(revision(folder))
    assert len(seen) == 5


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "lost.json").symlink_to(tmp_path / "nowhere")
    assert revision(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        revision(tmp_path / "nowhere")
