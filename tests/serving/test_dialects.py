"""Every dialect under its prefix, through the real application: the table of bad input, shapes, limits, confidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from bad_requests import EXAMPLE, NOUL, ROWS, asking, body, options
from litestar.testing import TestClient

from serving import dialects
from serving.dialects import Options
from serving.dialects.liquid_bodies import EXAMPLE as LIQUID_EXAMPLE
from serving.settings import Settings
from sysone_jax import answers
from sysone_jax.decider import Decider

Connected = Callable[..., Any]

ANSWERED = (200, None)
# A 422 of a schema is written as its faults, (place, code), any other refusal as (status, the words it holds).
Q = ("questions", "q")
TYPESAFE: dict[str, Any] = {
    "no state": [(("state",), "missing")],
    "no questions": [(("questions",), "missing")],
    "state null": [
        (("state", part), code)
        for part, code in (("str", "string_type"), ("dict[any,any]", "dict_type"), ("list[any]", "list_type"))
    ],
    "state a number": [
        (("state", part), code)
        for part, code in (("str", "string_type"), ("dict[any,any]", "dict_type"), ("list[any]", "list_type"))
    ],
    "model no text": [(("model",), "string_type")],
    "questions a list": [(("questions",), "dict_type")],
    "questions empty": [(("questions",), "too_short")],
    "question no object": [(Q, "model_attributes_type")],
    "empty id": (400, "Question key cannot be empty."),
    "unknown type": [(Q, "union_tag_invalid")],
    "no type": [(Q, "union_tag_not_found")],
    "unknown field": (400, "Invalid request. Unknown field(s) ['mode']; this endpoint takes model, "),
    "unknown question field": [((*Q, "noul", "x"), "extra_forbidden")],
    "instructions a number": [
        ((*Q, "noul", "instructions", part), code)
        for part, code in (("str", "string_type"), ("dict[any,any]", "dict_type"), ("list[any]", "list_type"))
    ],
    "noul about nothing": (400, "Noul question must have criteria or instructions: q"),
    "noul stray criteria": [((*Q, "noul", "criteria", "maybe"), "extra_forbidden")],
    "noul false null": ANSWERED,
    "choice without criteria": [((*Q, "choice", "criteria"), "missing")],
    "choice of 0": (400, "Choice question must have at least one choice: q"),
    "choice of 1": ANSWERED,
    "choice of a list": [((*Q, "choice", "criteria"), "dict_type")],
    "choice of 27": (400, "Too many choices. Must have at most 26 choices."),
    "choice with a number": [
        ((*Q, "choice", "criteria", "a", part), code)
        for part, code in (("str", "string_type"), ("dict[any,any]", "dict_type"), ("list[any]", "list_type"))
    ],
    "choice of equal names": ANSWERED,
    "choice with a control character": ANSWERED,
    "score of 0": [((*Q, "score", "criteria"), "too_short")],
    "score of 1": ANSWERED,
    "score of an object": [((*Q, "score", "criteria"), "list_type")],
    "score with a null": [
        ((*Q, "score", "criteria", 1, part), code)
        for part, code in (("str", "string_type"), ("dict[any,any]", "dict_type"), ("list[any]", "list_type"))
    ],
    "score of 11": (400, "Too many score levels. Must have at most 10 levels."),
    "score with equal levels": (400, "question 'q': duplicate option names"),
    "65 questions": ANSWERED,
    "129 questions": ANSWERED,
    "unknown model": (400, "Unknown model: gpt-9"),
    "too long": (400, "tokens, more than max_model_len=256; nothing is truncated"),
    "remote image": (400, "this model does not take image inputs"),
    "images": (400, "this model does not take image inputs"),
    "images no list": (400, "images: must be a list of data URLs"),
    "instructions at the top": ANSWERED,
    "deep state": (400, "state: at most 100 lists and objects inside one another; flatten it"),
}
CLEF: dict[str, Any] = TYPESAFE | {
    "state null": ANSWERED,
    "state a number": ANSWERED,
    "empty id": (400, "question ids must be non-empty"),
    "unknown field": [(("mode",), "extra_forbidden")],
    "noul about nothing": [((*Q, "noul"), "value_error")],
    "choice of 0": [((*Q, "choice", "criteria"), "too_short")],
    "choice of 27": [((*Q, "choice", "criteria"), "too_long")],
    "choice of equal names": [((*Q, "choice", "criteria"), "value_error")],
    "choice with a control character": [((*Q, "choice", "criteria"), "value_error")],
    "score of 11": [((*Q, "score", "criteria"), "too_long")],
    "unknown model": (404, "The model `gpt-9` does not exist."),
}
VLLM: dict[str, Any] = {
    "no state": (400, "state: field required"),
    "no questions": (400, "questions: field required"),
    "state null": ANSWERED,
    "state a number": ANSWERED,
    "model no text": (400, "model: must be text"),
    "questions a list": (400, "questions: must be an object that maps each question id to its question"),
    "questions empty": (400, "questions: needs at least one question"),
    "question no object": (400, "question 'q': must be an object with type, instructions and criteria"),
    "empty id": (400, "question ids must be non-empty"),
    "unknown type": (400, "unknown question type 'bogus'; supported: ['choice', 'noul', 'score']"),
    "no type": (400, "question 'q': needs a type; supported: ['choice', 'noul', 'score']"),
    "unknown field": (400, "unknown field(s) ['mode']"),
    "unknown question field": (400, "question 'q': unknown field(s) ['x']"),
    "instructions a number": ANSWERED,
    "noul about nothing": ANSWERED,
    "noul stray criteria": (400, "question 'q': noul criteria must be an object with true and false"),
    "noul false null": ANSWERED,
    "choice without criteria": (400, "question 'q': choice criteria must map option names to a description or null"),
    "choice of 0": (400, "question 'q': choice criteria must map option names to a description or null"),
    "choice of 1": ANSWERED,
    "choice of a list": (400, "question 'q': choice criteria must map option names to a description or null"),
    "choice of 27": (400, "question 'q': at most 26 options for this model"),
    "choice with a number": ANSWERED,
    "choice of equal names": ANSWERED,
    "choice with a control character": ANSWERED,
    "score of 0": (400, "question 'q': score criteria must be an ordered list of levels"),
    "score of 1": (400, "question 'q': score criteria must be an ordered list of levels"),
    "score of an object": (400, "question 'q': score criteria must be an ordered list of levels"),
    "score with a null": (400, "question 'q': score level 1 is null; give every level a name"),
    "score of 11": (400, "question 'q': at most 10 options for this model"),
    "score with equal levels": (400, "question 'q': duplicate option names"),
    "65 questions": (400, "questions: at most 64 for this model"),
    "129 questions": (400, "questions: at most 64 for this model"),
    "unknown model": (404, "The model `gpt-9` does not exist."),
    "too long": (400, "tokens, more than max_model_len=256; nothing is truncated"),
    "remote image": (400, "this model does not take image inputs"),
    "images": (400, "this model does not take image inputs"),
    "images no list": (400, "images: must be a list of URLs or data URLs"),
    "instructions at the top": ANSWERED,
    "deep state": (400, "state: at most 100 lists and objects inside one another; flatten it"),
}
D3: dict[str, Any] = VLLM | {
    "instructions at the top": (400, "this model reads a fixed prompt, so it takes no instructions"),
}
LIQUID: dict[str, Any] = {
    name: expected if expected == ANSWERED or name == "unknown model" else (422, expected[1])
    for name, expected in VLLM.items()
} | {
    "no state": ANSWERED,
    "noul about nothing": (422, "question 'q': a noul needs instructions"),
    "noul false null": (422, "question 'q': criteria.false is null; describe it or leave it out"),
    "choice of 0": (422, "question 'q': a choice has 2 to 255 options"),
    "choice of 1": (422, "question 'q': a choice has 2 to 255 options"),
    "65 questions": ANSWERED,
    "129 questions": (422, "questions: at most 128 for this model"),
    "images no list": (422, "images: must be a list of data URLs"),
}
TABLE = {"vllm": VLLM, "typesafe": TYPESAFE, "d3": D3, "clef": CLEF, "liquid": LIQUID}


def test_the_table_is_whole():
    assert set(TABLE) == set(dialects.SYSTEM_ONE)
    assert all(set(expected) == set(ROWS) for expected in TABLE.values())


@pytest.mark.parametrize(("dialect", "row"), [(dialect, row) for dialect in TABLE for row in ROWS])
def test_bad_input(client: TestClient, dialect: str, row: str):
    response = client.post(f"/{dialect}/v1/systemone", json=ROWS[row])
    check(response, dialect, TABLE[dialect][row])


def check(response: Any, dialect: str, expected: Any) -> None:
    given = response.json()
    if expected == ANSWERED:
        assert response.status_code == 200, given
        return
    msgspec.convert(given, dialects.get(dialect).ERROR)
    if isinstance(expected, list):
        assert response.status_code == 422, given
        told = [(tuple(fault["loc"]), fault["type"]) for fault in given["detail"]]
        assert told == [(("body", *place), code) for place, code in expected]
        assert all(fault["msg"] for fault in given["detail"])
        return
    status, words = expected
    assert response.status_code == status, given
    assert words in message_of(given, dialect)


def message_of(given: dict[str, Any], dialect: str) -> str:
    match dialect:
        case "typesafe":
            assert set(given) == {"detail"} and set(given["detail"]) == {"error_type", "message"}
            return given["detail"]["message"]
        case "clef":
            assert set(given) == {"object", "message", "type", "param", "code"} and given["object"] == "error"
            return given["message"]
    assert set(given) == {"error"} and set(given["error"]) == {"message", "type", "param", "code"}
    return given["error"]["message"]


@pytest.mark.parametrize(
    ("dialect", "status", "told"),
    [
        ("typesafe", 422, {"detail": [{"type": "json_invalid", "loc": ["body", 10], "msg": "JSON decode error"}]}),
        ("clef", 422, {"detail": [{"loc": ["body", 10], "type": "json_invalid"}]}),
        ("vllm", 400, {"error": {"type": "BadRequestError", "code": 400}}),
        ("d3", 400, {"error": {"type": "BadRequestError", "code": 400}}),
        ("liquid", 400, {"error": {"type": "invalid_request_error", "code": None}}),
    ],
)
def test_a_body_that_is_no_json(client: TestClient, dialect: str, status: int, told: dict[str, Any]):
    response = client.post(
        f"/{dialect}/v1/systemone", content=b'{"state": ?}', headers={"Content-Type": "application/json"}
    )
    assert response.status_code == status
    assert holds(response.json(), told), response.json()


def holds(given: Any, told: Any) -> bool:
    """Whether ``given`` has everything that ``told`` has."""
    if isinstance(told, dict):
        return all(key in given and holds(given[key], value) for key, value in told.items())
    if isinstance(told, list):
        return len(given) == len(told) and all(map(holds, given, told))
    return given == told


@pytest.mark.parametrize(
    ("dialect", "status"), [("vllm", 400), ("typesafe", 422), ("d3", 400), ("clef", 415), ("liquid", 415)]
)
def test_another_content_type(client: TestClient, dialect: str, status: int):
    response = client.post(f"/{dialect}/v1/systemone", content=b"a=b", headers={"Content-Type": "text/plain"})
    check(response, dialect, (status, "content-type: must be application/json, not 'text/plain'"))


@pytest.mark.parametrize("dialect", dialects.SYSTEM_ONE)
def test_another_method(client: TestClient, dialect: str):
    response = client.get(f"/{dialect}/v1/systemone")
    assert response.status_code == 405 and response.headers["allow"]
    if dialect == "typesafe":
        assert response.json() == {"detail": "Method Not Allowed"}


@pytest.mark.parametrize("dialect", dialects.SYSTEM_ONE)
def test_a_large_body(client: TestClient, dialect: str):
    """Of more bytes than the dialect takes, or than any body may have."""
    most = min(4 << 20, dialects.get(dialect).MOST_BYTES or 4 << 20)
    sent = json.dumps(body(state="x" * most)).encode()
    response = client.post(f"/{dialect}/v1/systemone", content=sent, headers={"Content-Type": "application/json"})
    check(response, dialect, (413, f"body: at most {most:,} bytes"))


def test_dialects_with_a_limit_of_their_own():
    limited = {name: dialects.get(name).MOST_BYTES for name in dialects.NAMES}
    assert {name: most for name, most in limited.items() if most} == {"d3": 4_999_999, "liquid": 4_500_000}


MISSING, WRONG = "Must supply an API key!", "Cannot authenticate with the server."


@pytest.fixture(scope="module")
def guarded(labels: Decider, connected: Connected) -> Any:
    with connected(labels, Settings(api_keys=("k",))) as client:
        yield client


@pytest.mark.parametrize("dialect", dialects.SYSTEM_ONE)
def test_keys(guarded: TestClient, dialect: str):
    path = f"/{dialect}/v1/systemone"
    typesafe = dialect == "typesafe"
    check(guarded.post(path, json=body()), dialect, (401, MISSING if typesafe else "Unauthorized"))
    wrong = guarded.post(path, json=body(), headers={"Authorization": "Bearer x"})
    check(wrong, dialect, (401, WRONG if typesafe else "Unauthorized"))
    assert guarded.post(path, json=body(), headers={"Authorization": "Bearer k"}).status_code == 200


# --- answers ---


def answered(client: TestClient, dialect: str, sent: dict[str, Any] = EXAMPLE) -> dict[str, Any]:
    response = client.post(f"/{dialect}/v1/systemone", json=sent)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=dialects.get(dialect).RESPONSE)
    return response.json()


@pytest.mark.parametrize(
    ("dialect", "envelope"),
    [
        ("vllm", ["id", "object", "created", "model", "answers", "usage", "diagnostics", "read_mode"]),
        ("d3", ["id", "object", "created", "model", "answers", "usage", "diagnostics"]),
        ("typesafe", ["model", "answers", "usage"]),
        ("clef", ["answers", "usage", "model"]),
        ("liquid", ["model", "answers", "usage"]),
    ],
)
def test_envelopes(client: TestClient, dialect: str, envelope: list[str]):
    given = answered(client, dialect)
    assert list(given) == envelope
    assert given["model"] == "tiny/labels"
    assert list(given["answers"]) == ["status", "large", "urgency"]


@pytest.mark.parametrize(
    ("dialect", "confidence", "bare", "as_sent"),
    [
        ("vllm", "mass", False, False),
        ("d3", "top", False, False),
        ("typesafe", "distance", True, True),
        ("clef", "distance", True, True),
        ("liquid", "distance", True, True),
    ],
)
def test_answers(client: TestClient, labels: Decider, dialect: str, confidence: str, bare: bool, as_sent: bool):
    """The bits of the model, the dialect's confidence of them, and its forms of a noul and of a legend."""
    decision = labels.decide(**EXAMPLE)
    given = answered(client, dialect)["answers"]
    for name, question in decision.questions.items():
        own = answers.answer(question, decision.reads[name], confidence)
        if bare and name == "large":
            own = {"type": "noul", "noul": own["noul"]}
        if as_sent and name == "urgency":
            own["legend"] = {"0": "Can wait", "1": {"due": "This week"}, "2": "Today"}
        assert given[name] == own


