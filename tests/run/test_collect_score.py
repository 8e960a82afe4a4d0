"""`tether collect score`: scores of all answers in log-odds, and an answer that a model refuses is named."""

from __future__ import annotations

import pytest

from tether.collect.entries import Answer
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.errors import DataError
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.run.collect_score import score_answers
from tether.types import Prompt


@pytest.fixture
def database(tmp_path):
    with Store.create(str(tmp_path / "a.db"), Settings()) as store:
        store.add_prompts([Prompt("p0", "Say hello.")])
        store.add_answers(Answer(f"a{n}", "p0", text) for n, text in enumerate(("Hello.", "No.", "one two three four five six seven")))
    return str(tmp_path / "a.db")


def test_scores_are_log_odds_whatever_a_unit_of_the_model_is(database, tmp_path):
    """The choice of the next item reads sigmoid(s_a - s_b): a model normalised to a standard deviation of 1 must say the same as before."""
    model = RewardModel.from_base(resolve_model("tiny"), seed=1)
    model.save(tmp_path / "plain")
    model.normalise(0.5, 4.0)
    model.save(tmp_path / "run" / "reward_model")
    (tmp_path / "run" / "events.jsonl").write_text("")  # a run stands for its reward model
    lines = list(score_answers(database, [str(tmp_path / "plain"), str(tmp_path / "run")]))
    assert [line.split("@")[0] for line in lines[:2]] == ["plain", "reward_model"]
    with Store.open(database) as store:
        plain, normalised = (store.scores(scorer) for scorer in store.scorers())
    assert normalised == pytest.approx(plain, abs=1e-3)
    assert len(plain) == 3


def test_an_answer_that_is_refused_is_named(database, tmp_path):
    model = RewardModel.from_base(resolve_model("tiny"), seed=1)
    model.max_length = model.num_tokens("Say hello.", "one two three four five six seven") - 1
    model.save(tmp_path / "short")
    with pytest.raises(DataError, match=r"answer a2 to prompt p0: text 1 has \d+ tokens"):
        list(score_answers(database, [str(tmp_path / "short")]))
