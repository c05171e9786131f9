"""The dense backbones against transformers, in float32, through the path a model takes: files, conversion, programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from tiny_checkpoint import Architecture, reference, write_checkpoint
from transformers import AutoTokenizer

import sysone_jax
from converters.convert import convert
from sysone_jax.loading import load_weights
from sysone_jax.model import Model
from sysone_jax.reader import programs
from sysone_jax.reader.grid import Grid, pick
from sysone_jax.reader.rows import LABEL_SLOTS, pad_tokens
from sysone_jax.sharding import make_mesh

GRID = Grid.of(2048, "cpu", "float32")
LENGTHS = (1, 2, 3, 17, 31, 32, 33, 47, 48, 49, 63, 64)
LOGITS = 5e-6
"""Bound on the difference, as a share of the largest reference logit. Both sides round in float32: 1e-6 is usual."""
PROBABILITIES = 1e-5

ARCHITECTURES: tuple[Architecture, ...] = ("Qwen3ForCausalLM", "LlamaForCausalLM")


@dataclasses.dataclass(frozen=True)
class Pair:
    """One checkpoint in both worlds."""

    folder: Path
    theirs: Any
    ours: Model
    vocab: int

    def tokens(self, length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self.vocab, length, dtype=np.int32)

    def reference_logits(self, tokens: np.ndarray) -> np.ndarray:
        """[T, V]"""
        with torch.no_grad():
            return self.theirs(torch.from_numpy(tokens[None].astype(np.int64)), use_cache=False).logits[0].numpy()


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    mesh = make_mesh((1, 1))
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture(scope="module")
def make(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    def make(*args: Any, load_as: str = "float32", **options: Any) -> Pair:
        folder = tmp_path_factory.mktemp("model")
        write_checkpoint(folder / "hf", *args, **options)
        manifest = convert(folder / "hf", folder / "ours", name="tiny")
        theirs = reference(folder / "hf")
        ours = load_weights(folder / "ours", manifest, mesh, load_as)
        return Pair(folder / "hf", theirs, ours, theirs.config.vocab_size)

    return make


@jax.jit
def all_logits(model: Model, hidden: jax.Array) -> jax.Array:
    return jax.vmap(model.backbone.logits)(hidden)


def logits(model: Model, tokens: np.ndarray) -> np.ndarray:
    """[T, V] of a whole prompt, padded to its size on the grid."""
    size = pick(GRID.prefix, len(tokens))
    _, hidden = programs.begin(model, pad_tokens(tokens, size), np.int32(len(tokens)), size)
    return np.asarray(all_logits(model, hidden))[: len(tokens)]


def check(ours: np.ndarray, theirs: np.ndarray, bound: float = LOGITS) -> float:
    """The largest difference as a share of the largest reference logit, asserted to be within ``bound``."""
    share = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    assert share <= bound
    difference = np.abs(jax.nn.softmax(np.float64(ours)) - jax.nn.softmax(np.float64(theirs))).max()
    assert difference <= PROBABILITIES
    return share


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("seed", "tied"), [(0, False), (1, True), (2, False)])
def test_logits(make: Callable[..., Pair], architecture: Architecture, seed: int, tied: bool) -> None:
    pair = make(architecture, seed, tied)
    assert (pair.ours.backbone.lm_head is None) == tied
    for length in LENGTHS:
        tokens = pair.tokens(length, seed=length)
        check(logits(pair.ours, tokens), pair.reference_logits(tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_of_a_long_prompt(make: Callable[..., Pair], architecture: Architecture) -> None:
    pair = make(architecture)
    tokens = pair.tokens(2001)
    check(logits(pair.ours, tokens), pair.reference_logits(tokens), bound=1e-5)


VARIANTS: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "biases of attention": ("Qwen3ForCausalLM", {"attention_bias": True}),
    "all biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "one key head": ("Qwen3ForCausalLM", {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 14}),
    "groups of two": ("Qwen3ForCausalLM", {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}),
    "a key head for each": ("LlamaForCausalLM", {"num_attention_heads": 5, "num_key_value_heads": 5}),
    "heads that are no share": ("LlamaForCausalLM", {"head_dim": 22}),
    "linear": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 9e3, "factor": 3.0}}),
    "llama3": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "yarn": (
        "Qwen3ForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 512,
            }
        },
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_variants(make: Callable[..., Pair], name: str) -> None:
    architecture, options = VARIANTS[name]
    pair = make(architecture, 3, **options)
    for length in (23, 32):
        tokens = pair.tokens(length)
        check(logits(pair.ours, tokens), pair.reference_logits(tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_old_form_of_a_config_is_the_same_model(make: Callable[..., Pair], architecture: Architecture) -> None:
    pair = make(architecture)
    path = pair.folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config |= {"rope_scaling": None, "torch_dtype": config.pop("dtype"), "transformers_version": "4.51.0"}
    if architecture == "LlamaForCausalLM":
        config |= {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1}
        del config["head_dim"]
    path.write_text(json.dumps(config))
    manifest = convert(pair.folder, pair.folder / "old", name="tiny")
    old = load_weights(pair.folder / "old", manifest, make_mesh((1, 1)), "float32")
    tokens = pair.tokens(29)
    np.testing.assert_array_equal(logits(old, tokens), logits(pair.ours, tokens))


# ------------------------------------------------------------------------------- prefix and suffix


def read_split(pair: Pair, tokens: np.ndarray, split: int, labels: np.ndarray) -> tuple[np.ndarray, float, int]:
    """(logits of the labels, log-sum-exp of the vocabulary, arg-max) after ``tokens``, read in two parts."""
    size = pick(GRID.prefix, split)
    state = programs.prefill(pair.ours, pad_tokens(tokens[:split], size), np.int32(split), pick(GRID.room, size))
    suffix = tokens[split:]
    row = programs.Row(
        pad_tokens(suffix, pick(GRID.suffix, len(suffix)))[None], np.int32([len(suffix)]), labels[None].astype(np.int32)
    )
    read = jax.device_get(programs.read_labels(pair.ours, state, row))
    return read.labels[0], float(read.total[0]), int(read.top[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_prefix_and_a_suffix_are_the_full_pass(make: Callable[..., Pair], architecture: Architecture) -> None:
    pair = make(architecture, 4)
    for length in (2, 16, 33, 49):
        tokens = pair.tokens(length, seed=length)
        theirs = np.float64(pair.reference_logits(tokens)[-1])
        labels = np.random.default_rng(length).permutation(pair.vocab)[:LABEL_SLOTS]
        total = np.logaddexp.reduce(theirs)
        for split in range(1, length):
            ours, our_total, top = read_split(pair, tokens, split, labels)
            assert np.abs(ours - theirs[labels]).max() <= LOGITS * np.abs(theirs).max()
            assert abs(our_total - total) <= LOGITS * np.abs(theirs).max()
            assert top == theirs.argmax()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_of_a_prefix_reaches_no_answer(make: Callable[..., Pair], architecture: Architecture) -> None:
    pair = make(architecture, 4)
    tokens, labels = pair.tokens(20), np.arange(LABEL_SLOTS)
    rows = programs.Row(tokens[None, 13:16], np.int32([3]), labels[None].astype(np.int32))
    exact = programs.prefill(pair.ours, tokens[:13], np.int32(13), 64)
    wanted = jax.device_get(programs.read_labels(pair.ours, exact, rows))
    for fill in (0, 5, pair.vocab - 1):
        padded = np.r_[tokens[:13], np.full(51, fill, np.int32)]
        state = programs.prefill(pair.ours, padded, np.int32(13), 64)
        ours = jax.device_get(programs.read_labels(pair.ours, state, rows))
        np.testing.assert_allclose(ours.labels, wanted.labels, atol=1e-5)


# ------------------------------------------------------------------------------- bfloat16


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_is_near(make: Callable[..., Pair], architecture: Architecture) -> None:
    pair = make(architecture, 5, load_as="bfloat16")
    assert pair.ours.backbone.embed[...].dtype == jnp.bfloat16
    tokens = pair.tokens(30)
    ours, theirs = logits(pair.ours, tokens), pair.reference_logits(tokens)
    assert ours.dtype == np.float32 and np.isfinite(ours).all()
    assert np.abs(ours - theirs).max() <= 0.1 * np.abs(theirs).max()
    labels, total, _ = read_split(pair, tokens, 19, np.arange(LABEL_SLOTS))
    assert np.abs(labels - theirs[-1, :LABEL_SLOTS]).max() <= 0.1 * np.abs(theirs).max()
    assert np.isfinite(total)


# ------------------------------------------------------------------------------- label reads, end to end

QUESTIONS: dict[str, dict[str, Any]] = {
    "topic": {
        "type": "choice",
        "instructions": "What is it about?",
        "criteria": {"billing": "money and invoices", "technical": None, "other": "anything else"},
    },
    "refund": {"type": "noul", "instructions": "Is a refund requested?"},
    "urgent": {"type": "noul", "criteria": {"true": "It cannot wait", "false": "It can"}},
    "mood": {"type": "score", "instructions": "How content?", "criteria": ["angry", "calm", "glad"]},
}
STATES = ("I was charged twice.", {"order": 17, "note": "zürich ☕", "paid": [True, None, 1e-05]}, "")


def texts(question: Mapping[str, Any]) -> tuple[str, list[str]]:
    """(a question as the prompt writes it, its labels), as vLLM's next-token reads do."""
    lines = [f"Question: {question['instructions']}"] if question.get("instructions") else []
    criteria = question.get("criteria")
    if question["type"] == "choice":
        labels = [chr(ord("A") + number) for number in range(len(criteria))]
        lines += [
            f"{label}: {name}" + ("" if text is None else f" - {text}")
            for label, (name, text) in zip(labels, criteria.items(), strict=True)
        ]
        return "\n".join([*lines, "Answer with the letter of one option only."]), labels
    if question["type"] == "noul":
        lines += [f"yes: {criteria['true']}", f"no: {criteria['false']}"] if criteria else ["yes", "no"]
        return "\n".join([*lines, "Answer with yes or no only."]), ["yes", "no"]
    lines += [f"{number}: {level}" for number, level in enumerate(criteria)]
    return "\n".join([*lines, "Answer with the number of one level only."]), [str(n) for n in range(len(criteria))]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("instructions", [None, "You sort mail."])
