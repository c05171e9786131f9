from __future__ import annotations

import json
import re
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysone_jax.errors import InputError
from sysone_jax.questions import (
    MAX_DEPTH,
    MAX_DIGITS,
    Choice,
    Limits,
    Noul,
    Option,
    Score,
    check_json,
    check_text,
    parse_questions,
)

LONE = "a\ud800"
CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "payments", "security": None}}
NOUL = {"type": "noul", "instructions": "Urgent?", "criteria": {"true": "money is moving"}}
SCORE = {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]}


def choice(criteria, **fields):
    return {"type": "choice", "criteria": criteria, **fields}


def noul(criteria, **fields):
    return {"type": "noul", "criteria": criteria, **fields}


def score(criteria, **fields):
    return {"type": "score", "criteria": criteria, **fields}


def named(count):
    return [f"option {index}" for index in range(count)]


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def refusal(raw, limits=None) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_questions(raw, limits or Limits())
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_wire_form_becomes_the_three_types_in_the_order_asked():
    questions = parse_questions({"tone": SCORE, "team": CHOICE, "urgent": NOUL}, Limits())
    assert list(questions) == ["tone", "team", "urgent"]
    assert questions["team"] == Choice("Which team?", {"billing": "payments", "security": None})
    assert questions["urgent"] == Noul("Urgent?", {"true": "money is moving"})
    assert questions["tone"] == Score("How upset?", ("calm", "annoyed", "furious"))
    assert [question.type for question in questions.values()] == ["score", "choice", "noul"]


def test_options_stand_in_request_order():
    assert Choice("", {"b": "x", "a": None, 3: {"k": 1}}).options == (
        Option("b", "x"),
        Option("a", None),
        Option("3", {"k": 1}),
    )
    assert Noul("", {"false": "n", "true": "y"}).options == (Option("yes", "y"), Option("no", "n"))
    assert Noul().options == (Option("yes", None), Option("no", None))
    assert Score("", ["low", 2, {"a": "b"}]).options == (
        Option("low", None),
        Option("2", None),
        Option("{'a': 'b'}", None),
    )


def test_an_absent_noul_side_is_not_a_null_one():
    questions = parse_questions({"a": noul({"true": None}), "b": noul({}), "c": noul(None)}, Limits())
    assert questions["a"].criteria == {"true": None}
    assert questions["b"].criteria == {}
    assert questions["c"].criteria is None


@pytest.mark.parametrize("question", [{"type": "noul"}, {"type": "noul", "instructions": None}, Noul(None)])
def test_no_instructions_are_empty_text(question):
    assert parse_questions({"q": question}, Limits())["q"] == Noul("")


@pytest.mark.parametrize("value", ["text", 5, 0.5, True, False, {"a": [1, None]}, [], ["x", {"y": None}], float("nan")])
def test_instructions_descriptions_and_levels_may_be_any_json(value):
    questions = parse_questions(
        {
            "c": choice({"a": value, "b": None}, instructions=value),
            "n": noul({"true": value, "false": value}, instructions=value),
            "s": score([value, "other"], instructions=value),
        },
        Limits(),
    )
    assert questions["c"] == Choice(value, {"a": value, "b": None})
    assert questions["n"] == Noul(value, {"true": value, "false": value})
    assert questions["s"] == Score(value, (value, "other"))


def test_a_caller_may_reuse_his_criteria():
    criteria, levels = {"a": None}, ["x", "y"]
    questions = parse_questions({"c": Choice("", criteria), "s": Score("", levels)}, Limits())
    criteria["b"] = None
    levels.append("z")
    assert questions["c"].criteria == {"a": None}
    assert questions["s"].criteria == ("x", "y")


def test_read_only_mappings_are_questions_too():
    raw = types.MappingProxyType(
        {"q": types.MappingProxyType({**CHOICE, "criteria": types.MappingProxyType({"a": 1})})}
    )
    assert parse_questions(raw, Limits()) == {"q": Choice("Which team?", {"a": 1})}


def test_names_may_be_empty_and_ids_blank():
    assert parse_questions({" ": choice({"": None})}, Limits()) == {" ": Choice("", {"": None})}


CHOICE_SHAPE = "question 'q': choice criteria must map option names to a description or null"
NOUL_SHAPE = "question 'q': noul criteria must be an object with true and false"
SCORE_SHAPE = "question 'q': score criteria must be an ordered list of levels"
DUPLICATE = "question 'q': duplicate option names"
SUPPORTED = "['choice', 'noul', 'score']"
OBJECT = "question 'q': must be an object with type, instructions and criteria"

