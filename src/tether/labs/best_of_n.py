"""What does the best of n answers bring, and how far from the start is it? Axes: A outcomes, N samples of a pool, R repetitions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import bon_kl, bon_select, bon_unbiased, inverse_cdf_sample, pass_at_k

__all__ = ["run"]

# Eight possible answers. The proxy likes the last one best and the gold reward does not; two answers tie on the proxy.
PROBS_A = torch.tensor([0.20, 0.20, 0.16, 0.14, 0.12, 0.10, 0.06, 0.02], dtype=torch.float64)
PROXY_A = torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
GOLD_A = torch.tensor([0.0, 1.0, 1.5, 2.5, 3.5, 4.0, 4.5, -2.0], dtype=torch.float64)
TRIES, FAR_TRIES = (1, 2, 4, 8, 16, 32), (2, 8, 32, 128, 512)
PASS_SAMPLES, PASS_RATE, PASS_K = 10, 0.1, (1, 2, 5, 10)

NOTES = (
    "The exact column is the gold reward of the best-of-n policy, whose probabilities are differences of powers of the proxy's "
    "distribution function. Both estimators see the same pools of N samples; equal proxies are shared by sample order.",
    "The unbiased estimator averages over every subset of n of the N samples; cutting the pool into N / n blocks is unbiased as well, "
    "and noisier.",
    "log n - (n - 1) / n is a BOUND on the KL, exact only for continuous scores: with eight outcomes the KL can never pass -log P(best), "
    "while the bound grows with n. Likewise n / (n + 1) bounds the chance of beating one draw (a tie counts half).",
    "The proxy only rises; gold falls once the answer that fools the proxy is found. Audit the selected answer with gold, never the proxy.",
    "pass@k from n = 10 samples with c right: 1 - C(n - c, k) / C(n, k) is right on average, 1 - (1 - c / n)^k is too low. Both are exact "
    "expectations over the binomial c.",
)


@dataclass(frozen=True)
class _Row:
    """One n: exact proxy and gold, and two estimates of gold from every pool."""

    n: int
    proxy: float
    gold: float
    unbiased_R: Tensor
    blocks_R: Tensor


@dataclass(frozen=True)
class _Distance:
    """One n: how far best-of-n is from the reference, and what bounds it."""

    n: int
    kl: float
    kl_bound: float
    win_rate: float
    win_rate_bound: float


def run(samples: int = 64, repetitions: int = 400, seed: int = 0) -> LabResult:
    """Expected gold of best-of-n from pools of ``samples`` answers, beside the exact value; its KL beside the bound; pass@k."""
    pools_RN = _pools(samples, repetitions, seed)
    rows = [_row(n, pools_RN) for n in TRIES if n <= samples]
    distances = [_distance(n) for n in FAR_TRIES]
    passes = [(k, *_pass_expectations(k)) for k in PASS_K]
    return LabResult(
        name="best-of-n",
        question="What does the best of n answers bring, and how far from the start is it?",
        tables=(
            Table(
                f"Expected gold, from pools of {samples} samples ({repetitions} pools)",
                ("n", "proxy", "gold, exact", "unbiased: mean", "sd", "blocks: mean", "sd of blocks"),
                tuple((r.n, r.proxy, r.gold, *_mean_sd(r.unbiased_R), *_mean_sd(r.blocks_R)) for r in rows),
                ("d", ".3f", ".3f", ".3f", ".3f", ".3f", ".3f"),
            ),
            Table(
                f"Distance from the reference (never above -log P(best) = {-math.log(float(PROBS_A[-1])):.3f} nats)",
                ("n", "KL, exact", "KL bound", "win rate, exact", "win rate bound"),
                tuple((d.n, d.kl, d.kl_bound, d.win_rate, d.win_rate_bound) for d in distances),
                ("d", ".4f", ".4f", ".4f", ".4f"),
            ),
            Table(
                f"pass@k of a success rate {PASS_RATE:g}, expectations over {PASS_SAMPLES} samples",
                ("k", "truth", "1 - C(n-c,k)/C(n,k)", "1 - (1-c/n)^k"),
                tuple(passes),
                ("d", ".4f", ".4f", ".4f"),
            ),
        ),
        panels=(_panel(rows),),
        notes=NOTES,
        figures={
            "n": [r.n for r in rows],
            "gold_exact": [r.gold for r in rows],
            "gold_unbiased": [float(r.unbiased_R.mean()) for r in rows],
            "gold_unbiased_se": [float(r.unbiased_R.std()) / math.sqrt(repetitions) for r in rows],
            "gold_unbiased_sd": [float(r.unbiased_R.std()) for r in rows],
            "gold_blocks_sd": [float(r.blocks_R.std()) for r in rows],
            "far_n": [d.n for d in distances],
            "kl_exact": [d.kl for d in distances],
            "kl_bound": [d.kl_bound for d in distances],
            "win_rate": [d.win_rate for d in distances],
            "win_rate_bound": [d.win_rate_bound for d in distances],
            "pass_at_k": {str(k): [truth, unbiased, plug_in] for k, truth, unbiased, plug_in in passes},
        },
    )


def _pools(samples: int, repetitions: int, seed: int) -> Tensor:
    """Outcomes drawn from the reference, ``pools_RN``."""
    generator = torch.Generator().manual_seed(seed)
    uniforms_B = torch.rand(samples * repetitions, generator=generator, dtype=torch.float64)
    return inverse_cdf_sample(PROBS_A.log().expand(len(uniforms_B), -1), uniforms_B).view(repetitions, samples)


def _row(n: int, pools_RN: Tensor) -> _Row:
    policy_A = bon_kl(PROBS_A, PROXY_A, n).policy_A
    return _Row(
        n,
        float(policy_A @ PROXY_A),
        float(policy_A @ GOLD_A),
        torch.tensor([bon_unbiased(PROXY_A[pool_N], GOLD_A[pool_N], n) for pool_N in pools_RN], dtype=torch.float64),
        torch.tensor([_blocks(pool_N, n) for pool_N in pools_RN], dtype=torch.float64),
    )


def _distance(n: int) -> _Distance:
    exact = bon_kl(PROBS_A, PROXY_A, n)
    # Against one draw of the reference, a tie counts half.
    beats_AA = (PROXY_A[:, None] > PROXY_A).double() + 0.5 * (PROXY_A[:, None] == PROXY_A).double()
    return _Distance(n, exact.exact_kl, exact.kl_bound, float(exact.policy_A @ beats_AA @ PROBS_A), exact.win_rate_bound)


def _blocks(pool_N: Tensor, n: int) -> float:
    """The plain estimator: the pool cut into blocks of n, gold of the best of each."""
    blocks = [block_N for block_N in pool_N.split(n) if len(block_N) == n]
    return sum(float(GOLD_A[block_N[bon_select(PROXY_A[block_N])]]) for block_N in blocks) / len(blocks)


def _pass_expectations(k: int) -> tuple[float, float, float]:
    """Truth, and the expectation over c ~ Binomial of the unbiased and of the plug-in estimator."""
    n, p = PASS_SAMPLES, PASS_RATE
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    unbiased = sum(weight * pass_at_k(n, c, k) for c, weight in enumerate(weights))
    plug_in = sum(weight * (1 - (1 - c / n) ** k) for c, weight in enumerate(weights))
    return 1 - (1 - p) ** k, unbiased, plug_in


def _mean_sd(values_R: Tensor) -> tuple[float, float]:
    return float(values_R.mean()), float(values_R.std())


def _panel(rows: list[_Row]) -> Panel:
    x = tuple(float(row.n) for row in rows)
    curves = (
        Curve("proxy", x, tuple(row.proxy for row in rows)),
        Curve("gold, exact", x, tuple(row.gold for row in rows)),
        Curve("gold, unbiased estimate", x, tuple(float(row.unbiased_R.mean()) for row in rows)),
    )
    return Panel("Best of n by the proxy", "n", "reward", curves, log_x=True)
