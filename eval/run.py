"""One task put to one client, item by item, into a folder that a later run can go on with.

    OUT/run.json        what was asked of whom, by which version, on which machine
    OUT/answers.jsonl   a line an item: its answers beside what is right

A run that was cut anywhere goes on where it stopped, and only if task and client are those that it began with.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.clients import Client
from eval.labelled import Item
from eval.metrics import Outcome
from eval.tasks import Task
from sysone_jax import __version__
from sysone_jax.errors import InputError
from sysone_jax.locks import locked

FORMAT = 1
SETTINGS = ("task", "client", "limit", "seed")
"""What a run that goes on must have in common with the one that began."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One question of a result."""

    item: str
    domain: str
    question: str
    type: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run: ``facts`` is what ``run.json`` holds."""

    facts: dict[str, Any]
    answers: tuple[Answered, ...]
    seconds: tuple[float, ...]
    """Of each item's request."""


def run(
    task: Task,
    client: Client,
    out: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    begin: Callable[[int, int], None] = lambda done, of: None,
    progress: Callable[[], None] = lambda: None,
) -> Result:
    """Ask what is not answered yet.

    Args:
        out: the folder; made when it is not there.
        limit: how many items, drawn by ``seed``; None is all.
        begin: called once with how many items were there and how many there are; ``progress`` after each further one.

    Raises:
        InputError: the folder holds a run of something else, or another process is at it.
        SysoneError: the client gave no answer; what came before it is kept.
    """
    facts = {
        "format": FORMAT,
        "task": {"name": task.name, "version": task.version, "sha256": task.sha256},
        "client": client.describe(),
        "limit": limit,
        "seed": seed,
        **_provenance(),
    }
    items = task.drawn(limit, seed)
    with _held(out) as answers:
        _check_facts(out / "run.json", facts)
        done = _whole_lines(answers)
        begin(len(done), len(items))
        with answers.open("ab") as file:
            for item in items[len(done) :]:
                started = time.perf_counter()
                given = client.answer(item.state, item.questions)
                file.write(_line(item, given, time.perf_counter() - started))
                file.flush()
                progress()
    return load_result(out)


def load_result(out: Path) -> Result:
    """What a run left behind; InputError when it is not whole."""
    try:
        facts = json.loads((out / "run.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (out / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"{out}: holds no result of sysone eval run ({error})") from None
    if facts.get("format") != FORMAT:
        raise InputError(f"{out}: has format {facts.get('format')!r}; this version reads format {FORMAT}")
    answers = tuple(
        Answered(
            line["item"],
            line["domain"],
            name,
            told["type"],
            Outcome(tuple(told["probabilities"]), told["right"], tuple(told["labels"])),
        )
        for line in lines
        for name, told in line["answers"].items()
    )
    return Result(facts, answers, tuple(line["seconds"] for line in lines))


@contextmanager
def _held(out: Path) -> Iterator[Path]:
    """The file of answers, made with its folder where it is not there, and held."""
    answers = out / "answers.jsonl"
    try:
        out.mkdir(parents=True, exist_ok=True)
        answers.touch()
    except OSError as error:
        raise InputError(f"--out {out}: {(error.strerror or str(error)).lower()}") from None
    with locked(answers) as free:
        if not free:
            raise InputError(f"--out {out}: another run is writing it; wait for its end, or name another folder")
        yield answers


def _check_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write what this run is, or see that it is what began here."""
    if not path.exists():
        path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        return
    try:
        began = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{path} is damaged; delete the folder, or name another") from None
    for name in SETTINGS:
        if began.get(name) != json.loads(json.dumps(facts[name])):
            raise InputError(
                f"{path.parent}: holds a run with {name} {json.dumps(began.get(name))}, not {json.dumps(facts[name])}; "
                "name another folder"
            )


def _whole_lines(path: Path) -> list[bytes]:
    """The lines that were written whole; what follows them is cut off."""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    with path.open("ab") as file:
        file.truncate(sum(map(len, lines)))
    return lines


def _line(item: Item, given: dict[str, tuple[float, ...]], seconds: float) -> bytes:
    answers = {
        name: {
            "type": question.type,
            "labels": [option.name for option in question.options],
            "right": item.expected[name],
            "probabilities": given[name],
        }
        for name, question in item.questions.items()
    }
    line = {"item": item.name, "domain": item.domain, "seconds": round(seconds, 6), "answers": answers}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _provenance() -> dict[str, Any]:
    import jax

    return {
        "sysone_jax": __version__,
        "git": _git_state(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _git_state() -> dict[str, Any] | None:
    """Commit of this code and whether it was changed since; None where it is no checkout."""

    def git(*arguments: str) -> str:
        root = Path(__file__).parent
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
