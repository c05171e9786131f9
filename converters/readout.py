"""Decision 3.0's readout: the one tensor of ``readout.safetensors``, and whether its codes are this tokenizer's."""

from __future__ import annotations

from converters.tables import Rule, as_is
from sysone_jax.errors import CheckpointError
from sysone_jax.heads.answer_codes import CODES, AnswerCodesConfig
from sysone_jax.prompts.answer_codes import ENDING, OPENING, SYSTEM, reply_codes
from sysone_jax.text import Tokenizer

RULES = (Rule("weight", "weight", as_is),)

SAMPLE = "State:\na\n\nQuestion:\nb"


def check_tokenizer(config: AnswerCodesConfig, tokenizer: Tokenizer) -> None:
    """CheckpointError when the codes are other tokens here, or the chat template writes another prompt."""
    if reply_codes(tokenizer, CODES) != dict(zip(config.codes, config.token_ids, strict=True)):
        raise CheckpointError("checkpoint answer codes differ from its tokenizer")
    if tokenizer.chat(SAMPLE, system=SYSTEM) != tokenizer.encode(OPENING + SAMPLE + ENDING):
        raise CheckpointError("the chat template writes another prompt than the one that Decision 3.0 was trained on")
