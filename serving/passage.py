"""A request's way through the server: a place, its body, a door, its answer. Everything here may refuse it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from litestar import Request, Response

from serving import access_log, metrics
from serving.admission import Queue, Rates
from serving.code_logits import CodeDoor
from serving.door import Door, encode
from serving.encodings import check_encoding, decoded
from serving.faults import Fault
from serving.forms import KIND, read_form
from serving.guards import client_of
from serving.readiness import Readiness
from serving.receive import received
from serving.request_ids import request_id
from serving.settings import Settings
from sysone_jax.decider import Decision

RETRY_AFTER = {"Retry-After": "5"}
_UPLOADS = 4
"""Bodies that may be arriving for each place in the queue: slow ones then keep no place from those that are there."""


class Passage:
    """What all routes of one server share.

    Args:
        pool: threads on which bodies are checked and prompts are written.
        ending: whether the server was told to end.
    """

    def __init__(
        self, settings: Settings, readiness: Readiness, pool: ThreadPoolExecutor, ending: Callable[[], bool]
    ) -> None:
        self.queue = Queue(settings.max_queue)
        self._uploads = Queue(_UPLOADS * settings.max_queue, "bodies arrive")
        self._rates = Rates(settings.requests_per_minute, settings.tokens_per_minute)
        self._seconds = settings.request_seconds
        self._readiness, self._pool, self._ending = readiness, pool, ending

    async def answered(
        self, request: Request[Any, Any, Any], door: Door | CodeDoor, most_bytes: int
    ) -> Response[bytes]:
        if not self._readiness.ready:
            raise Fault("starting", "the model is not ready yet; GET /ready says how far it is", RETRY_AFTER)
        self.queue.check()  # before a body is read that could not be worked on
        with self._uploads.place(), metrics.SECONDS.labels("body").time():
            raw = await received(request, self._ending)
        with self.queue.place():
            admitted = self._rates.admit(client_of(request), len(raw))
            tokens = 0
            try:
                body, tokens = await self._read(request, door, raw, most_bytes)
            finally:
                headers = admitted.settle(tokens)
        return json_response(body, 200, headers)

    async def _read(
        self, request: Request[Any, Any, Any], door: Door | CodeDoor, raw: bytes, most_bytes: int
    ) -> tuple[dict[str, Any], int]:
        """(the response's body, the tokens of its prompts)."""
        encoding = check_encoding(request.headers.get("content-encoding", ""))
        kind = request.headers.get("content-type", "")

        def begin() -> Any:
            plain = decoded(raw, encoding, most_bytes)
            if isinstance(door, Door) and kind.partition(";")[0].strip().lower() == KIND:
                return door.begin(*read_form(plain, kind))
            return door.begin(plain)

        start = time.monotonic()
        with metrics.SECONDS.labels("prepare").time():
            pending = await asyncio.get_running_loop().run_in_executor(self._pool, begin)
        left = self._seconds - (time.monotonic() - start)
        with metrics.SECONDS.labels("answer").time():
            answer: Any = await self._unless_gone(request, asyncio.wrap_future(pending.decision), left)
        if isinstance(door, Door):
            decision: Decision = answer
            tokens = decision.usage["input_tokens"]
            metrics.count(decision, door.names[0])
            access_log.note(request.scope, model=pending.model, questions=len(decision.questions), input_tokens=tokens)
        else:
            tokens = sum(answer.tokens)
            access_log.note(request.scope, model=pending.model, input_tokens=tokens)
        return door.answer(pending, answer, request_id(request.scope)), tokens

    async def _unless_gone(self, request: Request[Any, Any, Any], answer: "asyncio.Future[Any]", seconds: float) -> Any:
        """The answer; when the client hangs up first, or time runs out, its place at the engine is given up."""
        gone = asyncio.ensure_future(_hung_up(request))
        try:
            await asyncio.wait({answer, gone}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            answer.cancel()
            if gone.done():
                raise Fault("internal", "the client hung up")
            raise Fault("overload", f"no answer within {self._seconds:g} seconds; try again later", RETRY_AFTER)
        finally:
            gone.cancel()


async def _hung_up(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(encode(body), status_code=status, headers=headers, media_type="application/json")