REFUSED_QUESTIONS = [
    # question, message, kind, field below questions.q
    ({**NOUL, "x": 1}, "question 'q': unknown field(s) ['x']", "unknown_field", ".x"),
    ({**NOUL, "z": 1, "b": 2}, "question 'q': unknown field(s) ['b', 'z']", "unknown_field", ".b"),
    ({"type": "bogus"}, f"unknown question type 'bogus'; supported: {SUPPORTED}", "invalid", ".type"),
    ({"type": ""}, f"unknown question type ''; supported: {SUPPORTED}", "invalid", ".type"),
    ({}, f"question 'q': needs a type; supported: {SUPPORTED}", "missing", ".type"),
    ({"type": None}, f"question 'q': type must be text; supported: {SUPPORTED}", "type", ".type"),
    ({"type": ["noul"]}, f"question 'q': type must be text; supported: {SUPPORTED}", "type", ".type"),
    ("noul", OBJECT, "type", ""),
    (None, OBJECT, "type", ""),
    ([NOUL], OBJECT, "type", ""),
    ({"type": "noul", 1: 2}, "questions.q: the keys of an object must be text, not int", "type", ""),
    (choice({}), CHOICE_SHAPE, "invalid", ".criteria"),
    (Choice("x"), CHOICE_SHAPE, "invalid", ".criteria"),
    (choice(["a", "b"]), CHOICE_SHAPE, "type", ".criteria"),
    (choice(None), CHOICE_SHAPE, "type", ".criteria"),
    (choice("ab"), CHOICE_SHAPE, "type", ".criteria"),
    ({"type": "choice"}, CHOICE_SHAPE, "type", ".criteria"),
    (choice({None: "x"}), "question 'q': option names must be text, not NoneType", "type", ".criteria"),
    (choice({(1, 2): "x"}), "question 'q': option names must be text, not tuple", "type", ".criteria"),
    (choice({1: None, "1": None}), DUPLICATE, "invalid", ".criteria"),
    (Choice("x", {True: None, "True": None}), DUPLICATE, "invalid", ".criteria"),
    (score(["a", "b", "a"]), DUPLICATE, "invalid", ".criteria"),
    (score([1, "1"]), DUPLICATE, "invalid", ".criteria"),
    (score([["a"], "['a']"]), DUPLICATE, "invalid", ".criteria"),
    (noul({"yes": "x"}), NOUL_SHAPE, "unknown_field", ".criteria"),
    (noul({"true": "x", "maybe": "y"}), NOUL_SHAPE, "unknown_field", ".criteria"),
    (noul({True: "x"}), NOUL_SHAPE, "unknown_field", ".criteria"),
    (noul(["true", "false"]), NOUL_SHAPE, "type", ".criteria"),
    (noul("true"), NOUL_SHAPE, "type", ".criteria"),
    (Noul("x", {"yes": "x"}), NOUL_SHAPE, "unknown_field", ".criteria"),
    (score([]), SCORE_SHAPE, "invalid", ".criteria"),
    (score(["only"]), SCORE_SHAPE, "invalid", ".criteria"),
    (Score("x"), SCORE_SHAPE, "invalid", ".criteria"),
    (score({"0": "low", "1": "high"}), SCORE_SHAPE, "type", ".criteria"),
    (score("low high"), SCORE_SHAPE, "type", ".criteria"),
    (score({"low", "high"}), SCORE_SHAPE, "type", ".criteria"),
    (score(None), SCORE_SHAPE, "type", ".criteria"),
    ({"type": "score"}, SCORE_SHAPE, "type", ".criteria"),
    (score(["low", None]), "question 'q': score level 1 is null; give every level a name", "type", ".criteria.1"),
]


@pytest.mark.parametrize(("question", "message", "kind", "below"), REFUSED_QUESTIONS)
def test_a_wrong_question_is_refused_in_exact_words(question, message, kind, below):
    error = refusal({"first": NOUL, "q": question})
    assert (str(error), error.kind, error.field) == (message, kind, f"questions.q{below}")


@pytest.mark.parametrize(
    ("raw", "message", "kind"),
    [
        ({}, "questions: needs at least one question", "invalid"),
        ({"": NOUL}, "question ids must be non-empty", "invalid"),
        ({3: NOUL}, "question ids must be text, not int", "type"),
        ([NOUL], "questions: must be an object that maps each question id to its question", "type"),
        (None, "questions: must be an object that maps each question id to its question", "type"),
        ("q", "questions: must be an object that maps each question id to its question", "type"),
    ],
)
def test_a_wrong_set_of_questions_is_refused_in_exact_words(raw, message, kind):
    error = refusal(raw)
    assert (str(error), error.kind, error.field) == (message, kind, "questions")


def test_the_question_id_is_quoted_as_python_writes_it():
    assert str(refusal({"it's\n": choice([])})).startswith('question "it\'s\\n": choice criteria')


