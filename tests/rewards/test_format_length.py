import json
from pathlib import Path

import pytest

from tether.rewards.format import FormatPart
from tether.rewards.length import LengthPart, OverlongPart, band_score, overlong_penalty
from tether.types import StopReason

CASES = json.loads((Path(__file__).parents[1] / "golden" / "cases.json").read_text())
CASES = CASES if isinstance(CASES, list) else CASES["cases"]


def values(part, rollouts):
    return [score.value for score in part.score(rollouts)]


def test_pattern_must_match_the_whole_answer(make_rollout):
    part = FormatPart(pattern=r".*Answer: [0-9]+\.?")
    texts = [
        "7 + 5 = 12.\nAnswer: 12",
        "Answer: 12.",
        "Answer: 12 and more",
        "Answer: １２",
        "Answer:",
        "",
        " ",
        "x" * 30_000 + "Answer: 12",
    ]
    assert values(part, [make_rollout(t) for t in texts]) == [1, 1, 0, 0, 0, 0, 0, 0]


def test_sentence_ending(make_rollout):
    part = FormatPart(ending="sentence")
    texts = ["It is twelve.", 'She said "yes!"', "Why not? ", "It is", "", "...", "1, 2, 3,"]
    assert values(part, [make_rollout(t) for t in texts]) == [1, 1, 1, 0, 0, 1, 0]
    assert values(part, [make_rollout("It is twelve.", stop=StopReason.LENGTH)]) == [0]


def test_literal_ending(make_rollout):
    assert values(
        FormatPart(ending="</answer>"),
        [make_rollout("12</answer>"), make_rollout("</answer>12"), make_rollout("")],
    ) == [1, 0, 0]


def test_repetition_is_refused(make_rollout):
    part = FormatPart(max_repeat_share=0.2)
    texts = [
        "Simmer the egg for nine minutes.",
        "the egg is the egg is the egg is the egg is",
        "egg " * 5000,
        "",
    ]
    assert values(part, [make_rollout(t) for t in texts]) == [1, 0, 0, 0]


def test_requirements_combine_and_are_reported_alone(make_rollout):
    (score,) = FormatPart(pattern="[a-z ]+", ending="sentence").score([make_rollout("no stop here")])
    assert (score.value, score.parts) == (0.0, {"pattern": 1.0, "ending": 0.0})


@pytest.mark.parametrize("settings", [{}, {"pattern": "("}, {"ending": " "}, {"max_repeat_share": 1.0}])
def test_format_settings_are_checked(settings):
    with pytest.raises(ValueError, match=r"."):
        FormatPart(**settings)


def test_length_band_by_words(make_rollout):
    part = LengthPart(low=4, high=8, falloff=8)
    texts = ["", "one two", "one two three four", "w " * 8, "w " * 12, "w " * 16, "w " * 5000, "x" * 5000]
    assert values(part, [make_rollout(t) for t in texts]) == [0, 0.5, 1, 1, 0.5, 0, 0, 0]


def test_length_band_by_tokens_counts_what_the_policy_drew(make_rollout):
    part = LengthPart(low=2, high=4, falloff=4, unit="tokens")
    (score,) = part.score([make_rollout("one", num_tokens=6)])
    assert (score.value, score.parts) == (0.5, {"tokens": 6.0})


@pytest.mark.parametrize("settings", [(0, 4, 1), (5, 4, 1), (1, 4, 0), (1, 4, 1, "bytes")])
def test_length_settings_are_checked(settings):
    with pytest.raises(ValueError, match=r"expected|falloff|unit"):
        LengthPart(*settings)


def test_band_score_is_continuous_at_its_edges():
    assert band_score(8, 8, 30, 30) == band_score(30, 8, 30, 30) == 1
    assert band_score(30.001, 8, 30, 30) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("case", [c for c in CASES if c["op"] == "overlong_penalty"], ids=lambda c: c["id"])
def test_overlong_penalty_agrees_with_the_golden_vectors(case):
    inputs = case["inputs"]
    got = [overlong_penalty(n, inputs["max_len"], inputs["cache"]) for n in inputs["lengths"]]
    assert got == pytest.approx(case["expected"]["penalty"], rel=1e-9, abs=1e-12)


def test_overlong_part_reads_the_drawn_tokens(make_rollout):
    part = OverlongPart(max_length=10, cache=4)
    assert values(part, [make_rollout("", num_tokens=n) for n in (0, 6, 8, 10, 11)]) == [0, 0, -0.5, -1, -1]
    with pytest.raises(ValueError, match="cache"):
        OverlongPart(max_length=4, cache=5)
