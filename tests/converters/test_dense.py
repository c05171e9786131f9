"""The names in the hub's files of the dense families, at real sizes: nothing is left over, nothing is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converters.convert import assigned
from sysone_jax.checkpoint import Manifest
from sysone_jax.errors import CheckpointError
from sysone_jax.model import abstract_model
from sysone_jax.sharding import leaves

Config = dict[str, Any]

QWEN3_06B: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMOLLM2_135M: Config = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
LLAMA_32_1B: Config = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN3_8B: Config = {
    **QWEN3_06B,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "tie_word_embeddings": False,
}


class Names:
    """A checkpoint of which only names and shapes are known."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        raise AssertionError(f"{name} was read")


def hub_shapes(config: Config, lm_head: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of a file on the hub, from the list that every layer of the family repeats."""
    embed, mlp = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", embed // config["num_attention_heads"])
    wide, narrow = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    layer = {
        "input_layernorm.weight": (embed,),
        "mlp.down_proj.weight": (embed, mlp),
        "mlp.gate_proj.weight": (mlp, embed),
        "mlp.up_proj.weight": (mlp, embed),
        "post_attention_layernorm.weight": (embed,),
        "self_attn.k_proj.weight": (narrow, embed),
        "self_attn.o_proj.weight": (embed, wide),
        "self_attn.q_proj.weight": (wide, embed),
        "self_attn.v_proj.weight": (narrow, embed),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.k_norm.weight": (head_dim,), "self_attn.q_norm.weight": (head_dim,)}
    table = (config["vocab_size"], embed)
    shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (embed,)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return {**shapes, "lm_head.weight": table} if lm_head else shapes


def manifest(config: Config) -> Manifest:
    return Manifest(config["architectures"][0], config, None, source="hub", source_revision="0")


@pytest.mark.parametrize(
    ("config", "lm_head", "tensors", "parameters"),
    [
        pytest.param(QWEN3_06B, True, 311, 596_049_920, id="Qwen3-0.6B"),
        pytest.param(QWEN3_06B, False, 310, 596_049_920, id="Qwen3-0.6B without an output table"),
        pytest.param(QWEN3_8B, True, 399, 8_190_735_360, id="Qwen3-8B"),
        pytest.param(SMOLLM2_135M, False, 272, 134_515_008, id="SmolLM2-135M"),
        pytest.param(LLAMA_32_1B, False, 146, 1_235_814_400, id="Llama-3.2-1B"),
    ],
)
def test_hub_files_fit(config: Config, lm_head: bool, tensors: int, parameters: int) -> None:
    source = Names(hub_shapes(config, lm_head))
    assert len(source.shapes()) == tensors
    assigned(manifest(config), source, None, None)
    model = abstract_model(manifest(config), np.dtype(np.float32))
    assert sum(variable.size for _, variable in leaves(model)) == parameters


@pytest.mark.parametrize("config", [QWEN3_06B, SMOLLM2_135M], ids=["Qwen3-0.6B", "SmolLM2-135M"])
def test_no_tensor_of_a_hub_file_may_be_lost_or_added(config: Config) -> None:
    shapes = hub_shapes(config, lm_head=False)
    last = config["num_hidden_layers"] - 1
    for name in shapes:
        if name.startswith(f"model.layers.{last}.") or "layers" not in name:
            with pytest.raises(CheckpointError, match=f"missing tensor {name}$"):
                assigned(
                    manifest(config), Names({key: shape for key, shape in shapes.items() if key != name}), None, None
                )
            with pytest.raises(CheckpointError, match=f"unknown tensor {name}_scale_inv$"):
                assigned(manifest(config), Names({**shapes, f"{name}_scale_inv": ()}), None, None)


def test_an_untied_model_needs_its_output_table() -> None:
    with pytest.raises(CheckpointError, match="missing tensor lm_head.weight$"):
        assigned(manifest(QWEN3_8B), Names(hub_shapes(QWEN3_8B, lm_head=False)), None, None)


def test_old_files_hold_rotary_buffers() -> None:
    shapes = hub_shapes(SMOLLM2_135M, lm_head=False)
    shapes |= {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": (32,) for layer in range(30)}
    assigned(manifest(SMOLLM2_135M), Names(shapes), None, None)
