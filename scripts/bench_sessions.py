#!/usr/bin/env python
"""How much faster several schemas about one state are read when the state is kept, against as many full passes.

    .venv/bin/python scripts/bench_sessions.py [--rounds N] [--schemas 5] [--state 2000] [--fields 2] [--dtype float32]

The model has the default model's shape and random weights; nothing is fetched. In each round both contenders answer the
same new schemas about the same new state, in a new order, so that what else the machine does falls on both alike; the
ratio is taken within rounds. A full pass is what a request costs whose state nobody read before: the same programs, on
an empty cache. The script fails when a single bit of an answer differs between the two.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from sysone_jax import builtin, sharding
from sysone_jax.checkpoint import Manifest
from sysone_jax.config import read_json
from sysone_jax.heads.joint_schema import Schema
from sysone_jax.loading import DTYPES, PREFIX_CACHE_BYTES, arranged
from sysone_jax.model import Model, abstract_model
from sysone_jax.prompts.joint_schema import JointPrompt
from sysone_jax.reader.engine import Engine
from sysone_jax.reader.grid import Grid
from sysone_jax.reader.rows import fill_schema

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": builtin.MINI_LAYERS,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
FIELD, OPTIONS = 88, 3
"""Tokens of a question, and its options."""

Request = tuple[JointPrompt, Schema]


def random_model(mesh: jax.sharding.Mesh, dtype: str) -> Model:
    head = read_json(builtin.MINI / "joint_head_config.json")
    model = abstract_model(Manifest("LlamaForCausalLM", CONFIG, head, "random", "0"), np.dtype(dtype))
    places = sharding.shardings(model, mesh)
    drawn = np.random.default_rng(0)
    arrays = {}
    for path, variable in sharding.leaves(model):
        values = drawn.standard_normal(variable.shape, np.float32) * (variable.shape or (1,))[0] ** -0.5
        arrays[path] = jax.device_put(jnp.asarray(values, variable.dtype), places[path])
    return arranged(sharding.fill(model, arrays), mesh, dtype)


def random_request(rng: random.Random, state: tuple[int, ...], fields: int, grid: Grid) -> Request:
    """A schema of ``fields`` questions with three options each behind ``state``; ids and spans drawn at random."""
    schema = [rng.randrange(1000, 40_000) for _ in range(FIELD * fields)]
    questions = [(len(state) + FIELD * field + 8, len(state) + FIELD * field + 20) for field in range(fields)]
    options = [(end + 20 * place, end + 20 * place + 12) for _, end in questions for place in range(OPTIONS)]
    orders = (tuple(range(OPTIONS)),) * fields
    prompt = JointPrompt(
        (*state, *schema), len(state), (1,) * fields, tuple(questions), tuple(options), orders, truncated_tokens=0
    )
    return prompt, fill_schema(prompt, grid)


def read(engine: Engine, requests: list[Request], salts: list[str]) -> tuple[float, list[np.ndarray]]:
    """Seconds and logits of the requests, each under its salt: states are reused under equal ones alone."""

    def work() -> tuple[float, list[np.ndarray]]:
        started = time.perf_counter()
        logits = [
            engine.score_schema(prompt.ids, prompt.shared, schema, salt)
            for (prompt, schema), salt in zip(requests, salts, strict=True)
        ]
        return time.perf_counter() - started, logits

    return engine.submit(work).result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--schemas", type=int, default=5)
    parser.add_argument("--state", type=int, default=2000, help="tokens of the state")
    parser.add_argument("--fields", type=int, default=2, help=f"questions of a schema, {FIELD} tokens each")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    args = parser.parse_args()

    mesh = sharding.make_mesh()
    grid = Grid.of(8192, jax.default_backend(), args.dtype)
    precision = "highest" if args.dtype == "float32" else "default"
    engine = Engine(
        random_model(mesh, args.dtype), mesh, grid, precision=precision, prefix_cache_bytes=PREFIX_CACHE_BYTES
    )
    rng, ratios, equal = random.Random(0), [], True
    print(f"{args.schemas} schemas of {args.fields * FIELD} tokens about a state of {args.state}, {args.dtype}")
    for number in range(-1, args.rounds):  # the first compiles, and is not counted
        state = tuple(rng.randrange(1000, 40_000) for _ in range(args.state))
        requests = [random_request(rng, state, args.fields, grid) for _ in range(args.schemas)]
        salts = {"kept": ["kept"] * len(requests), "full": [f"full {place}" for place in range(len(requests))]}
        results = {name: read(engine, requests, salts[name]) for name in rng.sample(sorted(salts), 2)}
        (kept, ours), (full, theirs) = results["kept"], results["full"]
        equal &= all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
        if number >= 0:
            ratios.append(full / kept)
            print(f"round {number + 1}: full passes {full:.2f} s, state kept {kept:.2f} s, ratio {full / kept:.2f}")
    engine.close()
    print(f"median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}; ", end="")
    print("bit-equal" if equal else "BITS DIFFER")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
