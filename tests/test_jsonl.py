"""Files of requests: every line is answered in its place, and a run that was cut anywhere goes on to the same file."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint

from serving import dialects
from serving.door import Door
from sysone_jax import jsonl
from sysone_jax.errors import InputError
from sysone_jax.loading import load

QUESTION = {"type": "choice", "criteria": {"\U0001f389 caf\u00e9": None, "no": "\u6771\u4eac"}}
LINES = [
    *(json.dumps({"state": f"state {number}", "questions": {"q": QUESTION}}).encode() for number in range(6)),
    b"",
    b'{"state": 1}',
    b'{"state": "caf\xff"}',
    json.dumps({"state": "umlaut \u00fc", "questions": {"\u00fc": QUESTION}}, ensure_ascii=False).encode() + b"\r",
    b"not json",
    json.dumps({"state": None, "questions": {"q": QUESTION}}).encode(),
]
REFUSED = {6, 7, 8, 10}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        decider = load(write_checkpoint(tmp_path_factory.mktemp("tiny")), max_model_len=256, served_name="tiny")
    with decider:
        yield Door(decider, dialects.get("vllm"), rendering="escape", overlong="refuse")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requests") / "in.jsonl"
    path.write_bytes(b"\n".join(LINES))
    return path


@pytest.fixture(scope="module")
def reading(door: Door) -> dict[str, Any]:
    return door.reading


def run(source: Path, out: Path, door: Door) -> list[bool]:
    out.touch()
    kept = jsonl.resume(source, out, door.reading)
    return list(jsonl.run(source, out, kept, door.reading, door.start))


@pytest.fixture(scope="module")
def whole(source: Path, door: Door) -> bytes:
    """What an uninterrupted run writes."""
    out = source.with_name("whole.jsonl")
    assert run(source, out, door) == [number in REFUSED for number in range(len(LINES))]
    return out.read_bytes()


def same_answers(one: bytes, other: bytes) -> bool:
    def stripped(raw: bytes) -> list[dict[str, Any]]:
        bodies = [json.loads(line) for line in raw.splitlines()]
        return [{name: value for name, value in body.items() if name not in ("id", "created")} for body in bodies]

    return raw_lines(one) == raw_lines(other) == len(LINES) and stripped(one) == stripped(other)


def raw_lines(raw: bytes) -> int:
    assert raw.endswith(b"\n")
    return raw.count(b"\n")


def test_every_line_is_answered_in_its_place(whole: bytes, door: Door):
    for number, (line, raw) in enumerate(zip(LINES, whole.splitlines(), strict=True)):
        body = json.loads(raw)
        assert body["index"] == number
        assert body["input_sha256"] == hashlib.sha256(line.removesuffix(b"\r")).hexdigest()
        assert list(body)[:3] == ["index", "input_sha256", "reading"]
        assert body["reading"] == door.reading
        if number in REFUSED:
            assert set(body) == {"index", "input_sha256", "reading", "error"}
        else:
            pending = door.begin(line)
            assert body["answers"] == json.loads(json.dumps(pending.decision.result()))
    assert json.loads(whole.splitlines()[6])["error"]["message"] == "body: empty; send a JSON object"
    assert json.loads(whole.splitlines()[7])["error"]["param"] == "questions"


def test_a_finished_file_is_left_alone(source: Path, door: Door, whole: bytes, tmp_path: Path):
    out = tmp_path / "out"
    out.write_bytes(whole)
    assert jsonl.resume(source, out, door.reading) == (len(LINES), len(REFUSED), len(whole))
    assert run(source, out, door) == []
    assert out.read_bytes() == whole


def test_any_cut_is_understood(source: Path, whole: bytes, reading: dict[str, Any], tmp_path: Path):
    out = tmp_path / "out"
    for size in (*range(0, len(whole), 7), len(whole)):
        out.write_bytes(whole[:size])
        kept = jsonl.resume(source, out, reading)
        assert kept.lines == whole[:size].count(b"\n")
        assert whole[: kept.size] == whole[: whole.rfind(b"\n", 0, size) + 1]


def test_a_run_goes_on_from_any_cut(source: Path, door: Door, whole: bytes, tmp_path: Path):
    within_a_character = [index + 1 for index, byte in enumerate(whole) if byte == 0xF0][:2]
    sizes = [0, 1, len(whole) - 1, *within_a_character, *random.Random(0).sample(range(len(whole)), 12)]
    for size in sizes:
        out = tmp_path / f"out-{size}"
        out.write_bytes(whole[:size])
        run(source, out, door)
        assert same_answers(out.read_bytes(), whole)
        assert out.read_bytes().startswith(whole[: whole.rfind(b"\n", 0, size) + 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: b"hello", "line 1 is not the answer to that line of IN"),
        (lambda raw: b"hello\nworld\n", "line 1 is not the answer to that line of IN"),
        (lambda raw: b"{}\n", "line 1 is not the answer to that line of IN"),
        (lambda raw: raw.replace(b'"index":2', b'"index":3'), "line 3 is not the answer to that line of IN"),
        (lambda raw: b"".join(raw.splitlines(True)[1:]), "line 1 is not the answer to that line of IN"),
        (lambda raw: raw + raw, "line 13 answers a line that IN does not have"),
        (lambda raw: raw + b'{"index":12', "line 13 is not the answer to that line of IN"),
        (lambda raw: raw.replace(b'"created":', b'"created"', 1), "line 1 is damaged"),
        (lambda raw: raw.replace(b'"reading":{', b'"was":{', 1), "line 1 does not say how it was read"),
    ],
)
def test_a_file_of_something_else_is_refused(
    source: Path, whole: bytes, reading: dict[str, Any], tmp_path: Path, change: Any, said: str
):
    out = tmp_path / "out"
    out.write_bytes(change(whole))
    before = out.read_bytes()
    with pytest.raises(InputError) as caught:
        jsonl.resume(source, out, reading)
    assert said in str(caught.value) and "name another file" in str(caught.value)
    assert out.read_bytes() == before


def test_answers_read_otherwise_are_refused(source: Path, whole: bytes, reading: dict[str, Any], tmp_path: Path):
    out = tmp_path / "out"
    out.write_bytes(whole)
    settings = ("model", "dialect", "revision", "devices", "dtype", "read_mode", "max_model_len", "rendering")
    assert set(reading) == {*settings, "overlong", "permutation_average"}
    for name, value in reading.items():
        with pytest.raises(InputError) as caught:
            jsonl.resume(source, out, {**reading, name: "another"})
        assert f"line 1 was answered with {name} {value!r}, not 'another'" in str(caught.value)
    assert out.read_bytes() == whole


def test_an_input_that_changed_is_noticed(source: Path, whole: bytes, reading: dict[str, Any], tmp_path: Path):
    changed, out = tmp_path / "in", tmp_path / "out"
    changed.write_bytes(source.read_bytes().replace(b"state 4", b"state 5"))
    out.write_bytes(whole)
    with pytest.raises(InputError, match="line 5 is not the answer"):
        jsonl.resume(changed, out, reading)


def test_an_empty_input(tmp_path: Path, door: Door):
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"")
    with jsonl.opened(source, out):
        assert run(source, out, door) == []
    assert out.read_bytes() == b""


def test_paths(source: Path, tmp_path: Path):
    out, pipe = tmp_path / "out", tmp_path / "pipe"
    os.mkfifo(pipe)
    for wrong, target, said in (
        (tmp_path / "none", out, "--jsonl .*no such file"),
        (tmp_path, out, "--jsonl .*is a directory"),
        (pipe, out, "--jsonl .*no regular file; .* save the requests to a file first"),
        (Path("/dev/null"), out, "--jsonl .*no regular file"),
        (Path("-"), out, "--jsonl .*no regular file"),
        (source, tmp_path, "--out .*is a directory"),
        (source, tmp_path / "none" / "out", "--out .*no such file"),
        (source, pipe, "--out .*no regular file; .* name a file"),
        (source, Path("/dev/full"), "--out .*no regular file"),
        (source, Path("-"), "--out .*no regular file"),
        (source, source, "is the file that --jsonl reads"),
    ):
        with pytest.raises(InputError, match=said), jsonl.opened(wrong, target):
            pass
    assert not out.exists()


def test_one_run_at_a_time(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    with jsonl.opened(source, out):
        with pytest.raises(InputError, match="another run is writing it"), jsonl.opened(source, out):
            pass
        assert out.exists()
    with jsonl.opened(source, out):
        pass


def test_a_run_that_fails_leaves_no_empty_file(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    for kept in (False, True):
        if kept:
            out.touch()
        with pytest.raises(InputError, match="no model"), jsonl.opened(source, out):
            raise InputError("no model")
        assert out.exists() is kept
