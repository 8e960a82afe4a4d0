"""From prompts to rollouts: render, ask the sampler, check what came back, put it in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import SamplerError
from ..types import Completion, Prompt, Request, Rollout, Sampling
from .randomness import request_key
from .sampler import Sampler

if TYPE_CHECKING:
    from ..text.chat import ChatFormat

__all__ = ["collect"]


def collect(
    prompts: Sequence[Prompt],
    sampler: Sampler,
    sampling: Sampling,
    format: ChatFormat,
    *,
    num_samples: int,
    run_seed: int,
    step: int,
    batch: int = 0,
    arrived: Callable[[Rollout], None] | None = None,
) -> list[tuple[Rollout, ...]]:
    """``num_samples`` rollouts of each prompt, in the order of prompts and sample indices, whatever the
    order of arrival.

    Token ids are the sampler's own (never decoded and encoded again, case J3). A prompt that occurs twice
    (an epoch border) gets answers of its own each time; ``batch`` numbers further batches of one step, whose
    prompts may come again. ``arrived`` is shown each rollout the moment it is finished, the very object that is
    returned. Raises SamplerError where the sampler broke its contract.
    """
    requests = _requests(prompts, format, num_samples, run_seed, step, batch)
    asked = {request.prompt_id: (prompt, request) for prompt, request in zip(prompts, requests, strict=True)}
    found: dict[tuple[str, int], Rollout] = {}
    wanted = {(name, index) for name in asked for index in range(num_samples)}
    for completion in sampler.generate(requests, sampling):
        place = (completion.prompt_id, completion.sample_index)
        if place not in wanted or place in found:
            fault = "returned before" if place in found else "not asked for"
            raise SamplerError(f"the sampler returned {place}, which was {fault}")
        _check(completion, sampling)
        found[place] = rollout = _rollout(*asked[completion.prompt_id], completion, format)
        if arrived is not None:
            arrived(rollout)
    missing = sorted(wanted - found.keys())
    if missing:
        raise SamplerError(
            f"the sampler left out {len(missing)} of {len(wanted)} completions, first {missing[0]}"
        )
    return [tuple(found[request.prompt_id, index] for index in range(num_samples)) for request in requests]


def _requests(
    prompts: Sequence[Prompt], format: ChatFormat, num_samples: int, run_seed: int, step: int, batch: int
) -> list[Request]:
    seen: Counter[str] = Counter()
    requests = []
    for prompt in prompts:
        seen[prompt.prompt_id] += 1
        times = seen[prompt.prompt_id]
        name = prompt.prompt_id if times == 1 else f"{prompt.prompt_id}\x1f{times}"
        key = request_key(run_seed, step, name if batch == 0 else f"{name}\x1e{batch}")
        requests.append(Request(name, tuple(format.prompt_ids(prompt.text)), num_samples, key))
    return requests


def _rollout(prompt: Prompt, request: Request, completion: Completion, format: ChatFormat) -> Rollout:
    own = (
        completion
        if completion.prompt_id == prompt.prompt_id
        else replace(completion, prompt_id=prompt.prompt_id)
    )
    return Rollout(prompt, request.prompt_ids, own, format.decode(own.token_ids))


def _check(completion: Completion, sampling: Sampling) -> None:
    """Raises SamplerError for a completion that cannot be trained on as it claims."""
    name = f"completion {completion.sample_index} of prompt {completion.prompt_id!r}"
    num_tokens = len(completion.token_ids)
    if not num_tokens == len(completion.sampler_logprobs) == len(completion.versions):
        raise SamplerError(
            f"{name}: {num_tokens} tokens, {len(completion.sampler_logprobs)} log-probabilities and "
            f"{len(completion.versions)} versions; expected one each per token"
        )
    if num_tokens > sampling.max_new_tokens:
        raise SamplerError(f"{name}: {num_tokens} tokens, more than max_new_tokens {sampling.max_new_tokens}")
    if completion.sampling != sampling:
        raise SamplerError(f"{name} was drawn under {completion.sampling}, expected {sampling}")
    if not all(-float("inf") < logprob <= 1e-3 for logprob in completion.sampler_logprobs):
        raise SamplerError(f"{name} has a log-probability that is not a finite number at or below 0")
