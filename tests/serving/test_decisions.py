"""OpenAI's ``/v1/decisions`` as vLLM has it and as OpenAI has it, through the real application."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from serving import dialects
from serving.dialects import Options
from serving.dialects.decisions_bodies import EXAMPLE, DecisionsError, DecisionsRequest, DecisionsResponse
from serving.settings import Settings
from sysone_jax import answers
from sysone_jax.decider import Decider

PATH = "/v1/decisions"
PREDICATE = {"type": "predicate", "name": "p", "instructions": "Is it so?"}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
SCORE = {"type": "score", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]}
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def body(**changes: Any) -> dict[str, Any]:
    return {"input": "s", "questions": [PREDICATE]} | changes


def asking(question: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return body(questions=[question | changes])


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return body(input=[{"role": role, "content": list(content)}])


REFUSED: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "no input": ({"questions": [PREDICATE]}, "input: field required", "input"),
    "no questions": ({"input": "s"}, "questions: field required", "questions"),
    "model no text": (body(model=7), "model: must be text", "model"),
    "questions no list": (body(questions="q"), "questions: must be a list of questions", "questions"),
    "questions empty": (body(questions=[]), "questions: needs at least one question", "questions"),
    "65 questions": (body(questions=[PREDICATE] * 65), "questions: at most 64 for this model", "questions"),
    "201 questions": (body(questions=[PREDICATE] * 201), "questions: at most 200 in a request", "questions"),
    "question no object": (body(questions=[1]), "questions.0: must be an object", "questions.0"),
    "no type": (
        body(questions=[{"instructions": "?"}]),
        "questions.0: needs a type; supported: ['choice', 'predicate', 'score']",
        "questions.0.type",
    ),
    "unknown type": (
        asking(PREDICATE, type="noul"),
        "questions.0: unknown question type 'noul'; supported: ['choice', 'predicate', 'score']",
        "questions.0.type",
    ),
    "sglang's question": (
        body(questions=[{"id": "a", "type": "yes_no", "question": "?"}]),
        "questions.0: is a question of SGLang's own API, which is not served here; send OpenAI's predicate, choice or "
        "score with instructions",
        "questions.0",
    ),
    "unknown field": (
        body(temperature=0),
        "unknown field(s) ['temperature']; this endpoint takes model, input, questions, instructions, "
        "safety_identifier, joint, cache_salt",
        "temperature",
    ),
    "unknown question field": (asking(PREDICATE, x=1), "questions.0: unknown field(s) ['x']", "questions.0.x"),
    "name null": (asking(PREDICATE, name=None), "questions.0.name: is null; leave it out", "questions.0.name"),
    "name no text": (asking(PREDICATE, name=7), "questions.0.name: must be text", "questions.0.name"),
    "no instructions": (
        body(questions=[{"type": "predicate"}]),
        "questions.0.instructions: field required",
        "questions.0.instructions",
    ),
    "instructions of parts": (
        asking(PREDICATE, instructions=[{"type": "input_text", "text": "?"}]),
        "questions.0.instructions: must be text",
        "questions.0.instructions",
    ),
    "no choices": (
        body(questions=[{"type": "choice", "instructions": "?"}]),
        "questions.0.choices: must be a list of objects",
        "questions.0.choices",
    ),
    "1 choice": (
        asking(CHOICE, choices=[{"value": "a"}]),
        "questions.0.choices: needs at least 2",
        "questions.0.choices",
    ),
    "27 choices": (
        asking(CHOICE, choices=[{"value": str(number)} for number in range(27)]),
        "questions.0.choices: This model supports at most 26 choices per question",
        "questions.0.choices",
    ),
    "equal choices": (
        asking(CHOICE, choices=[{"value": "a"}, {"value": "a"}]),
        "questions.0.choices: values must differ",
        "questions.0.choices",
    ),
    "a choice of a number": (
        asking(CHOICE, choices=[{"value": 1}, {"value": "a"}]),
        "questions.0.choices.0.value: must be text or a boolean",
        "questions.0.choices.0.value",
    ),
    "choices as a map": (
        asking(CHOICE, choices={"a": None}),
        "questions.0.choices: must be a list of objects",
        "questions.0.choices",
    ),
    "1 level": (asking(SCORE, levels=[{"label": "a"}]), "questions.0.levels: needs at least 2", "questions.0.levels"),
    "11 levels": (
        asking(SCORE, levels=[{"label": str(number)} for number in range(11)]),
        "questions.0.levels: This model supports at most 10 levels per question",
        "questions.0.levels",
    ),
    "a level without a label": (
        asking(SCORE, levels=[{}, {"label": "a"}]),
        "questions.0.levels.0.label: must be text",
        "questions.0.levels.0.label",
    ),
    "input a number": (body(input=7), "input: must be text or a list of messages", "input"),
    "no messages": (body(input=[]), "input: must be text or a list of messages", "input"),
    "another role": (
        body(input=[{"role": "assistant", "content": "s"}]),
        "input.0.role: must be one of user",
        "input.0.role",
    ),
    "an image": (
        said({"type": "input_image", "image_url": PNG}),
        "Decisions supports text input only; images are not supported",
        "input.0.content.0",
    ),
    "another part": (
        said({"type": "input_json", "data": {}}),
        "input.0.content.0.type: 'input_json' is not taken here",
        "input.0.content.0.type",
    ),
    "a long identifier": (
        body(safety_identifier="x" * 129),
        "safety_identifier: must be text of at most 128 characters",
        "safety_identifier",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_refused(client: TestClient, row: str):
    sent, message, param = REFUSED[row]
    response = client.post(PATH, json=sent)
    assert response.status_code == 400
    assert response.json() == {"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}


def answered(client: TestClient, sent: dict[str, Any]) -> dict[str, Any]:
    response = client.post(PATH, json=sent)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=DecisionsResponse)
    return response.json()


def test_the_documented_example(client: TestClient, labels: Decider):
    """Every answer has the bits of the same question asked as System One, in the order they were asked."""
    msgspec.convert(EXAMPLE, DecisionsRequest)
    given = answered(client, EXAMPLE | {"model": "tiny/labels", "safety_identifier": "user-1"})
    assert list(given) == ["model", "answers", "usage"] and given["model"] == "tiny/labels"
    decision = labels.decide(
        state=EXAMPLE["input"],
        questions={
            "damaged": {"type": "noul", "instructions": "Does the customer report a damaged item?"},
            "department": {
                "type": "choice",
                "instructions": "Which department should handle this complaint?",
                "criteria": {"returns": None, "billing": None},
            },
            "severe": {
                "type": "score",
                "instructions": "How severe is the damage?",
                "criteria": ["cosmetic", "broken"],
            },
        },
    )
    damaged, department, severe = decision.values()
    assert given["answers"] == [
        {"type": "predicate", "name": "damaged", "probability": damaged["noul"]},
        {
            "type": "choice",
            "name": "department",
            "choice": department["choice"],
            "probabilities": [{"value": v, "probability": p} for v, p in department["probabilities"].items()],
            "confidence": department["confidence"],
        },
        {
            "type": "score",
            "name": None,
            "score": severe["score"],
            "probabilities": [
                {"value": index, "label": label, "probability": severe["probabilities"][str(index)]}
                for index, label in enumerate(["cosmetic", "broken"])
            ],
            "confidence": severe["confidence"],
        },
    ]
    tokens = decision.usage
    assert given["usage"] == {
        "input_tokens": tokens["input_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens["input_tokens"] + 3,
    }


def test_booleans_are_not_their_texts(client: TestClient):
    values = [True, False, "true"]
    given = answered(client, asking(CHOICE, choices=[{"value": value} for value in values]))["answers"][0]
    assert [each["value"] for each in given["probabilities"]] == values
    assert given["choice"] in values and type(given["choice"]) in (bool, str)


def test_names_may_repeat_or_be_empty(client: TestClient):
    names = ["a", "a", "", "question 2"]
    questions = [PREDICATE | {"name": name} for name in names] + [{"type": "predicate", "instructions": "?"}]
    given = answered(client, body(questions=questions))["answers"]
    assert [each["name"] for each in given] == [*names, None]


@pytest.mark.parametrize(
    "sent",
    [
        [{"role": "user", "content": "one\ntwo"}],
        [{"type": "message", "role": "user", "content": "one\ntwo"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]}],
    ],
)
def test_user_messages_are_text(client: TestClient, sent: list[Any]):
    assert answered(client, body(input=sent))["answers"] == answered(client, body(input="one\ntwo"))["answers"]


def test_levels_and_choices_have_descriptions(client: TestClient, labels: Decider):
    levels = [{"label": "low", "description": "not much"}, {"label": "high"}]
    given = answered(client, asking(SCORE, levels=levels))["answers"][0]
    assert [each["label"] for each in given["probabilities"]] == ["low", "high"]
    question = {"type": "score", "instructions": "How much?", "criteria": ["low: not much", "high"]}
    assert given["score"] == labels.decide(state="s", questions={"q": question})["q"]["score"]
    choices = [{"value": "a", "description": "first"}, {"value": "b"}]
    question = {"type": "choice", "instructions": "Which?", "criteria": {"a": "first", "b": None}}
    given = answered(client, asking(CHOICE, choices=choices))["answers"][0]
    assert (
        given["probabilities"][0]["probability"]
        == (labels.decide(state="s", questions={"q": question})["q"]["probabilities"]["a"])
    )


def test_a_system_one_body_on_this_path(client: TestClient, labels: Decider):
    sent = {"state": "s", "questions": {"q": {"type": "noul", "instructions": "?"}}}
    given = client.post(PATH, json=sent).json()
    assert given["answers"] == {"q": {"type": "noul", "noul": labels.decide(**sent)["q"]["noul"]}}
    refused = client.post(PATH, json={"questions": sent["questions"]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "state"


def test_both_routes(client: TestClient):
    assert client.post("/decisions/v1/decisions", json=body()).json()["answers"] == answered(client, body())["answers"]
    assert client.get(PATH).status_code == 405
    assert client.post(PATH, json=body(model="gpt-9")).status_code == 404


# --- OpenAI's own ---


@pytest.fixture(scope="module")
def openai(labels: Decider) -> dialects.Dialect:
    return dialects.get("decisions", Options(decisions="openai"))


@pytest.fixture(scope="module")
def openai_client(labels: Decider, connected: Callable[..., Any]) -> Iterator[TestClient]:
    with connected(labels, Settings(options=Options(decisions="openai"), api_keys=("k",))) as client:
        client.headers["Authorization"] = "Bearer k"
        yield client


def test_openais_limits(openai: dialects.Dialect, joint: Decider):
    choices = [{"value": str(number)} for number in range(255)]
    asked = openai.parse(body(questions=[PREDICATE] * 399 + [CHOICE | {"choices": choices}]), joint)
    assert len(asked.keywords["questions"]) == 400
    with pytest.raises(dialects.InputError, match="at most 400"):
        openai.parse(body(questions=[PREDICATE] * 401), joint)


def test_openais_messages(openai: dialects.Dialect, labels: Decider):
    """The documented forms of input: what is not the text of a user keeps who said it and what kind it is."""
    sent = [
        {"role": "developer", "content": "Policy text."},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look."},
                {"type": "input_image", "image_url": PNG, "detail": "low"},
                {"type": "input_json", "data": {"order": 1}},
            ],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "ok"}], "phase": "final_answer"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "42"}]},
    ]
    parts = [{"type": "input_text", "text": "Is it this?"}, {"type": "input_image", "image_url": PNG}]
    question = PREDICATE | {"instructions": parts}
    options = {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}
    asked = openai.parse(body(input=sent, questions=[question], **options), labels)
    assert asked.keywords["state"] == [
        {"role": "developer", "content": "Policy text."},
        {"role": "user", "content": ["Look.", {"image": 1}, {"order": 1}]},
        {"role": "assistant", "content": "ok"},
        {"call": "f", "arguments": "{}"},
        {"output": "42"},
    ]
    assert asked.keywords["images"] == [PNG, PNG]
    (asked_question,) = asked.keywords["questions"].values()
    assert json.loads(asked_question["instructions"]) == ["Is it this?", {"image": 2}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "must be an object or a list of objects"),
        ([1], "must be an object or a list of objects"),
        (json.loads('{"a":' * 33 + "1" + "}" * 33), "at most 32 levels"),
        ({str(number): 0 for number in range(10_000)}, "at most 10,000 values"),
        ({"a": "x" * (256 << 10)}, "at most 262,144 bytes"),
    ],
)
def test_openais_json_parts_are_bounded(openai: dialects.Dialect, labels: Decider, data: Any, message: str):
    with pytest.raises(dialects.InputError, match=message):
        openai.parse(said({"type": "input_json", "data": data}), labels)


@pytest.mark.parametrize(
    ("sent", "status", "expected"),
    [
        (body(questions=[]), 400, {"type": "invalid_request_error", "param": "questions", "code": None}),
        (body(model="gpt-9"), 404, {"type": "invalid_request_error", "param": "model", "code": "model_not_found"}),
        (body(input="word " * 500), 400, {"type": "invalid_request_error", "code": None}),
    ],
)
def test_openais_errors(openai_client: TestClient, sent: dict[str, Any], status: int, expected: dict[str, Any]):
    response = openai_client.post(PATH, json=sent)
    msgspec.json.decode(response.content, type=DecisionsError)
    error = response.json()["error"]
    assert response.status_code == status
    assert error | expected == error
    if "too long" in error["message"] or "tokens" in error["message"]:
        assert error["message"].startswith("Decision input exceeds the token limit. ")


def test_openais_key(openai_client: TestClient):
    response = openai_client.post(PATH, json=body(), headers={"Authorization": "Bearer x"})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_openais_confidence_and_null_names(openai_client: TestClient, labels: Decider):
    given = answered(openai_client, asking(CHOICE, name=None))["answers"][0]
    question = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}}
    decision = labels.decide(state="s", questions={"q": question})
    expected = answers.confidence("distance", decision.questions["q"], decision.reads["q"])
    assert (given["name"], given["confidence"]) == (None, expected)


def test_rounding(labels: Decider, client: TestClient):
    dialect = dialects.get("decisions", Options(rounding=2))
    asked = dialect.parse(EXAMPLE, labels)
    decision = labels.decide(**{name: value for name, value in asked.keywords.items() if name != "limits"})
    short = dialect.shape(decision, model="m", request_id="r", created=0, context=asked.context)["answers"]
    exact = answered(client, EXAMPLE)["answers"]
    assert short[0]["probability"] == round(exact[0]["probability"], 2)
    assert short[1]["probabilities"][0]["probability"] == round(exact[1]["probabilities"][0]["probability"], 2)
    assert short[2]["score"] == round(exact[2]["score"], 2)
