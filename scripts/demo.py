"""Shows what sysone-jax does: a few states with typed questions, answered and timed; then how often the model is right.

scripts/demo runs it in the project's own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own packages, wherever the script is started from

from eval.labelled import Tally, evaluate, load_items
from sysone_jax import Choice, Decider, Decision, Noul, Score, SysoneError, load
from sysone_jax.builtin import DEFAULT

WIDEST = 100

EXAMPLES: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "A support ticket, as JSON",
        {
            "channel": "email",
            "subject": "Charged twice",
            "body": "My card was charged twice for order 4471. Please refund one.",
        },
        {
            "team": Choice(
                "Which team should handle this ticket?",
                {
                    "billing": "charges, invoices and refunds",
                    "technical": "bugs, errors and outages",
                    "shipping": "deliveries and lost parcels",
                    "account": "login, password and profile",
                },
            ),
            "refund": Noul("Is the customer asking for money back?"),
            "tone": Score("How upset is the customer?", ["calm", "annoyed", "furious"]),
        },
    ),
    (
        "A product review",
        "The blender broke after two days and the shop never answered my mails. Do not waste your money on it.",
        {
            "sentiment": Choice(
                "What is the sentiment of this review?", {"positive": None, "mixed": None, "negative": None}
            ),
            "recommends": Noul("Would the writer recommend the product?"),
        },
    ),
    (
        "A line of a log",
        "2026-03-02T04:11:09Z ERROR db-3 replication lag 5400 s, disk 99 % full, writes are failing",
        {
            "severity": Score(
                "How urgent is this?", ["no action needed", "look at it today", "look at it now", "wake somebody up"]
            ),
            "part": Choice(
                "Which part of the system is affected?",
                {"database": None, "network": None, "web server": None, "payment provider": None},
            ),
        },
    ),
    (
        "A message to a chat bot",
        "what time do you open on sundays, and is there parking?",
        {
            "intent": Choice(
                "What does the user want?",
                {"opening hours": None, "make a booking": None, "complain": None, "cancel an order": None},
            ),
            "human": Noul("Does the user ask to speak to a person?"),
        },
    ),
]


class Screen:
    """How to write on this terminal: its width, its colours, and whether it knows block characters."""

    def __init__(self) -> None:
        self.width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        try:
            "█▏·…".encode(sys.stdout.encoding or "ascii")
            self._blocks = True
        except UnicodeEncodeError:
            self._blocks = False

    def bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._coloured else text

    def dim(self, text: str) -> str:
        return f"\033[2m{text}\033[0m" if self._coloured else text

    def bar(self, share: float, width: int) -> str:
        """``width`` columns, filled in eighths of a column."""
        if not self._blocks:
            return ("#" * round(share * width)).ljust(width)
        eighths = round(share * width * 8)
        return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).strip().ljust(width)

    def cut(self, text: str, width: int) -> str:
        more = "…" if self._blocks else "..."
        return text if len(text) <= width else text[: max(0, width - len(more))] + more


def show(screen: Screen, title: str, state: Any, decision: Decision, seconds: float) -> Iterator[str]:
    """One decision as a table: each question's options with their probabilities, the answer in bold."""
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    yield screen.bold(title)
    yield from (
        screen.dim(line) for line in textwrap.wrap(text, screen.width, initial_indent="  ", subsequent_indent="  ")
    )
    names = [option.name for question in decision.questions.values() for option in question.options]
    left = max(len(name) for name in decision.questions) + 2
    middle = min(max(map(len, names)), max(8, screen.width - left - 30)) + 2
    width = max(8, screen.width - 2 - left - middle - 9)
    for name, question in decision.questions.items():
        probabilities = decision.reads[name].probabilities
        best = probabilities.index(max(probabilities))
        yield ""
        for index, (option, p) in enumerate(zip(question.options, probabilities, strict=True)):
            label = f"{name if index == 0 else '':<{left}}"
            row = f"{screen.cut(option.name, middle - 2):<{middle}}{screen.bar(p, width)} {p:>7.1%}"
            yield f"  {label}{screen.bold(row) if index == best else row}"
    count = len(decision.questions)
    yield ""
    yield screen.dim(f"  {count} questions, {decision.usage['input_tokens']} tokens, {1000 * seconds:.0f} ms")
    yield ""


def timed(decider: Decider, state: Any, questions: dict[str, Any]) -> tuple[Decision, float]:
    """A decision and its seconds, measured on a second reading: the first may have to compile."""
    decider.decide(state=state, questions=questions)
    started = time.perf_counter()
    decision = decider.decide(state=state, questions=questions, cache_salt="read it again, do not remember it")
    return decision, time.perf_counter() - started


def report(tallies: dict[str, Tally]) -> Iterator[str]:
    yield f"  {'':<10}{'right':>9}{'accuracy':>11}{'+-':>8}{'chance':>9}"
    for name, tally in tallies.items():
        yield (
            f"  {name:<10}{f'{tally.right} of {tally.count}':>9}{tally.accuracy:>11.2f}{tally.margin:>8.2f}"
            f"{tally.chance_accuracy:>9.2f}"
        )


INTERVAL = "  +- is the 95 % interval of a proportion. It is wide, because the set is small."
ABOUT_MINI = """
sysone-mini is a language model of 135M parameters, cut to 95M: there to try things with. It is good at picking a topic,
weak at scales and fine distinctions. This set and some of its training data have one author, so expect less on yours.
For real work load a larger model by the same commands: any Qwen3 or Llama checkpoint, such as --model Qwen/Qwen3-8B.
"""
NEXT = """
Next:
  sysone serve                       # then, when it says that it is ready, in another terminal:
  curl -s http://localhost:8000/v1/systemone -H 'Content-Type: application/json' -d '{
    "state": "My card was charged twice for one order.",
    "questions": {"refund": {"type": "noul", "instructions": "Does the customer want money back?"}}}'

  sysone decide --request request.json             # the same body, without a server
  sysone inspect sysone-mini                       # its parameters, limits and memory
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Answer example questions, then measure accuracy on labelled ones.")
    parser.add_argument("--model", help="any model that sysone decide takes (default: sysone-mini)")
    args = parser.parse_args()
    screen = Screen()
    started = time.perf_counter()
    try:
        decider = load(args.model)
    except SysoneError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    with decider:
        took = time.perf_counter() - started
        facts = f"{decider.architecture}, {decider.strategy}, {decider.dtype}"
        print(f"{screen.bold(decider.name)}: {facts}, loaded in {took:.1f} s\n")
        for title, state, questions in EXAMPLES:
            for line in show(screen, title, state, *timed(decider, state, questions)):
                print(line.rstrip(), flush=True)
        items = load_items()
        where = f"{len(items)} labelled states (eval/data/decisions.jsonl)"
        print(screen.bold(f"Accuracy on {where}, all questions of a state at once"))
        started = time.perf_counter()
        tallies = evaluate(decider, items)
        for line in report(tallies):
            print(line)
        print(INTERVAL)
        print(screen.dim(f"  {len(items)} requests in {time.perf_counter() - started:.1f} s"))
    if decider.name == DEFAULT:
        print(ABOUT_MINI, end="")
    print(NEXT, end="")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os._exit(141)  # whoever read this has gone; what is left to flush has nowhere to go
