"""Where dialects differ: what each option of the server decides, in every dialect that it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from bad_requests import EXAMPLE, ROWS, asking, body
from litestar.testing import TestClient

from serving import dialects
from serving.dialects import Options
from serving.settings import Settings
from sysone_jax import answers
from sysone_jax.commands import serve
from sysone_jax.decider import Decider

Connected = Callable[..., Any]


def test_the_main_route_has_the_dialect_that_it_is_given(labels: Decider, connected: Connected):
    with connected(labels, Settings(dialect="typesafe")) as client:
        assert list(client.post("/v1/systemone", json=EXAMPLE).json()) == ["model", "answers", "usage"]
        assert client.get("/nothing").json() == {"detail": "Not Found"}
        assert [each["name"] for each in client.get("/v1/models").json()["models"]][1:] == ["jev-latest", "jev-preview"]
        assert "id" in client.post("/vllm/v1/systemone", json=EXAMPLE).json()


def test_the_command_line_knows_every_confidence():
    assert serve.CONFIDENCES == answers.CONFIDENCES


@pytest.mark.parametrize("name", answers.CONFIDENCES)
def test_confidence_is_an_option(labels: Decider, name: str):
    decision = labels.decide(**EXAMPLE)
    for each in dialects.SYSTEM_ONE:
        dialect = dialects.get(each, Options(confidence=name))
        qids = {qid: qid for qid in decision}
        shaped = dialect.shape(decision, model="m", request_id="r", created=0, context=qids)
        for qid in ("status", "urgency"):
            expected = answers.confidence(name, decision.questions[qid], decision.reads[qid])
            assert shaped["answers"][qid]["confidence"] == expected


@pytest.mark.parametrize("decimals", [2, 4])
def test_rounding_is_an_option(labels: Decider, decimals: int):
    decision = labels.decide(**EXAMPLE)
    qids = {qid: qid for qid in decision}
    exact = dialects.get("typesafe").shape(decision, model="m", request_id="r", created=0, context=qids)
    dialect = dialects.get("typesafe", Options(rounding=decimals))
    short = dialect.shape(decision, model="m", request_id="r", created=0, context=qids)
    for qid, answer in exact["answers"].items():
        for field in ("noul", "score", "confidence"):
            if field in answer:
                assert short["answers"][qid][field] == round(answer[field], decimals)
        for key, p in answer.get("probabilities", {}).items():
            assert short["answers"][qid]["probabilities"][key] == round(p, decimals)


def test_whole_numbers_have_no_point_when_rounded(client: TestClient, labels: Decider, connected: Connected):
    with connected(labels, Settings(options=Options(rounding=2))) as rounding:
        sent = asking(type="choice", instructions="?", criteria={"a": None})
        raw = rounding.post("/typesafe/v1/systemone", json=sent).text
    assert '"probabilities":{"a":1}' in raw and '"confidence":1}' in raw


@pytest.mark.parametrize("dialect", dialects.SYSTEM_ONE)
def test_unknown_fields_may_be_ignored(labels: Decider, dialect: str):
    made = dialects.get(dialect, Options(unknown_fields="ignore"))
    stray = {"type": "noul", "instructions": "?", "criteria": {"true": "a", "maybe": "x", "false": "b"}, "x": 1}
    if dialect == "clef":  # whose questions never have more
        stray = {"type": "noul", "instructions": "?"}
    asked = made.parse(body(questions={"q": stray}, mode="fast"), labels)
    request = labels.request(**asked.keywords)
    assert set(request.questions) == {"q"}


@pytest.mark.parametrize(
    ("dialect", "status"), [("vllm", 200), ("typesafe", 422), ("d3", 400), ("clef", 422), ("liquid", 422)]
)
def test_a_model_may_be_required(labels: Decider, dialect: str, status: int, connected: Connected):
    """vLLM's documents never require it."""
    with connected(labels, Settings(options=Options(require_model=True))) as client:
        assert client.post(f"/{dialect}/v1/systemone", json=body()).status_code == status
        assert client.post(f"/{dialect}/v1/systemone", json=body(model="tiny/labels")).status_code == 200


def test_a_missing_key_may_be_a_403(labels: Decider, connected: Connected):
    with connected(labels, Settings(api_keys=("k",), options=Options(missing_key_status=403))) as client:
        for dialect in dialects.SYSTEM_ONE:
            path = f"/{dialect}/v1/systemone"
            assert client.post(path, json=body()).status_code == 403
            assert client.post(path, json=body(), headers={"X-API-Key": "x"}).status_code == 401


@pytest.mark.parametrize("dialect", dialects.SYSTEM_ONE)
def test_errors_may_have_every_form(labels: Decider, dialect: str, connected: Connected):
    with connected(labels, Settings(options=Options(error_body="union"))) as client:
        for row in ("unknown type", "too long", "unknown model", "empty id", "no state"):
            response = client.post(f"/{dialect}/v1/systemone", json=ROWS[row])
            if response.status_code == 200:
                continue
            given = response.json()
            msgspec.convert(given, dialects.get(dialect).ERROR)
            assert isinstance(given["error"]["message"], str) and given["detail"]
            assert set(given["error"]) >= {"message", "type", "param", "code"}


def test_parts_may_be_plain_json(labels: Decider):
    state = [{"type": "text", "text": "hello"}]
    asked = dialects.get("typesafe", Options(state_parts=False)).parse(body(state=state), labels)
    assert asked.keywords["state"] == state
