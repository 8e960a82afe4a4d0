"""The linear reward model: features by hand, a known reward recovered, the file, the reward part, refusals."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest

from tether.errors import ConfigError, DataError, ModelError
from tether.records import file_sha256
from tether.rewards.build import build_part, build_rubric
from tether.rewards.features import BUILT_IN, answer_text, feature_from
from tether.rewards.linear import fit_linear, load_linear, pair_features
from tether.run.linear_command import linear_command
from tether.run.reward_audit.figures import calibration
from tether.types import Comparison, Message

WORDS = ["sea", "sky", "sand", "perhaps", "maybe", "stone", "river", "cloud", "tree", "bird", "hill", "moss"]
GOLD = {"log_length": 0.8, "hedges": -6.0, "question_marks": -0.5, "list_markers": 0.4}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("length", "One two, three.", 3), ("log_length", "One two, three.", math.log(4)), ("length", "", 0), ("bullet_share", "", 0),
        ("bullet_share", "Do:\n- a\n* b\n3. c\n\nEnd", 3 / 5), ("list_markers", "- a\n - b\n-c", 2), ("headings", "# A\n## B\n#c", 2),
        ("code_fences", "```py\nx\n```", 2), ("bold", "**a** and __b__ and ** c", 2), ("exclamation_marks", "No! No!!", 3),
        ("question_marks", "Why? Who?", 2), ("type_token_ratio", "a b a b", 0.5), ("type_token_ratio", "", 0),
        ("repeated_trigrams", "a b a b a b", 0.5), ("hedges", "Perhaps it is so", 0.25), ("hedges", "", 0),
    ],
)  # fmt: skip
def test_features_by_hand(name, text, value):
    assert BUILT_IN[name](text) == pytest.approx(value)


def test_features_of_a_users_own_are_data():
    assert feature_from({"name": "thanks", "words": ["Thanks"]}).of("thanks a lot, THANKS") == 0.5
    assert feature_from({"name": "steps", "pattern": r"^Step \d"}).of("Step 1\nStep 2\nno Step 3") == 2
    for told, match in [
        ("lenght", "no such feature"), ({"name": "a", "words": ["x"], "pattern": "y"}, "at most one"),
        ({"name": "a", "code": "x"}, "at most"), ({"name": "a", "pattern": "("}, "no regular expression"),
        ({"name": "a", "words": "xyz"}, "list of words"), ({"words": ["a"]}, "a name"),
        ({"name": "a", "pattern": "x" * 501}, "1 to 500"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=match):
            feature_from(told)


def test_answers_that_are_turns_are_their_assistant_words():
    assert answer_text((Message("assistant", "a"), Message("user", "b?"), Message("assistant", "c"))) == "a\nc"


# -- acceptance: a known reward ----------------------------------------------------------------------------------------------


def answer(draw: random.Random) -> str:
    words = [draw.choice(WORDS) for _ in range(draw.randint(4, 40))]
    lines = [f"- {draw.choice(WORDS)}" for _ in range(draw.randint(0, 4))]
    return " ".join(words) + draw.choice([".", "?", "??"]) + "".join(f"\n{line}" for line in lines)


def gold(text: str) -> float:
    return sum(weight * BUILT_IN[name](text) for name, weight in GOLD.items())


def simulated(count: int, seed: int) -> list[Comparison]:
    draw, told = random.Random(seed), []
    for i in range(count):
        one, two = answer(draw), answer(draw)
        if draw.random() >= 1 / (1 + math.exp(gold(two) - gold(one))):
            one, two = two, one
        told.append(Comparison(f"q{i}", one, two))
    return told


@pytest.fixture(scope="module")
def fitted():
    return fit_linear(simulated(2000, 0), list(GOLD))


def test_2000_simulated_pairs_recover_the_reward_that_judged_them(fitted):
    """Acceptance: correlation above .95 with the gold reward on new answers, calibration error below .05 on new pairs."""
    held = simulated(2000, 1)
    texts = [pair.chosen for pair in held] + [pair.rejected for pair in held]
    scores = np.array([fitted.score(text) for text in texts])
    assert np.corrcoef(scores, [gold(text) for text in texts])[0, 1] > 0.95
    gap = scores[: len(held)] - scores[len(held) :]
    assert calibration(gap, np.ones(len(gap)), range(len(gap)), seed=0).ece < 0.05
    for k, (name, weight) in enumerate(GOLD.items()):  # in log-odds, within what the fit says of itself
        assert abs(fitted.weights[k] / fitted.stds[k] - weight) < 4 * fitted.standard_errors[k] / fitted.stds[k], name


def test_scores_have_mean_0_on_the_answers_of_the_fit_and_the_table_reads_well(fitted):
    texts = [text for pair in simulated(2000, 0) for text in (pair.chosen, pair.rejected)]
    assert float(np.mean([fitted.score(text) for text in texts])) == pytest.approx(0, abs=1e-9)
    assert sum(fitted.contributions(texts[0]).values()) == pytest.approx(fitted.score(texts[0]))
    rows = fitted.table().splitlines()
    assert [row.split()[0] for row in rows[1:]] == [fitted.features[k].name for k in np.argsort([-abs(w) for w in fitted.weights])]


def test_labels_and_ties_count_as_they_are():
    pairs = [Comparison("q", "a b c", "a", label=label) for label in (1.0, 1.0, 0.5, 0.5)]
    (w,) = fit_linear(pairs, ["length"], l2=1e-9).weights
    assert w * 2 == pytest.approx(math.log(0.75 / 0.25), abs=1e-5)  # the two answers lie two standard deviations apart


def test_features_of_one_name_and_ties_alone_are_refused(fitted, tmp_path):
    """What they add is summed by name: the second would take the place of the first."""
    twice = ["length", {"name": "length", "pattern": "x"}]
    with pytest.raises(ConfigError, match="two features are called length"):
        fit_linear(simulated(4, 0), twice)
    told = json.loads(fitted.save(tmp_path / "linear.json").read_text())
    (tmp_path / "linear.json").write_text(json.dumps(told | {"features": told["features"][:1] * 2}))
    with pytest.raises(ModelError, match="two features are called log_length"):
        load_linear(tmp_path / "linear.json")
    with pytest.raises(DataError, match="every pair is a tie"):
        fit_linear([Comparison("q", "a b", "a", label=0.5)], ["length"])


def test_the_file_is_read_back_as_it_was(fitted, tmp_path):
    path = fitted.save(tmp_path / "linear.json")
    assert load_linear(path) == fitted
    for spoil in ({"kind": "other"}, {"version": 9}, {"features": []}, {"features": [{"name": "length"}]}):
        path.write_text(json.dumps(json.loads(fitted.save(path).read_text()) | spoil))
        with pytest.raises(ModelError, match=r"linear\.json is no linear reward model"):
            load_linear(path)
    with pytest.raises(ModelError, match="is no linear reward model"):
        load_linear(tmp_path / "none.json")


def test_it_is_a_reward_part(fitted, tmp_path, make_rollout):
    path = str(fitted.save(tmp_path / "linear.json"))
    part = build_part("linear", {"path": path})
    (score,) = part.score([make_rollout("sea sky. Perhaps?")])
    assert score.value == pytest.approx(fitted.score("sea sky. Perhaps?"))
    assert set(score.parts) == set(GOLD)
    for params, match in [({}, "path: missing"), ({"path": "no.json"}, "is no linear"), ({"path": path, "weight": 2}, "no such setting")]:
        with pytest.raises(ConfigError, match=match):
            build_part("linear", params)


def test_columns_of_judged_rows_are_features_of_a_fit_but_not_of_a_new_answer(tmp_path):
    rows = [{"prompt": f"q{i}", "chosen": "a", "rejected": "b", "chosen_kind": 1 + i % 2, "rejected_kind": i % 3} for i in range(30)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = ('{"name": "kindness", "column": "kind"}', "length")
    with pytest.raises(DataError, match="length is the same for all answers"):
        linear_command(str(tmp_path / "pairs.jsonl"), tmp_path / "x.json", told, 1e-3)
    model, path = linear_command(str(tmp_path / "pairs.jsonl"), tmp_path / "x.json", told[:1], 1e-3)
    assert model.weights[0] > 0
    assert load_linear(path).fitted_to["data_sha256"] == file_sha256(tmp_path / "pairs.jsonl")
    with pytest.raises(ConfigError, match=r"--output .*pairs\.jsonl: this file is read by this command"):
        linear_command(str(tmp_path / "pairs.jsonl"), tmp_path / "pairs.jsonl", told[:1], 1e-3)
    with pytest.raises(ConfigError, match="kindness from columns of judged rows"):
        build_rubric([type("Part", (), {"kind": "linear", "weight": 1.0, "params": {"path": str(path)}})()])
    with pytest.raises(DataError, match=r"row 1: `chosen_other` must be a finite number"):
        pair_features([feature_from({"name": "o", "column": "other"})], [Comparison("q", "a", "b")], rows, "f")


@pytest.mark.parametrize(("arguments", "match"), [((("length",), 0.0), "--l2 0"), ((("{no",), 1.0), "neither a name nor JSON")])
def test_words_of_the_command_line_that_make_no_sense(arguments, match, tmp_path):
    with pytest.raises(ConfigError, match=match):
        linear_command("tether:quickstart_comparisons.jsonl", tmp_path / "x.json", *arguments)
