"""The server as an ASGI application: routes, who may enter, and what a failure looks like.

The event loop never touches the model. A request's body is checked and its prompts are written on a small pool of
threads; its reads are queued for the engine's thread, and the handler waits for the future.
"""

import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, Response, get, post
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
)
from litestar.handlers import HTTPRouteHandler

from serving import access_log, dialects
from serving.code_logits import CodeDoor
from serving.dialects import Dialect
from serving.document import document, operation
from serving.door import Door
from serving.encodings import too_large
from serving.faults import Fault
from serving.guards import FORMS, PUBLIC, body_guard, key_guard
from serving.keys import Keys
from serving.metrics import REFUSALS, Gauges, metrics_route, middleware_config
from serving.models import model_routes
from serving.passage import RETRY_AFTER, Passage, json_response
from serving.readiness import Readiness
from serving.request_ids import add_request_id, request_id
from serving.settings import Settings, body_limit
from sysone_jax.decider import Decider
from sysone_jax.errors import NonFiniteError, SysoneError

log = logging.getLogger("sysone.server")

PROMPT_THREADS = 4
"""Prompts written at once; tokenizers leave the interpreter free while they work."""


def create_app(
    decider: Decider,
    settings: Settings,
    *,
    on_ready: Callable[[], None] = lambda: None,
    on_failure: Callable[[BaseException], None] = lambda error: None,
    ending: Callable[[], bool] = lambda: False,
) -> Litestar:
    """The server of one loaded model. It warms the model when it starts; the caller closes the model.

    Args:
        on_ready: called once when every shape is compiled.
        on_failure: called instead when that fails.
        ending: whether the server was told to end; what a client has yet to send then gets little time.
    """
    readiness = Readiness(decider, on_ready, on_failure)
    doors = {name: _door(decider, settings, name) for name in dialects.NAMES}
    main = doors[settings.dialect]
    pool = ThreadPoolExecutor(PROMPT_THREADS, thread_name_prefix="sysone-prompts")

    passage = Passage(settings, readiness, pool, ending)
    keys = Keys(settings.api_keys, settings.api_key_file)
    gauges = Gauges(decider, main.names[0], lambda: passage.queue.waiting, lambda: readiness.ready)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        readiness.start()
        try:
            yield
        finally:
            readiness.stop()
            pool.shutdown(wait=False)

    def most_bytes(dialect: Dialect) -> int:
        return body_limit(settings, decider, dialect)

    routes: list[HTTPRouteHandler] = []
    for path, key, door in _routes(main, doors):
        routes.append(_decisions(door, path, f"decide{key}", passage, most_bytes(door.dialect)))
    for path, key, door in _model_routes(main, doors):
        routes += model_routes(path, key, main.names, decider, settings, door.dialect)

    by_path = {path: door for path, _, door in (*_routes(main, doors), *_model_routes(main, doors))}
    by_path |= dict.fromkeys(("/classify", "/pooling"), doors["vllm"])

    code_doors: list[CodeDoor] = []
    if decider.strategy == "answer_codes":  # as at vLLM, whose other models do not have these routes
        code_doors = [CodeDoor(path, decider, main.names) for path in ("/classify", "/pooling")]
    routes += [_code_logits(door, passage, most_bytes(main.dialect)) for door in code_doors]

    def refuse(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        door = by_path.get(request.url.path) or doors.get(request.url.path.split("/")[1], main)
        fault = _fault(request, error, most_bytes(door.dialect))
        kind = getattr(fault, "kind", "internal")
        REFUSALS.labels(door.dialect.NAME, kind).inc()
        access_log.note(request.scope, refused=kind)
        return _refusal(door, fault)

    return Litestar(
        route_handlers=[
            *routes,
            _health,
            _ready(readiness),
            metrics_route(gauges),
        ],
        guards=[key_guard(keys)],
        middleware=[middleware_config().middleware],
        lifespan=[lifespan],
        before_request=access_log.start_clock,
        before_send=[add_request_id, access_log.write_line],
        exception_handlers={Exception: refuse, HTTPException: refuse},
        openapi_config=document([*(door.dialect for door in doors.values()), *code_doors]),
        request_max_body_size=most_bytes(main.dialect),
        logging_config=None,
    )


def _door(decider: Decider, settings: Settings, dialect: str) -> Door:
    return Door(
        decider,
        dialects.get(dialect, settings.options),
        settings.names,
        rendering=settings.rendering,
        overlong=settings.overlong,
        union_errors=settings.options.error_body == "union",
    )


def _routes(main: Door, doors: dict[str, Door]) -> Iterator[tuple[str, str, Door]]:
    """(path, what sets its operation apart, door) of every route of decisions."""
    yield main.dialect.PATH, "", main
    for name, door in doors.items():
        yield f"/{name}{door.dialect.PATH}", f"_{name}", door
        for number, path in enumerate(door.dialect.ALSO):
            yield path, f"_{name}_{number}", door


def _model_routes(main: Door, doors: dict[str, Door]) -> Iterator[tuple[str, str, Door]]:
    """The same, of lists of models. ``/decisions/v1/models`` is Liquid's, and answers OpenAI's clients as well."""
    yield "/v1/models", "", main
    for name, door in doors.items():
        if name != "decisions":
            yield f"/{name}/v1/models", f"_{name}", door
    yield "/decisions/v1/models", "_decisions", doors["liquid"]


def _decisions(
    door: Door,
    path: str,
    operation_id: str,
    passage: Passage,
    most_bytes: int,
) -> HTTPRouteHandler:
    """The route of one dialect. It answers 200, as clients insist, where a POST would be 201 by default."""

    @post(
        path,
        status_code=200,
        operation_id=operation_id,
        operation_class=operation(door.dialect),
        summary="Answer typed questions about a state",
        tags=["decisions"],
        guards=[body_guard],
        opt=FORMS if door.dialect.TAKES_FORMS else {},
        request_max_body_size=most_bytes,
    )
    async def decide(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await passage.answered(request, door, most_bytes)

    return decide


def _code_logits(
    door: CodeDoor,
    passage: Passage,
    most_bytes: int,
) -> HTTPRouteHandler:
    """The route of the logits of every answer code; its errors are vLLM's."""

    @post(
        door.path,
        status_code=200,
        operation_id=door.path.removeprefix("/"),
        operation_class=operation(door),
        summary="The raw logits of every answer code after a prompt",
        tags=["codes"],
        guards=[body_guard],
    )
    async def logits(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await passage.answered(request, door, most_bytes)

    return logits


@get("/health", operation_id="health", summary="Whether the process answers", tags=["health"], opt=PUBLIC)
async def _health() -> dict[str, str]:
    return {"status": "ok"}


def _ready(readiness: Readiness) -> HTTPRouteHandler:
    @get("/ready", operation_id="ready", summary="Whether requests are answered now", tags=["health"], opt=PUBLIC)
    async def ready() -> Response[bytes]:
        if readiness.ready:
            return json_response(readiness.body())
        return json_response(readiness.body(), 503, RETRY_AFTER)

    return ready


def _fault(request: Request[Any, Any, Any], error: Exception, most_bytes: int) -> Exception:
    """What the client is told: our own errors as they are, Litestar's by what they mean, all others as internal."""
    match error:
        case NonFiniteError():
            log.error("request %s failed: %s", request_id(request.scope), error)
            return error
        case SysoneError():
            return error
        case InternalServerException():
            return Fault("internal", "the client hung up")  # while its body was read
        case NotFoundException():
            return Fault("not_found", f"no route {request.url.path[:200]!r}; /schema lists what there is")
        case MethodNotAllowedException():
            return Fault("method", f"{request.method[:20]} is not a method of this route", error.headers)
        case HTTPException(status_code=413):
            return too_large(most_bytes)
        case HTTPException(status_code=status) if status < 500:
            return Fault("content_type", f"the request cannot be read: {error.detail[:200]}")
    # An exception's text may hold the request's; where it came from does not.
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("request %s failed: %s\n%s", request_id(request.scope), type(error).__name__, place)
    return Fault("internal", f"internal error; the server's log has more under request id {request_id(request.scope)}")


def _refusal(door: Door, error: Exception) -> Response[bytes]:
    status, body = door.refusal(error)
    headers = error.headers if isinstance(error, Fault) else {}
    return json_response(body, status, headers)
