"""Lab entropy: a bonus that is differentiated, a metric that is not, and padding that holds NaN. Axes: B rows, T tokens, V words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.errors import ConfigError
from tether.labs.result import Curve, LabResult, Panel, Table
from tether.maths import Aggregation, aggregate, entropy_bonus, token_entropy

__all__ = ["run"]

LIVE_LOGITS = (1.2, 0.3, -0.5, -1.0)
LEARNING_RATE, STEPS = 1.0, 20


@dataclass(frozen=True)
class _Gradients:
    """Of the bonus, [T, V]: differentiated, and by the formula coef p (log p + H) at the live position."""

    by_autograd_TV: Tensor
    by_formula_V: Tensor


def run(coef: float = 0.1) -> LabResult:
    """``coef`` of the bonus, above 0."""
    if not 0 < coef < math.inf:
        raise ConfigError(f"lab.entropy.coef: {coef}; expected a number above 0")
    logits_BTV, mask_BT = _world()
    gradients = _gradients(logits_BTV, mask_BT, coef)
    walk = _ascend(logits_BTV, mask_BT, coef)
    shared = _shared_gradients(logits_BTV, mask_BT, coef)
    metric = _metric_changes(logits_BTV, mask_BT, coef)
    largest = float((gradients.by_autograd_TV[0] - gradients.by_formula_V).abs().max())
    at_pads = float(gradients.by_autograd_TV[1:].abs().max())
    return LabResult(
        name="entropy",
        question="What does an entropy bonus do to one live position, when the padding beside it holds NaN?",
        tables=(_gradient_table(gradients), _walk_table(walk), _padding_table(shared, coef, walk[0])),
        panels=(Panel("The bonus alone", "step", "entropy (nats)", (
            Curve("live position", tuple(map(float, range(len(walk)))), tuple(walk)),
            Curve("log 4, the most there is", (0.0, float(STEPS)), (math.log(4), math.log(4))))),),
        notes=_notes(walk, largest, at_pads, shared, metric),
        figures={
            "entropy": list(walk), "maximum": math.log(len(LIVE_LOGITS)),
            "gradient": gradients.by_autograd_TV[0].tolist(), "formula": gradients.by_formula_V.tolist(),
            "largest_difference": largest, "gradient_at_pads": at_pads,
            "shared_gradient": shared[0], "multiplied_loss": shared[1], "multiplied_shared_gradient": shared[2], "metric_changes": metric,
        },
    )  # fmt: skip


def _world() -> tuple[Tensor, Tensor]:
    """One row of three positions: one live, a pad of NaN, a pad of infinity."""
    pads = [[math.nan] * len(LIVE_LOGITS), [math.inf, -math.inf, 0.0, math.nan]]
    return torch.tensor([[list(LIVE_LOGITS), *pads]], dtype=torch.float64), torch.tensor([[True, False, False]])


def _loss(logits_BTV: Tensor, mask_BT: Tensor, coef: float) -> Tensor:
    return aggregate(entropy_bonus(token_entropy(logits_BTV, mask_BT), mask_BT, coef), mask_BT, Aggregation.TOKEN_MEAN)


def _gradients(logits_BTV: Tensor, mask_BT: Tensor, coef: float) -> _Gradients:
    leaf_BTV = logits_BTV.clone().requires_grad_()
    gradient_BTV = torch.autograd.grad(_loss(leaf_BTV, mask_BT, coef), leaf_BTV)[0]
    logprobs_V = logits_BTV[0, 0].log_softmax(-1)
    entropy = -(logprobs_V.exp() * logprobs_V).sum()
    return _Gradients(gradient_BTV[0], coef * logprobs_V.exp() * (logprobs_V + entropy))


def _ascend(logits_BTV: Tensor, mask_BT: Tensor, coef: float) -> list[float]:
    """Entropy of the live position before the first step and after each."""
    live_BTV, walk = logits_BTV.clone(), []
    for _ in range(STEPS):
        walk.append(float(token_entropy(live_BTV, mask_BT).sum()))
        leaf_BTV = live_BTV.requires_grad_()
        live_BTV = (live_BTV - LEARNING_RATE * torch.autograd.grad(_loss(leaf_BTV, mask_BT, coef), leaf_BTV)[0]).detach()
    return [*walk, float(token_entropy(live_BTV, mask_BT).sum())]


def _shared_gradients(logits_BTV: Tensor, mask_BT: Tensor, coef: float) -> tuple[float, float, float]:
    """A bias added to the logits of every position, as weights are shared by all positions. Returned: the first entry of its gradient
    where the mask selects before arithmetic, the loss where the mask multiplies at the end, and that gradient."""

    def gradient(bias_V: Tensor, loss: Tensor) -> float:
        return float(torch.autograd.grad(loss, bias_V)[0][0])

    bias_V = torch.zeros(len(LIVE_LOGITS), dtype=torch.float64, requires_grad=True)
    selected = gradient(bias_V, _loss(logits_BTV + bias_V, mask_BT, coef))
    logprobs_BTV = (logits_BTV + bias_V).log_softmax(-1)
    entropy_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
    multiplied = -coef * (entropy_BT * mask_BT).sum() / mask_BT.sum()
    return selected, float(multiplied.detach()), gradient(bias_V, multiplied)


def _metric_changes(logits_BTV: Tensor, mask_BT: Tensor, coef: float) -> float:
    """The largest change of the gradient of an unrelated loss when the entropy is logged beside it under no-grad, times -coef."""

    def gradient(with_metric: bool) -> Tensor:
        leaf_BTV = logits_BTV.clone().requires_grad_()
        loss = -leaf_BTV[0, 0].log_softmax(-1)[0]
        if with_metric:
            with torch.no_grad():
                entropy_BT = token_entropy(leaf_BTV, mask_BT)
            loss = loss - coef * entropy_BT.sum()
        return torch.autograd.grad(loss, leaf_BTV)[0][0, 0]

    return float((gradient(True) - gradient(False)).abs().max())


def _gradient_table(gradients: _Gradients) -> Table:
    rows = tuple(
        (index, logit, float(gradients.by_autograd_TV[0, index]), float(gradients.by_formula_V[index]))
        for index, logit in enumerate(LIVE_LOGITS)
    )
    return Table("Gradient of the bonus at the live position", ("word", "logit", "autograd", "coef p (log p + H)"), rows,
                 ("d", ".1f", ".6f", ".6f"))  # fmt: skip


def _walk_table(walk: list[float]) -> Table:
    return Table("Gradient descent on the bonus alone, lr 1", ("step", "entropy (nats)"),
                 tuple((step, walk[step]) for step in (0, 1, 5, 10, STEPS)), ("d", ".6f"))  # fmt: skip


def _padding_table(shared: tuple[float, float, float], coef: float, entropy: float) -> Table:
    rows = (("select, then compute", -coef * entropy, shared[0]), ("compute, then multiply by the mask", shared[1], shared[2]))
    return Table("Two ways with a pad that holds NaN", ("order", "loss", "gradient of a shared weight"), rows, ("", ".6f", ".6f"))


def _notes(walk: list[float], largest: float, at_pads: float, shared: tuple[float, float, float], metric: float) -> tuple[str, ...]:
    return (
        f"The bonus raises the entropy of the live position from {walk[0]:.4f} to {walk[-1]:.4f} nats in {STEPS} steps. Its gradient "
        f"is coef p (log p + H) to {largest:.0e}: words more likely than exp(-H) lose, the others gain.",
        f"Padding is selected away before anything is computed, so NaN and infinity there leave a gradient of exactly {at_pads:g}. "
        f"Multiplying by the mask comes too late: 0 x NaN is NaN, in the loss ({shared[1]}) and, one step further back, in the "
        f"gradient of every weight that live positions and padding share ({shared[2]}).",
        f"Logged under no-grad, entropy is a number: subtracting it from a loss changes the loss and moves the gradient by {metric:g}. "
        "A bonus that is computed where the metrics are does nothing, and no error says so.",
    )
