"""Running the application: the socket, and how a server ends.

The first Ctrl-C or SIGTERM closes the socket and lets accepted requests finish; the second quits at once.
"""

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
from litestar import Litestar

from sysone_jax.errors import InputError, SysoneError

INTERRUPTED = 130
"""Exit code of a process that a second signal ended."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address but does not listen yet: until the model is loaded, connections are refused.

    Raises:
        InputError: no such host.
        SysoneError: the port is taken, or not for this user.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise InputError(
            f"--host {host!r}: no such address; 127.0.0.1 is this machine alone, 0.0.0.0 all its networks"
        ) from None
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"--host {host!r}: not an address of this machine") from None
        raise _no_port(port, host, error) from None
    return found


def listen(bound: socket.socket) -> None:
    """Let connections in. SysoneError when another process that held the same address was first."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _no_port(port, host, error) from None


def _no_port(port: int, host: str, error: OSError) -> SysoneError:
    why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
    return SysoneError(f"port {port} of {host} {why}; choose another with --port, or 0 for any")


def address(bound: socket.socket) -> str:
    """``http://127.0.0.1:8000`` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server on a bound socket. It ends by itself, with no signal left pending for the process."""

    def __init__(self, app: Litestar) -> None:
        config = uvicorn.Config(
            app, lifespan="on", ws="none", log_config=None, access_log=False, server_header=False, backlog=BACKLOG
        )
        super().__init__(config)

    def stop(self) -> None:
        """Finish what was accepted, then return from ``run``. Safe from any thread."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(INTERRUPTED)  # the engine may be deep in a computation that nothing else interrupts
        self.should_exit = True
