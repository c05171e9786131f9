"""One line of JSON for each request. It says who asked for what and how it went, and nothing of what was sent."""

import json
import logging
import time
from typing import Any

from litestar import Request
from litestar.types import Message, Scope

from serving.request_ids import request_id

log = logging.getLogger("sysone.access")
_STARTED, _FACTS = "sysone_started", "sysone_facts"


async def start_clock(request: Request[Any, Any, Any]) -> None:
    """Litestar's ``before_request`` hook."""
    request.scope["state"][_STARTED] = time.monotonic()


def note(scope: Scope, **facts: Any) -> None:
    """Say more of a request in its line: its number of questions, its tokens, what was refused."""
    scope["state"].setdefault(_FACTS, {}).update(facts)


async def write_line(message: Message, scope: Scope) -> None:
    """Litestar's ``before_send`` hook, which sees every response there is."""
    if message["type"] != "http.response.start" or not log.isEnabledFor(logging.INFO):
        return
    state = scope["state"]
    line: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "request_id": request_id(scope),
        "method": scope.get("method"),
        "path": scope["path"][:200],
        "status": message["status"],
    }
    if _STARTED in state:
        line["ms"] = round(1000 * (time.monotonic() - state[_STARTED]), 1)
    log.info("%s", json.dumps(line | state.get(_FACTS, {})))
