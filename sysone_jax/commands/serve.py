"""Serve a model over HTTP.

Prints the address when the port is taken and the weights are loaded, and one line more when every shape is compiled.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path

from sysone_jax.commands import options
from sysone_jax.errors import InputError, SysoneError

CONFIDENCES = ("mass", "top", "distance", "entropy", "purity")
"""``sysone_jax.answers.CONFIDENCES``, which take NumPy to import; help must come at once."""
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
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="further keys, one on each line; read again when it changes, so that keys rotate without a restart",
    )
    parser.add_argument(
        "--max-queue",
        type=options.whole,
        metavar="N",
        default=256,
        help="requests that may wait or run at once; others are told when to come back (default: 256)",
    )
    parser.add_argument(
        "--request-timeout",
        type=options.whole,
        metavar="S",
        default=300,
        help="seconds that an accepted request waits for its answer (default: 300)",
    )
    parser.add_argument(
        "--requests-per-minute", type=options.whole, metavar="N", help="of each key, or address (default: no limit)"
    )
    parser.add_argument(
        "--tokens-per-minute", type=options.whole, metavar="N", help="of each key, or address (default: no limit)"
    )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="a line of JSON on stderr for each request, without anything of what was sent",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=options.whole,
        metavar="N",
        help="longest request body (default: 4 MiB, and 64 MiB for a model that reads images and videos)",
    )

    differ = parser.add_argument_group("where dialects differ")
    differ.add_argument("--confidence", choices=CONFIDENCES, help="what it means (default: what the dialect means)")
    differ.add_argument(
        "--round",
        choices=("none", "2", "4"),
        default="none",
        help="decimals of probabilities, scores and confidences (default: none are cut)",
    )
    differ.add_argument(
        "--unknown-fields",
        choices=("refuse", "ignore"),
        default="refuse",
        help="what becomes of fields that no documented request has (default: refuse)",
    )
    differ.add_argument(
        "--require-model", action="store_true", help="refuse requests without a model where documents require one"
    )
    differ.add_argument(
        "--missing-key-status", type=int, choices=(401, 403), default=401, help="of a request without a key"
    )
    differ.add_argument(
        "--error-body",
        choices=("native", "union"),
        default="native",
        help="union: refusals have both `error` and `detail`, whichever the dialect has (default: native)",
    )
    differ.add_argument(
        "--no-state-parts",
        action="store_true",
        help="a list of text, json and image_url parts is plain JSON, as at TypeSafe itself",
    )
    differ.add_argument(
        "--decisions",
        choices=("vllm", "openai"),
        default="vllm",
        help="whose /v1/decisions: vLLM's, of text, or OpenAI's own with its limits and images (default: vllm)",
    )


def run(args: argparse.Namespace) -> int:
    try:
        from serving.app import create_app
        from serving.dialects import Options
        from serving.keys import Keys
        from serving.server import Server, address, bind, listen
        from serving.settings import Settings
    except ModuleNotFoundError as error:
        if error.name not in ("litestar", "uvicorn", "multipart", "prometheus_client"):
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
        api_key_file=args.api_key_file,
        max_queue=args.max_queue,
        request_seconds=args.request_timeout,
        requests_per_minute=args.requests_per_minute,
        tokens_per_minute=args.tokens_per_minute,
        options=Options(
            confidence=args.confidence,
            rounding=None if args.round == "none" else int(args.round),
            unknown_fields=args.unknown_fields,
            require_model=args.require_model,
            missing_key_status=args.missing_key_status,
            error_body=args.error_body,
            state_parts=not args.no_state_parts,
            decisions=args.decisions,
        ),
    )
    Keys((), settings.api_key_file)  # a file that cannot be used is told before the model is loaded
    if args.log_requests:
        _log_requests()
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


def _log_requests() -> None:
    logger = logging.getLogger("sysone.access")
    logger.addHandler(logging.StreamHandler())  # its format is the message alone
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _say(line: str) -> None:
    print(f"sysone: {line}", file=sys.stdout, flush=True)
