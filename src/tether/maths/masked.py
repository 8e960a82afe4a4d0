"""Masked reductions: select, sum, mean, whiten, aggregate. Axes: B sequences, T tokens; "live" = mask True.

A pad may hold anything, NaN and infinity included: every function selects with `torch.where` BEFORE
arithmetic, so values and gradients at pads are exactly 0. A number that is not finite at a live position
raises NonFiniteError.
"""

from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class NonFiniteError(ValueError):
    """NaN or infinity at a live position: which tensor, where, what. Rebuilt from its four arguments when
    unpickled.

    Example: `NonFiniteError("logprobs", 0, 2, float("nan"))` reads "logprobs is nan at row 0, column 2, a
    live position: ...".
    """

    def __init__(self, name: str, row: int, column: int | None, value: float) -> None:
        super().__init__(name, row, column, value)
        self.name, self.row, self.column, self.value = name, row, column, value

    def __str__(self) -> str:
        place = f"row {self.row}" if self.column is None else f"row {self.row}, column {self.column}"
        return (
            f"{self.name} is {self.value} at {place}, a live position: every live number must be finite. "
            "Find what produced it, or mask the position if it should not count."
        )


class Aggregation(StrEnum):
    """How per-token losses become one number (algorithms.md section 0): the weight of a live token.

    token_mean 1/N (DAPO eq. 12); seq_mean_token_mean 1/(B1 L_b) (GRPO eq. 3); seq_mean_token_sum 1/B1 (RLOO);
    token_sum_norm 1/(B C), C a fixed budget (Dr.GRPO). N live tokens, L_b of row b, B1 non-empty rows, B all
    rows.
    """

    TOKEN_MEAN = "token_mean"
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    TOKEN_SUM_NORM = "token_sum_norm"


class EmptyRows(StrEnum):
    """Whether rows without a live token count in a mean over rows: EXCLUDE (verl, OpenRLHF), COUNT (TRL
    `grpo`).
    """

    EXCLUDE = "exclude"
    COUNT = "count"


