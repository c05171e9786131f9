from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from odd_requests import odd_request
from tiny_tokenizer import write_tokenizer
from tokenizers import AddedToken, models, pre_tokenizers
from transformers import AutoTokenizer

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.prompts.labels import LABELS, LabelPrompts, question_text
from sysone_jax.questions import Choice, Limits, Noul, Score, parse_questions
from sysone_jax.text import Tokenizer

DATA = Path(__file__).parents[1] / "data"
FAMILIES = ("qwen3", "llama")

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


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(family):
    return Tokenizer.from_pretrained(DATA / "tokenizers" / family)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return LabelPrompts(tokenizer)


@pytest.fixture(scope="module")
def qwen():
    return LabelPrompts(Tokenizer.from_pretrained(DATA / "tokenizers" / "qwen3"))


def qwen_with(template):
    backend = tokenizers.Tokenizer.from_file(str(DATA / "tokenizers" / "qwen3" / "tokenizer.json"))
    return Tokenizer(backend, template, {})


def refused(call, **request):
    with pytest.raises(InputError) as caught:
        call(**request)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


# ---------------------------------------------------------------- against the reference


@pytest.mark.parametrize("rendering", ["reference", "escape"])
def test_recorded_prompts(tokenizer, prompts, family, rendering):
    """Ids and label ids of these questions as transformers and the tiny checkpoint's own tokenizer gave them."""
    cases = json.loads((DATA / "prompts" / "labels.json").read_text())[family]
    built = prompts.build(state=STATE, questions=QUESTIONS, rendering=rendering)
    assert list(built) == list(QUESTIONS)
    for case, prompt, question in zip(cases, built.values(), QUESTIONS.values(), strict=True):
        assert tokenizer.decode(prompt.ids) == case["text"]
        assert prompt.ids == tuple(case["input_ids"])
        assert prompt.label_ids == tuple(case["label_ids"])
        assert LABELS[question.type][: len(case["labels"])] == tuple(case["labels"])
        assert tokenizer.decode(prompt.ids[prompt.shared :]).startswith(("Question: ", "yes"))


def restated_content(state, raw):
    """The user's turn, restated from the description of the format and from the wire form."""
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    text += "\n\n"
    if raw["instructions"] is not None and str(raw["instructions"]) != "":
        text += "Question: " + str(raw["instructions"]) + "\n"
    criteria = raw["criteria"]
    if raw["type"] == "choice":
        for letter, (name, description) in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", criteria.items(), strict=False):
            text += f"{letter}: {name}"
            if description is not None and str(description) != "":
                text += f" - {description}"
            text += "\n"
        return text + "Answer with the letter of one option only."
    if raw["type"] == "score":
        for index, level in enumerate(criteria):
            text += f"{index}: {level}\n"
        return text + "Answer with the number of one level only."
    for label, side in (("yes", "true"), ("no", "false")):
        description = (criteria or {}).get(side)
        text += label if description is None or str(description) == "" else f"{label}: {description}"
        text += "\n"
    return text + "Answer with yes or no only."


def test_a_thousand_odd_requests_equal_transformers(tokenizer, prompts, family, tmp_path):
    reference = AutoTokenizer.from_pretrained(DATA / "tokenizers" / family)
    tokenizer.save(tmp_path)
    again = LabelPrompts(Tokenizer.load(tmp_path))
    control = set(reference.get_added_vocab().values())
    frame = {given: [t for t in tokenizer.chat("Hi", system=given) if t in control] for given in (None, "given")}
    spelled = 0
    for seed in range(1000):
        raw = odd_request(seed)
        request = {**raw, "questions": parse_questions(raw["questions"], Limits())}
        built = prompts.build(**request)
        assert built == again.build(**request)
        escaped = prompts.build(**request, rendering="escape")
        for qid, prompt in built.items():
            messages = [{"role": "user", "content": restated_content(raw["state"], raw["questions"][qid])}]
            if raw["instructions"]:
                messages.insert(0, {"role": "system", "content": raw["instructions"]})
            text = reference.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
            assert prompt.ids == tuple(reference.encode(text, add_special_tokens=False))

            expected = frame["given" if raw["instructions"] else None]
            assert [token for token in escaped[qid].ids if token in control] == expected
            if [token for token in prompt.ids if token in control] == expected:
                assert escaped[qid] == prompt
            else:
                spelled += 1
                decoded = tokenizer.decode(escaped[qid].ids)
                assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", text)
    assert spelled > 100


# ---------------------------------------------------------------- the question's text


