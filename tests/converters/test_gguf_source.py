"""GGUF: the names, shapes and rotary order of a Hugging Face file, and a refusal of what is not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from converters.convert import assigned
from converters.gguf_source import GgufSource
from sysone_jax.checkpoint import Manifest
from sysone_jax.errors import CheckpointError

EMBED, MLP, HEADS, KV_HEADS, HEAD, LAYERS = 32, 64, 4, 2, 8, 2
RNG = np.random.default_rng(0)
TOKENS = [*map(chr, range(256, 256 + 20)), "<|im_start|>", "<|im_end|>"]

HF_SHAPES = {
    "model.embed_tokens.weight": (len(TOKENS), EMBED),
    "model.norm.weight": (EMBED,),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(LAYERS)
        for name, shape in {
            "input_layernorm": (EMBED,),
            "post_attention_layernorm": (EMBED,),
            "self_attn.q_proj": (HEADS * HEAD, EMBED),
            "self_attn.k_proj": (KV_HEADS * HEAD, EMBED),
            "self_attn.v_proj": (KV_HEADS * HEAD, EMBED),
            "self_attn.o_proj": (EMBED, HEADS * HEAD),
            "mlp.gate_proj": (MLP, EMBED),
            "mlp.up_proj": (MLP, EMBED),
            "mlp.down_proj": (EMBED, MLP),
        }.items()
    },
}
WEIGHTS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in HF_SHAPES.items()}


def permuted(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter stores them: the two halves of a head woven together."""
    rows, columns = array.shape
    return array.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write(path: Path, edit: Callable[[dict[str, Any], dict[str, np.ndarray]], Any] | None = None) -> Path:
    """A tiny model, written by the ``gguf`` package under its own names for the tensors."""
    values: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 512,
        "llama.embedding_length": EMBED,
        "llama.feed_forward_length": MLP,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HEAD,
        "llama.rope.freq_base": 70_000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * 20 + [3, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 20,
        "tokenizer.ggml.eos_token_id": 21,
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "general.architecture": "llama",
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    tensors = {}
    for name, array in WEIGHTS.items():
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None
        tensors[stored] = permuted(array, heads) if heads else array
    if edit is not None:
        edit(values, tensors)
    writer = gguf.GGUFWriter(path, values.pop("general.architecture"))
    for key, value in values.items():
        if isinstance(value, list):
            if value:
                writer.add_array(key, value)
        else:
            {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)](key, value)
    for name, array in tensors.items():
        if array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_tensors_are_those_of_the_hugging_face_file(tmp_path: Path) -> None:
    source = GgufSource(write(tmp_path / "model.gguf"))
    assert source.shapes() == HF_SHAPES
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(source.read(name), array, err_msg=name)


def test_the_config_is_read_from_the_metadata(tmp_path: Path) -> None:
    source = GgufSource(write(tmp_path / "model.gguf"))
    config = source.config()
    assert config["rms_norm_eps"] == pytest.approx(1e-5) and config["rope_theta"] == 70_000.0
    assert config["tie_word_embeddings"] is True and config["vocab_size"] == len(TOKENS)
    filled = dict(assigned(Manifest("LlamaForCausalLM", config, None, "x", "0"), source, None, None))
    assert filled["backbone/layers/q"].shape == (LAYERS, EMBED, HEADS, HEAD)


def test_an_output_table_of_its_own_unties(tmp_path: Path) -> None:
    table = RNG.normal(size=(len(TOKENS), EMBED)).astype(np.float32)
    source = GgufSource(write(tmp_path / "model.gguf", lambda _, tensors: tensors.update({"output.weight": table})))
    assert source.config()["tie_word_embeddings"] is False
    np.testing.assert_array_equal(source.read("lm_head.weight"), table)


@pytest.mark.parametrize(
    ("kind", "bound"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 0.02), ("Q4_0", 0.3), ("Q4_1", 0.3), ("Q5_0", 0.2)]
)
def test_stored_types_are_made_wide(tmp_path: Path, kind: str, bound: float) -> None:
    dtype = gguf.GGMLQuantizationType[kind]

    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    wide = WEIGHTS["model.layers.0.mlp.up_proj.weight"]
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quants.quantize(wide, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = GgufSource(path).read("model.layers.0.mlp.up_proj.weight")
    assert read.dtype == np.float32 and read.shape == wide.shape
    assert np.abs(read - wide).max() <= bound * np.abs(wide).max()


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda values, _: values.update({"general.architecture": "gemma"}), "is of architecture 'gemma'"),
        (
            lambda _, tensors: tensors.update({"blk.0.ffn_up.weight": np.zeros((64, 144), np.uint8)}),
            "blk.0.ffn_up.weight is stored as Q4_K; readable",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, edit: Callable[..., Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        GgufSource(write(tmp_path / "model.gguf", edit))


def test_metadata_that_is_missing(tmp_path: Path) -> None:
    source = GgufSource(write(tmp_path / "model.gguf", lambda values, _: values.pop("llama.rope.freq_base")))
    with pytest.raises(CheckpointError, match="lacks the metadata 'llama.rope.freq_base'"):
        source.config()


def test_a_tokenizer_of_another_kind(tmp_path: Path) -> None:
    other = write(tmp_path / "model.gguf", lambda values, _: values.update({"tokenizer.ggml.pre": "llama-bpe"}))
    with pytest.raises(CheckpointError, match="'gpt2' with pre-tokenizer 'llama-bpe' is not supported"):
        GgufSource(other).tokenizer()


@pytest.mark.parametrize("data", [b"", b"GGUF", b"PK\3\4" + bytes(100), b"GGUF\3\0\0\0" + b"\xff" * 40])
def test_a_file_that_is_no_gguf(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is not a readable GGUF file"):
        GgufSource(path)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    data = path.read_bytes()
    for share in (0.02, 0.2, 0.6, 0.999):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(CheckpointError, match="is not a readable GGUF file"):
            GgufSource(path)
