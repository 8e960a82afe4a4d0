"""Log-probabilities of chosen tokens, entropy, filtering and sampling. Axes: B sequences, T tokens, N flat, V
vocabulary.

Everything is at a sampling temperature that is an argument: logits are divided by it BEFORE the softmax.
Log-softmax runs in float32 (float64 stays) over chunks of positions, recomputed in the backward pass, so that
the float32 copy of the logits never exists for more than one chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .masked import full_precision, require_finite, select

CHUNK_ELEMENTS = 2**24  # logits of one chunk: 64 MiB in float32

_PerPosition = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def token_logprobs(
    logits_BTV: Float[Tensor, "B T V"],
    tokens_BT: Int[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    temperature: float = 1.0,
) -> Float[Tensor, "B T"]:
    """log_softmax(logits[b, t] / temperature)[tokens[b, t]] where live, 0 at pads. algorithms.md 1.1.

    `logits[b, t]` already scores `tokens[b, t]` (see `shift_logprobs`). Nats. Raises NonFiniteError where a
    live result is not finite, ValueError for a temperature that is not above 0 (a greedy policy has no
    gradient). Example: logits [2, 1, 0], token 0: -0.407606 at temperature 1, -0.142932 at 0.5.
    """
    flat = _by_chunks(
        _selected, logits_BTV.flatten(0, 1), tokens_BT.flatten(), mask_BT.flatten(), temperature
    )
    logprobs_BT = flat.view(tokens_BT.shape)
    require_finite("log-probabilities of logits", logprobs_BT, mask_BT)
    return logprobs_BT


def token_entropy(
    logits_BTV: Float[Tensor, "B T V"], mask_BT: Bool[Tensor, "B T"], temperature: float = 1.0
) -> Float[Tensor, "B T"]:
    """H = -sum_a p_a log p_a of the tempered distribution where live, 0 at pads. Nats. algorithms.md section
    5.

    Attached to the graph: d(-H)/dz_j = p_j (log p_j + H). Raises as `token_logprobs`. Example: logits [0, 0]
    -> log 2 = 0.693147.
    """
    mask_N = mask_BT.flatten()
    flat = _by_chunks(_entropy, logits_BTV.flatten(0, 1), mask_N, mask_N, temperature)
    entropy_BT = flat.view(mask_BT.shape)
    require_finite("entropy of logits", entropy_BT, mask_BT)
    return entropy_BT


def selected_logprobs(
    logits_NV: Float[Tensor, "N V"], tokens_N: Int[Tensor, "N"], temperature: float = 1.0
) -> Float[Tensor, "N"]:
    """`token_logprobs` of flat (packed) positions, all live; the caller checks finiteness. Nats.

    Raises ValueError for a temperature that is not above 0. Example: logits [[2, 1, 0]], token 1 ->
    -1.407606.
    """
    live_N = torch.ones_like(tokens_N, dtype=torch.bool)
    return _by_chunks(_selected, logits_NV, tokens_N, live_N, temperature)


def entropy_from_logits(logits_NV: Float[Tensor, "N V"], temperature: float = 1.0) -> Float[Tensor, "N"]:
    """`token_entropy` of flat positions, all live. Nats. Example: [[0, 0, 0, 0]] -> log 4 = 1.386294."""
    live_N = torch.ones(logits_NV.shape[0], dtype=torch.bool, device=logits_NV.device)
    return _by_chunks(_entropy, logits_NV, live_N, live_N, temperature)


def shift_logprobs(
    logits_BSV: Float[Tensor, "B S V"],
    input_ids_BS: Int[Tensor, "B S"],
    completion_mask_BT: Bool[Tensor, "B T"],
    prompt_len: int,
    temperature: float = 1.0,
) -> Float[Tensor, "B T"]:
    """Log-probabilities of the completion from the logits of the whole sequence: position s scores token s +
    1.

    The first completion token is scored by the LAST prompt position (algorithms.md 1.1), so columns
    prompt_len-1 ... S-2 of the logits meet tokens prompt_len ... S-1. S = prompt_len + T. Nats, 0 at pads.
    Raises ValueError when S differs or prompt_len < 1. Example: prompt_len 1, ids [[0, 1]], logits [[[0, 0],
    [9, 0]]] -> [[-0.693147]]: the second logits row is not used.
    """
    num_tokens = completion_mask_BT.shape[1]
    if prompt_len < 1 or prompt_len + num_tokens != input_ids_BS.shape[1]:
        raise ValueError(
            f"prompt_len {prompt_len} + {num_tokens} completion columns must equal {input_ids_BS.shape[1]} "
            "ids, with at least one prompt token to score the first completion token"
        )
    return token_logprobs(
        logits_BSV[:, prompt_len - 1 : -1], input_ids_BS[:, prompt_len:], completion_mask_BT, temperature
    )


def last_live_index(mask_BT: Bool[Tensor, "B T"]) -> Int[Tensor, "B"]:
    """Column of the last live position of each row, from the mask and never from pad ids; -1 for an empty
    row.

    Example: [[1, 1, 0], [1, 0, 1], [0, 0, 0]] -> [1, 2, -1].
    """
    columns_T = torch.arange(1, mask_BT.shape[1] + 1, device=mask_BT.device)
    return (columns_T * mask_BT).amax(-1) - 1 if mask_BT.shape[1] else mask_BT.sum(-1) - 1


def response_mask_from_lengths(lengths_B: Int[Tensor, "B"], num_columns: int) -> Bool[Tensor, "B T"]:
    """Mask of a padded response batch from GENERATED lengths: ids cannot tell a pad from an end (cases A1,
    A2).

    Raises ValueError for a length outside [0, num_columns]. Example: lengths [3, 0], 4 columns -> [[1, 1, 1,
    0], [0, 0, 0, 0]].
    """
    if lengths_B.numel() and not 0 <= int(lengths_B.min()) <= int(lengths_B.max()) <= num_columns:
        raise ValueError(f"response lengths must lie in [0, {num_columns}], got {lengths_B.tolist()}")
    return torch.arange(num_columns, device=lengths_B.device) < lengths_B[:, None]


@dataclass(frozen=True)
class FilteredLogits:
    """The distribution a truncated sampler draws from: kept set, renormalised log-probabilities (-inf
    outside), and the log of the mass kept, so that filtered = unfiltered - log_kept_mass on the kept set.
    Nats.
    """

    keep_NV: Bool[Tensor, "N V"]
    logprobs_NV: Float[Tensor, "N V"]
    log_kept_mass_N: Float[Tensor, "N"]


def filter_logits(
    logits_NV: Float[Tensor, "N V"], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> FilteredLogits:
    """The sampling contract of algorithms.md 1.2: temperature -> top-k -> top-p -> renormalise (=
    transformers, vLLM).

    top-k keeps every logit >= the k-th largest; top-p keeps a token while the mass strictly before it
    (descending, of the distribution left by top-k) is < p, so at least one. top_k 0 and top_p 1 disable, at
    no cost. Raises ValueError outside temperature > 0, top_k >= 0, 0 < top_p <= 1. Example: probabilities .5
    .3 .2, top_p .6 -> keep [1, 1, 0], log_kept_mass log .8 = -0.223144.
    """
    check_temperature(temperature)
    if top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"expected top_k >= 0 and 0 < top_p <= 1, got top_k {top_k}, top_p {top_p}")
    scaled_NV = full_precision(logits_NV)
    scaled_NV = scaled_NV if temperature == 1 else scaled_NV / temperature
    unfiltered_NV = torch.log_softmax(scaled_NV, -1)
    num_rows, vocabulary = logits_NV.shape
    if not 0 < top_k < vocabulary and top_p == 1:
        keep_NV = torch.ones((), dtype=torch.bool, device=logits_NV.device).expand(num_rows, vocabulary)
        return FilteredLogits(keep_NV, unfiltered_NV, unfiltered_NV.new_zeros(num_rows))
    keep_NV = torch.ones_like(scaled_NV, dtype=torch.bool)
    if 0 < top_k < vocabulary:
        keep_NV = scaled_NV >= scaled_NV.topk(top_k, -1).values[:, -1:]
    if top_p < 1:
        keep_NV = _keep_top_p(torch.where(keep_NV, scaled_NV, -torch.inf), top_p)
    kept_NV = torch.where(keep_NV, unfiltered_NV, -torch.inf)
    log_kept_mass_N = torch.logsumexp(kept_NV, -1)
    return FilteredLogits(keep_NV, kept_NV - log_kept_mass_N[:, None], log_kept_mass_N)


def inverse_cdf_sample(logits_NV: Float[Tensor, "N V"], uniforms_N: Float[Tensor, "N"]) -> Int[Tensor, "N"]:
    """One token per row: the first whose cumulative probability exceeds the uniform in [0, 1). No randomness
    of its own.

    One uniform a row replaces noise of vocabulary size (performance.md). `logits` may be tempered or filtered
    log-probabilities; a token of probability zero is never drawn, even when the uniform rounds up to 1.
    Raises ValueError for a uniform outside [0, 1]. Example: probabilities .25 .75: u .2 -> 0, u .25 -> 1, u
    .999 -> 1.
    """
    if uniforms_N.numel() and not bool(((uniforms_N >= 0) & (uniforms_N <= 1)).all()):
        raise ValueError("uniforms must lie in [0, 1]")
    probs_NV = torch.softmax(full_precision(logits_NV), -1)
    cdf_NV = probs_NV.cumsum(-1)
    # The total is 1 only up to rounding: search in units of the total.
    target_N1 = uniforms_N.to(cdf_NV.dtype)[:, None] * cdf_NV[:, -1:]
    found_N = torch.searchsorted(cdf_NV, target_N1, right=True)[:, 0]
    # A step of the cumulative sum can vanish in rounding, and u -> 1 can run off the end: stop at the first
    # token that reaches the total, which is the last one of visible probability.
    last_N = torch.searchsorted(cdf_NV, cdf_NV[:, -1:].contiguous())[:, 0]
    tokens_N = torch.minimum(found_N, last_N)
    # A parallel cumulative sum (CUDA) may step by a rounding error at a token of probability zero.
    impossible_N = probs_NV.gather(-1, tokens_N[:, None])[:, 0] == 0
    return torch.where(impossible_N, probs_NV.argmax(-1), tokens_N) if bool(impossible_N.any()) else tokens_N


def _by_chunks(
    function: _PerPosition, logits_NV: Tensor, tokens_N: Tensor, mask_N: Tensor, temperature: float
) -> Tensor:
    """Apply `function` to chunks of positions, recomputing each in the backward pass instead of keeping
    it.
    """
    check_temperature(temperature)
    chunk = max(1, CHUNK_ELEMENTS // max(1, logits_NV.shape[-1]))
    parts = list(zip(logits_NV.split(chunk), tokens_N.split(chunk), mask_N.split(chunk), strict=True))
    if len(parts) == 1:
        return function(*parts[0], temperature)
    if not (torch.is_grad_enabled() and logits_NV.requires_grad):
        return torch.cat([function(*part, temperature) for part in parts])
    return torch.cat(
        [
            checkpoint(function, *part, temperature, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ]
    )


def _log_softmax(logits_NV: Tensor, mask_N: Tensor, temperature: float) -> Tensor:
    live_NV = full_precision(select(logits_NV, mask_N[:, None].expand_as(logits_NV)))
    return torch.log_softmax(live_NV if temperature == 1 else live_NV / temperature, -1)


def _selected(logits_NV: Tensor, tokens_N: Tensor, mask_N: Tensor, temperature: float) -> Tensor:
    index_N1 = torch.where(mask_N, tokens_N, 0)[:, None].long()  # a pad id may be out of range
    return select(_log_softmax(logits_NV, mask_N, temperature).gather(-1, index_N1)[:, 0], mask_N)


def _entropy(logits_NV: Tensor, _tokens_N: Tensor, mask_N: Tensor, temperature: float) -> Tensor:
    logprobs_NV = _log_softmax(logits_NV, mask_N, temperature)
    finite_NV = torch.where(logprobs_NV == -torch.inf, 0.0, logprobs_NV)  # 0 log 0 = 0
    return select(-(logprobs_NV.exp() * finite_NV).sum(-1), mask_N)


def _keep_top_p(logits_NV: Tensor, top_p: float) -> Tensor:
    sorted_NV, order_NV = torch.sort(logits_NV, descending=True, stable=True)
    probs_NV = torch.softmax(sorted_NV, -1)
    mass_before_NV = torch.nn.functional.pad(probs_NV.cumsum(-1)[:, :-1], (1, 0))
    kept_NV = (mass_before_NV < top_p) & (sorted_NV > -torch.inf)
    return torch.zeros_like(kept_NV).scatter(-1, order_NV, kept_NV)


def check_temperature(temperature: float) -> None:
    """Raises ValueError for a temperature that is not above 0 (a greedy policy has no gradient), or not finite."""
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature must be above 0, got {temperature}: "
            "a greedy policy has no log-probabilities to train on"
        )
