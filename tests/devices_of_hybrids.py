"""Prints how far a hybrid checkpoint's logits on eight devices are from those on one, of the largest, as JSON.

A process of its own: the number of devices is settled when jax starts, and so is the number of threads behind them.
Devices of one processor wait for one another in collectives, each on a thread, and hybrids have many: NPROC asks for
more threads than there are processors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

from sysone_jax.checkpoint import read_manifest
from sysone_jax.loading import load_weights
from sysone_jax.model import Model
from sysone_jax.reader.rows import pad_tokens
from sysone_jax.sharding import make_mesh

ENVIRONMENT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "16"}


@jax.jit
def full(model: Model, tokens: jax.Array, length: jax.Array) -> jax.Array:
    return jax.vmap(model.backbone.logits)(model.backbone.encode(tokens, length))


def logits(folder: Path, shape: tuple[int, int]) -> np.ndarray:
    mesh = make_mesh(shape)
    tokens = np.random.default_rng(0).integers(0, 400, 70, dtype=np.int32)
    model = load_weights(folder, read_manifest(folder), mesh, "float32")
    with jax.set_mesh(mesh), jax.default_matmul_precision("highest"):
        return np.asarray(full(model, pad_tokens(tokens, 96), np.int32(70)))[:70]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    one = logits(folder, (1, 1))
    print(
        json.dumps(
            {
                f"{data}x{model}": float(np.abs(logits(folder, (data, model)) - one).max() / np.abs(one).max())
                for data, model in ((1, 8), (2, 4), (8, 1))
            }
        )
    )
