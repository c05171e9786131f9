"""Converted models on disk: what is written is what is read, on any mesh, and damage is refused."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp
from tiny_checkpoint import Architecture, write_checkpoint

import sysone_jax
from converters.convert import convert
from sysone_jax import checkpoint, sharding
from sysone_jax.checkpoint import Manifest, load_arrays, read_manifest, save
from sysone_jax.errors import CheckpointError, InputError, SysoneError
from sysone_jax.loading import load_weights
from sysone_jax.model import abstract_model
from sysone_jax.sharding import leaves, make_mesh, shardings
from sysone_jax.text import Tokenizer

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 6,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A converted folder, made once; tests that spoil it copy it."""
    made: dict[str, Path] = {}

    def make(architecture: Architecture = "Qwen3ForCausalLM", head: bool = False) -> Path:
        key = f"{architecture}{head}"
        if key not in made:
            source = write_checkpoint(tmp_path_factory.mktemp("source"), architecture, head=head, **SIZES)
            made[key] = tmp_path_factory.mktemp("converted") / "model"
            convert(source, made[key], name="tiny")
        return made[key]

    return make


@pytest.fixture
def spoiled(make: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(make(), tmp_path / "model"))


def read_all(folder: Path, dtype: str = "float32", mesh: tuple[int, int] = (1, 1)) -> dict[str, jax.Array]:
    model = load_weights(folder, read_manifest(folder), make_mesh(mesh), dtype)
    return {path: variable[...] for path, variable in leaves(model)}


def sample(**changes: Any) -> tuple[Manifest, dict[str, np.ndarray], Tokenizer]:
    """What ``save`` takes, with two small arrays of no model."""
    manifest = Manifest("Qwen3ForCausalLM", {"a": [1, None, "é"]}, None, source="here", source_revision="1")
    arrays = {"x/y": np.arange(6, dtype=np.float32).reshape(2, 3), "z": np.ones(4, ml_dtypes.bfloat16)}
    folder = Path(__file__).parent / "data" / "tokenizers" / "qwen3"
    return dataclasses.replace(manifest, **changes), arrays, Tokenizer.from_pretrained(folder)


def ask(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    place = jax.sharding.NamedSharding(make_mesh((1, 1)), P())
    return {path: (array.shape, array.dtype, place) for path, array in arrays.items()}


# ------------------------------------------------------------------------------- round trips


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    manifest, arrays, tokenizer = sample()
    save(tmp_path / "deep" / "model", manifest, arrays.items(), tokenizer)
    folder = tmp_path / "deep" / "model"
    assert read_manifest(folder) == manifest
    for path, array in load_arrays(folder, ask(arrays)).items():
        assert array.dtype == arrays[path].dtype
        np.testing.assert_array_equal(np.float32(array), np.float32(arrays[path]))
    assert Tokenizer.load(folder / "tokenizer").encode("A letter") == tokenizer.encode("A letter")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_types_are_cast_while_loading(make: Callable[..., Path]) -> None:
    wide, narrow = read_all(make()), read_all(make(), "bfloat16")
    unstacked = {path for path in narrow if path.startswith("backbone/layers/0/")}
    assert unstacked, "on a CPU, bfloat16 layers are kept apart"
    for path in ("backbone/embed", "backbone/norm", "backbone/lm_head"):
        assert wide[path].dtype == jnp.float32 and narrow[path].dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(narrow[path]), np.asarray(wide[path]).astype(ml_dtypes.bfloat16))
    for path in unstacked:
        whole = np.asarray(wide[path.replace("/0/", "/")])[0]
        np.testing.assert_array_equal(np.asarray(narrow[path]), whole.astype(ml_dtypes.bfloat16))


def test_a_moved_folder_is_the_same_model(make: Callable[..., Path], spoiled: Path, tmp_path: Path) -> None:
    moved = shutil.move(spoiled, tmp_path / "else where" / "renamed ☕")
    for path, array in read_all(Path(moved)).items():
        np.testing.assert_array_equal(array, read_all(make())[path])


# ------------------------------------------------------------------------------- on a mesh

HEADS_4 = {
    "embed": P("model", None),
    "lm_head": P("model", None),
    "norm": P(None),
    "layers/attention_norm": P(None, None),
    "layers/q": P(None, None, "model", None),
    "layers/k": P(None, None, "model", None),
    "layers/v": P(None, None, "model", None),
    "layers/o": P(None, "model", None, None),
    "layers/q_norm": P(None, None),
    "layers/k_norm": P(None, None),
    "layers/mlp_norm": P(None, None),
    "layers/gate": P(None, None, "model"),
    "layers/up": P(None, None, "model"),
    "layers/down": P(None, "model", None),
}
HEADS_8 = {**HEADS_4, **{f"layers/{name}": P(None, None, None, None) for name in "qkvo"}}
"""Four key heads do not divide among eight devices, so query heads stay with them: both whole on every device."""


