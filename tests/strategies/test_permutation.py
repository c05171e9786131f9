"""Permutation averaging where questions are read by labels, and its refusal where they are read together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint

import sysone_jax
from sysone_jax import InputError

CHOICE: dict[str, Any] = {"type": "choice", "instructions": "Which?", "criteria": {"a": "one", "b": None, "c": "three"}}
QUESTIONS = {"which": CHOICE, "so": {"type": "noul"}, "only": {"type": "choice", "criteria": {"x": None}}}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path_factory.getbasetemp() / "permutation"))
    yield


def test_labels_are_averaged_over_both_orders(tmp_path: Path) -> None:
    with sysone_jax.load(write_checkpoint(tmp_path), max_model_len=256) as model:
        plain = model.decide(state="s", questions=QUESTIONS)
        averaged = model.decide(state="s", questions=QUESTIONS, permutation_average=True)
        turned = CHOICE | {"criteria": dict(reversed(CHOICE["criteria"].items()))}
        reverse = model.decide(state="s", questions={"which": turned})
        with pytest.raises(InputError, match="permutation_average: must be true or false"):
            model.decide(state="s", questions=QUESTIONS, permutation_average=1)  # type: ignore[arg-type]
    for option in CHOICE["criteria"]:
        both = [decision["which"]["probabilities"][option] for decision in (plain, reverse)]
        assert averaged["which"]["probabilities"][option] == sum(both) / 2
    masses = [decision.diagnostics["which"]["label_mass"] for decision in (plain, reverse)]
    assert averaged.diagnostics["which"]["label_mass"] == sum(masses) / 2
    assert [averaged[qid] for qid in ("so", "only")] == [plain[qid] for qid in ("so", "only")]
    for count in ("input_tokens", "output_tokens"):
        assert averaged.usage[count] == plain.usage[count] + reverse.usage[count]


def test_joint_reads_refuse_by_name(tmp_path: Path) -> None:
    with sysone_jax.load(write_checkpoint(tmp_path, "LlamaForCausalLM", head=True), max_model_len=256) as model:
        with pytest.raises(InputError, match="permutation_average: this model reads all questions in one prompt"):
            model.decide(state="s", questions=QUESTIONS, permutation_average=True)
