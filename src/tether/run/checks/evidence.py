"""What is written when a rule trips, whole or not at all, and what a person has acknowledged since.

    RUN/alarms/STAGE/STEP-RULE/alarm.json     the rule, its rate, the sentence, both looks in numbers, the training metrics of the step
                               samples.jsonl  the panel's answers before and after, side by side
                               README.md      the same in words
    RUN/alarms/acknowledged.json              {STAGE: [RULE, ...]}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.files import remove, sync_file, sync_folder, temporary_beside, write_atomic
from tether.run.checks.look import UNITS, Answer, Look
from tether.run.checks.rules import Finding

__all__ = ["ADVICE", "Alarm", "acknowledge", "acknowledged", "save_evidence"]

_ACKNOWLEDGED = "acknowledged.json"
_SHOWN = 5  # pairs of answers in the README
_CUT = 600  # characters of an answer in the README

ADVICE: Mapping[str, str] = {
    "divergence": "The policy may have found what the reward pays for and nobody wants. People read the answers side by side, go back to "
    "the best checkpoint, raise beta, repair the reward (new comparisons on such answers, a penalty), or stop here.",
    "too_long": "A reward that likes length is the usual cause; some tasks need longer answers. People read the longest ones, raise beta, "
    "control for length in the comparisons, or add a soft penalty (a reward part 'length' or 'overlong').",
    "too_short": "A penalty that is too strong, a missing end token in the score, or a reward that a refusal satisfies. People read the "
    "shortest ones, lower the penalty, or score empty answers as what they are.",
    "entropy": "The policy has stopped exploring, and what it has not found by now it will not find. People lower the learning rate, raise "
    "beta or entropy_coef, use more prompts or fewer passes, or take the checkpoint before.",
    "distinct": "Many prompts get one answer. People look for a reward that a fixed text satisfies, raise beta, and mix in other prompts.",
    "repetition": "The reward pays for repeated text, or the policy left the region that the reward model knows. People read them, raise "
    "beta, or add a reward part 'format' with max_repeat_share.",
    "negative_kl": "This is a fault and no finding about the reward: sampler and trainer do not hold the same distribution. People compare "
    "temperature, sampling filters, padding, template and weights of both sides: `tether conformance --config`.",
    "dead_groups": "All answers to a prompt get the same reward, so nothing is learned. People choose easier or harder prompts, sample "
    "more answers, use dynamic_sampling, or give partial credit.",
    "value_failure": "The value function predicts worse than its mean, so advantages are noise. People raise value_learning_rate, pretrain "
    "it (value_pretrain_steps), give it a trunk of its own, or use a critic-free algorithm.",
    "sampler_mismatch": "Answers are drawn from another distribution than the one that is trained. People set float32, look for filters "
    "and temperature, publish weights again, or use sampler_correction.",
}
"""What people usually do, by rule. Nothing of it is done by itself."""


@dataclass(frozen=True)
class Alarm:
    """A finding with its place. ``rate``: chance at most that a healthy stage trips this rule at any of its looks."""

    stage: str
    step: int
    finding: Finding
    rate: float
    metrics: Mapping[str, float]
    after: Look

    @property
    def folder(self) -> str:
        """Name of its folder below RUN/alarms."""
        return f"{self.stage}/{self.step:08d}-{self.finding.rule}"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: the content of alarm.json, and of the event but for its folder."""
        return {
            "stage": self.stage,
            "step": self.step,
            "rule": self.finding.rule,
            "seen": self.finding.sentence,
            "advice": ADVICE[self.finding.rule],
            "false_alarm_rate": self.rate,
            "numbers": dict(self.finding.numbers),
            "before_step": self.finding.before.step,
            "before": self.finding.before.without_texts(),
            "after": self.after.without_texts(),
            "metrics": {name: value if math.isfinite(value) else str(value) for name, value in self.metrics.items()},
        }


