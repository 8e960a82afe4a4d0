"""From the scores of one round to advantages: the first of the two pure calls of an algorithm.

Each estimator of the configuration is one function ``(experience, config, beta) -> advantages_BT`` here, a few lines over
``tether.maths``. Axes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tether.algorithms.experience import Annotated, Experience
from tether.config import ActorCriticConfig, CriticFreeConfig
from tether.maths import advantages as maths
from tether.maths.advantages import StdKind
from tether.maths.kl import KLEstimator, kl_tokens
from tether.maths.masked import whiten
from tether.maths.returns import broadcast_to_tokens, decoupled_gae, shaped_rewards, vapo_lambda

__all__ = ["annotate"]


def annotate(experience: Experience, config: ActorCriticConfig | CriticFreeConfig, beta: float) -> Annotated:
    """Advantages of one round, detached.

    Actor-critic: token rewards are -beta k1 (where the KL acts in the reward) plus the score on the last live token; GAE over them, then
    whitening over the live tokens. Critic-free: the estimator that ``config.advantage`` names. Where the KL acts in the reward, its
    summed k1 is taken from the score first (``reinforce_pp``: token by token).
    """
    dead, groups = maths.dead_groups(experience.scores_B, experience.group_ids_B)
    if isinstance(config, ActorCriticConfig):
        advantages_BT, returns_BT = _gae(experience, config, beta)
    else:
        advantages_BT, returns_BT = _ESTIMATORS[config.advantage](experience, config, beta), None
    return Annotated(advantages_BT.detach(), returns_BT, dead, groups)


def _gae(experience: Experience, config: ActorCriticConfig, beta: float) -> tuple[Tensor, Tensor]:
    if experience.old_values_BT is None:
        raise ValueError(f"{config.kind} needs old_values_BT: run the value function over the rollouts first")
    mask_BT = experience.mask_BT
    reward_beta = beta if config.kl.where == "reward" else 0.0
    ref_BT = _reference(experience, reward_beta)
    rewards_BT = shaped_rewards(experience.scores_B, experience.old_logprobs_BT, ref_BT, mask_BT, reward_beta)
    lam: float | Tensor = config.lam
    if config.lam_alpha is not None:
        lam = vapo_lambda(mask_BT.sum(-1), config.lam_alpha).to(rewards_BT.dtype)
    result = decoupled_gae(
        rewards_BT,
        experience.old_values_BT,
        mask_BT,
        config.gamma,
        lam,
        lam if config.critic_lam is None else config.critic_lam,
        experience.terminated_B,
        experience.bootstrap_values_B,
    )
    advantages_BT = whiten(result.advantages_BT, mask_BT) if config.whiten_advantages else result.advantages_BT
    return advantages_BT, result.returns_BT


def _reference(experience: Experience, reward_beta: float) -> Tensor:
    """Log-probabilities of the reference. Where it read nothing and nothing depends on it: the policy's own, a KL of 0."""
    if experience.ref_logprobs_BT is not None:
        return experience.ref_logprobs_BT
    if reward_beta:
        raise ValueError(f"the KL acts in the reward with beta = {reward_beta:g}: that needs ref_logprobs_BT, a pass of the reference")
    return experience.old_logprobs_BT


# -- critic-free -------------------------------------------------------------------------------------------------------------


def _rewards(experience: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    """Score of each row, less beta times its summed k1 where the KL acts in the reward."""
    return experience.scores_B - _kl_sums(experience, config, beta)


def _kl_sums(experience: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    if config.kl.where == "loss":
        return experience.scores_B.new_zeros(len(experience.scores_B))
    kl_BT = kl_tokens(experience.old_logprobs_BT, _reference(experience, beta), experience.mask_BT, KLEstimator.K1)
    return beta * kl_BT.sum(-1)


def _group(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    per_row_B = maths.grpo_advantages(_rewards(e, config, beta), e.group_ids_B, StdKind(config.std), config.std_eps)
    return broadcast_to_tokens(per_row_B, e.mask_BT)


def _group_batch_std(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    per_row_B = maths.grpo_batch_std_advantages(_rewards(e, config, beta), e.group_ids_B, _ddof(config), config.std_eps)
    return broadcast_to_tokens(per_row_B, e.mask_BT)


def _rloo(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    per_row_B = maths.rloo_advantages(_rewards(e, config, beta), e.group_ids_B, StdKind(config.std), config.std_eps)
    return broadcast_to_tokens(per_row_B, e.mask_BT)


def _opo(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    per_row_B = maths.opo_advantages(_rewards(e, config, beta), e.mask_BT.sum(-1), e.group_ids_B)
    return broadcast_to_tokens(per_row_B, e.mask_BT)


def _reinforce_pp(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    reward_beta = beta if config.kl.where == "reward" else 0.0
    return maths.reinforce_pp_advantages(e.scores_B, e.old_logprobs_BT, _reference(e, reward_beta), e.mask_BT, reward_beta)


def _reinforce_pp_baseline(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    """Whitening over tokens moves every row by the same amount, those of a dead group too: they carry nothing and stay at 0."""
    rewards_B = _rewards(e, config, beta)
    whitened_BT = maths.reinforce_pp_baseline_advantages(rewards_B, e.group_ids_B, e.mask_BT)
    return torch.where(maths.group_stats(rewards_B, e.group_ids_B).alive_B[:, None], whitened_BT, 0.0)


def _remax(e: Experience, config: CriticFreeConfig, beta: float) -> Tensor:
    if e.baseline_scores_B is None:
        raise ValueError("remax needs baseline_scores_B: the score of the greedy answer to each row's prompt")
    per_row_B = maths.remax_advantages(e.scores_B, e.baseline_scores_B) - _kl_sums(e, config, beta)
    return broadcast_to_tokens(per_row_B, e.mask_BT)


def _gdpo(e: Experience, config: CriticFreeConfig, _beta: float) -> Tensor:
    if e.parts_BK is None or e.part_weights_K is None:
        raise ValueError("gdpo needs parts_BK and part_weights_K: every reward part by itself, with its weight")
    per_row_B = maths.gdpo_advantages(e.parts_BK, e.group_ids_B, e.part_weights_K, _ddof(config), config.std_eps)
    return broadcast_to_tokens(per_row_B, e.mask_BT)


def _ddof(config: CriticFreeConfig) -> int:
    return int(config.std == "sample")


_ESTIMATORS: Mapping[str, Callable[[Experience, CriticFreeConfig, float], Tensor]] = {
    "group": _group,
    "group_batch_std": _group_batch_std,
    "rloo": _rloo,
    "opo": _opo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "remax": _remax,
    "gdpo": _gdpo,
}