@pytest.mark.parametrize(
    ("question", "lines"),
    [
        (Choice("", {"a": None}), ["A: a"]),
        (Choice(None, {"a": ""}), ["A: a"]),
        (Choice("Which?", {"a": "x", "b": 0}), ["Question: Which?", "A: a - x", "B: b - 0"]),
        (Choice({"ask": [1, None]}, {"a": {"k": True}}), ["Question: {'ask': [1, None]}", "A: a - {'k': True}"]),
        (Noul("Is it?"), ["Question: Is it?", "yes", "no"]),
        (Noul("", {"true": "sure"}), ["yes: sure", "no"]),
        (Noul("", {"true": None, "false": False}), ["yes", "no: False"]),
        (Score("", ["low", 5, {"k": None}]), ["0: low", "1: 5", "2: {'k': None}"]),
    ],
)
def test_question_text(question, lines):
    assert question_text(question).split("\n")[:-1] == lines
    assert question_text(question).split("\n")[-1].startswith("Answer with ")


def test_the_state_is_text_or_json_in_the_order_given(qwen):
    def opening(state):
        ids = qwen.build(state=state, questions={"q": Noul()})["q"].ids
        return qwen._tokenizer.decode(ids).removeprefix("<|im_start|>user\n").split("\n\nyes\n")[0]

    assert opening("as\nit is ") == "as\nit is "
    assert opening({"b": 1e-05, "a": [1e16, -0.0, "\u2603"]}) == '{"b": 1e-05, "a": [1e+16, -0.0, "\u2603"]}'
    assert opening(None) == "null"
    assert opening("") == ""


def test_instructions_are_a_system_turn(qwen):
    ids = qwen.build(state="s", questions={"q": Noul()}, instructions="Be kind.")["q"].ids
    assert qwen._tokenizer.decode(ids).startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\ns\n\n")
    for nothing in (None, ""):
        prompt = qwen.build(state="s", questions={"q": Noul()}, instructions=nothing)["q"]
        assert qwen._tokenizer.decode(prompt.ids).startswith("<|im_start|>user\ns\n\n")


# ---------------------------------------------------------------- what is shared


@pytest.mark.parametrize("rendering", ["reference", "escape"])
def test_the_split_depends_on_the_state_and_never_on_siblings(prompts, rendering):
    for seed in range(60):
        raw = odd_request(seed)
        questions = {**parse_questions(raw["questions"], Limits()), **QUESTIONS}
        common = {"state": raw["state"], "instructions": raw["instructions"], "rendering": rendering}
        together = prompts.build(**common, questions=questions)
        for qid, question in questions.items():
            assert prompts.build(**common, questions={qid: question})[qid] == together[qid]
        lengths = {prompt.shared for prompt in together.values()}
        assert len(lengths) == 1
        shared = lengths.pop()
        assert len({prompt.ids[:shared] for prompt in together.values()}) == 1
        assert all(0 < shared < len(prompt.ids) for prompt in together.values())


def test_questions_that_begin_alike_are_not_shared_further(qwen):
    alike = {"a": Noul("Is it red?"), "b": Noul("Is it red or blue?")}
    built = qwen.build(state="A ball.", questions=alike)
    assert qwen._tokenizer.decode(built["a"].ids[built["a"].shared :]).startswith("Question: Is it red?")
    same = qwen.build(state="A ball.", questions={"a": alike["a"], "b": alike["a"]})
    assert same["a"] == same["b"] == built["a"]


def test_no_questions_no_prompts(qwen):
    assert qwen.build(state="s", questions={}) == {}


# ---------------------------------------------------------------- chat options


def test_thinking_must_be_off(qwen):
    error = refused(
        qwen.build, state="s", questions=QUESTIONS, chat_template_kwargs={"enable_thinking": True, "tools": []}
    )
    assert str(error) == "a read is the reply's first token, so thinking must be off"
    off = qwen.build(state="s", questions=QUESTIONS, chat_template_kwargs={"enable_thinking": False, "unread": 1})
    assert off == qwen.build(state="s", questions=QUESTIONS)


@pytest.mark.parametrize("kwargs", [{"prefill": "Sure, "}, {"prefill": "\n"}, {"enable_thinking": 0}])
def test_options_that_end_the_prompt_differently(kwargs):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>{{ '\n\n' }}{% endif %}"
        "{{ prefill }}"
    )
    prompts = LabelPrompts(qwen_with(template))
    error = refused(prompts.build, state="s", questions=QUESTIONS, chat_template_kwargs=kwargs)
    assert str(error) == "these chat options end the prompt differently, so the labels' tokens are unknown"
    assert error.field == "chat_template_kwargs"


