"""Bodies that come compressed or in parts: what is answered, and what a bomb, a lie or a torn body gets."""

from __future__ import annotations

import base64
import gzip
import io
import json
import time
import zlib
from typing import Any

import pytest
from backports import zstd
from bad_requests import body
from litestar.testing import TestClient
from PIL import Image

from serving import encodings
from serving.body import BodyError
from serving.faults import Fault
from sysone_jax.decider import Decider

PATH = "/v1/systemone"
SMALL = json.dumps(body()).encode()
LONG_WINDOW = {zstd.CompressionParameter.window_log: 24, zstd.CompressionParameter.content_size_flag: 0}


def post(client: TestClient, content: bytes, encoding: str, path: str = PATH) -> Any:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    return client.post(path, content=content, headers=headers)


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("identity", SMALL),
        ("", SMALL),
        ("gzip", gzip.compress(SMALL)),
        (" GZIP ", gzip.compress(SMALL)),
        ("gzip", gzip.compress(SMALL[:10]) + gzip.compress(SMALL[10:])),
        ("zstd", zstd.compress(SMALL)),
        ("zstd", zstd.compress(SMALL[:10]) + zstd.compress(SMALL[10:])),
    ],
)
def test_encodings_taken(client: TestClient, labels: Decider, encoding: str, content: bytes):
    response = post(client, content, encoding)
    assert response.status_code == 200, response.text
    assert response.json()["answers"] == dict(labels.decide(**body()))


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "zstd, zstd", "x" * 1000])
def test_encodings_refused(client: TestClient, encoding: str):
    response = post(client, SMALL, encoding)
    assert response.status_code == 415
    assert response.json()["error"]["message"].startswith("content-encoding: must be identity, gzip or zstd, not '")
    assert response.headers["accept-encoding"] == "gzip, zstd"


@pytest.mark.parametrize(
    ("encoding", "content", "message"),
    [
        ("gzip", SMALL, "body: not valid gzip data"),
        ("gzip", gzip.compress(SMALL)[:-4], "body: the gzip data ends too early"),
        ("gzip", gzip.compress(SMALL) + b"junk", "body: not valid gzip data"),
        ("gzip", zlib.compress(SMALL), "body: not valid gzip data"),
        ("zstd", SMALL, "body: not valid zstd data"),
        ("zstd", zstd.compress(SMALL)[:-4], "body: the zstd data ends too early"),
        ("zstd", zstd.compress(b"0" * (1 << 25), options=LONG_WINDOW), "body: not valid zstd data with a window"),
        ("gzip", b"", "body: empty; send a JSON object"),
        ("zstd", b"", "body: empty; send a JSON object"),
    ],
)
def test_what_is_not_what_it_says(client: TestClient, encoding: str, content: bytes, message: str):
    response = post(client, content, encoding)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb(client: TestClient, encoding: str):
    """A gigabyte in a few kilobytes or less: refused within a second, and no more of it made than a body may have."""
    compress = {"gzip": gzip.compress, "zstd": zstd.compress}[encoding]
    piece = compress(b" " * (32 << 20))
    bomb = piece * 32
    start = time.monotonic()
    response = post(client, bomb, encoding)
    assert time.monotonic() - start < 1
    assert response.status_code == 413
    assert response.json()["error"]["message"].startswith("body: at most 4,194,304 bytes")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_the_limit_is_exact(encoding: str):
    compress = {"gzip": gzip.compress, "zstd": zstd.compress}[encoding]
    for content in (compress(b"x" * 1000), compress(b"x" * 500) + compress(b"x" * 500)):
        assert encodings.decoded(content, encoding, 1000) == b"x" * 1000
        with pytest.raises(Fault, match="at most 999 bytes"):
            encodings.decoded(content, encoding, 999)
    with pytest.raises(BodyError):
        encodings.decoded(compress(b"x" * 1000)[:-1], encoding, 1000)


def test_the_limit_is_the_dialects(client: TestClient):
    sent = zstd.compress(json.dumps(body(state="x" * 5_000_000)).encode())
    assert post(client, sent, "zstd", "/typesafe/v1/systemone").status_code == 413


