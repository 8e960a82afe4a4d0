"""Which answer of a pair is called first, and what the answers are called, says nothing: no figure may depend on it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.simulate import SimulatedStudy, simulate
from tether.collect.stats.summary import summarise

STUDY = SimulatedStudy(
    num_prompts=60, answers_per_prompt=3, num_annotators=6, tie_threshold=0.3, both_bad_share=0.2, skip_share=0.05, repeat_share=0.1,
    gold_share=0.1, careless_share=0.2, position_bias=0.3, length_bias=0.4, temperature=0.5, seed=4,
)  # fmt: skip
_TURNED = {Choice.FIRST: Choice.SECOND, Choice.SECOND: Choice.FIRST}


@pytest.fixture(scope="module")
def records():
    """Comparisons with every habit, and rankings of answers of which many are equally long."""
    made, rng = simulate(STUDY), random.Random(0)
    items, judgements, lengths = list(made.items), list(made.judgements), dict(made.lengths)
    for number in range(30):
        answers = tuple(f"r{number}.{at}" for at in range(4))
        items.append(Item(f"ranked {number}", f"p of {number}", answers))
        lengths |= {answer: rng.choice((100, 200, 300)) for answer in answers}
        for who in range(3):
            order = rng.sample(answers, 4)
            ranking = ((order[0],), (order[1], order[2]), (order[3],))
            shown = tuple(rng.sample(answers, 4))
            name = f"annotator {who}"
            item = f"ranked {number}"
            judgements.append(Judgement(f"{item} {who}", item, name, Choice.RANKED, shown, ranking=ranking, seconds=30.0))
    return judgements, items, lengths


def turned(records, names, reverse, other="{}".format):
    """The same records with other names of answers (``names``), of prompts and items (``other``), and with the order of items turned."""
    judgements, items, lengths = records
    new_items, flipped = [], set()
    for item in items:
        answers, gold = tuple(names[answer] for answer in item.answers), item.gold
        if reverse(item):
            flipped.add(item.item_id)
            answers, gold = answers[::-1], _TURNED.get(gold, gold)
        new_items.append(Item(other(item.item_id), other(item.prompt_id), answers, gold))
    new_judgements = [
        replace(
            one, item_id=other(one.item_id), shown=tuple(names[answer] for answer in one.shown),
            choice=_TURNED.get(one.choice, one.choice) if one.item_id in flipped else one.choice,
            ranking=tuple(tuple(names[answer] for answer in tier) for tier in one.ranking),
        )
        for one in judgements
    ]  # fmt: skip
    return new_judgements, new_items, {names[answer]: length for answer, length in lengths.items()}


def better_first(records):
    """Names that tell who won: "b..." for the answers that won more often than they lost, "g..." for the others."""
    judgements, items, lengths = records
    by_id, won = {item.item_id: item for item in items}, dict.fromkeys(lengths, 0)
    for one in judgements:
        tiers = one.ranking or tuple((answer,) for answer in by_id[one.item_id].answers)
        if one.choice not in _TURNED and not one.ranking:
            continue
        tiers = tiers[::-1] if one.choice is Choice.SECOND else tiers
        won[tiers[0][0]] += 1
        won[tiers[-1][0]] -= 1
    ordered = sorted(lengths, key=lambda answer: -won[answer])
    return {answer: f"{'b' if won[answer] > 0 else 'g'}{at:05d}" for at, answer in enumerate(ordered)}


def shuffled(records, seed):
    ids = list(records[2])
    random.Random(seed).shuffle(ids)
    return {answer: f"x{at:05d}" for at, answer in enumerate(ids)}


def same(found, expected, place="summary"):
    if isinstance(expected, dict):
        assert set(found) == set(expected), place
        for key, value in expected.items():
            same(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{place}[{at}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-9), place
    else:
        assert found == expected, place


def test_no_figure_depends_on_names_or_on_the_order_of_answers(records):
    expected = summarise(*records).as_json()
    assert [one["name"] for one in expected["figures"] if one["value"] is None] == []
    assert expected["pairs"]
    assert expected["length_curve"]
    itself = {answer: answer for answer in records[2]}
    half = random.Random(1)
    for what, names, reverse, other in (
        ("names that tell the better answer", better_first(records), lambda item: False, "{}".format),
        ("random names", shuffled(records, 0), lambda item: False, lambda name: f"of {name[::-1]}"),
        ("every item turned round", itself, lambda item: True, "{}".format),
        ("half of the items turned round, random names", shuffled(records, 2), lambda item: half.random() < 0.5, "{}".format),
    ):
        same(summarise(*turned(records, names, reverse, other)).as_json(), expected, what)


def test_chance_agreement_is_that_of_a_coin_where_ids_tell_the_better_answer():
    """Four of five prefer the answer g: by ids, "second" is far commoner, but chance is still one half."""
    items = [Item(f"i{n}", f"p{n}", (f"b{n}", f"g{n}")) for n in range(100)]
    judgements = [
        Judgement(f"{n}.{who}", f"i{n}", who, Choice.FIRST if (n + 3 * (who == "Ben")) % 5 == 0 else Choice.SECOND, (f"b{n}", f"g{n}"))
        for n in range(100)
        for who in ("Ann", "Ben")
    ]
    summary = summarise(judgements, items, {})
    agreed = summary.figure("raw_agreement").value
    assert agreed == pytest.approx(0.6)
    for name, value in (("fleiss_kappa", 0.2), ("alpha_nominal", 0.2), ("alpha_ordinal", 0.2)):
        assert summary.figure(name).value == pytest.approx(value, abs=0.003), name
    assert summary.pairs[0].kappa.estimate == pytest.approx(0.2)


def test_bins_of_lengths_do_not_cut_equal_ratios_by_names():
    items, judgements, lengths = [], [], {}
    for n in range(41):
        short, middle, long = (f"{n}.{place}" for place in "abc")
        lengths |= {short: 100, middle: 200, long: 400}
        items.append(Item(f"i{n}", f"p{n}", (short, middle, long)))
        ranking = ((long,), (short,), (middle,))  # of the two pairs with the ratio 2 the longer one won once
        judgements.append(Judgement(f"j{n}", f"i{n}", "Ann", Choice.RANKED, (short, middle, long), ranking=ranking))
    given = judgements, items, lengths
    names = {answer: answer.translate(str.maketrans("abc", "cba")) for answer in lengths}
    curve = summarise(*given).length_curve
    assert summarise(*turned(given, names, lambda item: False)).length_curve == curve
    assert [(round(ratio, 9), share, count) for ratio, share, count in curve] == [(2.0, 0.5, 82), (4.0, 1.0, 41)]


def test_one_direction_alone_is_agreement_and_not_unknown():
    items = [Item(f"i{n}", f"p{n}", (f"a{n}", f"b{n}")) for n in range(30)]
    judgements = [Judgement(f"{n}.{who}", f"i{n}", who, Choice.FIRST, (f"a{n}", f"b{n}")) for n in range(30) for who in ("Ann", "Ben")]
    summary = summarise(judgements, items, {})
    assert [summary.figure(name).value for name in ("alpha_nominal", "alpha_ordinal", "fleiss_kappa")] == [1.0, 1.0, 1.0]
    none = summarise([replace(one, choice=Choice.TIE) for one in judgements], items, {}).figure("alpha_nominal")
    assert none.value is None
    assert "nobody preferred an answer" in none.missing