@pytest.mark.parametrize(("dialect", "counted"), [("vllm", 3), ("typesafe", 3), ("d3", 0), ("clef", 0), ("liquid", 0)])
def test_usage(client: TestClient, dialect: str, counted: int):
    usage = answered(client, dialect)["usage"]
    assert usage["output_tokens"] == counted and usage["input_tokens"] > 0


@pytest.mark.parametrize("dialect", ["typesafe", "clef"])
def test_one_option_and_one_level_are_certain(client: TestClient, dialect: str):
    sent = {
        "state": "s",
        "questions": {
            "c": {"type": "choice", "instructions": "?", "criteria": {"a": None}},
            "s": {"type": "score", "instructions": "?", "criteria": ["low"]},
        },
    }
    given = answered(client, dialect, sent)["answers"]
    assert given["c"] == {"type": "choice", "choice": "a", "probabilities": {"a": 1.0}, "confidence": 1.0}
    assert given["s"] == {
        "type": "score",
        "score": 0.0,
        "legend": {"0": "low"},
        "probabilities": {"0": 1.0},
        "confidence": 1.0,
    }


def test_the_name_that_answers_say(labels: Decider, connected: Connected):
    with connected(labels, Settings(names=("one", "two"))) as client:
        for dialect in dialects.SYSTEM_ONE:
            said = answered(client, dialect, body(model="two"))["model"]
            assert said == ("two" if dialect == "liquid" else "one")
            assert answered(client, dialect, body())["model"] == "one"
        assert answered(client, "typesafe", body(model="jev-latest"))["model"] == "one"
        assert client.post("/vllm/v1/systemone", json=body(model="jev-latest")).status_code == 404


