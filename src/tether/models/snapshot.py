"""The policy as it was at the last publish, for answers that are drawn while the policy itself is updated."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from .policy import Policy
from .reference import narrow
from .trunk import TokenRows

__all__ = ["Snapshot"]

_ENTRIES = 64


@final
class Snapshot:
    """A twin of ``live`` that is written in ``take`` alone. State: the twin.

    Weights that are not trained (under adapters) are shared. With bfloat16 ``products`` and all weights trained, the twin's matrices are
    kept in that precision, as the frozen reference keeps its own.
    """

    def __init__(self, live: Policy, products: torch.dtype = torch.float32) -> None:
        shared = {id(part): part for part in (live.tokenizer, live.format)}
        frozen = {id(weight): weight for weight in live.parameters() if not weight.requires_grad}
        self._live, self._products = live, products
        self.policy = copy.deepcopy(live, shared | frozen).requires_grad_(False).eval()
        if products != torch.float32 and not frozen:
            narrow(self.policy, products)

    @torch.no_grad()
    def take(self) -> None:
        """Become the policy of this moment."""
        for own, live in zip(self.policy.parameters(), self._live.parameters(), strict=True):
            if own is not live:
                own.copy_(live)

    @torch.no_grad()
    def gaps(self) -> dict[str, float]:
        """Largest difference to the live policy over up to 64 entries spread over each tensor, by name; 0 for all right after ``take``."""
        found = {}
        for (name, own), live in zip(self.policy.named_parameters(), self._live.parameters(), strict=True):
            stride = max(1, own.numel() // _ENTRIES)
            told, wanted = own.flatten()[::stride], live.flatten()[::stride].to(own.dtype)
            found[name] = (told.float() - wanted.float()).abs().max()
        return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))

    @torch.no_grad()
    def logprobs(self, batch: TokenRows, temperature: float) -> Float[Tensor, "B T"]:
        """log pi(token t | tokens < t) of the twin at live tokens by the trainer's pass, float32 nats, 0 elsewhere."""
        autocast: AbstractContextManager[object] = nullcontext()
        if self._products != torch.float32:
            autocast = torch.autocast(self.policy.device.type, self._products)
        with autocast:
            return self.policy.forward_response(batch, temperature).logprobs_BT
