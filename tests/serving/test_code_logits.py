"""A Decision 3.0 model behind the real application: the hosted API's requests, and the logits of every code."""

from __future__ import annotations

import base64
import io
from typing import Any

import av
import msgspec
import numpy as np
import pytest
from litestar.testing import TestClient
from tiny_decision import CODES

from serving.code_logits import ClassifyResponse, PoolingResponse
from serving.dialects.vllm_bodies import ErrorResponse, SystemOneResponse
from sysone_jax.decider import Decider

PROMPT = "<|im_start|>user\nState:\nlate<|im_end|>\n<|im_start|>assistant\n"
ASKED: dict[str, Any] = {
    "model": "d3",
    "state": {"ticket": "Customer cannot log in after resetting the password; error 403 on every attempt."},
    "questions": {
        "team": {
            "type": "choice",
            "instructions": "Which team should handle this?",
            "criteria": {"auth": "Identity and login", "billing": "Payments and invoices", "other": "Anything else"},
        },
        "urgent": {"type": "noul", "instructions": "Is the customer blocked from using the product?"},
        "severity": {"type": "score", "instructions": "How severe is this?", "criteria": ["Low", "Medium", "High"]},
    },
}
"""The hosted API's example."""


def refused(client: TestClient, path: str, body: dict[str, Any]) -> tuple[int, str, str | None]:
    response = client.post(path, json=body)
    error = msgspec.json.decode(response.content, type=ErrorResponse).error
    assert error.code == response.status_code
    return response.status_code, error.message, error.param


# ------------------------------------------------------------------------------ the hosted API


def test_the_hosted_request(codes_client: TestClient, coded: Decider) -> None:
    response = codes_client.post("/v1/systemone", json=ASKED)
    assert response.status_code == 200
    body = response.json()
    msgspec.convert(body, SystemOneResponse)
    assert body["id"].startswith("decision-") and body["object"] == "structured_decision" and body["model"] == "d3"
    assert body["answers"].keys() == ASKED["questions"].keys()
    for answer in body["answers"].values():
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
        assert answer["confidence"] == max(answer["probabilities"].values())
    assert list(body["answers"]["urgent"]["probabilities"]) == ["yes", "no"]
    assert body["answers"]["severity"]["legend"] == {"0": "Low", "1": "Medium", "2": "High"}
    assert {said["label_mass"] for said in body["diagnostics"].values()} == {1.0}
    alone = [
        codes_client.post("/v1/systemone", json=ASKED | {"questions": {qid: question}}).json()
        for qid, question in ASKED["questions"].items()
    ]
    assert body["usage"] == {"input_tokens": sum(one["usage"]["input_tokens"] for one in alone), "output_tokens": 0}
    assert [one["answers"][qid] for one, qid in zip(alone, body["answers"], strict=True)] == [*body["answers"].values()]


def test_the_hosted_video_request(codes_client: TestClient) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(12):
            pixels = np.zeros((64, 64, 3), np.uint8)
            pixels[24:40, number * 4 : number * 4 + 16] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    body = {
        "model": "d3",
        "state": "Watch the clip.",
        "videos": [f"data:video/mp4;base64,{base64.b64encode(file.getvalue()).decode()}"],
        "questions": {
            "direction": {
                "type": "choice",
                "instructions": "Which way does the ball move?",
                "criteria": {"left_to_right": "Left to right", "right_to_left": "Right to left"},
            }
        },
    }
    shown = codes_client.post("/v1/systemone", json=body)
    unseen = codes_client.post("/v1/systemone", json=body | {"videos": []})
    assert (shown.status_code, unseen.status_code) == (200, 200)
    assert shown.json()["answers"]["direction"] != unseen.json()["answers"]["direction"]
    # two frames of four tokens, each with its time and a pair around it, in the pair of the prompt
    assert shown.json()["usage"]["input_tokens"] > unseen.json()["usage"]["input_tokens"] + 2 * (4 + 2 + 3) + 2


