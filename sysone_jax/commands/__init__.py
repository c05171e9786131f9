"""The sub-commands of ``sysone``, one module each: its first line is the summary, ``EXAMPLE`` a command to copy.

Each offers ``add_arguments(parser)`` and ``run(args)``, which gives the exit code. Only ``run`` imports what is heavy.
"""

from __future__ import annotations

from sysone_jax.commands import convert, decide, evaluate, inspect, pull, serve

COMMANDS = {
    "decide": decide,
    "serve": serve,
    "convert": convert,
    "pull": pull,
    "inspect": inspect,
    "eval": evaluate,
}
