"""A dialect: how one vendor writes requests, answers and errors. Doors know dialects by this table alone."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

from sysone_jax.decider import Decider, Decision
from sysone_jax.questions import Limits

NAMES = ("vllm",)


class Asked(NamedTuple):
    """What a body asks for.

    Attributes:
        model: the model it names, or None.
        request_id: the id it gives itself, or None.
        keywords: for ``Decider.request``.
    """

    model: str | None
    request_id: str | None
    keywords: dict[str, Any]


class Dialect(Protocol):
    """What every module of this package offers."""

    NAME: str
    PATH: str
    """Route of decisions. ``/NAME`` in front of it always means this dialect."""
    LIMITS: Limits
    REQUEST: type
    RESPONSE: type
    ERROR: type
    """msgspec Structs that describe the bodies, for the OpenAPI document."""
    EXAMPLE: Mapping[str, Any]
    """A request's body."""

    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        """Check the fields that are the dialect's own; InputError names the first that is wrong."""
        ...

    def shape(self, decision: Decision, *, model: str, request_id: str, created: int) -> dict[str, Any]:
        """The body of a decision's 200 response. ``model`` is the name to answer by, ``created`` in Unix seconds."""
        ...

    def error(self, kind: str, message: str, field: str | None) -> tuple[int, dict[str, Any]]:
        """Status and body of a refusal. ``kind`` is an InputError's or a ``serving.faults`` kind."""
        ...


def limits(own: Limits, decider: Decider) -> Limits:
    """What a request may hold under a dialect's own limits: its cap on options is that of letters, and codes go on."""
    return replace(own, options=decider.limits.options) if decider.strategy == "answer_codes" else own


def get(name: str) -> Dialect:
    """The dialect of a name in ``NAMES``."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is not a dialect; there are {', '.join(NAMES)}")
    return cast(Dialect, importlib.import_module(f"serving.dialects.{name}"))
