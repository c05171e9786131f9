"""Reading safetensors: single, sharded, and damaged in every way that a download or a disk damages them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from converters.safetensors_source import SafetensorsSource
from sysone_jax.errors import CheckpointError

Copy = Callable[..., Path]


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsSource(folder)
    assert str(caught.value).isprintable()
    return str(caught.value)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def edit_index(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(edit(index["weight_map"]) or index))


@pytest.mark.parametrize("count", [1, 4])
def test_tensors_are_read_as_they_are(checkpoint_copy: Copy, count: int) -> None:
    folder = checkpoint_copy(shards=count, dtype="bfloat16")
    files = shards(folder) if count > 1 else [folder / "model.safetensors"]
    assert len(files) >= count
    source = SafetensorsSource(folder)
    wanted = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    for name, tensor in wanted.items():
        array = source.read(name)
        assert array.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(np.float32(array), tensor.float().numpy())


def test_a_single_file_goes_before_an_index(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(shards=4)
    save_file({"only": torch.ones(2)}, folder / "model.safetensors")
    assert SafetensorsSource(folder).shapes() == {"only": (2,)}


def test_no_weights(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path / 'model.safetensors'} is missing; download the checkpoint again"


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    assert "model.safetensors is missing" in refusal(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.001, 0.01, 0.3, 0.999])
@pytest.mark.parametrize("count", [1, 4])
def test_a_file_that_is_cut_short(checkpoint_copy: Copy, count: int, share: float) -> None:
    folder = checkpoint_copy(shards=count)
    path = shards(folder)[-1] if count > 1 else folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert refusal(folder).startswith(f"{path} is damaged or cut short (")


def test_a_file_that_is_cut_by_one_byte_or_holds_one_more(checkpoint_copy: Copy) -> None:
    path = checkpoint_copy() / "model.safetensors"
    data = path.read_bytes()
    for damaged in (data[:-1], data + b"\0", data[:7], data[:8], struct.pack("<Q", 2**63) + data[8:]):
        path.write_bytes(damaged)
        assert refusal(path.parent).startswith(f"{path} is damaged or cut short (")


def test_a_shard_that_is_missing(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(shards=4)
    lost = shards(folder)[1]
    lost.unlink()
    assert refusal(folder) == f"{lost} is missing; download the checkpoint again"


def test_a_shard_without_a_tensor_that_the_index_puts_there(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(shards=4)
    first = shards(folder)[0]
    edit_index(folder, lambda weight_map: weight_map.update({f"extra.{n}": first.name for n in range(5)}))
    assert f"{first} lacks tensors that the index puts there: extra.0, extra.1, extra.2 and 2 more;" in refusal(folder)


def test_a_tensor_in_two_shards(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(shards=4)
    first, second = shards(folder)[:2]
    save_file({**load_file(second), "model.embed_tokens.weight": torch.ones(2)}, second)
    assert refusal(folder) == f"{second} and {first.name} both hold model.embed_tokens.weight"


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/hostname", "..", "sub/x.safetensors", "", "a\nb", "\0"])
def test_an_index_that_leads_elsewhere(checkpoint_copy: Copy, file: str) -> None:
    folder = checkpoint_copy(shards=4)
    (folder.parent / "model.safetensors").write_bytes(b"x")
    edit_index(folder, lambda weight_map: weight_map.update({"model.norm.weight": file}))
    told = refusal(folder)
    assert "names a file that is not beside it" in told or "is missing" in told


def test_a_shard_name_that_is_too_long(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy(shards=4)
    edit_index(folder, lambda weight_map: weight_map.update({"model.norm.weight": "x" * 5000}))
    assert "is damaged or cut short" in refusal(folder)


@pytest.mark.parametrize("weight_map", [None, [], "x", {"a": 1}, {"a": None}, {"a": ["model.safetensors"]}])
def test_an_index_of_another_form(checkpoint_copy: Copy, weight_map: Any) -> None:
    folder = checkpoint_copy(shards=4)
    edit_index(folder, lambda _: {"weight_map": weight_map})
    assert "has no weight_map of tensor names to file names" in refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{'a': 1}", "[" * 100_000, '{"weight_map": NaN', "\ud800"])
def test_an_index_that_is_no_json(checkpoint_copy: Copy, text: str) -> None:
    folder = checkpoint_copy(shards=4)
    path = folder / "model.safetensors.index.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert refusal(folder).startswith(f"{path} ")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn])
def test_a_quantized_tensor_is_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a.weight": torch.ones(3), "b.weight": torch.ones(3).to(dtype)}, tmp_path / "model.safetensors")
    told = refusal(tmp_path)
    assert "model.safetensors: b.weight is stored as " in told and told.endswith("are supported, not quantized ones")


def test_a_byte_of_damage_is_refused_or_harmless(checkpoint_copy: Copy) -> None:
    """Whatever byte of a header is hit, nothing but CheckpointError comes out, and what opens can be read."""
    path = checkpoint_copy() / "model.safetensors"
    data = path.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    rng = random.Random(0)
    refused = 0
    for _ in range(400):
        at = rng.randrange(header)
        path.write_bytes(data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :])
        try:
            source = SafetensorsSource(path.parent)
            for name, shape in source.shapes().items():
                assert source.read(name).shape == shape
        except CheckpointError as error:
            assert str(error).isprintable(), repr(str(error))
            refused += 1
    assert 150 < refused < 400


def test_a_file_that_changes_between_opening_and_reading(checkpoint_copy: Copy) -> None:
    folder = checkpoint_copy()
    source = SafetensorsSource(folder)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="is damaged or cut short"):
        source.read("model.norm.weight")
