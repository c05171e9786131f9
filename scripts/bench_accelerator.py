#!/usr/bin/env python
"""How much of a device's matrix-product rate a prefill reaches, and what questions cost beside it.

    .venv/bin/python scripts/bench_accelerator.py [CONFIG] [--state 2048] [--questions 8] [--suffix 48] [--rounds 9]

CONFIG is the `config.json` of a dense model of label reads, by default the 9B shape of Qwen3.5. Its weights are random
and made on the devices; nothing is fetched. Three things are timed in turn, so that what else goes on falls on all of
them: one large product, the state alone, and the state with all its questions, from token ids to logits on the host.
The rate of a prefill counts the products with the layers' weights alone, two operations a weight and token.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sysone_jax import sharding
from sysone_jax.checkpoint import Manifest
from sysone_jax.config import read_json
from sysone_jax.loading import DTYPES, PREFIX_CACHE_BYTES, arranged, default_dtype
from sysone_jax.model import Model, abstract_model
from sysone_jax.prompts.labels import LabelPrompt
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import Grid
from sysone_jax.reader.rows import fill_rows, plan_calls

CONFIG = Path(__file__).parents[1] / "tests" / "data" / "real_configs" / "qwen3.5-9b.json"
LABELS = (330, 378, 340, 407)
PRODUCT = {"cpu": 1536}
PRODUCT_ELSEWHERE = 8192
"""Rows and columns of the large product."""


def random_model(config: Path, mesh: jax.sharding.Mesh, dtype: str) -> Model:
    """A model with normal weights of a small deviation, each drawn where it lies."""
    numbers = read_json(config)
    manifest = Manifest(numbers["architectures"][0], numbers, None, "random weights", "0")
    model = abstract_model(manifest, np.dtype(dtype))
    places = sharding.shardings(model, mesh)
    arrays = {}
    for index, (path, leaf) in enumerate(sharding.leaves(model)):
        draw = jax.jit(
            lambda key, shape=leaf.shape, kind=leaf.dtype: 0.02 * jax.random.normal(key, shape, kind),
            out_shardings=places[path],
        )
        with jax.set_mesh(mesh):
            arrays[path] = draw(jax.random.key(index))
    return arranged(sharding.fill(model, arrays), mesh, dtype)


def median_seconds(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Of every contender over the rounds, each of which runs all in turn; the first compiles and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("config", metavar="CONFIG", nargs="?", type=Path, default=CONFIG)
    parser.add_argument("--dtype", choices=DTYPES, default=default_dtype())
    parser.add_argument("--state", type=int, default=2048, help="tokens of the state")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--suffix", type=int, default=48, help="tokens of each question")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()

    mesh = sharding.make_mesh()
    platform = jax.default_backend()
    model = random_model(args.config, mesh, args.dtype)
    weights = sum(math.prod(leaf.shape) for path, leaf in sharding.leaves(model) if "/layers/" in path)
    longest = args.state + args.suffix
    engine = Engine(
        model,
        mesh,
        Grid.of(longest, platform, args.dtype),
        precision="highest" if args.dtype == "float32" else "default",
        prefix_cache_bytes=PREFIX_CACHE_BYTES,
    )
    rng = np.random.default_rng(0)
    state = tuple(rng.integers(1000, size=args.state).tolist())
    prompts = [
        LabelPrompt((*state, *rng.integers(1000, size=args.suffix).tolist()), args.state, LABELS)
        for _ in range(args.questions)
    ]
    size = PRODUCT.get(platform, PRODUCT_ELSEWHERE)
    square = jnp.ones((size, size), args.dtype)
    product = jax.jit(lambda a: jnp.dot(a, a, preferred_element_type=jnp.float32))

    def state_alone() -> None:
        engine.submit(lambda: jax.block_until_ready(engine.prefix_state(state, object()))).result()

    def whole_request() -> None:
        def work() -> None:
            salt = object()
            for call in plan_calls(prompts, engine.grid, "exact"):
                engine.read_labels(engine.prefix_state(call.prefix, salt), fill_rows(prompts, call))

        engine.submit(work).result()

    took = median_seconds(
        {
            "product": lambda: product(square).block_until_ready(),
            "state": state_alone,
            "request": whole_request,
        },
        args.rounds,
    )
    engine.close()
    rate, reached = 2 * size**3 / took["product"], 2 * weights * args.state / took["state"]
    share, times = reached / rate / mesh.size, took["request"] / took["state"]
    kind = jax.devices()[0].device_kind
    print(f"{args.config.name} in {args.dtype} on {mesh.size} x {kind}, medians of {args.rounds}:")
    for what, figure in (
        (f"matrix product of {size}", f"{rate / 1e12:.2f} Tflop/s"),
        (
            f"prefill of {args.state} tokens",
            f"{reached / 1e12:.2f} Tflop/s, {1e3 * took['state']:.1f} ms: {share:.0%} of it",
        ),
        (
            f"with {args.questions} questions of {args.suffix}",
            f"{1e3 * took['request']:.1f} ms: {times:.2f} times that",
        ),
    ):
        print(f"  {what:<28}{figure}")


if __name__ == "__main__":
    main()
