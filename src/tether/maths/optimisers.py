"""One scalar Adam, in the two conventions that give different first steps. Units: those of the parameter."""

import math
from enum import StrEnum


class AdamEps(StrEnum):
    """Where eps is added: TORCH to sqrt(v / (1 - beta2^t)); TENSORFLOW to the uncorrected sqrt(v) (smaller
    first steps).
    """

    TORCH = "torch"
    TENSORFLOW = "tensorflow"


def adam_path(
    gradients: list[float],
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-5,
    style: AdamEps = AdamEps.TORCH,
) -> list[float]:
    """The parameter after each step from 0, for given gradients. Kingma & Ba 1412.6980, algorithm 1; Huang
    2023 on eps.

    Example: gradients [1], lr .1, eps 0 -> [-.1] in both styles.
    """
    parameter, m, v, path = 0.0, 0.0, 0.0, []
    for t, gradient in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        correction1, correction2 = 1 - beta1**t, math.sqrt(1 - beta2**t)
        eps_t = eps if AdamEps(style) == AdamEps.TORCH else eps / correction2
        parameter -= lr * (m / correction1) / (math.sqrt(v) / correction2 + eps_t)
        path.append(parameter)
    return path
