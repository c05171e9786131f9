"""Many requests from one file of JSON lines into another, resumable at any byte.

Line n of OUT answers line n of IN, whatever IN's line holds; a line that is refused, a blank one too, gets its error's
body. Every line of OUT begins with the same three fields,

    {"index":0,"input_sha256":"9f86...","reading":{"model":"sysone-mini","dtype":"float32", ..},"id":"decision-..", ..}

``index`` counted from 0, the hash that of IN's line without its end, and ``reading`` everything beside the request that
an answer follows from, so that a file which a run left behind is known for what it is. A run keeps OUT's whole lines,
cuts the last one if it was written in part, and goes on from there; one run at a time, which a lock on OUT sees to.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sysone_jax.errors import InputError, SysoneError
from sysone_jax.locks import locked

AHEAD = 16
"""Requests whose prompts are written while the model reads an earlier one."""

Answer = Callable[[], tuple[dict[str, Any], bool]]
"""Waits for a request's answer: (body, whether the request was refused)."""


class Kept(NamedTuple):
    """What an earlier run left in OUT: whole lines, those of them that are refusals, and the bytes they take."""

    lines: int
    refused: int
    size: int


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def resume(source: Path, out: Path, reading: Mapping[str, Any]) -> Kept:
    """Look at what OUT holds, against IN; nothing is changed.

    Args:
        reading: what this run's answers follow from beside the requests.

    Raises:
        InputError: OUT is not what a run over IN, read alike, left behind.
    """
    lines = refused = size = 0
    with source.open("rb") as inputs, out.open("rb") as outputs:
        for line in outputs:
            given = next(inputs, None)
            head = b"" if given is None else _head(lines, given)
            if not line.endswith(b"\n"):  # written in part: by us, if as much as there is of it is what we write
                if given is None or not (head.startswith(line) or line.startswith(head)):
                    raise _foreign(out, lines, "is not the answer to that line of IN")
                break
            if given is None:
                raise _foreign(out, lines, "answers a line that IN does not have")
            if not line.startswith(head):
                raise _foreign(out, lines, "is not the answer to that line of IN")
            body = _body(line, out, lines)
            _check_reading(body.get("reading"), reading, out, lines)
            lines, refused, size = lines + 1, refused + ("error" in body), size + len(line)
    return Kept(lines, refused, size)


def run(
    source: Path, out: Path, kept: Kept, reading: Mapping[str, Any], begin: Callable[[bytes], Answer]
) -> Iterator[bool]:
    """Answer what ``kept`` left over, a line at a time; yields whether each request was refused, once it is in OUT.

    Args:
        begin: takes a line of IN, starts on it, and gives back what waits for the answer. A few are always begun ahead.
    """
    pending: deque[tuple[bytes, Answer]] = deque()
    told = b'"reading":' + msgspec.json.encode(reading) + b","
    with source.open("rb") as inputs, out.open("ab") as outputs:
        outputs.truncate(kept.size)
        index = kept.lines

        def write() -> bool:
            nonlocal index
            line, answer = pending.popleft()
            body, refused = answer()
            outputs.write(_head(index, line) + told + msgspec.json.encode(body)[1:] + b"\n")
            outputs.flush()
            index += 1
            return refused

        for number, line in enumerate(inputs):
            if number < kept.lines:
                continue
            pending.append((line, begin(_content(line))))
            if len(pending) > AHEAD:
                yield write()
        while pending:
            yield write()
        os.fsync(outputs.fileno())


@contextmanager
def opened(source: Path, out: Path) -> Iterator[None]:
    """Hold OUT, made if it is not there, for the length of a block that reads IN; a failed block leaves no empty OUT.

    Raises:
        InputError: IN cannot be read, OUT cannot be written, one of them is no regular file, the two are one file, or
            another run is writing OUT.
    """
    existed = out.exists()
    _opened(source, "rb", "--jsonl", "a run that goes on reads it again, so save the requests to a file first")
    _opened(out, "ab", "--out", "a run that goes on reads it first, so name a file")
    if out.samefile(source):
        raise InputError(f"--out {out}: is the file that --jsonl reads; answers need a file of their own")
    with locked(out) as free:
        if not free:
            raise InputError(f"--out {out}: another run is writing it; wait for its end, or name another file")
        try:
            yield
        except BaseException:
            if not existed and out.stat().st_size == 0:
                out.unlink()
            raise


def _opened(path: Path, mode: str, option: str, why: str) -> None:
    try:
        if path.name == "-" or (path.exists() and not path.is_dir() and not path.is_file()):
            raise InputError(f"{option} {path}: is no regular file; {why}")
        open(path, mode).close()
    except OSError as error:
        raise InputError(f"{option} {path}: {(error.strerror or str(error)).lower()}") from None


def _content(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _head(index: int, line: bytes) -> bytes:
    digest = hashlib.sha256(_content(line)).hexdigest()
    return f'{{"index":{index},"input_sha256":"{digest}",'.encode()


def _body(line: bytes, out: Path, index: int) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        raise _foreign(out, index, "is damaged") from None


def _check_reading(found: Any, wanted: Mapping[str, Any], out: Path, index: int) -> None:
    if not isinstance(found, Mapping):
        raise _foreign(out, index, "does not say how it was read")
    for name, value in wanted.items():
        if found.get(name) != value:
            raise _foreign(out, index, f"was answered with {name} {found.get(name)!r}, not {value!r}")


def _foreign(out: Path, index: int, why: str) -> SysoneError:
    return InputError(f"--out {out}: line {index + 1} {why}; name another file, or delete this one to begin anew")
