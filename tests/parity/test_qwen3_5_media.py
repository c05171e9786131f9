"""Label reads with images and videos against transformers in float32: prompts, logits and probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_vision import expanded_ids, films, pictures, reference_logits, write_vision

import sysone_jax
from sysone_jax.decider import Decider
from sysone_jax.prompts.labels import question_text

LOGITS = 1e-4
"""Of the largest reference logit."""
PROBABILITIES = 1e-4
STATE = "A customer's photo of the parcel, and a clip."
QUESTIONS: dict[str, Any] = {
    "damaged": {"type": "noul", "instructions": "Is the parcel damaged?"},
    "side": {
        "type": "choice",
        "instructions": "Which side?",
        "criteria": {"left": None, "right": "where the label is"},
    },
    "how": {"type": "score", "instructions": "How bad?", "criteria": ["not", "a little", "very"]},
}
SHOWN = {
    "one image": (pictures()[:1], []),
    "images": (pictures(), []),
    "a video": ([], films()[:1]),
    "images and videos": (pictures(), films()),
    "text": ([], []),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], tuple[Path, Any, Decider]]]:
    made: dict[tuple[str, int], tuple[Path, Any, Decider]] = {}

    def load(kind: str, seed: int) -> tuple[Path, Any, Decider]:
        if (kind, seed) not in made:
            folder = tmp_path_factory.mktemp(f"{kind}{seed}")
            made[kind, seed] = folder, write_vision(folder, kind, seed), sysone_jax.load(folder)
        return made[kind, seed]

    yield load
    for *_, decider in made.values():
        decider.close()


CASES = [("dense", 0, shown) for shown in SHOWN]
CASES += [
    (kind, seed, "images and videos") for kind, seed in (("dense", 1), ("dense", 2), ("moe", 0), ("moe", 1), ("moe", 2))
]


@pytest.mark.parametrize(("kind", "seed", "shown"), CASES)
def test_reads_equal_the_references(loaded: Callable[..., Any], kind: str, seed: int, shown: str):
    folder, model, decider = loaded(kind, seed)
    images, videos = SHOWN[shown]
    request = decider.request(state=STATE, questions=QUESTIONS, images=images, videos=videos)
    (prompts,) = decider._strategy.plan(request).prompts
    texts = [f"{STATE}\n\n{question_text(question)}" for question in request.questions.values()]
    wanted_ids = expanded_ids(folder, texts, request.media)
    assert [list(prompt.ids) for prompt in prompts.values()] == wanted_ids
    decision = decider.submit(request).result()
    assert decision.usage["input_tokens"] == sum(map(len, wanted_ids))
    media = decider._engine.encoded(request.media, decider._strategy._placeholders)
    for (qid, prompt), ids in zip(prompts.items(), wanted_ids, strict=True):
        wanted = reference_logits(model, ids, request.media)
        chosen = wanted[list(prompt.label_ids)]
        weights = np.exp(chosen.astype(np.float64) - chosen.max())
        assert np.abs(decision.reads[qid].probabilities - weights / weights.sum()).max() <= PROBABILITIES
        got = decider._engine.submit(lambda prompt=prompt: _label_logits(decider, prompt, media)).result()
        assert np.abs(got - chosen).max() <= (LOGITS if shown != "text" else 5e-5) * np.abs(wanted).max()


def _label_logits(decider: Decider, prompt: Any, media: Any) -> np.ndarray:
    from sysone_jax.reader.rows import fill_rows, plan_calls

    (call,) = plan_calls([prompt], decider._engine.grid, "exact")
    result = decider._engine.read_labels(
        decider._engine.prefix_state(call.prefix, None, media), fill_rows([prompt], call)
    )
    return result.labels[0, : len(prompt.label_ids)]
