"""Several schemas about one long state: it is read once, and every answer has the bits of a read of its own."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import write_checkpoint
from tiny_joint import TorchHead, option_logits, write_joint
from tiny_vision import pictures

import sysone_jax
from sysone_jax import Decider, loading
from sysone_jax.prompts.joint_schema import JointPrompt
from sysone_jax.reader.grid import KEPT_ABOVE, OPTION_TOKENS, QUESTION_TOKENS, Grid, pick

LONGEST = 1024
STATE = "The parcel came late and the box was wet. " * 19
SCHEMAS: list[dict[str, Any]] = [
    {"late": {"type": "noul", "instructions": "Is it late?"}},
    {"wet": {"type": "noul", "instructions": "Is it wet?"}, "late": {"type": "noul"}},
    {"team": {"type": "choice", "instructions": "Who?", "criteria": {"shipping": None, "billing": "money"}}},
    {"tone": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "angry"]}},
]


@pytest.fixture(scope="module", autouse=True)
def coarse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One shape of each kind: how the others are chosen is tested on the grid alone."""
    make_grid = loading.make_grid

    def one(*given: Any) -> Grid:
        grid = make_grid(*given)
        sizes = (grid.max_len,)
        media = sizes if grid.media else ()
        return dataclasses.replace(grid, prefix=sizes, room=sizes, continued=(grid.max_len // 2,), media=media)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(loading, "make_grid", one)
        yield


Case = tuple[Any, TorchHead, Decider]


@pytest.fixture(scope="module", params=[1])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("clef")
    model, head = write_joint(folder, request.param)
    with sysone_jax.load(folder, max_model_len=LONGEST) as decider:
        decider.warm()
        yield model, head, decider


def prompt_of(decider: Decider, **request: Any) -> JointPrompt:
    return decider._strategy.plan(decider.request(**request)).prompts


def reads(decider: Decider, **more: Any) -> list[Any]:
    return [decider.decide(state=STATE, questions=questions, **more).reads for questions in SCHEMAS]


@pytest.mark.parametrize("images", [0, 1])
def test_logits_are_those_of_torch(case: Case, images: int) -> None:
    model, head, decider = case
    strategy: Any = decider._strategy
    for questions in SCHEMAS[:3:2]:
        request = decider.request(state=STATE, questions=questions, images=pictures()[:images])
        prompt = strategy.plan(request).prompts
        assert decider._engine.grid.keeps(prompt.shared, len(prompt.ids))
        media = decider._engine.encoded(request.media, strategy._placeholders)
        got = decider._engine.submit(lambda prompt=prompt, media=media: strategy.logits(prompt, None, media)).result()
        wanted = option_logits(model, head, prompt, request.media)
        assert np.abs(got - wanted).max() <= (1e-4 if images else 5e-5) * np.abs(wanted).max()


@pytest.mark.parametrize("images", [0, 1])
def test_bits_are_those_of_a_read_of_its_own(case: Case, images: int) -> None:
    decider, shown = case[2], pictures(7)[:images]
    compiled, hits = decider.compile_count, decider.cache_hits
    alone = [
        decider.decide(state=STATE, questions=questions, images=shown, cache_salt=f"{images} {number}").reads
        for number, questions in enumerate(SCHEMAS)
    ]
    assert decider.cache_hits == hits
    together = reads(decider, images=shown, cache_salt=f"{images}")
    assert together == alone
    assert decider.cache_hits == hits + len(SCHEMAS) - 1
    batch = decider.decide_batch([{"state": STATE, "questions": asked, "images": shown} for asked in SCHEMAS[::-1]])
    assert [decision.reads for decision in batch][::-1] == alone
    assert decider.compile_count == compiled


def test_a_state_of_another_text_media_or_salt_is_read_itself(case: Case) -> None:
    decider = case[2]
    asked: dict[str, Any] = {"questions": SCHEMAS[0], "state": STATE}
    first = decider.decide(**asked, images=pictures(3)[:1], cache_salt="a").reads
    hits = decider.cache_hits
    assert decider.decide(**asked, images=pictures(4)[:1], cache_salt="a").reads != first
    assert (
        decider.decide(**{**asked, "state": f"Not so. {STATE}"}, images=pictures(3)[:1], cache_salt="a").reads != first
    )
    assert decider.decide(**asked, images=pictures(3)[:1], cache_salt="b").reads == first
    assert decider.cache_hits == hits


def test_two_devices_give_the_answers_of_one(case: Case) -> None:
    decider = case[2]
    with sysone_jax.load(decider.name, max_model_len=LONGEST, mesh=(1, 2)) as spread:
        for questions in SCHEMAS[:2]:
            one, two = (each.decide(state=STATE, questions=questions).reads for each in (spread, decider))
            for qid, read in one.items():
                assert read.probabilities == pytest.approx(two[qid].probabilities, abs=1e-5)
        assert spread.cache_hits == 1


def test_short_states_and_long_schemas_are_read_in_one_pass(case: Case) -> None:
    decider = case[2]
    grid = decider._engine.grid
    short = prompt_of(decider, state="late", questions=SCHEMAS[0])
    assert not grid.keeps(short.shared, len(short.ids))
    least = KEPT_ABOVE + 1
    assert grid.keeps(least, least + 1) and grid.keeps(least, 2 * least)
    assert not grid.keeps(KEPT_ABOVE, least + 8) and not grid.keeps(least, 2 * least + 1)


@pytest.mark.parametrize("longest", [128, KEPT_ABOVE + 1, KEPT_ABOVE + 2, 600, 1024, 2048, 5000, 16_384])
def test_every_shape_that_a_prompt_needs_is_compiled(longest: int) -> None:
    grid = Grid.of(longest, "cpu", "float32", token_patches=4)
    shapes, rng = set(grid.continuations()), random.Random(longest)
    used = set()
    edges = [edge + step for edge in (*grid.room, *grid.continued, KEPT_ABOVE) for step in (-1, 0, 1)]
    prompts = [(shared, shared + own) for shared, own in itertools.product(edges, (1, *edges))]
    prompts += [(rng.randint(1, longest), rng.randint(1, longest)) for _ in range(5000)]
    for shared, length in prompts:
        if not 0 < shared < length <= longest or not grid.keeps(shared, length):
            continue
        for sizes in (grid.prefix, grid.media):
            size = pick(sizes, shared)
            shape = pick(grid.room, size), pick(grid.continued, length - shared), pick(grid.room, length)
            assert shape in shapes
            used.add(shape)
    assert used == shapes  # and nothing is compiled for no prompt
    assert bool(shapes) == (longest > KEPT_ABOVE + 1)


@pytest.mark.parametrize("longest", [64, 300, 1024, 16_384, 65_536])
def test_every_schema_that_the_context_holds_has_a_shape(longest: int) -> None:
    grid = Grid.of(longest, "cpu", "float32")
    for room in grid.room:
        sizes = grid.schemas(room)
        assert len(set(sizes)) == len(sizes) <= 5 and list(sizes) == sorted(sizes)
        for tokens in (room, room // 2, 70):
            questions = max(1, tokens // QUESTION_TOKENS)
            options = max(questions, (tokens - questions * (QUESTION_TOKENS - OPTION_TOKENS)) // OPTION_TOKENS)
            if tokens <= room:
                size = grid.schema(room, questions, options)
                assert size in sizes and size[0] >= questions and size[1] >= options
    assert grid.schema(grid.room[-1], 1, 2) == sizes[0]


def test_64_questions_with_255_options_about_16000_tokens_in_one_pass(tmp_path: Path) -> None:
    """As many as a hosted Clef takes, on a model that reads so much; and nothing is compiled for them when asked."""
    numbers: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    write_checkpoint(
        tmp_path, "LlamaForCausalLM", head=True, max_position_embeddings=40_960, num_hidden_layers=1, **numbers
    )
    with sysone_jax.load(tmp_path, max_model_len=25_600) as decider:
        decider.warm()
        compiled = decider.compile_count
        words = itertools.cycle(["a", "b", "c"])
        questions = {
            f"q{number}": {
                "type": "choice",
                "instructions": "?",
                "criteria": {str(option): next(words) for option in range(3 if number == 63 else 4)},
            }
            for number in range(64)
        }
        strategy: Any = decider._strategy
        state = "late parcel " * 2_400
        assert len(strategy._tokenizer.encode(state)) > 16_000
        decision = decider.decide(state=state, questions=questions)
        assert sum(len(read.probabilities) for read in decision.reads.values()) == 255
        assert all(sum(read.probabilities) == pytest.approx(1) for read in decision.reads.values())
        assert decision.usage["input_tokens"] > 16_000
        assert decider.compile_count == compiled