@pytest.mark.parametrize(("mesh", "specs"), [((1, 4), HEADS_4), ((2, 4), HEADS_4), ((1, 8), HEADS_8), ((2, 1), None)])
def test_every_weight_is_read_into_its_shards(
    make: Callable[..., Path], mesh: tuple[int, int], specs: dict[str, P] | None
) -> None:
    alone, spread = read_all(make(head=True)), read_all(make(head=True), mesh=mesh)
    places = shardings(abstract_model(read_manifest(make(head=True)), jnp.dtype("float32")), make_mesh(mesh))
    for path, array in spread.items():
        assert array.sharding == places[path]
        assert len(array.sharding.device_set) == mesh[0] * mesh[1]
        np.testing.assert_array_equal(array, alone[path])
        part, _, name = path.partition("/")
        if part == "head":
            assert array.is_fully_replicated, path
        elif specs is not None:
            assert array.sharding.spec == specs[name], path
            split = mesh[1] if "model" in specs[name] else 1
            assert array.addressable_shards[0].data.size * split == array.size
    if specs is not None:
        assert specs.keys() == {path.removeprefix("backbone/") for path in spread if path.startswith("backbone/")}


QUESTIONS = {"topic": {"type": "choice", "instructions": "About?", "criteria": {"a": "bills", "b": None, "c": "bugs"}}}


@pytest.mark.parametrize(
    ("architecture", "head", "meshes"),
    [
        ("Qwen3ForCausalLM", False, [(1, 8), (2, 4)]),
        ("LlamaForCausalLM", False, [(1, 4)]),
        ("LlamaForCausalLM", True, [(2, 4)]),
        ("Qwen3ForCausalLM", True, [(1, 8)]),
    ],
)
def test_answers_are_the_same_on_every_mesh(
    make: Callable[..., Path],
    architecture: Architecture,
    head: bool,
    meshes: list[tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path))
    folder = make(architecture, head)

    def reads(mesh: tuple[int, int]) -> list[np.ndarray]:
        with sysone_jax.load(folder, dtype="float32", mesh=mesh) as decider:
            decision = decider.decide(state="I was charged twice, and I want it back.", questions=QUESTIONS)
            return [np.array([*read.probabilities, read.label_mass]) for read in decision.reads.values()]

    alone = reads((1, 1))
    for mesh in meshes:
        for ours, wanted in zip(reads(mesh), alone, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5, err_msg=str(mesh))


# ------------------------------------------------------------------------------- what is refused


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_all(folder)
    told = str(caught.value)
    assert told.startswith(f"{folder}") and told.isprintable()
    return told


def test_another_format_is_refused_by_number(tmp_path: Path) -> None:
    manifest, arrays, tokenizer = sample(format=99)
    save(tmp_path / "model", manifest, arrays.items(), tokenizer)
    assert "has format 99; this version reads format 1: convert the model again" in refusal(tmp_path / "model")


@pytest.mark.parametrize("metadata", [None, {}, {"format": 1}, {"format": "1"}, {"note": "of another program"}])
def test_a_checkpoint_without_a_manifest(tmp_path: Path, metadata: dict[str, Any] | None) -> None:
    folder = tmp_path / "model"
    (folder / "tokenizer").mkdir(parents=True)
    ocp.save(str(folder / "weights"), {"a": np.ones(2)}, custom_metadata=metadata)
    assert refusal(folder) == f"{folder / 'files.json'} is missing; convert the model again"
    (folder / "files.json").write_text("{}")
    assert refusal(folder).endswith("convert the model again")


