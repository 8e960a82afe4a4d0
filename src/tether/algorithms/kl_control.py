"""The strength of the tether as state: fixed, or the adaptive controller of Ziegler et al. 2019 (code form)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tether.config import KLConfig
from tether.maths.kl import adaptive_beta

__all__ = ["KLController"]


@dataclass(frozen=True)
class KLController:
    """A frozen value: ``observed`` returns the controller of the next round."""

    beta: float
    target: float | None
    horizon: int

    @classmethod
    def from_config(cls, kl: KLConfig) -> KLController:
        """The controller before the first round."""
        return cls(kl.beta, kl.target, kl.horizon)

    def observed(self, kl_k1_sequence: float, num_sequences: int) -> KLController:
        """After a round with mean summed k1 ``kl_k1_sequence`` (nats per sequence) over ``num_sequences`` answers.

        beta *= 1 + clip(KL / target - 1, -.2, .2) * n / horizon; unchanged without a target.
        """
        if self.target is None:
            return self
        return replace(self, beta=adaptive_beta(self.beta, kl_k1_sequence, self.target, num_sequences, self.horizon))
