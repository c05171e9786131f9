"""Convert a checkpoint to a folder that loads faster and can be moved.

Every command converts what it is given on its first use; this does it ahead of time, to a place of one's choice.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sysone_jax.commands import options
from sysone_jax.errors import InputError

EXAMPLE = "sysone convert ./Qwen3-0.6B ./qwen3-0.6b-converted --dtype bfloat16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SRC", help="a folder, a built-in name, or the id of a model in the local Hugging Face cache"
    )
    parser.add_argument("destination", metavar="DST", type=Path, help="a folder that does not exist yet")
    parser.add_argument(
        "--dtype", choices=options.DTYPES, help="round the backbone to this type (default: keep the source's types)"
    )


def run(args: argparse.Namespace) -> int:
    destination: Path = args.destination
    if destination.exists() or destination.is_symlink():
        raise InputError(f"{destination} exists; name a new folder, or delete it first")

    from sysone_jax.loading import convert_to

    started = time.monotonic()
    if sys.stderr.isatty():
        _say(f"converting {args.source}")
    manifest = convert_to(args.source, destination, args.dtype)
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    _say(f"{destination}: {manifest.architecture}, {size / 1e6:,.1f} MB, in {time.monotonic() - started:.1f} s")
    return 0


def _say(line: str) -> None:
    print(f"sysone: {line}", file=sys.stderr, flush=True)
