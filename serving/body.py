"""A request's body as it arrives: bytes that must be one JSON object, read strictly.

What a lenient reader would change without a word is refused here by name: a key that stands twice (one value would be
lost), NaN and the infinities (no JSON), a number that would become infinite, bytes that are not UTF-8.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from sysone_jax.errors import InputError, shown
from sysone_jax.questions import MAX_DEPTH, MAX_DIGITS

_SHOWN = 200


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``.

    Raises:
        BodyError: the message begins with ``body:``.
    """
    if not raw.strip():
        refuse("body: empty; send a JSON object")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(f"body: not UTF-8, at byte {error.start}", error.start)
    if text.startswith("\ufeff"):
        refuse("body: begins with a byte order mark; send UTF-8 without one")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        refuse(f"body: not valid JSON: {error.msg}, at line {error.lineno} column {error.colno}", error.pos)
    except RecursionError:
        refuse(f"body: at most {MAX_DEPTH} lists and objects inside one another; flatten it")
    if not isinstance(value, dict):
        refuse(f"body: must be a JSON object, not {_NAMES[type(value)]}")
    return value


class BodyError(InputError):
    """Bytes that are no JSON object of ours, of kind ``json``; ``position`` is the byte or character at fault."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message, kind="json")
        self.position = position


def refuse(message: str, position: int = 0) -> NoReturn:
    raise BodyError(message, position) from None


_NAMES = {list: "an array", str: "text", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        refuse(f"body: duplicate key {shown(_first_repeated([key for key, _ in pairs]))}; its values cannot both count")
    return found


def _first_repeated(keys: Sequence[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise ValueError("all keys are distinct")


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        refuse(f"body: an integer may have at most {MAX_DIGITS:,} digits; send it as text")
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        refuse(f"body: the number {digits[:_SHOWN]} is too large for a double; send it as text")
    return number


def _constant(name: str) -> NoReturn:
    refuse(f"body: {name} is not JSON; send null or text")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
