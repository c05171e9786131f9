from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from odd_requests import odd_request
from transformers import AutoTokenizer

from sysone_jax.errors import InputError
from sysone_jax.media.embedding import Embedding
from sysone_jax.media.request import NOTHING, Media
from sysone_jax.prompts import joint_schema
from sysone_jax.prompts.placeholders import Placeholders
from sysone_jax.questions import Choice, Limits, Noul, Score, parse_questions
from sysone_jax.text import Tokenizer

DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "tokenizers" / "clef_flash"

STATE = {"customer": "I was charged twice for order 4471 and want a refund today!", "plan": "pro", "days": 12}
QUESTIONS = {
    "topic": Choice(
        "What is the message about?",
        {
            "billing": "Money, invoices, refunds",
            "bug_report": None,
            "shipping": "Where the order is",
            "other": None,
        },
    ),
    "refund": Noul(
        "Is a refund requested?", {"true": "The customer wants money back", "false": "No money is asked for"}
    ),
    "urgency": Score("How urgent is it?", ["Can wait", "This week", "Today"]),
    "angry": Noul(),
}
CASES = {"joint": list(QUESTIONS), "single": ["topic"], "noul_only": ["refund", "angry"]}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_pretrained(FOLDER)


def build(tokenizer, state, questions, **options):
    return joint_schema.build(tokenizer, state=state, questions=questions, **{"max_length": 16384, **options})


def text_of(tokenizer, prompt, spans):
    return [tokenizer.decode(prompt.ids[start:end]) for start, end in spans]


def options_of(tokenizer, question):
    prompt = build(tokenizer, "s", {"q": question})
    return [json.loads(text) for text in text_of(tokenizer, prompt, prompt.option_spans)], prompt.orders[0]


