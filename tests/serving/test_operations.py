"""What keeps a server running: keys that rotate, a bounded queue, limits, metrics, a log without content."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bad_requests import body
from litestar.testing import TestClient

from serving.admission import Queue, Rates, duration
from serving.faults import Fault
from serving.keys import Keys
from serving.settings import Settings
from sysone_jax.decider import Decider
from sysone_jax.errors import InputError

Connected = Callable[..., Any]
PATH = "/v1/systemone"
RESET = re.compile(r"^([1-9][0-9]*h)?([0-9]+m)?[0-9]+s$")


@contextmanager
def engine_held(decider: Decider) -> Iterator[None]:
    started, release = threading.Event(), threading.Event()
    decider._engine.submit(lambda: (started.set(), release.wait()))
    try:
        assert started.wait(60)
        yield
    finally:
        release.set()


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


# --- keys ---


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_rotate(labels: Decider, connected: Connected, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# of the first team\none\n\n  two  \n")
    with connected(labels, Settings(api_keys=("given",), api_key_file=file)) as client:

        def opens(key: str) -> bool:
            return client.get("/v1/models", headers=bearer(key)).status_code == 200

        assert opens("one") and opens("two") and opens("given")
        assert not opens("three") and not opens("# of the first team")
        file.write_text("three\n")
        assert opens("three") and opens("given") and not opens("one")
        file.write_text("# none\n")
        assert opens("three")
        file.unlink()
        assert opens("three") and not opens("one")
        other = tmp_path / "other"
        other.write_text("four\n")
        os.replace(other, file)
        assert opens("four") and not opens("three")


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no such file or directory"), ("", "holds no key"), ("# only\n", "holds no key")]
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str | None, words: str):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=f"--api-key-file .*{words}"):
        Keys((), file)


# --- the queue ---


@pytest.mark.parametrize(
    ("dialect", "status"), [("vllm", 503), ("typesafe", 529), ("d3", 503), ("clef", 503), ("liquid", 503)]
)
def test_a_full_queue(labels: Decider, connected: Connected, dialect: str, status: int):
    """One request waits; the next is told when to come back; the first is answered all the same."""
    answers: list[Any] = []
    with connected(labels, Settings(max_queue=1)) as client:
        with engine_held(labels):
            path = f"/{dialect}/v1/systemone"
            waiting = threading.Thread(target=lambda: answers.append(client.post(path, json=body())))
            waiting.start()
            assert eventually(lambda: "sysone_queue{" in metrics(client) and value(client, "sysone_queue") == 1)
            refused = client.post(path, json=body())
        waiting.join()
        assert refused.status_code == status
        assert int(refused.headers["retry-after"]) >= 1
        assert "1 requests wait already; try again later" in refused.text
        assert answers[0].status_code == 200
        assert client.post(path, json=body()).status_code == 200


def test_an_answer_that_takes_too_long(labels: Decider, connected: Connected):
    with connected(labels, Settings(request_seconds=0.2)) as client:
        with engine_held(labels):
            refused = client.post(PATH, json=body())
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "no answer within 0.2 seconds; try again later"
        assert refused.headers["retry-after"] == "5"
        assert value(client, "sysone_queue") == 0


def test_who_waits_longer_is_told_a_longer_time(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue = Queue(3)
    for _ in range(60):
        with queue.place():
            now[0] += 4.0
    with queue.place(), queue.place(), queue.place():
        with pytest.raises(Fault) as caught:
            queue.check()
    assert caught.value.headers == {"Retry-After": "12"}
    with queue.place():
        queue.check()


# --- limits ---


def test_requests_and_their_headers(labels: Decider, connected: Connected):
    settings = Settings(api_keys=("a", "b"), requests_per_minute=2, tokens_per_minute=100_000)
    with connected(labels, settings) as client:
        tokens = labels.decide(**body()).usage["input_tokens"]
        path = "/decisions/v1/systemone"
        for number in (1, 2):
            response = client.post(path, json=body(), headers=bearer("a"))
            assert response.status_code == 200
            limits = {name: value for name, value in response.headers.items() if name.startswith("x-ratelimit-")}
            assert RESET.match(limits.pop("x-ratelimit-reset-requests"))
            assert RESET.match(limits.pop("x-ratelimit-reset-tokens"))
            assert limits == {
                "x-ratelimit-limit-requests": "2",
                "x-ratelimit-remaining-requests": str(2 - number),
                "x-ratelimit-limit-tokens": "100000",
                "x-ratelimit-remaining-tokens": str(100_000 - number * tokens),
            }
        refused = client.post(path, json=body(), headers=bearer("a"))
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("rate_limit_error", None, "rate_limit_exceeded")
        assert error["message"].startswith("Rate limit exceeded: at most 2 requests a minute; try again in ")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert client.post(path, json=body(), headers=bearer("b")).status_code == 200
        told = client.post("/typesafe/v1/systemone", json=body(), headers=bearer("a"))
        assert (told.status_code, told.json()["detail"]["error_type"]) == (429, "rate_limit_error")


def test_windows():
    now = [0.0]
    rates = Rates(2, None, lambda: now[0])
    rates.admit("a", 0)
    now[0] = 30.5
    assert rates.admit("a", 0).settle(5) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "30s",
    }
    for _ in range(2):
        with pytest.raises(Fault) as caught:
            rates.admit("a", 0)
        assert caught.value.headers["Retry-After"] == "30"
    rates.admit("b", 0)
    now[0] = 60.0
    assert rates.admit("a", 0).settle(5)["x-ratelimit-reset-requests"] == "1m0s"


def test_tokens_are_estimated_first_and_then_known():
    rates = Rates(None, 100)
    first = rates.admit("a", 200)
    with pytest.raises(Fault, match="at most 100 tokens a minute"):
        rates.admit("a", 204)
    assert first.settle(0)["x-ratelimit-remaining-tokens"] == "100"
    assert rates.admit("a", 4_000).settle(90)["x-ratelimit-remaining-tokens"] == "10"
    rates.admit("a", 40).settle(10)
    with pytest.raises(Fault):
        rates.admit("a", 1)


def test_without_limits_nothing_is_counted():
    rates = Rates()
    assert rates.admit("a", 10**9).settle(7) == {}


def test_clients_that_left_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serving.admission._MOST_CLIENTS", 3)
    now = [0.0]
    rates = Rates(1, None, lambda: now[0])
    for client in range(10):
        rates.admit(client, 0)
        now[0] += 1
    assert len(rates._uses) == 3


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0s"), (0, "0s"), (0.2, "1s"), (42, "42s"), (60, "1m0s"), (61.5, "1m2s"), (3600, "1h0m0s"), (7205, "2h0m5s")],
)
def test_durations(seconds: float, said: str):
    assert duration(seconds) == said and RESET.match(said)


# --- what a server tells of itself ---


def metrics(client: TestClient) -> str:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return response.text


def value(client: TestClient, name: str, **labels: str) -> float:
    """The value of one sample; 0 where there is none yet."""
    for line in metrics(client).splitlines():
        if re.match(rf"{name}(\{{|_total\{{| )", line) and all(f'{key}="{one}"' in line for key, one in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_metrics(client: TestClient, labels: Decider):
    assert value(client, "sysone_ready") == 1 and value(client, "sysone_queue") == 0
    tokens = value(client, "sysone_input_tokens", model="tiny/labels")
    asked = value(client, "sysone_questions", model="tiny/labels", type="noul")
    refused = value(client, "sysone_refusals", dialect="liquid", kind="missing")
    answer = client.post(PATH, json=body()).json()
    client.post("/liquid/v1/systemone", json={})
    assert value(client, "sysone_input_tokens", model="tiny/labels") == tokens + answer["usage"]["input_tokens"]
    assert value(client, "sysone_questions", model="tiny/labels", type="noul") == asked + 1
    assert value(client, "sysone_refusals", dialect="liquid", kind="missing") == refused + 1
    assert value(client, "sysone_prefix_cache_hits") == labels.cache_hits
    assert value(client, "sysone_compiled_programs") == labels.compile_count
    for stage in ("body", "prepare", "answer"):
        assert value(client, "sysone_stage_seconds_count", stage=stage) > 0
    assert 'path="/v1/systemone"' in metrics(client)


def test_metrics_have_no_more_series_for_paths_that_are_none(client: TestClient):
    for number in range(5):
        client.get(f"/nothing-{number}")
    assert "nothing-" not in metrics(client)


def test_the_log_says_nothing_of_what_was_sent(client: TestClient, caplog: pytest.LogCaptureFixture):
    secret = "PIN 4711"
    with caplog.at_level(logging.INFO, logger="sysone.access"):
        client.post(PATH, json=body(state=secret), headers={"X-Request-Id": "r-1"})
        client.post("/liquid/v1/systemone", json=body(model=secret), headers={"X-Request-Id": "r-2"})
        client.get("/nothing")
    answered, refused, unknown = [json.loads(record.getMessage()) for record in caplog.records]
    assert answered["request_id"] == "r-1" and answered["ms"] > 0
    assert (answered["method"], answered["path"], answered["status"]) == ("POST", PATH, 200)
    assert (answered["model"], answered["questions"]) == ("tiny/labels", 1) and answered["input_tokens"] > 0
    assert (refused["request_id"], refused["status"], refused["refused"]) == ("r-2", 404, "unknown_model")
    assert (unknown["status"], unknown["refused"]) == (404, "not_found")
    assert "4711" not in caplog.text


def test_answers_among_others_are_those_of_requests_alone(client: TestClient, labels: Decider):
    """Requests of many clients at once, through every dialect, keep each other's bits as they are."""
    states = [f"state {number} {'word ' * (number % 7)}" for number in range(24)]
    alone = {state: labels.decide(**body(state=state))["q"]["noul"] for state in states}
    together: dict[tuple[str, str], float] = {}

    def ask(dialect: str, state: str) -> None:
        together[dialect, state] = client.post(f"/{dialect}/v1/systemone", json=body(state=state)).json()["answers"][
            "q"
        ]["noul"]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: ask(*each), [(d, s) for s in states for d in ("vllm", "typesafe", "d3", "liquid")]))
    assert len(together) == 4 * len(states)
    assert all(noul == alone[state] for (_, state), noul in together.items())
