import math
import subprocess
import sys

import pytest

from tether.rewards.simulated_rater import (
    MAX_POINTS,
    RATER_NAME,
    PlainspokenPart,
    RaterSettings,
    choose,
    noiseless,
    preference_probability,
)
from tether.types import StopReason

EGG = "How do I boil an egg?"
GOOD = "Simmer the egg in boiling water for nine minutes, then cool it and peel it."
GOLD = [
    (EGG, GOOD),
    (
        "Why does the sky look blue?",
        "The sky looks blue because air scatters blue light much more strongly than red light.",
    ),
    (
        "What is a compass used for?",
        "A compass shows which way is north, so hikers and sailors can find their direction.",
    ),
]
RAMBLING = (
    "Boiling an egg is something that many people have wondered about over the years, and there are "
    "lots of things to say about it, because "
    "eggs come in many sizes, and water comes in many pots, and stoves come in "
    "many kitchens, and people in many towns like to"
) * 2
WRONG_OR_HOSTILE = [
    "",
    "   ",
    "\n",
    ".",
    "!!!",
    "Ok.",
    "Yes.",
    "...",
    "?" * 5000,
    "egg egg egg egg egg egg egg egg egg egg.",
    "How do I boil an egg.",
    "How do I boil an egg? How do I boil an egg? How do I boil an egg?",
    RAMBLING,
    RAMBLING + ".",
    "egg" * 4000 + ".",
    "Bananas are yellow and trains often run late on Sundays in November.",
    "１２ １３ １４ １５ １６ １７ １８ １９.",
    "\ud800\udfff egg",
    "1. Egg\n2. Water\n3.",
]


@pytest.mark.parametrize(("question", "answer"), GOLD)
def test_gold_answers_reach_the_maximum(question, answer):
    assert noiseless(question, answer, True).points == MAX_POINTS


@pytest.mark.parametrize("answer", WRONG_OR_HOSTILE)
def test_silence_rambling_and_tricks_stay_under_a_third(answer):
    assert 0 <= noiseless(EGG, answer, True).points < MAX_POINTS / 3


@pytest.mark.parametrize("answer", ["", "   ", "\n\t", ".", "!?"])
def test_silence_is_the_minimum(answer):
    assert noiseless(EGG, answer, True).points == 0.0


def test_every_fault_costs_points():
    words = "then leave the pan on the stove and watch the clock on the wall near the window "
    faults = {
        "cut": noiseless(EGG, GOOD, False),
        "no full stop": noiseless(EGG, GOOD.rstrip("."), True),
        "trails off": noiseless(EGG, GOOD + "..", True),
        "too long": noiseless(EGG, GOOD.rstrip(".") + ", " + words * 2 + "too.", True),
        "too short": noiseless(EGG, "Simmer the egg nine minutes.", True),
        "off the topic": noiseless(EGG, GOOD.replace("egg", "rice").replace("boiling", "hot"), True),
        "filler": noiseless(EGG, "Certainly! " + GOOD, True),
        "repeats itself": noiseless(EGG, f"{GOOD} {GOOD}", True),
    }
    assert {name: score.points for name, score in faults.items() if score.points >= 0.9 * MAX_POINTS} == {}


def test_the_numbers_of_one_answer_by_hand():
    # 4 words: brevity (1 - cos(pi/2))/2 = .5; ended without a full stop: .4; topic 1; 2 of 5 new words: .4;
    # so .25*.4 + .25*.4 + .5*.16 = .28
    score = noiseless(EGG, "boil egg nine minutes", True)
    assert score.points == pytest.approx(10 * 0.5 * 0.28)


@pytest.mark.parametrize(
    "opening",
    ["Sure, ", "sure! ", "Certainly. ", "Of course, ", "As an AI language model, ", "I'd be happy to help: "],
)
def test_filler_openings_are_found(opening):
    assert noiseless(EGG, opening + GOOD, True).opening < 1


def test_words_that_only_begin_like_filler_are_not():
    assert noiseless(EGG, "Surely " + GOOD, True).opening == 1


def test_preference_probability_is_bradley_terry_with_flips():
    settings = RaterSettings(temperature=2.0, flip_rate=0.1)
    assert preference_probability(0.0, settings) == pytest.approx(0.5)
    assert preference_probability(2.0 * math.log(3), settings) == pytest.approx(0.9 * 0.75 + 0.1 * 0.25)
    assert preference_probability(1e6, settings) == pytest.approx(0.9)
    assert preference_probability(-1e6, settings) == pytest.approx(0.1)


def test_swapping_the_answers_swaps_the_choice():
    for seed in range(50):
        settings = RaterSettings(temperature=5.0, flip_rate=0.2, seed=seed)
        one = choose(EGG, GOOD, "Ok.", first_finished=True, second_finished=False, settings=settings)
        other = choose(EGG, "Ok.", GOOD, first_finished=False, second_finished=True, settings=settings)
        assert one.first_wins != other.first_wins
        assert one.probability_first == pytest.approx(1 - other.probability_first)


def test_choices_come_as_often_as_stated():
    settings = [RaterSettings(temperature=10.0, flip_rate=0.1, seed=seed) for seed in range(4000)]
    choices = [choose(EGG, GOOD, "Ok.", first_finished=True, second_finished=True, settings=s) for s in settings]
    share, expected = sum(c.first_wins for c in choices) / 4000, choices[0].probability_first
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000)


def test_the_draw_is_pinned():
    settings = RaterSettings(temperature=1e9, flip_rate=0.0)  # a fair coin
    tosses = [choose(f"q{i}", "a b.", "c d.", first_finished=True, second_finished=True, settings=settings).first_wins for i in range(12)]
    assert "".join("ab"[not toss] for toss in tosses) == PINNED


PINNED = "bbbbabbaaaaa"


def test_equal_answers_are_refused():
    with pytest.raises(ValueError, match="same"):
        choose(EGG, "a", "a", first_finished=True, second_finished=True, settings=RaterSettings())


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": math.nan}, {"flip_rate": 0.5}, {"flip_rate": -0.1}])
def test_noise_settings_are_checked(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        RaterSettings(**settings)


def test_as_a_part_the_engine_says_what_is_finished(make_rollout):
    whole, cut = (make_rollout(GOOD, question=EGG, stop=stop) for stop in (StopReason.STOP, StopReason.LENGTH))
    first, second = PlainspokenPart().score([whole, cut])
    assert (first.value, second.value) == (10.0, 2.5)
    assert set(first.parts) == {"finished", "brevity", "topic", "substance", "fresh", "opening"}


def test_nobody_is_told_that_it_is_a_person():
    assert "simulated" in RATER_NAME


def test_rewards_import_without_torch():
    code = "import sys, tether.rewards.simulated_rater, tether.rewards.build, tether.stats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
