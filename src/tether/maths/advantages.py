"""Advantages from a group of answers to one prompt. Axes: B rows (answers), T tokens, K reward components, P
prompts, G group.

A group is the rows with one id, wherever they stand. A NaN reward is unscorable: it takes no part in the
statistics and its advantage is 0. A group of one, or without spread (rounding aside), has advantage exactly 0
under every estimator. Sources: algorithms.md section 6. Rewards and advantages share one unit, that of the
score, unless standardised.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .kl import KLEstimator
from .masked import full_precision, require_finite, whiten
from .returns import broadcast_to_tokens, reward_to_go, shaped_rewards


class StdKind(StrEnum):
    """What a centred reward is divided by: population std (1/n), sample std (1/(n-1)) or nothing
    (Dr.GRPO).
    """

    POPULATION = "population"
    SAMPLE = "sample"
    NONE = "none"


class EpsMode(StrEnum):
    """Where eps goes: ADD std + eps; VAR sqrt(var + eps)."""

    ADD = "add"
    VAR = "var"


@dataclass(frozen=True)
class GroupStats:
    """Statistics of a row's group, spread to the rows; NaN rewards left out. `alive_B`: scorable, in a group
    of two or more with spread. `centred_B`: reward minus group mean, 0 where not alive.
    """

    count_B: Float[Tensor, "B"]
    mean_B: Float[Tensor, "B"]
    centred_B: Float[Tensor, "B"]
    squares_B: Float[Tensor, "B"]
    scorable_B: Bool[Tensor, "B"]
    alive_B: Bool[Tensor, "B"]


@dataclass(frozen=True)
class DynamicSampling:
    """Groups worth training on, and the share that is dead (all rewards equal)."""

    keep_P: Bool[Tensor, "P"]
    dead_fraction: float


def group_stats(rewards_B: Float[Tensor, "B"], group_ids_B: Int[Tensor, "B"]) -> GroupStats:
    """Count, mean, centred reward and sum of squares of each row's group; see GroupStats.

    Spread at or below 4 units in the last place of the group's largest |reward| is rounding, hence none: so
    [.1 + .2, .3] is a dead group. Raises ValueError for an infinite reward. Example: rewards [0, 2, nan], ids
    [7, 7, 7] -> count 2, mean 1, centred [-1, 1, 0], squares 2.
    """
    rewards_B = full_precision(rewards_B).detach()
    scorable_B = ~rewards_B.isnan()
    require_finite("rewards", rewards_B, scorable_B)
    group_B = torch.unique(group_ids_B, return_inverse=True)[1]
    num_groups = int(group_B.max()) + 1 if group_B.numel() else 0
    live_B = torch.where(scorable_B, rewards_B, 0.0)

    def total(x_B: Tensor) -> Tensor:
        return x_B.new_zeros(num_groups).index_add(0, group_B, x_B)[group_B]

    def extreme(x_B: Tensor, which: str) -> Tensor:
        filled_B = torch.where(scorable_B, x_B, -torch.inf if which == "amax" else torch.inf)
        return filled_B.new_zeros(num_groups).scatter_reduce(0, group_B, filled_B, which, include_self=False)[
            group_B
        ]

    count_B = total(scorable_B.to(live_B.dtype))
    mean_B = total(live_B) / count_B.clamp(min=1)
    rounding_B = 4 * torch.finfo(live_B.dtype).eps * extreme(live_B.abs(), "amax")
    spread_B = extreme(live_B, "amax") - extreme(live_B, "amin")
    alive_B = scorable_B & (count_B > 1) & (spread_B > rounding_B)
    centred_B = torch.where(alive_B, live_B - mean_B, 0.0)
    return GroupStats(count_B, mean_B, centred_B, total(centred_B.square()), scorable_B, alive_B)


def grpo_advantages(
    rewards_B: Float[Tensor, "B"],
    group_ids_B: Int[Tensor, "B"],
    std: StdKind = StdKind.POPULATION,
    eps: float = 1e-6,
    eps_mode: EpsMode = EpsMode.ADD,
) -> Float[Tensor, "B"]:
    """A_i = (r_i - mean) / (std + eps), or / sqrt(var + eps), or r_i - mean (std "none": Dr.GRPO 2503.20783).

    DeepSeekMath 2402.03300 section 4.1.2; statistics of the row's group. Raises ValueError for an infinite
    reward. Example: rewards [0, 0, 1, 1] in one group, eps 0 -> [-1, -1, 1, 1].
    """
    stats = group_stats(rewards_B, group_ids_B)
    return _standardise(stats, StdKind(std), eps, EpsMode(eps_mode))


def rloo_advantages(
    rewards_B: Float[Tensor, "B"],
    group_ids_B: Int[Tensor, "B"],
    std: StdKind = StdKind.NONE,
    eps: float = 1e-6,
) -> Float[Tensor, "B"]:
    """A_i = r_i - mean of the OTHERS = G / (G - 1) (r_i - mean). Ahmadian et al. 2402.14740.

    With `std`, divided by the std of the whole group plus eps: never by that of the others, which may be 0
    (case D1). Raises as `grpo_advantages`. Example: rewards [1, 0, 0, 0] -> [1, -1/3, -1/3, -1/3].
    """
    stats = group_stats(rewards_B, group_ids_B)
    return _standardise(stats, StdKind(std), eps, EpsMode.ADD) * (
        stats.count_B / (stats.count_B - 1).clamp(min=1)
    )


def grpo_batch_std_advantages(
    rewards_B: Float[Tensor, "B"], group_ids_B: Int[Tensor, "B"], ddof: int = 1, eps: float = 1e-4
) -> Float[Tensor, "B"]:
    """A_i = (r_i - group mean) / (std of ALL scorable rewards + eps). TRL `scale_rewards="batch"`.

    Raises as `grpo_advantages`. Example: rewards [0, 2, 5, 5], ids [0, 0, 1, 1], ddof 0, eps 0 -> batch std
    2.12132 -> [-.471405, .471405, 0, 0].
    """
    stats = group_stats(rewards_B, group_ids_B)
    scale_B = torch.where(stats.alive_B, _std_over(rewards_B, stats.scorable_B, ddof) + eps, 1.0)
    return stats.centred_B / scale_B


def opo_advantages(
    rewards_B: Float[Tensor, "B"],
    lengths_B: Int[Tensor, "B"] | Float[Tensor, "B"],
    group_ids_B: Int[Tensor, "B"],
) -> Float[Tensor, "B"]:
    """A_i = r_i - sum_j L_j r_j / sum_j L_j over the group: the length-weighted baseline. OPO 2505.23585.

    Lengths in tokens; a group whose scorable rows are all empty keeps the plain mean. Raises as
    `grpo_advantages`. Example: rewards [1, 0], lengths [1, 3] -> baseline .25 -> [.75, -.25].
    """
    stats = group_stats(rewards_B, group_ids_B)
    group_B = torch.unique(group_ids_B, return_inverse=True)[1]
    weights_B = torch.where(stats.scorable_B, lengths_B.to(stats.mean_B.dtype), 0.0)
    zeros_B = torch.zeros_like(weights_B)
    total_B = zeros_B.index_add(0, group_B, weights_B)[group_B]
    # Of centred rewards: the shift of the baseline from the mean, exact for rewards of large size.
    shift_B = zeros_B.index_add(0, group_B, weights_B * stats.centred_B)[group_B] / total_B.clamp(min=1e-12)
    return torch.where(stats.alive_B, stats.centred_B - torch.where(total_B > 0, shift_B, 0.0), 0.0)


def reinforce_pp_advantages(
    scores_B: Float[Tensor, "B"],
    old_logprobs_BT: Float[Tensor, "B T"],
    ref_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    beta: float,
    gamma: float = 1.0,
    ddof: int = 0,
    eps: float = 1e-8,
) -> Float[Tensor, "B T"]:
    """k1 in the reward, reward-to-go, whitened over ALL live tokens of the batch. REINFORCE++ 2501.03262 eq.
    8-10.

    Raises NonFiniteError for a live NaN. Example: scores [1, -1], KL 0, one token each -> [[1], [-1]].
    """
    rewards_BT = shaped_rewards(scores_B, old_logprobs_BT, ref_logprobs_BT, mask_BT, beta, KLEstimator.K1)
    return whiten(reward_to_go(rewards_BT, mask_BT, gamma), mask_BT, ddof=ddof, eps=eps)


def reinforce_pp_baseline_advantages(
    rewards_B: Float[Tensor, "B"],
    group_ids_B: Int[Tensor, "B"],
    mask_BT: Bool[Tensor, "B T"],
    ddof: int = 0,
    eps: float = 1e-8,
) -> Float[Tensor, "B T"]:
    """Group mean removed, broadcast to tokens, whitened over live tokens: long rows weigh more. 2501.03262
    App. A.

    Raises as `grpo_advantages`. Unscorable rows stay out of the statistics, and 0. Rows of a dead group enter
    the statistics as 0. Example: rewards [1, 0] in one group, one token each -> [[1], [-1]].
    """
    stats = group_stats(rewards_B, group_ids_B)
    scorable_BT = mask_BT & stats.scorable_B[:, None]
    whitened_BT = whiten(broadcast_to_tokens(stats.centred_B, mask_BT), scorable_BT, ddof=ddof, eps=eps)
    return whitened_BT if bool(stats.alive_B.any()) else torch.zeros_like(whitened_BT)


def remax_advantages(
    rewards_B: Float[Tensor, "B"], greedy_rewards_B: Float[Tensor, "B"]
) -> Float[Tensor, "B"]:
    """A_i = r_i - r(greedy answer to the same prompt); 0 where either is NaN. ReMax 2310.10505.

    Raises NonFiniteError for an infinite reward. Example: [1, 0] against greedy [.5, .5] -> [.5, -.5].
    """
    for name, x_B in (("rewards", rewards_B), ("greedy_rewards", greedy_rewards_B)):
        require_finite(name, x_B, ~x_B.isnan())
    difference_B = full_precision(rewards_B.detach()) - full_precision(greedy_rewards_B.detach())
    return torch.where(difference_B.isnan(), 0.0, difference_B)


def gdpo_advantages(
    rewards_BK: Float[Tensor, "B K"],
    group_ids_B: Int[Tensor, "B"],
    weights_K: Float[Tensor, "K"],
    ddof: int = 0,
    eps: float = 1e-6,
) -> Float[Tensor, "B"]:
    """Standardise each component per group, sum with weights, then standardise over the batch. GDPO
    2601.05242.

    Both divisions are by std + eps. A component without spread in the group, or NaN for the row, adds 0; a
    row that is NaN in all has advantage 0 and takes no part. Raises as `grpo_advantages`. Example: K = 1,
    rewards [0, 1, 0, 1], ids [0, 0, 1, 1], eps 0, ddof 0 -> [-1, 1, -1, 1].
    """
    std = StdKind.SAMPLE if ddof else StdKind.POPULATION
    columns = [grpo_advantages(rewards_B, group_ids_B, std, eps) for rewards_B in rewards_BK.unbind(-1)]
    z_BK = torch.stack(columns, -1)
    scorable_B = ~rewards_BK.isnan().all(-1)
    advantages_B = _standardise_over((z_BK * weights_K.to(z_BK.dtype)).sum(-1), scorable_B, ddof, eps)
    # Every component is centred in its group, so the mean over the batch is rounding: keep it out of dead groups.
    return torch.where((z_BK == 0).all(-1), 0.0, advantages_B)


def sum_then_normalize_advantages(
    rewards_BK: Float[Tensor, "B K"],
    group_ids_B: Int[Tensor, "B"],
    weights_K: Float[Tensor, "K"],
    std: StdKind = StdKind.POPULATION,
    eps: float = 1e-6,
) -> Float[Tensor, "B"]:
    """`grpo_advantages` of `mixed_reward`: sum the components first. TRL's default for several rewards.

    Example: rewards [[1, 0], [0, 3]], weights [1, 1], one group, eps 0 -> totals [1, 3] -> [-1, 1].
    """
    return grpo_advantages(mixed_reward(rewards_BK, weights_K), group_ids_B, std, eps)


def process_advantages(
    step_rewards: list[list[float]],
    step_end_index: list[list[int]],
    mask_BT: Bool[Tensor, "B T"],
    ddof: int = 0,
    eps: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B T"]:
    """A_t = sum of the standardised rewards of the steps that end at or after t. DeepSeekMath section 4.1.3.

    All rows are one group: (r - mean) / (std + eps) over the step rewards of all of them; no spread gives 0.
    `step_end_index` holds the column of each step's last token. Raises ValueError when a row's two lists
    differ in length, or an index is out of range. Example: one row of two tokens, steps [0, 2] ending at [0,
    1] -> z [-1, 1] -> A [0, 1].
    """
    num_columns = mask_BT.shape[1]
    for row, (rewards, ends) in enumerate(zip(step_rewards, step_end_index, strict=True)):
        if len(rewards) != len(ends) or any(not 0 <= end < num_columns for end in ends):
            raise ValueError(
                f"row {row}: {len(rewards)} step rewards, end columns {ends} of {num_columns} columns"
            )
    flat_S = torch.tensor([r for row in step_rewards for r in row], dtype=dtype, device=mask_BT.device)
    stats = group_stats(flat_S, torch.zeros_like(flat_S, dtype=torch.long))
    std = StdKind.SAMPLE if ddof else StdKind.POPULATION
    z_S = _standardise(stats, std, eps, EpsMode.ADD)
    rows_S = torch.tensor(
        [b for b, row in enumerate(step_rewards) for _ in row], device=mask_BT.device
    ).long()
    ends_S = torch.tensor([e for row in step_end_index for e in row], device=mask_BT.device).long()
    at_end_BT = torch.zeros(mask_BT.shape, dtype=dtype, device=mask_BT.device)
    at_end_BT.index_put_((rows_S, ends_S), z_S, accumulate=True)
    return torch.where(mask_BT, at_end_BT.flip(-1).cumsum(-1).flip(-1), 0.0)


def dynamic_sampling(rewards_PG: Float[Tensor, "P G"]) -> DynamicSampling:
    """Keep the groups whose rewards differ (max > min, rounding aside; NaN left out). DAPO 2503.14476 eq. 11.

    Log `dead_fraction`: in theory p^G + (1 - p)^G for success rate p. Example: [[1, 0], [1, 1]] -> keep [1,
    0], .5.
    """
    num_prompts, group_size = rewards_PG.shape
    ids_B = torch.arange(num_prompts, device=rewards_PG.device).repeat_interleave(group_size)
    keep_P = group_stats(rewards_PG.flatten(), ids_B).alive_B.view(num_prompts, group_size).any(-1)
    return DynamicSampling(keep_P, 1 - float(keep_P.double().mean()) if num_prompts else 0.0)


def dead_groups(rewards_B: Float[Tensor, "B"], group_ids_B: Int[Tensor, "B"]) -> tuple[int, int]:
    """(groups without any live advantage, groups): a metric as (sum, count). Example: [1, 1, 0, 1], ids [0,
    0, 1, 1] -> (1, 2).
    """
    stats = group_stats(rewards_B, group_ids_B)
    num_groups = len(torch.unique(group_ids_B))
    return num_groups - len(torch.unique(group_ids_B[stats.alive_B])), num_groups


def overlong_penalty(
    lengths_B: Int[Tensor, "B"], max_len: int, cache: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B"]:
    """0 up to max_len - cache, then ((max_len - cache) - L) / cache down to -1 at max_len, -1 beyond. DAPO
    eq. 13.

    Lengths, `max_len` and `cache` in tokens. Raises ValueError unless 0 < cache <= max_len. Example: max_len
    100, cache 20: lengths [80, 90, 100, 120] -> [0, -.5, -1, -1].
    """
    if not 0 < cache <= max_len:
        raise ValueError(f"expected 0 < cache <= max_len, got cache {cache}, max_len {max_len}")
    return (((max_len - cache) - lengths_B.to(dtype)) / cache).clamp(-1, 0)


def mixed_reward(rewards_BK: Float[Tensor, "B K"], weights_K: Float[Tensor, "K"]) -> Float[Tensor, "B"]:
    """sum_k w_k r_k; a NaN component is not applicable and adds 0, a row that is NaN in all is unscorable:
    NaN.

    TRL 1.16; algorithms.md section 3. Raises NonFiniteError for an infinite reward. Example: [[1, nan], [nan,
    nan]], weights [2, 1] -> [2, nan].
    """
    rewards_BK = full_precision(rewards_BK)
    absent_BK = rewards_BK.isnan()
    require_finite("rewards", rewards_BK, ~absent_BK)
    total_B = (torch.where(absent_BK, 0.0, rewards_BK) * weights_K.to(rewards_BK.dtype)).sum(-1)
    return torch.where(absent_BK.all(-1), torch.nan, total_B)


def _standardise(stats: GroupStats, std: StdKind, eps: float, eps_mode: EpsMode) -> Tensor:
    if std == StdKind.NONE:
        return stats.centred_B
    var_B = stats.squares_B / (stats.count_B - int(std == StdKind.SAMPLE)).clamp(min=1)
    scale_B = torch.sqrt(var_B + eps) if eps_mode == EpsMode.VAR else torch.sqrt(var_B) + eps
    return torch.where(stats.alive_B, stats.centred_B / torch.where(stats.alive_B, scale_B, 1.0), 0.0)


def _std_over(x_B: Tensor, keep_B: Tensor, ddof: int) -> Tensor:
    kept_N = full_precision(x_B.detach())[keep_B]
    if len(kept_N) <= ddof:
        return kept_N.new_zeros(())
    return torch.sqrt((kept_N - kept_N.mean()).square().sum() / (len(kept_N) - ddof))


def _standardise_over(x_B: Tensor, keep_B: Tensor, ddof: int, eps: float) -> Tensor:
    """(x - mean) / (std + eps) over the kept rows as one group; 0 elsewhere and without spread."""
    stats = group_stats(torch.where(keep_B, x_B, torch.nan), torch.zeros_like(x_B, dtype=torch.long))
    return _standardise(stats, StdKind.SAMPLE if ddof else StdKind.POPULATION, eps, EpsMode.ADD)
