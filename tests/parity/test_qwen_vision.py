"""The vision tower against transformers' own, in float32, on random weights of three seeds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

from converters.qwen_vision import PREFIXES, rules
from converters.tables import Assignment
from sysone_jax.backbones import qwen_vision
from sysone_jax.backbones.qwen_vision import Tower, encode
from sysone_jax.errors import CheckpointError
from sysone_jax.sharding import abstract, fill, leaves, make_mesh, shardings

# No size is a default or follows from another, and the table's side is neither any grid's nor a power of two.
SIZES = {
    "depth": 3,
    "hidden_size": 48,
    "num_heads": 3,
    "intermediate_size": 76,
    "in_channels": 3,
    "patch_size": 6,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 40,
    "num_position_embeddings": 49,
    "initializer_range": 0.2,
}
# (frames, rows, columns): one block, one row of blocks, a video, the table's own side and one that is larger
GRIDS = ((1, 2, 2), (1, 2, 18), (3, 4, 6), (1, 8, 6), (1, 14, 10))


class Weights:
    """A torch module's tensors as a converter's source."""

    def __init__(self, module: torch.nn.Module, prefix: str) -> None:
        self._tensors = {prefix + name: tensor.numpy() for name, tensor in module.state_dict().items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        return self._tensors[name]


def models(seed: int, prefix: str = PREFIXES[0], **overrides: int) -> tuple[Qwen3_5VisionModel, Tower]:
    """The same random weights in transformers and here."""
    config = Qwen3_5VisionConfig(**{**SIZES, **overrides})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        theirs = Qwen3_5VisionModel._from_config(config, attn_implementation="eager").eval()
        for name, weight in theirs.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.2)
            elif weight.ndim == 1:
                weight.uniform_(0.5, 1.5)
    tower = abstract(lambda: qwen_vision.build(qwen_vision.Config.from_hf(config.to_dict()), jnp.dtype("float32")))
    table = Assignment(rules(prefix), Weights(theirs, prefix), tower)
    return theirs, fill(tower, {path: jnp.asarray(array) for path, array in table.arrays()})


def draw(seed: int, grids: tuple[tuple[int, int, int], ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((np.prod(grid), 216), np.float32) for grid in grids]


def features(tower: Tower, patches: np.ndarray, grid: tuple[int, int, int], room: int, filler: float = 0) -> np.ndarray:
    """One item's features, its frames padded with ``filler`` to ``room`` patches each."""
    frames = patches.reshape(grid[0], grid[1] * grid[2], -1)
    padded = np.full((grid[0], room, frames.shape[2]), filler, np.float32)
    padded[:, : frames.shape[1]] = frames
    out = encode(tower, padded, np.full((grid[0], 2), grid[1:], np.int32))
    return np.asarray(out)[:, : frames.shape[1] // 4].reshape(-1, out.shape[-1])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_features_equal_the_references(seed: int, prefix: str) -> None:
    theirs, tower = models(seed, prefix)
    patches = draw(seed, GRIDS)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(np.concatenate(patches)), torch.tensor(GRIDS)).pooler_output.numpy()
    got = np.concatenate([features(tower, x, grid, 160) for x, grid in zip(patches, GRIDS, strict=True)])
    assert np.abs(got - wanted).max() <= 5e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("merge", [1, 3])
def test_other_merge_sizes(merge: int) -> None:
    grid = (2, 2 * merge, 4 * merge)
    theirs, tower = models(3, spatial_merge_size=merge)
    (patches,) = draw(3, (grid,))
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(patches), torch.tensor([grid])).pooler_output.numpy()
    got = np.asarray(encode(tower, patches.reshape(2, -1, 216), np.full((2, 2), grid[1:], np.int32)))
    assert np.abs(got.reshape(wanted.shape) - wanted).max() <= 5e-6 * np.abs(wanted).max()


def test_features_do_not_depend_on_the_mesh() -> None:
    _, tower = models(0)
    (patches,) = draw(0, ((1, 8, 6),))
    alone = features(tower, patches, (1, 8, 6), 64)
    mesh = make_mesh((1, 2))
    with jax.set_mesh(mesh):
        placed = shardings(tower, mesh)
        spread = fill(tower, {path: jax.device_put(weight[...], placed[path]) for path, weight in leaves(tower)})
        assert np.array_equal(features(spread, patches, (1, 8, 6), 64), alone)


@pytest.mark.parametrize("filler", [0.0, 1e4])
def test_padding_is_inert(filler: float) -> None:
    _, tower = models(0)
    grid = (1, 4, 6)
    (patches,) = draw(0, (grid,))
    exact, padded = features(tower, patches, grid, 24), features(tower, patches, grid, 64, filler)
    np.testing.assert_allclose(padded, exact, atol=2e-6 * np.abs(exact).max(), rtol=0)


def test_padding_leaves_no_trace_in_the_bits() -> None:
    """What is in the padding, and in the frames beside, cannot show: masked scores have weight zero exactly."""
    _, tower = models(0)
    (patches,) = draw(0, ((1, 4, 6),))
    alone = features(tower, patches, (1, 4, 6), 64)
    assert np.array_equal(features(tower, patches, (1, 4, 6), 64, 1e4), alone)
    pair = features(tower, np.concatenate([patches, 9 * patches]), (2, 4, 6), 64)
    swapped = features(tower, np.concatenate([patches, -patches]), (2, 4, 6), 64)
    assert np.array_equal(pair[:6], swapped[:6])


def test_an_empty_frame_is_finite() -> None:
    _, tower = models(0)
    assert np.isfinite(np.asarray(encode(tower, np.zeros((1, 16, 216), np.float32), np.zeros((1, 2), np.int32)))).all()


def test_blocks_of_queries_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((384, 2, 8), np.float32)) for _ in range(3))
    whole = qwen_vision.frame_attention(q, k, v, jnp.int32(300))
    monkeypatch.setattr(qwen_vision, "SCORES", 1)
    blocked = qwen_vision.frame_attention(q, k, v, jnp.int32(300))
    np.testing.assert_allclose(blocked, whole, atol=1e-6)


def test_bfloat16_follows_the_float32_features() -> None:
    theirs, tower = models(0)
    half = abstract(lambda: qwen_vision.build(tower.config, jnp.dtype("bfloat16")))
    table = Assignment(rules(PREFIXES[0]), Weights(theirs, PREFIXES[0]), half)
    half = fill(half, {path: jnp.asarray(array, jnp.bfloat16) for path, array in table.arrays()})
    (patches,) = draw(0, ((1, 8, 6),))
    wanted, got = features(tower, patches, (1, 8, 6), 64), features(half, patches, (1, 8, 6), 64)
    assert np.abs(got.astype(np.float32) - wanted).max() <= 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"deepstack_visual_indexes": [1]}, "deepstack_visual_indexes"),
        ({"num_position_embeddings": 50}, "50 is not the square"),
        ({"hidden_size": 54}, "multiple of 4"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, "rope_type"),
        ({"window_size": 112}, "window_size"),
        ({"depth": 0}, "depth"),
    ],
)
def test_a_config_that_is_not_computed_is_refused(change: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        qwen_vision.Config.from_hf({**SIZES, "hidden_act": "gelu_pytorch_tanh", **change})


def test_the_released_config() -> None:
    """Qwen3.5's ``vision_config``, with the keys that its files hold."""
    config = qwen_vision.Config.from_hf(
        {
            "deepstack_visual_indexes": [],
            "depth": 27,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 4304,
            "model_type": "qwen3_5",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 4096,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        }
    )
    assert (config.head_dim, config.side, config.patch_values, config.out) == (72, 48, 1536, 4096)
