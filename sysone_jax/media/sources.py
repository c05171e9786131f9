"""Where an item's bytes come from: a data URL, bytes, or a file. Its size is checked before it is read or decoded."""

from __future__ import annotations

import binascii
import importlib
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

from sysone_jax.errors import InputError


def fault(name: str, message: str) -> InputError:
    """The error of one item, ``name`` being its place in the request: ``images[2]``."""
    return InputError(f"{name}: {message}", kind="media", field=name.replace("[", ".").replace("]", ""))


def load_extra(module: str, name: str) -> ModuleType:
    """A module of the ``media`` extra; InputError with the command that installs it where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{name}: this installation cannot read media; pip install 'sysone-jax[media]' adds what it needs",
            kind="unsupported",
            field=name.partition("[")[0],
        ) from None


def read_bytes(source: Any, name: str, *, plural: str, types: dict[str, str], max_bytes: int, files: bool) -> bytes:
    """The bytes of one item.

    Args:
        source: a data URL (``data:image/png;base64,...``), bytes, or a ``pathlib.Path``.
        name: the item's place, for messages: ``images[2]``.
        plural: what items of the kind are called: ``images``.
        types: media type -> what people call it, of those a data URL may declare.
        max_bytes: most bytes of the file.
        files: whether a text that is no data URL is the path of a file. A server must say no: its texts are strangers'.
    """
    kind = plural.removesuffix("s")
    if isinstance(source, bytes | bytearray | memoryview):
        _check_size(memoryview(source).nbytes, name, kind, max_bytes)
        return bytes(source)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _decode_url(source, name, plural, types, max_bytes)
    if isinstance(source, Path) or (files and isinstance(source, str) and "://" not in source):
        return _read_file(Path(source), name, kind, max_bytes)
    if isinstance(source, str):
        where = ", bytes or the path of a file" if files else ""
        raise fault(name, f"{plural} must be base64 {_listed(types)} data URLs{where}; other URLs are not fetched")
    raise fault(name, f"{plural} must be data URLs, bytes or paths, not {type(source).__name__}")


def _decode_url(url: str, name: str, plural: str, types: dict[str, str], max_bytes: int) -> bytes:
    head, _, payload = url.partition(",")
    if head.lower() not in {f"data:{declared};base64" for declared in types}:
        raise fault(name, f"{plural} must be base64 {_listed(types)} data URLs")
    kind = plural.removesuffix("s")
    _check_size(len(payload) * 3 // 4 - payload[-2:].count("="), name, kind, max_bytes)
    try:
        return binascii.a2b_base64(payload, strict_mode=True)
    except ValueError:  # binascii.Error is one, and so is what a character outside ASCII raises
        raise fault(name, f"invalid base64 {kind} data") from None


def _read_file(path: Path, name: str, kind: str, max_bytes: int) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise fault(name, f"{str(path)!r} is not a file")
        _check_size(status.st_size, name, kind, max_bytes)
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise fault(name, f"{str(path)!r} cannot be read: {reason}") from None


def _check_size(size: int, name: str, kind: str, max_bytes: int) -> None:
    if size > max_bytes:
        raise fault(name, f"each {kind} must be at most {max_bytes:,} bytes; this one has {size:,}")
    if size <= 0:
        raise fault(name, f"the {kind} is empty")


def _listed(types: dict[str, str]) -> str:
    names = list(dict.fromkeys(types.values()))
    return f"{', '.join(names[:-1])} or {names[-1]}"
