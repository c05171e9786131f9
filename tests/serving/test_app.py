"""The application around its dialects: routes, keys, limits, readiness, failures, and what every response carries."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import uvicorn
from litestar.testing import TestClient

from serving import dialects
from serving.app import create_app
from serving.dialects.vllm_bodies import EXAMPLE
from serving.models import ModelList
from serving.settings import Settings
from sysone_jax.commands import options
from sysone_jax.decider import Decider

PATH = "/v1/systemone"
SMALL = {"state": "s", "questions": {"q": {"type": "noul"}}}


@contextmanager
def engine_held(decider: Decider) -> Iterator[None]:
    """The engine's thread waits while this lasts, as it does during a long computation."""
    started, release = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        release.wait()

    decider._engine.submit(hold)
    try:
        assert started.wait(60)
        yield
    finally:
        release.set()


def error_of(response: Any) -> tuple[int, str]:
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status_code
    return response.status_code, body["error"]["type"]


def test_health(client: TestClient):
    response = client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_not_ready_until_every_shape_is_compiled(labels: Decider):
    with engine_held(labels), TestClient(create_app(labels, Settings())) as client:
        assert client.get("/health").status_code == 200
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "warming")
        assert set(ready.json()["programs"]) == {"done", "of"}
        refused = client.post(PATH, json=SMALL)
        assert error_of(refused) == (503, "ServiceUnavailableError")
        assert int(refused.headers["Retry-After"]) > 0 and int(ready.headers["Retry-After"]) > 0


def test_ready(client: TestClient):
    body = client.get("/ready").json()
    assert client.get("/ready").status_code == 200
    assert body["status"] == "ready" and body["programs"]["done"] == body["programs"]["of"] > 0


def test_a_failed_warming_is_told(joint: Decider, monkeypatch: pytest.MonkeyPatch):
    told, failures = threading.Event(), []

    def fail(error: BaseException) -> None:
        failures.append(error)
        told.set()

    monkeypatch.setattr(joint._engine, "warm", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
    with TestClient(create_app(joint, Settings(), on_failure=fail)) as client:
        assert told.wait(60)
        assert client.get("/ready").status_code == 503
    assert isinstance(failures[0], MemoryError)


def test_models(client: TestClient, labels: Decider):
    listed = client.get("/v1/models").json()
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert card["id"] == card["root"] == "tiny/labels"
    assert (card["object"], card["owned_by"], card["parent"]) == ("model", "sysone-jax", None)
    assert card["max_model_len"] == card["limits"]["max_model_len"] == labels.max_model_len
    assert (card["limits"]["questions"], card["limits"]["options"], card["limits"]["levels"]) == (64, 26, 10)
    assert card["architecture"] == "Qwen3ForCausalLM" and card["strategy"] == "labels"
    assert client.get("/v1/models/tiny/labels").json() == card
    assert client.get("/v1/models/tiny%2Flabels").json() == card
    assert error_of(client.get("/v1/models/tiny")) == (404, "NotFoundError")
    assert ModelList.__struct_fields__ == tuple(listed)


def test_served_names(labels: Decider):
    with TestClient(create_app(labels, Settings(names=("one", "org/two")))) as client:
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["one", "org/two"]
        assert {card["root"] for card in client.get("/v1/models").json()["data"]} == {"tiny/labels"}
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        assert client.post(PATH, json=SMALL).json()["model"] == "one"
        assert client.post(PATH, json=SMALL | {"model": "org/two"}).json()["model"] == "one"
        assert error_of(client.post(PATH, json=SMALL | {"model": "tiny/labels"})) == (404, "NotFoundError")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", (404, "NotFoundError")),
        ("GET", "/v1/nothing", (404, "NotFoundError")),
        ("POST", "/v2/systemone", (404, "NotFoundError")),
        ("GET", "/schema/swagger", (404, "NotFoundError")),
        ("GET", "/schema/openapi.yaml", (404, "NotFoundError")),
        ("GET", PATH, (405, "MethodNotAllowedError")),
        ("PUT", PATH, (405, "MethodNotAllowedError")),
        ("POST", "/v1/models", (405, "MethodNotAllowedError")),
        ("DELETE", "/health", (405, "MethodNotAllowedError")),
    ],
)
def test_no_such_route(client: TestClient, method: str, path: str, expected: tuple[int, str]):
    response = client.request(method, path)
    assert error_of(response) == expected
    assert response.headers["content-type"] == "application/json"
    if expected[0] == 405:
        assert response.headers["allow"]


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", 'Application/JSON; charset="UTF-8"', None]
)
def test_content_types_taken(client: TestClient, kind: str | None):
    response = client.post(PATH, content=json.dumps(SMALL), headers={} if kind is None else {"Content-Type": kind})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text/plain", "content-type: must be application/json, not 'text/plain'"),
        (
            "application/x-www-form-urlencoded",
            "content-type: must be application/json, not 'application/x-www-form-urlencoded'",
        ),
        ("multipart/form-data; boundary=x", "content-type: must be application/json, not 'multipart/form-data'"),
        ("application/json; charset=latin-1", "content-type: charset must be utf-8, not 'latin-1'"),
    ],
)
def test_content_types_refused(client: TestClient, kind: str, message: str):
    response = client.post(PATH, content=json.dumps(SMALL), headers={"Content-Type": kind})
    assert error_of(response) == (400, "BadRequestError")
    assert response.json()["error"]["message"] == message


