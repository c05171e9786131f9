"""sysone-jax: typed questions about a state, answered with probabilities read out of open decision models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sysone_jax.decider import Decider, Decision
    from sysone_jax.errors import CheckpointError, InputError, SysoneError
    from sysone_jax.loading import load
    from sysone_jax.questions import Choice, Noul, Score

__version__ = "0.1.0"

_HOMES = {
    "load": "loading",
    "Decider": "decider",
    "Decision": "decider",
    "Choice": "questions",
    "Noul": "questions",
    "Score": "questions",
    "SysoneError": "errors",
    "InputError": "errors",
    "CheckpointError": "errors",
}

__all__ = [
    "CheckpointError",
    "Choice",
    "Decider",
    "Decision",
    "InputError",
    "Noul",
    "Score",
    "SysoneError",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sysone_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sysone_jax.{_HOMES[name]}"), name)
