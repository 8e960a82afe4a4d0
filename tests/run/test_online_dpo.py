"""Online DPO on the tiny model: pairs and ties, exact starts, learning, the tether, a refreshed reference, resuming, a whole run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import tether
from tether.api import PolicyUpdater
from tether.backends.compute import Compute
from tether.config import OnlineDPOConfig, RunConfig, parse_config
from tether.data.batches import pad_examples
from tether.errors import ConfigError, RatioError
from tether.events import read_events
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.tiny import make_tiny
from tether.records import write_jsonl
from tether.run.online_dpo import OnlineDPOLearner, best_against_worst
from tether.run.pipeline import run
from tether.run.rows import RolloutRow
from tether.text.chat import sampled_example

FLOAT32 = Compute(torch.device("cpu"), torch.float32, 4096)
DATA = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": 8}}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model")


def row(score, group="p", answer=(7,), query=(5, 6)):
    return RolloutRow(query, tuple(answer), None, float(score), group, True)


def make_rows(num_prompts=4, samples=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for prompt in range(num_prompts):
        query = tuple(torch.randint(5, 100, (4 + prompt,), generator=generator).tolist())
        for sample in range(samples):
            length = int(torch.randint(1, 8, (1,), generator=generator))
            rows.append(row(sample, f"p{prompt}", torch.randint(5, 100, (length,), generator=generator).tolist(), query))
    return rows


def learner(policy, compute=FLOAT32, reference=None, **settings):
    config = OnlineDPOConfig.model_validate({**DATA, "steps": 4, "optim": {"learning_rate": 1e-3}, **settings})
    return OnlineDPOLearner(policy, reference or Reference.frozen_copy(policy), config, compute)


def weights(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


# -- pairs -------------------------------------------------------------------------------------------------------------------


def test_best_is_paired_with_worst_and_groups_without_a_gap_give_none():
    rows = [row(0.2, "a", (1,)), row(0.9, "a", (2,)), row(-1, "a", (3,)), row(1, "b", (4,)), row(1, "b", (5,)), row(3, "alone"),
            row(1, "same", (8,)), row(0, "same", (8,))]  # fmt: skip
    chosen = best_against_worst(rows, 0.0)
    assert chosen.pairs == ((1, 2),)
    assert chosen.num_groups == 4
    assert chosen.gaps == (1.9,)
    assert best_against_worst(rows[:3], 1.9).pairs == ()
    assert best_against_worst(rows[:3], 1.8).pairs == ((1, 2),)


def test_a_round_without_a_pair_updates_nothing_and_is_counted(tiny_folder):
    policy = Policy.load(tiny_folder)
    made, before = learner(policy), weights(policy)
    metrics = made.learn([row(1, "a", (7,)), row(1, "a", (8,)), row(0.5, "b", (7,)), row(0.5, "b", (9,))])
    assert metrics["tie_share"] == 1
    assert metrics["optimiser_steps"] == 0
    assert "pair_gap" not in metrics
    assert torch.equal(before, weights(policy))


def test_ties_are_skipped_and_do_not_change_the_update(tiny_folder):
    after = []
    for ties in ([], [row(1, "tie", (20, 21)), row(1, "tie", (22,))]):
        policy = Policy.load(tiny_folder)
        metrics = learner(policy, optim={"learning_rate": 1e-4, "eps": 1e-3}).learn([*make_rows(), *ties])
        assert metrics["tie_share"] == pytest.approx(1 / 5 if ties else 0)
        assert metrics["pair_gap"] == 2
        after.append(weights(policy))
    assert torch.allclose(after[0], after[1], atol=1e-6)


# -- the update --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["dpo", "ipo", "hinge"])
def test_before_the_first_update_implied_rewards_and_the_kl_are_zero(tiny_folder, loss):
    metrics = learner(Policy.load(tiny_folder), loss=loss).learn(make_rows())
    assert metrics["implied_margin"] == metrics["implied_reward_chosen"] == metrics["first_ratio_error"] == 0
    assert metrics["kl_k1_sequence"] == pytest.approx(0, abs=1e-5)
    assert metrics["loss"] == pytest.approx({"dpo": 0.693147, "ipo": 25.0, "hinge": 1.0}[loss], abs=1e-5)
    assert metrics["optimiser_steps"] == 1


def test_case_D7_the_token_budget_changes_nothing(tiny_folder):
    after = []
    for budget in (16, 60, 4096):
        policy = Policy.load(tiny_folder)
        settings = {"epochs": 2, "minibatches": 2, "optim": {"learning_rate": 1e-4, "eps": 1e-3}}
        metrics = learner(policy, replace(FLOAT32, token_budget=budget), **settings).learn(make_rows())
        assert metrics["optimiser_steps"] == 4
        after.append(weights(policy))
    assert torch.allclose(after[0], after[2], atol=1e-6)
    assert torch.allclose(after[1], after[2], atol=1e-6)


def test_a_policy_that_moves_between_the_passes_is_refused(tiny_folder, monkeypatch):
    policy = Policy.load(tiny_folder)
    made = learner(policy)
    honest = made._experience

    def moved(*arguments):
        experience = honest(*arguments)
        return replace(experience, old_logprobs_BT=torch.where(experience.mask_BT, experience.old_logprobs_BT - 0.1, 0.0))

    monkeypatch.setattr(made, "_experience", moved)
    before = weights(policy)
    with pytest.raises(RatioError, match=r"differs by 0\.1 nats"):
        made.learn(make_rows())
    assert torch.equal(before, weights(policy))


def logprob_of_7(policy):
    with torch.no_grad():
        return float(policy.forward_response(pad_examples([sampled_example((5, 6), (7,))], 0), 1.0).logprobs_BT[0, 2])


@pytest.mark.parametrize("loss", ["dpo", "ipo", "hinge"])
def test_learning_raises_the_preferred_token_and_a_stronger_tether_holds_it_nearer(tiny_folder, loss):
    """Token 7 beats every other answer; the answers are drawn from the policy of each round."""
    origin, finals = logprob_of_7(Policy.load(tiny_folder)), {}
    for beta in (0.05, 1.0):
        policy = Policy.load(tiny_folder)
        made, generator = learner(policy, loss=loss, beta=beta, steps=12), torch.Generator().manual_seed(0)
        for _ in range(12):
            with torch.no_grad():
                logits = policy.model(torch.tensor([[5, 6]])).logits[0, -1]
            others = torch.multinomial(torch.softmax(logits, -1), 4, replacement=True, generator=generator).tolist()
            made.learn([row(token == 7, f"g{n}", (token,)) for n, other in enumerate(others) for token in (7, other)])
        finals[beta] = logprob_of_7(policy)
    assert finals[0.05] > origin + 0.5
    assert abs(finals[1.0] - origin) < abs(finals[0.05] - origin)


# -- the reference -----------------------------------------------------------------------------------------------------------


def test_the_reference_is_refreshed_after_so_many_rounds(tiny_folder):
    made = learner(Policy.load(tiny_folder), refresh_reference=2)
    kl = [made.learn(make_rows())["kl_k1_sequence"] for _ in range(4)]
    assert kl[0] == pytest.approx(0, abs=1e-5)
    assert abs(kl[1]) > 1e-3
    assert kl[2] == pytest.approx(0, abs=1e-5)
    assert abs(kl[3]) > 1e-3


def test_a_reference_that_follows_the_policy_cannot_be_refreshed(tiny_folder):
    pytest.importorskip("peft")
    policy = Policy.load(tiny_folder, lora=LoraSpec(2, 4.0, ("q_proj",)))
    with pytest.raises(ConfigError, match="adapters off, which never changes"):
        learner(policy, reference=Reference.adapter_off(policy), refresh_reference=1)
    metrics = learner(policy, reference=Reference.adapter_off(policy)).learn(make_rows())
    assert metrics["optimiser_steps"] == 1
    text = '[model]\nlora = {}\n[rl.o]\nkind = "online_dpo"\nprompts.path = "p"\nrewards = [{kind = "format"}]\nrefresh_reference = 2\n'
    with pytest.raises(ConfigError, match=r"rl\.o\.refresh_reference with model\.lora"):
        parse_config(text, ".toml")


def test_a_restored_learner_goes_on_bit_for_bit(tiny_folder):
    whole = learner(Policy.load(tiny_folder), refresh_reference=2, epochs=2)
    for seed in range(5):
        if seed == 3:  # after the reference was refreshed
            kept = whole.state()
            tensors = {name: tensor.clone() for name, tensor in kept.tensors.items()}
            kept = replace(kept, tensors=tensors, values=json.loads(json.dumps(kept.values)))
        last = whole.learn(make_rows(seed=seed))
    other = learner(Policy.load(tiny_folder), refresh_reference=2, epochs=2)
    other.restore(kept)
    for seed in (3, 4):
        again = other.learn(make_rows(seed=seed))
    timed = {"annotate_seconds", "update_seconds"}
    assert {k: v for k, v in last.items() if k not in timed} == {k: v for k, v in again.items() if k not in timed}
    assert torch.equal(weights(whole.policy), weights(other.policy))


# -- from outside ------------------------------------------------------------------------------------------------------------


def test_from_python_and_in_a_loop_of_ones_own(tiny_folder, tmp_path):
    policy = Policy.load(tiny_folder)
    settings = {"steps": 2, "prompts_per_step": 2, "sampling": {"max_new_tokens": 6}, "compute": {"dtype": "float32", "threads": 1}}
    metrics = tether.rl(policy, ["one two", "three"], lambda prompt, answer: float(len(answer)), algorithm="online_dpo", **settings)
    assert 0 <= metrics["tie_share"] <= 1
    updater = PolicyUpdater(policy, "online_dpo", settings={"compute": {"dtype": "float32", "threads": 1}})
    assert updater.update([[5, 6]] * 2, [[7], [8, 9]], [1.0, 0.0])["pair_gap"] == 1
    assert updater.beta == 0.1
    with pytest.raises(ValueError, match="no group has two rows"):
        updater.update([[5, 6]] * 2, [[7], [8]], [1.0, 0.0], groups=["a", "b"])


def test_more_minibatches_than_pairs_are_refused():
    text = '[rl.o]\nkind = "online_dpo"\nprompts.path = "p"\nrewards = [{kind = "format"}]\nprompts_per_step = 4\nminibatches = 5\n'
    with pytest.raises(ConfigError, match="more than the 4 pairs of a step"):
        parse_config(text, ".toml")


def test_a_run_with_a_stage_of_online_dpo_draws_the_tether(tmp_path):
    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": f"Say {i}."} for i in range(6)])
    stage = {"kind": "online_dpo", "prompts": {"path": str(tmp_path / "prompts.jsonl")}, "steps": 2, "prompts_per_step": 3,
             "samples_per_prompt": 3, "sampling": {"max_new_tokens": 8}, "optim": {"learning_rate": 1e-3},
             "rewards": [{"kind": "length", "params": {"low": 1, "high": 4, "falloff": 4}}]}  # fmt: skip
    config = {"name": "o", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
              "rl": {"online": stage}}  # fmt: skip
    result = run(RunConfig.model_validate(config))
    steps = [event["metrics"] for event in read_events(result.folder / "events.jsonl") if event["kind"] == "step"]
    assert {"kl_k1_sequence", "kl_k1_token", "tie_share", "beta", "reward"} <= steps[-1].keys()
    page = result.report.read_text(encoding="utf-8")
    assert "Reward against KL, by step" in page
    assert "online: Online DPO" in page
    assert "the KL acts in the preference loss with beta 0.1 per nat" in page
