"""The vision tower of Qwen3.5 (``Qwen3_5VisionModel``): patches of one frame in, features of its tokens out.

What is unusual, each checked against transformers 5.24 by the parity tests:

- patches come in merge blocks (block row, block column, row in block, column in block), not in raster order, and every
  position follows that order;
- positions enter twice: a learned square table, read bilinearly so that its corners lie on the frame's corners, and a
  rotation whose first half of planes turns with the row and second half with the column;
- attention stays within one frame: the frames of a video meet only in the decoder. So the tower's unit is one frame,
  padded to a static number of patches; an image is one, and a batch of any is the caller's ``vmap``;
- the feed-forward's GELU is the tanh form, the merger's the exact one; LayerNorms throughout, with eps 1e-6;
- queries, keys and values are one matrix; every projection has a bias.

The weights are small beside the decoder's and stay whole on every device: their axes are none that a mesh splits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from sysone_jax.config import MOST_LAYERS, ConfigReader
from sysone_jax.errors import CheckpointError
from sysone_jax.ops.attention import MASKED
from sysone_jax.ops.linear import product
from sysone_jax.ops.norms import layer_norm
from sysone_jax.ops.rope import rotate, tables_of
from sysone_jax.ops.stack import run, stack
from sysone_jax.sharding import weight

EPS = 1e-6

SCORES = 1 << 20
"""Most attention scores of one head that are held at once: a frame's queries are worked through in blocks."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The numbers that decide what the weights compute; names follow the axis alphabet.

    Attributes:
        patch_values: numbers in a patch, in the order channel, frame, y, x.
        side: rows and columns of the learned table of positions.
        merge: patches on a side of what one token stands for.
        out: width of a token's features, which is the decoder's.
    """

    layers: int
    embed: int
    heads: int
    mlp: int
    patch_values: int
    side: int
    merge: int
    out: int
    theta: float

    @property
    def head_dim(self) -> int:
        return self.embed // self.heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """From a ``config.json``'s ``vision_config``; CheckpointError on unknown keys and on what is not supported."""
        reader = ConfigReader(config)
        reader.require("hidden_act", "gelu_pytorch_tanh")
        reader.require("deepstack_visual_indexes", [])
        rope = ConfigReader(reader.take("rope_parameters", dict, {}))
        rope.require("rope_type", "axial")
        channels, patch = reader.take_size("in_channels", 3), reader.take_size("patch_size", 16)
        positions = reader.take_size("num_position_embeddings", 2304)
        result = cls(
            layers=reader.take_size("depth", 27, most=MOST_LAYERS),
            embed=reader.take_size("hidden_size", 1152),
            heads=reader.take_size("num_heads", 16),
            mlp=reader.take_size("intermediate_size", 4304),
            patch_values=channels * reader.take_size("temporal_patch_size", 2) * patch**2,
            side=math.isqrt(positions),
            merge=reader.take_size("spatial_merge_size", 2),
            out=reader.take_size("out_hidden_size", 3584),
            theta=rope.take_positive("rope_theta", 10000.0),
        )
        rope.finish()
        reader.finish()
        if result.side**2 != positions:
            raise CheckpointError(f"config.json: num_position_embeddings {positions} is not the square of a number")
        if result.embed % (4 * result.heads):
            raise CheckpointError(
                f"config.json: {result.heads} vision heads do not divide a width of {result.embed} into heads whose "
                "size is a multiple of 4"
            )
        return result