def test_a_large_body_is_refused(client: TestClient):
    """By its announced length, or as it streams in when none is announced."""
    large = json.dumps(SMALL | {"state": "x" * 5_000_000}).encode()
    pieces = (large[start : start + 65536] for start in range(0, len(large), 65536))
    for content in (large, pieces):
        response = client.post(PATH, content=content, headers={"Content-Type": "application/json"})
        assert error_of(response) == (413, "ContentTooLargeError")
        assert "at most 4,194,304 bytes" in response.json()["error"]["message"]


def test_the_body_limit_is_a_setting(labels: Decider):
    with TestClient(create_app(labels, Settings(max_body_bytes=100))) as client:
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        assert client.post(PATH, json=SMALL).status_code == 200
        assert error_of(client.post(PATH, json=SMALL | {"state": "x" * 100})) == (413, "ContentTooLargeError")
        assert client.get("/v1/models").json()["data"][0]["limits"]["max_body_bytes"] == 100


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing", "/schema"])
def test_every_response_has_a_request_id(client: TestClient, path: str):
    assert re.fullmatch(r"[0-9a-f]{32}", client.get(path).headers["x-request-id"])
    assert client.get(path).headers["x-request-id"] != client.get(path).headers["x-request-id"]
    headers = client.get(path, headers={"X-Request-Id": "mine-1"}).headers
    assert headers["x-request-id"] == headers["x-typesafe-request-id"] == "mine-1"


@pytest.mark.parametrize("brought", ["", "two words", "x" * 129, "caf\u00e9", "tab\there"])
def test_a_request_id_that_is_not_sane_is_replaced(client: TestClient, brought: str):
    headers = {"X-Request-Id": brought.encode()}
    assert re.fullmatch(r"[0-9a-f]{32}", client.get("/health", headers=headers).headers["x-request-id"])


def test_the_answers_id_follows_the_request(client: TestClient):
    response = client.post(PATH, json=SMALL, headers={"X-Request-Id": "trace-7"})
    assert response.json()["id"] == "decision-trace-7"
    assert response.headers["x-request-id"] == "trace-7"
    assert client.post(PATH, json=SMALL | {"request_id": "own"}).json()["id"] == "decision-own"


KEY = "s3cret-\u00fc"


@pytest.fixture(scope="module")
def guarded(labels: Decider) -> Iterator[TestClient]:
    with TestClient(create_app(labels, Settings(api_keys=("other", KEY)))) as client:
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        yield client


def test_a_key_guards_every_route_but_health(guarded: TestClient):
    routes = [(method, route.path_format) for route in guarded.app.routes for method in route.methods]
    assert ("POST", PATH) in routes and ("GET", "/schema/openapi.json") in routes
    for method, path in routes:
        response = guarded.request(method, path)
        if method == "GET" and path in ("/health", "/ready"):
            assert response.status_code == 200
        else:
            assert response.status_code == 401, path
            if path.split("/")[1] in ("v1", "vllm", "d3", "schema"):
                assert error_of(response) == (401, "AuthenticationError"), path
                assert response.json()["error"]["message"] == "Unauthorized"
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"Authorization": "Bearer other"}, 200),
        ({"X-API-Key": KEY}, 200),
        ({"X-API-Key": KEY, "Authorization": "Bearer wrong"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": f"{KEY}x"}, 401),
    ],
)
def test_keys(guarded: TestClient, headers: dict[str, str], status: int):
    sent = {name: value.encode() for name, value in headers.items()}
    assert guarded.post(PATH, json=SMALL, headers=sent).status_code == status


