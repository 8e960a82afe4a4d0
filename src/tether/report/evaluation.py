"""Answers as they were logged, and what evaluation.json says of every policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tether.report.plain import number, numbers, rows, whole

__all__ = ["EvaluationRecord", "GainRecord", "PolicyRecord", "Sample", "read_evaluation", "read_sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer as it was logged. ``score`` is the reward in training and the independent score in
    evaluation; NaN: unscored."""

    prompt: str
    completion: str
    score: float
    stop_reason: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """What held-out prompts said of one policy; NaN where a number is missing. KL in nats, lengths in
    tokens. ``kl_interval``: of ``kl_sequence``; None where it was not kept."""

    name: str
    score: str
    mean: float
    low: float
    high: float
    num_prompts: int
    samples_per_prompt: int
    confidence: float
    response_length: float
    truncated_share: float
    kl_token: float
    kl_sequence: float
    components: Mapping[str, float]
    proxies: Mapping[str, float]
    samples: tuple[Sample, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    kl_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class GainRecord:
    """Mean paired difference after - before with its interval."""

    before: str
    after: str
    difference: float
    low: float
    high: float
    confidence: float
    num_prompts: int

    @property
    def excludes_zero(self) -> bool:
        """True when the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Every policy on the same held-out prompts, the start first."""

    prompts_sha256: str
    policies: tuple[PolicyRecord, ...]
    gains: tuple[GainRecord, ...]
    proxy_gains: tuple[GainRecord, ...] = ()

    def proxy_gain_of(self, name: str) -> GainRecord | None:
        """That of the training reward of policy ``name``; None where the run did not measure it by prompt."""
        return next((gain for gain in self.proxy_gains if gain.after == name), None)

    def gain_of(self, name: str) -> GainRecord | None:
        """The gain of policy ``name`` over the start."""
        return next((gain for gain in self.gains if gain.after == name), None)


def read_evaluation(data: Mapping[str, Any]) -> EvaluationRecord:
    policies = [_policy(row) for row in rows(data.get("policies"))]
    gains, proxy_gains = (tuple(_gain(row) for row in rows(data.get(key))) for key in ("gains", "proxy_gains"))
    return EvaluationRecord(str(data.get("prompts_sha256", "")), tuple(policies), gains, proxy_gains)


def _gain(row: Mapping[str, Any]) -> GainRecord:
    return GainRecord(
        str(row.get("before", "")),
        str(row.get("after", "")),
        number(row.get("difference")),
        number(row.get("low")),
        number(row.get("high")),
        number(row.get("confidence")),
        whole(row.get("num_prompts")),
    )


def _policy(row: Mapping[str, Any]) -> PolicyRecord:
    samples = [read_sample(sample, "score", 0) for sample in rows(row.get("samples"))]
    return PolicyRecord(
        name=str(row.get("name", "")),
        score=str(row.get("score", "")),
        mean=number(row.get("mean")),
        low=number(row.get("low")),
        high=number(row.get("high")),
        num_prompts=whole(row.get("num_prompts")),
        samples_per_prompt=whole(row.get("samples_per_prompt")),
        confidence=number(row.get("confidence")),
        response_length=number(row.get("response_length")),
        truncated_share=number(row.get("truncated_share")),
        kl_token=number(row.get("kl_token_mean_nats")),
        kl_sequence=number(row.get("kl_sequence_sum_nats")),
        components=numbers(row.get("components")),
        proxies=numbers(row.get("proxies")),
        samples=tuple(s for s in samples if s),
        provenance=found if isinstance(found := row.get("provenance"), dict) else {},
        kl_interval=_two(row.get("kl_sequence_interval_nats")),
    )


def _two(value: Any) -> tuple[float, float] | None:
    return (number(value[0]), number(value[1])) if isinstance(value, list) and len(value) == 2 else None


def read_sample(row: Any, score: str, step: int) -> Sample | None:
    if not isinstance(row, dict):
        return None
    return Sample(
        str(row.get("prompt", "")),
        str(row.get("completion", "")),
        number(row.get(score)),
        str(row.get("stop_reason", "")),
        step,
    )