def full_precision(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """`x` in float32, or unchanged where it is float64. Example: bfloat16 1.5 -> float32 1.5."""
    return x if x.dtype == torch.float64 else x.float()


def select(x_BT: Float[Tensor, "*S"], mask_BT: Bool[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """`x` where live, exactly 0 elsewhere, with gradient exactly 0 there. Source: algorithms.md section 0.

    Shapes: both [B, T] (any equal shape). Unit: that of x. Example: x [[2, nan]], mask [[1, 0]] -> [[2, 0]].
    """
    return torch.where(mask_BT, x_BT, torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))


def require_finite(name: str, x_BT: Float[Tensor, "*S"], mask_BT: Bool[Tensor, "*S"]) -> None:
    """Raise NonFiniteError naming `name`, row and column at the first live position of `x` that is NaN or
    infinite.

    Shapes: both [B, T] or both [B]. Example: x [[1, nan]], mask [[1, 0]] passes; mask [[1, 1]] raises for row
    0, column 1.
    """
    bad = mask_BT & ~torch.isfinite(x_BT)
    if not bool(bad.any()):
        return
    place = bad.nonzero()[0].tolist()
    column = place[1] if len(place) > 1 else None
    raise NonFiniteError(name, place[0], column, x_BT[tuple(place)].item())


def masked_sum(x_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Sum over live positions, in at least float32. Example: [[2, 4, nan]] under [[1, 1, 0]] -> 6."""
    require_finite("x", x_BT, mask_BT)
    return full_precision(select(x_BT, mask_BT)).sum()


def masked_mean(x_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean over live positions. Raises ValueError when there is none. Example: [[2, 4, nan]], [[1, 1, 0]] ->
    3.
    """
    return masked_sum(x_BT, mask_BT) / _live_count(mask_BT)


def masked_var(x_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], ddof: int = 0) -> Float[Tensor, ""]:
    """Variance over live positions, sum (x - mean)^2 / (N - ddof), in two passes.

    `ddof` 0 is the population, 1 the sample variance. Raises ValueError when no position is live, or N <=
    ddof. Example: [[2, 4, nan]] under [[1, 1, 0]] -> 1 (ddof 0), 2 (ddof 1).
    """
    count = _live_count(mask_BT)
    if count <= ddof:
        raise ValueError(f"a variance with ddof {ddof} needs more than {ddof} live positions, found {count}")
    centred_BT = select(full_precision(x_BT) - masked_mean(x_BT, mask_BT), mask_BT)
    return centred_BT.square().sum() / (count - ddof)


def has_spread(x_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> bool:
    """Whether live numbers differ by more than rounding: 4 units in the last place of the largest |x|.

    Example: [[.1 + .2, .3, nan]] under [[1, 1, 0]] -> False.
    """
    live_N = full_precision(x_BT.detach())[mask_BT]
    if not len(live_N):
        return False
    rounding = 4 * torch.finfo(live_N.dtype).eps * live_N.abs().max()
    return bool(live_N.max() - live_N.min() > rounding)


def whiten(
    x_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], *, ddof: int = 0, eps: float = 1e-8
) -> Float[Tensor, "B T"]:
    """(x - mean) / sqrt(var + eps) over the live positions of the whole batch, 0 at pads.

    Source: Ziegler et al. 2019 code; algorithms.md section 4 (population variance by default). One live
    position, or none, or no spread (`has_spread`): exactly 0. Unit: none. Raises NonFiniteError at a live
    NaN. Example: [[1, 3, nan]] under [[1, 1, 0]] -> [[-1, 1, 0]].
    """
    require_finite("x", x_BT, mask_BT)
    live_BT = full_precision(select(x_BT, mask_BT))
    if int(mask_BT.sum()) <= max(1, ddof) or not has_spread(live_BT, mask_BT):
        return torch.zeros_like(live_BT)
    mean, var = masked_mean(live_BT, mask_BT), masked_var(live_BT, mask_BT, ddof)
    return select((live_BT - mean) / torch.sqrt(var + eps), mask_BT)


def scale_only_whiten(
    x_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"], *, ddof: int = 0, eps: float = 1e-8
) -> Float[Tensor, "B T"]:
    """Whiten, then give the mean back: (x - mean) / sqrt(var + eps) + mean, 0 at pads.

    For reward whitening (`whiten(shift_mean=False)` in OpenAI's code, algorithms.md section 3). One live
    position, or none that differs, keeps its value. Raises NonFiniteError at a live NaN. Example: [[1, 5, nan]] under [[1, 1, 0]] ->
    [[2, 4, 0]].
    """
    if not bool(mask_BT.any()):
        return torch.zeros_like(full_precision(x_BT))
    return select(whiten(x_BT, mask_BT, ddof=ddof, eps=eps) + masked_mean(x_BT, mask_BT), mask_BT)


def aggregate_sum(
    x_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    aggregation: Aggregation,
    norm_len: int | None = None,
) -> Float[Tensor, ""]:
    """The numerator of an aggregation: sum of x with weight 1, 1/L_b, 1 or 1/C at a live token.

    Sums of microbatches add up; divide them by ONE `aggregate_count` of the whole optimiser step. Source:
    algorithms.md section 0. Unit: that of x. Raises ValueError when token_sum_norm comes without a positive
    `norm_len`. Example: [[1, 3], [5, nan]] under [[1, 1], [1, 0]] -> token_mean 9, seq_mean_token_mean 7,
    seq_mean_token_sum 9, token_sum_norm with C = 3: 3.
    """
    require_finite("x", x_BT, mask_BT)
    live_BT = full_precision(select(x_BT, mask_BT))
    match Aggregation(aggregation):
        case Aggregation.TOKEN_MEAN | Aggregation.SEQ_MEAN_TOKEN_SUM:
            return live_BT.sum()
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            lengths_B = mask_BT.sum(-1).clamp(min=1)
            return (live_BT.sum(-1) / lengths_B).sum()
        case _:  # TOKEN_SUM_NORM
            if norm_len is None or norm_len <= 0:
                raise ValueError(
                    f"token_sum_norm needs norm_len, a positive number of tokens; got {norm_len}"
                )
            return live_BT.sum() / norm_len


def aggregate_count(
    mask_BT: Bool[Tensor, "B T"], aggregation: Aggregation, empty_rows: EmptyRows = EmptyRows.EXCLUDE
) -> float:
    """The denominator of an aggregation, a whole number: N live tokens | B1 | B1 | B rows.

    B1 counts non-empty rows, or all rows with `EmptyRows.COUNT`. Example: mask [[1, 1], [1, 0], [0, 0]] ->
    token_mean 3, seq_mean_token_mean 2, seq_mean_token_sum 2, token_sum_norm 3.
    """
    match Aggregation(aggregation):
        case Aggregation.TOKEN_MEAN:
            return float(mask_BT.sum())
        case Aggregation.TOKEN_SUM_NORM:
            return float(mask_BT.shape[0])
        case _:
            rows = mask_BT.any(-1).sum() if empty_rows == EmptyRows.EXCLUDE else mask_BT.shape[0]
            return float(rows)


def aggregate(
    x_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    aggregation: Aggregation,
    norm_len: int | None = None,
    empty_rows: EmptyRows = EmptyRows.EXCLUDE,
) -> Float[Tensor, ""]:
    """`aggregate_sum / aggregate_count` of one whole batch (with microbatches, divide sums by one global
    count).

    Raises ValueError when nothing is counted. Example: [[1, 3], [5, nan]] under [[1, 1], [1, 0]] ->
    token_mean 3, seq_mean_token_mean 3.5, seq_mean_token_sum 4.5.
    """
    count = aggregate_count(mask_BT, aggregation, empty_rows)
    if count == 0:
        raise ValueError(f"{aggregation} over nothing: the mask has no live token")
    return aggregate_sum(x_BT, mask_BT, aggregation, norm_len) / count


def _live_count(mask_BT: Bool[Tensor, "B T"]) -> int:
    count = int(mask_BT.sum())
    if count == 0:
        raise ValueError("a mean over nothing: the mask has no live position")
    return count
