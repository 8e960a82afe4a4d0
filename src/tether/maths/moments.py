"""Running moments that merge: over batches, microbatches or ranks."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .masked import full_precision, require_finite, select


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of what was seen (Welford; Chan et al. 1979 for the merge).

    Example: 1, 3 -> count 2, mean 2, squares 2; population variance 1, sample std 1.414214.
    """

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def __add__(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        return Moments(
            count, mean, self.squares + other.squares + delta**2 * self.count * other.count / count
        )

    @property
    def variance(self) -> float:
        """Population variance; NaN when nothing was seen."""
        return self.squares / self.count if self.count else math.nan

    @property
    def sample_std(self) -> float:
        """Square root of the sample variance; NaN below two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else math.nan


def moments(x_BT: Float[Tensor, "*S"], mask_BT: Bool[Tensor, "*S"]) -> Moments:
    """Moments of the live numbers of `x`, accumulated in float64. Raises NonFiniteError at a live
    NaN.

    Example: [[1, 3, nan]] under [[1, 1, 0]] -> Moments(2, 2, 2).
    """
    require_finite("x", x_BT, mask_BT)
    live_N = x_BT[mask_BT].detach().double()
    if live_N.numel() == 0:
        return Moments()
    mean = live_N.mean()
    return Moments(float(live_N.numel()), float(mean), float((live_N - mean).square().sum()))


def whiten_with(
    x_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    seen: Moments,
    *,
    ddof: int = 0,
    eps: float = 1e-8,
) -> Float[Tensor, "B T"]:
    """`whiten` with the moments of a larger set, such as all ranks merged, so that a shard equals the whole
    batch.

    0 everywhere when `seen` holds no more than max(1, ddof) numbers, or no spread beyond rounding. Example: x [[3]], Moments(2, 2, 2) ->
    [[1]].
    """
    require_finite("x", x_BT, mask_BT)
    live_BT = full_precision(select(x_BT, mask_BT))
    rounding = 4 * torch.finfo(live_BT.dtype).eps * abs(seen.mean)
    if seen.count <= max(1, ddof) or seen.squares <= seen.count * rounding**2:
        return torch.zeros_like(live_BT)
    scale = math.sqrt(seen.squares / (seen.count - ddof) + eps)
    return select((live_BT - seen.mean) / scale, mask_BT)
