"""The way through a door: a body's bytes in, a decision asked for, the response's body out.

The server and the command line both go this way, so they accept, refuse and answer alike.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from serving.body import BodyError, read_object, shown
from serving.dialects import UNKNOWN_MODEL, Dialect, Fact, Refusal, SchemaError
from serving.faults import Fault
from serving.forms import attach
from sysone_jax.decider import Decider, Decision
from sysone_jax.errors import InputError, NonFiniteError, SysoneError

LONGEST_MESSAGE = 600
"""A message may quote what a caller sent; it is cut in the middle, because its end says what to do."""
LONGEST_FIELD = 200
NAMES_TOLD = 8
"""Served names that a refusal of another name lists."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was accepted.

    Attributes:
        decision: what the engine will answer.
        model: the name to answer by.
        request_id: the id it gave itself, or None.
        context: what the dialect wants to see again.
    """

    decision: Future[Decision]
    model: str
    request_id: str | None
    context: Any


class Door:
    """One dialect's way to one model.

    Args:
        decider: the model.
        dialect: how requests and answers are written.
        names: what the model is called here; the first is what answers say, whichever was asked for, except where a
            dialect's answers repeat the name that was.
        union_errors: every refusal has both ``error`` and ``detail``, which all known clients read.
        rendering, overlong, permutation_average: as ``Decider.decide`` takes them; a body cannot set them.
    """

    def __init__(
        self,
        decider: Decider,
        dialect: Dialect,
        names: Sequence[str] = (),
        *,
        rendering: str,
        overlong: str,
        union_errors: bool = False,
        permutation_average: bool = False,
    ) -> None:
        self.dialect = dialect
        self.names = tuple(names) or (decider.name,)
        self._decider = decider
        self._union_errors = union_errors
        self._reading: dict[str, Any] = {
            "rendering": rendering,
            "overlong": overlong,
            "permutation_average": permutation_average,
        }

    @property
    def reading(self) -> dict[str, Any]:
        """Everything beside a request that its answer follows from."""
        return {"model": self.names[0], "dialect": self.dialect.NAME, **self._decider.reading, **self._reading}

    def begin(self, raw: bytes, parts: Mapping[str, bytes] | None = None) -> Pending:
        """Check a body, write its prompts and queue its reads: everything about a request that can be its own fault.

        Args:
            raw: the JSON.
            parts: what came beside it in a multipart body.

        Raises:
            InputError: the body is at fault.
        """
        body = read_object(raw)
        asked = self.dialect.parse(body if parts is None else attach(body, parts), self._decider)
        served = served_name(asked.model, self.names, self.dialect.ALIASES, self.dialect.UNKNOWN_MODEL)
        model = asked.model or served if self.dialect.ECHOES_MODEL else served
        request = self._decider.request(**asked.keywords, **self._reading)
        return Pending(self._decider.submit(request), model, asked.request_id, asked.context)

    def answer(self, pending: Pending, decision: Decision, request_id: str | None = None) -> dict[str, Any]:
        """The body of the 200 response; ``request_id`` is used where the request gave itself none."""
        chosen = pending.request_id or request_id or uuid.uuid4().hex
        return self.dialect.shape(
            decision, model=pending.model, request_id=chosen, created=int(time.time()), context=pending.context
        )

    def start(self, raw: bytes) -> Callable[[], tuple[dict[str, Any], bool]]:
        """Begin on a body; what comes back waits for (the response's body, whether it is a refusal)."""
        try:
            pending = self.begin(raw)
        except SysoneError as error:
            refused = self.refusal(error)[1]
            return lambda: (refused, True)

        def finish() -> tuple[dict[str, Any], bool]:
            try:
                return self.answer(pending, pending.decision.result()), False
            except SysoneError as error:
                return self.refusal(error)[1], True

        return finish

    def refusal(self, error: BaseException) -> tuple[int, dict[str, Any]]:
        """Status and body that say why there is no answer. Only a message meant for users is passed on."""
        facts: tuple[Fact, ...] = ()
        position = 0
        match error:
            case InputError(kind=kind, field=field, served=served):
                message = str(error) if served is None else served
                if isinstance(error, SchemaError):
                    facts = tuple(_bounded_fact(fact) for fact in error.facts)
                if isinstance(error, BodyError):
                    position = error.position
            case Fault(kind=kind):
                message, field = str(error), None
            case NonFiniteError():
                kind, message, field = "internal", str(error), None
            case _:
                kind, message, field = "internal", "internal error", None
        field = None if field is None else _valid(field[:LONGEST_FIELD])
        status, body = self.dialect.error(Refusal(kind, _bounded(message), field, facts, position))
        return status, _union(status, body) if self._union_errors else body


def served_name(
    asked: str | None, names: Sequence[str], aliases: Sequence[str] = (), words: str = UNKNOWN_MODEL
) -> str:
    """The name to answer by, as at vLLM the first; InputError when the model does not go by what was asked for."""
    if asked is not None and asked not in names and asked not in aliases:
        raise InputError(no_such_model(asked, names, words), kind="unknown_model", field="model")
    return names[0]


def no_such_model(asked: str, names: Sequence[str], words: str = UNKNOWN_MODEL) -> str:
    """A dialect's words, and the names that there are; the first of them where there are many."""
    served = ", ".join(f"`{name}`" for name in names[:NAMES_TOLD])
    more = f" and {len(names) - NAMES_TOLD} more at /v1/models" if len(names) > NAMES_TOLD else ""
    return f"{words.format(_unquoted(asked))} Served here: {served}{more}."


def encode(body: dict[str, Any]) -> bytes:
    """A body as one line of JSON; a float's text is the shortest that reads back to the same bits."""
    return msgspec.json.encode(body)


def _bounded(message: str) -> str:
    if len(message) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        message = f"{message[:half]} ... {message[-half:]}"
    return _valid(message)


def _bounded_fact(fact: Fact) -> Fact:
    place = tuple(_valid(key[:LONGEST_FIELD]) if isinstance(key, str) else key for key in fact.place)
    return Fact(place, fact.code, _bounded(fact.message))


def _union(status: int, body: dict[str, Any]) -> dict[str, Any]:
    """A refusal of any dialect with both ``error`` and ``detail``."""
    told = body.get("error", body.get("detail", body))
    if isinstance(told, list):
        told = {"message": told[0]["msg"], "type": told[0]["type"]}
    elif isinstance(told, str):
        told = {"message": told}
    kind = told.get("type", told.get("error_type", "error"))
    error = {"message": told["message"], "type": kind, "param": told.get("param"), "code": told.get("code", status)}
    return {"error": error, "detail": told["message"], **body}


def _valid(text: str) -> str:
    """Text that can be encoded: a lone surrogate is written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _unquoted(name: str) -> str:
    return shown(name)[1:-1] if len(name) > 200 or not name.isprintable() else name
