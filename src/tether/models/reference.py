"""The frozen reference that the policy is tethered to: a copy, or the policy itself with its adapters off."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import ModelError
from .adapters import adapters_off, has_adapters
from .policy import Policy
from .trunk import TokenRows


class _Kind(StrEnum):
    COPY = "copy"
    ADAPTER_OFF = "adapter_off"


@final
class Reference:
    """Log-probabilities that training never moves. Not a module: its weights belong to no optimiser and no
    checkpoint."""

    def __init__(self, policy: Policy, kind: _Kind, products: torch.dtype = torch.float32) -> None:
        self._policy = policy
        self._kind = kind
        self._products = products

    @classmethod
    def frozen_copy(cls, policy: Policy, products: torch.dtype = torch.float32) -> Reference:
        """A copy of the policy as it is now (adapters as they are, too), with no gradient.

        With bfloat16 ``products`` its matrices are kept and multiplied in that precision. That is what autocast
        does with a float32 policy, from a cast of every matrix in every pass: the same numbers to the last bit.
        """
        shared = {id(part): part for part in (policy.tokenizer, policy.format)}
        twin = copy.deepcopy(policy, shared).requires_grad_(False).eval()
        if products != torch.float32:
            narrow(twin, products)
        return cls(twin, _Kind.COPY, products)

    @classmethod
    def adapter_off(cls, policy: Policy) -> Reference:
        """The base model under the policy's adapters: no second copy in memory. Raises ModelError without
        adapters."""
        if not has_adapters(policy.model):
            raise ModelError("this policy has no adapters to switch off: use Reference.frozen_copy")
        return cls(policy, _Kind.ADAPTER_OFF)

    @property
    def follows_policy(self) -> bool:
        """True where the reference is the policy with its adapters off: it has no weights of its own to change."""
        return self._kind is _Kind.ADAPTER_OFF

    def weights(self) -> dict[str, Tensor]:
        """The weights of a copy by name, tied ones once; none where it follows the policy."""
        return {} if self.follows_policy else {name: p.detach() for name, p in self._policy.named_parameters()}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Become the reference that ``weights`` was read from."""
        for name, own in self.weights().items():
            own.copy_(weights[name])

    @torch.no_grad()
    def logprobs(self, batch: TokenRows, temperature: float) -> Float[Tensor, "B T"]:
        """log pi_ref(token t | tokens < t) at live tokens, float32 nats, 0 elsewhere; no graph."""
        off: AbstractContextManager[None] = nullcontext()
        if self._kind is _Kind.ADAPTER_OFF:
            off = adapters_off(self._policy.model)
        narrow: AbstractContextManager[object] = nullcontext()
        if self._products != torch.float32:
            narrow = torch.autocast(self._policy.device.type, self._products)
        with off, narrow:
            return self._policy.forward_response(batch, temperature).logprobs_BT


def narrow(model: nn.Module, dtype: torch.dtype) -> None:
    """Matrices of linear layers to ``dtype``; one that is an embedding too stays, for its rows are added in float32."""
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    others = {id(p) for part in model.modules() if not isinstance(part, nn.Linear) for p in part.parameters(recurse=False)}
    for part in linear:
        if id(part.weight) not in others:
            part.weight.data = part.weight.data.to(dtype)