class Layer(nnx.Module):
    """Attention over the whole frame, then the feed-forward, each on a normed input and added back."""

    def __init__(self, c: Config, dtype: jnp.dtype) -> None:
        self.config = c
        heads = ("vision_heads", "vision_head_dim")
        self.attention_norm = weight((c.embed,), ("vision_embed",), dtype)
        self.attention_norm_bias = weight((c.embed,), ("vision_embed",), dtype)
        self.qkv = weight((c.embed, 3, c.heads, c.head_dim), ("vision_embed", "qkv", *heads), dtype)
        self.qkv_bias = weight((3, c.heads, c.head_dim), ("qkv", *heads), dtype)
        self.o = weight((c.heads, c.head_dim, c.embed), (*heads, "vision_embed"), dtype)
        self.o_bias = weight((c.embed,), ("vision_embed",), dtype)
        self.mlp_norm = weight((c.embed,), ("vision_embed",), dtype)
        self.mlp_norm_bias = weight((c.embed,), ("vision_embed",), dtype)
        self.up = weight((c.embed, c.mlp), ("vision_embed", "vision_mlp"), dtype)
        self.up_bias = weight((c.mlp,), ("vision_mlp",), dtype)
        self.down = weight((c.mlp, c.embed), ("vision_mlp", "vision_embed"), dtype)
        self.down_bias = weight((c.embed,), ("vision_embed",), dtype)

    def __call__(
        self, x: Float[Array, "P D"], cos: Float[Array, "P 1 H"], sin: Float[Array, "P 1 H"], count: Int[Array, ""]
    ) -> Float[Array, "P D"]:
        h = layer_norm(x, self.attention_norm[...], self.attention_norm_bias[...], EPS)
        qkv = (product("PD,DXNH->XPNH", h, self.qkv[...]) + self.qkv_bias[...][:, None]).astype(x.dtype)
        mixed = frame_attention(rotate(qkv[0], cos, sin), rotate(qkv[1], cos, sin), qkv[2], count)
        x = x + (product("PNH,NHD->PD", mixed, self.o[...]) + self.o_bias[...][None]).astype(x.dtype)
        h = layer_norm(x, self.mlp_norm[...], self.mlp_norm_bias[...], EPS)
        wide = jax.nn.gelu(product("PD,DF->PF", h, self.up[...]) + self.up_bias[...][None], approximate=True)
        out = product("PF,FD->PD", wide.astype(x.dtype), self.down[...]) + self.down_bias[...][None]
        return x + out.astype(x.dtype)


class Merger(nnx.Module):
    """The patches of a block, normed one by one and joined, become one token of the decoder's width."""

    def __init__(self, c: Config, dtype: jnp.dtype) -> None:
        joined = c.merge**2 * c.embed
        self.norm = weight((c.embed,), ("vision_embed",), dtype)
        self.norm_bias = weight((c.embed,), ("vision_embed",), dtype)
        self.up = weight((joined, joined), ("vision_block", "vision_mlp"), dtype)
        self.up_bias = weight((joined,), ("vision_mlp",), dtype)
        self.down = weight((joined, c.out), ("vision_mlp", "embed"), dtype)
        self.down_bias = weight((c.out,), ("embed",), dtype)

    def __call__(self, x: Float[Array, "P D"]) -> Float[Array, "T E"]:
        joined = layer_norm(x, self.norm[...], self.norm_bias[...], EPS).reshape(-1, self.up.shape[0])
        wide = jax.nn.gelu(product("TX,XF->TF", joined, self.up[...]) + self.up_bias[...][None], approximate=False)
        out = product("TF,FE->TE", wide.astype(x.dtype), self.down[...]) + self.down_bias[...][None]
        return out.astype(x.dtype)


