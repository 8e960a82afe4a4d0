"""Float32 numbers in two bytes or one, rounded at random so that the mean is right.

The moments of AdamW are running means: m <- beta m + (1 - beta) x. Where the new value is nearer to the old one than half a step of the
narrow form, rounding to the nearest gives the old one back, and the mean stands still however long the pressure lasts. So everything here
rounds up or down at random, with chances that make the expected value exact (stochastic rounding, Gupta et al. 2015, 1502.02551).
Randomness comes in as bits from a generator of the caller. Axes: N numbers, K blocks of ``BLOCK`` numbers, the last one perhaps short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["BLOCK", "FIRST_MOMENT", "SECOND_MOMENT", "PowerCode", "num_blocks", "random_bits", "to_bfloat16"]

BLOCK = 256
"""Numbers that share one scale."""


def num_blocks(size: int) -> int:
    """Blocks of ``size`` numbers."""
    return -(-size // BLOCK)


def random_bits(size: int, generator: torch.Generator, device: torch.device) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """Two independent draws of 16 bits for every number, int32 from 0 to 65535."""
    wide = torch.empty((size + 1) // 2, dtype=torch.int64, device=device).random_(-(2**63), None, generator=generator)
    bits_N = wide.view(torch.int32)[:size]
    return bits_N & 0xFFFF, (bits_N >> 16) & 0xFFFF


def to_bfloat16(x_N: Float[Tensor, " N"], bits_N: Int[Tensor, " N"]) -> Tensor:
    """``x_N`` (float32, contiguous) in bfloat16, up or down with chances that keep its mean.

    bfloat16 is the upper half of float32: a random number below one step is added to the pattern, and the lower half is dropped, which
    rounds away from zero with the chance (lower half) / 65536. Why not to the nearest: half a step is 2^-9 to 2^-8 of a number, and the
    second moment with beta2 = .999 shrinks by at most .001 < 2^-9 of itself a step, so it would never shrink.
    """
    return ((x_N.view(torch.int32) + bits_N) & -65536).view(torch.float32).to(torch.bfloat16)


@final
@dataclass(frozen=True)
class PowerCode:
    """One byte a number: value = absmax of its block x sign(q) (|q| / levels)^(2^doublings).

    Blocks, one scale each, after Dettmers et al. 2022 (8-bit optimizers, 2110.02861); the code is a power instead of their dynamic tree,
    as it needs a few square roots and no table. Steps are fine near 0 and coarse near absmax, so that the *relative* step grows slowly as
    numbers shrink: (2^doublings / levels) x^(-2^-doublings) at x absmax. ``lowest``: the smallest |q| that is written.
    Example: levels 127, doublings 2: .5 absmax is 127 x .5^(1/4) = 106.8 levels, so 106 (.485) one time in five and 107 (.504) otherwise.
    """

    dtype: torch.dtype
    levels: int
    doublings: int
    lowest: int

    def read(self, codes_N: Tensor, absmax_K: Float[Tensor, " K"]) -> Float[Tensor, " N"]:
        """The numbers, float32."""
        roots_N = codes_N.float().div_(self.levels)
        values_KB = _in_blocks(torch.copysign(self._power(roots_N), roots_N)) * absmax_K[:, None]
        return values_KB.flatten()[: codes_N.numel()]

    def write(self, x_N: Float[Tensor, " N"], bits_N: Int[Tensor, " N"]) -> tuple[Tensor, Float[Tensor, " K"]]:
        """(codes, absmax of every block). A number between two codes takes the upper one with the chance that keeps its mean."""
        x_KB = _in_blocks(x_N)
        size_KB = x_KB.abs()
        absmax_K = size_KB.amax(1)
        size_KB = size_KB / torch.where(absmax_K > 0, absmax_K, 1.0)[:, None]
        low_KB = size_KB
        for _ in range(self.doublings):
            low_KB = low_KB.sqrt()
        low_KB = (low_KB * self.levels).floor_().clamp_(self.lowest, self.levels - 1)
        below_KB, above_KB = self._power(low_KB / self.levels), self._power((low_KB + 1) / self.levels)
        chance_KB = (size_KB - below_KB) / (above_KB - below_KB)
        uniform_KB = _in_blocks((bits_N.float() + 0.5) / 65536)
        codes_KB = torch.copysign(low_KB + (uniform_KB < chance_KB), x_KB)
        return codes_KB.to(self.dtype).flatten()[: x_N.numel()], absmax_K

    def _power(self, roots: Tensor) -> Tensor:
        for _ in range(self.doublings):
            roots = roots * roots
        return roots


FIRST_MOMENT = PowerCode(torch.int8, levels=127, doublings=2, lowest=0)
"""Signed, fourth power: a relative step of .03 at absmax, .1 at a hundredth of it."""
SECOND_MOMENT = PowerCode(torch.uint8, levels=255, doublings=3, lowest=1)
"""Without sign, eighth power (the fourth of its root, which is what m is divided by): a relative step of .03 at absmax, .1 at 1e-4 of it.
Never 0 in a block that is not all 0: a second moment that is lost beside a first one that is not would make an update of m / eps."""


def _in_blocks(x_N: Tensor) -> Tensor:
    """[N] -> [K, BLOCK], zeros at the end of the last one."""
    missing = -x_N.numel() % BLOCK
    return (F.pad(x_N, (0, missing)) if missing else x_N).view(-1, BLOCK)
