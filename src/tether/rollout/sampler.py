"""The seam between the loop and whatever generates text: one method (and the publishing of weights). No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from ..errors import SamplerError
from ..types import Completion, Request, Sampling

__all__ = ["RestingSampler", "Sampler", "check_requests", "check_sampling"]


class Sampler(Protocol):
    """Draws answers. Every (request, sample index) comes back exactly once, in any order, each as it
    finishes. ``refresh`` publishes new weights under a version, which every token is stamped with.
    """

    @property
    def version(self) -> int: ...

    def refresh(self, version: int) -> None: ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]: ...


@runtime_checkable
class RestingSampler(Protocol):
    """A sampler that can let go of memory while nobody asks it."""

    def rest(self) -> None:
        """Let go of what the next ``refresh`` makes again; nothing is drawn before it."""
        ...


def check_sampling(sampling: Sampling) -> None:
    """Raises SamplerError for a contract that names no distribution, with every problem in one message."""
    problems = []
    if sampling.max_new_tokens < 1:
        problems.append(f"max_new_tokens must be at least 1, got {sampling.max_new_tokens}")
    if not 0 <= sampling.temperature < float("inf"):
        problems.append(f"temperature must be finite and at least 0 (0: greedy), got {sampling.temperature}")
    if sampling.top_k < 0:
        problems.append(f"top_k must be at least 0 (0: off), got {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        problems.append(f"top_p must be in (0, 1] (1: off), got {sampling.top_p}")
    if problems:
        raise SamplerError("; ".join(problems))


def check_requests(
    requests: Sequence[Request], sampling: Sampling, *, max_length: int | None, vocabulary: int
) -> None:
    """Raises SamplerError for requests the model cannot answer, naming the prompt and the remedy.

    ``max_length``: most tokens of prompt and answer together (None: no limit known).
    """
    check_sampling(sampling)
    for request in requests:
        problem = _problem(request, sampling.max_new_tokens, max_length, vocabulary)
        if problem:
            raise SamplerError(f"prompt {request.prompt_id!r}: {problem}")


def _problem(request: Request, budget: int, max_length: int | None, vocabulary: int) -> str | None:
    num_tokens = len(request.prompt_ids)
    if num_tokens == 0:
        return "empty: at least one token is needed to predict the next (give the prompt a BOS or some text)"
    if request.num_samples < 1:
        return f"num_samples must be at least 1, got {request.num_samples}"
    if not 0 <= request.key < 2**64:
        return f"key must be an unsigned 64-bit number (see request_key), got {request.key}"
    if max_length is not None and num_tokens + budget > max_length:
        return (
            f"too long: {num_tokens} prompt tokens + max_new_tokens {budget} exceed the {max_length} "
            "positions of the model; shorten the prompt (max_prompt_tokens) or lower max_new_tokens"
        )
    low, high = min(request.prompt_ids), max(request.prompt_ids)
    if low < 0 or high >= vocabulary:
        strange = low if low < 0 else high
        return f"token id {strange} is outside the vocabulary of {vocabulary}: another tokenizer?"
    return None
