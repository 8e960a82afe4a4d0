"""People are named for what they do, by the cautious end of an interval, and never for being slow."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from people import HASTY, LEFT, LONG, NAMES, PAUSES, six_people

from tether import cli_collect_stats
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.simulate import SimulatedStudy, simulate
from tether.collect.stats.command import names
from tether.collect.stats.conduct import Evidence, for_all, judge_conduct
from tether.collect.stats.page import page
from tether.collect.stats.reliability import Competence
from tether.collect.stats.sentences import in_words
from tether.collect.stats.speed import FASTEST, HASTY_PART, Pace, speed
from tether.collect.stats.summary import summarise
from tether.collect.stats.votes import read_votes
from tether.collect.stats.words import as_text, people_to_look_at
from tether.errors import ConfigError
from tether.stats import Interval, wilson


@pytest.fixture(scope="module")
def six():
    return six_people()


@pytest.fixture(scope="module")
def summary(six):
    return summarise(six.judgements, six.items, six.lengths)


def test_each_habit_is_named_and_nobody_else(summary):
    kinds = {row.name: set(row.notes) for row in summary.annotators}
    assert {"hasty", "near chance"} <= kinds[HASTY]
    assert "one side" in kinds[LEFT]
    assert "length" in kinds[LONG]
    assert {name: kinds[name] for name in NAMES[3:]} == {name: set() for name in NAMES[3:]}


def test_a_hasty_person_is_told_with_the_numbers_and_the_command(summary):
    name, told, advice = people_to_look_at(summary)[0]
    assert name == HASTY
    assert re.search(r"answers in 1\.\d s \(median\), where the others take \d\d s", told)
    assert re.search(r"\d+ % of \d+ judgements are hasty, surely more than \d\d %", told)
    assert "agreement is at or near chance: reliability" in told
    assert f"--without {HASTY}`" in advice
    row = next(row for row in summary.annotators if row.name == HASTY)
    assert row.hasty_share.estimate > 0.9
    assert row.others_seconds / row.median_seconds > 10


def test_it_stands_in_the_text_the_page_and_the_json(summary):
    told = people_to_look_at(summary)[0][1]
    text, shown = as_text(summary), page(summary).replace("\u00a0", " ")
    assert text.index("People to look at") < text.index("In words") < text.index("figure  ")
    assert told in text
    assert told[1:].replace("'", "&#39;") in shown
    assert f"--without {HASTY}</code>" in shown
    (one,) = [row for row in json.loads(json.dumps(summary.as_json()))["annotators"] if row["name"] == HASTY]
    assert {reason["kind"] for reason in one["conduct"]["reasons"]} >= {"hasty", "near chance"}
    assert one["conduct"]["hasty_surely"] > 1 / 3
    assert one["conduct"]["reliability_surely"] < 0.5
    assert one["hasty_share"]["estimate"] > 0.9


def test_who_went_for_a_coffee_has_pauses_and_no_flag(summary):
    row = next(row for row in summary.annotators if row.name == PAUSES)
    assert row.num_pauses >= 3
    assert row.notes == ()
    assert {one.annotator for one in summary.pauses} == {PAUSES}
    assert summary.figure("pause_share").verdict == ""
    slow = [replace(j, seconds=10 * j.seconds) if j.annotator == "Emil" else j for j in six_people(60).judgements]
    made = six_people(60)
    assert next(row for row in summarise(slow, made.items, made.lengths).annotators if row.name == "Emil").notes == ()


@pytest.mark.slow
def test_nobody_is_named_by_chance():
    """Sixty collections of ten careful people: the promise is that at most one collection in twenty names anybody, for each kind."""
    named = {"hasty": 0, "near chance": 0, "fails test questions": 0, "length": 0}
    for seed in range(60):
        made = simulate(SimulatedStudy(num_prompts=120, temperature=0.6, gold_share=0.1, length_bias=0.5, seconds_spread=0.8, seed=seed))
        found = summarise(made.judgements, made.items, made.lengths)
        for kind in named:
            named[kind] += any(kind in row.notes for row in found.annotators)
    assert max(named.values()) <= 6, named  # 3 expected at most; 6 or fewer in 97 of 100 repetitions


def test_an_end_holds_for_all_people_at_once():
    assert for_all(0.95, 1) == pytest.approx(0.9)
    assert for_all(0.95, 5) == pytest.approx(0.98)
    pace = Pace("Ann", 2.0, 14.0, wilson(20, 40), 20)

    def conduct(one: Evidence, people: int):
        return judge_conduct({"Ann": one} | {f"w{k}": Evidence() for k in range(people - 1)})["Ann"]

    assert conduct(Evidence(pace), 2).has("hasty")
    assert not conduct(Evidence(pace), 200).has("hasty")  # the same person among many: this may be bad luck
    few = Pace("Ann", 2.0, 14.0, wilson(3, 3), 3)
    assert not conduct(Evidence(few), 6).has("hasty")  # three clicks are no proof
    assert conduct(Evidence(), 6).reasons == ()
    odd = Competence("Ann", 40, Interval(0.0, 0.0, 0.0, 0.95, 40), Interval(0.0, -0.45, 0.45, 0.95, 40), 0.0)
    quick = Pace("Ann", 2.0, 14.0, wilson(40, 40), 40)
    assert not conduct(Evidence(pace=None, competence=odd), 15).has("near chance")
    assert conduct(Evidence(quick, odd), 15).has("near chance")  # haste is evidence: less proof is needed


def _timed(times, length=1000, people=4):
    """One item after the other; person k takes ``times[k]`` seconds each time."""
    items = [Item(f"i{n}", f"p{n}", (f"a{n}", f"b{n}")) for n in range(20)]
    judgements = [
        Judgement(f"{who} {item.item_id}", item.item_id, f"w{who}", Choice.FIRST, item.answers, seconds=times[who])
        for item in items
        for who in range(people)
    ]
    return speed(read_votes(judgements, items, {answer: length for item in items for answer in item.answers}))


def test_the_bound_is_a_third_of_the_others_or_what_nobody_can_read():
    found = _timed([14.0, 14.0, 14.0, 14.0 * HASTY_PART - 0.1], length=100)
    assert [pace.num_hasty for pace in found.people] == [0, 0, 0, 20]
    assert found.people[3].others == 14.0
    assert found.hasty[0].bound == pytest.approx(14 * HASTY_PART)
    assert not _timed([14.0, 14.0, 14.0, 14.0 * HASTY_PART + 0.1], length=100).hasty
    everybody = _timed([1.0] * 4, length=int(FASTEST))  # 400 characters in a second: nobody reads so, whatever the others do
    assert [pace.num_hasty for pace in everybody.people] == [20] * 4
    assert everybody.hasty[0].bound == pytest.approx(2.0)


def _alike_in_tens(per_prompt: int):
    """Forty pairs and forty test questions; ten at a time are judged alike. Ann judges all pairs twice, Ben once, Cy skips half."""
    items = [Item(f"i{n}", f"p{n // per_prompt}", (f"a{n}", f"b{n}")) for n in range(40)]
    known = [Item(f"g{n}", f"q{n // per_prompt}", (f"c{n}", f"d{n}"), Choice.FIRST) for n in range(40)]
    made = []
    for n in range(40):
        word = (Choice.FIRST, Choice.SECOND)[n // 10 % 2]
        skipped = (Choice.TIE, Choice.SKIP)[n // 10 % 2]
        made += [
            Judgement(f"first {n}", f"i{n}", "Ann", Choice.FIRST, items[n].answers, made_at="1"),
            Judgement(f"again {n}", f"i{n}", "Ann", word, items[n].answers, made_at="2"),
            Judgement(f"other {n}", f"i{n}", "Ben", word, items[n].answers),
            Judgement(f"skip {n}", f"i{n}", "Cy", skipped, items[n].answers, reason="no" if skipped is Choice.SKIP else ""),
            Judgement(f"known {n}", f"g{n}", "Ann", word, known[n].answers),
        ]
    return summarise(made, [*items, *known], {})


def test_judgements_of_one_prompt_count_for_less():
    """Of forty prompts they are forty, and their interval is Wilson's; of four prompts, alike within each, they are worth about four."""
    apart, together = _alike_in_tens(1), _alike_in_tens(10)
    shares = []
    for found in (apart, together):
        (ann,) = [row for row in found.annotators if row.name == "Ann"]
        (pair,) = [one for one in found.pairs if {one.first, one.second} == {"Ann", "Ben"}]
        gold, again = (found.figure(name) for name in ("gold_accuracy", "repeat_agreement"))
        shares.append([(one.low, one.high) for one in (gold, again, ann.gold_accuracy, ann.repeat_agreement, pair.raw)])
        assert (gold.value, gold.num_units, ann.gold_accuracy.num_units) == (0.5, 40, 40)
        shares[-1].append((ann.agreement_with_rest.low, ann.agreement_with_rest.high))
    expected = wilson(20, 40)
    assert shares[0][:5] == [(expected.low, expected.high)] * 5
    assert all(high - low > 2 * (expected.high - expected.low) for low, high in shares[1][:5])
    assert shares[1][5][1] - shares[1][5][0] > shares[0][5][1] - shares[0][5][0]
    one, other = (found.figure("skip_share") for found in (apart, together))
    assert one.value == other.value == 20 / 160
    assert other.high - other.low > one.high - one.low


