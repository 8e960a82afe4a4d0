"""The model cards of a run: facts from its configuration, its finished stages and its evaluation, written beside every saved model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tether import __version__
from tether.clusters import told_over
from tether.config import DataSource, RunConfig
from tether.errors import ModelError
from tether.models.card import CardFacts, CardKind, front_matter, write_card
from tether.models.resolve import resolve_model
from tether.run.folder import source_sha256

__all__ = ["write_cards"]

_BUNDLED = "tether:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_KNOWN = {"smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"), "tiny": ("a tiny random model, made on the spot", None)}
_SIMULATED = ("quickstart_comparisons.jsonl",)
"""Bundled data that a written rule has judged."""
_SHOWN = (
    "kind", "epochs", "steps", "batch_size", "prompts_per_step", "samples_per_prompt", "beta", "kl", "advantage", "optim", "sampling",
    "label_smoothing", "centering", "held_out_share", "batch_by", "heads", "truncation",
)  # fmt: skip
"""Settings of a stage that a reader of a card asks for; none of them holds a path."""


def write_cards(config: RunConfig, folder: Path) -> list[Path]:
    """A card for every finished stage, with the evaluation where there is one. Safe to call at any time; later calls know more."""
    evaluation = _json(folder / "evaluation.json")
    return [
        write_card(folder / stage, _facts(config, folder, stage, section, summary, evaluation))
        for stage, section in _sections(config)
        if (summary := _json(folder / stage / "stage.json").get("summary")) is not None
    ]


def _sections(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Stage names with their sections."""
    if config.sft is not None:
        yield "sft", config.sft
    if config.reward_model is not None:
        yield "reward_model", config.reward_model
    yield from ((f"rl.{name}", section) for name, section in config.rl.items())
    yield from ((f"direct.{name}", section) for name, section in config.direct.items())


def _facts(
    config: RunConfig, folder: Path, stage: str, section: Any, summary: Mapping[str, Any], evaluation: Mapping[str, Any]
) -> CardFacts:
    base_model, license = _base(section.path if stage == "reward_model" and section.path else config.model.path)
    sources = dict(_sources(config, stage, section))
    hashes = {name: summary["data_sha256"] for name, source in sources.items() if source is _own_source(section)}
    names = {name: _data_name(source.path) for name, source in sources.items()}
    return CardFacts(
        title=f"{config.name}: {stage}",
        kind=CardKind.REWARD_MODEL if stage == "reward_model" else CardKind.POLICY,
        method={"sft": "sft", "reward_model": "reward-model"}.get(stage) or str(section.kind),
        base_model=base_model,
        license=license,
        datasets=sorted({name for name in names.values() if _HUB_ID.fullmatch(name)}),
        data=[(purpose, name, hashes.get(purpose) or _sha256(folder, purpose, evaluation)) for purpose, name in names.items()],
        settings=_settings(config, section),
        results=list(_results(stage, summary, evaluation)),
        simulated=any(Path(source.path.removeprefix(_BUNDLED)).name in _SIMULATED for source in sources.values()),
        weights_sha256=str(summary.get("weights_sha256", "")),
        code={"tether": f"{__version__} (source sha256 {source_sha256()[:12]})"},
    )


def _base(name: str) -> tuple[str, str | None]:
    """Name without a path, and the licence where it is known."""
    if name in _KNOWN:
        return _KNOWN[name]
    try:
        head = front_matter(resolve_model(name))
    except ModelError:
        head = {}
    license = head.get("license")
    shown = name if _HUB_ID.fullmatch(name) and not Path(name).exists() else Path(name).expanduser().resolve().name
    return shown, license if isinstance(license, str) else None


def _sources(config: RunConfig, stage: str, section: Any) -> Iterator[tuple[str, DataSource]]:
    """What the model has seen, by purpose: the data of its own stage and of those that it stands on."""
    if config.sft is not None:
        yield "demonstrations", config.sft.data
    if stage == "sft":
        return
    rewarded = stage.startswith("rl.") and any(part.kind == "learned" and "path" not in part.params for part in section.rewards)
    if config.reward_model is not None and (stage == "reward_model" or rewarded):
        yield "comparisons", config.reward_model.data
    if stage.startswith("rl."):
        yield "prompts", section.prompts
    elif stage.startswith("direct."):
        yield "judged answers", section.data
    if config.evaluate is not None and stage != "reward_model":
        yield "held-out prompts", config.evaluate.prompts


def _own_source(section: Any) -> DataSource:
    return section.prompts if "prompts" in type(section).model_fields else section.data


def _sha256(folder: Path, purpose: str, evaluation: Mapping[str, Any]) -> str:
    """Of data that another stage read."""
    if purpose == "held-out prompts":
        return str(evaluation.get("prompts_sha256", "not read yet"))
    stage = {"demonstrations": "sft", "comparisons": "reward_model"}[purpose]
    return str((_json(folder / stage / "stage.json").get("summary") or {}).get("data_sha256", "not recorded"))


def _data_name(path: str) -> str:
    """Bundled names and hub ids as they are; of a file its name alone."""
    local = Path(path).expanduser()
    return path if path.startswith(_BUNDLED) or (_HUB_ID.fullmatch(path) and not local.exists() and not local.suffix) else local.name


def _settings(config: RunConfig, section: Any) -> dict[str, Any]:
    told = section.model_dump(mode="json")
    shown = {f"{key}.{name}" if name else key: value for key in _SHOWN if key in told for name, value in _leaves(told[key])}
    if "rewards" in told:
        shown["rewards"] = ", ".join(f"{part['weight']:g} x {part['kind']}" for part in told["rewards"])
    lora = {} if config.model.lora is None else {"lora": f"rank {config.model.lora.rank}, alpha {config.model.lora.alpha:g}, merged"}
    return {**shown, **lora, "seed": config.seed}


def _leaves(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else [("", value)]


def _results(stage: str, summary: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Iterator[str]:
    last, held = summary.get("last_step") or {}, summary.get("held_out") or {}
    if stage == "reward_model" and held:
        over = told_over(held.get("num_decided", held["num_pairs"]), "pairs", held.get("num_prompts"), held.get("effective_pairs"))
        yield (
            f"Held-out accuracy {held['accuracy']:z.3f} [{held['low']:z.3f}, {held['high']:z.3f}] (95 % Wilson interval over "
            f"{over}, none of them trained on)."
        )
    if "kl_k1_sequence" in last:
        yield f"KL(policy || start) in the last training step: {last['kl_k1_sequence']:z.3f} nats per answer (k1, over the step's answers)."
    name = "start" if stage == "sft" else stage.partition(".")[2]
    rows = {row["name"]: row for row in evaluation.get("policies", ())}
    if stage == "reward_model" or name not in rows:
        return
    row = rows[name]
    if row["score"] == "plainspoken":
        yield "The held-out score below is the noiseless rule of a simulated rater (0 to 10), not a judgement of people."
    yield (
        f"Held-out score `{row['score']}`: {row['mean']:z.3f} [{row['low']:z.3f}, {row['high']:z.3f}] ({row['confidence']:z.0%} bootstrap "
        f"over {row['num_prompts']} prompts, {row['samples_per_prompt']} answers each)."
    )
    gain = next((gain for gain in evaluation.get("gains", ()) if gain["after"] == name), None)
    if gain is not None:
        yield (
            f"Gain over the start: {gain['difference']:+z.3f} [{gain['low']:+z.3f}, {gain['high']:+z.3f}] (paired over "
            f"{gain['num_prompts']} prompts), at KL(policy || start) {row['kl_sequence_sum_nats']:z.3f} nats per answer."
        )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
