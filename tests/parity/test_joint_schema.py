"""Clef-Flash whole: backbone, media and head against torch in float32, and through every door."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from litestar.testing import TestClient
from PIL import Image
from tiny_joint import TorchHead, option_logits, write_joint
from tiny_vision import films, pictures

import sysone_jax
from serving.app import create_app
from serving.settings import Settings
from sysone_jax import Decider, InputError, cli, loading
from sysone_jax.answers import softmax
from sysone_jax.reader.grid import Grid

TEXT_LOGITS, MEDIA_LOGITS = 5e-5, 1e-4
"""Of the largest reference logit."""
TEXT_PROBABILITIES, MEDIA_PROBABILITIES = 2e-5, 1e-4

STATE = {"customer": "I was charged twice for order 4471 and want a refund today!", "plan": "pro", "days": 12}
QUESTIONS: dict[str, Any] = {
    "topic": {
        "type": "choice",
        "instructions": "What is it about?",
        "criteria": {"shipping": "Where it is", "billing": "Money, invoices, refunds", "other": None},
    },
    "refund": {"type": "noul", "instructions": "Is a refund asked for?", "criteria": {"true": "Money back"}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["Can wait", "This week", "Today"]},
}
LONGEST = 768

Case = tuple[Any, TorchHead, Decider]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of their own and a grid of few shapes: each takes long, and which one is taken is tested elsewhere."""
    make_grid = loading.make_grid

    def coarse(*given: Any) -> Grid:
        grid = make_grid(*given)
        few = {name: (grid.max_len // 2, grid.max_len) for name in ("prefix", "room")}
        return dataclasses.replace(grid, **few, media=(grid.max_len,) if grid.media else ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSONE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(loading, "make_grid", coarse)
        yield


@pytest.fixture(scope="module", params=[0, 1, 2])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("clef")
    model, head = write_joint(folder, request.param)
    with sysone_jax.load(folder, max_model_len=LONGEST) as decider:
        yield model, head, decider


def read(decider: Decider, **request: Any) -> tuple[Any, np.ndarray]:
    """A request's prompt, and its option logits in the prompt's order."""
    strategy: Any = decider._strategy
    checked = decider.request(**request)
    prompt = strategy.plan(checked).prompts
    encoded = decider._engine.encoded(checked.media, strategy._placeholders)
    return prompt, decider._engine.submit(lambda: strategy.logits(prompt, None, encoded)).result()


def check(case: Case, logits_within: float, probabilities_within: float, **request: Any) -> None:
    model, head, decider = case
    prompt, got = read(decider, **request)
    wanted = option_logits(model, head, prompt, decider.request(**request).media)
    assert np.abs(got - wanted).max() <= logits_within * np.abs(wanted).max()
    decision = decider.decide(**request)
    assert decision.usage == {"input_tokens": len(prompt.ids), "output_tokens": 0}
    start = 0
    for read_, order in zip(decision.reads.values(), prompt.orders, strict=True):
        own = np.asarray(softmax(wanted[start : start + len(order)]))
        start += len(order)
        assert np.abs(np.asarray(read_.probabilities)[list(order)] - own).max() <= probabilities_within


@pytest.mark.parametrize("names", [["topic", "refund", "urgency"], ["refund"], ["urgency", "topic"]], ids=str)
def test_text_is_read_as_in_torch(case: Case, names: list[str]) -> None:
    questions = {name: QUESTIONS[name] for name in names}
    check(case, TEXT_LOGITS, TEXT_PROBABILITIES, state=STATE, questions=questions)


@pytest.mark.parametrize("shown", [(2, 0), (0, 1), (1, 2)], ids=str)
def test_media_are_read_as_in_torch(case: Case, shown: tuple[int, int]) -> None:
    images, videos = shown
    media: dict[str, Any] = {"images": pictures()[:images], "videos": films()[:videos]}
    check(case, MEDIA_LOGITS, MEDIA_PROBABILITIES, state=STATE, questions=QUESTIONS, **media)


def test_a_question_moves_with_its_siblings_as_in_torch(case: Case) -> None:
    model, head, decider = case
    moved = []
    for names in (["refund"], ["refund", "urgency"], ["refund", "topic", "urgency"]):
        prompt, got = read(decider, state=STATE, questions={name: QUESTIONS[name] for name in names})
        moved.append((got[:2], option_logits(model, head, prompt)[:2]))
    largest = max(np.abs(wanted).max() for _, wanted in moved)
    for (got, wanted), (got_alone, wanted_alone) in ((pair, moved[0]) for pair in moved[1:]):
        change = wanted - wanted_alone
        assert np.abs(change).max() > 100 * TEXT_LOGITS * largest
        assert np.abs((got - got_alone) - change).max() <= 2 * TEXT_LOGITS * largest


def test_a_head_in_bfloat16_is_chosen_by_name(case: Case) -> None:
    """The published run's arithmetic: off by as much as its roundings are, and another reading of the same weights."""
    decider = case[2]
    with sysone_jax.load(decider.name, max_model_len=LONGEST, head_dtype="bfloat16") as rounded:
        assert (decider.head_dtype, rounded.head_dtype) == ("float32", "bfloat16")
        assert decider.reading["head_dtype"] == "float32" and rounded.reading["head_dtype"] == "bfloat16"
        wanted, got = (read(each, state=STATE, questions=QUESTIONS)[1] for each in (decider, rounded))
    assert 1e-4 < np.abs(got - wanted).max() / np.abs(wanted).max() < 2**-5


def test_media_stand_on_one_line_before_the_state(case: Case) -> None:
    decider = case[2]
    strategy: Any = decider._strategy
    tokenizer = strategy._tokenizer
    media: dict[str, Any] = {"images": pictures(), "videos": films()[:1]}
    request = decider.request(state="seen", questions=QUESTIONS, **media)
    shown = "".join(f"<|vision_start|>{'<|image_pad|>' * item.tokens}<|vision_end|>" for item in request.media.images)
    for item in request.media.videos:
        pads = "<|video_pad|>" * (item.tokens // len(item.seconds))
        times = "".join(f"<{at:.1f} seconds><|vision_start|>{pads}<|vision_end|>" for at in item.seconds)
        shown += f"<|vision_start|>{times}<|vision_end|>"
    prompt = decider._strategy.plan(request).prompts
    plain = decider._strategy.plan(decider.request(state="seen", questions=QUESTIONS)).prompts
    text = tokenizer.decode(prompt.ids)
    assert f"STATE:\n{shown}\nseen\n\nSCHEMA FIELDS:" in text
    more = len(prompt.ids) - len(plain.ids)
    assert prompt.ids[: -len(plain.ids)] + prompt.ids[more:] != plain.ids  # the opening comes before what is shown
    assert text.replace(f"{shown}\n", "") == tokenizer.decode(plain.ids)
    for spans, of in ((prompt.option_spans, plain.option_spans), (prompt.question_spans, plain.question_spans)):
        assert spans == tuple((start + more, end + more) for start, end in of)


def test_bits_with_media_depend_on_the_request_alone(case: Case) -> None:
    decider = case[2]
    request: dict[str, Any] = {"state": STATE, "questions": QUESTIONS, "images": pictures(3), "videos": films(3)[:1]}
    alone = decider.decide(**request).reads
    others = [{**request, "state": f"{n}", "images": pictures(n)[:1]} for n in range(3)]
    assert decider.decide_batch([*others, request])[-1].reads == alone
    assert decider.decide(**{**request, "images": pictures(4)}).reads != alone


# ------------------------------------------------------------------------------ the doors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_joint(folder)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[Decider, TestClient]]:
    ready = threading.Event()
    with sysone_jax.load(folder, max_model_len=LONGEST) as decider:
        decider.warm()
        app = create_app(decider, Settings(), on_ready=ready.set, on_failure=lambda error: None)
        with TestClient(app) as client:
            assert ready.wait(300)
            yield decider, client


def data_url(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_every_door_answers_alike_and_compiles_nothing(
    served: tuple[Decider, TestClient], folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    decider, client = served
    before = decider.compile_count
    body = {"state": STATE, "questions": QUESTIONS, "images": [data_url(picture) for picture in pictures()]}
    wanted = decider.decide(**body)
    response = client.post("/v1/systemone", json=body)
    assert response.status_code == 200 and response.json()["answers"] == dict(wanted)
    assert response.json()["usage"] == wanted.usage
    decider.decide(state=STATE, questions=QUESTIONS, videos=films())
    assert decider.compile_count == before
    (card,) = client.get("/v1/models").json()["data"]
    assert card["input_modalities"] == ["text", "image", "video"]
    (tmp_path / "request.json").write_text(json.dumps(body), encoding="utf-8")
    arguments = ["--model", str(folder), "--max-model-len", str(LONGEST), "--request", str(tmp_path / "request.json")]
    assert cli.main(["decide", *arguments]) == 0
    assert json.loads(capsysbinary.readouterr().out)["answers"] == dict(wanted)


def test_what_cannot_be_read_is_refused(served: tuple[Decider, TestClient]) -> None:
    decider, client = served
    refused = {
        "images.1": ({"images": [data_url(pictures()[0]), "data:image/png;base64,AAAA"]}, r"images\[1\]: invalid"),
        "audio": ({"audio": ["data:audio/wav;base64,AAAA"]}, "this model does not take audio inputs"),
        "images": ({"images": [data_url(pictures()[1])] * 40}, r"the images take [\d,]+ input tokens, over the 768"),
        "questions": ({"images": [data_url(pictures()[1])] * 20}, r"schema requires \d+ tokens before state; maximum"),
    }
    for field, (more, said) in refused.items():
        response = client.post("/v1/systemone", json={"state": STATE, "questions": QUESTIONS, **more})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, field)
        assert re.search(said, error["message"])
    with pytest.raises(InputError, match=r"the state has \d+ tokens, but 768 less the questions and media leave room"):
        decider.decide(state="late " * 400, questions=QUESTIONS, images=pictures())
    cut = decider.decide(state="late " * 400, questions=QUESTIONS, images=pictures(), overlong="truncate")
    assert cut.usage["input_tokens"] == LONGEST and cut.usage["truncated_tokens"] > 0


@pytest.mark.parametrize("spelled", ["<|image_pad|>", "<|video_pad|>"])
def test_a_placeholder_in_the_text_is_refused_beside_media_alone(
    served: tuple[Decider, TestClient], spelled: str
) -> None:
    decider = served[0]
    plan = decider._strategy.plan
    noul = {"type": "noul", "instructions": "Is it so?"}
    for spoiled in (
        {"state": f"a {spelled}", "questions": {"q": noul}},
        {"state": "s", "questions": {spelled: noul}},
        {"state": "s", "questions": {"q": {"type": "choice", "instructions": "?", "criteria": {spelled: None}}}},
    ):
        assert plan(decider.request(**spoiled))
        with pytest.raises(InputError, match="contains a literal image or video placeholder token"):
            plan(decider.request(**spoiled, images=pictures()[:1]))
        assert plan(decider.request(**spoiled, images=pictures()[:1], rendering="escape"))


def test_a_checkpoint_without_its_processors_files_reads_text(tmp_path: Path) -> None:
    write_joint(tmp_path)
    (tmp_path / "processor_config.json").unlink()
    with sysone_jax.load(tmp_path, max_model_len=256) as decider:
        assert decider.modalities == ("text",)
        with pytest.raises(InputError, match=r"image inputs are not available: .* no preprocessor_config\.json"):
            decider.request(state="s", questions=QUESTIONS, images=pictures())
