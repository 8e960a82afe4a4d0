"""Every operation of the format by its name."""

from __future__ import annotations

from . import ops_advantages, ops_kl, ops_logprobs, ops_losses, ops_misc, ops_preference, ops_returns
from .inputs import Operation

OPERATIONS: dict[str, Operation] = (
    ops_logprobs.OPERATIONS
    | ops_kl.OPERATIONS
    | ops_returns.OPERATIONS
    | ops_advantages.OPERATIONS
    | ops_losses.OPERATIONS
    | ops_preference.OPERATIONS
    | ops_misc.OPERATIONS
)
