#!/usr/bin/env python
"""Sends a running server what no client should, and says what it did wrong.

    sysone serve --port 8000
    python scripts/fuzz_server.py http://127.0.0.1:8000 --count 10000

Bodies are real requests of every dialect with a few things changed: values of other types, missing and unknown fields,
odd text, torn or mislabelled bytes, encodings and forms. A seed and a number name a body, so that a fault can be sent
again: ``--seed 0 --only 4711``. A response is at fault when it is a 5xx, takes longer than ``--seconds``, is no JSON
object, is longer than ``--bytes`` allows, or shows a traceback. Exit code 1 when one was.
"""

import argparse
import copy
import gzip
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx

SYSTEM_ONE: dict[str, Any] = {
    "model": None,
    "state": {"ticket": "My card was charged twice for one order.", "tags": ["billing", 1, None, True, 0.5]},
    "instructions": None,
    "images": [],
    "questions": {
        "team": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "payments", "shipping": None, "security": {"is": ["account", "access"]}},
        },
        "urgent": {"type": "noul", "instructions": "Is it urgent?", "criteria": {"true": "yes", "false": "no"}},
        "tone": {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]},
    },
}
DECISIONS: dict[str, Any] = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "The screen is broken."}]}],
    "questions": [
        {"type": "predicate", "name": "damaged", "instructions": "Is it damaged?"},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": True, "description": "b"}]},
        {"type": "score", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]},
    ],
}
ASSETS = SYSTEM_ONE | {"state": "see @a", "assets": {"@a": {"type": "image", "format": "png", "data_base64": "AAAA"}}}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/systemone", SYSTEM_ONE),
    ("/vllm/v1/systemone", SYSTEM_ONE),
    ("/typesafe/v1/systemone", SYSTEM_ONE),
    ("/typesafe/v1/systemone", ASSETS),
    ("/d3/v1/systemone", SYSTEM_ONE),
    ("/clef/v1/systemone", SYSTEM_ONE),
    ("/liquid/v1/systemone", SYSTEM_ONE),
    ("/decisions/v1/systemone", SYSTEM_ONE),
    ("/v1/decisions", DECISIONS),
    ("/v1/decisions", SYSTEM_ONE),
    ("/classify", {"input": "text"}),
    ("/pooling", {"input": [1, 2]}),
]
WORDS = [
    "state",
    "questions",
    "type",
    "criteria",
    "instructions",
    "images",
    "model",
    "input",
    "name",
    "choices",
    "true",
]
TEXTS = [
    "",
    " ",
    "noul",
    "choice",
    "score",
    "box",
    "\x00",
    "\ud800",
    "\u202e",
    "\ufeff",
    "caf\u00e9",
    "\U0001f469\u200d\U0001f467",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|image_pad|>",
    "data:image/png;base64,AAAA",
    "data:image/png;base64,\u00e9",
    "file:///etc/passwd",
    "http://127.0.0.1:1/a.png",
    "{{ 7 * 7 }}",
    "x" * 3000,
]
NUMBERS = [0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.1, 1e308, -0.0, float("nan"), float("inf")]


class Sent(NamedTuple):
    """One request to be made."""

    path: str
    content: bytes
    headers: dict[str, str]


