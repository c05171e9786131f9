"""Serve a model over HTTP.

Prints the address when the port is taken and the weights are loaded, and one line more when every shape is compiled.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial

from sysone_jax.commands import options
from sysone_jax.errors import InputError, SysoneError

EXAMPLE = "sysone serve --model sysone-mini --port 8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port",
        type=partial(options.whole, least=0, most=65535),
        default=8000,
        help="port to listen on; 0 takes any (default: 8000)",
    )
    parser.add_argument(
        "--api-key",
        nargs="+",
        metavar="KEY",
        default=[],
        help="keys that open every route but /health and /ready; or SYSONE_API_KEY, which other users cannot see",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=options.whole,
        metavar="N",
        help="longest request body (default: 4 MiB, and 64 MiB for a model that reads images and videos)",
    )


def run(args: argparse.Namespace) -> int:
    try:
        from serving.app import create_app
        from serving.server import Server, address, bind, listen
        from serving.settings import Settings
    except ModuleNotFoundError as error:
        if error.name not in ("litestar", "uvicorn"):
            raise
        raise InputError(f"the server needs {error.name}; install it with: pip install 'sysone-jax[serve]'") from None

    keys = args.api_key or [key for key in [os.environ.get("SYSONE_API_KEY", "")] if key]
    if not all(key.strip() for key in keys):
        raise InputError("--api-key: a key must not be empty")
    settings = Settings(
        names=options.served_names(args),
        api_keys=tuple(keys),
        dialect=args.dialect,
        rendering=args.rendering,
        overlong=args.overlong,
        max_body_bytes=args.max_body_bytes,
    )
    bound = bind(args.host, args.port)
    failures: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failures.append(error)
        server.stop()

    with bound, options.load_model(args) as decider:
        started = time.monotonic()
        name = settings.names[0] if settings.names else decider.name
        app = create_app(
            decider,
            settings,
            on_ready=lambda: _say(f"ready after {time.monotonic() - started:.1f} s"),
            on_failure=fail,
            ending=lambda: server.should_exit,
        )
        server = Server(app)
        listen(bound)
        _say(f"serving {name} ({decider.architecture}, {decider.dtype}) at {address(bound)}; compiling")
        server.run(sockets=[bound])
    if failures:
        raise SysoneError(
            f"the model could not be compiled: {type(failures[0]).__name__}: {failures[0]}"
        ) from failures[0]
    return 0


def _say(line: str) -> None:
    print(f"sysone: {line}", file=sys.stdout, flush=True)