@pytest.mark.parametrize("count", [1, 26])
def test_as_many_options_as_the_limit(count):
    raw = {"q": choice(dict.fromkeys(named(count)))}
    assert len(parse_questions(raw, Limits())["q"].options) == count


@pytest.mark.parametrize("question", [choice(dict.fromkeys(named(27))), Choice("", dict.fromkeys(named(27)))])
def test_one_option_too_many(question):
    error = refusal({"q": question})
    assert str(error) == "question 'q': at most 26 options for this model"
    assert error.field == "questions.q.criteria"


@pytest.mark.parametrize("count", [2, 10])
def test_as_many_levels_as_the_limit(count):
    assert len(parse_questions({"q": score(named(count))}, Limits())["q"].options) == count


def test_one_level_too_many():
    error = refusal({"q": score(named(11))})
    assert str(error) == "question 'q': at most 10 options for this model"
    assert error.field == "questions.q.criteria"


def test_as_many_questions_as_the_limit():
    assert len(parse_questions(dict.fromkeys(named(64), NOUL), Limits())) == 64


def test_one_question_too_many():
    assert str(refusal(dict.fromkeys(named(65), NOUL))) == "questions: at most 64 for this model"


def test_no_limit_is_no_cap():
    limits = Limits(questions=None, options=None, levels=None, min_levels=1)
    raw = dict.fromkeys(named(65), NOUL)
    raw |= {"c": choice(dict.fromkeys(named(300))), "s": score(named(300)), "one": score(["only"])}
    questions = parse_questions(raw, limits)
    assert len(questions) == 68
    assert len(questions["c"].options) == len(questions["s"].options) == 300
    assert questions["one"].options == (Option("only", None),)


def test_a_model_that_asks_for_no_levels_still_needs_an_option():
    error = refusal({"q": score([])}, Limits(min_levels=0))
    assert str(error) == "question 'q': needs at least one option"
    assert error.field == "questions.q.criteria"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({LONE: NOUL}, "questions"),
        ({"q": {**NOUL, LONE: 1}}, "questions.q"),
        ({"q": noul(None, instructions=LONE)}, "questions.q.instructions"),
        ({"q": noul(None, instructions={"a": ["b", LONE]})}, "questions.q.instructions.a.1"),
        ({"q": noul(None, instructions=[{LONE: 1}])}, "questions.q.instructions.0"),
        ({"q": noul({"false": LONE})}, "questions.q.criteria.false"),
        ({"q": choice({LONE: None})}, "questions.q.criteria"),
        ({"q": choice({"a": LONE})}, "questions.q.criteria.a"),
        ({"q": choice({"a": {"deep": [LONE]}})}, "questions.q.criteria.a.deep.0"),
        ({"q": score(["low", LONE])}, "questions.q.criteria.1"),
        ({"q": Score("", ["low", {LONE: 1}])}, "questions.q.criteria.1"),
    ],
)
def test_a_lone_surrogate_is_refused_wherever_it_stands(raw, field):
    error = refusal(raw)
    assert error.field == field
    assert str(error) == (
        f"{field}: text must be valid Unicode, but character 1 is the lone surrogate '\\ud800'; "
        "remove it or send the whole pair"
    )
    str(error).encode()


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"q": noul(None, instructions={"a"})}, "questions.q.instructions"),
        ({"q": noul({"true": object})}, "questions.q.criteria.true"),
        ({"q": choice({"a": b"bytes"})}, "questions.q.criteria.a"),
        ({"q": score(["low", [1j]])}, "questions.q.criteria.1.0"),
    ],
)
def test_values_json_does_not_have_are_refused_in_questions(raw, field):
    error = refusal(raw)
    assert (error.kind, error.field) == ("type", field)
    assert "is not a JSON type" in str(error)


def test_an_option_name_too_long_to_print_is_refused():
    assert str(refusal({"q": choice({10**MAX_DIGITS: None})})) == (
        "questions.q.criteria: an integer may have at most 4,300 digits; send it as text"
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"q" * 100_000: choice([])},
        {"q": {**NOUL, "x" * 100_000: 1}},
        {"q": {"type": "x" * 100_000}},
        {"q": choice({"x" * 100_000: b""})},
        {"q": noul(None, instructions={"x" * 100_000: b""})},
    ],
)
def test_an_error_does_not_echo_a_long_request(raw):
    assert len(str(refusal(raw))) < 500


def test_check_text():
    check_text("plain", "state")
    check_text("\U0001f600 é", "state")
    with pytest.raises(InputError, match=re.escape(r"cache_salt: text must be valid Unicode")) as caught:
        check_text("\udc00", "cache_salt")
    assert caught.value.field == "cache_salt"


