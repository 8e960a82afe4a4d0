"""README.md beside saved weights, in the Hugging Face Hub's format: what the model is, how it was made, what was measured, its limits.

Facts in, text out; no torch. Nothing of the machine goes in: no path, no user, no host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from tether.files import write_atomic

__all__ = ["FILE", "CardFacts", "CardKind", "front_matter", "model_card", "write_card"]

FILE = "README.md"


class CardKind(StrEnum):
    """What the folder holds."""

    POLICY = "policy"
    REWARD_MODEL = "reward model"


@dataclass(frozen=True)
class CardFacts:
    """``base_model``: a hub id, or a plain name of which no link is made. ``data``: (what for, name, sha256). ``settings``: shown as a
    table. ``results``: sentences with units and intervals; empty is "not evaluated". ``simulated``: a written rule stood in for people.
    """

    title: str
    kind: CardKind
    method: str
    base_model: str
    license: str | None = None
    datasets: Sequence[str] = ()
    data: Sequence[tuple[str, str, str]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[str] = ()
    simulated: bool = False
    weights_sha256: str = ""
    code: Mapping[str, str] = field(default_factory=dict)


def write_card(folder: Path, facts: CardFacts) -> Path:
    """Write README.md into a model's folder."""
    return write_atomic(folder / FILE, model_card(facts))


def model_card(facts: CardFacts) -> str:
    """The whole text, YAML front matter first."""
    front = yaml.safe_dump(_front(facts), sort_keys=False, allow_unicode=True)
    sections = [
        f"# {facts.title}",
        _what_it_is(facts),
        f"## How it was trained\n\n{_training(facts)}",
        f"## Evaluation\n\n{_evaluation(facts)}",
        f"## Intended use and limits\n\n{_limits(facts)}",
        f"## How to load it\n\n{_loading(facts)}",
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"


def front_matter(folder: Path) -> dict[str, Any]:
    """The YAML head of a folder's README.md; empty where there is none that can be read."""
    path = folder / FILE
    if not path.is_file():
        return {}
    _, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("---\n")
    try:
        found = yaml.safe_load(rest.partition("\n---")[0])
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _front(facts: CardFacts) -> dict[str, Any]:
    policy = facts.kind is CardKind.POLICY
    told: dict[str, Any] = {
        "base_model": facts.base_model if "/" in facts.base_model else None,
        "library_name": "transformers",
        "pipeline_tag": "text-generation" if policy else "text-classification",
        "license": facts.license,
        "datasets": list(facts.datasets) or None,
        "tags": ["tether", "rlhf" if policy else "reward-model", facts.method],
    }
    return {name: value for name, value in told.items() if value is not None}


def _what_it_is(facts: CardFacts) -> str:
    made = {
        CardKind.POLICY: f"A language model trained with {facts.method}, from {facts.base_model}.",
        CardKind.REWARD_MODEL: f"A reward model (one score per prompt and answer), trained on comparisons, from {facts.base_model}.",
    }[facts.kind]
    weights = f" Weights: sha256 `{facts.weights_sha256}`." if facts.weights_sha256 else ""
    return f"{made} Made with Tether.{weights}"


def _training(facts: CardFacts) -> str:
    rows = "\n".join(f"| `{name}` | {value} |" for name, value in facts.settings.items())
    data = "\n".join(f"* {purpose}: `{name}`, sha256 `{sha256}`" for purpose, name, sha256 in facts.data)
    code = ", ".join(f"{name} {version}" for name, version in facts.code.items())
    parts = {f"| setting | value |\n|---|---|\n{rows}": rows, f"Data:\n\n{data}": data, f"Code: {code}.": code}
    return "\n\n".join(part for part, told in parts.items() if told) or "Nothing is recorded."


def _evaluation(facts: CardFacts) -> str:
    return "\n\n".join(facts.results) if facts.results else "This model was not evaluated on held-out prompts."


def _limits(facts: CardFacts) -> str:
    lines = []
    if facts.simulated:
        lines.append(
            "The comparisons were judged by a **simulated rater**, a written rule with stated noise, **not by people**: what this model "
            "learned is that rule, and its numbers say nothing about what people prefer."
        )
    if facts.kind is CardKind.POLICY:
        lines.append(
            "For research on training from feedback. It was tuned for one reward on one set of prompts; elsewhere it may be worse than the "
            "model it came from. A higher reward is not a truer or safer answer. It was not checked for safety."
        )
    else:
        lines.append(
            "For ranking answers to prompts like those it was trained on. Scores have no zero and no unit: compare answers to one prompt. "
            "A policy trained hard against it will find what it wrongly likes; hold it against an independent score."
        )
    lines.append("Limits and licence of the base model and of the data hold for this one too.")
    return "\n\n".join(lines)


def _loading(facts: CardFacts) -> str:
    if facts.kind is CardKind.REWARD_MODEL:
        return '```python\nimport tether\n\nmodel = tether.RewardModel.load("FOLDER")\n```'
    return (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("FOLDER")\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```'
    )
