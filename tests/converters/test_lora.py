"""A low-rank update on a base: the sum, and a refusal for every tensor that has no place in it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from converters.lora import LoraSource
from sysone_jax.errors import CheckpointError

RNG = np.random.default_rng(0)
BASE = {
    "model.embed_tokens.weight": RNG.normal(size=(7, 5)),
    **{f"model.layers.{layer}.q_proj.weight": RNG.normal(size=(6, 5)) for layer in range(12)},
    **{f"model.layers.{layer}.norm.weight": RNG.normal(size=5) for layer in range(12)},
}
DOWN, UP = "model.layers.3.q_proj.lora_A.weight", "model.layers.3.q_proj.lora_B.weight"
LORA = {DOWN: RNG.normal(size=(2, 5)), UP: RNG.normal(size=(6, 2))}


class Arrays:
    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = {name: array.astype(np.float32) for name, array in arrays.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]


def test_the_update_is_added_to_its_matrix_alone() -> None:
    source = LoraSource(Arrays(BASE), Arrays(LORA), layers=11)
    for name in source.shapes():
        wanted = BASE[name] + (LORA[UP] @ LORA[DOWN] if name == "model.layers.3.q_proj.weight" else 0.0)
        np.testing.assert_allclose(source.read(name), wanted, atol=1e-6)
        assert source.read(name).dtype == np.float32


def test_layers_past_the_cut_are_gone() -> None:
    kept = LoraSource(Arrays(BASE), Arrays(LORA), layers=4).shapes()
    assert kept.keys() == {name for name in BASE if "layers" not in name or int(name.split(".")[2]) < 4}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({UP: None}, f"{DOWN} has no partner"),
        ({DOWN: None}, f"{UP} has no partner"),
        ({"model.layers.9.q_proj.lora_A.weight": np.ones((2, 5))}, "layers.9.q_proj.lora_A.weight updates no tensor"),
        ({"model.layers.3.x.lora_A.weight": np.ones((2, 5))}, "model.layers.3.x.lora_A.weight updates no tensor"),
        ({"model.layers.3.q_proj.alpha": np.ones(())}, "model.layers.3.q_proj.alpha updates no tensor of the base"),
        ({UP: np.ones((6, 3))}, r"\[6, 3\] x \[2, 5\] does not make model.layers.3.q_proj.weight \[6, 5\]"),
        ({UP: np.ones((5, 2))}, r"\[5, 2\] x \[2, 5\] does not make model.layers.3.q_proj.weight \[6, 5\]"),
        ({UP: np.ones(12)}, r"\[12\] x \[2, 5\] does not make"),
    ],
)
def test_what_has_no_place_is_refused_by_name(change: Mapping[str, np.ndarray | None], told: str) -> None:
    lora = {name: array for name, array in {**LORA, **change}.items() if array is not None}
    with pytest.raises(CheckpointError, match=f"the LoRA does not fit its base: .*{told}"):
        LoraSource(Arrays(BASE), Arrays(lora), layers=8)
