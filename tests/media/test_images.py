"""Images: where they come from, what is refused before it costs anything, and what damaged ones do."""

from __future__ import annotations

import base64
import io
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sysone_jax.errors import InputError
from sysone_jax.media.images import ImageLimits, open_image

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 14, 4), dtype=np.uint8)


def encoded(form: str, channels: int = 3, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(PIXELS[..., :channels]).save(out, form, **options)
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


PNG = encoded("PNG")


@pytest.mark.parametrize("kind", ["url", "bytes", "bytearray", "memoryview", "path", "text", "pillow", "array"])
def test_every_source_gives_the_same_pixels(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(PNG)
    source = {
        "url": url(PNG),
        "bytes": PNG,
        "bytearray": bytearray(PNG),
        "memoryview": memoryview(PNG),
        "path": file,
        "text": str(file),
        "pillow": Image.open(io.BytesIO(PNG)),
        "array": PIXELS[..., :3],
    }[kind]
    picture = open_image(source, "images[0]", files=kind == "text")
    assert (picture.height, picture.width) == (9, 14)
    assert np.array_equal(picture.pixels(), PIXELS[..., :3])


@pytest.mark.parametrize(("form", "kind"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "IMAGE/WebP")])
def test_every_format_is_read(form: str, kind: str) -> None:
    data = encoded(form)
    wanted = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(open_image(url(data, kind), "images[0]").pixels(), wanted)


def test_what_is_transparent_lies_on_white_or_shows_its_hidden_colour() -> None:
    data = encoded("PNG", channels=4)
    white, dropped = (open_image(data, "images[0]", transparency=how).pixels() for how in ("white", "dropped"))
    assert np.array_equal(dropped, PIXELS[..., :3])
    alpha = PIXELS[..., 3:] / 255.0
    assert np.abs(white - (PIXELS[..., :3] * alpha + 255 * (1 - alpha))).max() <= 1


GIF = encoded("GIF")
BOMB = b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    for kind, body in (
        (b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(1000))),
        (b"IEND", b""),
    )
)
SMALL = ImageLimits(max_bytes=1000, max_pixels=100)


@pytest.mark.parametrize(
    ("source", "limits", "said"),
    [
        (b"", None, "the image is empty"),
        (b"no image", None, "invalid image data (UnidentifiedImageError): no PNG, JPEG or WebP image"),
        (GIF, None, "invalid image data (UnidentifiedImageError): no PNG, JPEG or WebP image"),
        (PNG[:-30], None, "invalid image data (OSError)"),
        (PNG[:20], None, "invalid image data"),
        (BOMB, None, "each image must have at most 50,000,000 pixels"),
        (PNG, SMALL, "each image must have at most 100 pixels; this one has 14 x 9"),
        (PIXELS[..., :3], SMALL, "each image must have at most 100 pixels; this one has 14 x 9"),
        (bytes(1001), SMALL, "each image must be at most 1,000 bytes; this one has 1,001"),
        (url(bytes(1001)), SMALL, "each image must be at most 1,000 bytes; this one has 1,001"),
        (url(GIF, "image/gif"), None, "images must be base64 PNG, JPEG or WebP data URLs"),
        ("data:image/png," + "00", None, "images must be base64 PNG, JPEG or WebP data URLs"),
        ("data:image/png;base64,", None, "the image is empty"),
        ("data:image/png;base64,@@@@", None, "invalid base64 image data"),
        (url(PNG)[:-1], None, "invalid base64 image data"),
        (url(PNG) + "\n", None, "invalid base64 image data"),
        ("data:image/png;base64,éééé", None, "invalid base64 image data"),
        ("https://example.org/a.png", None, "other URLs are not fetched"),
        ("file:///etc/passwd", None, "other URLs are not fetched"),
        ("/etc/passwd", None, "images must be base64 PNG, JPEG or WebP data URLs"),
        (Path("/nowhere/a.png"), None, "'/nowhere/a.png' cannot be read: No such file or directory"),
        (Path("a\0b"), None, "cannot be read"),
        (Path("/dev/zero"), None, "'/dev/zero' is not a file"),
        (Path("/"), None, "'/' is not a file"),
        (7, None, "images must be data URLs, bytes or paths, not int"),
        (None, None, "images must be data URLs, bytes or paths, not NoneType"),
        (PIXELS, None, "an array must be [height, width, 3] of uint8, not [9, 14, 4] uint8"),
        (PIXELS[..., :3] / 255, None, "an array must be [height, width, 3] of uint8, not [9, 14, 3] float64"),
        (PIXELS[:0, :, :3], None, "an array must be [height, width, 3] of uint8, not [0, 14, 3] uint8"),
    ],
)
def test_what_cannot_be_read_is_named(source: Any, limits: ImageLimits | None, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        open_image(source, "images[3]", limits).pixels()
    assert str(caught.value).startswith("images[3]: ") and "\n" not in str(caught.value)
    assert (caught.value.kind, caught.value.field) == ("media", "images.3")


def test_a_file_is_not_read_for_a_text_that_a_stranger_sent(tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(PNG)
    with pytest.raises(InputError, match="data URLs"):
        open_image(str(file), "images[0]")


def test_the_size_of_a_url_is_checked_before_it_is_decoded() -> None:
    with pytest.raises(InputError, match="at most 1,000 bytes"):
        open_image("data:image/png;base64," + "@" * 2000, "images[0]", SMALL)


def test_without_pillow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=re.escape("pip install 'sysone-jax[media]'")) as caught:
        open_image(PNG, "images[0]")
    assert (caught.value.kind, caught.value.field) == ("unsupported", "images")


WHOLE = [PNG, encoded("PNG", 4), encoded("JPEG"), encoded("WEBP"), encoded("WEBP", 4, lossless=True)]


@given(
    data=st.sampled_from(WHOLE),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8),
    length=st.integers(1, 10_000),
)
def test_damage_gives_pixels_or_one_error(data: bytes, changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        picture = open_image(bytes(damaged[:length]), "images[0]")
        assert picture.pixels().shape == (picture.height, picture.width, 3)
    except InputError as error:
        assert error.field == "images.0"
