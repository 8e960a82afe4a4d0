"""Weight proof at every publish: the sampler's log-probabilities of a fixed probe must be the trainer's, else the run stops.

A sampler that answers with old or half-copied weights gives no error: rewards still rise, slowly, on the wrong policy. What is compared:

* the log-probabilities of 32 tokens that the probe forces (4 rows of 6 + 8), by the decode path that answers are drawn by, against the
  trainer's forward pass, at temperature 1, within ``TOLERANCES``;
* whether the sampler moved at all: the same 32 numbers to the last bit, while the trainer's moved, are those of older weights;
* for a sampler in this process that keeps copies: up to 64 entries of every tensor, which must be equal.

Not seen: a difference below the tolerance in a sampler elsewhere. In bfloat16, one small update of one layer is below it; it is seen when
enough of them have been missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from ..data.batches import pad_examples
from ..errors import NumericsError, SamplerError
from ..models.policy import Policy
from ..text.chat import sampled_example

__all__ = ["TOLERANCES", "ProvableSampler", "Tolerance", "WeightProof", "probe_rows"]

_PROMPT, _FORCED, _ROWS = 6, 8, 4
_TEXT = (
    "A kettle is put on the stove in the morning. The water in it is cold at first, then warm, and after five minutes it boils. "
    "How much water is left if half of it is poured into two cups? Write the answer as a number, and say in one sentence how you found it."
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest difference that rounding explains, nats: of one token, and the mean over the probe."""

    token: float
    mean: float


TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float32: Tolerance(1e-3, 1e-4),
    torch.bfloat16: Tolerance(1.0, 0.15),
}
"""By the dtype of the matrix products. Measured on SmolLM2, CPU: float32 1e-5 and 3e-6, bfloat16 0.1 and 0.04. They leave room for larger
models: a healthy run must never stop here, and copies are compared exactly beside it."""


class ProvableSampler(Protocol):
    """A sampler that can say what it thinks of given tokens."""

    @property
    def version(self) -> int: ...

    def forced_logprobs(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Tensor:
        """log p of each token of ``answers`` (all of one length) after ``prompts`` (so too), by the decode path, at temperature 1."""
        ...

    def copy_gaps(self) -> Mapping[str, float]:
        """By tensor, the largest difference between a copy and the trained weight; empty where there are no copies in this process."""
        ...


def probe_rows(policy: Policy) -> tuple[tuple[int, ...], ...]:
    """The fixed probe in the policy's own tokens: rows of prompt and forced tokens, the same in every run of a model."""
    ids = list(policy.tokenizer(_TEXT, add_special_tokens=False)["input_ids"])
    width, needed = _PROMPT + _FORCED, _ROWS * (_PROMPT + _FORCED)
    ids = (ids * (needed // len(ids) + 1))[:needed]
    return tuple(tuple(ids[row * width : (row + 1) * width]) for row in range(_ROWS))


class WeightProof:
    """Checks one sampler against one policy. State: what both said of the probe at the last publish."""

    def __init__(
        self,
        policy: Policy,
        sampler: ProvableSampler,
        dtype: torch.dtype,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._policy, self._sampler, self._autocast = policy, sampler, autocast
        self._dtype, self._tolerance = str(dtype).removeprefix("torch."), TOLERANCES[dtype]
        self._rows = probe_rows(policy)
        self._before: tuple[Tensor, Tensor] | None = None

    def check(self, version: int) -> float:
        """The largest difference over the probe, nats. Call after each publish.

        Raises SamplerError where the sampler does not hold the weights of ``version``, NumericsError where the policy itself is not finite.
        """
        trainer_BT = self._trainer_logprobs(version)
        prompts, answers = [row[:_PROMPT] for row in self._rows], [row[_PROMPT:] for row in self._rows]
        sampler_BT = self._sampler.forced_logprobs(prompts, answers).float().cpu()
        gap_BT = (sampler_BT - trainer_BT).abs()
        problem = self._problem(version, gap_BT, sampler_BT, trainer_BT)
        if problem:
            raise SamplerError(problem)
        self._before = (sampler_BT, trainer_BT)
        return float(gap_BT.max())

    @torch.no_grad()
    def _trainer_logprobs(self, version: int) -> Float[Tensor, "B T"]:
        examples = [sampled_example(row[:_PROMPT], row[_PROMPT:]) for row in self._rows]
        batch = pad_examples(examples, self._policy.format.pad_id).to(self._policy.device)
        with self._autocast():
            logprobs_BT = self._policy.forward_response(batch, 1.0).logprobs_BT[:, _PROMPT : _PROMPT + _FORCED].float().cpu()
        if not torch.isfinite(logprobs_BT).all():
            raise NumericsError(f"the policy's log-probabilities of the probe are not finite (weights version {version}): it has diverged")
        return logprobs_BT

    def _problem(self, version: int, gap_BT: Tensor, sampler_BT: Tensor, trainer_BT: Tensor) -> str:
        """What is wrong, in words; empty where nothing is."""
        told = self._sampler.version
        largest, mean = float(gap_BT.max()), float(gap_BT.mean())
        measured = f"log-probabilities of the fixed probe differ by {largest:.3g} nats at most, {mean:.3g} on average"
        if told != version:
            return f"weights of version {version} were published, but the sampler answers under version {told}; {measured}. {_STALE}"
        stale = {name: gap for name, gap in self._sampler.copy_gaps().items() if gap != 0}
        tensor = ""
        if stale:
            worst = max(stale, key=lambda name: stale[name])
            others = f" and {len(stale) - 1} more tensors" if len(stale) > 1 else ""
            tensor = f"; its copy of {worst} is off by {stale[worst]:.3g}{others}"
        bound = f"({self._dtype} explains {self._tolerance.token:g} and {self._tolerance.mean:g})"
        head = f"the sampler does not hold the trainer's weights of version {version}: {measured} {bound}{tensor}."
        if stale:
            return f"{head} {_STALE}"
        if not (largest <= self._tolerance.token and mean <= self._tolerance.mean):
            return f"{head} {_STALE if self._stands_still(sampler_BT, trainer_BT) else _WRONG}"
        return f"{head} {_STILL}" if self._stands_still(sampler_BT, trainer_BT) else ""

    def _stands_still(self, sampler_BT: Tensor, trainer_BT: Tensor) -> bool:
        if self._before is None:
            return False
        moved = float((trainer_BT - self._before[1]).abs().mean())
        return torch.equal(sampler_BT, self._before[0]) and moved > self._tolerance.mean / 2


_STALE = (
    "Likely: the publish was skipped or went to another sampler, or some tensors were not copied. The run stops before anything is sampled "
    "with them; go on from the newest checkpoint once the cause is found"
)
_STILL = "It says to the last bit what it said before the publish, while the trainer has moved. " + _STALE
_WRONG = (
    "Likely: adapters merged wrongly (scale alpha / rank, transposed, merged twice or not at all), another chat or position setting, a "
    "tensor under another name, or a sampler in lower precision than compute.dtype. The run stops before anything is sampled with them"
)
