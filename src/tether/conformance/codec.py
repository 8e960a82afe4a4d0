"""Numbers of the case format: not-finite ones travel as the strings "nan", "inf", "-inf"; and how far two differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Deviation:
    """The worst differences over the numbers of one or more outputs; infinite where the shape or a number
    that is not finite misfits.

    `absolute` is |got - expected|; `relative` that over |expected|, over the numbers large enough for the
    relative tolerance to be what decides (|expected| >= atol / rtol); `tolerance` is |got - expected| /
    (atol + rtol |expected|): 1 or below passes.
    """

    absolute: float = 0.0
    relative: float = 0.0
    tolerance: float = 0.0

    @property
    def passes(self) -> bool:
        return self.tolerance <= 1

    def __or__(self, other: Deviation) -> Deviation:
        """The worse of two, number by number."""
        return Deviation(
            max(self.absolute, other.absolute),
            max(self.relative, other.relative),
            max(self.tolerance, other.tolerance),
        )


MISFIT = Deviation(math.inf, math.inf, math.inf)


def decode(value: Any) -> Any:
    """JSON values with "nan", "inf", "-inf" as floats. Example: {"x": ["nan", 1]} -> {"x": [nan, 1]}."""
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return _FLOATS.get(value, value) if isinstance(value, str) else value


def encode(value: Any) -> Any:
    """What `decode` undoes. Example: [inf, 1] -> ["inf", 1]."""
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def leaves(outputs: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Outputs by dotted name, nested dictionaries opened. Example: {"stats": {"kl": 1}} -> {"stats.kl": 1}."""
    flat: dict[str, Any] = {}
    for name, value in outputs.items():
        flat |= leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def worst_error(actual: Any, expected: Any, rtol: float, atol: float) -> Deviation:
    """The worst deviation of an output (number or nested list) from what a case expects.

    NaN equals NaN and an infinity itself; null and text must be equal. Example: 1.01 against 1, rtol .1, atol 0 ->
    absolute .01, relative .01, tolerance .1.
    """
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return MISFIT
        worst = Deviation()
        for got, wanted in zip(actual, expected, strict=True):
            worst |= worst_error(got, wanted, rtol, atol)
        return worst
    if not (isinstance(actual, float | int) and isinstance(expected, float | int)):
        return Deviation() if type(actual) is type(expected) and actual == expected else MISFIT
    if actual == expected or (actual != actual and expected != expected):
        return Deviation()
    if not (math.isfinite(actual) and math.isfinite(expected)):
        return MISFIT
    absolute, bound = float(abs(actual - expected)), atol + rtol * abs(expected)
    decides = abs(expected) > 0 and rtol * abs(expected) >= atol
    return Deviation(
        absolute, absolute / abs(expected) if decides else 0.0, absolute / bound if bound > 0 else math.inf
    )