def save_evidence(root: Path, alarm: Alarm) -> Path:
    """Write the folder of an alarm below ``root`` (RUN/alarms); one of the same step and rule is replaced. Returns the folder."""
    target = root / alarm.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    files = {
        "alarm.json": json.dumps(alarm.as_dict(), indent=1, ensure_ascii=False) + "\n",
        "samples.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _side_by_side(alarm)),
        "README.md": _in_words(alarm),
    }
    with temporary_beside(target) as temporary:
        temporary.mkdir()
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8", errors="replace")
            sync_file(temporary / name)
        sync_folder(temporary)
        remove(target)
        os.replace(temporary, target)
    sync_folder(target.parent)
    return target


def acknowledged(root: Path, stage: str) -> frozenset[str]:
    """The rules of a stage that a person has seen and lets pass."""
    return frozenset(_acknowledged(root).get(stage, ()))


def acknowledge(root: Path) -> list[str]:
    """Note every alarm below ``root`` (RUN/alarms) as seen; returns STAGE: RULE of those that are new."""
    known = _acknowledged(root)
    fresh: list[str] = []
    for path in sorted(root.glob("*/*/alarm.json")):
        alarm = json.loads(path.read_text(encoding="utf-8"))
        if alarm["rule"] not in known.setdefault(alarm["stage"], []):
            known[alarm["stage"]].append(alarm["rule"])
            fresh.append(f"{alarm['stage']}: {alarm['rule']}")
    if fresh:
        write_atomic(root / _ACKNOWLEDGED, json.dumps(known, indent=1) + "\n")
    return fresh


def _acknowledged(root: Path) -> dict[str, list[str]]:
    path = root / _ACKNOWLEDGED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _side_by_side(alarm: Alarm) -> list[dict[str, Any]]:
    return [
        {"prompt": before.prompt, "before": _side(before), "after": _side(after)}
        for before, after in zip(alarm.finding.before.answers, alarm.after.answers, strict=True)
    ]


def _side(answer: Answer) -> dict[str, Any]:
    scores = {name: value if math.isfinite(value) else None for name, value in (("reward", answer.proxy), ("score", answer.score))}
    return {"completion": answer.completion, **scores, "tokens": answer.length, "stop_reason": answer.stop_reason}


def _in_words(alarm: Alarm) -> str:
    before, after = alarm.finding.before, alarm.after
    lines = [
        f"# {alarm.stage}, step {alarm.step}: {alarm.finding.rule}",
        f"Seen: {alarm.finding.sentence}.",
        f"By chance: a healthy stage trips this rule at any of its looks with probability at most {alarm.rate:.2g}.",
        f"What people do: {ADVICE[alarm.finding.rule]} Nothing was changed by itself.",
        f"| panel | step {before.step} | step {after.step} | unit |\n|---|--:|--:|---|\n"
        + "\n".join(f"| {name} | {_cell(before, name)} | {_cell(after, name)} | {unit} |" for name, unit in UNITS.items()),
        "## Answers side by side (all in samples.jsonl)",
    ]
    for old, new in list(zip(before.answers, after.answers, strict=True))[:_SHOWN]:
        lines += [f"**{_quoted(old.prompt)}**", _shown(before.step, old), _shown(after.step, new)]
    return "\n\n".join(lines) + "\n"


def _cell(look: Look, name: str) -> str:
    value = look.values.get(name, math.nan)
    return f"{value:.4g}" if math.isfinite(value) else "–"


def _shown(step: int, answer: Answer) -> str:
    text = answer.completion if len(answer.completion) <= _CUT else answer.completion[:_CUT] + " ..."
    return f"step {step} (reward {answer.proxy:.3g}, score {answer.score:.3g}, {answer.length} tokens):\n\n{_fenced(text)}"


def _fenced(text: str) -> str:
    """Text of a model as it is: indented, so that nothing in it is Markdown or HTML."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def _quoted(text: str) -> str:
    return " ".join(text.split())[:200].replace("*", r"\*").replace("<", "&lt;")
