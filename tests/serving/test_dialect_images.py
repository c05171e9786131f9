"""Images in every dialect's form, to a model that sees: the same bits as from Python, and each dialect's own limits."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
import pytest
from bad_requests import asking, body
from litestar.testing import TestClient
from PIL import Image

from serving.dialects import liquid
from sysone_jax.decider import Decider

NOUL = {"q": {"type": "noul", "instructions": "Is it red?"}}


def encoded(width: int, height: int, seed: int = 0, form: str = "png") -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, form)
    return base64.b64encode(held.getvalue()).decode()


ONE, TWO = encoded(64, 32), encoded(32, 64, seed=1)


def url(data: str) -> str:
    return f"data:image/png;base64,{data}"


def yes(client: TestClient, dialect: str, sent: dict[str, Any]) -> float:
    response = client.post(f"/{dialect}/v1/systemone", json=sent)
    assert response.status_code == 200, response.text
    return response.json()["answers"]["q"]["noul"]


def test_every_form_of_an_image(codes_client: TestClient, coded: Decider):
    expected = coded.decide(state="s", questions=NOUL, images=[url(ONE), url(TWO)])["q"]["noul"]
    assert expected != coded.decide(state="s", questions=NOUL, images=[url(TWO), url(ONE)])["q"]["noul"]
    ask = {"state": "s", "questions": NOUL}
    plain = ask | {"images": [url(ONE), url(TWO)]}
    for dialect in ("vllm", "d3", "typesafe", "clef", "liquid"):
        assert yes(codes_client, dialect, plain) == expected
    objects = [{"content_type": "image/png", "base64": data} for data in (ONE, TWO)]
    assert yes(codes_client, "liquid", ask | {"images": objects}) == expected
    described = [{"url": url(data), "detail": "low"} for data in (ONE, TWO)]
    assert yes(codes_client, "clef", ask | {"images": described}) == expected
    parts = [{"type": "image_url", "image_url": {"url": url(data)}} for data in (ONE, TWO)]
    assert yes(codes_client, "liquid", ask | {"state": [parts[0], "s", parts[1]]}) == expected
    assert yes(codes_client, "typesafe", ask | {"state": [*parts, {"type": "text", "text": "s"}]}) == expected


def test_typesafes_assets_stand_in_the_order_of_their_names_in_the_text(codes_client: TestClient, coded: Decider):
    state = "@b @a"
    expected = coded.decide(state=state, questions=NOUL, images=[url(TWO), url(ONE)])["q"]["noul"]
    assets = {
        "@a": {"type": "image", "format": "png", "data_base64": ONE},
        "@b": {"type": "image", "format": "png", "data_base64": f"{TWO[:20]}\n{TWO[20:]}"},
    }
    assert yes(codes_client, "typesafe", {"state": state, "questions": NOUL, "assets": assets}) == expected


IMAGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nine": (body(images=[url(ONE)] * 9), "images: at most 8 images", "images"),
    "in both places": (
        body(state=[{"type": "image_url", "image_url": {"url": url(ONE)}}], images=[url(ONE)]),
        "images: stand in the state too; send them in one of the two places",
        "images",
    ),
    "remote": (
        body(images=["https://example.com/a.png"]),
        "images[0]: images must be base64 PNG, JPEG or WebP data URLs; other URLs are not fetched",
        "images.0",
    ),
    "long and thin": (
        body(images=[url(encoded(808, 8))]),
        "images[0]: at most 100 times as long as it is wide; this one is 808 x 8",
        "images.0",
    ),
    "another object": (
        body(images=[{"url": url(ONE)}]),
        "images[0]: must be a data URL, or an object with content_type and base64",
        "images.0",
    ),
    "another kind": (
        body(images=[{"content_type": "image/gif", "base64": ONE}]),
        "images[0]: images must be base64 PNG, JPEG or WebP data URLs",
        "images.0",
    ),
    "no image": (
        body(images=[url(base64.b64encode(b"no image").decode())]),
        "images[0]: invalid image data (UnidentifiedImageError): no PNG, JPEG or WebP image",
        "images.0",
    ),
    "a number": (body(images=[7]), "images[0]: must be a data URL", "images.0"),
}


@pytest.mark.parametrize("row", IMAGES)
def test_liquid_refuses(codes_client: TestClient, row: str):
    sent, message, param = IMAGES[row]
    response = codes_client.post("/liquid/v1/systemone", json=sent)
    assert response.status_code == 422
    told = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    assert response.json() == {"error": told}


def test_liquid_counts_patches(codes_client: TestClient, monkeypatch: pytest.MonkeyPatch):
    """Each image's sides are rounded up on their own."""
    monkeypatch.setattr(liquid, "MOST_PATCHES", 7)
    sizes = [(64, 32), (33, 65)]
    assert sum(math.ceil(width / 32) * math.ceil(height / 32) for width, height in sizes) == 8
    response = codes_client.post(
        "/liquid/v1/systemone", json=body(images=[url(encoded(width, height)) for width, height in sizes])
    )
    assert response.status_code == 422
    assert "the images cover 8 patches of 32 x 32 pixels, more than 7" in response.json()["error"]["message"]


def test_liquid_refuses_large_files(codes_client: TestClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(liquid, "IMAGE_LIMITS", liquid.ImageLimits(max_bytes=10))
    response = codes_client.post("/liquid/v1/systemone", json=body(images=[url(ONE)]))
    assert response.status_code == 422
    assert response.json()["error"]["message"].startswith("images[0]: each image must be at most 10 bytes")


@pytest.mark.parametrize(("dialect", "status"), [("vllm", 400), ("typesafe", 400), ("d3", 400), ("clef", 400)])
@pytest.mark.parametrize("image", ["https://example.com/a.png", "file:///etc/passwd", "/etc/passwd", url("AA")])
def test_others_refuse_what_is_no_image(codes_client: TestClient, dialect: str, status: int, image: str):
    response = codes_client.post(f"/{dialect}/v1/systemone", json=asking(**NOUL["q"]) | {"images": [image]})
    assert response.status_code == status
    assert "images[0]: " in response.text and "passwd" not in response.text