# --- multipart ---


def png(side: int, color: str) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (side, side), color).save(held, "png")
    return held.getvalue()


def form(request: Any, **parts: bytes) -> dict[str, Any]:
    raw = request if isinstance(request, bytes) else json.dumps(request).encode()
    files = {"request": (None, raw, "application/json")}
    return {"files": files | {name: (name, data, "application/octet-stream") for name, data in parts.items()}}


def asked(**assets: Any) -> dict[str, Any]:
    return body(state="see @a and @b", assets={f"@{name}": asset for name, asset in assets.items()})


TYPESAFE = "/typesafe/v1/systemone"


def test_images_as_parts(codes_client: TestClient, coded: Decider):
    one, two = png(32, "red"), png(32, "blue")
    sent = asked(b={"type": "image", "part": "asset-0"}, a={"part": "asset-1"})
    response = codes_client.post(TYPESAFE, **form(sent, **{"asset-0": two, "asset-1": one}))
    assert response.status_code == 200, response.text
    urls = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (one, two)]
    expected = coded.decide(state="see @a and @b", questions=body()["questions"], images=urls)
    assert response.json()["answers"]["q"]["noul"] == expected["q"]["noul"]


def test_a_form_without_images_is_its_request(client: TestClient, labels: Decider):
    response = client.post(TYPESAFE, **form(body()))
    assert response.json()["answers"]["q"]["noul"] == labels.decide(**body())["q"]["noul"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (form(asked(a={"part": "x"})), "assets.@a.part: 'x' is no part of this body, or another asset's"),
        (form(asked(a={"part": 7})), "assets.@a.part: 7 is no part of this body"),
        (form(asked(a={"part": "x"}, b={"part": "x"}), x=png(8, "red")), "assets.@b.part: 'x' is no part"),
        (form(asked(a={"part": "x"}), x=png(8, "red"), y=b"?"), "assets: no asset names the part 'y'"),
        (form(asked(a={"part": "x"}), x=b"GIF89a"), "assets.@a.part: is no PNG or JPEG image"),
        (form(body(), x=png(8, "red")), "assets: no asset names the part 'x'"),
    ],
)
def test_forms_refused(client: TestClient, sent: dict[str, Any], message: str):
    response = client.post(TYPESAFE, **sent)
    assert response.status_code == 400
    assert response.json()["detail"]["message"].startswith(message)


BOUND = b"--x\r\nContent-Disposition: form-data; name="


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("multipart/form-data", b"", "content-type: multipart/form-data needs a boundary"),
        ("multipart/form-data; boundary=x", b"", "body: no valid multipart/form-data"),
        ("multipart/form-data; boundary=x", b"--x--\r\n", "body: needs a part `request`"),
        ("multipart/form-data; boundary=x", BOUND + b'"request"\r\n\r\n{}', "body: no valid multipart/form-data"),
        (
            "multipart/form-data; boundary=x",
            BOUND + b'"a"\r\n\r\n{}\r\n' + BOUND + b'"a"\r\n\r\n{}\r\n--x--\r\n',
            "body: the part 'a' stands twice",
        ),
        (
            "multipart/form-data; boundary=x",
            b"".join(BOUND + b'"%d"\r\n\r\n{}\r\n' % number for number in range(65)) + b"--x--\r\n",
            "body: no valid multipart/form-data",
        ),
        ("multipart/form-data; boundary=x", BOUND + b'"request"\r\n\r\n[]\r\n--x--\r\n', "body: must be a JSON object"),
    ],
)
def test_torn_forms(client: TestClient, kind: str, content: bytes, message: str):
    response = client.post(TYPESAFE, content=content, headers={"Content-Type": kind})
    assert response.status_code == 422
    assert response.json()["detail"][0]["ctx"]["error"].startswith(message)


def test_only_typesafes_clients_send_forms(client: TestClient):
    for path in (PATH, "/d3/v1/systemone", "/v1/decisions"):
        response = client.post(path, **form(body()))
        assert response.status_code == 400
        assert "content-type: must be application/json, not 'multipart/form-data'" in response.text
