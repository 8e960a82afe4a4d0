"""Best-of-N, pass@k and votes. Axes: N samples, A actions (outcomes), R responses, P principles, V voters."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class BestOfNKL:
    """The policy of best-of-n over discrete outcomes, its exact KL to the reference, and the BOUNDS, nats and
    share.
    """

    policy_A: Float[Tensor, "A"]
    exact_kl: float
    kl_bound: float
    win_rate_bound: float


def bon_select(scores_N: Float[Tensor, "N"]) -> int:
    """Index of the largest score; NaN is skipped, a tie goes to the lowest index. Raises ValueError when all
    are NaN.

    Example: [nan, 2, 1, 2] -> 1.
    """
    scores = scores_N.tolist()
    scorable = [i for i, score in enumerate(scores) if not math.isnan(score)]
    if not scorable:
        raise ValueError(f"best of {len(scores)}: no answer has a score")
    return max(scorable, key=lambda i: (scores[i], -i))


def bon_unbiased(proxy_N: Float[Tensor, "N"], gold_N: Float[Tensor, "N"], n: int) -> float:
    """Mean, over all subsets of n of the N samples, of gold at the proxy's argmax: sum_i C(i-1, n-1) gold_(i)
    / C(N, n).

    i = 1..N by ascending proxy; of equal proxies the lowest index wins. WebGPT; Gao et al. 2210.10760. Raises
    ValueError unless 1 <= n <= N and all is finite. Example: proxy [1, 2, 3], gold [0, 6, 3], n 2 -> (1 * 6 +
    2 * 3) / 3 = 4.
    """
    num_samples = len(proxy_N)
    if not 1 <= n <= num_samples:
        raise ValueError(f"best of {n} cannot be estimated from {num_samples} samples")
    if not bool((torch.isfinite(proxy_N) & torch.isfinite(gold_N)).all()):
        raise ValueError("bon_unbiased needs finite scores: leave the unscorable samples out first")
    proxy, gold = proxy_N.tolist(), gold_N.tolist()
    order = sorted(range(num_samples), key=lambda i: (proxy[i], -i))
    total = math.comb(num_samples, n)
    return math.fsum(math.comb(rank, n - 1) / total * gold[i] for rank, i in enumerate(order))


def bon_kl(ref_probs_A: Float[Tensor, "A"], rewards_A: Float[Tensor, "A"], n: int) -> BestOfNKL:
    """Best of n draws from a discrete reference: P(a) = F(a)^n - F(below a)^n, ties shared by reference
    probability.

    The bound log n - (n - 1) / n is exact only for continuous scores (Beirami et al. 2401.01879): always an
    upper bound here, as is the win rate n / (n + 1). Raises ValueError for n < 1 or probabilities that do not
    sum to 1. Example: reference [.5, .5], rewards [0, 1], n 2 -> policy [.25, .75], exact .130812, bound
    .193147, win .666667.
    """
    probs_A = ref_probs_A.detach().double()
    if n < 1 or abs(float(probs_A.sum()) - 1) > 1e-6 or bool((probs_A < 0).any()):
        raise ValueError(
            f"expected n >= 1 and probabilities that sum to 1, got n {n}, sum {float(probs_A.sum())}"
        )
    rewards_A = rewards_A.detach().double()
    below_A = (probs_A * (rewards_A < rewards_A[:, None])).sum(-1)
    level_A = (probs_A * (rewards_A == rewards_A[:, None])).sum(-1)
    share_A = torch.where(level_A > 0, probs_A / level_A.clamp(min=1e-300), 0.0)
    policy_A = ((below_A + level_A) ** n - below_A**n) * share_A
    terms_A = torch.where(policy_A > 0, policy_A * (policy_A / probs_A).log(), 0.0)
    return BestOfNKL(policy_A.to(ref_probs_A.dtype), float(terms_A.sum()), bon_kl_bound(n), n / (n + 1))


def bon_kl_bound(n: int) -> float:
    """log n - (n - 1) / n, nats: an upper BOUND on KL(best-of-n || reference). Example: n 2 -> .193147."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return math.log(n) - (n - 1) / n


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), and 1 when n - c < k. Chen et al. 2021, eq. 1: unbiased.

    Raises ValueError unless 0 <= c <= n and 1 <= k <= n. Example: n 10, c 3, k 1 -> .3.
    """
    if not (0 <= num_correct <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"expected 0 <= c <= n and 1 <= k <= n, got n {num_samples}, c {num_correct}, k {k}")
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def principle_vote(votes_RPV: Float[Tensor, "R P V"], weights_P: Float[Tensor, "P"]) -> Float[Tensor, "R"]:
    """Mean over voters, then weighted mean over principles. Votes in {0, 1}, NaN = abstains.

    Constitutional AI 2212.08073; Yuan et al. 2401.10020. A principle all abstain on leaves the mean; a
    response without any vote is unscorable: NaN. Raises ValueError for weights that are negative or all 0.
    Example: votes [[[nan, 1], [0, 1]]], weights [2, 1] -> (2 * 1 + 1 * .5) / 3 = .833333.
    """
    if bool((weights_P < 0).any()) or not float(weights_P.sum()) > 0:
        raise ValueError(f"principle weights must not be negative and not all 0, got {weights_P.tolist()}")
    voted_RPV = ~votes_RPV.isnan()
    counts_RP = voted_RPV.sum(-1)
    means_RP = torch.where(voted_RPV, votes_RPV, 0.0).sum(-1) / counts_RP.clamp(min=1)
    weights_RP = torch.where(counts_RP > 0, weights_P.to(means_RP.dtype), 0.0)
    total_R = weights_RP.sum(-1)
    score_R = (weights_RP * means_RP).sum(-1) / torch.where(total_R > 0, total_R, 1.0)
    return torch.where(total_R > 0, score_R, torch.nan)
