import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tether.errors import ConfigError, DataError, ModelError, RewardError
from tether.rewards.build import KINDS, build_part, build_rubric
from tether.rewards.learned import LearnedPart
from tether.rewards.linear import fit_linear
from tether.rewards.rubric import Rubric, count_failures, weighted_total
from tether.types import Comparison, Failure, Message, Prompt, Score, StopReason

CASES = json.loads((Path(__file__).parents[1] / "golden" / "cases.json").read_text())
CASES = CASES if isinstance(CASES, list) else CASES["cases"]


@dataclass
class TextLength:
    """Scores the length of the text; "break" raises, "n/a" does not apply."""

    name: str = "length_of_text"
    calls: list[int] = field(default_factory=list)

    def score(self, rollouts):
        self.calls.append(len(rollouts))
        return [self.one(rollout.text) for rollout in rollouts]

    def one(self, text):
        if text == "break":
            raise RuntimeError("the verifier broke")
        return Score(None) if text == "n/a" else Score(float(len(text)), {"half": len(text) / 2})


@dataclass
class Fixed:
    value: object
    name: str = "fixed"

    def score(self, rollouts):
        return [self.value for _ in rollouts]


@pytest.mark.parametrize("case", [c for c in CASES if c["op"] == "mixed_reward"], ids=lambda c: c["id"])
def test_totals_agree_with_the_golden_vectors(case):
    rows = [[float(v) for v in row] for row in case["inputs"]["rewards"]]
    got = [weighted_total(row, case["inputs"]["weights"]) for row in rows]
    assert got == pytest.approx([float(v) for v in case["expected"]["total"]], nan_ok=True)


def test_groups_order_and_components_are_kept(make_rollout):
    rubric = Rubric([("a", 2.0, TextLength()), ("b", 1.0, Fixed(Score(0.5)))])
    groups = rubric.score([[make_rollout("xy"), make_rollout("n/a")], [], [make_rollout("xyz")]])
    assert [g.scores for g in groups] == [(4.5, 0.5), (), (6.5,)]
    assert groups[0].components[0] == {"a": 2.0, "a/half": 1.0, "b": 0.5}
    assert math.isnan(groups[0].components[1]["a"])
    assert groups[0].failures == (None, None)


def test_a_broken_verifier_costs_only_its_rollout_and_is_counted(make_rollout):
    part = TextLength()
    groups = Rubric([("a", 1.0, part), ("b", 1.0, Fixed(Score(1.0)))]).score(
        [[make_rollout("x"), make_rollout("break")], [make_rollout("xyz")]], max_failure_share=0.5
    )
    assert groups[0].scores[0] == 2.0
    assert math.isnan(groups[0].scores[1])
    assert groups[1].scores == (4.0,)
    assert groups[0].failures == (None, Failure("a", "RuntimeError: the verifier broke"))
    assert groups[0].components[1]["b"] == 1.0
    count = count_failures(groups)
    assert (count.num_failed, count.num_rollouts, count.by_boundary) == (1, 3, {"a": 1})
    assert part.calls == [3, 1, 1, 1]


def test_too_many_failures_stop_the_run_and_say_why(make_rollout):
    rubric = Rubric([("a", 1.0, TextLength())])
    with pytest.raises(RewardError, match=r"1 of 2 .*50%.*10%.*verifier broke"):
        rubric.score([[make_rollout("x"), make_rollout("break")]])
    rubric.score([[make_rollout("x"), make_rollout("break")]], max_failure_share=0.5)


def test_a_failure_of_the_data_names_file_and_row(make_rollout):
    rollout = make_rollout("Answer: 12")
    from_file = replace(rollout, prompt=replace(rollout.prompt, origin="p.jsonl, row 7"))
    rubric = build_rubric([SimpleNamespace(kind="exact", weight=1.0, params={})])
    with pytest.raises(RewardError, match=r"the first, of p\.jsonl, row 7: `answer` is missing"):
        rubric.score([[from_file]])
    with pytest.raises(RewardError, match=r"the first, of prompt 'p': `answer` is missing"):
        rubric.score([[rollout]])


def test_wrong_answers_never_stop_the_run(make_rollout):
    (group,) = build_rubric([SimpleNamespace(kind="exact", weight=1.0, params={})]).score([[make_rollout("?", answer=1)] * 4])
    assert group.scores == (0.0,) * 4


@pytest.mark.parametrize("value", [Score(math.inf), Score(-math.inf), 3.0, None, Score("high")])
def test_values_that_are_no_scores_are_failures(make_rollout, value):
    (group,) = Rubric([("a", 1.0, Fixed(value))]).score([[make_rollout("x")]], max_failure_share=1.0)
    assert group.failures[0].boundary == "a"
    assert math.isnan(group.scores[0])


@pytest.mark.parametrize("value", [Score(None), Score(math.nan)])
def test_a_rollout_to_which_nothing_applies_is_unscorable_and_no_failure(make_rollout, value):
    (group,) = Rubric([("a", 1.0, Fixed(value))]).score([[make_rollout("x")]])
    assert math.isnan(group.scores[0])
    assert group.failures == (None,)


def test_aborted_rollouts_are_shown_to_no_part(make_rollout):
    part = TextLength()
    (group,) = Rubric([("a", 1.0, part)]).score([[make_rollout("x", stop=StopReason.ABORT), make_rollout("xy")]], max_failure_share=0.5)
    assert group.failures[0].boundary == "sampler"
    assert part.calls == [1]


