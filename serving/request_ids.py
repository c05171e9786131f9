"""``x-request-id``: the client's own where it is sane, else one of ours, on every response there is.

``x-typesafe-request-id`` says the same, for the clients that insist on it.
"""

import re
import uuid

from litestar.types import Message, Scope

_SANE = re.compile(r"[\x21-\x7e]{1,128}")
_KEY = "sysone_request_id"


def request_id(scope: Scope) -> str:
    """The id of a request, the same at every call."""
    state = scope["state"]
    if _KEY not in state:
        brought = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        state[_KEY] = brought if _SANE.fullmatch(brought) else uuid.uuid4().hex
    return state[_KEY]


async def add_request_id(message: Message, scope: Scope) -> None:
    """Litestar's ``before_send`` hook: it sees every response, also those to routes that do not exist."""
    if message["type"] == "http.response.start":
        value = request_id(scope).encode()
        message["headers"] = [*message["headers"], (b"x-request-id", value), (b"x-typesafe-request-id", value)]
