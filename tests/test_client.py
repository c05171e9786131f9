"""The client: what it sends, what it makes of answers, and when it asks again."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from sysone_jax import Choice, InputError, Noul, Score
from sysone_jax import client as client_module
from sysone_jax.client import AsyncClient, Client, ServerError, wire

ANSWER = {
    "id": "decision-1",
    "model": "m",
    "answers": {"q": {"type": "noul", "noul": 0.25, "probabilities": {"yes": 0.25, "no": 0.75}, "confidence": 0.75}},
    "usage": {"input_tokens": 7, "output_tokens": 1},
    "diagnostics": {"q": {"label_mass": 0.5, "argmax_is_label": True}},
}
Handler = Callable[[httpx.Request], httpx.Response]


class Played:
    """A server that gives prepared responses in turn, or raises them, and remembers the requests."""

    def __init__(self, *responses: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._responses = list(responses)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Asks one question through either client."""

    def sync(played: Handler, options: dict[str, Any], **fields: Any) -> Any:
        with Client("http://host/", transport=httpx.MockTransport(played), **options) as client:
            return client.decide(**{"state": "s", "questions": {"q": Noul("n")}, **fields})

    def through_asyncio(played: Handler, options: dict[str, Any], **fields: Any) -> Any:
        async def work() -> Any:
            async with AsyncClient("http://host/", transport=httpx.MockTransport(played), **options) as client:
                return await client.decide(**{"state": "s", "questions": {"q": Noul("n")}, **fields})

        return asyncio.run(work())

    return sync if request.param == "sync" else through_asyncio


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, which take no time here."""
    waits: list[float] = []

    async def asleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(client_module.time, "sleep", waits.append)
    monkeypatch.setattr(client_module.asyncio, "sleep", asleep)
    return waits


def test_a_request_and_its_answer(ask: Callable[..., Any]):
    played = Played(httpx.Response(200, json=ANSWER))
    told = ask(played, {"api_key": "secret", "model": "m"}, instructions="Be kind.", cache_salt="x")
    (request,) = played.requests
    assert (request.method, str(request.url)) == ("POST", "http://host/v1/systemone")
    assert request.headers["Authorization"] == "Bearer secret"
    assert json.loads(request.content) == {
        "state": "s",
        "questions": {"q": {"type": "noul", "instructions": "n"}},
        "instructions": "Be kind.",
        "cache_salt": "x",
        "model": "m",
    }
    assert told == ANSWER["answers"] and told["q"]["noul"] == 0.25
    assert (told.id, told.model) == ("decision-1", "m")
    assert (told.usage, told.diagnostics) == (ANSWER["usage"], ANSWER["diagnostics"])


def test_questions_go_over_the_wire_as_they_were_written():
    assert wire(Choice("w", {"a": None, "b": {"x": 1}})) == {
        "type": "choice",
        "instructions": "w",
        "criteria": {"a": None, "b": {"x": 1}},
    }
    assert wire(Noul("n")) == {"type": "noul", "instructions": "n"}
    assert wire(Noul("n", {"true": "so"})) == {"type": "noul", "instructions": "n", "criteria": {"true": "so"}}
    assert wire(Score("s", ("low", "high"))) == {"type": "score", "instructions": "s", "criteria": ["low", "high"]}


def test_it_asks_again_where_no_answer_came_about(ask: Callable[..., Any], slept: list[float]):
    played = Played(
        httpx.ConnectError("refused"),
        httpx.Response(503, headers={"Retry-After": "7"}, json={}),
        httpx.Response(529, headers={"Retry-After": "soon"}, json={}),
        httpx.Response(200, json=ANSWER),
    )
    assert ask(played, {})["q"]["noul"] == 0.25
    assert len(played.requests) == 4
    assert 0.4 <= slept[0] <= 0.6 and slept[1] == 7 and 1.6 <= slept[2] <= 2.4


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429])
def test_a_refusal_is_the_last_word(ask: Callable[..., Any], slept: list[float], status: int):
    error = {"error": {"message": "questions: needs at least one question", "param": "questions"}}
    played = Played(httpx.Response(status, json=error))
    with pytest.raises(ServerError) as caught:
        ask(played, {})
    assert str(caught.value) == f"http://host/v1/systemone answered {status}: questions: needs at least one question"
    assert (caught.value.status, caught.value.field) == (status, "questions")
    assert len(played.requests) == 1 and slept == []


def test_it_gives_up_after_its_tries(ask: Callable[..., Any], slept: list[float]):
    played = Played(*[httpx.Response(500, text="<html>")] * 3)
    with pytest.raises(ServerError, match="answered 500: no decision: '<html>'"):
        ask(played, {"retries": 2})
    gone = Played(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(ServerError, match="cannot be reached: refused") as caught:
        ask(gone, {"retries": 2})
    assert caught.value.status is None and len(slept) == 4


@pytest.mark.parametrize("content", [{"text": "hello"}, {"json": {"answers": 1}}, {"json": []}])
def test_what_is_no_decision_is_said_so(ask: Callable[..., Any], content: dict[str, Any]):
    with pytest.raises(ServerError, match="answered 200: no decision"):
        ask(Played(httpx.Response(200, **content)), {})


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"\0\0\0\x14ftypqt  ", "video/quicktime"),
        (b"\0\0\0\x18ftypmp42", "video/mp4"),
        (b"\x1a\x45\xdf\xa3....webm", "video/webm"),
        (b"\x1a\x45\xdf\xa3....matroska", "video/x-matroska"),
    ],
)
def test_files_become_data_urls(ask: Callable[..., Any], data: bytes, kind: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(data)
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    played = Played(httpx.Response(200, json=ANSWER))
    ask(played, {}, images=[data, tmp_path / "file", url])
    assert json.loads(played.requests[0].content)["images"] == [url] * 3


def test_a_file_that_cannot_be_sent_is_named(ask: Callable[..., Any], tmp_path: Path):
    for item, said in (
        (b"hello", r"videos\[0\]: no PNG, JPEG"),
        (tmp_path / "none", r"videos\[0\]: no such file"),
        (7, r"videos\[0\]: must be a data URL, bytes or a path, not int"),
    ):
        with pytest.raises(InputError, match=said):
            ask(Played(), {}, videos=[item])
