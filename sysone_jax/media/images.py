"""Images: PNG, JPEG and WebP from a data URL, bytes or a file, and pixels that are already decoded.

Pixels become RGB as transformers' image processors make them: by Pillow's own conversion (palette, grey, CMYK; 16-bit
grey is cut off at 255), with anything transparent laid on white. As there, a rotation in the EXIF data is not applied,
and of an animation the first frame is read.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sysone_jax.media.sources import fault, load_extra, read_bytes

FORMATS = ("PNG", "JPEG", "WEBP")
TYPES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/jpg": "JPEG", "image/webp": "WebP"}

Transparency = Literal["white", "dropped"]
"""What lies behind a transparent pixel: white (transformers' processors), or nothing, so that its hidden colour shows
(``Image.convert("RGB")``, which some references call first)."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What one image may cost, checked before its pixels are decoded."""

    max_bytes: int = 32_000_000
    max_pixels: int = 50_000_000


@dataclass(frozen=True, slots=True)
class Picture:
    """An image within its limits whose header has been read and whose pixels are still encoded.

    Attributes:
        name: its place in the request: ``images[2]``.
        height, width: in pixels.
        pixels: decodes it to [H, W, 3] uint8.
    """

    name: str
    height: int
    width: int
    pixels: Callable[[], np.ndarray]


def open_image(
    source: Any,
    name: str,
    limits: ImageLimits | None = None,
    *,
    transparency: Transparency = "white",
    files: bool = False,
) -> Picture:
    """Read an image's header.

    Args:
        source: a data URL, bytes, a ``pathlib.Path``, a Pillow image, or an array [H, W, 3] of uint8.
        name: the image's place in the request, which errors name.
        limits: ``ImageLimits()`` when None.
        transparency: see ``Transparency``.
        files: whether other texts are paths of files; never for texts that strangers sent.
    """
    limits = limits or ImageLimits()
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or 0 in source.shape:
            raise fault(name, f"an array must be [height, width, 3] of uint8, not {list(source.shape)} {source.dtype}")
        _check_pixels(source.shape[1], source.shape[0], name, limits)
        return Picture(name, source.shape[0], source.shape[1], lambda: source)
    pillow = load_extra("PIL.Image", name)
    image = source
    if not isinstance(source, pillow.Image):
        data = read_bytes(source, name, plural="images", types=TYPES, max_bytes=limits.max_bytes, files=files)
        image = _guard(lambda: pillow.open(io.BytesIO(data), formats=FORMATS), name, limits)
    width, height = image.size
    _check_pixels(width, height, name, limits)
    return Picture(name, height, width, lambda: _guard(lambda: _to_rgb(pillow, image, transparency), name, limits))


def _to_rgb(pillow: Any, image: Any, transparency: Transparency) -> np.ndarray:
    see_through = "A" in image.getbands() or image.info.get("transparency") is not None
    if see_through and transparency == "white":
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return np.array(image.convert("RGB"))


def _guard(work: Callable[[], Any], name: str, limits: ImageLimits) -> Any:
    try:
        return work()
    except Exception as error:  # damaged files make Pillow's parsers raise nearly anything
        if type(error).__name__.startswith("DecompressionBomb"):
            raise fault(name, _too_many(limits)) from None
        if type(error).__name__ == "UnidentifiedImageError":
            raise fault(name, "invalid image data (UnidentifiedImageError): no PNG, JPEG or WebP image") from None
        raise fault(name, f"invalid image data ({type(error).__name__})") from None


def _check_pixels(width: int, height: int, name: str, limits: ImageLimits) -> None:
    if not width or not height:
        raise fault(name, "the image has no pixels")
    if width * height > limits.max_pixels:
        raise fault(name, f"{_too_many(limits)}; this one has {width:,} x {height:,}")


def _too_many(limits: ImageLimits) -> str:
    return f"each image must have at most {limits.max_pixels:,} pixels"
