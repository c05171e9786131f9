"""A request's body off the wire, within a time: a client that stops sending holds no place, and no server's end."""

import asyncio
from collections.abc import Callable
from typing import Any

from litestar import Request

from serving.faults import Fault

SECONDS = 60.0
"""How long a body may take to arrive."""
SECONDS_AT_THE_END = 1.0
"""The same, from when the server was told to end."""
_LOOK = 0.25  # seconds between looks at whether it was


async def received(request: Request[Any, Any, Any], ending: Callable[[], bool]) -> bytes:
    """The whole body.

    Raises:
        Fault: it did not arrive in time; or what ``Request.body`` raises, such as a body that is too large.
    """
    clock = asyncio.get_running_loop().time
    reading = asyncio.ensure_future(request.body())
    limit, deadline = SECONDS, clock() + SECONDS
    try:
        while not reading.done() and clock() < deadline:
            if ending() and limit != SECONDS_AT_THE_END:
                limit, deadline = SECONDS_AT_THE_END, min(deadline, clock() + SECONDS_AT_THE_END)
            await asyncio.wait({reading}, timeout=_LOOK)
        if not reading.done() and ending():
            raise Fault(
                "ending",
                "the server is ending and the body did not arrive in time; send it again",
                {"Connection": "close", "Retry-After": "5"},
            )
        if not reading.done():
            raise Fault(
                "timeout", f"body: did not arrive within {limit:.0f} seconds; send it again", {"Connection": "close"}
            )
        return reading.result()
    finally:
        reading.cancel()
