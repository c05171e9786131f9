"""The promise of exact mode: a request's bits depend on that request alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint
from tiny_qwen3_5 import write_hybrid

import sysone_jax
from sysone_jax import Decider, InputError
from sysone_jax.decider import Decision

WORDS = "refund order late angry parcel login crash invoice urgent password blue seven maybe never always".split()

LONGEST = 512

CHECKPOINTS = {
    "qwen3 labels": {"architecture": "Qwen3ForCausalLM", "seed": 1},
    "llama labels": {"architecture": "LlamaForCausalLM", "seed": 2, "tied": True},
    "joint schema": {"architecture": "LlamaForCausalLM", "seed": 3, "tied": True, "head": True},
    "hybrid dense labels": {"kind": "dense", "pattern": "shortest", "seed": 4},
    "hybrid experts labels": {"kind": "experts", "pattern": "shortest", "seed": 5},
}


def write(folder: Path, name: str) -> Path:
    if "hybrid" in name:
        write_hybrid(folder, **CHECKPOINTS[name])
    else:
        write_checkpoint(folder, **CHECKPOINTS[name])
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SYSONE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module", params=CHECKPOINTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp(request.param.split()[0]), request.param)


@pytest.fixture(scope="module")
def decider(folder: Path, cache: Path) -> Iterator[Decider]:
    dtype = "bfloat16" if "llama" in folder.name else "float32"
    with sysone_jax.load(folder, dtype=dtype, max_model_len=LONGEST) as loaded:
        yield loaded


def make_request(seed: int, questions: int | None = None) -> dict[str, Any]:
    """A short state and one or two short questions of any type; the same for the same seed."""
    rng = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))

    asked = {}
    for number in range(questions or rng.randint(1, 2)):
        kind = rng.choice(["choice", "noul", "score"])
        criteria: Any = None
        if kind == "choice":
            criteria = {f"{name} {i}": rng.choice([None, words(2)]) for i, name in enumerate(rng.choices(WORDS, k=3))}
        if kind == "score":
            criteria = [f"{i} {words(2)}" for i in range(rng.randint(2, 3))]
        asked[f"q{number}"] = {"type": kind, "instructions": words(4), "criteria": criteria}
    return {"state": words(12), "questions": asked}


def bits(decision: Decision) -> list[tuple[tuple[float, ...], float, bool]]:
    return [(read.probabilities, read.label_mass, read.argmax_is_label) for read in decision.reads.values()]


def test_a_batch_names_the_request_at_fault(decider: Decider) -> None:
    good = make_request(0)
    for wrong, said in (
        (1, "requests[1]: must be a Request or the keywords of decide, not int"),
        ({"state": ""}, "requests[1]: missing a required argument: 'questions'"),
        ({**good, "colour": 1}, "requests[1]: got an unexpected keyword argument 'colour'"),
    ):
        with pytest.raises(InputError) as caught:
            decider.decide_batch([good, wrong])
        assert str(caught.value) == said


def test_a_request_has_the_same_bits_alone_in_a_batch_and_after_a_cache_hit(decider: Decider) -> None:
    request = make_request(0)
    alone = bits(decider.decide(**request))
    hits = decider.cache_hits
    assert bits(decider.decide(**request)) == alone
    assert (decider.cache_hits > hits) == (decider.strategy == "labels")
    for place in (0, 7, 16):
        batch = [make_request(seed) for seed in range(100, 116)]
        batch.insert(place, request)
        assert bits(decider.decide_batch(batch)[place]) == alone


def test_a_question_read_by_labels_has_the_same_bits_whatever_is_asked_beside_it(decider: Decider) -> None:
    if decider.strategy != "labels":
        request = make_request(5, questions=2)
        first = dict(list(request["questions"].items())[:1])
        together = decider.decide(**request).reads["q0"]
        assert decider.decide(state=request["state"], questions=first).reads["q0"] != together
        return
    request = make_request(5, questions=4)
    together = decider.decide(**request).reads
    for name, question in request["questions"].items():
        assert decider.decide(state=request["state"], questions={name: question}).reads[name] == together[name]


def test_a_salt_keeps_states_apart_and_the_bits_equal(decider: Decider) -> None:
    request = make_request(9)
    plain = bits(decider.decide(**request))
    hits = decider.cache_hits
    assert bits(decider.decide(**request, cache_salt="tenant")) == plain
    assert decider.cache_hits == hits


def test_a_restart_gives_the_same_bits(decider: Decider, folder: Path) -> None:
    request = make_request(3)
    code = (
        "import json, sys, sysone_jax\n"
        "folder, dtype, request = json.loads(sys.stdin.read())\n"
        f"decision = sysone_jax.load(folder, dtype=dtype, max_model_len={LONGEST}).decide(**request)\n"
        "reads = decision.reads.values()\n"
        "print(json.dumps([[list(read.probabilities), read.label_mass, read.argmax_is_label] for read in reads]))\n"
    )
    sent = json.dumps([str(folder), decider.dtype, request])
    result = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, text=True, check=True)
    there = [(tuple(p), mass, top) for p, mass, top in json.loads(result.stdout.splitlines()[-1])]
    assert there == bits(decider.decide(**request))


def test_throughput_mode_agrees_to_rounding_and_says_its_name(folder: Path, cache: Path) -> None:
    requests = [make_request(seed) for seed in range(12)]
    with (
        sysone_jax.load(folder, dtype="float32", max_model_len=LONGEST) as exact,
        sysone_jax.load(folder, dtype="float32", max_model_len=LONGEST, read_mode="throughput") as fast,
    ):
        for one, other in zip(exact.decide_batch(requests), fast.decide_batch(requests), strict=True):
            assert (one.read_mode, other.read_mode) == ("exact", "throughput")
            for name in one:
                assert other.reads[name].probabilities == pytest.approx(one.reads[name].probabilities, abs=1e-5)


@pytest.mark.parametrize(
    "name, read_mode, mesh, longest",
    [
        ("qwen3 labels", "exact", (1, 1), 256),
        ("qwen3 labels", "throughput", (1, 1), 256),
        ("llama labels", "exact", (1, 4), 192),
        ("joint schema", "exact", (1, 1), 448),
        ("hybrid experts labels", "exact", (1, 1), 192),
    ],
)
def test_nothing_compiles_across_200_mixed_requests_after_warming(
    name: str, read_mode: str, mesh: tuple[int, int], longest: int, cache: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path, name)
    steps: list[tuple[int, int]] = []
    with sysone_jax.load(folder, dtype="float32", max_model_len=longest, read_mode=read_mode, mesh=mesh) as decider:
        decider.warm(lambda done, of: steps.append((done, of)))
        before = decider.compile_count
        answered = 0
        for seed in range(400):
            try:
                decider.decide(**make_request(seed))
            except InputError:  # longer than this model reads
                continue
            answered += 1
            if answered == 200:
                break
        assert answered == 200
        assert decider.compile_count == before
    assert steps[0][0] == 0 and steps[-1][0] == steps[-1][1] > 10
