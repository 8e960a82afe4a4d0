"""Answers that another policy drew, in a world small enough to list every answer: what the weighted numbers are means of, exactly.

Tokens 0 (ends an answer), 1 and 2, at most 3 of them: 15 answers. A policy is a table of logits by prefix, in float64.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tether import maths
from tether.algorithms.policy_gradient import policy_loss, step_counts
from tether.config import CriticFreeConfig
from tether.maths import KLEstimator

WIDTH = 3
ANSWERS = [
    (*body, end)
    for length in range(WIDTH)
    for body in itertools.product((1, 2), repeat=length)
    for end in ((0,) if length < WIDTH - 1 else (0, 1, 2))
]
PREFIXES = [body for length in range(WIDTH) for body in itertools.product((1, 2), repeat=length)]
MASK = torch.tensor([[column < len(answer) for column in range(WIDTH)] for answer in ANSWERS])


def table(seed: int, near: torch.Tensor | None = None) -> torch.Tensor:
    """Logits by prefix; ``near``: another table, moved a little."""
    noise = torch.randn(len(PREFIXES), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise if near is None else near + 0.3 * noise


def logprobs(logits: torch.Tensor) -> torch.Tensor:
    """log pi of every token of every answer, NaN behind its end."""
    rows = torch.log_softmax(logits, -1)
    columns = [
        [rows[PREFIXES.index(answer[:t]), answer[t]] if t < len(answer) else rows.new_tensor(math.nan) for t in range(WIDTH)]
        for answer in ANSWERS
    ]
    return torch.stack([torch.stack(row) for row in columns])


def chance(logits: torch.Tensor) -> torch.Tensor:
    """Probability of every answer."""
    return torch.where(MASK, logprobs(logits), 0.0).sum(-1).exp()


def kl(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """KL(one || two) over whole answers, exactly."""
    return (chance(one) * (chance(one).log() - chance(two).log())).sum()


REF = table(0)
OLD = table(1, REF)
SAMPLER = table(2, REF)
LENGTHS = MASK.sum(-1).double()


def test_the_answers_are_all_there_are():
    assert len(ANSWERS) == len(set(ANSWERS)) == 15
    for logits in (REF, OLD, SAMPLER):
        assert float(chance(logits).sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("estimator", [KLEstimator.K1, KLEstimator.K3])
@pytest.mark.parametrize("sampler", [SAMPLER, REF, OLD])
def test_the_weighted_kl_has_no_bias_per_answer_and_per_token(estimator, sampler):
    told = maths.off_policy_kl(logprobs(OLD), logprobs(REF), logprobs(sampler), MASK, estimator)
    weights_BT = maths.prefix_weights(logprobs(OLD), logprobs(sampler), MASK)
    drawn_B = chance(sampler)
    exact, mean_length = float(kl(OLD, REF)), float((chance(OLD) * LENGTHS).sum())
    assert float((drawn_B * told.rows_B).sum()) == pytest.approx(exact, abs=1e-12)
    assert float((drawn_B * weights_BT.sum(-1)).sum()) == pytest.approx(mean_length, abs=1e-12)


@pytest.mark.parametrize("sampler", [SAMPLER, REF])
def test_the_plain_mean_of_k1_is_off_by_a_known_amount(sampler):
    plain_B = maths.kl_tokens(logprobs(OLD), logprobs(REF), MASK, KLEstimator.K1).sum(-1)
    mean = float((chance(sampler) * plain_B).sum())
    assert mean == pytest.approx(float(kl(sampler, REF) - kl(sampler, OLD)), abs=1e-12)
    if sampler is REF:  # the second round of a run: a KL that seems to be negative
        assert mean == pytest.approx(-float(kl(REF, OLD)), abs=1e-12)
        assert mean < -0.01


def test_equal_policies_give_the_plain_numbers():
    told = maths.off_policy_kl(logprobs(OLD), logprobs(REF), logprobs(OLD), MASK)
    units = maths.kl_units(logprobs(OLD), logprobs(REF), MASK)
    assert told.seq_sum_mean_nats == pytest.approx(units.seq_sum_mean_nats, abs=1e-12)
    assert told.token_mean_nats == pytest.approx(units.token_mean_nats, abs=1e-12)


def test_a_worked_example_pads_empty_rows_and_what_is_refused():
    log, nan = math.log, math.nan
    old, ref = torch.tensor([[log(0.5), log(0.4), nan], [nan] * 3]), torch.tensor([[log(0.25), log(0.4), nan], [nan] * 3])
    sampler = torch.tensor([[log(0.25), log(0.8), nan], [nan] * 3])
    mask = torch.tensor([[True, True, False], [False] * 3])
    told = maths.off_policy_kl(old, ref, sampler, mask)
    assert told.rows_B.tolist() == pytest.approx([2 * log(2), 0])
    assert (told.seq_sum_mean_nats, told.token_mean_nats) == pytest.approx((2 * log(2), 2 * log(2) / 3))
    with pytest.raises(ValueError, match="no live position"):
        maths.off_policy_kl(old, ref, sampler, torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(maths.NonFiniteError, match="sampler_logprobs"):
        maths.off_policy_kl(old, ref, torch.full((2, 3), nan), mask)


# -- the loss ----------------------------------------------------------------------------------------------------------------

HIGH = 1e9  # a bound that never binds
REWARDS = torch.tensor([answer.count(1) - 0.5 * answer.count(2) for answer in ANSWERS], dtype=torch.float64)


def config_of(correction, **settings):
    data = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": WIDTH}, "rollouts_ahead": 1}
    plain = {"eps_low": "off", "eps_high": "off", "aggregation": "seq_mean_token_sum"}
    return CriticFreeConfig.model_validate({**data, **plain, "sampler_correction": {"mode": correction, "high": HIGH}, **settings})


def mean_gradient(config, beta, advantages_B) -> torch.Tensor:
    """Mean of the gradient of the loss at ratio 1 over answers that the sampler draws, by the table of the old policy."""
    logits = OLD.clone().requires_grad_()
    new_BT, drawn_B = logprobs(logits), chance(SAMPLER)
    advantages_BT = torch.where(MASK, advantages_B[:, None], 0.0)
    total = new_BT.new_zeros(())
    for row, weight in enumerate(drawn_B):
        own = slice(row, row + 1)
        loss = policy_loss(
            new_BT[own], new_BT[own].detach(), logprobs(REF)[own], advantages_BT[own], MASK[own], config, beta,
            sampler_logprobs_BT=logprobs(SAMPLER)[own],
        )  # fmt: skip
        total = total + weight * loss.total(config, step_counts(MASK[own], config))
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient


def test_with_sequence_weights_score_and_kl_in_the_reward_have_the_gradient_of_the_tethered_objective():
    """-grad (E_old score - beta KL(old || ref)) by answers of another policy; token weights leave a bias, of score and KL alike."""
    beta = 0.3
    k1_B = maths.kl_tokens(logprobs(OLD), logprobs(REF), MASK, KLEstimator.K1).sum(-1)
    logits = OLD.clone().requires_grad_()
    (exact,) = torch.autograd.grad(-(chance(logits) * REWARDS).sum() + beta * kl(logits, REF), logits)
    kl_in_reward = {"kl": {"where": "reward", "estimator": "k1", "beta": beta}}
    by_sequence, by_token = config_of("seq_truncate", **kl_in_reward), config_of("token_truncate", **kl_in_reward)
    off = by_token.sampler_correction.model_copy(update={"mode": "off"})
    sequence, token, none = (
        mean_gradient(config, beta, REWARDS - beta * k1_B)
        for config in (by_sequence, by_token, by_token.model_copy(update={"sampler_correction": off}))
    )
    assert torch.allclose(sequence, exact, atol=1e-12)
    assert 0.01 < float((token - exact).abs().max()) < float((none - exact).abs().max())


@pytest.mark.parametrize(("estimator", "reverse"), [("k2", False), ("k3_corrected", False), ("k3", True)])
def test_kl_in_the_loss_pulls_along_the_kl_of_every_state_that_the_sampler_reaches(estimator, reverse):
    """Exactly as on-policy answers would in those states: KL(pi || ref), of plain k3 the other direction."""
    logits = OLD.clone().requires_grad_()
    reached = torch.stack([
        sum(weight for weight, answer in zip(chance(SAMPLER), ANSWERS, strict=True) if answer[: len(p)] == p and len(answer) > len(p))
        for p in PREFIXES
    ])  # fmt: skip
    pair = (REF, logits) if reverse else (logits, REF)
    (exact,) = torch.autograd.grad((reached * maths.kl_full(*pair)).sum(), logits)
    config = config_of("seq_mask", kl={"where": "loss", "estimator": estimator, "beta": 1.0})
    assert torch.allclose(mean_gradient(config, 1.0, torch.zeros(len(ANSWERS), dtype=torch.float64)), exact, atol=1e-12)


def test_the_bound_of_the_correction_bounds_the_weight_of_the_kl_too():
    old, sampler, ref = torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), torch.tensor([[-2.0]])
    alive = torch.ones(1, 1, dtype=torch.bool)
    kl_term = {"where": "loss", "estimator": "k2", "beta": 1.0}
    for high, weight in ((2.0, 2.0), ("off", math.exp(2))):
        config = config_of("token_truncate", kl=kl_term, sampler_correction={"mode": "token_truncate", "high": high})
        loss = policy_loss(old, old, ref, torch.zeros(1, 1), alive, config, 1.0, sampler_logprobs_BT=sampler)
        assert loss.kl == pytest.approx(weight * 0.5)


def test_the_kl_of_the_update_is_that_of_old_and_new_in_the_states_that_the_sampler_reaches():
    new = table(3, OLD)
    weights_BT = maths.is_weights(logprobs(OLD), logprobs(SAMPLER), MASK, maths.ImportanceMode.TOKEN_TRUNCATE)
    per_state = maths.kl_full(OLD, new)
    told, exact, plain = {"approx_kl_k1": 0.0, "approx_kl_k3": 0.0}, 0.0, 0.0
    for row, chance_of_it in enumerate(chance(SAMPLER).tolist()):
        own = slice(row, row + 1)
        arguments = (logprobs(new)[own], logprobs(OLD)[own], torch.zeros(1, WIDTH, dtype=torch.float64), MASK[own])
        stats = maths.policy_stats(*arguments, weights_BT=weights_BT[own])
        told = {name: total + chance_of_it * getattr(stats, name) for name, total in told.items()}
        plain += chance_of_it * maths.policy_stats(*arguments).approx_kl_k1
        exact += chance_of_it * sum(float(per_state[PREFIXES.index(ANSWERS[row][:t])]) for t in range(len(ANSWERS[row])))
    assert told == pytest.approx({"approx_kl_k1": exact, "approx_kl_k3": exact}, abs=1e-12)
    assert plain < exact / 2
