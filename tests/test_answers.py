from __future__ import annotations

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysone_jax.answers import CONFIDENCES, Read, answer, confidence, softmax
from sysone_jax.errors import InputError, NonFiniteError
from sysone_jax.questions import Choice, Noul, Score


def choice(count):
    return Choice("", {f"option {index}": None for index in range(count)})


def score(count):
    return Score("", [f"level {index}" for index in range(count)])


def topped(top, count):
    """A read whose first option has probability ``top`` and whose others share the rest."""
    return (top, *[(1 - top) / (count - 1)] * (count - 1))


# Answers of running services: the probabilities and the confidence that each showed, rounded as it rounded, beside the
# value of the formula for those probabilities.
SHOWN_DISTANCES = [
    # question, probabilities, formula, shown, rounding of the shown numbers
    (choice(3), (0.31, 0.67, 0.02), 0.505, 0.5, 0.015),
    (score(3), (0, 0.95, 0.05), 0.925, 0.92, 0.015),
    (choice(3), (0.0041, 0.9930, 0.0029), 0.9895, 0.9895, 1e-4),
    (score(3), (0.0575, 0.3524, 0.5901), 0.2989, 0.2989, 1e-4),
    (score(4), (0, 0.05, 0.47, 0.48), 0.43, 0.43, 1e-12),
    (score(6), (0, 0.01, 0.09, 0.5, 0.37, 0.03), 0.64, 0.64, 1e-12),
    (score(4), (0.43, 0.05, 0.13, 0.39), 0, 0, 0),
    (choice(3), (0.18, 0.82, 0), 0.73, 0.73, 1e-12),
    (choice(3), (0.09, 0.91, 0), 0.865, 0.87, 0.015),
    (choice(4), topped(0.98, 4), 0.9733, 0.97, 0.015),
    (choice(5), topped(0.42, 5), 0.275, 0.29, 0.0151),
    (choice(6), topped(0.56, 6), 0.472, 0.47, 0.015),
    (choice(2), (1, 0), 1, 1, 0),
    (score(3), (0, 1, 0), 1, 1, 0),
    (score(2), (0.03, 0.97), 0.94, 0.94, 1e-12),
    (score(3), (0, 0.25, 0.75), 0.625, 0.62, 0.015),
    (score(3), (0.02, 0.64, 0.34), 0.46, 0.46, 1e-12),
    (score(3), (0, 0.33, 0.67), 0.505, 0.5, 0.015),
    (choice(4), topped(0.86, 4), 0.8133, 0.81, 0.015),
    (choice(7), topped(0.81, 7), 0.7783, 0.77, 0.015),
    (choice(7), topped(0.35, 7), 0.2417, 0.25, 0.015),
    (choice(7), topped(0.36, 7), 0.2533, 0.26, 0.015),
    (choice(7), topped(0.74, 7), 0.6967, 0.69, 0.015),
    (choice(2), (0.9998840806664074, 1 - 0.9998840806664074), 0.9997681613328149, 0.9997681613328149, 0),
    (choice(3), topped(0.88, 3), 0.82, 0.81, 0.015),
    (score(3), (0.06, 0.94, 0), 0.91, 0.91, 1e-12),
]


@pytest.mark.parametrize(("question", "probabilities", "formula", "shown", "rounding"), SHOWN_DISTANCES)
def test_distance_reproduces_the_services_that_show_it(question, probabilities, formula, shown, rounding):
    found = confidence("distance", question, Read(probabilities))
    assert found == pytest.approx(formula, abs=5e-5 if rounding else 0)
    assert found == pytest.approx(shown, abs=rounding)


