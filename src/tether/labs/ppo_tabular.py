"""Lab ppo-tabular: a complete PPO on two decisions, once by hand and once through tether.maths. Axes: B rows, T = 2 tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.errors import ConfigError
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import (
    explained_variance,
    gae,
    kl_full,
    kl_units,
    masked_mean,
    ppo_surrogate,
    reverse_kl_optimum,
    reverse_kl_value,
    shaped_rewards,
    value_loss,
    whiten,
)

__all__ = ["run"]

ROWS, ITERATIONS, EPOCHS = 32, 12, 3
EPS, BETA, GAMMA, LAM, LEARNING_RATE, MAX_NORM, VALUE_COEF = 0.2, 0.1, 1.0, 0.95, 0.03, 1.0, 0.5
SEQUENCES = ((0, 0), (0, 1), (1, 0), (1, 1))
SCORES = (0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True)
class _Batch:
    states_BT: Tensor
    actions_BT: Tensor
    old_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor
    old_values_BT: Tensor
    scores_B: Tensor

    @property
    def mask_BT(self) -> Tensor:
        return torch.ones_like(self.actions_BT, dtype=torch.bool)


_Advantages = Callable[[_Batch], tuple[Tensor, Tensor]]
_Loss = Callable[[Tensor, Tensor, Tensor, Tensor, _Batch], Tensor]


@dataclass(frozen=True)
class _Iteration:
    """``reward`` and ``kl_sampled`` of the batch, ``reward_exact`` and ``kl_exact`` of the policy that drew it (KL in nats per
    sequence); ``first_ratio_error``: the largest distance of a first-epoch ratio from 1."""

    reward: float
    reward_exact: float
    kl_sampled: float
    kl_exact: float
    first_ratio_error: float
    explained_variance: float


@dataclass(frozen=True)
class _Run:
    iterations: tuple[_Iteration, ...]
    logits_SA: Tensor


def run(seed: int = 19) -> LabResult:
    """``seed`` of the draws; 19 is the textbook's."""
    if not 0 <= seed < 2**63:
        raise ConfigError(f"lab.ppo-tabular.seed: {seed}; expected a number from 0 to 2^63 - 1")
    replay = _train(seed, _advantages_by_hand, _loss_by_hand)
    correct = _train(seed, _advantages, _loss)
    optimum = reverse_kl_optimum(torch.tensor(SCORES, dtype=torch.float64), torch.full((4,), 0.25, dtype=torch.float64), BETA)
    return LabResult(
        name="ppo-tabular",
        question="Two decisions, a reward for (1, 1) alone: what do the numbers of a complete PPO look like?",
        tables=(_iteration_table(replay), _end_table(replay, correct, optimum)),
        panels=_panels(replay),
        notes=_notes(replay, correct, optimum),
        figures=_figures(replay, correct, optimum),
    )


# --- the loop, shared ---


def _train(seed: int, advantages_of: _Advantages, loss_of: _Loss) -> _Run:
    generator = torch.Generator().manual_seed(seed)
    logits_SA = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    values_S = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logits_SA, values_S], lr=LEARNING_RATE)
    iterations = []
    for _ in range(ITERATIONS):
        batch = _draw(logits_SA.detach(), values_S.detach(), generator)
        advantages_BT, returns_BT = advantages_of(batch)
        before = logits_SA.detach().clone()
        first_ratio_error = 0.0
        for epoch in range(EPOCHS):
            logprobs_BT = logits_SA.log_softmax(-1)[batch.states_BT, batch.actions_BT]
            if epoch == 0:
                first_ratio_error = float(((logprobs_BT.detach() - batch.old_logprobs_BT).exp() - 1).abs().max())
            loss = loss_of(logprobs_BT, values_S[batch.states_BT], advantages_BT, returns_BT, batch)
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([logits_SA, values_S], MAX_NORM)
            adam.step()
        iterations.append(_measured(batch, before, returns_BT, first_ratio_error))
    return _Run(tuple(iterations), logits_SA.detach())


def _draw(logits_SA: Tensor, values_S: Tensor, generator: torch.Generator) -> _Batch:
    """As Categorical(logits=logits[0]).sample((32,)) and Categorical(logits=logits[1 + first]).sample() draw."""
    first_B = torch.multinomial(logits_SA[:1].softmax(-1), ROWS, replacement=True, generator=generator)[0]
    second_B = torch.multinomial(logits_SA[1 + first_B].softmax(-1), 1, replacement=True, generator=generator)[:, 0]
    states_BT = torch.stack([torch.zeros_like(first_B), 1 + first_B], 1)
    actions_BT = torch.stack([first_B, second_B], 1)
    old_logprobs_BT = logits_SA.log_softmax(-1)[states_BT, actions_BT]
    scores_B = ((first_B == 1) & (second_B == 1)).double()
    return _Batch(states_BT, actions_BT, old_logprobs_BT, torch.full_like(old_logprobs_BT, 0.5).log(), values_S[states_BT], scores_B)


