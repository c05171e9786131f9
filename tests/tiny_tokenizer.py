"""Small tokenizers, trained where they are used, for tests that make checkpoints of their own."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

Family = Literal["qwen3", "llama"]

QWEN3_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
QWEN3_ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
LLAMA_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>"]

# ChatML; `enable_thinking=False` closes an empty thought before the reply, as Qwen3's template does.
QWEN3_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

# ChatML that writes a system turn of its own where none is given, as SmolLM2's template does.
LLAMA_TEMPLATE = """\
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a small test model.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SENTENCES = [
    "system\nuser\nassistant\n",
    "Question: Is a refund requested?\nyes: The customer wants money back\nno: No money is asked for\n",
    "Answer with the letter of one option only.",
    "Answer with yes or no only.",
    "Answer with the number of one level only.",
    "Read the complete state and schema. Decide every field jointly. STATE:\n\n\nSCHEMA FIELDS:\n",
    "\nFIELD 1\nID: topic\nTYPE: choice\nINSTRUCTION: \nALLOWED OPTIONS:\nOPTION 1: \nEND FIELD\n",
    '{"description":"The proposition is true or the answer is yes.","option_id":"true"}',
    "\n\nyes\n\nno\n\nyes no yes no Yes No YES NO\n\n",
]


def write_tokenizer(folder: Path, family: Family, seed: int = 0) -> dict[str, int]:
    """Train a tokenizer and write ``tokenizer.json`` and ``tokenizer_config.json``, chat template included.

    Byte-level BPE in which ``yes``, ``no`` and each letter and digit are tokens of their own. The words learned depend
    on ``seed`` alone.

    Args:
        folder: where to write; made if it is not there.
        family: ``qwen3`` (NFC, special tokens after the words) or ``llama`` (SmolLM2's: before them, digits apart).
        seed: of the made-up words in the text that it is trained on.

    Returns:
        ``vocab_size``: rows that an embedding table needs, a multiple of 64.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    if family == "qwen3":
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(QWEN2_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        first, added, template, name = [], QWEN3_SPECIAL + QWEN3_ADDED, QWEN3_TEMPLATE, "Qwen2Tokenizer"
        named = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        first, added, template, name = LLAMA_SPECIAL, LLAMA_SPECIAL, LLAMA_TEMPLATE, "PreTrainedTokenizerFast"
        named = {
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        }
    trainer = trainers.BpeTrainer(
        vocab_size=420 + len(first),
        special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(random.Random(seed)), trainer)
    for token in added:
        add = backend.add_tokens if token in QWEN3_ADDED else backend.add_special_tokens
        add([tokenizers.AddedToken(token, normalized=False, special=token not in QWEN3_ADDED)])

    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": name,
        "chat_template": template,
        "added_tokens_decoder": {
            str(token): {
                "content": word.content,
                "lstrip": word.lstrip,
                "normalized": word.normalized,
                "rstrip": word.rstrip,
                "single_word": word.single_word,
                "special": word.special,
            }
            for token, word in sorted(backend.get_added_tokens_decoder().items())
        },
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        **named,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return {"vocab_size": -(-backend.get_vocab_size() // 64) * 64}


def _corpus(rng: random.Random) -> list[str]:
    consonants = [letter for letter in string.ascii_lowercase if letter not in "aeiou"]
    made_up = ["".join(rng.choice(consonants) + rng.choice("aeiou") for _ in range(3)) for _ in range(60)]
    return SENTENCES * 50 + [" ".join(rng.choices(made_up, k=12)) for _ in range(100)]
