"""The experts against a loop over them, alone, under ``vmap`` and split over devices."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sysone_jax.ops.moe import experts_mlp, route
from sysone_jax.sharding import make_mesh

TOKENS, EMBED, EXPERTS, WIDTH, CHOSEN = 23, 12, 8, 16, 3


WIDE = {"gate": P(None, None, "model"), "up": P(None, None, "model"), "down": P(None, "model", None)}
WHOLE = dict.fromkeys(("gate", "up", "down"), P("model", None, None))


@pytest.fixture(params=[WIDE, WHOLE], ids=["width split", "experts split"])
def split(request: pytest.FixtureRequest) -> dict[str, P]:
    return request.param


@pytest.fixture(params=[(1, 1), (1, 8)])
def mesh(request: pytest.FixtureRequest) -> Iterator[jax.sharding.Mesh]:
    made = make_mesh(request.param)
    with jax.set_mesh(made):
        yield made


def draw(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "x": (TOKENS, EMBED),
        "router": (EMBED, EXPERTS),
        "gate": (EXPERTS, EMBED, WIDTH),
        "up": (EXPERTS, EMBED, WIDTH),
        "down": (EXPERTS, WIDTH, EMBED),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def by_loop(x: np.ndarray, router: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    x, router, gate, up, down = (array.astype(np.float64) for array in (x, router, gate, up, down))
    scores = np.exp(x @ router)
    probabilities = scores / scores.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for token, row in enumerate(probabilities):
        chosen = np.argsort(-row)[:CHOSEN]
        for expert in chosen:
            g, u = x[token] @ gate[expert], x[token] @ up[expert]
            out[token] += row[expert] / row[chosen].sum() * ((g / (1 + np.exp(-g)) * u) @ down[expert])
    return out


@jax.jit
def mixed(x, router, gate, up, down):
    weights, experts = route(x, router, CHOSEN)
    return experts_mlp(x, weights, experts, gate, up, down)


@jax.jit
def mixed_rows(x, router, gate, up, down):
    return jax.vmap(mixed, in_axes=(0, None, None, None, None))(x, router, gate, up, down)


def placed(mesh: jax.sharding.Mesh, split: dict[str, P], drawn: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jax.device_put(array, NamedSharding(mesh, split.get(name, P()))) for name, array in drawn.items()}


@pytest.mark.parametrize("seed", range(3))
def test_every_token_gets_its_own_experts(mesh: jax.sharding.Mesh, split: dict[str, P], seed: int) -> None:
    drawn = draw(seed)
    wanted = by_loop(**drawn)
    assert np.abs(mixed(**placed(mesh, split, drawn)) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_batch_of_sequences_is_folded_and_not_refused(mesh: jax.sharding.Mesh, split: dict[str, P]) -> None:
    drawn = draw()
    rows = np.stack([draw(seed)["x"] for seed in range(4)])
    out = mixed_rows(**placed(mesh, split, {**drawn, "x": rows}))
    for x, got in zip(rows, out, strict=True):
        wanted = by_loop(**{**drawn, "x": x})
        assert np.abs(got - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_token_has_the_same_bits_whatever_its_neighbours_choose() -> None:
    with jax.set_mesh(make_mesh((1, 1))):
        drawn = draw()
        alone = np.asarray(mixed(**drawn))
        for seed in range(1, 6):
            others = {**drawn, "x": draw(seed)["x"]}
            for place in (0, 11, TOKENS - 1):
                others["x"][place] = drawn["x"][5]
                assert np.array_equal(np.asarray(mixed(**others))[place], alone[5])
