"""The half of an online step that trains, on the tiny model: identities, denominators, places of the KL, early stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tether.algorithms.policy_gradient import policy_loss, step_counts
from tether.backends.compute import Compute
from tether.config import ActorCriticConfig, CriticFreeConfig
from tether.data.batches import pad_examples
from tether.errors import NumericsError, RatioError
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.tiny import make_tiny
from tether.models.value import Critic
from tether.run.learner import OnlineLearner
from tether.run.rows import RolloutRow
from tether.text.chat import sampled_example

FLOAT32 = Compute(torch.device("cpu"), torch.float32, 4096)
DATA = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": 8}}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def policy(tiny_folder):
    return Policy.load(tiny_folder, value_head="shared")


def make_rows(num_prompts=3, samples=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for prompt in range(num_prompts):
        query = tuple(torch.randint(5, 100, (4 + prompt,), generator=generator).tolist())
        for sample in range(samples):
            length = int(torch.randint(1, 8, (1,), generator=generator))
            answer = tuple(torch.randint(5, 100, (length,), generator=generator).tolist())
            rows.append(RolloutRow(query, answer, None, float(sample % 2), f"p{prompt}", sample % 3 != 0))
    return rows


def learner(policy, kind=CriticFreeConfig, compute=FLOAT32, reference=None, **settings):
    config = kind.model_validate({**DATA, "steps": 4, "optim": {"learning_rate": 1e-3}, **settings})
    return OnlineLearner(policy, reference or Reference.frozen_copy(policy), config, compute)


def weights(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


@pytest.mark.parametrize("kind", [ActorCriticConfig, CriticFreeConfig])
def test_before_the_first_update_ratios_are_one_and_the_kl_is_zero(policy, kind):
    metrics = learner(policy, kind).learn(make_rows())
    assert metrics["first_ratio_error"] <= 1e-6
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_any_share"] == 0
    assert metrics["update_kl_k3"] == pytest.approx(0, abs=1e-9)
    assert metrics["kl_k1_sequence"] == pytest.approx(0, abs=1e-5)


NO_TETHER = {"where": "reward", "estimator": "k1", "beta": 0.0}


@pytest.mark.parametrize("kind", [ActorCriticConfig, CriticFreeConfig])
@pytest.mark.parametrize("where", [{"where": "reward"}, {"where": "loss", "estimator": "k2"}])
@pytest.mark.parametrize("settings", [{}, {"epochs": 2, "minibatches": 2}, {"advantage": "reinforce_pp"}])
def test_without_a_tether_the_reference_need_not_read_and_nothing_else_changes(tiny_folder, monkeypatch, kind, where, settings):
    if "advantage" in settings and kind is ActorCriticConfig:
        settings = {"lam_alpha": 0.1}
    trained, logged = [], []
    for reference_pass in (True, False):
        policy = Policy.load(tiny_folder, value_head="shared")
        made = learner(policy, kind, kl={**NO_TETHER, **where, "reference_pass": reference_pass}, **settings)
        if not reference_pass:
            monkeypatch.setattr(Reference, "logprobs", None)  # a call would raise
        logged.append([made.learn(make_rows(seed=seed)) for seed in (0, 1)])
        trained.append(weights(policy))
    assert torch.equal(*trained)
    for full, lean in zip(*logged, strict=True):
        assert set(full) - set(lean) == {"kl_k1_token", "kl_k1_sequence", "kl_k3_token"}
        same = set(lean) - {"annotate_seconds", "update_seconds"}
        assert {name: lean[name] for name in same} == {name: full[name] for name in same}


@pytest.mark.parametrize("where", [{"where": "reward"}, {"where": "loss", "estimator": "k2"}])
def test_a_tether_without_a_reference_is_refused(policy, monkeypatch, where):
    made = learner(policy, ActorCriticConfig, kl={**NO_TETHER, "beta": 0.1, **where})
    honest = made._experience
    monkeypatch.setattr(made, "_experience", lambda *arguments: replace(honest(*arguments), ref_logprobs_BT=None))
    with pytest.raises(ValueError, match=r"beta = 0\.1: that needs ref_logprobs_BT"):
        made.learn(make_rows())


def test_case_B5_dropout_in_the_checkpoint_does_not_move_the_ratio(tiny_folder):
    policy = Policy.load(tiny_folder, value_head="shared")
    policy.model.config.attention_dropout = 0.1
    policy.train()
    metrics = learner(policy, ActorCriticConfig, epochs=2, optim={"learning_rate": 1e-12}).learn(make_rows())
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_any_share"] == 0


def test_a_policy_that_moves_between_the_passes_is_refused(policy, monkeypatch):
    made = learner(policy, epochs=2)
    honest = made._experience

    def moved(*arguments):
        experience = honest(*arguments)
        return replace(experience, old_logprobs_BT=torch.where(experience.mask_BT, experience.old_logprobs_BT - 0.1, 0.0))

    monkeypatch.setattr(made, "_experience", moved)
    before = weights(policy)
    with pytest.raises(RatioError, match=r"differs by 0\.1 nats"):
        made.learn(make_rows())
    assert torch.equal(before, weights(policy))


@pytest.mark.parametrize("kind", [ActorCriticConfig, CriticFreeConfig])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"])
def test_case_D7_the_token_budget_changes_nothing(tiny_folder, kind, aggregation):
    after = []
    for budget in (16, 40, 4096):
        policy = Policy.load(tiny_folder, value_head="shared")
        made = learner(
            policy, kind, replace(FLOAT32, token_budget=budget), aggregation=aggregation, optim={"learning_rate": 1e-4, "eps": 1e-3}
        )
        made.learn(make_rows())
        after.append(weights(policy))
    assert torch.allclose(after[0], after[2], atol=1e-6)
    assert torch.allclose(after[1], after[2], atol=1e-6)


def test_case_D5_rows_in_any_order_give_the_same_update(tiny_folder):
    after = []
    rows = make_rows()
    for order in (range(len(rows)), reversed(range(len(rows)))):
        policy = Policy.load(tiny_folder)
        learner(policy, optim={"learning_rate": 1e-4, "eps": 1e-3}).learn([rows[i] for i in order])
        after.append(weights(policy))
    assert torch.allclose(after[0], after[1], atol=1e-6)


def test_case_D3_a_round_without_any_spread_warns_and_is_counted(policy, caplog):
    made = learner(policy)
    assert made.learn(make_rows())["dead_group_share"] == 0
    assert "equal rewards" not in caplog.text
    assert made.learn([replace(row, score=0.3) for row in make_rows()])["dead_group_share"] == 1
    assert "equal rewards" in caplog.text


def test_case_C2_with_zero_advantages_a_step_brings_the_policy_nearer_to_the_reference(policy):
    reference = Reference.frozen_copy(policy)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    rows = [replace(row, score=1.0) for row in make_rows()]
    made = learner(policy, reference=reference, kl={"beta": 1.0, "where": "loss", "estimator": "k2"}, optim={"learning_rate": 2e-4})
    first = made.learn(rows)
    assert first["dead_group_share"] == 1
    last = first
    for _ in range(3):
        last = made.learn(rows)
    assert last["kl_loss"] < first["kl_loss"]


@pytest.mark.parametrize(
    ("where", "estimator", "has_term"), [("reward", "k1", False), ("loss", "k2", True), ("loss", "k3_corrected", True)]
)
def test_case_C4_the_kl_acts_in_one_place(where, estimator, has_term):
    config = CriticFreeConfig.model_validate({**DATA, "kl": {"where": where, "estimator": estimator, "beta": 0.1}})
    logprobs = torch.full((1, 3), -1.0)
    ref = logprobs - 0.1
    mask = torch.ones(1, 3, dtype=torch.bool)
    loss = policy_loss(logprobs, logprobs, ref, torch.zeros(1, 3), mask, config, 0.1)
    value = float(loss.policy) / step_counts(mask, config).policy
    expected = {"k1": 0.0, "k2": 0.1 * 0.005, "k3_corrected": 0.1 * 0.00483742}[estimator]
    assert value == pytest.approx(expected, abs=1e-8)
    assert (loss.kl != 0) is has_term


@pytest.mark.parametrize("critic", [False, True], ids=["shared", "separate"])
def test_a_cut_answer_is_bootstrapped_with_the_value_of_the_state_it_was_cut_in(policy, critic):
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    made = learner(policy, ActorCriticConfig)
    if critic:
        made.critic = Critic.beside(policy.model)
        made.critic.value_head.load_state_dict(policy.value_head.state_dict())
    policy.requires_grad_(False)
    rows = make_rows(1, 2)
    texts = pad_examples([sampled_example(r.query_ids, r.response_ids) for r in rows], policy.format.pad_id)
    with torch.no_grad():
        output = made._forward(texts)
    values, after = output.values_BT, output.end_values_B
    for index, row in enumerate(rows):
        ids = row.query_ids + row.response_ids
        hidden = policy.model.model(torch.tensor([ids])).last_hidden_state[0]
        states = policy.value_head(hidden)[:, 0]
        assert float(after[index]) == pytest.approx(float(states[-1]), abs=1e-4)
        assert float(values[index, len(row.query_ids)]) == pytest.approx(float(states[len(row.query_ids) - 1]), abs=1e-4)
    cut = [replace(row, terminated=index != 0) for index, row in enumerate(rows)]
    plan = made._plan(texts, [row.query_ids for row in cut])
    bootstrap_B = made._experience(cut, texts, plan, MetricSums(), ()).bootstrap_values_B
    assert bootstrap_B.tolist() == pytest.approx([float(after[0]), *[0.0] * (len(rows) - 1)], abs=1e-5)


def test_target_kl_stops_before_the_offending_step(policy):
    made = learner(policy, ActorCriticConfig, epochs=8, target_kl=1e-4, optim={"learning_rate": 5e-3})
    metrics = made.learn(make_rows())
    assert metrics["stopped_early"] == 1
    assert 1 <= metrics["optimiser_steps"] < 8


def test_a_gradient_that_is_not_finite_is_refused(policy):
    made = learner(policy)
    next(policy.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    before = weights(policy)
    metrics = made.learn(make_rows())
    assert metrics["skipped_steps"] == 1
    assert metrics["optimiser_steps"] == 0
    assert torch.equal(before, weights(policy))


def test_unscorable_and_empty_rows_are_named(policy):
    rows = make_rows()
    with pytest.raises(NumericsError, match=r"row 1 \(p0\) has score nan"):
        learner(policy).learn([rows[0], replace(rows[1], score=float("nan"))])
    with pytest.raises(ValueError, match=r"row 0 \(p0\) has an empty response"):
        learner(policy).learn([replace(rows[0], response_ids=())])
    with pytest.raises(ValueError, match="no rollouts"):
        learner(policy).learn([])


def test_the_adaptive_controller_pulls_beta_towards_the_target(policy):
    made = learner(policy, ActorCriticConfig, kl={"beta": 0.1, "target": 5.0, "horizon": 100})
    made.learn(make_rows())
    assert made.controller.beta == pytest.approx(0.1 * (1 - 0.2 * 12 / 100))


@pytest.mark.parametrize("kind", [ActorCriticConfig, CriticFreeConfig])
def test_learning_raises_the_rewarded_token_and_a_stronger_tether_holds_it_nearer(tiny_folder, kind):
    """Token 7 is rewarded whatever the prompt: its probability rises, less so the larger beta is."""
    finals = {}
    for beta in (0.0, 0.5, 5.0):
        policy = Policy.load(tiny_folder, value_head="shared")
        where = {"where": "reward", "estimator": "k1"} if kind is ActorCriticConfig else {"where": "loss", "estimator": "k2"}
        made = learner(policy, kind, kl={"beta": beta, **where}, steps=12, optim={"learning_rate": 1e-3})
        generator = torch.Generator().manual_seed(0)
        for _ in range(12):
            made.learn(_one_token_rows(policy, generator))
        batch = pad_examples([sampled_example((5, 6), (7,))], 0)
        with torch.no_grad():
            finals[beta] = float(policy.forward_response(batch, 1.0).logprobs_BT[0, 2])
    start = Policy.load(tiny_folder)
    with torch.no_grad():
        origin = float(start.forward_response(pad_examples([sampled_example((5, 6), (7,))], 0), 1.0).logprobs_BT[0, 2])
    assert finals[0.0] > origin + 0.5
    assert abs(finals[5.0] - origin) < abs(finals[0.5] - origin) < abs(finals[0.0] - origin)


def _one_token_rows(policy, generator):
    batch = pad_examples([sampled_example((5, 6), (7,))], 0)
    with torch.no_grad():
        logits = policy.model(batch.token_ids_BT[:, :2]).logits[0, -1]
    probabilities = torch.softmax(logits, -1)
    tokens = [*torch.multinomial(probabilities, 15, replacement=True, generator=generator).tolist(), 7]
    return [RolloutRow((5, 6), (token,), None, float(token == 7), "p", True) for token in tokens]