def fuzzed(seed: int, number: int) -> Sent:
    """The request of a number, always the same."""
    rng = random.Random(f"{seed} {number}")
    path, base = rng.choice(ROUTES)
    body = copy.deepcopy(base)
    if body.get("model", 0) is None:
        del body["model"]
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        body = _changed(rng, body)
    content = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    headers = {"Content-Type": "application/json"}
    kind = rng.random()
    if kind < 0.10:
        content = _torn(rng, content)
    elif kind < 0.16:
        headers["Content-Encoding"] = rng.choice(["gzip", "zstd", "br", "gzip, gzip", "\u00fc"])
        if rng.random() < 0.5:
            content = gzip.compress(content)
    elif kind < 0.20:
        headers["Content-Type"] = rng.choice(["text/plain", "", "application/json; charset=utf-16", "a" * 500, "/"])
    elif kind < 0.24:
        headers["Content-Type"] = rng.choice(["multipart/form-data; boundary=x", "multipart/form-data"])
        part = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        content = part % (rng.choice([b"request", b"a", b""]), content) + rng.choice([b"--x--\r\n", b"", b"--x"])
    return Sent(path, content, headers)


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(TEXTS)
    if kind < 0.55:
        return rng.choice(NUMBERS)
    if kind < 0.70 or depth == 4:
        return rng.choice([None, True, False])
    if kind < 0.72:
        deep: Any = "end"
        for _ in range(rng.choice((50, 99, 101, 900))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    if kind < 0.74:
        return [rng.choice(TEXTS[:8])] * rng.choice((65, 300))
    if kind < 0.87:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS + TEXTS): _value(rng, depth + 1) for _ in range(rng.randrange(4))}


def _changed(rng: random.Random, value: Any) -> Any:
    """A value with one thing changed, somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.12:
            return {name: inner for name, inner in value.items() if name != key}
        if kind < 0.24:
            return value | {rng.choice(WORDS + TEXTS): _value(rng)}
        return value | {key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.15:
            return value[:place] + value[place + 1 :]
        if kind < 0.30:
            return value * rng.choice((2, 30))
        return [*value[:place], _changed(rng, value[place]), *value[place + 1 :]]
    return _value(rng)


def _torn(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return rng.choice(
        (
            content[:place],
            content[:place] + bytes([rng.randrange(256)]) + content[place:],
            content[:place] + content[place + 1 :],
            content + content,
            b"\xff\xfe" + content,
            b"[" * 10_000,
            b'{"a":' * 10_000,
        )
    )


def fault(response: httpx.Response, seconds: float, sent: Sent, allowed: argparse.Namespace) -> str | None:
    """What is wrong with a response; None when nothing is."""
    most = allowed.bytes + 4 * len(sent.content)  # an answer names every option that was asked about
    if response.status_code >= 500:
        return f"status {response.status_code}: {response.text[:300]}"
    if seconds > allowed.seconds:
        return f"took {seconds:.1f} s"
    if len(response.content) > most or (response.status_code >= 400 and len(response.content) > allowed.bytes):
        return f"{len(response.content)} bytes for {len(sent.content)}"
    if "Traceback" in response.text:
        return f"a traceback: {response.text[:300]}"
    try:
        body = response.json()
    except ValueError:
        return f"no JSON: {response.text[:300]}"
    return None if isinstance(body, dict) else "no JSON object"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="such as http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="send this number alone, and show what came back")
    parser.add_argument("--key", default="", help="the server's key, if it has one")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="a response may take")
    parser.add_argument("--bytes", type=int, default=20_000, help="a refusal may have")
    args = parser.parse_args()

    statuses: Counter[int] = Counter()
    faults: list[str] = []
    keyed = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    with httpx.Client(base_url=args.server, timeout=args.seconds * 2, headers=keyed) as client:

        def send(number: int) -> None:
            sent = fuzzed(args.seed, number)
            start = time.monotonic()
            try:
                response = client.post(
                    sent.path, content=sent.content, headers={k: v.encode() for k, v in sent.headers.items()}
                )
                wrong = fault(response, time.monotonic() - start, sent, args)
                statuses[response.status_code] += 1
                if args.only is not None:
                    print(sent, response.status_code, response.text, sep="\n")
            except httpx.HTTPError as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong is not None:
                faults.append(f"--seed {args.seed} --only {number}: {wrong}")

        numbers = range(args.count) if args.only is None else [args.only]
        with ThreadPoolExecutor(args.threads) as pool:
            list(pool.map(send, numbers))
        if client.get("/health").status_code != 200:
            faults.append("the server is not healthy afterwards")
    print(f"{sum(statuses.values())} responses: {dict(sorted(statuses.items()))}")
    for line in faults[:50]:
        print(line, file=sys.stderr)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
