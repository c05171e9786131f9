"""``Content-Encoding``: gzip and zstd bodies, decompressed no further than a body may be long.

A few kilobytes can decompress to gigabytes, so the output is bounded while it is made, and so is the window that a zstd
frame may ask memory for.
"""

import importlib
import sys
import zlib
from types import ModuleType

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
    match encoding:
        case "gzip":
            return _gunzipped(raw, most_bytes)
        case "zstd":
            return _unzstd(raw, most_bytes)
    return raw


def too_large(most_bytes: int) -> Fault:
    return Fault(
        "body_size",
        f"body: at most {most_bytes:,} bytes; --max-body-bytes sets the limit",
        {"Connection": "close"},
    )


def _gunzipped(raw: bytes, most_bytes: int) -> bytes:
    pieces: list[bytes] = []
    total = 0
    while raw:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            piece = member.decompress(raw, most_bytes + 1 - total)
        except zlib.error:
            raise BodyError("body: not valid gzip data") from None
        pieces.append(piece)
        total += len(piece)
        if total > most_bytes:
            raise too_large(most_bytes)
        if not member.eof:
            raise BodyError("body: the gzip data ends too early")
        raw = member.unused_data
    return b"".join(pieces)


def _unzstd(raw: bytes, most_bytes: int) -> bytes:
    zstd = _zstd()
    pieces: list[bytes] = []
    total = 0
    while raw:
        frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
        try:
            piece = frame.decompress(raw, most_bytes + 1 - total)
            while not frame.eof and not frame.needs_input and total + len(piece) <= most_bytes:
                piece += frame.decompress(b"", most_bytes + 1 - total - len(piece))
        except zstd.ZstdError:
            raise BodyError(f"body: not valid zstd data with a window of at most {1 << WINDOW_LOG:,} bytes") from None
        pieces.append(piece)
        total += len(piece)
        if total > most_bytes:
            raise too_large(most_bytes)
        if not frame.eof:
            raise BodyError("body: the zstd data ends too early")
        raw = frame.unused_data
    return b"".join(pieces)


def _zstd() -> ModuleType:
    """The standard library's module where there is one, else the same from its backport."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
