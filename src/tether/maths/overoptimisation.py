"""The scaling law of over-optimisation: gold reward against distance from the start. Gao et al.
2210.10760.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor


class OptimisationKind(StrEnum):
    """Best-of-n, gold = d (a - b d); reinforcement learning, gold = d (a - b log d)."""

    BON = "bon"
    RL = "rl"


@dataclass(frozen=True)
class Overoptimisation:
    """Coefficients of the law."""

    kind: OptimisationKind
    alpha: float
    beta: float

    def gold(self, kls_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """Gold reward at each KL (nats), d = sqrt(KL); 0 at KL 0. Raises ValueError for a negative KL.

        Example: bon, alpha 1, beta .25, KL 4 -> 2 (1 - .5) = 1.
        """
        return _design(kls_N, self.kind) @ kls_N.new_tensor([self.alpha, self.beta])

    @property
    def peak_distance(self) -> float:
        """d at the peak, sqrt(nats): a / 2b for bon, exp(a / b - 1) for rl; infinite when beta <= 0."""
        if self.beta <= 0:
            return math.inf
        ratio = self.alpha / self.beta
        return ratio / 2 if self.kind == OptimisationKind.BON else math.exp(ratio - 1)

    @property
    def peak_gold(self) -> float:
        """Gold at the peak: a^2 / 4b for bon, b exp(a / b - 1) for rl; infinite when beta <= 0."""
        if self.kind == OptimisationKind.BON:
            return self.alpha * self.peak_distance / 2
        return self.beta * self.peak_distance if self.beta > 0 else math.inf


def fit_overoptimisation(
    kls_N: Float[Tensor, "N"], gold_N: Float[Tensor, "N"], kind: OptimisationKind
) -> Overoptimisation:
    """Least squares of the law, linear in (alpha, beta). Raises ValueError for fewer than two points, a negative KL, or points
    that two parameters do not tell apart (one KL above 0).

    Example: bon, KL [1, 4], gold [.75, 1] -> alpha 1, beta .25.
    """
    if len(kls_N) < 2 or len(kls_N) != len(gold_N):
        raise ValueError(f"the law needs two or more points, got {len(kls_N)} KLs and {len(gold_N)} rewards")
    first_N, second_N = _design(kls_N.double(), OptimisationKind(kind)).unbind(-1)
    gold_N = gold_N.double()
    # Two columns by hand: a solver's last digits depend on where in memory its matrices lie.
    size = float((first_N * first_N).sum())
    along = float((first_N * second_N).sum()) / size if size > 0 else 0.0
    rest_N = second_N - along * first_N
    rest = float((rest_N * rest_N).sum())
    if not rest > 1e-20 * max(size, 1.0):
        raise ValueError(f"the law needs two different KLs above 0, got {kls_N.tolist()}")
    beta = float((rest_N * gold_N).sum()) / rest
    return Overoptimisation(OptimisationKind(kind), float((first_N * gold_N).sum()) / size - beta * along, beta)


def _design(kls_N: Tensor, kind: OptimisationKind) -> Tensor:
    """Columns that multiply alpha and beta: d, and -d^2 (bon) or -d log d (rl)."""
    if bool((kls_N < 0).any()):
        raise ValueError(f"a KL must not be negative, got {kls_N.tolist()}")
    d_N = kls_N.sqrt()
    second_N = -d_N.square() if kind == OptimisationKind.BON else -torch.special.xlogy(d_N, d_N)
    return torch.stack([d_N, second_N], -1)