def _measured(batch: _Batch, logits_SA: Tensor, returns_BT: Tensor, first_ratio_error: float) -> _Iteration:
    joint_4 = _sequence_logprobs(logits_SA)
    return _Iteration(
        reward=float(batch.scores_B.mean()),
        reward_exact=float(joint_4.exp()[3]),
        kl_sampled=kl_units(batch.old_logprobs_BT, batch.ref_logprobs_BT, batch.mask_BT).seq_sum_mean_nats,
        kl_exact=_sequence_kl(logits_SA),
        first_ratio_error=first_ratio_error,
        explained_variance=explained_variance(batch.old_values_BT, returns_BT, batch.mask_BT),
    )


def _sequence_logprobs(logits_SA: Tensor) -> Tensor:
    logprobs_SA = logits_SA.log_softmax(-1)
    return torch.stack([logprobs_SA[0, first] + logprobs_SA[1 + first, second] for first, second in SEQUENCES])


def _sequence_kl(logits_SA: Tensor) -> float:
    joint_4 = _sequence_logprobs(logits_SA)
    return float(kl_full(joint_4, torch.zeros_like(joint_4)))


# --- the replay: formulas written out for rows of exactly two live tokens ---


def _advantages_by_hand(batch: _Batch) -> tuple[Tensor, Tensor]:
    rewards_BT = -BETA * (batch.old_logprobs_BT - batch.ref_logprobs_BT)
    rewards_BT[:, 1] += batch.scores_B
    values_BT = batch.old_values_BT
    second_B = rewards_BT[:, 1] - values_BT[:, 1]
    first_B = rewards_BT[:, 0] + GAMMA * values_BT[:, 1] - values_BT[:, 0] + GAMMA * LAM * second_B
    advantages_BT = torch.stack([first_B, second_B], 1)
    returns_BT = advantages_BT + values_BT
    return (advantages_BT - advantages_BT.mean()) / advantages_BT.std(correction=0).clamp_min(1e-8), returns_BT


def _loss_by_hand(logprobs_BT: Tensor, values_BT: Tensor, advantages_BT: Tensor, returns_BT: Tensor, batch: _Batch) -> Tensor:
    ratio_BT = (logprobs_BT - batch.old_logprobs_BT).exp()
    surrogate_BT = torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(1 - EPS, 1 + EPS) * advantages_BT)
    return -surrogate_BT.mean() + VALUE_COEF * (0.5 * (values_BT - returns_BT).square().mean())


# --- the correct version: what training uses, for rows of any length ---


def _advantages(batch: _Batch) -> tuple[Tensor, Tensor]:
    mask_BT = batch.mask_BT
    rewards_BT = shaped_rewards(batch.scores_B, batch.old_logprobs_BT, batch.ref_logprobs_BT, mask_BT, BETA)
    estimate = gae(rewards_BT, batch.old_values_BT, mask_BT, GAMMA, LAM, torch.ones(ROWS, dtype=torch.bool))
    return whiten(estimate.advantages_BT, mask_BT), estimate.returns_BT


def _loss(logprobs_BT: Tensor, values_BT: Tensor, advantages_BT: Tensor, returns_BT: Tensor, batch: _Batch) -> Tensor:
    mask_BT = batch.mask_BT
    policy = ppo_surrogate(logprobs_BT, batch.old_logprobs_BT, advantages_BT, mask_BT, EPS, EPS).losses_BT
    value = value_loss(values_BT, batch.old_values_BT, returns_BT, mask_BT).losses_BT
    return masked_mean(policy, mask_BT) + VALUE_COEF * masked_mean(value, mask_BT)


# --- results ---


def _end(run_: _Run) -> dict[str, float]:
    probs_SA = run_.logits_SA.softmax(-1)
    first, second, kl = float(probs_SA[0, 1]), float(probs_SA[2, 1]), _sequence_kl(run_.logits_SA)
    return {"p_first": first, "p_second": second, "p_both": first * second, "kl_exact": kl, "objective": first * second - BETA * kl}


