"""The state is read once: no copy of it per question, and the time that saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import jax
import numpy as np
import pytest
from tiny_checkpoint import write_checkpoint

import sysone_jax
from sysone_jax import Decider
from sysone_jax.reader import programs
from sysone_jax.reader.cache import size_of
from sysone_jax.reader.rows import LABEL_SLOTS

QUESTIONS, STATE, SUFFIX = 16, 1024, 48


@pytest.fixture(scope="module", params=["Qwen3ForCausalLM", "LlamaForCausalLM"])
def decider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decider]:
    """Wide enough that arithmetic, not dispatch, is what takes the time."""
    folder = write_checkpoint(
        tmp_path_factory.mktemp("model"),
        request.param,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        with sysone_jax.load(folder, dtype="float32") as loaded:
            yield loaded


def rows(count: int, tokens: int) -> programs.Row:
    drawn = np.random.default_rng(0).integers(1, 200, (count, tokens), dtype=np.int32)
    return programs.Row(drawn, np.full(count, tokens, np.int32), np.zeros((count, LABEL_SLOTS), np.int32))


def test_the_compiled_read_holds_no_copy_of_the_state_per_question(decider: Decider) -> None:
    engine = decider._engine

    def measure() -> tuple[int, int, int, str]:
        model = engine._model
        tokens = np.zeros(STATE, np.int32)
        state = programs.prefill(model, tokens, np.int32(STATE), STATE)
        one, many = (
            programs.read_labels.lower(model, state, rows(count, SUFFIX)).compile() for count in (1, QUESTIONS)
        )
        return (
            size_of(state),
            one.memory_analysis().temp_size_in_bytes,
            many.memory_analysis().temp_size_in_bytes,
            many.as_text(),
        )

    state, one, many, text = engine.submit(measure).result()
    assert (many - one) / (QUESTIONS - 1) < state / 4
    config = jax.tree.leaves(engine._model.backbone.layers.k.shape)
    kv_heads, head_dim = config[-2:]
    copies = [
        f"f32[{shape}]"
        for shape in (
            f"{QUESTIONS},{kv_heads},{STATE},{head_dim}",
            f"{QUESTIONS},{STATE},{kv_heads},{head_dim}",
            f"{kv_heads},{QUESTIONS},{STATE},{head_dim}",
        )
    ]
    assert not [copy for copy in copies if copy in text]


def test_sixteen_questions_on_one_state_are_five_times_faster_than_one_by_one(decider: Decider) -> None:
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
    assert median(ratios) >= 5, ratios