@pytest.mark.parametrize(
    "kwargs",
    ["x", 5, [1], {"messages": []}, {"tokenize": True}, {"add_generation_prompt": False}, {"eos_token": "x"}, {1: 2}],
)
def test_hostile_options(qwen, kwargs):
    assert "chat_template_kwargs" in str(
        refused(qwen.build, state="s", questions=QUESTIONS, chat_template_kwargs=kwargs)
    )


# ---------------------------------------------------------------- labels


def test_every_label_of_a_written_tokenizer_is_one_token(family, tmp_path):
    write_tokenizer(tmp_path, family)
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    questions = {
        "letters": Choice("", {f"option {index}": None for index in range(26)}),
        "digits": Score("", [f"level {index}" for index in range(10)]),
        "words": Noul(),
    }
    built = LabelPrompts(tokenizer).build(state="s", questions=questions)
    for qid, question in questions.items():
        labels = LABELS[question.type]
        assert [tokenizer.decode([token]) for token in built[qid].label_ids] == list(labels)


def test_more_options_than_labels(qwen):
    many = {"q": Choice("", {f"option {index}": None for index in range(27)})}
    assert str(refused(qwen.build, state="s", questions=many)) == "question 'q': at most 26 options for this model"
    many = {"q": Score("", [f"level {index}" for index in range(11)])}
    assert "at most 10 options" in str(refused(qwen.build, state="s", questions=many))


def letters_tokenizer(words, template, merges=()):
    """A tokenizer of single characters, so that ``yes`` is one token only where ``words`` has it."""
    vocabulary = {word: index for index, word in enumerate([*pre_tokenizers.ByteLevel.alphabet(), *words])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<turn>", normalized=False)])
    return Tokenizer(backend, template, {})


def test_labels_that_are_not_one_token():
    prompts = LabelPrompts(letters_tokenizer(["no"], "{{ messages[0].content }}<turn>", [("n", "o")]))
    assert len(prompts.build(state="s", questions={"q": QUESTIONS["topic"]})["q"].label_ids) == 4
    error = refused(prompts.build, state="s", questions={"q": Noul()})
    assert str(error) == "label 'yes' is not one distinct token after this model's chat prompt"
    assert error.field == "questions.q"


def test_labels_that_the_prompts_end_swallows():
    # "(A" is one token, so after "(" there is no token for A.
    tokenizer = letters_tokenizer(["(A"], "{{ messages[0].content }}<turn>(", [("(", "A")])
    error = refused(LabelPrompts(tokenizer).build, state="s", questions={"q": QUESTIONS["topic"]})
    assert "label 'A'" in str(error)


# ---------------------------------------------------------------- templates


def test_a_template_without_added_tokens(qwen):
    tokenizer = qwen_with("{{ messages[-1].content }}\nReply:{{ '\n' }}")
    built = LabelPrompts(tokenizer).build(state=STATE, questions=QUESTIONS)
    usual = qwen.build(state=STATE, questions=QUESTIONS)
    for qid, prompt in built.items():
        assert tokenizer.decode(prompt.ids).endswith("only.\nReply:\n")
        assert prompt.label_ids == usual[qid].label_ids
        assert prompt.shared > 0
    escaped = LabelPrompts(tokenizer).build(state="<|im_end|>", questions=QUESTIONS, rendering="escape")
    assert all(not tokenizer.added_ids & set(prompt.ids) for prompt in escaped.values())


def test_a_template_whose_last_added_token_ends_it(qwen):
    tokenizer = qwen_with("{{ messages[-1].content }}<|im_start|>")
    built = LabelPrompts(tokenizer).build(state=STATE, questions=QUESTIONS)
    assert built["topic"].label_ids == qwen.build(state=STATE, questions=QUESTIONS)["topic"].label_ids


def test_templates_that_cannot_ask():
    for template in (None, "<|im_start|>always the same", "{% for %}", "{{ ''.__class__.__mro__ }}"):
        with pytest.raises(CheckpointError) as caught:
            LabelPrompts(qwen_with(template))
        assert len(str(caught.value).splitlines()) == 1


def test_values_that_are_not_json_name_their_field(qwen):
    for request in (
        {"state": object(), "questions": QUESTIONS},
        {"state": "s", "questions": {"q": Noul(object())}},
        {"state": "s", "questions": {"q": Noul("", {"true": b"x"})}},
        {"state": "\ud800", "questions": QUESTIONS},
    ):
        assert refused(qwen.build, **request).field.startswith(("state", "questions.q"))
