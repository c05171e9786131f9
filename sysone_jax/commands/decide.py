"""Answer one request, or a file of them: a JSON body in, the server's JSON body out.

With ``--jsonl`` a run that was interrupted goes on where it stopped; see ``sysone_jax/jsonl.py`` for what OUT holds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sysone_jax.commands import options
from sysone_jax.errors import InputError

EXAMPLE = "sysone decide --request request.json        sysone decide --jsonl requests.jsonl --out answers.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--request", metavar="FILE", help="one request's body; - is standard input (default: -)")
    parser.add_argument(
        "--jsonl",
        metavar="IN",
        type=Path,
        help="many requests, one body a line, each answered in its place; needs --out",
    )
    parser.add_argument(
        "--out", metavar="OUT", type=Path, help="one line for each of IN's, in order; a run goes on where it stopped"
    )
    parser.add_argument(
        "--permutation-average",
        action="store_true",
        help="read every choice a second time with its options reversed and answer with the mean; twice the tokens",
    )


def run(args: argparse.Namespace) -> int:
    options.served_names(args)
    if (args.jsonl is None) != (args.out is None):
        raise InputError("--jsonl IN and --out OUT belong together")
    if args.jsonl is not None:
        if args.request is not None:
            raise InputError("--request is one request and --jsonl many; give one of the two")
        return _many(args)
    return _one(args)


def _one(args: argparse.Namespace) -> int:
    from serving.body import read_object
    from serving.door import encode

    raw = _request(args.request)
    read_object(raw)  # a body that is no JSON is refused before a model is loaded for it
    with options.load_model(args) as decider:
        door = _door(args, decider)
        pending = door.begin(raw)
        answer = encode(door.answer(pending, pending.decision.result()))
    if sys.stdout.isatty():
        import msgspec

        answer = msgspec.json.format(answer, indent=2)
    sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.buffer.flush()
    return 0


def _many(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from sysone_jax import jsonl

    with jsonl.opened(args.jsonl, args.out), options.load_model(args) as decider:
        door = _door(args, decider)
        kept = jsonl.resume(args.jsonl, args.out, door.reading)
        total, refused = jsonl.count_lines(args.jsonl), kept.refused
        bar = tqdm(total=total, initial=kept.lines, unit=" requests", file=sys.stderr, disable=not sys.stderr.isatty())
        with bar:
            for was_refused in jsonl.run(args.jsonl, args.out, kept, door.reading, door.start):
                refused += was_refused
                bar.update()
    if refused:
        print(
            f"sysone: error: {refused} of {total} requests were refused; their lines in {args.out} say why",
            file=sys.stderr,
        )
        return InputError.exit_code
    return 0


def _door(args: argparse.Namespace, decider: Any) -> Any:
    from serving import dialects
    from serving.door import Door

    reading = options.door_options(args)
    return Door(decider, dialects.get(args.dialect), **reading, permutation_average=args.permutation_average)


def _request(name: str | None) -> bytes:
    if name not in (None, "-"):
        return options.read_file(Path(name), "--request")
    if sys.stdin.isatty():
        print("sysone: reading a request from the terminal; Ctrl-D ends it", file=sys.stderr)
    return sys.stdin.buffer.read()
