from fractions import Fraction

import pytest

from tether.rewards.exact import ExactPart, extract_answer, parse_number, same_text
from tether.types import Failure, StopReason

GOLD = [
    "Answer: 12",
    "Answer: 12.",
    "7 + 5 = 12. Answer: 12",
    "answer: 12",
    "**Answer: 12**",
    "So...\nAnswer: $12$\n",
    "Answer: 12.0",
    "Answer: +12",
    "Answer: 24/2",
    "Answer: 12 Answer: 12",
    "7 + 5 = 13? No.\nAnswer:12",
]
WRONG = ["Answer: 13", "Answer: -12", "Answer: 1.2", "Answer: 121", "Answer: 12/0", "7 + 5 = 12"]
HOSTILE = [
    "",
    " ",
    "Answer:",
    "Answer: ",
    "Answer: 12 Answer: 13",
    "Answer: 13\nAnswer: 12",
    "Answer: 1 2 3 4 5 6 7 8 9 10 11 12",
    "Answer: 12, 13",
    "Answer: 12 or 13",
    "Answer: 12\nAnd now let me tell you about sums. They",
    "Answer: twelve",
    "Answer: NaN",
    "Answer: inf",
    "Answer: １２",
    "Answer: ١٢",
    "Answer: 1e1",
    "Answer: 12e0",
    "Answer: 0x0c",
    "Answer: 1_2",
    "Answer: " + "9" * 100_000,
    "12 " * 50_000 + "Answer: 12",
    "Answer: 1e999999999",
    "Answer: 12,",
    "Answer: ,12",
    "Answer: 1,2",
    "Answer: 12 apples",
    "\x00Answer\x00: 12",
    "Answer: \ud800",
    "Answer: 12\u200b",
]


@pytest.mark.parametrize("text", GOLD)
def test_gold_answers_score_one(make_rollout, text):
    (score,) = ExactPart().score([make_rollout(text, answer=12)])
    assert score.value == 1.0


@pytest.mark.parametrize("text", WRONG + HOSTILE)
def test_wrong_and_hostile_answers_score_zero_and_are_no_failures(make_rollout, text):
    (score,) = ExactPart().score([make_rollout(text, answer=12)])
    assert score.value == 0.0


def test_an_answer_that_the_budget_cut_is_unfinished(make_rollout):
    cut = make_rollout("Answer: 12", stop=StopReason.LENGTH, answer=12)
    assert [s.value for place in ("last", "anywhere") for s in ExactPart(place=place).score([cut])] == [
        0.0,
        0.0,
    ]
    later = make_rollout("Answer: 12\nand so on and", stop=StopReason.LENGTH, answer=12)
    assert ExactPart(place="anywhere").score([later])[0].value == 1.0
    assert ExactPart(place="last").score([later])[0].value == 0.0


@pytest.mark.parametrize("gold", [None, True, "", "  ", "twelve", float("nan"), float("inf"), [12], "１２"])
def test_a_gold_value_that_cannot_be_read_is_a_failure_of_the_data(make_rollout, gold):
    (result,) = ExactPart().score([make_rollout("Answer: 12", answer=gold)])
    assert isinstance(result, Failure)
    assert result.boundary == "exact"
    assert result.reason == "`answer` is null" if gold is None else "holds no readable number" in result.reason


def test_a_missing_column_is_a_failure_that_names_it(make_rollout):
    (result,) = ExactPart(column="target").score([make_rollout("Answer: 12", answer=12)])
    assert isinstance(result, Failure)
    assert result.reason == "`target` is missing"


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("12", "Answer: 12"),
        (12.0, "Answer: 12"),
        (0.5, "Answer: 1/2"),
        ("1/3", "Answer: 1/3"),
        ("1,234", "Answer: 1234"),
        (-3, "Answer: -3"),
    ],
)
def test_gold_may_be_written_in_any_readable_form(make_rollout, gold, text):
    assert ExactPart().score([make_rollout(text, answer=gold)])[0].value == 1.0


def test_boxed_answers_of_case_i1(make_rollout):
    part = ExactPart(marker="\\boxed")
    texts = [
        r"So \boxed{\frac{1}{3}}",
        r"\boxed{\frac{1}{3}}.",
        r"\boxed{1/3}",
        r"$\boxed{\dfrac{1}{3}}$",
        r"\boxed{\frac{1}{3}",
        r"\boxed{}",
        r"\boxed{1/3} \boxed{2/3}",
        r"\boxed{0.333}",
    ]
    values = [score.value for score in part.score([make_rollout(text, answer="1/3") for text in texts])]
    assert values == [1, 1, 1, 1, 0, 0, 0, 0]


def test_text_comparison_ignores_case_blanks_and_unicode_form(make_rollout):
    part = ExactPart(compare="text")
    texts = ["Answer: new  York.", "Answer: Ｎｅｗ York", "Answer: York", "Answer: New York or Paris", ""]
    assert [s.value for s in part.score([make_rollout(t, answer="New York") for t in texts])] == [
        1,
        1,
        0,
        0,
        0,
    ]
    assert same_text("STRASSE", "straße")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", Fraction(2469, 2)),
        ("-3/4", Fraction(-3, 4)),
        (".5", Fraction(1, 2)),
        ("-0", 0),
        (r"-\frac{1}{3}", Fraction(-1, 3)),
        ("007", 7),
    ],
)
def test_numbers_are_exact(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "+", ".", "-", "1.", "--1", "1/0", "1 2", "nan", "1e5", "12,34", "²", "９", "9" * 31, "1/2/3"],
)
def test_what_is_no_number(text):
    assert parse_number(text) is None


def test_extraction_returns_what_was_stated():
    assert extract_answer("I think. Answer: `Paris`.", "Answer:") == "Paris"
    assert extract_answer("nothing", "Answer:") is None


@pytest.mark.parametrize("settings", [{"marker": " "}, {"compare": "floats"}, {"place": "first"}])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        ExactPart(**settings)