def _best(optimum_4: Tensor) -> dict[str, float]:
    """The closed form: reference times exp(score / beta), as probabilities of the two decisions."""
    both, first = float(optimum_4[3]), float(optimum_4[2] + optimum_4[3])
    scores_4, reference_4 = torch.tensor(SCORES, dtype=torch.float64), torch.full((4,), 0.25, dtype=torch.float64)
    kl = float(kl_full(optimum_4.log(), torch.zeros_like(optimum_4)))
    objective = reverse_kl_value(scores_4, reference_4, BETA)
    return {"p_first": first, "p_second": both / first, "p_both": both, "kl_exact": kl, "objective": objective}


def _iteration_table(replay: _Run) -> Table:
    columns = ("iteration", "reward", "exact P(1,1)", "KL sampled", "KL exact", "explained var.")
    rows = tuple((n, i.reward, i.reward_exact, i.kl_sampled, i.kl_exact, i.explained_variance) for n, i in enumerate(replay.iterations, 1))
    return Table("Replay: 32 rows an iteration, KL in nats per sequence, of the policy before the update", columns, rows,
                 ("d", *(".4f",) * 5))  # fmt: skip


def _end_table(replay: _Run, correct: _Run, optimum_4: Tensor) -> Table:
    ends = {"replay": _end(replay), "tether.maths": _end(correct), "optimum of the tethered objective": _best(optimum_4)}
    columns = ("policy", "P(1)", "P(1|1)", "P(1,1)", "exact KL", "reward - beta KL")
    rows = tuple((name, *end.values()) for name, end in ends.items())
    return Table("After the last update", columns, rows, ("", *(".4f",) * 3, ".5f", ".5f"))


def _panels(replay: _Run) -> tuple[Panel, ...]:
    x = tuple(float(n) for n in range(1, ITERATIONS + 1))
    its = replay.iterations
    return (
        Panel("Reward", "iteration", "share of (1, 1)", (Curve("32 draws", x, tuple(i.reward for i in its)),
                                                         Curve("exact", x, tuple(i.reward_exact for i in its)))),
        Panel("Distance from the reference", "iteration", "KL (nats per sequence)", (
            Curve("sampled k1", x, tuple(i.kl_sampled for i in its)), Curve("exact", x, tuple(i.kl_exact for i in its)))),
    )  # fmt: skip


def _notes(replay: _Run, correct: _Run, optimum_4: Tensor) -> tuple[str, ...]:
    end, best = _end(replay), _best(optimum_4)
    negative = [n for n, i in enumerate(replay.iterations, 1) if i.kl_sampled < 0]
    worst = max(abs(i.kl_sampled - i.kl_exact) for i in replay.iterations)
    return (
        "Every ratio of a first epoch is exactly 1: the policy that is trained is still the one that drew. If it is not, "
        "log-probabilities of two programs are being compared, and nothing after that can be trusted.",
        f"A KL is never negative; its k1 estimate from 32 rows is, in iterations {', '.join(map(str, negative)) or 'none'}, and it is "
        f"off by up to {worst:.2f} nats. It is the right thing to put into the reward, and one batch of it the wrong thing to steer by.",
        f"The walk ends far from the optimum of its own objective, reference x exp(score / beta): P(1,1) is {end['p_both']:.3f} "
        f"against {best['p_both']:.4f}, reward - beta KL {end['objective']:.3f} against {best['objective']:.3f}. The number of steps "
        "ends it, not the tether.",
        "The parts of tether.maths make the same walk from the same draws (largest distance of a final logit "
        f"{_distance(replay, correct):.0e}). They differ in what this world does not have: padding, gaps, truncated rows, and in how a "
        "batch without spread is whitened (eps under the root against a floor on the deviation).",
    )


def _distance(replay: _Run, correct: _Run) -> float:
    return float((replay.logits_SA - correct.logits_SA).abs().max())


def _figures(replay: _Run, correct: _Run, optimum_4: Tensor) -> dict:
    def column(name: str) -> list[float]:
        return [getattr(iteration, name) for iteration in replay.iterations]

    return {
        "reward": column("reward"), "reward_exact": column("reward_exact"),
        "kl_sampled": column("kl_sampled"), "kl_exact": column("kl_exact"), "explained_variance": column("explained_variance"),
        "first_ratio_error": max(column("first_ratio_error")),
        "end": _end(replay), "correct_end": _end(correct), "optimum": _best(optimum_4),
        "largest_logit_distance": _distance(replay, correct),
    }  # fmt: skip
