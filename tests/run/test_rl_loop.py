"""The online loop: which answers reach the learner, with which scores; and the rounds in which only the critic learns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

from tether.backends.compute import Compute
from tether.config import rl_kind
from tether.events import EventLog, read_events
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.models.value import Critic
from tether.rewards.rubric import Rubric
from tether.rollout.scripted import ScriptedSampler
from tether.run.learner import OnlineLearner
from tether.run.observer import Quiet
from tether.run.recorder import Recorder
from tether.run.rl import OnlineRun, rl
from tether.run.rows import RolloutRow
from tether.types import Prompt, Score

COMPUTE = Compute(torch.device("cpu"), torch.float32, 4096)


@pytest.fixture
def policy():
    return Policy.load(resolve_model("tiny"))


def config_of(kind, **settings):
    base = {"kind": kind, "prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "steps": 1, "sampling": {"max_new_tokens": 5}}
    return rl_kind(kind).model_validate({**base, **settings})


@dataclass
class Notebook:
    """A learner that learns nothing and writes down what it was given."""

    policy: Policy
    config: object
    rounds: list = field(default_factory=list)
    weights: list = field(default_factory=list)

    def learn(self, rows, part_weights=()):
        self.rounds.append(list(rows))
        self.weights.append(list(part_weights))
        return {}


@dataclass(frozen=True)
class TokenPart:
    """The score of an answer by its first token."""

    scores: dict
    name: str = "token"
    scale: float = 1.0

    def score(self, rollouts):
        return [Score(self.scale * self.scores[rollout.completion.token_ids[0]]) for rollout in rollouts]


@dataclass
class Teller:
    """A scripted sampler that keeps the requests, and has a script of its own for greedy answers."""

    script: object
    greedy: object = None
    asked: list = field(default_factory=list)

    def refresh(self, version):
        pass

    def generate(self, requests, sampling):
        self.asked.append(list(requests))
        return ScriptedSampler(self.greedy if sampling.greedy else self.script).generate(requests, sampling)


def prompts(count):
    return [Prompt(f"p{number}", f"Say {number}.") for number in range(count)]


def play(learner, sampler, parts, tmp_path, num_prompts=4):
    """Run the loop; the metrics of every step."""
    log = EventLog(tmp_path / "events.jsonl")
    rubric = Rubric([(part.name, weight, part) for weight, part in parts])
    try:
        rl(OnlineRun(learner, sampler, rubric, prompts(num_prompts), 0), Recorder(log, Quiet(), "rl.test", learner.config.steps))
    finally:
        log.close()
    return [event["metrics"] for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "step"]


# -- dynamic sampling --------------------------------------------------------------------------------------------------------

ALIVE = {"p1", "p3"}


def odd_prompts_are_alive(request, index):
    name = request.prompt_id.split("\x1f")[0]
    return (10 + index % 2,) if name in ALIVE else (10,)


def dapo(**settings):
    return config_of("dapo", samples_per_prompt=2, prompts_per_step=2, overlong_share="off", **settings)


ZERO_OR_ONE = [(1.0, TokenPart({10: 0.0, 11: 1.0}))]


def test_dead_groups_are_replaced_by_further_prompts(policy, tmp_path):
    notebook, sampler = Notebook(policy, dapo()), Teller(odd_prompts_are_alive)
    (metrics,) = play(notebook, sampler, ZERO_OR_ONE, tmp_path)
    assert {row.group for row in notebook.rounds[0]} == ALIVE  # one epoch has four prompts: two batches, both odd ones in it
    assert len(notebook.rounds[0]) == 4
    assert metrics["sampled_batches"] == len(sampler.asked) == 2
    assert metrics["filtered_group_share"] == 0.5
    assert metrics["reward"] == 0.25  # of all answers asked: what the policy does, not what the filter leaves


def test_a_full_batch_asks_no_further_one(policy, tmp_path):
    notebook, sampler = Notebook(policy, dapo()), Teller(lambda request, index: (10 + index,))
    (metrics,) = play(notebook, sampler, ZERO_OR_ONE, tmp_path)
    assert (len(notebook.rounds[0]), len(sampler.asked)) == (4, 1)
    assert (metrics["sampled_batches"], metrics["filtered_group_share"]) == (1, 0)


def test_groups_beyond_the_wanted_number_are_left_out(policy, tmp_path):
    """First batch: one of two alive; second: both alive. Three are kept, two are wanted."""
    batches = iter([["dead", "live"], ["live", "live"]])
    fate = {}

    def script(request, index):
        if index == 0:
            fate[request.key] = fates.pop(0) if fates else _refill(fates, batches)
        return (10 + index,) if fate[request.key] == "live" else (10,)

    fates: list = []
    notebook = Notebook(policy, dapo())
    play(notebook, Teller(script), ZERO_OR_ONE, tmp_path)
    assert len(notebook.rounds[0]) == 4


def _refill(fates, batches):
    fates.extend(next(batches))
    return fates.pop(0)


def test_the_budget_of_batches_is_kept_and_what_is_alive_is_trained_on(policy, tmp_path):
    def only_p1(request, index):
        return (10 + index,) if request.prompt_id == "p1" else (10,)

    notebook, sampler = Notebook(policy, dapo(dynamic_sampling={"max_batches": 2})), Teller(only_p1)
    (metrics,) = play(notebook, sampler, ZERO_OR_ONE, tmp_path)
    assert metrics["sampled_batches"] == len(sampler.asked) == 2
    assert metrics["filtered_group_share"] == 0.75
    assert [row.group for row in notebook.rounds[0]] == ["p1", "p1"]


def test_without_a_live_group_the_last_batch_stays_and_every_batch_is_drawn_anew(policy, tmp_path):
    """One prompt, asked three times: the same prompt with other randomness each time. Batch number n answers 10 + n."""
    keys: list = []

    def script(request, index):
        if request.key not in keys:
            keys.append(request.key)
        return (10 + keys.index(request.key),)

    config = dapo().model_copy(update={"prompts_per_step": 1})
    notebook, sampler = Notebook(policy, config), Teller(script)
    (metrics,) = play(notebook, sampler, [(1.0, TokenPart({10: 0.0, 11: 1.0, 12: 2.0}))], tmp_path, num_prompts=1)
    assert len(set(keys)) == len(sampler.asked) == 3
    assert [row.response_ids for row in notebook.rounds[0]] == [(12,), (12,)]
    assert (metrics["filtered_group_share"], metrics["sampled_batches"]) == (1, 3)


def test_steps_draw_anew_as_well(policy, tmp_path):
    sampler = Teller(lambda request, index: (10 + index,))
    play(Notebook(policy, dapo(steps=3)), sampler, ZERO_OR_ONE, tmp_path, num_prompts=2)
    assert len({request.key for requests in sampler.asked for request in requests}) == 6


# -- baselines, parts, penalties ---------------------------------------------------------------------------------------------


def test_remax_subtracts_the_greedy_answer_to_the_same_prompt(policy, tmp_path):
    scores = {10: 0.0, 11: 1.0, 12: 0.25, 13: 0.75}
    greedy = {"p0": [(12,)], "p1": [(13,)]}
    sampler = Teller(lambda request, index: (11,) if request.prompt_id == "p0" else (10,), greedy)
    notebook = Notebook(policy, config_of("remax", prompts_per_step=2))
    (metrics,) = play(notebook, sampler, [(2.0, TokenPart(scores))], tmp_path, num_prompts=2)
    rows = {row.group: row for row in notebook.rounds[0]}
    assert (rows["p0"].score, rows["p0"].baseline_score) == (2.0, 0.5)
    assert (rows["p1"].score, rows["p1"].baseline_score) == (0.0, 1.5)
    assert metrics["baseline_reward"] == 1.0
    assert [len(requests) for requests in sampler.asked] == [2, 2]
    assert metrics["reward"] == 1.0  # of the samples alone


def test_one_greedy_answer_serves_all_samples_of_a_prompt(policy, tmp_path):
    sampler = Teller(lambda request, index: (10,), {"p0": [(11,)]})
    notebook = Notebook(policy, config_of("remax", prompts_per_step=1, samples_per_prompt=3))
    play(notebook, sampler, ZERO_OR_ONE, tmp_path, num_prompts=1)
    assert [row.baseline_score for row in notebook.rounds[0]] == [1.0, 1.0, 1.0]
    assert [request.num_samples for requests in sampler.asked for request in requests] == [3, 1]


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_gdpo_gives_parts_of_any_scale_the_same_say(policy, tmp_path, monkeypatch, scale):
    """Answers right and polite, right, polite, neither: z-scores (1, 1), (1, -1), (-1, 1), (-1, -1)."""
    parts = [
        (1.0, TokenPart({10: 1, 11: 1, 12: 0, 13: 0}, "right")),
        (1.0, TokenPart({10: 1, 11: 0, 12: 1, 13: 0}, "polite", scale)),
    ]
    advantages = advantages_of("gdpo", policy, parts, tmp_path, monkeypatch)
    assert advantages == pytest.approx([2**0.5, 0, 0, -(2**0.5)], abs=1e-4)


def test_grpo_hears_the_part_of_the_larger_scale_alone(policy, tmp_path, monkeypatch):
    parts = [
        (1.0, TokenPart({10: 1, 11: 1, 12: 0, 13: 0}, "right")),
        (1.0, TokenPart({10: 1, 11: 0, 12: 1, 13: 0}, "polite", 1000.0)),
    ]
    assert advantages_of("grpo", policy, parts, tmp_path, monkeypatch) == pytest.approx([1, -1, 1, -1], abs=3e-3)


def advantages_of(kind, policy, parts, tmp_path, monkeypatch):
    from tether.run import learner as module

    seen, honest = [], module.annotate

    def spy(experience, config, beta):
        seen.append(honest(experience, config, beta).advantages_BT[experience.mask_BT].tolist())
        return honest(experience, config, beta)

    monkeypatch.setattr(module, "annotate", spy)
    config = config_of(kind, samples_per_prompt=4, prompts_per_step=1)
    learner = OnlineLearner(policy, Reference.frozen_copy(policy), config, COMPUTE)
    play(learner, Teller(lambda request, index: (10 + index,)), parts, tmp_path, num_prompts=1)
    return seen[0]


def test_the_overlong_penalty_is_a_part_of_its_own(policy, tmp_path):
    """Budget 5, share .4: free up to 3 tokens, -.5 at 4, -1 at 5."""
    notebook = Notebook(policy, config_of("grpo", samples_per_prompt=3, prompts_per_step=1, overlong_share=0.4))
    sampler = Teller(lambda request, index: (10,) * (3 + index))
    (metrics,) = play(notebook, sampler, [(2.0, TokenPart({10: 1.0}))], tmp_path, num_prompts=1)
    assert [row.score for row in notebook.rounds[0]] == [2.0, 1.5, 1.0]
    assert [row.parts for row in notebook.rounds[0]] == [(1.0, 0.0), (1.0, -0.5), (1.0, -1.0)]
    assert notebook.weights == [[2.0, 1.0]]
    assert (metrics["reward/token"], metrics["reward/overlong"], metrics["reward"]) == (1.0, -0.5, 1.5)


def test_an_answer_that_no_part_scores_stays_unscored_under_the_overlong_penalty(policy, tmp_path):
    @dataclass(frozen=True)
    class Picky:
        name: str = "picky"

        def score(self, rollouts):
            return [Score(None if r.completion.token_ids[0] == 10 else 1.0) for r in rollouts]

    notebook = Notebook(policy, config_of("grpo", samples_per_prompt=2, prompts_per_step=1, overlong_share=0.4))
    (metrics,) = play(notebook, Teller(lambda request, index: (10 + index,)), [(1.0, Picky())], tmp_path, num_prompts=1)
    assert [row.response_ids for row in notebook.rounds[0]] == [(11,)]
    assert metrics["unscored_share"] == 0.5


# -- the learner's own rounds -------------------------------------------------------------------------------------------------


def rows(count=6):
    return [RolloutRow((5, 6), (7 + i, 8 + i), None, float(i % 2), f"p{i // 2}", True) for i in range(count)]


def flat(module):
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def test_value_pretraining_leaves_the_policy_bit_for_bit_and_moves_the_critic(policy):
    config = config_of("vapo", steps=3, optim={"learning_rate": 1e-3, "weight_decay": 0.1}, entropy_coef=0.01, kl={"beta": 0.1})
    critic = Critic.beside(policy.model)
    learner = OnlineLearner(policy, Reference.frozen_copy(policy), config, COMPUTE, critic=critic)
    assert config.value_pretrain_steps == 2
    start, errors = flat(policy), []
    for _ in range(2):
        before = flat(critic)
        errors.append(learner.learn(rows())["value_loss"])
        assert torch.equal(flat(policy), start)
        assert not torch.equal(flat(critic), before)
    errors.append(learner.learn(rows())["value_loss"])
    assert errors[0] > errors[1] > errors[2]
    assert not torch.equal(flat(policy), start)


def test_a_sampler_correction_needs_what_the_sampler_reported(policy):
    config = config_of("grpo", sampler_correction={"mode": "token_truncate"})
    learner = OnlineLearner(policy, Reference.frozen_copy(policy), config, COMPUTE)
    before = flat(policy)
    with pytest.raises(ValueError, match=r"row 0 \(p0\) has no sampler log-probabilities"):
        learner.learn(rows())
    assert torch.equal(flat(policy), before)
    metrics = learner.learn([replace(row, sampler_logprobs=(-6.0, -6.0)) for row in rows()])
    assert metrics["sampler_weight_mean"] > 0
    assert math.isfinite(metrics["sampler_ess"])


def test_without_a_correction_missing_sampler_numbers_are_no_matter(policy):
    metrics = OnlineLearner(policy, Reference.frozen_copy(policy), config_of("grpo"), COMPUTE).learn(rows())
    assert metrics["sampler_gap_max"] == 0


@pytest.mark.parametrize("kind", ["grpo", "dapo", "rloo", "ppo"])
def test_the_old_log_probabilities_of_a_single_update_are_its_own_and_nothing_else_changes(kind, policy):
    config = config_of(kind, steps=2, samples_per_prompt=2, optim={"learning_rate": 1e-2}, entropy_coef=0.01)
    start = {name: tensor.clone() for name, tensor in policy.state_dict().items()}

    def two_rounds(once):
        policy.load_state_dict(start)
        learner = OnlineLearner(policy, Reference.frozen_copy(policy), config, COMPUTE)
        assert learner.old_from_update == (kind in {"grpo", "dapo"})  # rloo: KL in the reward, ppo: values
        learner.old_from_update &= once
        told = [learner.learn(rows()) for _ in range(2)]
        return [{name: value for name, value in one.items() if not name.endswith("seconds")} for one in told], flat(policy)

    if kind == "ppo":
        policy.ensure_value_head()
        start = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    ours, expected = two_rounds(once=True), two_rounds(once=False)
    assert ours[0] == expected[0]
    assert torch.equal(ours[1], expected[1])


def test_it_saves_a_pass_of_the_policy(policy, monkeypatch):
    passes = []
    honest = Policy.forward_response
    monkeypatch.setattr(Policy, "forward_response", lambda self, *args, **kw: (passes.append(self is policy), honest(self, *args, **kw))[1])
    OnlineLearner(policy, Reference.frozen_copy(policy), config_of("grpo", samples_per_prompt=2), COMPUTE).learn(rows())
    assert passes == [False, True]  # the reference, the update


def test_a_policy_that_is_not_finite_in_its_only_pass_skips_the_round(policy):
    learner = OnlineLearner(policy, Reference.frozen_copy(policy), config_of("grpo", samples_per_prompt=2), COMPUTE)
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(torch.nan)
    before = flat(policy)
    assert learner.learn(rows())["skipped_steps"] == 1
    assert torch.equal(flat(policy).nan_to_num(), before.nan_to_num())
