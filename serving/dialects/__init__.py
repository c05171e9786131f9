"""A dialect: how one vendor writes requests, answers and errors. Doors know dialects by this table alone."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError
from sysone_jax.questions import Limits

SYSTEM_ONE = ("vllm", "typesafe", "d3", "clef", "liquid")
"""The dialects that may stand at ``/v1/systemone``."""
NAMES = (*SYSTEM_ONE, "decisions")


@dataclass(frozen=True, slots=True)
class Options:
    """Where vendors differ about the same path, what this server does.

    Attributes:
        confidence: one of ``sysone_jax.answers.CONFIDENCES``; None is the dialect's own.
        rounding: decimals of every probability, score and confidence, each rounded on its own; None rounds nothing.
        unknown_fields: ``refuse`` fields that no documented request has, or ``ignore`` them.
        require_model: whether a request must name the model where its dialect's documents say so.
        missing_key_status: for a request without a key; live TypeSafe says 403 where its documents say 401.
        error_body: ``native``, or ``union`` of ``error`` and ``detail``, which every known client reads.
        state_parts: whether a state that is a list of ``text``, ``json`` and ``image_url`` parts, and of nothing
            else, is read as these parts, as some clients send it, where the dialect has no rule of its own.
        decisions: whose ``/v1/decisions``: ``vllm``'s (text, 64 questions), or ``openai``'s own limits and images.
    """

    confidence: str | None = None
    rounding: int | None = None
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    require_model: bool = False
    missing_key_status: int = 401
    error_body: Literal["native", "union"] = "native"
    state_parts: bool = True
    decisions: Literal["vllm", "openai"] = "vllm"


UNKNOWN_MODEL = "The model `{}` does not exist."
"""As vLLM says it."""


class Asked(NamedTuple):
    """What a body asks for.

    Attributes:
        model: the model it names, or None.
        request_id: the id it gives itself, or None.
        keywords: for ``Decider.request``.
        context: what the dialect needs again when it writes the answer.
    """

    model: str | None
    request_id: str | None
    keywords: dict[str, Any]
    context: Any = None


class Fact(NamedTuple):
    """One fault of a body against its schema: where, the schema's name for it, and words."""

    place: tuple[str | int, ...]
    code: str
    message: str


class SchemaError(InputError):
    """A body that does not fit its dialect's schema, for dialects that list such faults apart from others."""

    def __init__(self, facts: list[Fact]) -> None:
        first = facts[0]
        super().__init__(first.message, kind="schema", field=".".join(map(str, first.place)))
        self.facts = facts


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer.

    Attributes:
        kind: an InputError's, ``schema``, or one of ``serving.faults``.
        message: words for the client, bounded in length.
        field: dotted path of the field at fault, or None.
        facts: of a SchemaError.
        position: for ``json``, the byte or character at fault.
    """

    kind: str
    message: str
    field: str | None = None
    facts: tuple[Fact, ...] = ()
    position: int = 0


class Dialect(ABC):
    """What the ``DIALECT`` of every module of this package is; it is made from ``Options``. What stands here is so
    unless a dialect says otherwise."""

    NAME: str
    PATH = "/v1/systemone"
    """Route of decisions. ``/NAME`` in front of it always means this dialect."""
    ALSO: tuple[str, ...] = ()
    """Documented routes that are this dialect's alone."""
    ALIASES: tuple[str, ...] = ()
    """Names of models that its clients send and that mean whatever is served."""
    UNKNOWN_MODEL = UNKNOWN_MODEL
    """Words for a model that is not here, with ``{}`` for its name."""
    ECHOES_MODEL = False
    """Whether an answer gives the model the name it was asked by; else it is the first served name."""
    MOST_BYTES: int | None = None
    """Of a body; None where no document says."""
    LIMITS: Limits
    TAKES_FORMS = False
    """Whether a body may be multipart, with images as parts."""
    SCHEMA_STATUS = 400
    """Of a body that does not fit the schema: 400 or 422."""
    REQUEST: type
    RESPONSE: type
    ERROR: type
    """msgspec Structs that describe the bodies, for the OpenAPI document."""
    EXAMPLE: Mapping[str, Any]
    """A request's body."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @abstractmethod
    def parse(self, body: dict[str, Any], decider: Decider) -> Asked:
        """Check the fields that are the dialect's own; InputError names the first that is wrong."""

    @abstractmethod
    def shape(
        self, decision: Decision, *, model: str, request_id: str, created: int, context: Any = None
    ) -> dict[str, Any]:
        """The body of a decision's 200 response. ``model`` is the name to answer by, ``created`` in Unix seconds."""

    @abstractmethod
    def error(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        """Status and body of a refusal."""


def row(table: Mapping[str, tuple[Any, ...]], kind: str, default: tuple[Any, ...], options: Options) -> Any:
    """What a dialect's table of refusals says about a kind, status first."""
    found = table.get(kind, default)
    return (options.missing_key_status, *found[1:]) if kind == "auth_missing" else found


def limits(own: Limits, decider: Decider) -> Limits:
    """What a request may hold: a dialect's limits, and where a model reads fewer options by letters or digits, its own.

    vLLM's cap on options is that of letters, and goes on with a model's codes.
    """
    model = decider.limits
    options = model.options if own.options == _LETTERS and decider.strategy == "answer_codes" else own.options
    return replace(own, options=_least(options, model.options), levels=_least(own.levels, model.levels))


_LETTERS = 26


def _least(one: int | None, other: int | None) -> int | None:
    known = [limit for limit in (one, other) if limit is not None]
    return min(known, default=None)


def get(name: str, options: Options | None = None) -> Dialect:
    """The dialect of a name in ``NAMES``."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is not a dialect; there are {', '.join(NAMES)}")
    return importlib.import_module(f"serving.dialects.{name}").DIALECT(options or Options())