def test_every_list_of_models(client: TestClient):
    paths = ["/v1/models", "/decisions/v1/models", *(f"/{name}/v1/models" for name in dialects.SYSTEM_ONE)]
    for path in paths:
        listed = client.get(path).json()
        assert (listed["object"], listed["data"][0]["id"]) == ("list", "tiny/labels")
        names = [each["name"] for each in listed["models"]]
        assert names == ["tiny/labels", *(["jev-latest", "jev-preview"] if "typesafe" in path else [])]
        assert all(each["description"] and len(each["release_date"]) == 10 for each in listed["models"])
        assert client.get(f"{path}/tiny/labels").json()["id"] == "tiny/labels"
    limits = {name: client.get(f"/{name}/v1/models").json()["data"][0]["limits"] for name in dialects.SYSTEM_ONE}
    assert limits["liquid"]["questions"] == 128 and limits["vllm"]["questions"] == 64
    assert limits["d3"]["max_body_bytes"] == 4 << 20 and limits["typesafe"]["min_levels"] == 1


def test_a_model_that_reads_more_options_takes_them(joint: Decider, labels: Decider):
    most = {name: 255 for name in ("typesafe", "clef", "liquid")} | {"vllm": 26, "d3": 26}
    for dialect, expected in most.items():
        sent = asking(type="choice", instructions="?", criteria=options(26))
        for decider, number in ((joint, expected), (labels, 26)):
            assert dialects.get(dialect).parse(sent, decider).keywords["limits"].options == number


