"""Reading a config: every key is used, inert or refused by name, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sysone_jax.backbones import FAMILIES, family
from sysone_jax.config import ConfigReader, read_json, take_rope
from sysone_jax.errors import CheckpointError

# ------------------------------------------------------------------------------- files


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, null], "é": "☕"}', encoding="utf-8")
    assert read_json(path) == {"a": [1, None], "é": "☕"}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b'"x"', b"{", b'{"a": 1', b"{'a': 1}", b"\xff\xfe", b"[" * 10**6, b'{"a":' * 10**5]
)
def test_anything_else_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_json(path)
    told = str(caught.value)
    assert told.startswith(f"{path} ") and told.isprintable()


def test_a_file_that_is_missing_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json is missing$"):
        read_json(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="is not readable JSON"):
        read_json(tmp_path)


# ------------------------------------------------------------------------------- keys


def test_keys_are_taken_once() -> None:
    reader = ConfigReader({"a": 1, "b": "x", "c": True, "d": 2.5, "e": None, "torch_dtype": "bfloat16", "f": None})
    assert reader.take("a", int) == 1
    assert reader.take("b", str) == "x"
    assert reader.take("c", bool) is True
    assert reader.take("d", (int, float)) == 2.5
    assert reader.take("e", int, 7) == 7
    assert reader.take("absent", int, None) is None
    reader.finish()
    with pytest.raises(CheckpointError, match="^config.json lacks 'a'$"):
        reader.take("a", int)


def test_keys_that_nobody_took_are_named() -> None:
    with pytest.raises(CheckpointError, match="has keys this version does not know: 'other', 'z'; a newer"):
        ConfigReader({"z": 1, "other": {}, "use_cache": True, "null": None}).finish()


@pytest.mark.parametrize(
    ("value", "kind"), [(1.0, int), ("1", int), (True, int), (1, bool), ([1], dict), (False, float)]
)
def test_a_value_of_another_type_is_refused(value: Any, kind: type) -> None:
    with pytest.raises(CheckpointError, match="^config.json: 'key' has the unexpected value "):
        ConfigReader({"key": value}).take("key", kind)


def test_a_long_value_is_told_short() -> None:
    with pytest.raises(CheckpointError) as caught:
        ConfigReader({"key": ["x\n" * 1000] * 1000}).take("key", int)
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


@pytest.mark.parametrize("value", [0, -1, 2**24 + 1, 10**40])
def test_a_size_has_a_range(value: int) -> None:
    assert ConfigReader({"key": 2**24}).take_size("key") == 2**24
    assert ConfigReader({}).take_size("key", None) is None
    with pytest.raises(CheckpointError, match="'key' must be from 1 to 16,777,216, not "):
        ConfigReader({"key": value}).take_size("key")


@pytest.mark.parametrize("value", [0, -1e-6, float("nan"), float("inf"), 1e300, 10**400])
def test_a_positive_number_has_a_range(value: float) -> None:
    assert ConfigReader({"key": 1}).take_positive("key") == 1.0
    assert ConfigReader({}).take_positive("key", 1e-6) == 1e-6
    with pytest.raises(CheckpointError, match="'key' must be a positive number, not "):
        ConfigReader({"key": value}).take_positive("key")


def test_only_what_is_computed_may_be_asked_for() -> None:
    for config in ({}, {"act": None}, {"act": "silu"}):
        reader = ConfigReader(config)
        reader.require("act", "silu")
        reader.finish()
    for value in ("gelu", ["silu"], {}, 1):
        with pytest.raises(CheckpointError, match="^config.json: 'act' is .*; this version supports 'silu'$"):
            ConfigReader({"act": value}).require("act", "silu")


# ------------------------------------------------------------------------------- rope


@pytest.mark.parametrize(
    ("config", "theta", "scaling"),
    [
        ({}, 10_000.0, {}),
        ({"rope_theta": 1_000_000, "rope_scaling": None}, 1e6, {}),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, {"rope_type": "default"}),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_theta": 7.0}, 7.0, {"factor": 2}),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 9e4}, 9e4, {"factor": 2}),
        # as transformers reads a file with both
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"factor": 3}}, 1e4, {"factor": 2}),
        ({"rope_scaling": {"rope_theta": 3.0}, "rope_theta": 9e4}, 3.0, {}),
    ],
)
def test_both_forms_of_rope(config: dict[str, Any], theta: float, scaling: dict[str, Any]) -> None:
    reader = ConfigReader(config)
    found = take_rope(reader)
    reader.finish()
    assert found[0] == theta
    assert found[1].items() >= scaling.items()


# ------------------------------------------------------------------------------- families


def test_an_unknown_architecture_is_told_what_is_known() -> None:
    with pytest.raises(CheckpointError, match="'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM, Qwen3"):
        family("GPT2LMHeadModel")


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_config_can_be_hashed_and_compared(architecture: str) -> None:
    """Programs are kept by config: two loads of one model share them."""
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = {**dict.fromkeys(sizes, 8), "num_attention_heads": 2}
    if family(architecture).__name__.endswith("qwen3_5"):
        delta = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        config |= {f"linear_{name}": 4 for name in delta}
    first, second = (family(architecture).Config.from_hf(dict(config)) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert first != family(architecture).Config.from_hf({**config, "rope_theta": 3.0})
