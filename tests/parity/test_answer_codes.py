"""Decision 3.0 end to end against torch in float32: logits of every code, probabilities, exactness, what compiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decision import CODES, code_logits, write_decision
from transformers import AutoModelForDecision, Qwen3_5Model

import sysone_jax
from sysone_jax import Decider
from sysone_jax.checkpoint import read_manifest
from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.loading import resolve

LOGITS = 5e-5
"""Of the largest reference logit; measured 1e-6 to 3e-6."""
PROBABILITIES = 1e-5
TEMPERATURE = 1.37

CHECKPOINTS = {
    "causal": {"mode": "causal", "pattern": "pruned", "seed": 0, "prefix": "model."},
    "both ways": {"mode": "noncausal_full_attention", "pattern": "regular", "seed": 1},
    "both ways, pruned": {"mode": "noncausal_full_attention", "pattern": "pruned", "seed": 2},
}
QUESTIONS: dict[str, Any] = {
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "payments", "shipping": None, "security": {"why": ["access"]}},
    },
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "tone": {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]},
}
STATE = {"ticket": "My card was charged twice.", "days": 3}


class Loaded:
    """One tiny checkpoint in torch and here."""

    def __init__(self, folder: Path, reference: Qwen3_5Model, decider: Decider) -> None:
        self.folder = folder
        self.reference = reference
        self.readout = load_file(folder / "readout.safetensors")["weight"]
        self.decider = decider

    def theirs(self, ids: Any) -> np.ndarray:
        return code_logits(self.reference, self.readout, list(ids)).numpy()

    def ours(self, *prompts: Any) -> np.ndarray:
        return self.decider.code_logits(prompts).result().logits

    def prompts(self, questions: Mapping[str, Any], state: Any = STATE) -> Mapping[str, Any]:
        plan = self.decider._strategy.plan(self.decider.request(state=state, questions=questions))
        return plan.prompts[0]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=CHECKPOINTS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: None) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("d3")
    reference = write_decision(folder, **CHECKPOINTS[request.param])
    with sysone_jax.load(folder, max_model_len=4096) as decider:
        yield Loaded(folder, reference, decider)


def test_logits_of_every_code_and_probabilities_are_those_of_torch(loaded: Loaded) -> None:
    decision = loaded.decider.decide(state=STATE, questions=QUESTIONS)
    for qid, prompt in loaded.prompts(QUESTIONS).items():
        wanted = loaded.theirs(prompt.ids)
        (got,) = loaded.ours(prompt.ids)
        assert got.shape == (255,)
        assert np.abs(got - wanted).max() <= LOGITS * np.abs(wanted).max()
        options = np.exp(wanted[: len(prompt.order)].astype(np.float64) / TEMPERATURE)
        probabilities = np.array(decision.reads[qid].probabilities)[list(prompt.order)]
        assert np.abs(probabilities - options / options.sum()).max() <= PROBABILITIES
        assert decision.diagnostics[qid]["label_mass"] == 1
        assert decision.diagnostics[qid]["argmax_is_label"] == (wanted.argmax() < len(prompt.order))
    assert decision.usage == {
        "input_tokens": sum(len(prompt.ids) for prompt in loaded.prompts(QUESTIONS).values()),
        "output_tokens": 0,
    }


def test_prompts_of_any_length_are_those_of_torch(loaded: Loaded) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 400, length).tolist() for length in (1, 33, 64, 150)]
    for prompt, got in zip(prompts, loaded.ours(*prompts), strict=True):
        wanted = loaded.theirs(prompt)
        assert np.abs(got - wanted).max() <= LOGITS * np.abs(wanted).max()


@pytest.mark.parametrize("count", [1, 2, 26, 27, 52, 255])
def test_any_number_of_options_up_to_255(loaded: Loaded, count: int) -> None:
    question = {"type": "choice", "instructions": "?", "criteria": {f"{n}": None for n in range(count)}}
    answer = loaded.decider.decide(state="s", questions={"q": question})["q"]
    prompt = loaded.prompts({"q": question}, "s")["q"]
    wanted = torch.from_numpy(loaded.theirs(prompt.ids)[:count] / TEMPERATURE).double().softmax(-1).numpy()
    assert list(answer["probabilities"]) == list(question["criteria"])
    assert np.abs(np.array(list(answer["probabilities"].values())) - wanted).max() <= PROBABILITIES
    assert answer["choice"] == str(wanted.argmax())


def test_a_question_has_the_same_bits_alone_and_beside_any_other(loaded: Loaded) -> None:
    many = {f"{qid} {n}": question for n in range(3) for qid, question in QUESTIONS.items()}
    together = loaded.decider.decide(state=STATE, questions=many).reads
    for qid, question in many.items():
        assert loaded.decider.decide(state=STATE, questions={qid: question}).reads[qid] == together[qid]
    batch = [{"state": STATE, "questions": {qid: question}} for qid, question in many.items()]
    for qid, decision in zip(many, loaded.decider.decide_batch(batch), strict=True):
        assert decision.reads[qid] == together[qid]


def test_a_prompt_has_the_same_bits_in_any_slot_of_its_call(loaded: Loaded) -> None:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 400, length).tolist() for length in (20, 31, 25, 29, 32, 50, 60, 64)]
    together = loaded.ours(*prompts)
    assert len(prompts) > loaded.decider._engine.grid.rows(32) > 1  # several rows a call, and more than one call
    for prompt, logits in zip(prompts, together, strict=True):
        assert np.array_equal(loaded.ours(prompt)[0], logits)
    assert np.array_equal(loaded.ours(*prompts[::-1])[::-1], together)


def test_only_a_causal_model_shares_the_state(loaded: Loaded) -> None:
    causal = loaded.reference.config.text_config.is_causal
    before = loaded.decider.cache_hits
    for question in QUESTIONS.values():
        loaded.decider.decide(state="Shared by all of these.", questions={"q": question})
    assert loaded.decider.cache_hits - before == (len(QUESTIONS) - 1 if causal else 0)


def test_the_mean_of_both_orders(loaded: Loaded) -> None:
    plain = loaded.decider.decide(state=STATE, questions=QUESTIONS)
    averaged = loaded.decider.decide(state=STATE, questions=QUESTIONS, permutation_average=True)
    turned = {"team": QUESTIONS["team"] | {"criteria": dict(reversed(QUESTIONS["team"]["criteria"].items()))}}
    reverse = loaded.decider.decide(state=STATE, questions=turned)
    for option in QUESTIONS["team"]["criteria"]:
        one, other = (decision["team"]["probabilities"][option] for decision in (plain, reverse))
        assert averaged["team"]["probabilities"][option] == (one + other) / 2
    assert list(averaged["team"]["probabilities"]) == list(QUESTIONS["team"]["criteria"])
    assert [averaged[qid] for qid in ("urgent", "tone")] == [plain[qid] for qid in ("urgent", "tone")]
    assert averaged.usage["input_tokens"] == plain.usage["input_tokens"] + reverse.usage["input_tokens"]
    single = {"q": {"type": "choice", "instructions": "?", "criteria": {"only": None}}}
    assert (
        loaded.decider.decide(state="s", questions=single, permutation_average=True).usage
        == loaded.decider.decide(state="s", questions=single).usage
    )


def test_transformers_own_decision_model_agrees(loaded: Loaded) -> None:
    """``JevForDecision`` on the same folder; the bias that it adds is in no checkpoint, so it is set to 0."""
    folder = loaded.folder
    if any(name.startswith("model.") for name in load_file(folder / "model.safetensors")):
        return  # it reads bare names alone
    theirs = AutoModelForDecision.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    theirs.proj.bias.data.zero_()
    prompt = loaded.prompts(QUESTIONS)["team"]
    with torch.no_grad():
        wanted = theirs(
            input_ids=torch.tensor([prompt.ids]),
            marks=torch.tensor([[len(prompt.ids)]]),
            num_options=torch.tensor([[len(CODES)]]),
            question_type_ids=torch.tensor([[0]]),
        ).numpy()
    (got,) = loaded.ours(prompt.ids)
    assert np.abs(got - wanted).max() <= LOGITS * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["causal", "both ways"])
def test_two_devices_and_throughput_mode_give_the_answers_of_one(name: str, cache: None, tmp_path: Path) -> None:
    write_decision(tmp_path, **CHECKPOINTS[name])
    with (
        sysone_jax.load(tmp_path, max_model_len=256) as one,
        sysone_jax.load(tmp_path, max_model_len=256, mesh=(1, 2), read_mode="throughput") as two,
    ):
        wanted, got = (model.decide(state=STATE, questions=QUESTIONS) for model in (one, two))
    for qid, read in wanted.reads.items():
        assert got.reads[qid].probabilities == pytest.approx(read.probabilities, abs=PROBABILITIES)


def test_a_mixture_of_experts_reads_both_ways_too(cache: None, tmp_path: Path) -> None:
    reference = write_decision(tmp_path, seed=4, experts=True)
    readout = load_file(tmp_path / "readout.safetensors")["weight"]
    ids = np.random.default_rng(0).integers(0, 400, 90).tolist()
    with sysone_jax.load(tmp_path, max_model_len=128) as decider:
        assert decider.architecture == "Qwen3_5MoeModel"
        (got,) = decider.code_logits([ids]).result().logits
    wanted = code_logits(reference, readout, ids).numpy()
    assert np.abs(got - wanted).max() <= LOGITS * np.abs(wanted).max()


def test_nothing_compiles_after_warming(cache: None, tmp_path: Path) -> None:
    write_decision(tmp_path, **CHECKPOINTS["causal"])
    weights = load_file(tmp_path / "model.safetensors")
    text = {name: tensor for name, tensor in weights.items() if ".visual." not in name}
    save_file(text, tmp_path / "model.safetensors")
    with sysone_jax.load(tmp_path, max_model_len=256) as decider:
        decider.warm()
        before = decider.compile_count
        for words in (0, 1, 9):
            decider.decide(state="late " * words, questions=QUESTIONS, permutation_average=True)
        decider.code_logits([[1], [1, 2], [3] * 256]).result()
        assert decider.compile_count == before


# ---------------------------------------------------------------------------- the checkpoint


def test_a_converted_folder_keeps_the_decision_config(loaded: Loaded) -> None:
    manifest = read_manifest(resolve(loaded.folder))
    assert manifest.decision == json.loads((loaded.folder / "decision_config.json").read_text(encoding="utf-8"))
    assert manifest.config == json.loads((loaded.folder / "config.json").read_text(encoding="utf-8"))
    assert manifest.head is None
    assert (loaded.decider.strategy, loaded.decider.architecture) == ("answer_codes", "Qwen3_5Model")


def test_a_readout_in_bfloat16_rounds_as_torch_does(cache: None, tmp_path: Path) -> None:
    reference = write_decision(tmp_path, "causal", seed=5, readout_dtype="bfloat16")
    readout = load_file(tmp_path / "readout.safetensors")["weight"]
    ids = list(range(40, 90))
    with sysone_jax.load(tmp_path, max_model_len=128) as decider, torch.no_grad():
        got = decider.code_logits([ids]).result().logits[0]
        reference.rope_deltas = None
        hidden = reference(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1:]
        wanted = torch.nn.functional.linear(hidden.bfloat16(), readout.bfloat16()).float()[0].numpy()
    steps = np.spacing(np.abs(wanted)) * 2**16  # of bfloat16, between neighbours
    assert (np.abs(got - wanted) <= steps).all()
    assert (got == wanted).mean() > 0.95


def test_a_limit_of_the_checkpoint_is_the_model_s(cache: None, tmp_path: Path) -> None:
    write_decision(tmp_path, max_length=200)
    with sysone_jax.load(tmp_path) as decider:
        assert decider.max_model_len == 200
        with pytest.raises(InputError, match="over the maximum context length of 200 tokens") as caught:
            decider.decide(state="late " * 300, questions={"q": QUESTIONS["urgent"]})
        count = int(str(caught.value).split(" has ")[1].split()[0])
        assert caught.value.served == (
            f"question 'q': the prompt has {count} tokens, more than max_model_len=200; nothing is truncated"
        )
        assert count > 300
    with pytest.raises(InputError, match="must be from 1 to 200"):
        sysone_jax.load(tmp_path, max_model_len=201)


def drop_a_code(folder: Path) -> None:
    """The tokenizer spells one code with two tokens."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"].remove(["B", "Q"])
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def edit(file: str, **changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        value = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps(value | changes), encoding="utf-8")

    return apply