@pytest.mark.parametrize(("error", "raised"), [(ModelError, ModelError), (DataError, RewardError)])
def test_a_run_that_cannot_go_on_stops_but_a_bad_row_is_counted(make_rollout, error, raised):
    class Refuses:
        name = "refuses"

        def score(self, rollouts):
            raise error("no")

    with pytest.raises(raised):
        Rubric([("a", 1.0, Refuses())]).score([[make_rollout("x")]])


def test_a_part_that_loses_rollouts_is_refused(make_rollout):
    class Loses:
        name = "loses"

        def score(self, rollouts):
            return []

    with pytest.raises(RewardError, match="0 scores for 1"):
        Rubric([("a", 1.0, Loses())]).score([[make_rollout("x")]])


def test_a_rubric_is_checked():
    part = TextLength()
    for parts in ([], [("a", 1.0, part), ("a", 1.0, part)], [("a", math.nan, part)]):
        with pytest.raises(ValueError, match=r"part|weight"):
            Rubric(parts)


# build

PARAMS = {
    "exact": {},
    "format": {"ending": "sentence"},
    "length": {"low": 1, "high": 2, "falloff": 3},
    "overlong": {"max_length": 9, "cache": 3},
    "plainspoken": {},
    "learned": {},
    "linear": {},
}


class Counts:
    """A reward model that gives the number of letters, and remembers what it was asked."""

    score_offset = -10.0

    def __init__(self):
        self.asked = []

    def score_texts(self, prompts, completions, *, token_budget):
        self.asked.append((prompts, completions, token_budget))
        texts = [c if isinstance(c, str) else c[0].content for c in completions]
        return [math.nan if text == "nan" else float(len(text)) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_built_by_name(kind, tmp_path):
    params = PARAMS[kind]
    if kind == "linear":
        params = {"path": str(fit_linear([Comparison("q", "a b", "a")], ["length"]).save(tmp_path / "linear.json"))}
    assert build_part(kind, params, reward_model=Counts()).name == kind


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("exakt", {}, "did you mean 'exact'"),
        ("exact", {"colum": "a"}, "did you mean 'column'"),
        ("exact", {"compare": "floats"}, "compare"),
        ("length", {"low": 1}, "2 problems"),
        ("length", {"low": "a", "high": 2, "falloff": 3}, "rewards.length.params"),
        ("length", {"low": "a", "high": 2.5, "falloff": True}, r"(?s)3 problems.*high = 2\.5: expected a valid integer"),
        ("exact", {"marker": 4}, r"rewards\.exact\.params\.marker = 4: expected a valid string"),
        ("format", {"ending": 3}, "ending = 3: expected a valid string"),
        ("format", {}, "at least one of"),
        ("format", {"pattern": "("}, "regular expression"),
        ("learned", {}, "no reward_model stage"),
        ("learned", {"pth": "x"}, "did you mean 'path'"),
    ],
)
def test_what_cannot_be_built_says_what_to_do(kind, params, message):
    with pytest.raises(ConfigError, match=message):
        build_part(kind, params)


def test_the_simulated_rater_is_never_a_training_reward():
    with pytest.raises(ConfigError, match="independent score"):
        build_rubric([SimpleNamespace(kind="plainspoken", weight=1.0, params={})])


def test_a_kind_used_twice_gets_two_names():
    part = SimpleNamespace(kind="format", weight=1.0, params={"ending": "sentence"})
    named = SimpleNamespace(kind="format", weight=1.0, params={"ending": "!", "name": "shout"})
    assert [name for name, _, _ in build_rubric([part, named, part]).parts] == ["format", "shout", "format_2"]
    taken = SimpleNamespace(kind="format", weight=3.0, params={"ending": "!", "name": "format_2"})
    assert [(name, weight) for name, weight, _ in build_rubric([taken, part, part]).parts] == [  # none takes the place of another
        ("format_2", 3.0), ("format_3", 1.0), ("format_4", 1.0),
    ]  # fmt: skip


# learned


def test_learned_scores_keep_order_and_add_the_offset(make_rollout):
    model = Counts()
    rollouts = [make_rollout("x" * n) for n in (9, 3, 30)]
    results = LearnedPart(model, token_budget=12).score(rollouts)
    assert [r.value for r in results] == [-1.0, -7.0, 20.0]
    assert results[0].parts == {"raw": 9.0}
    ((prompts, completions, token_budget),) = model.asked
    assert prompts[0] == (Message("user", "What is 7 + 5?"),)
    assert completions[0] == (Message("assistant", "x" * 9),)
    assert token_budget == 12


def test_a_plain_prompt_gets_a_plain_answer(make_rollout):
    model, rollout = Counts(), make_rollout("abc")
    LearnedPart(model).score([replace(rollout, prompt=Prompt("p", "7 + 5 ="))])
    assert model.asked[0][:2] == (["7 + 5 ="], ["abc"])


def test_a_score_that_is_not_finite_is_a_failure(make_rollout):
    results = LearnedPart(Counts()).score([make_rollout("nan"), make_rollout("x")])
    assert isinstance(results[0], Failure)
    assert results[1].value == -9.0


def test_a_real_reward_model_scores_rollouts(make_rollout, tmp_path):
    pytest.importorskip("torch")
    from tether.models.reward import RewardModel
    from tether.models.tiny import make_tiny

    model = RewardModel.from_base(str(make_tiny(tmp_path / "tiny")), seed=0)
    rollouts = [make_rollout(text) for text in ("twelve.", "", "It is twelve, because seven and five make twelve.")]
    (group,) = Rubric([("learned", 1.0, build_part("learned", {}, reward_model=model))]).score([rollouts])
    alone = [Rubric([("learned", 1.0, LearnedPart(model))]).score([[r]])[0].scores[0] for r in rollouts]
    assert group.scores == pytest.approx(alone, abs=1e-5)
    assert len(set(group.scores)) == 3
