"""The state is read once: no copy of it per question, and the time that saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tiny_checkpoint import write_checkpoint
from tiny_qwen3_5 import write_hybrid

import sysone_jax
from sysone_jax import Decider, sharding
from sysone_jax.checkpoint import Manifest
from sysone_jax.model import abstract_model
from sysone_jax.reader import programs
from sysone_jax.reader.rows import LABEL_SLOTS

QUESTIONS, STATE, SUFFIX = 16, 1024, 48

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
QWEN3 = {**SMOLLM2, "head_dim": 64}


WIDE = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
"""Wide enough that arithmetic, not dispatch, is what takes the time."""
DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
EXPERTS = {"num_experts": 16, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256}
TIMES = {"Qwen3ForCausalLM": 5, "LlamaForCausalLM": 5, "dense": 4, "experts": 4}
"""How many times faster sixteen questions are read together than one by one, at least."""


@pytest.fixture(scope="module", params=TIMES)
def decider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decider]:
    folder = tmp_path_factory.mktemp("model")
    if "For" in request.param:
        write_checkpoint(folder, request.param, num_hidden_layers=4, **WIDE)
    else:
        experts = EXPERTS if request.param == "experts" else {}
        write_hybrid(folder, request.param, "period", 0, **WIDE, **DELTA, **experts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        with sysone_jax.load(folder, dtype="float32") as loaded:
            yield loaded


def rows(count: int, tokens: int) -> programs.Row:
    drawn = np.random.default_rng(0).integers(1, 200, (count, tokens), dtype=np.int32)
    return programs.Row(drawn, np.full(count, tokens, np.int32), np.zeros((count, LABEL_SLOTS), np.int32))


@pytest.mark.parametrize("architecture, config", [("LlamaForCausalLM", SMOLLM2), ("Qwen3ForCausalLM", QWEN3)])
def test_the_compiled_read_holds_no_copy_of_the_state_per_question(architecture: str, config: dict[str, Any]) -> None:
    """At the size of a real model, compiled and never run: 30 layers, a state of 1,024 tokens, 16 questions."""
    mesh = sharding.make_mesh((1, 1))

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        spec = P() if leaf.sharding is None else leaf.sharding.spec
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    model = sharding.on_mesh(
        abstract_model(Manifest(architecture, config, None, "test", "0"), np.dtype(np.float32)), mesh
    )
    with jax.set_mesh(mesh):
        tokens, length = jax.ShapeDtypeStruct((STATE,), np.int32), jax.ShapeDtypeStruct((), np.int32)
        state = jax.tree.map(placed, jax.eval_shape(programs.prefill, model, tokens, length, room=STATE))
        one, many = (
            programs.read_labels.lower(model, state, rows(count, SUFFIX)).compile() for count in (1, QUESTIONS)
        )
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    grown = many.memory_analysis().temp_size_in_bytes - one.memory_analysis().temp_size_in_bytes
    assert held == 30 * 2 * 3 * STATE * 64 * 4 + 2 * 4
    # What a question does need is its scores against one layer's keys.
    scores = 9 * SUFFIX * STATE * 4
    assert grown / (QUESTIONS - 1) < 3 * scores < held / 8
    text = many.as_text()
    for axes in ((QUESTIONS, 3, STATE, 64), (QUESTIONS, STATE, 3, 64), (3, QUESTIONS, STATE, 64)):
        assert f"f32[{','.join(map(str, axes))}]" not in text


def test_sixteen_questions_on_one_state_are_faster_than_one_by_one(
    decider: Decider, request: pytest.FixtureRequest
) -> None:
    engine = decider._engine
    drawn = np.random.default_rng(1)
    prefix = tuple(drawn.integers(1, 200, STATE).tolist())
    own = rows(QUESTIONS, SUFFIX)
    width = engine.grid.rows(SUFFIX)

    def shared() -> None:
        state = engine.prefix_state(prefix, object())
        for start in range(0, QUESTIONS, width):
            part = programs.Row(*(array[start : start + width] for array in own))
            engine.read_labels(state, part)

    def unshared() -> None:
        for number in range(QUESTIONS):
            ids = (*prefix, *own.tokens[number].tolist())
            state = engine.prefix_state(ids[:-1], object())
            engine.read_labels(state, programs.Row(np.full((1, 16), ids[-1], np.int32), *(a[:1] for a in own[1:])))

    def seconds(work: Callable[[], None]) -> float:
        start = time.perf_counter()
        engine.submit(work).result()
        return time.perf_counter() - start

    seconds(shared), seconds(unshared)
    ratios = [seconds(unshared) / seconds(shared) for _ in range(5)]
    assert median(ratios) >= TIMES[request.node.callspec.params["decider"]], ratios