def test_two_people_are_not_held_against_each_other():
    found = _timed([60.0, 14.0], length=100, people=2)  # is one hasty, or the other slow? nobody can say
    assert not found.hasty
    assert [pace.others for pace in found.people] == [None, None]


def test_short_texts_are_read_faster_and_that_is_no_haste():
    rng = np.random.default_rng(0)
    items = [Item(f"i{n}", f"p{n}", (f"a{n}", f"b{n}")) for n in range(400)]
    lengths = {answer: 100 if n % 2 else 3000 for n, item in enumerate(items) for answer in item.answers}

    def word(who: int, n: int) -> Judgement:
        seconds = (3.0 if n % 2 else 40.0) * float(np.exp(0.3 * rng.normal()))
        return Judgement(f"{who} {n}", f"i{n}", f"w{who}", Choice.FIRST, items[n].answers, seconds=seconds)

    # w0 was given the short ones alone
    made = [word(who, n) for who in range(4) for n in range(400) if who or n % 2]
    paces = {pace.annotator: pace for pace in speed(read_votes(made, items, lengths)).people}
    assert paces["w0"].others == pytest.approx(3.0, rel=0.1)
    assert paces["w0"].hasty.estimate < 0.02
    without = {pace.annotator: pace for pace in speed(read_votes(made, items, {})).people}
    assert without["w0"].hasty.estimate > 0.5  # what would be said without a look at the lengths


