"""One look at the panel: numbers per prompt, numbers in all, and the texts. A value that goes to JSON and comes back the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

__all__ = ["PER_PROMPT", "UNITS", "Answer", "Look", "bands"]

PER_PROMPT = ("proxy", "score", "length", "entropy", "repeat", "distinct", "kl_sequence")
"""What is kept for every prompt (mean over its answers), because rules compare prompt by prompt. NaN where a prompt has no score."""

UNITS: Mapping[str, str] = {
    "proxy": "reward",
    "score": "units of the independent score",
    "length": "tokens",
    "length_p10": "tokens",
    "length_p50": "tokens",
    "length_p90": "tokens",
    "entropy": "nats per token",
    "repeat": "share of repeated trigrams inside an answer",
    "pooled": "share of the commonest trigram among all",
    "distinct": "share of distinct answers",
    "kl_token": "nats per token",
    "kl_sequence": "nats per sequence",
    "eos": "share of answers that ended by themselves",
    "truncated": "share of answers cut by the token budget",
    "reward_length": "correlation of reward and length over answers",
}
"""Unit of every number of a look."""


@dataclass(frozen=True)
class Answer:
    """One answer of the panel. ``length`` in tokens; ``proxy`` the training reward, ``score`` the independent one, NaN where unscored."""

    prompt: str
    completion: str
    proxy: float
    score: float
    length: int
    stop_reason: str


@dataclass(frozen=True)
class Look:
    """What the panel said after ``step`` (0: before training). ``values`` has the names of ``UNITS``, NaN where there is nothing to say."""

    step: int
    per_prompt: Mapping[str, tuple[float, ...]]
    values: Mapping[str, float]
    answers: tuple[Answer, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON; NaN becomes null."""
        return {
            "step": self.step,
            "per_prompt": {name: [_out(v) for v in column] for name, column in self.per_prompt.items()},
            "values": {name: _out(v) for name, v in self.values.items()},
            "answers": [{**asdict(a), "proxy": _out(a.proxy), "score": _out(a.score)} for a in self.answers],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Look:
        """The look that ``as_dict`` wrote."""
        return cls(
            int(data["step"]),
            {name: tuple(_in(v) for v in column) for name, column in data["per_prompt"].items()},
            {name: _in(v) for name, v in data["values"].items()},
            tuple(Answer(**{**row, "proxy": _in(row["proxy"]), "score": _in(row["score"])}) for row in data["answers"]),
        )

    def without_texts(self) -> dict[str, float | None]:
        """The numbers in all, as JSON."""
        return {name: _out(value) for name, value in self.values.items()}


def bands(look: Look, confidence: float = 0.95) -> dict[str, tuple[float, float]]:
    """Where a second look at the *same* policy with other randomness would fall: mean +- z sqrt(2) s / sqrt(prompts)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return {name: _band(column, z) for name, column in look.per_prompt.items() if sum(map(math.isfinite, column)) > 1}


def _band(column: Sequence[float], z: float) -> tuple[float, float]:
    values = np.array([v for v in column if math.isfinite(v)])
    half = z * math.sqrt(2 / len(values)) * float(values.std(ddof=1))
    return float(values.mean()) - half, float(values.mean()) + half


def _out(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _in(value: float | None) -> float:
    return math.nan if value is None else float(value)
