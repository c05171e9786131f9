"""Measure a model on tasks with known answers: run, report, compare.

``run`` goes on where it stopped; ``report`` and ``compare`` read what it left behind.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from sysone_jax.commands import options
from sysone_jax.errors import InputError

EXAMPLE = "sysone eval run --task decisions --model sysone-mini --out results/mini && sysone eval report results/mini"


_from_zero = partial(options.whole, least=0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(metavar="STEP", required=True)
    run_parser = steps.add_parser("run", help="put a task to a model, a server or dice")
    options.add_model(run_parser)
    run_parser.add_argument("--task", default="decisions", metavar="TASK", help="a shipped task's name, or a YAML file")
    run_parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the result goes, or goes on")
    run_parser.add_argument("--url", metavar="URL", help="a server of /v1/systemone, in place of a model here")
    run_parser.add_argument("--url-model", metavar="NAME", help="the model to ask the server for")
    run_parser.add_argument(
        "--dice", type=partial(options.whole, least=0), metavar="SEED", help="random answers instead"
    )
    run_parser.add_argument("--limit", type=options.whole, metavar="N", help="so many items, drawn by --seed")
    run_parser.add_argument("--seed", type=_from_zero, default=0, metavar="N", help="default: 0")
    run_parser.set_defaults(step=_run)
    report_parser = steps.add_parser("report", help="a result's tables, as Markdown")
    report_parser.add_argument("result", metavar="DIR", type=Path)
    report_parser.set_defaults(step=_report)
    compare_parser = steps.add_parser("compare", help="two results of one task side by side, with significance")
    compare_parser.add_argument("first", metavar="DIR", type=Path)
    compare_parser.add_argument("second", metavar="DIR", type=Path)
    compare_parser.set_defaults(step=_compare)


def run(args: argparse.Namespace) -> int:
    try:
        return args.step(args)
    except ModuleNotFoundError as error:
        if error.name not in ("grain", "yaml", "scipy", "httpx"):
            raise
        raise InputError(f"evaluation needs {error.name}; install it with: pip install 'sysone-jax[eval]'") from None


def _run(args: argparse.Namespace) -> int:
    if args.url is not None and args.dice is not None:
        raise InputError("--url and --dice: give one of the two")
    from eval.clients import Dice, InProcess, Server
    from eval.report import report
    from eval.run import run as run_task
    from eval.tasks import load_task

    task = load_task(args.task)
    put = partial(_put, run_task, task, args)
    if args.dice is not None:
        result = put(Dice(args.dice))
    elif args.url is not None:
        with Server(args.url, args.url_model, os.environ.get("SYSONE_API_KEY") or None) as server:
            result = put(server)
    else:
        with options.load_model(args) as decider:
            result = put(InProcess(decider))
    print(report(result), end="")
    return 0


def _put(run_task: Any, task: Any, args: argparse.Namespace, client: Any) -> Any:
    from tqdm import tqdm

    bar = tqdm(unit=" states", file=sys.stderr, disable=not sys.stderr.isatty())

    def begin(done: int, of: int) -> None:
        bar.total, bar.n = of, done
        bar.refresh()

    with bar:
        return run_task(
            task, client, args.out, limit=args.limit, seed=args.seed, begin=begin, progress=partial(bar.update, 1)
        )


def _report(args: argparse.Namespace) -> int:
    from eval.report import report
    from eval.run import load_result

    print(report(load_result(args.result)), end="")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from eval.report import compare
    from eval.run import load_result

    print(compare(load_result(args.first), load_result(args.second)), end="")
    return 0
