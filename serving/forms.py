"""``multipart/form-data`` bodies: the part ``request`` is the JSON, others are the images of its ``assets``."""

import base64
import io
from collections.abc import Mapping
from typing import Any

from multipart import MultipartError, MultipartParser, parse_options_header

from serving.body import BodyError, shown
from sysone_jax.errors import InputError

KIND = "multipart/form-data"
MOST_PARTS = 64
_MAGIC = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


def read_form(raw: bytes, content_type: str) -> tuple[bytes, dict[str, bytes]]:
    """(the JSON of the part ``request``, the other parts by their names).

    Raises:
        BodyError: the body is no such form.
    """
    boundary = parse_options_header(content_type)[1].get("boundary")
    if not boundary:
        raise BodyError("content-type: multipart/form-data needs a boundary")
    parts: dict[str, bytes] = {}
    parser = MultipartParser(
        io.BytesIO(raw),
        boundary,
        content_length=len(raw),
        strict=True,
        part_limit=MOST_PARTS,
        spool_limit=len(raw) + 1,  # the body is in memory already, and its length is bounded
        memory_limit=len(raw) + 1,
    )
    try:
        for part in parser:
            name = part.name or ""
            if name in parts:
                raise BodyError(f"body: the part {shown(name)} stands twice")
            assert part.file is not None
            parts[name] = part.file.read()
    except (MultipartError, ValueError) as error:
        raise BodyError(f"body: no valid multipart/form-data: {str(error)[:200]}") from None
    if "request" not in parts:
        raise BodyError("body: needs a part `request` with the JSON")
    return parts.pop("request"), parts


def attach(body: dict[str, Any], parts: Mapping[str, bytes]) -> dict[str, Any]:
    """A body whose assets hold the parts that they name; each part belongs to one asset.

    Raises:
        InputError: an asset names no part, or a part has no asset, or two.
    """
    assets = body.get("assets")
    if not isinstance(assets, dict):
        assets = {}
    held: dict[str, Any] = {}
    left = dict(parts)
    for name, asset in assets.items():
        part = asset.get("part") if isinstance(asset, dict) else None
        if part is None:
            held[name] = asset
            continue
        field = f"assets.{name[:200]}.part"
        if not isinstance(part, str) or part not in left:
            raise InputError(
                f"{field}: {shown(part)} is no part of this body, or another asset's", kind="media", field=field
            )
        data = left.pop(part)
        form = next((form for magic, form in _MAGIC.items() if data.startswith(magic)), None)
        if form is None:
            raise InputError(f"{field}: is no PNG or JPEG image", kind="media", field=field)
        held[name] = {
            "type": asset.get("type", "image"),
            "format": form,
            "data_base64": base64.b64encode(data).decode(),
        }
    if left:
        raise InputError(f"assets: no asset names the part {shown(next(iter(left)))}", kind="media", field="assets")
    return {**body, "assets": held} if held else body
