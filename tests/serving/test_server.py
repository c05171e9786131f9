"""``sysone serve`` as users run it: a process, a socket, curl, signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from serving.dialects.vllm_bodies import SystemOneResponse
from serving.server import address, bind
from sysone_jax.decider import Decider
from sysone_jax.errors import InputError, SysoneError

Serve = Callable[..., Any]

# The example of vLLM's documentation, as it stands there.
CURL = r"""curl -s http://localhost:8000/v1/systemone \
-H "Content-Type: application/json" \
-d '{
"model": "Qwen/Qwen3-0.6B",
"state": {"ticket": "My card was charged twice for one order."},
"questions": {
"team": {
"type": "choice",
"instructions": "Which team should handle this ticket?",
"criteria": {
"billing": "payments and refunds",
"shipping": "deliveries",
"security": "account access"
}
},
"urgent": {
"type": "noul",
"instructions": "Does the customer need a reply within the hour?",
"criteria": {"true": "the account is locked or money is moving"}
},
"tone": {
"type": "score",
"instructions": "How upset is the customer?",
"criteria": ["calm", "annoyed", "furious"]
}
},
"chat_template_kwargs": {"enable_thinking": false}
}'"""
SENT = json.loads(CURL.split("-d '")[1].rstrip("'"))


def run_example(server: str, model: str) -> dict[str, Any]:
    """The documented command against another address and model; through httpx where there is no curl."""
    command = CURL.replace("http://localhost:8000", server).replace("Qwen/Qwen3-0.6B", model)
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=120)
        raw = done.stdout
    else:
        headers = {"Content-Type": "application/json"}
        content = command.split("-d '")[1].rstrip("'").encode()
        raw = httpx.post(f"{server}/v1/systemone", content=content, headers=headers, timeout=120).content
    msgspec.json.decode(raw, type=SystemOneResponse)
    return json.loads(raw)


def check_example(answer: dict[str, Any], model: str, output_tokens: int) -> None:
    assert answer["model"] == model
    team, urgent, tone = (answer["answers"][name] for name in ("team", "urgent", "tone"))
    assert team["choice"] in ("billing", "shipping", "security")
    assert list(team["probabilities"]) == ["billing", "shipping", "security"]
    assert list(urgent["probabilities"]) == ["yes", "no"] and urgent["noul"] == urgent["probabilities"]["yes"]
    assert tone["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"} and 0 <= tone["score"] <= 2
    for one in (team, urgent, tone):
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-9)
    assert answer["usage"]["output_tokens"] == output_tokens


def test_the_documented_example_and_a_clean_end(serve: Serve, label_folder: Path, cache: Path, labels: Decider):
    """On a Qwen3 checkpoint under the documented name; then SIGTERM with one request half sent and one given up."""
    server = serve(
        "--model", str(label_folder), "--served-model-name", "Qwen/Qwen3-0.6B", "--max-model-len", "256", cache=cache
    )
    assert "Qwen/Qwen3-0.6B" in server.wait_for("http://")
    server.wait_for("ready")
    answer = run_example(server.address, "Qwen/Qwen3-0.6B")
    check_example(answer, "Qwen/Qwen3-0.6B", output_tokens=3)
    sent = {name: value for name, value in SENT.items() if name != "model"}
    assert answer["answers"] == dict(labels.decide(**sent))

    body = json.dumps(SENT).encode()
    with half_sent(server.address, body) as (connection, rest), half_sent(server.address, body) as (silent, _):
        os.kill(server.popen.pid, signal.SIGTERM)
        assert refuses(server.address)
        assert server.popen.poll() is None
        connection.sendall(rest)
        response = received(connection)
        given_up = received(silent)
    assert given_up.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert json.loads(given_up.split(b"\r\n\r\n", 1)[1])["error"] == {
        "message": "the server is ending and the body did not arrive in time; send it again",
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
    }
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(response.split(b"\r\n\r\n", 1)[1])["answers"] == answer["answers"]
    assert server.end() == (0, "")


def test_a_second_signal_ends_at_once(serve: Serve, label_folder: Path, cache: Path):
    server = serve("--model", str(label_folder), "--max-model-len", "256", cache=cache)
    server.wait_for("http://")
    with half_sent(server.address, b"{}"):
        os.kill(server.popen.pid, signal.SIGINT)
        assert refuses(server.address)
        assert server.popen.poll() is None
        os.kill(server.popen.pid, signal.SIGINT)
        assert server.end() == (130, "")


@pytest.mark.parametrize(("model", "longest", "output_tokens"), [("sysone-mini", "384", 0), ("smollm2-135m", "128", 3)])
def test_the_documented_example_on_the_built_in_models(
    serve: Serve, base_gguf: Path, model: str, longest: str, output_tokens: int
):
    server = serve("--model", model, "--max-model-len", longest)
    server.wait_for("ready")
    answer = run_example(server.address, model)
    check_example(answer, model, output_tokens)
    if model == "sysone-mini":
        assert answer["answers"]["team"]["choice"] == "billing"
    os.kill(server.popen.pid, signal.SIGINT)
    assert server.end() == (0, "")


def half_sent(server: str, body: bytes) -> Any:
    """A connection on which a request's header and half of its body are sent: (connection, the rest)."""

    class Half:
        def __enter__(self) -> tuple[socket.socket, bytes]:
            self.connection = socket.create_connection((urlsplit(server).hostname, urlsplit(server).port), timeout=60)
            head = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            self.connection.sendall(head + body[: len(body) // 2])
            # Another connection's answer shows that the server has read what was sent on this one before.
            assert httpx.get(f"{server}/health").status_code == 200
            return self.connection, body[len(body) // 2 :]

        def __exit__(self, *_: object) -> None:
            self.connection.close()

    return Half()


def received(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def refuses(server: str) -> bool:
    """Whether the server stops taking connections, within a minute."""
    for _ in range(600):
        try:
            httpx.get(f"{server}/health", timeout=60)
        except httpx.ConnectError:
            return True
        except httpx.TransportError:  # it was closed with this connection waiting to be accepted
            continue
    return False


def test_a_port_that_is_taken(serve: Serve, label_folder: Path, cache: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = serve("--model", str(label_folder), "--port", str(port), cache=cache).end()
    assert code == 1
    assert said == f"sysone: error: port {port} of 127.0.0.1 is taken; choose another with --port, or 0 for any\n"


def test_a_model_that_is_not_there(serve: Serve, cache: Path):
    code, said = serve("--model", "nowhere", cache=cache).end()
    assert code == 2
    assert said.startswith("sysone: error: no model 'nowhere'") and said.count("\n") == 1


@pytest.mark.parametrize("host", ["256.0.0.1", "host.invalid", "203.0.113.7", "\u2603" * 80])
def test_a_host_that_is_not_ours(host: str):
    with pytest.raises(InputError, match="^--host "):
        bind(host, 0)


def test_addresses():
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address(bound) == f"http://127.0.0.1:{port}"
        bound.listen()
        with pytest.raises(SysoneError, match="is taken"):
            bind("127.0.0.1", port)
