"""From a name to a model: what a name can mean, what is kept where, and what is refused before any work."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tiny_checkpoint import write_checkpoint

import sysone_jax
from converters.convert import convert
from sysone_jax import builtin, checkpoint
from sysone_jax.errors import CheckpointError, InputError, SysoneError
from sysone_jax.loading import convert_to, resolve

QUESTIONS = {"refund": {"type": "noul", "instructions": "Is a refund requested?"}}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def load() -> Iterator[Callable[..., sysone_jax.Decider]]:
    loaded: list[sysone_jax.Decider] = []

    def load(*args: Any, **options: Any) -> sysone_jax.Decider:
        loaded.append(sysone_jax.load(*args, **options))
        return loaded[-1]

    yield load
    for decider in loaded:
        decider.close()


def refusal(error: type[SysoneError], *args: Any, **options: Any) -> SysoneError:
    """The error of a load, which is one line and leaves no engine behind."""
    before = engines()
    with pytest.raises(error) as caught:
        sysone_jax.load(*args, **options)
    assert type(caught.value) is error
    assert str(caught.value).isprintable()
    assert engines() == before
    return caught.value


def engines() -> int:
    return sum(thread.name == "sysone-engine" for thread in threading.enumerate())


# ------------------------------------------------------------------------------- what a name means


def test_a_folder_is_converted_once(source: Path, cache: Path) -> None:
    folder = resolve(source)
    assert folder.parent == cache / "models" and folder.name.startswith("tiny-")
    made = (folder / "files.json").stat().st_mtime_ns
    assert resolve(str(source)) == resolve(source) == folder
    assert (folder / "files.json").stat().st_mtime_ns == made
    assert checkpoint.read_manifest(folder).source == str(source)
    assert [path.name for path in (cache / "models").iterdir()] == [folder.name]


def test_a_changed_file_is_another_model(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "tiny"))
    first = resolve(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    second = resolve(copy)
    assert first != second
    assert checkpoint.read_manifest(second).config["rms_norm_eps"] == 1e-3
    write_checkpoint(copy, seed=1, num_hidden_layers=2)
    assert resolve(copy) not in (first, second)


def test_a_converted_folder_is_used_where_it_is(source: Path, cache: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "ours", name="tiny")
    assert resolve(tmp_path / "ours") == tmp_path / "ours"
    assert not cache.exists()


def test_every_path_may_be_relative(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[..., sysone_jax.Decider]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYSONE_CACHE", "kept")
    shutil.copytree(source, "tiny")
    convert_to("tiny", Path("ours"))
    convert_to("./tiny", Path("deeper/../narrow"), dtype="bfloat16")
    answers = [
        load(name, max_model_len=64).decide(state="s", questions=QUESTIONS) for name in ("tiny", "ours", Path("./ours"))
    ]
    assert answers[0] == answers[1] == answers[2]
    assert load("narrow", dtype="bfloat16", max_model_len=64).dtype == "bfloat16"
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", "kept", "ours", "deeper", "narrow"}


def test_a_folder_in_the_home(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    assert resolve("~/tiny") == resolve(source)


def test_a_built_in_name_without_its_base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", not_installed)
    for name in (None, *builtin.NAMES):
        told = str(refusal(CheckpointError, name))
        assert told.endswith("fetch them with: sysone pull sysone-mini")


def not_installed(name: str) -> None:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)


def test_a_hub_id_that_is_not_in_the_local_cache() -> None:
    told = str(refusal(CheckpointError, "Qwen/Qwen3-0.6B"))
    assert told == (
        "Qwen/Qwen3-0.6B is neither a folder here nor in the local Hugging Face cache, and nothing is downloaded "
        "unasked; a model of the hub is fetched with: hf download Qwen/Qwen3-0.6B"
    )


@pytest.mark.parametrize(
    "name", ["tiny", "./tiny", "../tiny", "no such/model at all", "a/b/c", "x" * 5000, "~nobody-here/x", "a\nb", "\0"]
)
def test_a_name_that_means_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = str(refusal(CheckpointError, name))
    assert told.startswith("no model ") and "sysone-mini" in told and len(told) < 500


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    told = str(refusal(CheckpointError, tmp_path / "notes"))
    assert told.startswith(f"{tmp_path / 'notes'} is no model: it holds no config.json")


def test_a_file_that_is_given_for_a_folder(source: Path) -> None:
    assert str(refusal(CheckpointError, source / "model.safetensors")).startswith("no model ")


# ------------------------------------------------------------------------------- the cache


def test_a_cache_that_cannot_be_written(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path / "file" / "cache"))
    error = refusal(SysoneError, source)
    assert "cannot be written: " in str(error) and str(tmp_path / "file" / "cache") in str(error)
    assert error.exit_code == 1


def test_a_cache_of_compiled_programs_that_cannot_be_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "ours", name="tiny")
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path / "file" / "cache"))
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        error = refusal(SysoneError, tmp_path / "ours")
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)
    assert str(error).startswith("the cache folder cannot be made (")
    assert str(error).endswith("set SYSONE_CACHE to a folder that can be written")


# ------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "field", "told"),
    [
        ({"dtype": "float16"}, "dtype", "dtype: must be one of float32, bfloat16, not 'float16'"),
        ({"dtype": ["float32"]}, "dtype", "dtype: must be one of"),
        ({"head_dtype": "float16"}, "head_dtype", "head_dtype: must be one of float32, bfloat16, not 'float16'"),
        ({"head_dtype": "bfloat16"}, "head_dtype", "head_dtype: this model has no joint head"),
        ({"read_mode": "fast"}, "read_mode", "read_mode: must be one of exact, throughput, not 'fast'"),
        ({"rendering": "raw"}, "rendering", "rendering: must be one of reference, escape, not 'raw'"),
        ({"max_model_len": 0}, "max_model_len", "max_model_len: must be from 1 to 2048 for this model, not 0"),
        ({"max_model_len": -1}, "max_model_len", "from 1 to 2048"),
        ({"max_model_len": 2049}, "max_model_len", "from 1 to 2048 for this model, not 2049"),
        ({"max_model_len": 512.0}, "max_model_len", "must be a whole number, not 512.0"),
        ({"max_model_len": "512"}, "max_model_len", "must be a whole number, not '512'"),
        ({"max_model_len": True}, "max_model_len", "must be a whole number, not True"),
        ({"mesh": (3, 3)}, "mesh", "3x3 needs 9 devices; this machine has 8"),
        ({"mesh": (0, 1)}, "mesh", "0x1"),
    ],
)
def test_an_argument_out_of_its_range(source: Path, options: dict[str, Any], field: str, told: str) -> None:
    error = refusal(InputError, source, **options)
    assert isinstance(error, InputError) and error.field == field
    assert told in str(error)


def test_a_model_without_a_chat_template(source: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "tiny"))
    path = copy / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config))
    assert "chat template" in str(refusal(CheckpointError, copy))


# ------------------------------------------------------------------------------- what is loaded


def test_a_model_answers_by_its_name(source: Path, load: Callable[..., sysone_jax.Decider]) -> None:
    decider = load(source, max_model_len=128)
    assert (decider.name, decider.architecture, decider.strategy) == (str(source), "Qwen3ForCausalLM", "labels")
    assert (decider.dtype, decider.read_mode, decider.max_model_len) == ("float32", "exact", 128)
    decision = decider.decide(state="I want my money back.", questions=QUESTIONS)
    assert decision.model == str(source) and 0 < decision["refund"]["noul"] < 1
    with pytest.raises(InputError, match="more than max_model_len=128; nothing is truncated"):
        decider.decide(state="word " * 200, questions=QUESTIONS)


def test_a_closed_model_says_so(source: Path) -> None:
    model = sysone_jax.load(source, max_model_len=64)
    with model:
        model.decide(state="s", questions=QUESTIONS)
    model.close()
    with pytest.raises(SysoneError, match="this model was closed"):
        model.decide(state="s", questions=QUESTIONS)
    with pytest.raises(SysoneError, match="this model was closed"):
        model.decide_batch([{"state": "s", "questions": QUESTIONS}])


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_heads_may_share_one_key_head(
    architecture: Any, tmp_path: Path, load: Callable[..., sysone_jax.Decider]
) -> None:
    folder = write_checkpoint(tmp_path / "mqa", architecture, num_key_value_heads=1)
    model = load(folder, max_model_len=128)
    both = {**QUESTIONS, "late": {"type": "noul", "instructions": "Is it late?"}}
    assert (
        model.decide(state="s", questions=both).reads["refund"]
        == model.decide(state="s", questions=QUESTIONS).reads["refund"]
    )


def test_a_tokenizer_of_another_model_is_refused(
    source: Path, tmp_path: Path, load: Callable[..., sysone_jax.Decider]
) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    model = load(copy, max_model_len=64)
    model._engine._model.backbone.config = dataclasses.replace(model._engine._model.backbone.config, vocab_size=5)
    with pytest.raises(CheckpointError, match=r"gives token \d+, and the model has 5 of them"):
        model.decide(state="s", questions=QUESTIONS)


def test_a_conversion_that_was_damaged_in_the_cache_is_made_again(source: Path) -> None:
    folder = resolve(source)
    (folder / "weights" / "_CHECKPOINT_METADATA").write_text("")
    assert resolve(source) == folder and checkpoint.is_whole(folder)


def test_a_model_can_be_served_by_another_name(source: Path, load: Callable[..., sysone_jax.Decider]) -> None:
    decider = load(source, served_name="mine", read_mode="throughput", rendering="escape", dtype="bfloat16")
    assert (decider.name, decider.dtype, decider.read_mode) == ("mine", "bfloat16", "throughput")
    assert decider.max_model_len == 2048
    assert decider._engine._model.backbone.embed[...].dtype == jnp.bfloat16


def test_a_model_with_a_head_is_a_joint_model(tmp_path: Path, load: Callable[..., sysone_jax.Decider]) -> None:
    folder = write_checkpoint(tmp_path / "joint", "LlamaForCausalLM", head=True, max_position_embeddings=40_960)
    decider = load(folder)
    assert (decider.strategy, decider.architecture, decider.max_model_len) == ("joint_schema", "LlamaForCausalLM", 8192)
    assert str(refusal(InputError, folder, max_model_len=40_961)).startswith("max_model_len: must be from 1 to 40960")


def test_models_share_programs_and_not_weights(tmp_path: Path, load: Callable[..., sysone_jax.Decider]) -> None:
    first, second = (
        load(write_checkpoint(tmp_path / str(seed), seed=seed, vocab_size=448, num_hidden_layers=2)) for seed in (1, 2)
    )
    one = first.decide(state="I want my money back.", questions=QUESTIONS)["refund"]["noul"]
    other = second.decide(state="I want my money back.", questions=QUESTIONS)["refund"]["noul"]
    assert one != other
    assert first.decide(state="I want my money back.", questions=QUESTIONS)["refund"]["noul"] == one