@pytest.mark.parametrize(
    "change", [{"architecture": 1}, {"config": []}, {"config": None}, {"head": "x"}, {"source_revision": None}]
)
def test_a_manifest_of_other_types(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest, arrays, tokenizer = sample(**change)
    save(tmp_path / "model", manifest, arrays.items(), tokenizer)
    assert "the manifest is damaged" in refusal(tmp_path / "model")


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("weights", "tokenizer"):
        (tmp_path / "model" / name).mkdir(parents=True)
        (tmp_path / "model" / name / "file").write_text("x")
    (tmp_path / "model" / "files.json").write_text('{"weights/file": 1}')
    assert checkpoint.is_converted(tmp_path / "model")
    assert "holds no readable weights" in refusal(tmp_path / "model")


@pytest.mark.parametrize(
    "change", [{"hidden_size": 40}, {"num_hidden_layers": 3}, {"vocab_size": 64}, {"tie_word_embeddings": True}]
)
def test_weights_that_do_not_fit_the_manifest(make: Callable[..., Path], change: dict[str, Any]) -> None:
    manifest = read_manifest(make())
    other = dataclasses.replace(manifest, config={**manifest.config, **change, "layer_types": None})
    with pytest.raises(
        CheckpointError, match="the weights do not fit the manifest .*; convert the model again"
    ) as told:
        load_weights(make(), other, make_mesh((1, 1)), "float32")
    assert str(told.value).isprintable()


def test_a_manifest_of_an_architecture_that_is_gone(make: Callable[..., Path]) -> None:
    other = dataclasses.replace(read_manifest(make()), architecture="GoneForCausalLM")
    with pytest.raises(CheckpointError, match="'GoneForCausalLM' is not supported"):
        load_weights(make(), other, make_mesh((1, 1)), "float32")


def test_a_file_that_is_lost_or_not_whole_is_named(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(make(), tmp_path / "model"))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "files.json")
    assert len(files) > 8 and {path.name for path in files} > {"tokenizer.json", "chat.json", "manifest.ocdbt"}
    for path in files:
        data = path.read_bytes()
        path.unlink()
        assert refusal(folder) == f"{path} is missing or not whole; convert the model again"
        for spoiled in (data[:-1], data[: len(data) // 2], b"", data + b"x"):
            if spoiled != data:
                path.write_bytes(spoiled)
                assert refusal(folder) == f"{path} is missing or not whole; convert the model again"
        path.write_bytes(data)
    read_all(folder)
    for text in ("", "[]", "{"):
        (folder / "files.json").write_text(text)
        assert "files.json" in refusal(folder)
    (folder / "files.json").unlink()
    assert refusal(folder) == f"{folder / 'files.json'} is missing; convert the model again"


# ------------------------------------------------------------------------------- saving


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    manifest, arrays, tokenizer = sample()
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("x")
    for name in ("file", "folder"):
        with pytest.raises(InputError, match=f"{name} exists and is no converted model; name a new folder"):
            save(tmp_path / name, manifest, arrays.items(), tokenizer)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", manifest, arrays.items(), tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "folder"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    manifest, arrays, tokenizer = sample()
    (tmp_path / "file").write_text("x")
    with pytest.raises(SysoneError, match="file/model cannot be written: ") as caught:
        save(tmp_path / "file" / "model", manifest, arrays.items(), tokenizer)
    assert str(caught.value).isprintable() and caught.value.exit_code == 1


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    manifest, arrays, tokenizer = sample()

    def broken() -> Iterator[tuple[str, np.ndarray]]:
        yield from arrays.items()
        raise CheckpointError("the source is cut short")

    with pytest.raises(CheckpointError, match="cut short"):
        save(tmp_path / "model", manifest, broken(), tokenizer)
    with pytest.raises(SysoneError, match="model cannot be written: "):
        save(tmp_path / "model", manifest, [("x", np.array(["text"], dtype=object))], tokenizer)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_save_never_looks_finished(make: Callable[..., Path], tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
from pathlib import Path
from sysone_jax.checkpoint import read_manifest, save
from sysone_jax.text import Tokenizer
import numpy as np
model = Path({str(make())!r})
manifest, tokenizer = read_manifest(model), Tokenizer.load(model / "tokenizer")
for number in range(1000):
    save(Path({str(tmp_path)!r}) / f"model{{number}}", manifest, [("x", np.full(10**6, number, np.float32))], tokenizer)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "model2").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    _, told = process.communicate()
    assert running and (tmp_path / "model2").exists(), told
    finished = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    for folder in finished:
        number = np.float32(folder.name.removeprefix("model"))
        read_manifest(folder)
        array = load_arrays(folder, ask({"x": np.empty(10**6, np.float32)}))["x"]
        np.testing.assert_array_equal(array, np.full(10**6, number))
        Tokenizer.load(folder / "tokenizer")


def test_two_saves_at_once_both_succeed(tmp_path: Path) -> None:
    manifest, arrays, tokenizer = sample()
    failures: list[BaseException] = []
    barrier = threading.Barrier(3)

    def work() -> None:
        barrier.wait()
        try:
            save(tmp_path / "model", manifest, arrays.items(), tokenizer)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert os.listdir(tmp_path) == ["model"]
    assert read_manifest(tmp_path / "model") == manifest
    np.testing.assert_array_equal(load_arrays(tmp_path / "model", ask(arrays))["x/y"], arrays["x/y"])


def test_the_mesh_must_fit_the_machine() -> None:
    for shape in ((1, 9), (3, 3), (0, 1), (-1, -1)):
        with pytest.raises(InputError, match=f"{shape[0]}x{shape[1]} needs .* this machine has 8"):
            sharding.make_mesh(shape)
