"""Reading a checkpoint's ``config.json``: every key is used, known to be inert, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sysone_jax.errors import CheckpointError

INERT = frozenset(
    """
    _name_or_path architectures auto_map bos_token_id chunk_size_feed_forward dtype eos_token_id finetuning_task
    attention_dropout embd_pdrop resid_pdrop id2label initializer_range is_decoder is_encoder_decoder is_llama_config
    label2id model_type output_attentions output_hidden_states pad_token_id prefix pretraining_tp problem_type
    return_dict sep_token_id decoder_start_token_id cross_attention_hidden_size add_cross_attention
    tie_encoder_decoder task_specific_params tokenizer_class torch_dtype torchscript transformers_version
    transformers.js_config unsloth_version unsloth_fixed use_cache use_bfloat16 pruned_heads tf_legacy_loss
    bad_words_ids begin_suppress_tokens suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
    max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate temperature top_k top_p typical_p
    """.split()
)
"""Keys that say nothing about the function the weights compute: bookkeeping, training and text generation."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError when it is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


class ConfigReader:
    """Takes keys out of a config one by one; ``finish`` refuses what nobody took."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._left = dict(config)
        self._architecture = (config.get("architectures") or ["?"])[0]

    def take(self, key: str, kind: type | tuple[type, ...], *default: Any) -> Any:
        """The value of ``key``, checked to be of ``kind``; ``default`` when the key is absent or null."""
        value = self._left.pop(key, None)
        if value is None:
            if default:
                return default[0]
            raise CheckpointError(f"config.json of {self._architecture} lacks {key!r}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"config.json: {key!r} has the unexpected value {value!r}")
        return value

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a config whose ``key`` is set to something this backbone does not compute."""
        value = self._left.pop(key, None)
        if value is not None and value not in allowed:
            raise CheckpointError(
                f"config.json: {key!r} is {value!r}; this version supports {', '.join(map(repr, allowed))}"
            )

    def finish(self) -> None:
        unknown = sorted(set(self._left) - INERT)
        if unknown:
            raise CheckpointError(
                f"config.json of {self._architecture} has keys this version does not know: {', '.join(unknown)}; "
                "a newer sysone-jax may support them"
            )


def take_rope(reader: ConfigReader) -> tuple[float, dict[str, Any] | None]:
    """(theta, scaling) from either form: ``rope_parameters``, or ``rope_theta`` beside ``rope_scaling``."""
    parameters = reader.take("rope_parameters", dict, None)
    theta, scaling = reader.take("rope_theta", (int, float), None), reader.take("rope_scaling", dict, None)
    if parameters is not None:
        theta = parameters.get("rope_theta", theta)
        scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    return float(10000.0 if theta is None else theta), scaling
