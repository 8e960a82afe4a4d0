"""Statistics of token sequences: repetition, ends, lengths. Axes: B sequences, T tokens. Lists of ids are
ragged.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .logprobs import last_live_index


@dataclass(frozen=True)
class NgramStats:
    """Repeated share of each text, and the share of the most frequent n-gram among all; 0 without n-grams."""

    repeat_share_B: list[float]
    pooled_top_share: float


@dataclass(frozen=True)
class LengthStats:
    """Shares of rows that end in an EOS or were cut off, and the mean length in tokens; over all
    `num_rows` rows.
    """

    eos_rate: float
    truncated_rate: float
    mean_length: float
    num_rows: int


def ngram_stats(token_lists: list[list[int]], n: int = 3) -> NgramStats:
    """1 - unique / total n-grams of each text (0 when shorter than n), and the pooled share of the commonest
    n-gram.

    The pooled share misses mode collapse: see `distinct_share`. Raises ValueError for n < 1. Example: [7, 7,
    7, 7], n 3 -> repeat share .5, pooled 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    grams = [[tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for ids in token_lists]
    shares = [1 - len(set(text)) / len(text) if text else 0.0 for text in grams]
    pooled = Counter(gram for text in grams for gram in text)
    top = max(pooled.values(), default=0)
    return NgramStats(shares, top / pooled.total() if pooled else 0.0)


def distinct_share(token_lists: list[list[int]]) -> float:
    """Distinct outputs / outputs: 1 / B under complete mode collapse. Raises ValueError without outputs.

    Example: [[1, 2], [1, 2], [3]] -> .666667.
    """
    if not token_lists:
        raise ValueError("distinct share of no outputs")
    return len({tuple(ids) for ids in token_lists}) / len(token_lists)


def length_stats(
    token_ids_BT: Int[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], eos_ids: set[int], max_new_tokens: int
) -> LengthStats:
    """EOS rate, truncated rate, mean length. Truncated = length at the limit AND the last live token is no
    EOS.

    Where the sampler reports a stop reason, trust that instead (case A5). An empty row counts in the mean
    length and in both denominators, as neither. Raises ValueError without rows. Example: rows [5, 1] and [5,
    6], eos 1, limit 2 -> .5, .5, 2.
    """
    if not len(mask_BT):
        raise ValueError("length statistics of no rows")
    lengths_B = mask_BT.sum(-1)
    columns_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_BT = mask_BT & (columns_T == last_live_index(mask_BT)[:, None])
    eos_N = torch.tensor(sorted(eos_ids), dtype=token_ids_BT.dtype, device=token_ids_BT.device)
    ended_B = (torch.isin(token_ids_BT, eos_N) & last_BT).any(-1)
    truncated_B = (lengths_B >= max_new_tokens) & ~ended_B
    return LengthStats(
        eos_rate=float(ended_B.double().mean()),
        truncated_rate=float(truncated_B.double().mean()),
        mean_length=float(lengths_B.double().mean()),
        num_rows=len(mask_BT),
    )