def test_a_joint_prompt_shows_no_ids_of_typesafes_clients(joint: Decider, connected: Connected):
    with connected(joint) as client:
        one = answered(client, "typesafe", body())
        other = answered(client, "typesafe", {"state": "s", "questions": {"something else": NOUL}})
        assert one["answers"]["q"] == other["answers"]["something else"]
        refused = client.post("/typesafe/v1/systemone", json=body(instructions="Be kind."))
        check(refused, "typesafe", (400, "this model reads a fixed prompt, so it takes no instructions"))


# --- one dialect's own ---


def test_typesafe_takes_documented_extensions(client: TestClient):
    extras = {"cache_salt": "a", "priority": 1, "request_id": "r", "joint": False, "images": [], "provider": {}}
    more = {"session_id": "s", "trace": {}, "user": "u", "chat_template_kwargs": {}}
    assert (
        answered(client, "typesafe", body(**extras, **more))["answers"]
        == answered(client, "typesafe", body())["answers"]
    )


@pytest.mark.parametrize(
    ("parts", "plain"),
    [
        ([{"type": "text", "text": "hello"}], "hello"),
        ([{"type": "json", "value": {"a": 1}}], {"a": 1}),
        ([{"type": "text", "text": "hello"}, {"type": "json", "value": [1]}], ["hello", [1]]),
    ],
)
def test_a_state_of_parts(client: TestClient, labels: Decider, parts: list[Any], plain: Any):
    expected = labels.decide(**body(state=plain))
    given = answered(client, "typesafe", body(state=parts))["answers"]["q"]["noul"]
    assert given == expected["q"]["noul"]
    mixed = [*parts, "more"]
    assert (
        answered(client, "typesafe", body(state=mixed))["answers"]["q"]["noul"]
        == (labels.decide(**body(state=mixed))["q"]["noul"])
    )


