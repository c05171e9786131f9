"""A Llama model in GGUF, read as if it were its Hugging Face folder: config, tensors and tokenizer.

llama.cpp stores the rows of q and k permuted, so that neighbouring rows form a rotary plane; ``read`` undoes it, and
gives every tensor under its Hugging Face name. Quantized tensors are dequantized by the ``gguf`` package, in float32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from gguf.quants import dequantize

from converters.tables import Shape
from sysone_jax.errors import CheckpointError
from sysone_jax.text import Tokenizer

READABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

CONTROL_TOKEN = 3
"""``tokenizer.ggml.token_type`` of a control token."""


class GgufSource:
    """The tensors of one GGUF file of architecture ``llama``."""

    def __init__(self, path: Path) -> None:
        """Read the header; CheckpointError when it is damaged, of another architecture or of an unreadable type."""
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise CheckpointError(f"{path} is not a readable GGUF file: {error}") from None
        self._path = path
        architecture = self.value("general.architecture")
        if architecture != "llama":
            raise CheckpointError(f"{path} is of architecture {architecture!r}; GGUF files of 'llama' are supported")
        self._tensors = {}
        for tensor in self._reader.tensors:
            if tensor.tensor_type.name not in READABLE:
                raise CheckpointError(
                    f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}; readable: {', '.join(READABLE)}"
                )
            self._tensors[_hf_name(tensor.name)] = tensor

    def value(self, key: str) -> Any:
        """A metadata value; CheckpointError names a key that the file lacks."""
        field = self._reader.get_field(key)
        if field is None:
            raise CheckpointError(f"{self._path} lacks the metadata {key!r}")
        return field.contents()

    def config(self) -> dict[str, Any]:
        """The file's numbers as a ``config.json`` of ``LlamaForCausalLM``."""
        heads = self.value("llama.attention.head_count")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self.value("tokenizer.ggml.tokens")),
            "hidden_size": self.value("llama.embedding_length"),
            "intermediate_size": self.value("llama.feed_forward_length"),
            "num_hidden_layers": self.value("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.value("llama.attention.head_count_kv"),
            "head_dim": self.value("llama.rope.dimension_count"),
            "rms_norm_eps": float(self.value("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": float(self.value("llama.rope.freq_base")),
            "max_position_embeddings": self.value("llama.context_length"),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
        }

    def shapes(self) -> Mapping[str, Shape]:
        return {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        array = dequantize(tensor.data, tensor.tensor_type).reshape(self.shapes()[name]).astype(np.float32)
        if name.endswith("q_proj.weight"):
            return _unpermute(array, self.value("llama.attention.head_count"))
        if name.endswith("k_proj.weight"):
            return _unpermute(array, self.value("llama.attention.head_count_kv"))
        return array

    def tokenizer(self) -> Tokenizer:
        """The byte-level BPE tokenizer in the file, with its chat template."""
        model, pre = self.value("tokenizer.ggml.model"), self.value("tokenizer.ggml.pre")
        if (model, pre) != ("gpt2", "smollm"):
            raise CheckpointError(
                f"{self._path}: tokenizer {model!r} with pre-tokenizer {pre!r} is not supported; 'gpt2', 'smollm' is"
            )
        tokens = self.value("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ", 1)) for merge in self.value("tokenizer.ggml.merges")]
        backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [
                tokenizers.pre_tokenizers.Digits(individual_digits=True),
                tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        backend.decoder = tokenizers.decoders.ByteLevel()
        kinds = self.value("tokenizer.ggml.token_type")
        control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
        backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in control])
        special = {f"{role}_token": tokens[self.value(f"tokenizer.ggml.{role}_token_id")] for role in ("bos", "eos")}
        return Tokenizer(backend, self.value("tokenizer.chat_template"), special)


def _hf_name(name: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    short = layer[2] if layer else name
    if short not in _NAMES:
        return name
    return f"model.layers.{layer[1]}.{_NAMES[short]}" if layer else _NAMES[short]


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows from (plane, half) order back to (half, plane) within each head."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