def test_label_reads(
    architecture: Architecture, instructions: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "hf", architecture, seed=6, dtype="bfloat16")
    monkeypatch.setenv("SYSONE_CACHE", str(tmp_path / "cache"))
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), reference(folder)
    with sysone_jax.load(folder, dtype="float32") as decider:
        for state in STATES:
            decision = decider.decide(state=state, questions=QUESTIONS, instructions=instructions)
            for name, question in QUESTIONS.items():
                asked, labels = texts(question)
                written = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
                messages = [{"role": "user", "content": f"{written}\n\n{asked}"}]
                if instructions is not None:
                    messages.insert(0, {"role": "system", "content": instructions})
                prompt = tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False, enable_thinking=False
                )
                ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
                with torch.no_grad():
                    logged = theirs(ids, use_cache=False).logits[0, -1].double().log_softmax(-1)
                label_ids = [tokenizer.convert_tokens_to_ids(label) for label in labels]
                mass = logged[label_ids].exp().sum().item()
                read = decision.reads[name]
                np.testing.assert_allclose(read.probabilities, logged[label_ids].softmax(-1), atol=PROBABILITIES)
                assert read.label_mass == pytest.approx(mass, rel=1e-4, abs=PROBABILITIES)
                assert read.argmax_is_label == (logged.argmax().item() in label_ids)