def narrow(folder: Path) -> None:
    save_file({"weight": torch.zeros(255, 40)}, folder / "readout.safetensors")


def more_tensors(folder: Path) -> None:
    save_file({"weight": torch.zeros(255, 44), "bias": torch.zeros(255)}, folder / "readout.safetensors")


def other_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps(config | {"chat_template": config["chat_template"].replace("'\\n' + parts", "' ' + parts")}),
        encoding="utf-8",
    )


SWAPPED = [CODES[1], CODES[0], *CODES[2:]]
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a code of two tokens": (drop_a_code, "checkpoint answer codes differ from its tokenizer"),
    "codes in another order": (
        edit("decision_config.json", codes=SWAPPED),
        "checkpoint answer codes differ from its tokenizer",
    ),
    "another template": (other_template, "the chat template writes another prompt"),
    "no readout": (lambda folder: (folder / "readout.safetensors").unlink(), "readout.safetensors is missing"),
    "no decision config": (
        lambda folder: (folder / "decision_config.json").unlink(),
        "decision_config.json is missing",
    ),
    "a readout of another width": (narrow, r"weight has shape \[255, 40\]"),
    "a readout of two tensors": (more_tensors, "unknown tensor bias"),
    "an unknown mode": (edit("decision_config.json", attention_mode="sideways"), "unknown attention_mode 'sideways'"),
    "Qwen3-VL": (
        edit("config.json", architectures=["Qwen3VLModel"], model_type="qwen3_vl"),
        "Qwen3VLModel is not supported: its vision tower also feeds the text network's first layers",
    ),
    "another family": (edit("config.json", architectures=["LlamaForCausalLM"]), "config.json"),
    "both heads": (
        lambda folder: (folder / "joint_head_config.json").write_text("{}", encoding="utf-8"),
        "has a joint head and answer codes",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_decision(folder)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_does_not_fit_is_refused(name: str, whole: Path, cache: None, tmp_path: Path) -> None:
    spoil, message = REFUSED[name]
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        sysone_jax.load(tmp_path)


def test_a_bare_backbone_without_codes_is_refused(whole: Path, cache: None, tmp_path: Path) -> None:
    for path in whole.iterdir():
        if path.name not in ("decision_config.json", "readout.safetensors"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match="Qwen3_5Model has no output table.* lacks its decision_config.json"):
        sysone_jax.load(tmp_path)