def test_hosted_refusals(codes_client: TestClient) -> None:
    questions = {"q": {"type": "bogus"}}
    assert refused(codes_client, "/v1/systemone", ASKED | {"questions": questions})[:2] == (
        400,
        "unknown question type 'bogus'; supported: ['choice', 'noul', 'score']",
    )
    questions = {"q": {"type": "noul", "instructions": "late " * 300}}
    status, message, _ = refused(codes_client, "/v1/systemone", ASKED | {"questions": questions})
    assert status == 400
    assert message.startswith("question 'q': the prompt has ")
    assert message.endswith(" tokens, more than max_model_len=320; nothing is truncated")
    assert refused(codes_client, "/v1/systemone", ASKED | {"instructions": "Be kind."}) == (
        400,
        "this model reads a fixed prompt, so it takes no instructions",
        "instructions",
    )
    questions = {"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))}}
    assert refused(codes_client, "/v1/systemone", ASKED | {"questions": questions})[:2] == (
        400,
        "question 'q': at most 255 options for this model",
    )
    questions = {"q": {"type": "score", "criteria": list(map(str, range(11)))}}
    assert refused(codes_client, "/v1/systemone", ASKED | {"questions": questions})[:2] == (
        400,
        "question 'q': a score has 2 to 10 non-empty levels",
    )
    assert refused(codes_client, "/v1/systemone", ASKED | {"images": ["https://example.org/a.png"]})[1].startswith(
        "images[0]: images must be base64 PNG, JPEG or WebP data URLs"
    )


def test_27_options_are_answered(codes_client: TestClient) -> None:
    questions = {"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(27)))}}
    answer = codes_client.post("/v1/systemone", json={"state": "s", "questions": questions}).json()["answers"]["q"]
    assert len(answer["probabilities"]) == 27
    card = codes_client.get("/v1/models/d3").json()
    assert card["limits"]["options"] == 255
    assert (card["strategy"], card["input_modalities"]) == ("answer_codes", ["text", "image", "video"])


# ------------------------------------------------------------------------------ /classify and /pooling


def test_classify(codes_client: TestClient, coded: Decider) -> None:
    ids = coded.encode(PROMPT)
    response = codes_client.post("/classify", json={"model": "d3", "input": PROMPT})
    assert response.status_code == 200
    body = msgspec.json.decode(response.content, type=ClassifyResponse)
    (logits,) = coded.code_logits([ids]).result().logits
    (item,) = body.data
    assert np.array_equal(np.float32(item.probs), logits)
    assert (item.index, item.num_classes, item.label) == (0, 255, CODES[int(logits.argmax())])
    assert body.id.startswith("classify-") and body.model == "d3"
    assert (body.usage.prompt_tokens, body.usage.total_tokens, body.usage.completion_tokens) == (len(ids), len(ids), 0)


def test_pooling(codes_client: TestClient, coded: Decider) -> None:
    inputs = [PROMPT, "late"]
    response = codes_client.post("/pooling", json={"input": inputs, "task": "classify", "request_id": "mine"})
    body = msgspec.json.decode(response.content, type=PoolingResponse)
    wanted = coded.code_logits([coded.encode(text) for text in inputs]).result()
    assert body.id == "pool-mine" and [item.object for item in body.data] == ["pooling"] * 2
    for item, logits in zip(body.data, wanted.logits, strict=True):
        assert isinstance(item.data, list) and np.array_equal(np.float32(item.data), logits)
    assert body.usage.prompt_tokens == sum(wanted.tokens)
    packed = codes_client.post("/pooling", json={"input": inputs, "encoding_format": "base64"}).json()["data"]
    for item, logits in zip(packed, wanted.logits, strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(item["data"]), "<f4"), logits)


def test_ids_chats_and_truncation_are_other_ways_to_the_same_prompt(codes_client: TestClient, coded: Decider) -> None:
    ids = coded.encode(PROMPT)

    def probs(**body: Any) -> list[list[float]]:
        response = codes_client.post("/classify", json=body)
        assert response.status_code == 200, response.text
        return [item["probs"] for item in response.json()["data"]]

    (wanted,) = probs(input=PROMPT)
    assert probs(input=ids) == probs(input=[ids]) == probs(input=[PROMPT]) == [wanted]
    assert probs(input=[[1, 2], *[ids]])[1] == wanted
    assert probs(input=[*range(200), *ids], truncate_prompt_tokens=len(ids)) == [wanted]
    assert probs(input=ids, truncate_prompt_tokens=-1, user="me", priority=1) == [wanted]
    chat = [{"role": "user", "content": [{"type": "text", "text": "State:"}, {"type": "text", "text": "late"}]}]
    asked = f"{PROMPT}<think>\n\n</think>\n\n"
    assert probs(messages=chat, add_generation_prompt=True) == probs(input=asked)
    assert probs(messages=chat) == probs(input="<|im_start|>user\nState:\nlate<|im_end|>\n")


def test_an_activation_is_a_softmax_over_all_codes(codes_client: TestClient) -> None:
    raw, same, soft = (
        codes_client.post("/classify", json={"input": "late"} | given).json()["data"][0]["probs"]
        for given in ({"use_activation": None}, {"use_activation": False}, {"use_activation": True})
    )
    weights = np.exp(np.array(raw) - max(raw))
    assert raw == same
    assert np.allclose(soft, weights / weights.sum(), rtol=1e-12)


REFUSED: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "nothing": ("/classify", {}, "input: give either input or messages", "input"),
    "both": ("/classify", {"input": "a", "messages": []}, "input: give either input or messages", "input"),
    "no prompts": ("/pooling", {"input": []}, "input: needs at least one prompt", "input"),
    "an empty prompt": ("/pooling", {"input": ["a", ""]}, "input.1: a prompt needs at least one token", "input.1"),
    "a number": ("/classify", {"input": 1}, "input: must be text, token ids, or a list of either", "input"),
    "mixed": ("/classify", {"input": ["a", 1]}, "input: must be text, token ids, or a list of either", "input"),
    "booleans": ("/classify", {"input": [True]}, "input: must be text, token ids, or a list of either", "input"),
    "an id too large": ("/classify", {"input": [10**6]}, "input.0: token ids must be from 0 to ", "input.0"),
    "65 prompts": ("/classify", {"input": ["a"] * 65}, "input: at most 64 prompts", "input"),
    "a long prompt": (
        "/classify",
        {"input": [1] * 321},
        "input.0: the prompt has 321 tokens, more than max_model_len=320; nothing is truncated",
        "input.0",
    ),
    "no truncation": (
        "/classify",
        {"input": "a", "truncate_prompt_tokens": 0},
        "truncate_prompt_tokens: must be -1 or from 1 to 320, not 0",
        "truncate_prompt_tokens",
    ),
    "normalize": (
        "/pooling",
        {"input": "a", "normalize": True},
        "normalize was removed; use_activation says whether a softmax is taken",
        "normalize",
    ),
    "another task": (
        "/pooling",
        {"input": "a", "task": "embed"},
        "task: 'embed' is not supported by this model; supported: classify",
        "task",
    ),
    "a task to classify": ("/classify", {"input": "a", "task": "classify"}, "unknown field(s) ['task']", "task"),
    "another encoding": (
        "/pooling",
        {"input": "a", "encoding_format": "int8"},
        "encoding_format: must be float or base64",
        "encoding_format",
    ),
    "no messages": ("/classify", {"messages": []}, "messages: needs at least one message", "messages"),
    "a message without a role": (
        "/classify",
        {"messages": [{"content": "a"}]},
        "messages.0: must be an object with role and content",
        "messages.0",
    ),
    "an image in a message": (
        "/classify",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content: only text parts are read here",
        "messages.0.content",
    ),
    "a chat's option beside input": (
        "/classify",
        {"input": "a", "add_generation_prompt": True},
        "add_generation_prompt: belongs to messages; leave it out",
        "add_generation_prompt",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(codes_client: TestClient, name: str) -> None:
    path, body, message, field = REFUSED[name]
    status, said, param = refused(codes_client, path, body)
    assert (status, param) == (400, field)
    assert said.startswith(message)


def test_another_model_is_not_here(codes_client: TestClient) -> None:
    assert refused(codes_client, "/classify", {"model": "x", "input": "a"})[:2] == (
        404,
        "The model `x` does not exist. Served here: `d3`.",
    )


def test_the_document_describes_both_routes(codes_client: TestClient) -> None:
    document = codes_client.get("/schema/openapi.json").json()
    for path, name in (("/classify", "ClassifyRequest"), ("/pooling", "PoolingRequest")):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{name}"}
        assert name in document["components"]["schemas"]


def test_models_that_are_read_otherwise_have_no_such_routes(client: TestClient) -> None:
    assert client.post("/classify", json={"input": "a"}).status_code == 404