class Tower(nnx.Module):
    """Patches of one frame -> features of its tokens."""

    def __init__(self, config: Config, dtype: jnp.dtype) -> None:
        self.config = config
        self.patch = weight((config.patch_values, config.embed), ("patch", "vision_embed"), dtype)
        self.patch_bias = weight((config.embed,), ("vision_embed",), dtype)
        self.positions = weight((config.side**2, config.embed), ("positions", "vision_embed"), dtype)
        self.layers = stack(config.layers, lambda: Layer(config, dtype))
        self.merger = Merger(config, dtype)

    def __call__(self, patches: Float[Array, "P X"], grid: Int[Array, " 2"]) -> Float[Array, "T E"]:
        """The features of one frame.

        Args:
            patches: normalised pixels in merge-block order, padded to a static number, a multiple of ``merge^2``.
            grid: rows and columns of patches; multiples of ``merge``. Patches past ``rows * columns`` are padding.

        Returns:
            ``rows * columns / merge^2`` tokens, then as many rows without meaning as the padding made.
        """
        c = self.config
        rows, columns = places(patches.shape[0], grid, c.merge)
        x = product("PX,XD->PD", patches.astype(self.patch.dtype), self.patch[...]) + self.patch_bias[...][None]
        x = x.astype(self.patch.dtype)
        x = x + self._learned(rows, columns, grid).astype(x.dtype)
        spatial = c.head_dim // 2
        period = np.float32(c.theta) ** (np.arange(0, spatial, 2, dtype=np.float32) / np.float32(spatial))
        turns = jnp.stack([rows, columns], axis=1).astype(jnp.float32)[..., None] * jnp.asarray(1 / period)[None, None]
        angles = turns.reshape(-1, spatial)
        (cos, sin), count = tables_of(angles), grid[0] * grid[1]
        x, _ = run(self.layers, lambda layer, x, _: (layer(x, cos, sin, count), None), x, None)
        return self.merger(x)

    def _learned(
        self, rows: Int[Array, " P"], columns: Int[Array, " P"], grid: Int[Array, " 2"]
    ) -> Float[Array, "P D"]:
        """The table at each patch's place, between its four nearest entries, in float32."""
        side = self.config.side
        table = self.positions[...].astype(jnp.float32)
        (top, bottom, down), (left, right, across) = (
            _between(places, size, side) for places, size in ((rows, grid[0]), (columns, grid[1]))
        )
        return (
            table[top * side + left] * ((1 - down) * (1 - across))[:, None]
            + table[top * side + right] * ((1 - down) * across)[:, None]
            + table[bottom * side + left] * (down * (1 - across))[:, None]
            + table[bottom * side + right] * (down * across)[:, None]
        )


def places(count: int, grid: Int[Array, " 2"], merge: int) -> tuple[Int[Array, " P"], Int[Array, " P"]]:
    """Row and column of each of ``count`` patches in merge-block order; those of padding go on below the frame."""
    block, within = jnp.divmod(jnp.arange(count, dtype=jnp.int32), merge**2)
    block_row, block_column = jnp.divmod(block, jnp.maximum(grid[1] // merge, 1))
    return block_row * merge + within // merge, block_column * merge + within % merge


def frame_attention(
    q: Float[Array, "P N H"], k: Float[Array, "P N H"], v: Float[Array, "P N H"], count: Int[Array, ""]
) -> Float[Array, "P N H"]:
    """Softmax attention of every patch over the first ``count``; the rest are padding that nothing sees."""
    patches, _, head_dim = q.shape
    seen = (jnp.arange(patches) < count)[None, None]
    scaled = q * jnp.asarray(head_dim**-0.5, q.dtype)

    def attend(queries: Float[Array, "B N H"]) -> Float[Array, "B N H"]:
        scores = jnp.where(seen, product("BNH,PNH->NBP", queries, k), MASKED)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        return product("NBP,PNH->BNH", weights, v).astype(q.dtype)

    block = math.gcd(patches, 1 << max(SCORES // patches, 64).bit_length() - 1)
    if block == patches:
        return attend(scaled)
    return jax.lax.map(attend, scaled.reshape(-1, block, *q.shape[1:])).reshape(q.shape)


def _between(places: Int[Array, " P"], size: Int[Array, ""], side: int) -> tuple[Array, Array, Array]:
    """Of each place on an axis of ``size``: the table's entries before and behind it, and how far it is between."""
    at = places.astype(jnp.float32) * (side - 1) / jnp.maximum(size - 1, 1).astype(jnp.float32)
    before = jnp.floor(at)
    index = before.astype(jnp.int32)
    return jnp.clip(index, 0, side - 1), jnp.clip(index + 1, 0, side - 1), at - before


@jax.jit
def encode(tower: Tower, patches: Float[Array, "Q P X"], grids: Int[Array, "Q 2"]) -> Float[Array, "Q T E"]:
    """Several frames at once, each padded to the same number of patches. A frame's result depends on it alone."""
    return jax.vmap(tower)(patches, grids)


def build(config: Config, dtype: jnp.dtype) -> Tower:
    """The tower of ``config``; call it under ``sharding.abstract``."""
    return Tower(config, dtype)
