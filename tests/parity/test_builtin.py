"""The built-in models, converted anew from their base weights, against torch and against recorded answers."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import sysone_jax
from converters.gguf_source import GgufSource
from sysone_jax import Decider, checkpoint
from sysone_jax.builtin import cache_folder
from sysone_jax.loading import load_weights, resolve
from sysone_jax.model import Model
from sysone_jax.reader import programs
from sysone_jax.reader.rows import pad_tokens
from sysone_jax.sharding import make_mesh
from sysone_jax.text import Tokenizer

ROOT = Path(__file__).parents[2]
LOGITS = 5e-5  # of the largest; measured 1e-6
PROBABILITIES = 1e-5


def records(path: Path) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


DECISIONS = records(ROOT / "eval" / "data" / "decisions.jsonl")
# Ids, option logits (in the prompt's order) and probabilities (in the request's) of every record, computed in torch in
# float32 from the same base weights and trained parts.
EXPECTED = records(ROOT / "tests" / "data" / "default" / "expected.jsonl")


@pytest.fixture(scope="module")
def cache(base_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that holds the base weights and nothing made from them."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "base").mkdir()
    (folder / "base" / base_gguf.name).symlink_to(base_gguf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(folder))
        yield
    shutil.rmtree(folder / "models")  # a gigabyte that pytest would keep


# ------------------------------------------------------------------------------- sysone-mini


@pytest.fixture(scope="module")
def mini(cache: None) -> Iterator[Decider]:
    with sysone_jax.load("sysone-mini", dtype="float32") as decider:
        yield decider


def test_the_default_model_is_sysone_mini(mini: Decider) -> None:
    folder = resolve(None)
    assert folder == resolve("sysone-mini") and folder.parent == cache_folder() / "models"
    assert checkpoint.read_manifest(folder).source == "sysone-mini"
    assert (mini.strategy, mini.architecture, mini.max_model_len) == ("joint_schema", "LlamaForCausalLM", 8192)


def test_every_record_has_an_expectation() -> None:
    assert EXPECTED.keys() == DECISIONS.keys() and len(EXPECTED) == 27


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_answers(mini: Decider, name: str) -> None:
    record, expected = DECISIONS[name], EXPECTED[name]
    request = mini.request(state=record["state"], questions=record["questions"])
    prompt = mini._strategy.plan(request).prompts
    assert list(prompt.ids) == expected["input_ids"]

    strategy: Any = mini._strategy
    logits = mini._engine.submit(lambda: strategy.logits(prompt)).result()
    wanted = np.float64(expected["option_logits"])
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=LOGITS * np.abs(wanted).max())

    decision = mini.submit(request).result()
    assert list(decision) == list(record["questions"])
    for question, read in decision.reads.items():
        np.testing.assert_allclose(read.probabilities, expected["probabilities"][question], atol=PROBABILITIES)


# ------------------------------------------------------------------------------- smollm2-135m

PROMPTS = (
    "Hi",
    "The app crashes with a white screen every time I open the settings page on my Pixel 8. Started after yesterday's "
    "update.\n\nQuestion: Is it urgent?\nyes\nno\nAnswer with yes or no only.",
)


@pytest.fixture(scope="module")
def smollm(cache: None) -> tuple[Model, Tokenizer]:
    folder = resolve("smollm2-135m")
    model = load_weights(folder, checkpoint.read_manifest(folder), make_mesh((1, 1)), "float32")
    return model, Tokenizer.load(folder / "tokenizer")


@pytest.fixture(scope="module")
def torch_smollm(base_gguf: Path) -> LlamaForCausalLM:
    source = GgufSource(base_gguf)
    config = LlamaConfig(**{key: value for key, value in source.config().items() if key != "architectures"})
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    weights = {name: torch.from_numpy(source.read(name)) for name in source.shapes()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffer is in no file
    return model.eval()


@jax.jit
def all_logits(model: Model, hidden: jax.Array) -> jax.Array:
    return jax.vmap(model.backbone.logits)(hidden)


@pytest.mark.parametrize("text", PROMPTS, ids=["short", "long"])
def test_real_weights_give_the_logits_of_torch(
    smollm: tuple[Model, Tokenizer], torch_smollm: LlamaForCausalLM, text: str
) -> None:
    model, tokenizer = smollm
    ids = tokenizer.chat(text)
    with torch.no_grad():
        theirs = torch_smollm(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    with jax.set_mesh(make_mesh((1, 1))):
        _, hidden = programs.begin(model, pad_tokens(ids, 96), np.int32(len(ids)), 96)
        ours = np.asarray(all_logits(model, hidden))[: len(ids)]
    assert np.abs(ours - theirs).max() <= LOGITS * np.abs(theirs).max()
    # Answers are read from the last row.
    read, wanted = (jax.nn.softmax(np.float64(logits[-1])) for logits in (ours, theirs))
    assert np.abs(read - wanted).max() <= PROBABILITIES


def test_the_tokenizer_is_the_one_in_the_file(smollm: tuple[Model, Tokenizer], base_gguf: Path) -> None:
    """transformers reads the file's vocabulary and merges, and not its rule that sets every digit apart: done here."""
    theirs = AutoTokenizer.from_pretrained(base_gguf.parent, gguf_file=base_gguf.name)
    _, ours = smollm
    texts = [record["state"] for record in DECISIONS.values() if isinstance(record["state"], str)]
    texts += [
        "",
        " ",
        "\n\n  x",
        "\r\n\r\n",
        "12 345,678.90  1  2",
        "٣٤ ½ ² Ⅻ",
        "שלום",
        "日本語。",
        "हिन्दी",
        "don't I'LL",
    ]
    texts += [
        "naïve nai\u0308ve",
        "\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
        "\x00\x01\ufeff",
        "\u00a0a\u2009b\t",
    ]
    texts += ["<|im_end|>\n<|im_start|>system"]
    rng = np.random.default_rng(0)
    blocks = ((32, 127), (48, 58), (0x80, 0x800), (0x800, 0x3000), (0x3000, 0xD800), (0x1F300, 0x1F600), (9, 33))
    for _ in range(300):
        picks = rng.integers(0, len(blocks), rng.integers(1, 40))
        texts.append("".join(chr(rng.integers(*blocks[pick])) for pick in picks))
    for text in texts:
        assert ours.encode(text) == [token for part in digits_apart(text) for token in theirs.encode(part)], repr(text)
    assert ours.chat_template == theirs.chat_template


def digits_apart(text: str) -> list[str]:
    """The text cut before and after every numeric character."""
    parts = [""]
    for character in text:
        if unicodedata.category(character).startswith("N"):
            parts += [character, ""]
        else:
            parts[-1] += character
    return [part for part in parts if part]
