"""A sampler that says what it is told: for tests of the loop without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..errors import SamplerError
from ..types import Completion, Request, Sampling, StopReason
from .sampler import check_sampling

__all__ = ["ScriptedSampler"]

Script = Mapping[str, Sequence[Sequence[int]]] | Callable[[Request, int], Sequence[int]]


class ScriptedSampler:
    """Answers from a script: ids per (prompt id, sample index), or a function of the request and the index.

    An answer longer than the budget is cut and ends LENGTH; any other ends STOP, whatever its last id: the
    engine's word counts. ``shuffle_seed`` returns completions in a random order, as real engines do.
    """

    def __init__(
        self, script: Script, *, logprob: float = -1.0, version: int = 0, shuffle_seed: int | None = None
    ) -> None:
        self._script, self._logprob, self._shuffle_seed = script, logprob, shuffle_seed
        self.version = version

    def refresh(self, version: int) -> None:
        self.version = version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        check_sampling(sampling)
        answers = [self._answer(r, i, sampling) for r in requests for i in range(r.num_samples)]
        if self._shuffle_seed is not None:
            order = np.random.default_rng(self._shuffle_seed).permutation(len(answers))
            answers = [answers[i] for i in order]
        return iter(answers)

    def _answer(self, request: Request, index: int, sampling: Sampling) -> Completion:
        ids = tuple(self._lookup(request, index))
        cut = len(ids) > sampling.max_new_tokens
        ids = ids[: sampling.max_new_tokens]
        reason = StopReason.LENGTH if cut else StopReason.STOP
        logprobs, versions = (self._logprob,) * len(ids), (self.version,) * len(ids)
        return Completion(request.prompt_id, index, ids, logprobs, versions, reason, sampling)

    def _lookup(self, request: Request, index: int) -> Sequence[int]:
        if callable(self._script):
            return self._script(request, index)
        answers = self._script.get(request.prompt_id, ())
        if index >= len(answers):
            raise SamplerError(f"the script has no answer {index} for prompt {request.prompt_id!r}")
        return answers[index]
