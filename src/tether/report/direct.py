"""What the stages [direct.NAME] say in the summary of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tether.clusters import told_over
from tether.config.presets import DIRECT_TITLES
from tether.report.charts import number
from tether.report.plain import percent
from tether.report.read import StageRecord

__all__ = ["held_out_sentences", "trained_sentence"]


def trained_sentence(name: str, config: Any, stage: StageRecord) -> str:
    """Loss, steps, data and tether of one stage."""
    settings = config if isinstance(config, Mapping) else {}
    kind = str(settings.get("kind") or "")
    title = DIRECT_TITLES.get(kind, (kind or "a direct preference loss", ""))[0]
    done = max((points[-1][0] for points in stage.curves.values() if points), default=0)
    data = settings.get("data")
    source = data.get("path") if isinstance(data, Mapping) else "unknown data"
    free = kind in {"orpo", "simpo"}
    tether = "the loss has no reference" if free else f"the preference loss is the tether, beta {settings.get('beta')} per nat"
    return f"{name}: {title}, {done} of {stage.num_steps or done} steps on {source}, without a reward model; {tether}."


def held_out_sentences(name: str, stage: StageRecord) -> Iterator[str]:
    """Accuracy and margin before and after, and what became of the chosen answers."""
    held = stage.summary.get("held_out")
    if not isinstance(held, Mapping):
        return
    before, after, low, high = (percent(held.get(key)) for key in ("accuracy_before", "accuracy", "low", "high"))
    over = told_over(held.get("num_units"), "held-out comparisons or answers", held.get("num_prompts"), held.get("effective_units"))
    yield (
        f"{name}: its implied reward prefers the better answer in {after} of {over} "
        f"(95 % Wilson interval {low} to {high}; before training {before}, where ties count half)."
    )
    chosen, rejected = held.get("chosen_change"), held.get("rejected_change")
    if isinstance(chosen, int | float) and isinstance(rejected, int | float):
        fell = " The chosen answers became less likely, too: read the samples." if chosen < 0 else ""
        yield (
            f"{name}: log-probability of held-out chosen answers {number(float(chosen))}, of rejected ones {number(float(rejected))} nats "
            f"per sequence against the start.{fell}"
        )
