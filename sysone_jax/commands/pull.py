"""Fetch a built-in model's base weights into the cache, and check their hash.

What is there already is checked and kept.
"""

from __future__ import annotations

import argparse
import sys

EXAMPLE = "sysone pull sysone-mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a built-in model, such as sysone-mini")


def run(args: argparse.Namespace) -> int:
    from sysone_jax import builtin

    path = builtin.pull(args.name)
    print(f"sysone: {args.name}: base weights in {path}", file=sys.stderr)
    return 0
