"""``Content-Encoding``: gzip and zstd bodies, decompressed no further than a body may be long.

A few kilobytes can decompress to gigabytes, so the output is bounded while it is made, and so is the window that a zstd
frame may ask memory for.
"""

import importlib
import sys
import zlib
from types import ModuleType
from typing import Any

from serving.body import BodyError, shown
from serving.faults import Fault

NAMES = ("identity", "gzip", "zstd")
WINDOW_LOG = 23
"""Largest window of a zstd frame, 8 MiB: what RFC 8878 wants every decoder to support."""


def check_encoding(value: str) -> str:
    """The encoding that a header's value names; Fault for one that is not taken."""
    name = value.strip().lower() or "identity"
    if name not in NAMES:
        raise Fault(
            "content_encoding",
            f"content-encoding: must be {', '.join(NAMES[:-1])} or {NAMES[-1]}, not {shown(name)}",
            {"Accept-Encoding": ", ".join(NAMES[1:])},
        )
    return name


def decoded(raw: bytes, encoding: str, most_bytes: int) -> bytes:
    """The body behind its encoding.

    Raises:
        BodyError: it is not what its encoding says.
        Fault: it comes to more than ``most_bytes``.
    """
    if encoding == "identity":
        return raw
    part = {"gzip": _gunzipped, "zstd": _unzstd}[encoding]
    pieces: list[bytes] = []
    total = 0
    while raw:  # a file may have several parts, one after another
        piece, read = part(raw, most_bytes + 1 - total)
        pieces.append(piece)
        total += len(piece)
        if total > most_bytes:
            raise too_large(most_bytes)
        if not read.eof:
            raise BodyError(f"body: the {encoding} data ends too early")
        raw = read.unused_data
    return b"".join(pieces)


def too_large(most_bytes: int) -> Fault:
    return Fault(
        "body_size",
        f"body: at most {most_bytes:,} bytes; --max-body-bytes sets the limit",
        {"Connection": "close"},
    )


def _gunzipped(raw: bytes, most: int) -> tuple[bytes, Any]:
    """One member of a gzip file, no more than ``most`` bytes of it, and the object that says what is left."""
    member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        return member.decompress(raw, most), member
    except zlib.error:
        raise BodyError("body: not valid gzip data") from None


def _unzstd(raw: bytes, most: int) -> tuple[bytes, Any]:
    """The same of one zstd frame."""
    zstd = _zstd()
    frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
    try:
        piece = frame.decompress(raw, most)
        while not frame.eof and not frame.needs_input and len(piece) < most:
            piece += frame.decompress(b"", most - len(piece))
    except zstd.ZstdError:
        raise BodyError(f"body: not valid zstd data with a window of at most {1 << WINDOW_LOG:,} bytes") from None
    return piece, frame


def _zstd() -> ModuleType:
    """The standard library's module where there is one, else the same from its backport."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
