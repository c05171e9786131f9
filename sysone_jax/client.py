"""Asking a server of ``/v1/systemone``, in this package's own question types; needs httpx alone, and loads no model.

    from sysone_jax import Noul
    from sysone_jax.client import Client

    with Client("http://localhost:8000") as client:
        decision = client.decide(state="I was charged twice.", questions={"refund": Noul("Is money asked back?")})
        decision["refund"]["noul"], decision.usage

``AsyncClient`` is the same with ``await``. A request is sent again only where no answer to it came about: the server
could not be reached, was too busy or starting (5xx), never where it refused (4xx). It then waits as long as the server
asks, or twice as long as the time before.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from sysone_jax.errors import InputError, SysoneError
from sysone_jax.questions import JSON, Choice, Noul, Question, Score

PATH = "/v1/systemone"
RETRIES = 4
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds before the second try, and most before any."""
SNIFFED = (
    (b"\x89PNG", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"WEBP", 8, "image/webp"),
    (b"ftypqt", 4, "video/quicktime"),
    (b"ftyp", 4, "video/mp4"),
)
"""(bytes, where they stand, type) of media files; Matroska and WebM begin alike and say further on which they are."""


class ServerError(SysoneError):
    """A server gave no decision.

    Attributes:
        status: of its response; None when there was none.
        field: the request's field that it names, or None.
    """

    def __init__(self, message: str, status: int | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


class Decision(dict[str, dict[str, JSON]]):
    """Question id -> answer, in the wire form, as of ``sysone_jax.Decision``.

    Attributes:
        id, model, usage, diagnostics: what the response said; empty where it did not.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body["answers"])
        self.id: str = body.get("id", "")
        self.model: str = body.get("model", "")
        self.usage: dict[str, JSON] = body.get("usage") or {}
        self.diagnostics: dict[str, JSON] = body.get("diagnostics") or {}


class Client:
    """Asks one server; close it, or use it in a ``with`` block.

    Args:
        url: of the server, up to and without ``/v1/systemone``; a dialect's prefix may stand in it.
        api_key: sent as a bearer token.
        model: the name to ask for unless a request says otherwise; None leaves it out.
        timeout: seconds for one try.
        retries: tries after the first.
        transport: httpx's way to the server, for tests and proxies.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float = 120.0,
        retries: int = RETRIES,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._asked = _Asked(url, model)
        self._retries = retries
        self._http = httpx.Client(headers=_headers(api_key), timeout=timeout, transport=transport)

    def decide(self, *, state: JSON, questions: Mapping[str, Question | Mapping[str, JSON]], **fields: Any) -> Decision:
        """Ask questions about a state.

        Args:
            state: text, or any JSON value.
            questions: id -> ``Choice``, ``Noul`` or ``Score``, or the wire form.
            fields: further fields of the body, such as ``instructions``, ``model``, ``cache_salt``; ``images``,
                ``videos`` and ``audio`` as data URLs, bytes or paths.

        Raises:
            ServerError: the server refused, failed, or could not be reached after all tries.
            InputError: a file cannot be read, or is of no type that can be sent.
        """
        body = self._asked.body(state, questions, fields)
        waits = _waits(self._retries)
        while True:
            try:
                told: httpx.Response | httpx.TransportError = self._http.post(self._asked.url, json=body)
            except httpx.TransportError as error:
                told = error
            wait = _wait(told, waits)
            if wait is None:
                return _decision(told, self._asked.url)
            time.sleep(wait)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """``Client`` for asyncio: many requests at once from one thread."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float = 120.0,
        retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._asked = _Asked(url, model)
        self._retries = retries
        self._http = httpx.AsyncClient(headers=_headers(api_key), timeout=timeout, transport=transport)

    async def decide(
        self, *, state: JSON, questions: Mapping[str, Question | Mapping[str, JSON]], **fields: Any
    ) -> Decision:
        """As ``Client.decide``."""
        body = self._asked.body(state, questions, fields)
        waits = _waits(self._retries)
        while True:
            try:
                told: httpx.Response | httpx.TransportError = await self._http.post(self._asked.url, json=body)
            except httpx.TransportError as error:
                told = error
            wait = _wait(told, waits)
            if wait is None:
                return _decision(told, self._asked.url)
            await asyncio.sleep(wait)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def wire(question: Question) -> dict[str, Any]:
    """A question in its wire form."""
    told: dict[str, Any] = {"type": question.type, "instructions": question.instructions}
    match question:
        case Choice(criteria=criteria):
            told["criteria"] = dict(criteria)
        case Score(criteria=levels):
            told["criteria"] = list(levels)
        case Noul(criteria=criteria) if criteria is not None:
            told["criteria"] = dict(criteria)
    return told


class _Asked:
    """Where requests go, and what they hold."""

    def __init__(self, url: str, model: str | None) -> None:
        self.url = url.rstrip("/") + PATH
        self._model = model

    def body(
        self, state: JSON, questions: Mapping[str, Question | Mapping[str, JSON]], fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        asked = {
            name: wire(question) if isinstance(question, Choice | Noul | Score) else question
            for name, question in questions.items()
        }
        body: dict[str, Any] = {"state": state, "questions": asked, **fields}
        if self._model is not None:
            body.setdefault("model", self._model)
        for kind in ("images", "videos", "audio"):
            if kind in body:
                body[kind] = [_data_url(item, f"{kind}[{place}]") for place, item in enumerate(body[kind])]
        return body


def _headers(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def _waits(retries: int) -> Iterator[float]:
    """Seconds before every further try, spread a little so that many clients do not come back at once."""
    for turn in range(retries):
        yield min(LONGEST_WAIT, FIRST_WAIT * 2**turn) * random.uniform(0.8, 1.2)


def _wait(told: httpx.Response | httpx.TransportError, waits: Iterator[float]) -> float | None:
    """Seconds until the next try; None when this one is the last word."""
    if isinstance(told, httpx.Response) and told.status_code < 500:
        return None
    own = next(waits, None)
    if own is None or not isinstance(told, httpx.Response):
        return own
    try:
        return min(LONGEST_WAIT, max(0.0, float(told.headers["Retry-After"])))
    except (KeyError, ValueError):
        return own


def _decision(told: httpx.Response | httpx.TransportError, url: str) -> Decision:
    if not isinstance(told, httpx.Response):
        raise ServerError(f"{url} cannot be reached: {told or type(told).__name__}") from told
    try:
        body: Any = told.json()
    except ValueError:
        body = None
    if told.status_code == 200 and isinstance(body, dict) and isinstance(body.get("answers"), dict):
        return Decision(body)
    error = body.get("error") if isinstance(body, dict) else None
    message, field = (error.get("message"), error.get("param")) if isinstance(error, dict) else (None, None)
    message = message or f"no decision: {told.text[:200]!r}"
    raise ServerError(f"{url} answered {told.status_code}: {message}", told.status_code, field)


def _data_url(item: Any, name: str) -> str:
    """What a body may hold of a file: a data URL as it is, bytes and paths encoded."""
    if isinstance(item, str):
        return item
    if isinstance(item, Path):
        try:
            item = item.read_bytes()
        except OSError as error:
            raise InputError(f"{name}: {(error.strerror or str(error)).lower()}", kind="media", field=name) from None
    if not isinstance(item, bytes):
        raise InputError(f"{name}: must be a data URL, bytes or a path, not {type(item).__name__}", field=name)
    for magic, at, kind in SNIFFED:
        if item[at : at + len(magic)] == magic:
            return f"data:{kind};base64,{base64.b64encode(item).decode()}"
    if item[:4] == b"\x1a\x45\xdf\xa3":
        kind = "video/webm" if b"webm" in item[:64] else "video/x-matroska"
        return f"data:{kind};base64,{base64.b64encode(item).decode()}"
    raise InputError(f"{name}: no PNG, JPEG, WebP, MP4, QuickTime, WebM or Matroska file", kind="media", field=name)
