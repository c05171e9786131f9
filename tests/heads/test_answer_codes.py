"""``decision_config.json``: every field, and every value that is not read here."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from tiny_decision import CODES

from sysone_jax import sharding
from sysone_jax.errors import CheckpointError
from sysone_jax.heads.answer_codes import AnswerCodes, AnswerCodesConfig

LEAST: dict[str, Any] = {
    "format_version": 1,
    "prompt": "d3",
    "codes": CODES,
    "token_ids": list(range(255)),
    "temperature": 1.5,
}
WHOLE: dict[str, Any] = {
    **LEAST,
    "format_id": "d3-code-readout-v1",
    "base_model": "Qwen/Qwen3.5-9B",
    "revision": "c2022362",
    "attention_mode": "noncausal_full_attention",
    "pooling": "last",
    "max_length": 16384,
    "readout_dtype": "bfloat16",
}


def test_defaults_and_whole() -> None:
    least, whole = AnswerCodesConfig.from_json(LEAST), AnswerCodesConfig.from_json(WHOLE)
    assert (least.causal, least.max_length, least.readout_dtype, least.temperature) == (True, None, "float32", 1.5)
    assert (whole.causal, whole.max_length, whole.readout_dtype) == (False, 16384, "bfloat16")
    assert least.codes == tuple(CODES) and least.token_ids == tuple(range(255))
    assert AnswerCodesConfig.from_json({**WHOLE, "max_length": None, "attention_mode": "causal"}).causal


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"format_version": 2}, "format_version 2 is not supported; this version reads 1"),
    "version of another type": ({"format_version": True}, "format_version True is not supported"),
    "no version": ({"format_version": None}, "format_version None is not supported"),
    "format": ({"format_id": "d4"}, "unknown format_id 'd4'; this version supports 'd3-code-readout-v1'"),
    "prompt": ({"prompt": "d4"}, "unknown decision prompt 'd4'"),
    "no prompt": ({"prompt": None}, "unknown decision prompt None"),
    "pooling": ({"pooling": "mean"}, "unknown pooling 'mean'"),
    "mode": (
        {"attention_mode": "sliding"},
        "unknown attention_mode 'sliding'; this version supports 'causal', 'noncausal_full_attention'",
    ),
    "readout": ({"readout_dtype": "float16"}, "unknown readout_dtype 'float16'"),
    "few codes": ({"codes": CODES[:254]}, "codes must be a list of 255 distinct texts"),
    "a code twice": ({"codes": [*CODES[:254], "A"]}, "codes must be a list of 255 distinct texts"),
    "an empty code": ({"codes": [*CODES[:254], ""]}, "codes must be a list of 255 distinct texts"),
    "codes of lists": ({"codes": [[]] * 255}, "codes must be a list of 255 distinct texts"),
    "no codes": ({"codes": None}, "codes must be a list of 255 distinct texts"),
    "an id twice": ({"token_ids": [0] * 255}, "token_ids must be a list of 255 distinct token ids"),
    "a negative id": ({"token_ids": [-1, *range(254)]}, "token_ids must be a list of 255 distinct token ids"),
    "temperature": ({"temperature": 0}, "temperature must be a positive number, not 0"),
    "temperature of no size": ({"temperature": float("nan")}, "temperature must be a positive number, not nan"),
    "temperature as text": ({"temperature": "1"}, "temperature must be a positive number, not '1'"),
    "max_length": ({"max_length": 0}, "max_length must be a positive whole number or null, not 0"),
    "base model": ({"base_model": 1}, "base_model must be text, not 1"),
    "an unknown key": ({"bias": "readout", "scale": 1}, "has keys this version does not know: 'bias', 'scale'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(CheckpointError) as caught:
        AnswerCodesConfig.from_json(WHOLE | changes)
    assert "decision_config.json" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hidden_state_of_either_type_gives_float32_logits(dtype: str) -> None:
    rng = np.random.default_rng(0)
    weight, hidden = rng.standard_normal((255, 24), np.float32), rng.standard_normal(24, np.float32)
    config = AnswerCodesConfig.from_json({**LEAST, "token_ids": list(range(255))})
    head = sharding.abstract(lambda: AnswerCodes(config, 24))
    head = sharding.fill(head, {"weight": jax.numpy.asarray(weight)})
    given = jax.numpy.asarray(hidden, dtype)
    logits = head(given)
    assert logits.dtype == np.float32
    wanted = weight.astype(np.float64) @ np.asarray(given, np.float64)
    assert np.abs(np.asarray(logits) - wanted).max() <= 1e-6 * np.abs(wanted).max()
