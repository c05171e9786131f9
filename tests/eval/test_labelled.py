"""The labelled set: well-formed, with its chance level, and measured through a real model."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from tiny_checkpoint import write_checkpoint

from eval.labelled import DECISIONS, Tally, evaluate, load_items
from sysone_jax.errors import InputError
from sysone_jax.loading import load


def test_the_set():
    items = load_items()
    assert len(items) == len({item.name for item in items}) == 27
    questions = [question for item in items for question in item.questions.values()]
    assert Counter(question.type for question in questions) == {"choice": 19, "noul": 20, "score": 8}
    for item in items:
        assert item.questions.keys() == item.expected.keys()
        for name, question in item.questions.items():
            assert 0 <= item.expected[name] < len(question.options)


def test_a_tally():
    tally = Tally().plus(True, 2).plus(False, 4).plus(True, 4)
    assert (tally.right, tally.count, tally.chance) == (2, 3, 1.0)
    assert tally.accuracy == pytest.approx(2 / 3) and tally.chance_accuracy == pytest.approx(1 / 3)
    assert tally.margin == pytest.approx(1.96 * math.sqrt(2 / 9 / 3))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"expected": {"team": "nobody", "refund": True}}, ValueError),
        ({"expected": {"team": "billing", "refund": 1}}, ValueError),
        ({"questions": {"team": {"type": "bogus"}}}, InputError),
    ],
)
def test_a_wrong_label_is_refused(tmp_path: Path, change: dict, error: type[Exception]):
    first = json.loads(DECISIONS.read_text(encoding="utf-8").splitlines()[0])
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(first | change), encoding="utf-8")
    with pytest.raises(error):
        load_items(path)


def test_a_model_is_measured_on_its_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Items whose labels are a model's answers are all right, and with one of two turned, half."""
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path / "cache"))
    questions = {"a": {"type": "noul"}, "b": {"type": "choice", "criteria": {"x": None, "y": None, "z": None}}}
    path = tmp_path / "items.jsonl"
    with load(write_checkpoint(tmp_path / "tiny"), max_model_len=256) as decider:
        decision = decider.decide(state="s", questions=questions)
        yes, best = decision["a"]["noul"] >= 0.5, decision["b"]["choice"]
        for expected, right in ((yes, 2), (not yes, 1)):
            item = {
                "id": "1",
                "domain": "d",
                "state": "s",
                "questions": questions,
                "expected": {"a": expected, "b": best},
            }
            path.write_text(json.dumps(item), encoding="utf-8")
            tallies = evaluate(decider, load_items(path))
            assert tallies["all"] == Tally(right, 2, 1 / 2 + 1 / 3)
            assert tallies["choice"] == Tally(1, 1, 1 / 3) and "score" not in tallies
