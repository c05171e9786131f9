"""Bodies as they arrive: one JSON object, read strictly, refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.body import read_object, shown
from sysone_jax.errors import InputError
from sysone_jax.questions import MAX_DIGITS

CASES = {
    b"": "body: empty; send a JSON object",
    b" \r\n\t": "body: empty; send a JSON object",
    b"[]": "body: must be a JSON object, not an array",
    b'"text"': "body: must be a JSON object, not text",
    b"1": "body: must be a JSON object, not a number",
    b"1.5": "body: must be a JSON object, not a number",
    b"true": "body: must be a JSON object, not a boolean",
    b"null": "body: must be a JSON object, not null",
    b"{": "body: not valid JSON: Expecting property name enclosed in double quotes, at line 1 column 2",
    b'{"a": 1}}': "body: not valid JSON: Extra data, at line 1 column 9",
    b'{\n"a": tru}': "body: not valid JSON: Expecting value, at line 2 column 6",
    b'{"a": "\x01"}': "body: not valid JSON: Invalid control character at, at line 1 column 8",
    b'{"a": "\xff"}': "body: not UTF-8, at byte 7",
    b'{"a": "\xed\xa0\x80"}': "body: not UTF-8, at byte 7",
    '{"a": 1}'.encode("utf-16"): "body: not UTF-8, at byte 0",
    b'\xef\xbb\xbf{"a": 1}': "body: begins with a byte order mark; send UTF-8 without one",
    b'{"a": 1, "a": 1}': "body: duplicate key 'a'; its values cannot both count",
    b'{"a": [{"b": 1, "c": 2, "c": 3, "b": 4}]}': "body: duplicate key 'c'; its values cannot both count",
    b'{"\\ud800": 1, "\\ud800": 2}': "body: duplicate key '\\ud800'; its values cannot both count",
    b'{"a": NaN}': "body: NaN is not JSON; send null or text",
    b'{"a": [-Infinity]}': "body: -Infinity is not JSON; send null or text",
    b'{"a": 1e400}': "body: the number 1e400 is too large for a double; send it as text",
    b'{"a": ' + b"9" * 5000 + b"}": "body: an integer may have at most 4,300 digits; send it as text",
    b'{"a": -' + b"9" * 5000 + b"}": "body: an integer may have at most 4,300 digits; send it as text",
}


@pytest.mark.parametrize("raw", CASES, ids=lambda raw: repr(raw[:24]))
def test_refused(raw: bytes):
    with pytest.raises(InputError) as caught:
        read_object(raw)
    assert str(caught.value) == CASES[raw]
    assert caught.value.kind == "json"
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [10_000, 1_000_000])
def test_too_deep(bracket: bytes, depth: int):
    with pytest.raises(InputError, match="^body: at most 100 lists and objects inside one another; flatten it$"):
        read_object(b'{"state": ' + bracket * depth)


def test_the_longest_integer_is_read():
    digits = "9" * MAX_DIGITS
    assert read_object(f'{{"a": -{digits}}}'.encode()) == {"a": -int(digits)}


def test_an_echo_is_bounded():
    with pytest.raises(InputError) as caught:
        read_object(f'{{"{"k" * 100_000}": 1, "{"k" * 100_000}": 2}}'.encode())
    assert len(str(caught.value)) < 300
    assert len(shown("x" * 100_000)) < 210


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSONS), st.booleans())
def test_what_a_writer_writes_is_read_back(value: dict, ascii_only: bool):
    assert read_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes):
    try:
        value = read_object(raw)
    except InputError as error:
        assert str(error).startswith("body: ")
    else:
        assert value == json.loads(raw)
