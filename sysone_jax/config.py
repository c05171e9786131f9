"""Reading a checkpoint's ``config.json``: every key is used, known to be inert, or refused by name."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sysone_jax.errors import CheckpointError

INERT = frozenset(
    """
    _name_or_path architectures auto_map custom_pipelines bos_token_id chunk_size_feed_forward dtype eos_token_id
    finetuning_task attention_dropout embd_pdrop resid_pdrop id2label initializer_range is_decoder is_encoder_decoder
    is_llama_config label2id model_type output_attentions output_hidden_states pad_token_id prefix pretraining_tp
    problem_type return_dict sep_token_id decoder_start_token_id cross_attention_hidden_size add_cross_attention
    tie_encoder_decoder task_specific_params tokenizer_class torch_dtype torchscript transformers_version
    transformers.js_config unsloth_version unsloth_fixed use_cache use_bfloat16 pruned_heads tf_legacy_loss
    bad_words_ids begin_suppress_tokens suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
    max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate temperature top_k top_p typical_p
    """.split()
)
"""Keys that say nothing about the function the weights compute: bookkeeping, training and text generation."""


MOST_SIZE = 1 << 24
"""No dimension of a released model comes near it: a larger one is damage, and would be asked of the memory."""
MOST_LAYERS = 1024


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError when it is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


class ConfigReader:
    """Takes keys out of a config one by one; ``finish`` refuses what nobody took. A null is read as an absent key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._left = {key: value for key, value in config.items() if value is not None}

    def take(self, key: str, kind: type | tuple[type, ...], *default: Any) -> Any:
        """The value of ``key``, checked to be of ``kind``; ``default`` when the key is absent or null."""
        if key not in self._left:
            if default:
                return default[0]
            raise CheckpointError(f"config.json lacks {key!r}")
        value = self._left.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"config.json: {key!r} has the unexpected value {reprlib.repr(value)}")
        return value

    def take_size(self, key: str, *default: Any, most: int = MOST_SIZE) -> Any:
        """A whole number from 1 to ``most``; ``default`` when the key is absent or null."""
        value = self.take(key, int, *default)
        if value is not None and not 1 <= value <= most:
            raise CheckpointError(f"config.json: {key!r} must be from 1 to {most:,}, not {reprlib.repr(value)}")
        return value

    def take_positive(self, key: str, *default: Any) -> float:
        """A positive number of a size that float32 can work with; ``default`` when the key is absent or null."""
        value = self.take(key, (int, float), *default)
        if not 1e-12 <= value <= 1e12:
            raise CheckpointError(f"config.json: {key!r} must be a positive number, not {reprlib.repr(value)}")
        return float(value)

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a config whose ``key`` is set to something this backbone does not compute."""
        if key in self._left and (value := self._left.pop(key)) not in allowed:
            raise CheckpointError(
                f"config.json: {key!r} is {reprlib.repr(value)}; this version supports {', '.join(map(repr, allowed))}"
            )

    def drop(self, *keys: str) -> None:
        """Leave out keys that say nothing about the function this backbone computes."""
        for key in keys:
            self._left.pop(key, None)

    def finish(self) -> None:
        unknown = sorted(set(self._left) - INERT)
        if unknown:
            raise CheckpointError(
                f"config.json has keys this version does not know: {', '.join(map(repr, unknown))}; a newer sysone-jax "
                "may support them"
            )


def take_rope(reader: ConfigReader) -> tuple[float, dict[str, Any] | None]:
    """(theta, scaling) from either form: ``rope_parameters``, or ``rope_theta`` beside ``rope_scaling``.

    A file with both is read as transformers reads it: ``rope_scaling`` goes first, and a theta inside it goes before
    one beside it.
    """
    parameters = reader.take("rope_parameters", dict, None)
    scaling = reader.take("rope_scaling", dict, None) or parameters or {}
    beside = reader.take_positive("rope_theta", 10000.0)
    return ConfigReader(scaling).take_positive("rope_theta", beside), scaling