def refused(call, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


# ---------------------------------------------------------------- against the reference


@pytest.mark.parametrize("rendering", ["reference", "escape"])
@pytest.mark.parametrize("case", CASES)
def test_recorded_prompts(tokenizer, case, rendering):
    """Ids, spans and orders of these questions as the reference's encoder gave them with a tiny tokenizer."""
    recorded = json.loads((DATA / "prompts" / "joint_schema.json").read_text())[case]
    prompt = build(tokenizer, STATE, {qid: QUESTIONS[qid] for qid in CASES[case]}, rendering=rendering)
    assert list(prompt.ids) == recorded["input_ids"]
    assert list(prompt.types) == recorded["types"]
    assert [list(span) for span in prompt.question_spans] == recorded["question_spans"]
    assert [list(span) for span in prompt.option_spans] == recorded["option_spans"]
    assert [list(order) for order in prompt.orders] == recorded["orders"]
    assert prompt.truncated_tokens == 0


def test_the_whole_prompt_in_words(tokenizer):
    questions = {
        "team": Choice("Which team?", {"sales": None, "billing": "Payments"}),
        "urgent": Noul("", {"true": None}),
        "tone": Score({"ask": "How calm?"}, ["calm", {"b": 1, "a": [None]}]),
    }
    prompt = build(tokenizer, {"b": 1e-05, "a": "\u2603"}, questions)
    assert tokenizer.decode(prompt.ids) == (
        "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. Each answer must be "
        "exactly one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n"
        '{"a":"\u2603","b":1e-05}'
        "\n\nSCHEMA FIELDS:\n"
        "\nFIELD 1\nID: team\nTYPE: choice\nINSTRUCTION: Which team?\nALLOWED OPTIONS:\n"
        'OPTION 1: {"description":"Payments","option_id":"billing"}\n'
        'OPTION 2: {"option_id":"sales"}\n'
        "END FIELD\n"
        "\nFIELD 2\nID: urgent\nTYPE: noul\nINSTRUCTION: urgent\nALLOWED OPTIONS:\n"
        'OPTION 1: {"option_id":"true"}\n'
        'OPTION 2: {"description":"The proposition is false or the answer is no.","option_id":"false"}\n'
        "END FIELD\n"
        '\nFIELD 3\nID: tone\nTYPE: score\nINSTRUCTION: {"ask":"How calm?"}\nALLOWED OPTIONS:\n'
        'OPTION 1: {"description":"calm","option_id":"0"}\n'
        'OPTION 2: {"description":{"a":[null],"b":1},"option_id":"1"}\n'
        "END FIELD\n"
        "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"
    )
    assert prompt.types == (1, 0, 2)
    assert prompt.orders == ((1, 0), (0, 1), (0, 1))


def restated_pieces(raw, media=NOTHING):
    """(piece, role) in order, restated from the description of the format and from the wire form."""

    def rendered(value):
        if isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    pieces = [
        (
            "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. Each answer must be "
            "exactly one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n",
            "fixed",
        ),
        (restated_media(media), "fixed"),
        (rendered(raw["state"]), "state"),
        ("\n\nSCHEMA FIELDS:\n", "schema"),
    ]
    orders = []
    for n, (qid, question) in enumerate(raw["questions"].items()):
        instructions, criteria = question["instructions"], question.get("criteria")
        pieces.append((f"\nFIELD {n + 1}\nID: {qid}\nTYPE: {question['type']}\nINSTRUCTION: ", "schema"))
        asked = rendered(instructions) if instructions not in (None, "") else qid
        pieces += [(asked, "question"), ("\nALLOWED OPTIONS:\n", "schema")]
        if question["type"] == "noul":
            options = {
                "true": "The proposition is true or the answer is yes.",
                "false": "The proposition is false or the answer is no.",
            }
            options.update(criteria or {})
            orders.append((0, 1))
        elif question["type"] == "choice":
            options = dict(sorted(criteria.items(), key=lambda item: item[0]))
            orders.append(tuple(list(criteria).index(name) for name in options))
        else:
            options = {str(index): level for index, level in enumerate(criteria)}
            orders.append(tuple(range(len(criteria))))
        for m, (name, description) in enumerate(options.items()):
            body = {"option_id": name} if description is None else {"option_id": name, "description": description}
            pieces += [(f"OPTION {m + 1}: ", "schema"), (rendered(body), "option"), ("\n", "schema")]
        pieces.append(("END FIELD\n", "schema"))
    pieces.append(("\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:", "fixed"))
    return pieces, tuple(orders)


def restated_media(media):
    """What the processor makes of one placeholder for each image and each video, on one line."""
    text = "".join(f"<|vision_start|>{'<|image_pad|>' * item.tokens}<|vision_end|>" for item in media.images)
    for item in media.videos:
        pads = "<|video_pad|>" * (item.tokens // len(item.seconds))
        frames = "".join(f"<{at:.1f} seconds><|vision_start|>{pads}<|vision_end|>" for at in item.seconds)
        text += f"<|vision_start|>{frames}<|vision_end|>"
    return f"{text}\n" if text else ""


def odd_media(seed):
    """Up to two images and two videos of odd sizes, some of the time none."""
    rng = random.Random(seed)

    def item(frames, *seconds):
        rows, columns = 2 * rng.randint(1, 4), 2 * rng.randint(1, 4)
        return Embedding(np.zeros((frames * rows * columns // 4, 1), np.float32), (frames, rows, columns), seconds)

    videos = [[rng.uniform(0, 4000) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(0, 2))]
    return Media(tuple(item(1) for _ in range(rng.randint(0, 2))), tuple(item(len(at), *at) for at in videos))


def test_a_thousand_odd_requests_with_media_equal_the_pieces(tokenizer):
    """Under ``escape``, in which text that spells a placeholder is no placeholder."""
    reference = AutoTokenizer.from_pretrained(FOLDER)
    placeholders = Placeholders.of(tokenizer, merge=2)
    compared = 0
    for seed in range(1000):
        raw, media = odd_request(seed), odd_media(seed)
        questions = parse_questions(raw["questions"], Limits())
        options = {"max_length": 10**6, "media": media, "placeholders": placeholders}
        escaped = build(tokenizer, raw["state"], questions, rendering="escape", **options)
        shown = reference.encode(restated_media(media), add_special_tokens=False)
        opening = len(reference.encode(joint_schema.PREFIX, add_special_tokens=False))
        assert list(escaped.ids[opening : opening + len(shown)]) == shown
        plain = build(tokenizer, raw["state"], questions, max_length=10**6, rendering="escape")
        assert escaped.ids[:opening] + escaped.ids[opening + len(shown) :] == plain.ids
        try:
            prompt = build(tokenizer, raw["state"], questions, **options)
        except InputError as error:  # the request's text spells a placeholder
            assert "literal image or video placeholder" in str(error) and media
            continue
        ids, spans = [], []
        for piece, role in restated_pieces(raw, media)[0]:
            start = len(ids)
            ids += reference.encode(piece, add_special_tokens=False)
            if role == "option":
                spans.append((start, len(ids)))
        assert (prompt.ids, prompt.option_spans) == (tuple(ids), tuple(spans))
        compared += bool(media)
    assert compared > 500


def test_a_thousand_odd_requests_equal_the_pieces(tokenizer):
    reference = AutoTokenizer.from_pretrained(FOLDER)
    control = set(reference.get_added_vocab().values())
    spelled = 0
    for seed in range(1000):
        raw = odd_request(seed)
        questions = parse_questions(raw["questions"], Limits())
        prompt = build(tokenizer, raw["state"], questions, max_length=10**6)
        escaped = build(tokenizer, raw["state"], questions, max_length=10**6, rendering="escape")
        pieces, orders = restated_pieces(raw)
        ids, question_spans, option_spans = [], [], []
        for piece, role in pieces:
            start = len(ids)
            ids += reference.encode(piece, add_special_tokens=False)
            if role == "question":
                question_spans.append((start, len(ids)))
            elif role == "option":
                option_spans.append((start, len(ids)))
        assert prompt.ids == tuple(ids)
        assert prompt.question_spans == tuple(question_spans)
        assert prompt.option_spans == tuple(option_spans)
        assert prompt.orders == escaped.orders == orders
        assert prompt.types == tuple({"noul": 0, "choice": 1, "score": 2}[q.type] for q in questions.values())

        # Escaped, the same words stand in the same spans, and the template's seven control tokens are the only ones.
        framing = [token for token in escaped.ids if token in control]
        assert tokenizer.decode(framing) == "<|im_start|><|im_end|><|im_start|><|im_end|><|im_start|><think></think>"
        for role, spans in (("question", escaped.question_spans), ("option", escaped.option_spans)):
            wanted = [unicodedata.normalize("NFC", piece) for piece, of in pieces if of == role]
            assert [unicodedata.normalize("NFC", text) for text in text_of(tokenizer, escaped, spans)] == wanted
        if [token for token in prompt.ids if token in control] == framing:
            assert escaped == prompt
        else:
            spelled += 1
    assert spelled > 100


COUNTED = json.loads((DATA / "prompts" / "clef_counts.json").read_text())


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case["name"])
def test_prompts_have_the_tokens_that_a_hosted_clef_counted(case):
    """Recorded requests, under the part of Qwen3.5's vocabulary that they use: other merges never apply to them."""
    counting = Tokenizer.from_pretrained(DATA / "tokenizers" / "clef_counts")
    request = case["request"]
    prompt = build(counting, request["state"], parse_questions(request["questions"], Limits()))
    assert len(prompt.ids) == case["input_tokens"]
    pieces = [piece for piece, _ in restated_pieces(request)[0] if piece]
    assert sum(len(counting.encode(piece)) for piece in pieces) == case["input_tokens"]
    if case["name"] == "blog":
        assert (len(pieces), case["input_tokens"]) == (43, 346)


# ---------------------------------------------------------------- options and instructions


def test_choice_options_stand_by_code_point(tokenizer):
    names = ["b", "a", "B", "\u00e9", "Z", "10", "9", "\U0001f389", "\uffee"]
    options, order = options_of(tokenizer, Choice("", dict.fromkeys(names)))
    assert [option["option_id"] for option in options] == sorted(names)
    assert [names[index] for index in order] == sorted(names)


@pytest.mark.parametrize(
    ("criteria", "yes", "no"),
    [
        (None, "The proposition is true or the answer is yes.", "The proposition is false or the answer is no."),
        ({}, "The proposition is true or the answer is yes.", "The proposition is false or the answer is no."),
        ({"false": "never"}, "The proposition is true or the answer is yes.", "never"),
        ({"false": "never", "true": None}, None, "never"),
        ({"true": "", "false": {"b": 1, "a": 2}}, "", {"a": 2, "b": 1}),
    ],
)
def test_noul_sides(tokenizer, criteria, yes, no):
    options, order = options_of(tokenizer, Noul("", criteria))
    assert order == (0, 1)  # `Noul.options` is (yes, no), and true stands first
    assert [option["option_id"] for option in options] == ["true", "false"]
    assert [option.get("description") for option in options] == [yes, no]
    assert ("description" in options[0]) == (yes is not None)


def test_levels_keep_their_json(tokenizer):
    levels = ["calm", 5, {"b": [1], "a": None}, None]
    options, order = options_of(tokenizer, Score("", levels))
    assert [option.get("description") for option in options] == levels
    assert [option["option_id"] for option in options] == ["0", "1", "2", "3"]
    assert order == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("instructions", "asked"),
    [
        ("Why?", "Why?"),
        ("", "the id"),
        (None, "the id"),
        ([], "[]"),
        ({}, "{}"),
        (" ", " "),
        (0, "0"),
        (False, "false"),
        ({"b": 1, "a": [None, "\u2603"]}, '{"a":[null,"\u2603"],"b":1}'),
    ],
)
def test_instructions(tokenizer, instructions, asked):
    prompt = build(tokenizer, "s", {"the id": Noul(instructions)})
    assert text_of(tokenizer, prompt, prompt.question_spans) == [asked]


# ---------------------------------------------------------------- length


def test_a_state_that_fits_exactly_is_read_whole(tokenizer):
    whole = build(tokenizer, "word " * 50, QUESTIONS)
    assert build(tokenizer, "word " * 50, QUESTIONS, max_length=len(whole.ids)) == whole


def test_a_state_that_does_not_fit(tokenizer):
    state = "one two three four " * 20
    whole = build(tokenizer, state, QUESTIONS)
    length = len(whole.ids) - 7
    error = refused(build, tokenizer, state, QUESTIONS, max_length=length)
    tokens = len(tokenizer.encode(state))
    assert error.kind == "too_long"
    assert error.field == "state"
    for part in (f"has {tokens} tokens", f"room for {tokens - 7}", "set overlong to truncate"):
        assert part in str(error)

    cut = build(tokenizer, state, QUESTIONS, max_length=length, overlong="truncate")
    assert len(cut.ids) == length
    assert cut.truncated_tokens == 7
    start = len(tokenizer.encode(joint_schema.PREFIX)) + tokens
    assert cut.ids == whole.ids[: start - 7] + whole.ids[start:]
    assert cut.option_spans == tuple((first - 7, end - 7) for first, end in whole.option_spans)
    for spans in ("question_spans", "option_spans"):
        assert text_of(tokenizer, cut, getattr(cut, spans)) == text_of(tokenizer, whole, getattr(whole, spans))


def test_questions_that_leave_no_room(tokenizer):
    bare = build(tokenizer, "", QUESTIONS)
    fixed = len(bare.ids)
    assert build(tokenizer, "", QUESTIONS, max_length=fixed) == bare
    empty = build(tokenizer, "a state", QUESTIONS, max_length=fixed, overlong="truncate")
    assert empty.ids == bare.ids
    assert empty.truncated_tokens == len(tokenizer.encode("a state"))
    for overlong in ("refuse", "truncate"):
        error = refused(build, tokenizer, "a state", QUESTIONS, max_length=fixed - 1, overlong=overlong)
        assert str(error) == f"schema requires {fixed} tokens before state; maximum is {fixed - 1}"
        assert error.kind == "too_long"


# ---------------------------------------------------------------- what is refused


def test_words_that_are_no_setting(tokenizer):
    assert "overlong" in str(refused(build, tokenizer, "s", QUESTIONS, overlong="cut"))
    assert "rendering" in str(refused(build, tokenizer, "s", QUESTIONS, rendering="none"))


@pytest.mark.parametrize(
    ("state", "questions", "field"),
    [
        (object(), QUESTIONS, "state"),
        ({"a": {1: 2}}, QUESTIONS, "state.a"),
        ("\ud800", QUESTIONS, "state"),
        ("s", {"q": Noul(object())}, "questions.q.instructions"),
        ("s", {"q": Choice("", {"a": b"x"})}, "questions.q.criteria"),
    ],
)
def test_values_that_are_not_json_name_their_field(tokenizer, state, questions, field):
    assert refused(build, tokenizer, state, questions).field.startswith(field)
