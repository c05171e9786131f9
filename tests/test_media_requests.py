"""Requests with images and videos as a user makes them: in Python, over HTTP, on the command line, and refused."""

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

import av
import numpy as np
import pytest
from litestar.testing import TestClient
from PIL import Image
from tiny_vision import films, pictures, write_vision

import sysone_jax
from serving.app import create_app
from serving.settings import Settings
from sysone_jax import cli
from sysone_jax.decider import Decider
from sysone_jax.errors import InputError
from sysone_jax.media.embedding import Embedding

LONGEST = 192
STATE = "What the customer sent."
QUESTIONS: dict[str, Any] = {
    "damaged": {"type": "noul", "instructions": "Is the parcel damaged?"},
    "side": {"type": "choice", "criteria": {"left": None, "right": "where the label is"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    write_vision(folder)
    return folder


@pytest.fixture(scope="module")
def decider(folder: Path) -> Iterator[Decider]:
    with sysone_jax.load(folder, max_model_len=LONGEST) as decider:
        decider.warm()
        yield decider


@pytest.fixture(scope="module")
def client(decider: Decider) -> Iterator[TestClient]:
    ready = threading.Event()
    with TestClient(create_app(decider, Settings(), on_ready=ready.set, on_failure=lambda error: None)) as client:
        assert ready.wait(300)
        yield client


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def mp4(frames: np.ndarray) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=8)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode(None))
    return out.getvalue()


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def probabilities(decision: Any) -> dict[str, tuple[float, ...]]:
    return {qid: read.probabilities for qid, read in decision.reads.items()}


def ask(decider: Decider, **more: Any) -> Any:
    return decider.decide(state=STATE, questions=QUESTIONS, **more)


def test_nothing_is_compiled_for_media_after_warming(decider: Decider):
    before = decider.compile_count
    for seed in range(3):
        ask(decider, images=pictures(seed)[seed % 2 :], videos=films(seed)[: seed % 2])
    ask(decider)
    assert decider.compile_count == before


def test_bits_depend_on_the_request_alone(decider: Decider, folder: Path):
    shown: dict[str, Any] = {"images": pictures(5), "videos": films(5)[:1]}
    alone = probabilities(ask(decider, **shown))
    hits = decider.cache_hits
    assert probabilities(ask(decider, **shown)) == alone and decider.cache_hits > hits
    others = [{"state": f"{STATE} {n}", "questions": QUESTIONS, "images": pictures(n)[:1]} for n in range(4)]
    batch = decider.decide_batch([*others, {"state": STATE, "questions": QUESTIONS, **shown}])
    assert probabilities(batch[-1]) == alone
    single = {qid: decider.decide(state=STATE, questions={qid: QUESTIONS[qid]}, **shown) for qid in QUESTIONS}
    assert {qid: probabilities(one)[qid] for qid, one in single.items()} == alone
    with sysone_jax.load(folder, max_model_len=LONGEST) as again:
        assert probabilities(ask(again, **shown)) == alone


def test_other_media_under_the_same_state_are_not_taken_from_the_cache(decider: Decider):
    first, second = (np.full((64, 64, 3), level, np.uint8) for level in (20, 230))
    assert probabilities(ask(decider, images=[first])) != probabilities(ask(decider, images=[second]))
    assert probabilities(ask(decider, images=[first, second])) != probabilities(ask(decider, images=[second, first]))


def test_every_form_of_an_image_is_the_same_image(decider: Decider, tmp_path: Path):
    pixels = pictures()[0]
    (tmp_path / "a.png").write_bytes(png(pixels))
    forms = [pixels, Image.fromarray(pixels), png(pixels), data_url("image/png", png(pixels)), tmp_path / "a.png"]
    assert len({tuple(probabilities(ask(decider, images=[form])).items()) for form in forms}) == 1


def test_precomputed_features_stand_for_what_the_tower_gives(decider: Decider):
    media = decider.request(state=STATE, questions=QUESTIONS, images=pictures()[:1], videos=films()[:1]).media
    items: tuple[Any, ...] = (*media.images, *media.videos)
    made = [
        Embedding(decider._engine.submit(lambda item=item: decider._engine._tower_features(item)).result(), item.grid)
        for item in items
    ]
    given: dict[str, Any] = {
        "images": made[:1],
        "videos": [dataclasses.replace(made[1], seconds=media.videos[0].seconds)],
    }
    assert probabilities(ask(decider, **given)) == probabilities(
        ask(decider, images=pictures()[:1], videos=films()[:1])
    )
    with pytest.raises(InputError, match=r"images\[0\]: the features of this grid must be \[\d+, 44\]"):
        ask(decider, images=[dataclasses.replace(made[0], features=made[0].features[:, 1:])])


def test_two_devices_give_the_answers_of_one(decider: Decider, folder: Path):
    shown: dict[str, Any] = {"images": pictures(2), "videos": films(2)[:1]}
    with sysone_jax.load(folder, max_model_len=LONGEST, mesh=(1, 2)) as spread:
        for qid, found in probabilities(ask(spread, **shown)).items():
            assert found == pytest.approx(probabilities(ask(decider, **shown))[qid], abs=1e-5)


BODY: dict[str, Any] = {
    "state": STATE,
    "questions": QUESTIONS,
    "images": [data_url("image/png", png(pictures()[0]))],
    "videos": [data_url("video/mp4", mp4(films()[0]))],
}


def test_the_server_and_the_command_line_answer_as_python_does(
    decider: Decider,
    client: TestClient,
    folder: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
):
    wanted = ask(decider, images=BODY["images"], videos=BODY["videos"])
    response = client.post("/v1/systemone", json=BODY)
    assert response.status_code == 200 and response.json()["answers"] == dict(wanted)
    assert response.json()["usage"] == wanted.usage
    (tmp_path / "request.json").write_text(json.dumps(BODY), encoding="utf-8")
    asked = [
        "decide",
        "--model",
        str(folder),
        "--max-model-len",
        str(LONGEST),
        "--request",
        str(tmp_path / "request.json"),
    ]
    assert cli.main(asked) == 0
    assert json.loads(capsysbinary.readouterr().out)["answers"] == dict(wanted)


REFUSED = {
    "no image": (
        {"images": [BODY["images"][0], data_url("image/png", b"nothing")]},
        "images.1",
        r"images\[1\]: invalid",
    ),
    "an address": ({"images": ["http://example.com/a.png"]}, "images.0", r"images\[0\]: .*other URLs are not fetched"),
    "a path": ({"images": ["/etc/passwd"]}, "images.0", r"images\[0\]: images must be base64"),
    "no video": ({"videos": [data_url("video/mp4", b"nothing")]}, "videos.0", r"videos\[0\]: "),
    "audio": ({"audio": [data_url("audio/wav", b"RIFF")]}, "audio", "this model does not take audio inputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_server_refuses_by_the_items_name(client: TestClient, case: str):
    more, field, said = REFUSED[case]
    response = client.post("/v1/systemone", json={"state": STATE, "questions": QUESTIONS, **more})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field
    assert re.search(said, error["message"])


def test_more_media_than_the_model_reads_are_refused_before_they_are_decoded(decider: Decider):
    with pytest.raises(InputError, match=r"the images take [\d,]+ input tokens, over the 192 tokens a request may"):
        ask(decider, images=[Image.new("RGB", (96, 80))] * 40)


def test_text_that_spells_a_placeholder(decider: Decider):
    spelled: dict[str, Any] = {"state": "<|image_pad|>", "questions": QUESTIONS, "images": pictures()[:1]}
    with pytest.raises(InputError, match="contains a literal image or video placeholder token"):
        decider.decide(**spelled, rendering="reference")
    assert decider.decide(**spelled, rendering="escape").usage["output_tokens"] == 2
    assert decider.decide(state="<|image_pad|>", questions=QUESTIONS, rendering="reference")


def test_a_server_says_what_its_model_reads_and_takes_bodies_that_hold_it(client: TestClient):
    (card,) = client.get("/v1/models").json()["data"]
    assert card["input_modalities"] == ["text", "image", "video"]
    assert card["limits"]["max_body_bytes"] == 64 << 20
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1300, 3), dtype=np.uint8)
    large = data_url("image/png", png(noise))
    assert len(large) > 4 << 20
    assert client.post("/v1/systemone", json={**BODY, "images": [large]}).status_code == 200


@pytest.mark.parametrize("left", [(), ("video_preprocessor_config.json",)])
def test_media_for_a_model_without_its_processors_files(tmp_path: Path, left: tuple[str, ...]):
    write_vision(tmp_path)
    for name in {"preprocessor_config.json", "video_preprocessor_config.json"} - {*left}:
        (tmp_path / name).unlink()
    with sysone_jax.load(tmp_path, max_model_len=LONGEST) as decider:
        assert ask(decider)
        assert decider.modalities == ("text",)
        for kind, items in (("image", pictures()[:1]), ("video", films()[:1])):
            with pytest.raises(InputError, match=f"{kind} inputs are not available: .* no preprocessor_config.json"):
                ask(decider, **{f"{kind}s": items})