@pytest.mark.parametrize(
    ("assets", "words"),
    [
        ({"@a": {"type": "image", "format": "png", "data_base64": "AA=="}}, "assets: nothing names '@a'"),
        ({"s": {"type": "audio"}}, "assets.s: must be an image"),
        ({"s": {"type": "image", "format": "gif", "data_base64": "AA=="}}, "a format of png, jpg, jpeg"),
        ({"s": {"type": "image", "part": "asset-0"}}, "or a part of a multipart body"),
        ({"s": {"type": "image", "format": ["png"], "data_base64": "AA=="}}, "a format of png, jpg, jpeg"),
        ({}, "assets: must map placeholders to images"),
        ([], "assets: must map placeholders to images"),
        ({"s": {"type": "image", "format": "png", "data_base64": "AA=="}}, "this model does not take image inputs"),
    ],
)
def test_assets_refused(client: TestClient, assets: Any, words: str):
    check(client.post("/typesafe/v1/systemone", json=body(assets=assets)), "typesafe", (400, words))


@pytest.mark.parametrize("name", ["temperature", "prompt_format_version", "return_prompt_token_ids"])
@pytest.mark.parametrize("unknown", ["refuse", "ignore"])
def test_clef_refuses_three_fields_by_name(joint: Decider, name: str, unknown: Any):
    dialect = dialects.get("clef", Options(unknown_fields=unknown))
    with pytest.raises(dialects.SchemaError) as caught:
        dialect.parse(body(**{name: 1}), joint)
    assert caught.value.facts[0].place == (name,)


