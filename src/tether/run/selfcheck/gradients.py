"""Checks of the gradient, one small step away from the start, where ratios are not 1 and the KL is not 0: split and gradient.

The rows are cut to unequal lengths first: with equal ones a mean of means is the mean. Axes: B sequences, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from tether.backends.local import LocalWorker, StepReport
from tether.config import ActorCriticConfig
from tether.data.batches import PolicyBatch
from tether.metrics import MetricSums
from tether.run import learner as trainer
from tether.run.learner import OnlineLearner, packed_rows
from tether.run.rows import RolloutRow

from .passes import outputs
from .prepare import Round, in_float32
from .verdict import Check, Outcome, judged

__all__ = ["gradient", "move", "split", "uneven_rows"]

_SPLIT = 1e-3  # relative: float32 sums in another order give 1e-6 to 1e-4, a wrong denominator 1e-2 and more
_SLOPE = {torch.float64: 1e-2, torch.float32: 5e-2}  # relative error of a finite difference
_ROWS, _DIFFERENCE_ROWS = 8, 3
_MOVE = 0.03  # nats per token, mean: the policy after a first few updates
_SIGNAL = 1e-3  # change of the loss that a finite difference aims at: far above rounding, far below curvature
_LARGEST_STEP = 1e-2  # of the norm of what is moved
_NOISE = 1e-6  # of the loss: norms of many models compute in float32 whatever they are given
_DOUBLE = 300_000_000  # weights up to which the differences are taken in float64
_TENSORS = 4  # besides the heads

_NO_GRADIENT = (
    "the loss does not depend on the weights: every advantage is 0 (equal scores?) and no tether acts in the loss, or the "
    "log-probabilities are detached"
)

Step = tuple[tuple[int, ...], ...]


# -- the rows and the place --------------------------------------------------------------------------------------------------


def uneven_rows(rows: Sequence[RolloutRow]) -> list[RolloutRow]:
    """Up to 8 rows, whole groups where they have several answers, with a fifth to four fifths cut off three of four."""
    groups: dict[str, list[RolloutRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    chosen = [row for group in groups.values() for row in group[:4]][:_ROWS]
    return [_shortened(row, math.ceil(len(row.response_ids) * (1 - (index % 4) * 0.2))) for index, row in enumerate(chosen)]


def _shortened(row: RolloutRow, length: int) -> RolloutRow:
    if length == len(row.response_ids):
        return row
    sampled = None if row.sampler_logprobs is None else row.sampler_logprobs[:length]
    return replace(row, response_ids=row.response_ids[:length], sampler_logprobs=sampled, terminated=False)


def move(learner: OnlineLearner, found: Round) -> None:
    """Shift all trained weights at random, so far that log-probabilities change by 0.03 nats on average (less under a narrow clip)."""
    config = learner.config
    target = min(_MOVE, *(eps / 2 for eps in (config.eps_low, config.eps_high) if eps is not None), 1.0)
    mask_BT = found.batch.text.response_mask_BT
    with in_float32(learner):
        before_BT = outputs(learner, found.batch.text)[0]
        sizes = [_size(parameter) for parameter in learner.worker.parameters]
        scale, now = 1e-2, 0.0
        for _ in range(5):
            _shift(learner.worker.parameters, sizes, scale - now)
            now = scale
            moved = float((outputs(learner, found.batch.text)[0] - before_BT).abs()[mask_BT].mean())
            if target / 2 <= moved <= target * 2:
                break
            scale = now * min(max(target / max(moved, 1e-12), 1e-2), 1e2)
    if isinstance(config, ActorCriticConfig):  # the rounds in which only the value function learns are over
        learner._round = max(learner._round, config.value_pretrain_steps)


@torch.no_grad()
def _shift(parameters: Sequence[nn.Parameter], sizes: Sequence[float], scale: float) -> None:
    """Every tensor by ``scale`` times its size times normal noise, the same noise each time."""
    for index, (parameter, size) in enumerate(zip(parameters, sizes, strict=True)):
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)).to(parameter)
        parameter.add_(noise, alpha=scale * size)


def _size(parameter: nn.Parameter) -> float:
    """Root mean square of a tensor; of zeros (a new head, B of an adapter) that of a fresh layer of this width."""
    size = float(parameter.detach().square().mean().sqrt())
    return size if size > 1e-8 else 1 / math.sqrt(parameter.shape[-1])


# -- split -------------------------------------------------------------------------------------------------------------------


class _Gradients:
    """A worker that accumulates as the learner's own and hands the gradient over instead of taking a step."""

    def __init__(self, worker: LocalWorker) -> None:
        self.worker = worker
        self.gradients: list[Tensor] = []

    def accumulate(self, loss: Tensor) -> None:
        """As the real one."""
        self.worker.accumulate(loss)

    def step(self) -> StepReport:
        """No step."""
        self.gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in self.worker.parameters]
        self.worker.discard()
        return StepReport(0.0, 0.0, True)