@pytest.mark.parametrize(("count", "spread"), [(2, 0.5), (3, 2 / 3), (4, 1), (5, 1.2), (6, 1.5), (10, 2.5)])
def test_a_score_distance_divides_by_the_mean_distance_of_a_uniform_answer(count, spread):
    assert spread == pytest.approx(sum(abs(i - (count - 1) / 2) for i in range(count)) / count)
    # 0.1 of the mass one level from the mode
    read = Read((0.9, 0.1, *[0] * (count - 2)))
    assert confidence("distance", score(count), read) == pytest.approx(1 - 0.1 / spread)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ((1 / 3, 1 / 3, 1 / 3), 0),
        ((0.5, 0, 0.5), 0),
        ((0, 0.5, 0.5), 0.25),
        ((0.4, 0.4, 0.2), 0),
        ((0.2, 0.4, 0.4), 0.1),
    ],
)
def test_a_score_distance_takes_the_lowest_of_tied_modes(probabilities, expected):
    assert confidence("distance", score(3), Read(probabilities)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("yes", [0, 0.02, 0.5, 0.7, 1])
def test_two_options_have_one_distance(yes):
    read = Read((yes, 1 - yes))
    for question in (choice(2), Noul(), score(2)):
        assert confidence("distance", question, read) == pytest.approx(abs(2 * yes - 1))


@pytest.mark.parametrize("question", [choice(3), score(3)])
def test_mass_is_the_winner_over_the_whole_vocabulary(question):
    assert confidence("mass", question, Read((0.31, 0.67, 0.02), label_mass=0.9)) == 0.67 * 0.9
    assert confidence("top", question, Read((0.31, 0.67, 0.02), label_mass=0.9)) == 0.67


def test_mass_of_a_noul_is_that_of_its_likelier_side():
    assert confidence("mass", Noul(), Read((0.02, 0.98), label_mass=0.5)) == 0.49


def test_mass_of_a_single_option_is_the_label_mass():
    assert confidence("mass", choice(1), Read((1.0,), label_mass=0.4)) == 0.4


@pytest.mark.parametrize("name", ["top", "distance", "entropy", "purity"])
@pytest.mark.parametrize("question", [choice(1), score(1)])
def test_a_single_option_is_certain(name, question):
    assert confidence(name, question, Read((1.0,), label_mass=0.4)) == 1.0


@pytest.mark.parametrize("question", [choice(4), score(4)])
def test_entropy_and_purity(question):
    quarter, half, whole = Read((0.25,) * 4), Read((0.5, 0.5, 0, 0)), Read((0, 0, 1, 0))
    for read, entropy, purity in [(quarter, 0, 0), (half, 0.5, 1 / 3), (whole, 1, 1)]:
        assert confidence("entropy", question, read) == pytest.approx(entropy, abs=1e-15)
        assert confidence("purity", question, read) == pytest.approx(purity, abs=1e-15)


def test_entropy_and_purity_of_a_noul():
    read = Read((0.9, 0.1))
    nats = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert confidence("entropy", Noul(), read) == pytest.approx(1 - nats / math.log(2))
    assert confidence("purity", Noul(), read) == pytest.approx(0.64)


def test_an_unknown_confidence_is_refused():
    assert CONFIDENCES == ("mass", "top", "distance", "entropy", "purity")
    for call in (
        lambda: confidence("margin", Noul(), Read((0.5, 0.5))),
        lambda: answer(Noul(), Read((0.5, 0.5)), "margin"),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == (
            "unknown confidence 'margin'; supported: ['mass', 'top', 'distance', 'entropy', 'purity']"
        )
        assert caught.value.field == "confidence"


def test_a_choice_answer():
    question = Choice("Which team?", {"billing": "payments", "shipping": None, 3: None})
    found = answer(question, Read((0.75, 0.0, 0.25), label_mass=0.5))
    assert found == {
        "type": "choice",
        "choice": "billing",
        "probabilities": {"billing": 0.75, "shipping": 0.0, "3": 0.25},
        "confidence": 0.375,
    }
    assert list(found) == ["type", "choice", "probabilities", "confidence"]
    assert list(found["probabilities"]) == ["billing", "shipping", "3"]


def test_a_noul_answer():
    found = answer(Noul("Urgent?"), Read((0.25, 0.75)))
    assert found == {"type": "noul", "noul": 0.25, "probabilities": {"yes": 0.25, "no": 0.75}, "confidence": 0.75}
    assert list(found) == ["type", "noul", "probabilities", "confidence"]


def test_a_score_answer():
    found = answer(Score("How upset?", ("calm", 2, {"a": 1})), Read((0.5, 0.25, 0.25)), "distance")
    assert found == {
        "type": "score",
        "score": 0.75,
        "legend": {"0": "calm", "1": "2", "2": "{'a': 1}"},
        "probabilities": {"0": 0.5, "1": 0.25, "2": 0.25},
        "confidence": 0.0,
    }
    assert list(found) == ["type", "score", "legend", "probabilities", "confidence"]


def test_a_tie_goes_to_the_first_option():
    assert answer(Choice("", {"b": None, "a": None}), Read((0.5, 0.5)))["choice"] == "b"


@pytest.mark.parametrize("question", [choice(3), choice(1), score(3), Noul()])
def test_a_read_must_fit_its_question(question):
    count = len(question.options)
    read = Read(topped(0.5, count + 1))
    with pytest.raises(ValueError, match=f"{count + 1} probabilities for {count} options"):
        answer(question, read)
    with pytest.raises(ValueError, match=f"{count + 1} probabilities for {count} options"):
        confidence("top", question, read)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_read_is_finite(bad):
    with pytest.raises(NonFiniteError, match="not finite"):
        Read((bad, 0.5))
    with pytest.raises(NonFiniteError, match="not finite"):
        Read((0.5, 0.5), label_mass=bad)


@pytest.mark.parametrize("probabilities", [(0.5, 0.4), (0.5, 0.5 + 2e-9), (1.5, -0.5), (-1e-12, 1), (2.0,)])
def test_a_read_sums_to_one(probabilities):
    with pytest.raises(ValueError, match="sum to 1"):
        Read(probabilities)


def test_a_read_holds_something():
    with pytest.raises(ValueError, match="at least one"):
        Read(())


@pytest.mark.parametrize("mass", [-1e-9, 1 + 2e-6, 2])
def test_a_label_mass_is_a_probability(mass):
    with pytest.raises(ValueError, match="label mass must lie in"):
        Read((1.0,), label_mass=mass)


def test_rounding_is_forgiven_and_never_shown():
    read = Read((1 + 5e-10, 0.0), label_mass=1 + 5e-7)
    assert read == Read((1.0, 0.0))
    assert answer(score(3), Read((0.0, 5e-10, 1.0)))["score"] == 2.0
    for name in CONFIDENCES:
        assert confidence(name, choice(2), read) == 1.0


def test_a_read_holds_plain_values():
    read = Read(tuple(np.array([0.25, 0.75])), np.float32(0.5), np.bool_(True))  # type: ignore[arg-type]
    assert [type(p) for p in read.probabilities] == [float, float]
    assert (type(read.label_mass), type(read.argmax_is_label)) == (float, bool)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_softmax_refuses_what_is_not_finite(bad):
    with pytest.raises(NonFiniteError, match="the logit of option 1 is"):
        softmax([0.0, bad])


@pytest.mark.parametrize("bad", [[], [[0.0, 1.0]], 3.0])
def test_softmax_reads_one_question(bad):
    with pytest.raises(ValueError, match="one question"):
        softmax(bad)


def test_softmax_of_known_logits():
    assert softmax([math.log(1), math.log(3)]) == pytest.approx((0.25, 0.75), rel=1e-15)
    assert softmax([7.0]) == (1.0,)
    assert softmax([1e4, 0.0, -1e4]) == (1.0, 0.0, 0.0)
    assert softmax([1e308, -1e308]) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_softmax_of_a_device_array_is_computed_in_float64(dtype):
    logits = jnp.array([0.5, -1.25, 3.0], dtype)
    assert softmax(logits) == softmax([0.5, -1.25, 3.0])
    assert all(type(p) is float for p in softmax(logits))


def test_the_order_of_the_options_changes_no_bit():
    random = np.random.default_rng(0)
    for logits in random.normal(size=(100, 26)):
        order = random.permutation(26)
        assert softmax(logits[order]) == tuple(np.array(softmax(logits))[order])


LOGITS = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=26)
PAIRS = st.tuples(*[st.floats(-1e3, 1e3, width=32)] * 2)
MASSES = st.floats(0, 1)


@st.composite
def reads(draw):
    logits = draw(LOGITS)
    kinds = [choice(len(logits)), score(len(logits))] + ([Noul()] if len(logits) == 2 else [])
    return draw(st.sampled_from(kinds)), Read(softmax(logits), draw(MASSES))


@settings(deadline=None)
@given(LOGITS)
def test_softmax_sums_to_one_and_keeps_the_order(logits):
    p = softmax(logits)
    assert math.fsum(p) == pytest.approx(1, abs=1e-14)
    assert max(p) == p[logits.index(max(logits))]
    shifted = np.exp(np.array(logits) - max(logits))
    assert p == pytest.approx(tuple(shifted / shifted.sum()), rel=1e-13, abs=0)


@settings(deadline=None)
@given(reads(), st.sampled_from(CONFIDENCES))
def test_every_confidence_lies_between_nought_and_one(asked, name):
    question, read = asked
    assert 0 <= confidence(name, question, read) <= 1


@settings(deadline=None)
@given(reads(), st.sampled_from(CONFIDENCES))
def test_an_answer_is_a_function_of_its_own_probabilities(asked, name):
    question, read = asked
    found = answer(question, read, name)
    p = tuple(found["probabilities"].values())
    assert p == read.probabilities
    assert found["confidence"] == confidence(name, question, read)
    if found["type"] == "choice":
        assert found["choice"] == max(found["probabilities"], key=found["probabilities"].get)
    elif found["type"] == "noul":
        assert found["noul"] == p[0]
    else:
        assert 0 <= found["score"] <= len(p) - 1
        assert found["score"] == pytest.approx(np.dot(np.arange(len(p)), p), rel=1e-12, abs=1e-300)
        assert list(found["legend"]) == list(found["probabilities"]) == [str(i) for i in range(len(p))]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@settings(deadline=None)
@given(LOGITS, MASSES, st.sampled_from(CONFIDENCES), st.randoms(use_true_random=False))
def test_permuting_a_choice_permutes_its_answer(logits, mass, name, random):
    order = list(range(len(logits)))
    random.shuffle(order)
    question = choice(len(logits))
    names = [option.name for option in question.options]
    permuted = Choice("", {names[index]: None for index in order})
    there = answer(question, Read(softmax(logits), mass), name)
    here = answer(permuted, Read(softmax([logits[index] for index in order]), mass), name)
    assert here["probabilities"] == there["probabilities"]
    assert here["confidence"] == there["confidence"]
    tied = [option for option, p in there["probabilities"].items() if p == max(there["probabilities"].values())]
    assert here["choice"] == next(names[index] for index in order if names[index] in tied)
    if len(tied) == 1:
        assert here["choice"] == there["choice"]


@settings(deadline=None)
@given(LOGITS)
def test_turning_a_scale_round_turns_its_score_round(logits):
    question = score(len(logits))
    up = answer(question, Read(softmax(logits)))
    down = answer(question, Read(softmax(logits[::-1])))
    assert up["score"] + down["score"] == pytest.approx(len(logits) - 1, abs=1e-12)


@settings(deadline=None)
@given(PAIRS, MASSES)
def test_a_noul_and_a_choice_of_two_agree(logits, mass):
    read = Read(softmax(logits), mass)
    for name in CONFIDENCES:
        assert confidence(name, Noul(), read) == confidence(name, choice(2), read)
