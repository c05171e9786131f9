"""What a tokenizer splits text by before it encodes it, where a checkpoint's reference took another than ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import tokenizers

from sysone_jax.errors import CheckpointError

Pattern = Literal["qwen2", "qwen3_5"]

PATTERNS: dict[Pattern, str] = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen3_5": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""What text is split by before it is encoded. Qwen3.5's own keeps combining marks with their letters. A transformers
release may take either for the same files, so a checkpoint whose reference took the other than ours says which."""


def split_by(pattern: Pattern, backend: tokenizers.Tokenizer, folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of ``folder``, splitting by ``pattern``; CheckpointError when it splits by neither of the two."""
    state = json.loads(backend.to_str())
    splits = (state["pre_tokenizer"] or {}).get("pretokenizers", [])
    if not splits or splits[0].get("pattern") not in [{"Regex": known} for known in PATTERNS.values()]:
        raise CheckpointError(f"{folder}: this tokenizer splits text by no pattern of Qwen2's or Qwen3.5's")
    splits[0]["pattern"] = {"Regex": PATTERNS[pattern]}
    return tokenizers.Tokenizer.from_str(json.dumps(state))