@dataclass(frozen=True)
class _Result:
    loss: float
    gradients: list[Tensor]


def split(learner: OnlineLearner, found: Round, backwards: Round) -> Check:
    """Loss and gradient of one optimiser step, however its rows are cut into microbatches and in whatever order. In float32."""
    rows = tuple(range(len(found.rows)))
    mirrored = tuple(len(rows) - 1 - row for row in rows)
    lengths = found.batch.text.lengths()
    packed = packed_rows(rows, lengths, learner.compute.token_budget, [row.query_ids for row in found.rows])
    ways: dict[str, tuple[PolicyBatch, Step]] = {
        "one row at a time": (found.batch, tuple((row,) for row in rows)),
        "three at a time, backwards": (found.batch, tuple(mirrored[at : at + 3] for at in range(0, len(rows), 3))),
        "packed to compute.token_budget": (found.batch, packed),
        "the whole round in another order": (backwards.batch, (mirrored,)),
    }
    with in_float32(learner):
        whole = _result(learner, found.batch, (rows,))
        norm = _norm(whole.gradients)
        if not norm > 0:
            return Check("split", Outcome.FAIL, "the gradient of all rows together is 0", advice=_NO_GRADIENT)
        gaps = {way: _gap(whole, norm, _result(learner, batch, step)) for way, (batch, step) in ways.items()}
    worst = max(gaps, key=lambda way: gaps[way] if gaps[way] == gaps[way] else math.inf)
    said = f"loss and gradient of {len(rows)} rows are the same in {len(ways)} other splits and orders; worst relative difference " \
           f"{gaps[worst]:.2g} ({worst})"  # fmt: skip
    if not gaps[worst] <= _SPLIT:
        said = f"the gradient depends on how the rows are split: relative difference {gaps[worst]:.2g} with {worst}"
    advice = (
        "most often a mean of means: each microbatch divided by its own number of tokens. Sum over the microbatches and divide once by the "
        "count of the whole optimiser step; with 'another order' look at what is paired by position"
    )
    return judged("split", gaps[worst], _SPLIT, said, advice)


def _result(learner: OnlineLearner, batch: PolicyBatch, step: Step) -> _Result:
    worker = _Gradients(learner.worker)
    config, metrics = learner.config, MetricSums()
    learner.worker = cast(LocalWorker, worker)
    learner.config = cast(Any, config.model_copy(update={"target_kl": None}))  # it would drop the step that is asked about
    try:
        learner._optimiser_step(batch, step, metrics, check_ratio=False)
    finally:
        learner.worker, learner.config = worker.worker, config
    return _Result(metrics.means()["policy_loss"], worker.gradients)


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(x.double().square().sum()) for x in tensors))


def _gap(whole: _Result, norm: float, other: _Result) -> float:
    apart = _norm([a - b for a, b in zip(whole.gradients, other.gradients, strict=True)])
    return max(apart / norm, abs(whole.loss - other.loss) / max(1.0, abs(whole.loss)))


# -- gradient against differences --------------------------------------------------------------------------------------------


def gradient(learner: OnlineLearner, found: Round) -> Check:
    """Moving the weights along the gradient changes the loss as the gradient says: all of them, and some tensors by themselves.

    Leaves the learner's weights in float64 where it fits: call it last.
    """
    config, compute = learner.config, learner.compute
    learner.config, said_of_config = _smooth(config)
    learner.compute = replace(compute, dtype=torch.float32)  # no autocast: the precision of the weights
    try:
        return _gradient(learner, found, said_of_config)
    finally:
        learner.config, learner.compute = config, compute
        learner.worker.discard()


def _smooth(config: Any) -> tuple[Any, str]:
    """The configuration without the kinks that a difference could step over, and with a surrogate whose gradient is that of its value.

    What a clip and a stopped gradient do is pinned by the golden vectors, not here.
    """
    changes: dict[str, Any] = {"eps_low": None, "eps_high": None, "dual_clip": None}
    if isinstance(config, ActorCriticConfig):
        changes["value_clip"] = None
    if config.surrogate not in {"cispo", "gspo_token"}:
        return config.model_copy(update=changes), "clips off"
    return config.model_copy(update={**changes, "surrogate": "ppo_clip"}), f"clips off, ppo_clip for {config.surrogate}"