def test_liquids_example(client: TestClient):
    given = client.post("/decisions/v1/systemone", json=LIQUID_EXAMPLE | {"model": "tiny/labels"}).json()
    assert list(given["answers"]) == ["department", "is_urgent", "frustration"]
    assert given["model"] == "tiny/labels" and given["usage"]["output_tokens"] == 0


@pytest.mark.parametrize("criteria", [{"true": "yes"}, {"false": "no"}, {"true": "Yes ", "false": "NO"}])
def test_liquid_uses_a_nouls_criteria_only_when_both_say_something(client: TestClient, criteria: dict[str, str]):
    plain = answered(client, "liquid", asking(type="noul", instructions="?"))["answers"]
    assert answered(client, "liquid", asking(type="noul", instructions="?", criteria=criteria))["answers"] == plain
    described = asking(type="noul", instructions="?", criteria={"true": "it is", "false": "it is not"})
    assert answered(client, "liquid", described)["answers"] != plain


def test_liquids_questions_may_stand_alone(client: TestClient, labels: Decider):
    expected = labels.decide(**body(state=""))["q"]["noul"]
    for sent in (body(state=None), {"questions": {"q": NOUL}}):
        assert answered(client, "liquid", sent)["answers"]["q"]["noul"] == expected


def test_liquids_text_is_bounded(client: TestClient):
    response = client.post("/liquid/v1/systemone", json=body(state="x" * 250_000))
    check(response, "liquid", (422, "more than 250,000; nothing is truncated"))
    assert response.json()["error"]["param"] == "state"


def test_an_error_is_not_larger_than_it_must_be(client: TestClient):
    huge = "\U0001f389k" * 50_000
    for dialect in dialects.SYSTEM_ONE:
        for sent in (
            body(model=huge),
            body(**{huge: 1}),
            body(questions={huge: {"type": "bogus"}}),
            body(questions={huge: NOUL | {"x": 1}}),
            body(questions={"q": {"type": huge}}),
            body(questions={str(number): {"type": huge} for number in range(50)}),
            body(assets={huge: {"type": huge}}),
        ):
            response = client.post(f"/{dialect}/v1/systemone", json=sent)
            assert 400 <= response.status_code < 500, response.text
            assert len(response.content) < 20_000