def test_skips_and_repeats_are_not_hasty():
    items = [Item(f"i{n}", f"p{n}", (f"a{n}", f"b{n}")) for n in range(30)]
    made = [Judgement(f"{w} {n}", f"i{n}", f"w{w}", Choice.TIE, items[n].answers, seconds=20.0) for w in range(3) for n in range(30)]
    again = Judgement("again", "i0", "w0", Choice.TIE, items[0].answers, seconds=0.5, made_at="2026-05-04T09:00:00+00:00")
    skip = Judgement("skip", "i1", "w3", Choice.SKIP, items[1].answers, reason="cut off", seconds=0.5)
    found = speed(read_votes([*made, again, skip], items, {}))
    assert not found.hasty
    assert (found.num_timed, found.num_read) == (91, 90)


def test_times_of_zero_are_counted_and_no_statistic():
    items = [Item("i", "p", ("a", "b"))]
    made = [Judgement(who, "i", who, Choice.TIE, ("a", "b"), seconds=seconds) for who, seconds in (("w", 3.0), ("v", 0.0))]
    found = speed(read_votes(made, items, {}))
    assert (found.num_timed, found.num_not_positive) == (1, 1)
    assert speed(read_votes([], [], {})) is None


def test_sentences_come_first_and_hold_the_figures(summary):
    told = in_words(summary)
    assert told[0].startswith(f"{len(summary.annotators) and round(summary.figure('judgements').value)} judgements by 6 people")
    assert "people favour a side" in " ".join(told)
    assert in_words(summarise([], [], {})) == (
        "0 judgements by 0 people, skips and test questions among them; 0 pairs of answers to ordinary items were judged, 0 by two or more "
        "people, and all that is said of agreement comes from these.",
    )


@pytest.mark.parametrize("name", ["stats.pdf", "stats", "stats.html.txt", "none/stats.html"])
def test_a_page_is_written_into_an_html_file_alone(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--output .*: expected a file that ends in \.html, in a folder that exists"):
        cli_collect_stats.stats("there-is-none.db", output=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_another_persons_id_is_not_shown():
    class Store:
        def annotators(self):
            return [type("A", (), {"id": "a1", "name": "a2"}), type("A", (), {"id": "a2", "name": "Ben"})]

    assert names(Store()) == {"a1": "a1", "a2": "Ben"}  # --without a2 would leave out Ben