def _gradient(learner: OnlineLearner, found: Round, said_of_config: str) -> Check:
    parameters = learner.worker.parameters
    dtype = torch.float64 if sum(p.numel() for p in parameters) <= _DOUBLE else torch.float32
    for module in (learner.policy, learner.critic):
        if module is not None:
            module.to(dtype)
    loss = _loss_of(learner, found)
    learner.worker.discard()
    start = loss()
    start.backward()
    value = float(start.detach())
    pairs = [(p, p.grad.detach()) for p in parameters if p.grad is not None]
    if not _norm([g for _, g in pairs]) > 0:
        return Check("gradient", Outcome.FAIL, "the gradient of all weights is 0", advice=_NO_GRADIENT)
    errors = {"all weights": _slope_error(loss, pairs, value)}
    names = {id(p): name for module in (learner.policy, learner.critic) if module is not None for name, p in module.named_parameters()}
    for index in _sampled(parameters, names):
        parameter = parameters[index]
        errors[names[id(parameter)]] = _tensor_error(loss, parameter, index, value)
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else math.inf)
    figure = f"{errors[worst]:.2g} in {worst}; {said_of_config}"
    said = f"along its gradient, and in {len(errors) - 1} tensors, the loss changes as the gradient says; worst relative error {figure}"
    if not errors[worst] <= _SLOPE[dtype]:
        said = f"the loss does not change as its gradient says: relative error {figure}"
    advice = (
        "backward() gives another function's gradient: look for a detach() or no_grad on the way to the weights named, a hook or a custom "
        "backward that scales, a weight that is used and not trained, or a loss that changes from call to call"
    )
    return judged("gradient", errors[worst], _SLOPE[dtype], said, advice)


def _loss_of(learner: OnlineLearner, found: Round) -> Callable[[], Tensor]:
    """The loss of a few rows, the shortest that have an advantage, as a function of the present weights."""
    lengths, alive_B = found.batch.text.lengths(), found.batch.advantages_BT.any(-1).tolist()
    rows = sorted(range(len(found.rows)), key=lambda row: (not alive_B[row], lengths[row]))[:_DIFFERENCE_ROWS]
    batch = found.batch.rows(rows)
    counts = trainer.step_counts(batch.text.response_mask_BT, learner.config)
    return lambda: learner._microbatch(batch, MetricSums(), check_ratio=False).total(learner.config, counts)


def _sampled(parameters: Sequence[nn.Parameter], names: dict[int, str]) -> list[int]:
    """Tensors from the first to the last, and every head of a value function."""
    count = len(parameters)
    spread = {round(place * (count - 1) / (_TENSORS - 1)) for place in range(_TENSORS)}
    heads = {index for index, parameter in enumerate(parameters) if "value_head" in names[id(parameter)]}
    return sorted(spread | heads)


def _tensor_error(loss: Callable[[], Tensor], parameter: nn.Parameter, index: int, value: float) -> float:
    """Along a random half of the tensor's own gradient; along noise where it has none, which must not move the loss then."""
    generator = torch.Generator().manual_seed(index)
    gradient = parameter.grad
    if gradient is not None and bool(gradient.any()):
        half = (torch.rand(parameter.shape, generator=generator) < 0.5).to(parameter.device)
        half = half if bool((gradient * half).any()) else ~half
        return _slope_error(loss, [(parameter, torch.where(half, gradient, 0.0))], value)
    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
    change = _difference(loss, [(parameter, noise)], _LARGEST_STEP * _size(parameter))
    return 0.0 if abs(change) <= _NOISE * max(1.0, abs(value)) else 1.0


def _slope_error(loss: Callable[[], Tensor], pairs: Sequence[tuple[nn.Parameter, Tensor]], value: float) -> float:
    """Relative error of |direction|^2 against a central difference; the best of three step sizes (rounding and curvature both hurt)."""
    length = _norm([direction for _, direction in pairs])
    weight = max(_norm([p.detach() for p, _ in pairs]), 1e-3)
    scale = max(1.0, abs(value))
    aim = min(_SIGNAL * scale / (2 * length**2), _LARGEST_STEP * weight / length)
    best = math.inf
    for step in (aim, aim / 10, aim * 3):
        predicted = 2 * step * length**2
        error = abs(_difference(loss, pairs, step) - predicted) / max(predicted, _NOISE * scale)
        best = min(best, error)
        if best <= min(_SLOPE.values()) / 2:
            break
    return best


def _difference(loss: Callable[[], Tensor], pairs: Sequence[tuple[nn.Parameter, Tensor]], step: float) -> float:
    """loss(w + step d) - loss(w - step d), by the passes of the update; the weights are put back."""

    def shift(alpha: float) -> None:
        with torch.no_grad():
            for parameter, direction in pairs:
                parameter.add_(direction, alpha=alpha)

    shift(step)
    above = float(loss().detach())
    shift(-2 * step)
    below = float(loss().detach())
    shift(step)
    return above - below
