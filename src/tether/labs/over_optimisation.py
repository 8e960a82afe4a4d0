"""A proxy that is pressed too hard. Axes: K worlds, D features, N comparisons, S answers of a pool.

Answers are x ~ N(0, I) in D dimensions. Gold = w . x - c sum_i x_i^4 (less its mean, so that the start has 0), |w| = 1. The proxy is the
linear Bradley-Terry fit to N comparisons judged by the gold reward. KL in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import OptimisationKind, Overoptimisation, bon_kl_bound, bon_unbiased, fit_overoptimisation, linear_bt_fit

__all__ = ["run"]

DIMENSIONS, QUARTIC, L2 = 20, 0.01, 0.01
TRIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KLS = tuple(i * 0.2 for i in range(161))  # 0 .. 32 nats

NOTES = (
    "Answers are 20 normal features; gold is a line minus 0.01 of the sum of fourth powers, so extremes are bad; the proxy is a line "
    "fitted to comparisons that the gold reward judged (Bradley-Terry, l2 0.01). Means over worlds, each with its own line and "
    "comparisons.",
    "The best policy for a linear proxy v under KL(pi || ref) is exact: N(v / beta, I), a shift of sqrt(2 KL) along v. Every weaker "
    "tether is a step to the right of the curve.",
    "The proxy rises without end; gold has its peak inside and falls below the start. More comparisons: a later and higher peak.",
    "For best-of-n the KL is the value log n - (n - 1) / n (exact here up to the finite pool: scores are continuous). Its gold follows "
    "d (a - b d), d = sqrt(KL); the peak a / 2b lies beyond what n can reach. "
    "The law with log d, d (a - b log d), fits the shifted policy less well: R^2 is 0.8 to 0.9 (--json).",
)


@dataclass(frozen=True)
class _World:
    """One true line and the proxy that N comparisons gave: unit vectors."""

    line_D: Tensor
    proxy_D: Tensor


@dataclass(frozen=True)
class _Curves:
    """Means over worlds: gold and proxy along KL, gold of best-of-n, its fitted law, and R squared of it and of the log law."""

    gold_K: Tensor
    bon_N: Tensor
    law: Overoptimisation
    r_squared: float
    log_law_r_squared: float
    cosine: float

    @property
    def peak(self) -> int:
        """Index into ``KLS`` of the largest gold."""
        return int(self.gold_K.argmax())


def run(pairs: tuple[int, ...] = (50, 200, 2000), seeds: int = 20, pool: int = 2048, seed: int = 0) -> LabResult:
    """Gold against KL for proxies from few and many comparisons, by a KL-regularised policy and by best-of-n."""
    curves = {count: _curves(count, seeds, pool, seed) for count in pairs}
    last = len(KLS) - 1
    return LabResult(
        name="over-optimisation",
        question="How far may one follow a reward that was learned from N comparisons?",
        tables=(
            Table(
                f"KL-regularised policy: gold along the way, mean of {seeds} worlds",
                ("N", "cos(proxy, line)", "peak at KL", "gold there", "proxy there", f"gold at KL {KLS[last]:g}", "proxy at the end"),
                tuple(
                    (n, c.cosine, KLS[c.peak], float(c.gold_K[c.peak]), _proxy(KLS[c.peak]), float(c.gold_K[last]), _proxy(KLS[last]))
                    for n, c in curves.items()
                ),
                ("d", ".2f", ".1f", ".2f", ".2f", ".2f", ".2f"),
            ),
            Table(
                f"Best-of-n, n = 1 .. {TRIES[-1]}: gold = d (a - b d), d = sqrt(KL)",
                ("N", "a", "b", "R^2", "peak of the law (KL)"),
                tuple((n, c.law.alpha, c.law.beta, c.r_squared, c.law.peak_distance**2) for n, c in curves.items()),
                ("d", ".2f", ".2f", ".4f", ".1f"),
            ),
        ),
        panels=_panels(curves),
        notes=NOTES,
        figures={
            "pairs": list(pairs),
            "peak_kl": [KLS[c.peak] for c in curves.values()],
            "peak_gold": [float(c.gold_K[c.peak]) for c in curves.values()],
            "gold_at_end": [float(c.gold_K[last]) for c in curves.values()],
            "proxy_at_peak": [_proxy(KLS[c.peak]) for c in curves.values()],
            "proxy_at_end": _proxy(KLS[last]),
            "bon_alpha": [c.law.alpha for c in curves.values()],
            "bon_beta": [c.law.beta for c in curves.values()],
            "bon_r_squared": [c.r_squared for c in curves.values()],
            "log_law_r_squared": [c.log_law_r_squared for c in curves.values()],
            "cosine": [c.cosine for c in curves.values()],
        },
    )


def _curves(num_pairs: int, seeds: int, pool: int, seed: int) -> _Curves:
    generator = torch.Generator().manual_seed(seed)
    worlds = [_world(num_pairs, generator) for _ in range(seeds)]
    gold_K = torch.stack([_gold_along(world) for world in worlds]).mean(0)
    bon_N = torch.stack([_best_of_n(world, pool, generator) for world in worlds]).mean(0)
    kls_N = torch.tensor([bon_kl_bound(n) for n in TRIES], dtype=torch.float64)
    law = fit_overoptimisation(kls_N, bon_N, OptimisationKind.BON)
    kls_K = torch.tensor(KLS, dtype=torch.float64)
    log_law = fit_overoptimisation(kls_K, gold_K, OptimisationKind.RL)
    cosine = sum(float(world.line_D @ world.proxy_D) for world in worlds) / seeds
    return _Curves(gold_K, bon_N, law, _r_squared(law, kls_N, bon_N), _r_squared(log_law, kls_K, gold_K), cosine)


def _r_squared(law: Overoptimisation, kls_N: Tensor, gold_N: Tensor) -> float:
    """Share of the spread of gold that the law explains."""
    return 1 - float((gold_N - law.gold(kls_N)).square().sum() / (gold_N - gold_N.mean()).square().sum())


def _world(num_pairs: int, generator: torch.Generator) -> _World:
    """A random line; comparisons of two random answers, the winner drawn by sigmoid(gold - gold)."""
    line_D = _normal(generator, DIMENSIONS)
    line_D = line_D / line_D.norm()
    first_ND, second_ND = _normal(generator, num_pairs, DIMENSIONS), _normal(generator, num_pairs, DIMENSIONS)
    chance_N = torch.sigmoid(_gold(first_ND, line_D) - _gold(second_ND, line_D))
    first_won_N = torch.rand(num_pairs, generator=generator, dtype=torch.float64) < chance_N
    difference_ND = torch.where(first_won_N[:, None], first_ND - second_ND, second_ND - first_ND)
    proxy_D = linear_bt_fit(difference_ND, L2)
    return _World(line_D, proxy_D / proxy_D.norm())


def _gold(answers_SD: Tensor, line_D: Tensor) -> Tensor:
    """w . x - c sum x^4, less its mean over N(0, I): E x^4 = 3."""
    return answers_SD @ line_D - QUARTIC * (answers_SD.pow(4).sum(-1) - 3 * DIMENSIONS)


def _gold_along(world: _World) -> Tensor:
    """Exact E[gold] of N(m, I), m = sqrt(2 KL) proxy: E (x + m)^4 - 3 = m^4 + 6 m^2 for every feature."""
    shift_KD = (2 * torch.tensor(KLS, dtype=torch.float64)).sqrt()[:, None] * world.proxy_D
    return shift_KD @ world.line_D - QUARTIC * (shift_KD.pow(4) + 6 * shift_KD.square()).sum(-1)


def _proxy(kl: float) -> float:
    """E[unit proxy] of that policy."""
    return math.sqrt(2 * kl)


def _best_of_n(world: _World, pool: int, generator: torch.Generator) -> Tensor:
    """Gold of best-of-n by the proxy for every n of ``TRIES``, less that of n = 1, from one pool of answers."""
    answers_SD = _normal(generator, pool, DIMENSIONS)
    gold_S, proxy_S = _gold(answers_SD, world.line_D), answers_SD @ world.proxy_D
    gold_N = torch.tensor([bon_unbiased(proxy_S, gold_S, n) for n in TRIES], dtype=torch.float64)
    return gold_N - gold_N[0]


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _panels(curves: dict[int, _Curves]) -> tuple[Panel, ...]:
    proxy = Curve("proxy", KLS, tuple(_proxy(kl) for kl in KLS))
    policy = tuple(Curve(f"gold, N = {n}", KLS, tuple(c.gold_K.tolist())) for n, c in curves.items())
    kls = tuple(bon_kl_bound(n) for n in TRIES)
    best = tuple(Curve(f"gold, N = {n}", kls, tuple(c.bon_N.tolist())) for n, c in curves.items())
    return (
        Panel("KL-regularised policy", "KL(policy || start), nats", "reward", (proxy, *policy)),
        Panel("Best-of-n", "log n - (n - 1) / n, nats", "gold reward", best),
    )
