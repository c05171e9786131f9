"""A row's bits depend neither on its slot in a call nor on the rows beside it, in every program of several rows."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from sysone_jax import sharding
from sysone_jax.checkpoint import Manifest
from sysone_jax.loading import arranged
from sysone_jax.model import Model, abstract_model
from sysone_jax.reader import programs
from sysone_jax.reader.grid import Grid
from sysone_jax.reader.rows import LABEL_SLOTS

PREFIX, ROOM = 200, 256

SIZES = {
    "odd": {"hidden_size": 60, "intermediate_size": 92, "num_attention_heads": 6, "num_key_value_heads": 2},
    "smol": {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3},
}
"""Widths that no vector divides, and those of SmolLM2-135M, whose products are large enough for several threads."""


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=SIZES)
def model(request: pytest.FixtureRequest, dtype: str) -> Iterator[Model]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 1000,
        "num_hidden_layers": 3,
        "tie_word_embeddings": True,
        **SIZES[request.param],
    }
    mesh = sharding.make_mesh((1, 1))
    abstract = abstract_model(Manifest("LlamaForCausalLM", config, None, "random weights", "0"), np.dtype(dtype))
    places, rng = sharding.shardings(abstract, mesh), np.random.default_rng(0)

    def draw(path: str, shape: tuple[int, ...]) -> np.ndarray:
        values = rng.standard_normal(shape, np.float32) * (0.02 if path.endswith("norm") else 0.1)
        return values + path.endswith("norm")

    arrays = {
        path: jax.device_put(draw(path, variable.shape).astype(variable.dtype), places[path])
        for path, variable in sharding.leaves(abstract)
    }
    with jax.set_mesh(mesh):
        yield arranged(sharding.fill(abstract, arrays), mesh, dtype)


def test_a_row_has_the_same_bits_in_every_slot_and_beside_any_other(model: Model, dtype: str) -> None:
    rng = np.random.default_rng(1)
    grid = Grid.of(1024, jax.default_backend(), dtype)

    def rows(width: int, suffix: int) -> programs.Row:
        lengths = rng.integers(1, suffix + 1, width)
        return programs.Row(
            rng.integers(1000, size=(width, suffix)).astype(np.int32),
            lengths.astype(np.int32),
            rng.integers(1000, size=(width, LABEL_SLOTS)).astype(np.int32),
        )

    state = programs.prefill(model, rng.integers(1000, size=ROOM).astype(np.int32), np.int32(PREFIX), room=ROOM)
    shapes = [(grid.rows(suffix), suffix) for suffix in grid.suffix if grid.rows(suffix) > 1]
    assert shapes
    for width, suffix in shapes:
        row = rows(1, suffix)
        row.length[0] = suffix - 1
        seen = set()
        for slot in range(width):
            call = rows(width, suffix)
            for whole, own in zip(call, row, strict=True):
                whole[slot] = own[0]
            result = jax.device_get(programs.read_labels(model, state, call))
            seen.add((result.labels[slot].tobytes(), result.total[slot].tobytes(), int(result.top[slot])))
        assert len(seen) == 1, f"{width} rows of {suffix} tokens"


def test_a_program_gives_the_same_bits_every_time(model: Model) -> None:
    tokens = np.random.default_rng(2).integers(1000, size=ROOM).astype(np.int32)
    states = [programs.prefill(model, tokens, np.int32(PREFIX), room=ROOM) for _ in range(20)]
    first, *others = ([leaf.tobytes() for leaf in jax.tree.leaves(jax.device_get(state))] for state in states)
    assert all(other == first for other in others)
