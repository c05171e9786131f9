"""The one door, ``sysone``: the sub-commands, and what an error looks like.

Nothing heavy is imported before a sub-command runs, so ``--help`` and a mistyped option answer at once. An error is one
line on stderr: exit code 2 when the input is at fault, 1 when the work failed; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from sysone_jax import __version__
from sysone_jax.commands import COMMANDS
from sysone_jax.errors import SysoneError

INTERRUPTED, PIPE_CLOSED = 130, 141

EXAMPLE = """\
example:
  echo '{"state": "My card was charged twice.",
         "questions": {"refund": {"type": "noul", "instructions": "Does the customer want money back?"}}}' |
    sysone decide
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code. argparse leaves by SystemExit, as everywhere."""
    args, unknown = parser().parse_known_args(argv)
    if unknown:  # said by the command, whose help lists what it takes
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    _quieten(args.debug)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; without this, Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except SysoneError as error:
        return _fail(str(error), error.exit_code, args.debug)
    except Exception as error:
        hint = "" if args.debug else " (use --debug for the traceback)"
        return _fail(f"{type(error).__name__}: {error}{hint}", 1, args.debug, word="failed")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="sysone",
        description="Typed questions about a state, answered with probabilities read out of open decision models.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"sysone-jax {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").split("\n")[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"example:\n  {module.EXAMPLE}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        command.set_defaults(run=module.run, parser=command)
    return top


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse would print the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"sysone: error: {_line(message)}; see: {self.prog} --help\n")


def _fail(message: str, code: int, debug: bool, word: str = "error") -> int:
    if debug:
        traceback.print_exc()
    print(f"sysone: {word}: {_line(message)}", file=sys.stderr)
    return code


def _line(text: str) -> str:
    return " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())


def _quieten(debug: bool) -> None:
    """Leave the terminal to the answer: the libraries below speak only under ``--debug``."""
    if debug:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("absl").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main())