@pytest.mark.parametrize(
    ("value", "name", "field"),
    [
        ({1, 2}, "set", "state"),
        ({"a": b"x"}, "bytes", "state.a"),
        ([0, [object()]], "object", "state.1.0"),
        ({"a": {"b": (1j,)}}, "complex", "state.a.b.0"),
        (types.MappingProxyType({}), "mappingproxy", "state"),
    ],
)
def test_check_json_names_what_is_not_json(value, name, field):
    with pytest.raises(InputError) as caught:
        check_json(value, "state")
    assert (caught.value.kind, caught.value.field) == ("type", field)
    assert str(caught.value) == (
        f"{field}: {name} is not a JSON type; give text, a number, a boolean, null, a list or an object"
    )


def test_check_json_wants_text_keys():
    with pytest.raises(InputError) as caught:
        check_json({"a": [{1: 2}]}, "state")
    assert caught.value.field == "state.a.0"
    assert str(caught.value) == "state.a.0: the keys of an object must be text, not int"


def test_check_json_keeps_an_error_on_one_line():
    with pytest.raises(InputError) as caught:
        check_json({"a\nb": b""}, "state")
    assert caught.value.field == "state.a\nb"
    assert str(caught.value).startswith("state.a\\nb: bytes is not")


def test_check_json_takes_what_python_writes():
    check_json([float("nan"), float("inf"), -0.0, 10**MAX_DIGITS - 1, 1 - 10**MAX_DIGITS, None, True, (), {}], "state")


@pytest.mark.parametrize("sign", [1, -1])
def test_check_json_refuses_an_integer_that_python_cannot_print(sign):
    value = sign * 10**MAX_DIGITS
    with pytest.raises(ValueError, match="digits"):
        str(value)
    with pytest.raises(InputError) as caught:
        check_json({"n": [value]}, "state")
    assert caught.value.field == "state.n.0"
    assert str(caught.value) == "state.n.0: an integer may have at most 4,300 digits; send it as text"


def test_check_json_bounds_the_depth():
    check_json(nested(MAX_DEPTH), "state")
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(InputError) as caught:
            check_json(nested(depth), "state")
        assert caught.value.field == "state"
        assert str(caught.value) == "state: at most 100 lists and objects inside one another; flatten it"


def test_check_json_ends_on_a_value_inside_itself():
    value = {}
    value["self"] = [value, value]
    with pytest.raises(InputError, match="at most 100"):
        check_json(value, "state")


def test_a_deep_question_is_refused():
    deep = nested(100_000)
    for raw, field in [
        (noul(None, instructions=deep), "instructions"),
        (choice({"a": deep}), "criteria.a"),
        (noul({"true": deep}), "criteria.true"),
        (score(["low", deep]), "criteria.1"),
        ({"type": deep}, "type"),
    ]:
        assert refusal({"q": raw}).field == f"questions.q.{field}"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
WIRE_QUESTIONS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("choice"), "criteria": st.dictionaries(TEXT, JSON_VALUES, min_size=1, max_size=26)},
        optional={"instructions": JSON_VALUES},
    ),
    st.fixed_dictionaries(
        {"type": st.just("noul")},
        optional={
            "instructions": JSON_VALUES,
            "criteria": st.none() | st.fixed_dictionaries({}, optional={"true": JSON_VALUES, "false": JSON_VALUES}),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("score"), "criteria": st.lists(TEXT, min_size=2, max_size=10, unique=True)},
        optional={"instructions": JSON_VALUES},
    ),
)


@settings(deadline=None)
@given(st.dictionaries(TEXT.filter(bool), WIRE_QUESTIONS, min_size=1, max_size=5))
def test_every_right_question_is_read_whole_and_reading_it_again_changes_nothing(raw):
    questions = parse_questions(raw, Limits())
    assert list(questions) == list(raw)
    for qid, question in questions.items():
        sent = raw[qid]
        assert question.type == sent["type"]
        assert question.instructions is ("" if sent.get("instructions") is None else sent["instructions"])
        if question.type == "score":
            assert list(question.criteria) == sent["criteria"]
            assert [option.name for option in question.options] == sent["criteria"]
        else:
            assert repr(question.criteria) == repr(sent.get("criteria"))
    assert repr(parse_questions(questions, Limits())) == repr(questions)


@settings(deadline=None)
@given(JSON_VALUES)
def test_what_check_json_takes_can_be_written(value):
    check_json(value, "state")
    json.dumps(value, ensure_ascii=False, sort_keys=True).encode()


@settings(deadline=None)
@given(JSON_VALUES, st.characters(categories=["Cs"]), TEXT, st.data())
def test_check_json_finds_a_lone_surrogate_at_any_depth(value, surrogate, text, data):
    broken = surrogate + text
    for _ in range(data.draw(st.integers(0, 5))):
        broken = data.draw(st.sampled_from([[value, broken], {"k": broken, "v": value}]))
    with pytest.raises(InputError, match="valid Unicode"):
        check_json(broken, "state")
