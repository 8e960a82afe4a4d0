"""From logits to one token a row with its log-probability, under the sampling contract. Axes: R rows, V
vocabulary.

The vocabulary is searched in two levels (blocks, then tokens within one block), so no cumulative sum over
all of V is made; one uniform a row replaces noise of vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..maths.logprobs import filter_logits
from ..types import Sampling

__all__ = ["Drawn", "draw"]

BLOCK = 256
CANDIDATES = 1024  # top-p looks at this many largest logits before it sorts the whole vocabulary


@dataclass(frozen=True, slots=True)
class Drawn:
    """``logprobs_R``: nats, float32, of the filtered and renormalised distribution at the temperature. NaN
    tells that a row's logits were not finite (its token means nothing).
    """

    tokens_R: Int[Tensor, R]
    logprobs_R: Float[Tensor, R]


def draw(logits_RV: Float[Tensor, "R V"], uniforms_R: Float[Tensor, R], sampling: Sampling) -> Drawn:
    """The first token whose cumulative probability exceeds the uniform; greedy: the largest logit,
    log-probability 0.

    A greedy "policy" puts all mass on one token, whose log-probability is 0 exactly; it is not to be
    trained on. Example: logits log [.25, .75], temperature 1: u .2 -> token 0, -1.386294; u .3 -> token 1,
    -.287682.
    """
    scores_RV = logits_RV.float()
    top_R1 = scores_RV.amax(-1, keepdim=True)
    certain_R = torch.where(top_R1[:, 0].isfinite(), 0.0, torch.nan)
    if sampling.greedy:
        return Drawn(scores_RV.argmax(-1), certain_R)
    scale = 1.0
    if sampling.truncated:
        logits_RV = scores_RV = _filtered(scores_RV, sampling)
        top_R1 = scores_RV.amax(-1, keepdim=True)
    elif sampling.temperature != 1:
        scale = 1.0 / sampling.temperature
    own_RV = scores_RV if scores_RV is not logits_RV else None  # a cast, which nobody reads any more
    weights_RV = torch.sub(scores_RV, top_R1, out=own_RV)
    if scale != 1:
        weights_RV.mul_(scale)
    tokens_R, total_R = _search(weights_RV.exp_(), uniforms_R)  # in [0, 1], 1 at the largest
    chosen_R = (logits_RV.gather(-1, tokens_R[:, None]).float() - top_R1)[:, 0] * scale
    return Drawn(tokens_R, (chosen_R - total_R.log()).float() + certain_R)


def _search(weights_RV: Tensor, uniforms_R: Tensor) -> tuple[Tensor, Tensor]:
    """(token, total weight) of each row: inverse CDF of unnormalised weights. Block sums float32, the rest
    float64.
    """
    num_rows, vocabulary = weights_RV.shape
    short = -vocabulary % BLOCK
    if short:
        weights_RV = torch.nn.functional.pad(weights_RV, (0, short))
    blocks_RNB = weights_RV.view(num_rows, -1, BLOCK)
    cdf_RN = blocks_RNB.sum(-1).double().cumsum(-1)
    total_R = cdf_RN[:, -1]
    target_R = uniforms_R.double() * total_R
    block_R = _first_above(cdf_RN, target_R)
    before_R = torch.where(block_R > 0, cdf_RN.gather(-1, (block_R - 1).clamp_min(0)[:, None])[:, 0], 0.0)
    inner_RB = blocks_RNB[torch.arange(num_rows, device=block_R.device), block_R].double().cumsum(-1)
    tokens_R = block_R * BLOCK + _first_above(inner_RB, target_R - before_R)
    return tokens_R.clamp_max(vocabulary - 1), total_R  # only rows of NaN run past the end


def _first_above(cdf_RN: Tensor, target_R: Tensor) -> Tensor:
    """First index whose cumulative weight exceeds the target, never one past the last weight above zero.

    Rounding may leave the target at or above the end of the sum: then the last index that adds weight is
    taken.
    """
    found_R = torch.searchsorted(cdf_RN, target_R[:, None], right=True)[:, 0]
    last_R = torch.searchsorted(cdf_RN, cdf_RN[:, -1:].contiguous())[:, 0]
    return torch.minimum(found_R, last_R).clamp_max(cdf_RN.shape[-1] - 1)  # NaN sorts past the end


def _filtered(logits_RV: Tensor, sampling: Sampling) -> Tensor:
    """Filtered log-probabilities, -inf outside the kept set (maths.logprobs.filter_logits), without sorting
    all of V when the largest ``CANDIDATES`` logits already decide.
    """
    if logits_RV.shape[1] > 4 * CANDIDATES:
        short_RV = _filtered_by_candidates(logits_RV, sampling)
        if short_RV is not None:
            return short_RV
    return filter_logits(logits_RV, sampling.temperature, sampling.top_k, sampling.top_p).logprobs_NV


def _filtered_by_candidates(logits_RV: Tensor, sampling: Sampling) -> Tensor | None:
    """The same from the largest logits alone; None where they do not decide (flat rows, ties at the edge,
    NaN).
    """
    best_RC = logits_RV.topk(CANDIDATES, -1)
    scaled_RC = best_RC.values / sampling.temperature
    if 0 < sampling.top_k < CANDIDATES:
        edge_R1 = best_RC.values[:, sampling.top_k - 1 : sampling.top_k]
        if not bool((best_RC.values[:, -1:] < edge_R1).all()):
            return None
        scaled_RC = torch.where(best_RC.values >= edge_R1, scaled_RC, -torch.inf)
        log_total_R1 = scaled_RC.logsumexp(-1, keepdim=True)
    elif sampling.top_k > 0:
        return None
    else:
        log_total_R1 = (logits_RV / sampling.temperature).logsumexp(-1, keepdim=True)
    probs_RC = (scaled_RC - log_total_R1).exp()
    mass_before_RC = torch.nn.functional.pad(probs_RC.cumsum(-1)[:, :-1], (1, 0))
    if sampling.top_p < 1:
        if not bool((mass_before_RC[:, -1] >= sampling.top_p).all()) and sampling.top_k == 0:
            return None
        scaled_RC = torch.where(mass_before_RC < sampling.top_p, scaled_RC, -torch.inf)
    kept_RC = torch.log_softmax(scaled_RC, -1)
    return torch.full_like(logits_RV, -torch.inf).scatter_(-1, best_RC.indices, kept_RC)