def test_no_key_is_needed_where_none_is_set(client: TestClient):
    assert client.post(PATH, json=SMALL, headers={"Authorization": "Bearer whatever"}).status_code == 200


def test_a_logit_that_is_not_finite_is_an_error(client: TestClient, labels: Decider, monkeypatch: pytest.MonkeyPatch):
    read = labels._engine.read_labels

    def broken(*arguments: Any) -> Any:
        return read(*arguments)._replace(total=np.full(64, np.nan, np.float32))

    monkeypatch.setattr(labels._engine, "read_labels", broken)
    response = client.post(PATH, json=SMALL)
    assert error_of(response) == (500, "InternalServerError")
    assert "not finite" in response.json()["error"]["message"]


def test_a_failure_tells_nothing_of_the_state(
    client: TestClient, labels: Decider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    secret = "PIN 4711"
    monkeypatch.setattr(
        labels._engine, "prefix_state", lambda *_: (_ for _ in ()).throw(RuntimeError(f"lost {secret}"))
    )
    with caplog.at_level(logging.DEBUG):
        response = client.post(PATH, json=SMALL | {"state": secret}, headers={"X-Request-Id": "trace-9"})
    assert error_of(response) == (500, "InternalServerError")
    assert "trace-9" in response.json()["error"]["message"]
    assert "trace-9" in caplog.text and "RuntimeError" in caplog.text and "labels.py" in caplog.text
    assert secret not in response.text and "4711" not in caplog.text and "Traceback" not in response.text


def test_a_client_that_hangs_up_gives_its_place_back(labels: Decider, monkeypatch: pytest.MonkeyPatch):
    futures = []
    submit = labels.submit
    monkeypatch.setattr(labels, "submit", lambda request: futures.append(submit(request)) or futures[-1])
    with listening(labels) as address:
        with engine_held(labels):
            body = json.dumps(SMALL).encode()
            with socket.create_connection(address) as connection:
                connection.sendall(
                    b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(body), body)
                )
                assert eventually(lambda: futures)
            assert eventually(lambda: futures[0].cancelled())


@contextmanager
def listening(decider: Decider) -> Iterator[tuple[str, int]]:
    """The application on a real socket, served from a thread, once it is ready."""
    ready = threading.Event()
    app = create_app(decider, Settings(), on_ready=ready.set)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            assert ready.wait(60)
            yield bound.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def eventually(holds: Any) -> bool:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(holds())


def test_the_openapi_document(client: TestClient):
    response = client.get("/schema/openapi.json")
    document = response.json()
    assert response.headers["content-type"].startswith("application/json")
    assert document == client.get("/schema").json()
    for path in (PATH, "/vllm/v1/systemone"):
        operation = document["paths"][path]["post"]
        request = operation["requestBody"]["content"]["application/json"]
        assert request["schema"] == {"$ref": "#/components/schemas/SystemOneRequest"}
        assert request["example"] == EXAMPLE
        assert set(operation["responses"]) == {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503"}
    schemas = document["components"]["schemas"]
    assert schemas["SystemOneRequest"]["required"] == ["state", "questions"]
    assert schemas["SystemOneRequest"]["additionalProperties"] is False
    assert "read_mode" in schemas["SystemOneResponse"]["properties"]
    references = set(re.findall(r"#/components/schemas/([\w.]+)", response.text))
    assert references <= set(schemas)
    assert "http://" not in response.text and "https://" not in response.text


def test_the_table_of_dialects():
    for name in dialects.NAMES:
        dialect = dialects.get(name)
        assert dialect.NAME == name and dialect.PATH.startswith("/")
    assert options.DIALECTS == dialects.SYSTEM_ONE
    with pytest.raises(ValueError, match="'other' is not a dialect"):
        dialects.get("other")
