"""Any policies on the same held-out prompts: scores, attempts, win rates, each with its interval and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tether.backends.compute import Compute
from tether.config import EvaluateConfig, ModelConfig
from tether.data.load import load_rows
from tether.files import json_ready
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.records import read_prompts
from tether.rewards.build import build_part
from tether.rewards.learned import LearnedPart
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.run.candidates import Candidate, find_candidates
from tether.run.evaluate import EvaluatedPolicy, ask, gain, summarise
from tether.run.provenance import provenance_of
from tether.run.scorer import scorer_loader
from tether.run.win_rate import Judge, WinRate, shares_by_judge, shares_by_scores, try_judge, win_rate
from tether.stats import holm, permutation_p_value
from tether.types import Prompt, RolloutGroup

__all__ = ["Opponents", "evaluate_models"]


@dataclass(frozen=True)
class Opponents:
    """What policies are held against. ``against``: a model (the first one asked, if None). ``reference``: of the KL. ``reward_model``: a
    folder, ``judge``: a function, both for win rates beside those by the score; ``judge_name`` is what messages call it."""

    against: str | None = None
    reference: str | None = None
    reward_model: str | None = None
    judge: Judge | None = None
    judge_name: str = ""


@dataclass(frozen=True)
class _Asked:
    result: EvaluatedPolicy
    by_seed: Mapping[str, float]
    groups: tuple[RolloutGroup, ...]
    learned_PG: tuple[tuple[float, ...], ...]
    also: tuple[str, ...] = ()


@dataclass
class _Models:
    """Candidates by what they are: those with the same weights and chat format are asked once. State: labels by key, in order."""

    labels: dict[tuple[object, ...], list[str]] = field(default_factory=dict)

    def is_new(self, label: str, policy: Policy, weights: str) -> bool:
        """Whether no other label stands for the same model; keeps the label in either case."""
        known = self.labels.setdefault((weights, policy.format.fingerprint, policy.format.eos_ids), [])
        known.append(label)
        return len(known) == 1


def evaluate_models(
    names: Sequence[str],
    config: EvaluateConfig,
    compute: Compute,
    opponents: Opponents | None = None,
    *,
    seeds: Sequence[int] = (0,),
    model: ModelConfig | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Plain JSON: ``policies``, ``gains`` and ``wins`` against one of them, ``notes``. Numbers that are not finite are null.

    Every seed draws ``samples_per_prompt`` further answers; the prompt stays the unit of all intervals. Models with the same weights and
    chat format are one policy, under the name that came first (``also`` has the others). Raises errors of models, data and judges.
    """
    opponents, model = opponents or Opponents(), model or ModelConfig()
    first = [opponents.against] if opponents.against else []
    candidates = find_candidates([*first, *(name for name in names if name not in first)], model)
    asker = _Asker(config, compute, opponents, tuple(seeds), model)
    asked = list(asker.distinct(candidates, say))
    gains = _gains(asked, seeds[0])
    wins = [found for after in asked[1:] for found in _wins(asked[0], after, opponents, config, seeds[0])]
    return json_ready(
        {
            "prompts": asker.source,
            "prompts_sha256": asker.rows_sha256,
            "policies": [asker.as_dict(one) for one in asked],
            "gains": gains,
            "wins": _with_holm([asdict(found) for found in wins]),
            "bootstrap_seed": seeds[0],
            "notes": [*(c.note for c in candidates if c.note), *_notes(asked, seeds, wins)],
        }
    )


class _Asker:
    """Asks one candidate after the other. State: what they share, read once."""

    def __init__(self, config: EvaluateConfig, compute: Compute, opponents: Opponents, seeds: tuple[int, ...], model: ModelConfig) -> None:
        self.config, self.compute, self.seeds = config, compute, seeds
        rows = load_rows(config.prompts.path, config.prompts.split, config.prompts.limit)
        self.prompts: list[Prompt] = read_prompts(rows.rows, rows.source)
        if opponents.judge is not None:
            try_judge(opponents.judge, self.prompts[0], opponents.judge_name)
        self.rows_sha256, self.source = rows.sha256, _without_folders(config.prompts.path)
        self.score = Rubric([(config.score, 1.0, build_part(config.score, dict(config.score_params)))])
        self.reference = None
        if opponents.reference is not None:
            (found,) = find_candidates([opponents.reference], model)
            self.reference = Reference.frozen_copy(found.load().to(compute.device), compute.dtype)
        self.learned = None
        if opponents.reward_model is not None:
            self.learned = Rubric([("reward_model", 1.0, LearnedPart(scorer_loader(compute)(opponents.reward_model)))])

    def distinct(self, candidates: Sequence[Candidate], say: Callable[[str], None]) -> list[_Asked]:
        """Every policy once, in order."""
        models = _Models()
        asked = [one for candidate in candidates if (one := self._unless_known(candidate, models, say)) is not None]
        return [replace(one, also=tuple(labels[1:])) for one, labels in zip(asked, models.labels.values(), strict=True)]

    def _unless_known(self, candidate: Candidate, models: _Models, say: Callable[[str], None]) -> _Asked | None:
        """None for a model that was asked before. One policy lies in memory at a time."""
        if candidate.note:
            say(candidate.note)
        policy = candidate.load().to(self.compute.device)
        made = self._provenance(policy)
        if not models.is_new(candidate.label, policy, made["weights_sha256"]):
            say(f"{candidate.label}: the same model as one before it")
            return None
        say(f"{candidate.label}: {len(self.prompts)} prompts x {self.config.samples_per_prompt} answers x {len(self.seeds)} seeds")
        return self._ask(candidate.label, policy, made)

    def _ask(self, label: str, policy: Policy, made: Mapping[str, Any]) -> _Asked:
        rows = self.config.sampling.max_rows
        sampler = LocalSampler(policy.model, policy.format.eos_ids, policy.format.pad_id, self.compute.dtype, rows)
        drawn = [ask(policy, sampler, self.prompts, self.score, self.config, seed) for seed in self.seeds]
        groups = tuple(_joined(parts) for parts in zip(*drawn, strict=True))
        by_seed = {str(seed): _mean(of_seed) for seed, of_seed in zip(self.seeds, drawn, strict=True)}
        result = summarise(label, policy, self.reference, groups, self.score, {}, self.config, self.compute, self.seeds[0])
        learned: tuple[tuple[float, ...], ...] = ()
        if self.learned is not None:
            with self.compute.autocast():
                learned = tuple(group.scores for group in self.learned.score([group.rollouts for group in groups]))
            result = replace(result, proxies={"reward_model": float(np.nanmean([s for scores in learned for s in scores]))})
        return _Asked(replace(result, provenance=made), by_seed, groups, learned)

    def as_dict(self, asked: _Asked) -> dict[str, Any]:
        """Plain values; without a reference there is no KL."""
        told = {**asked.result.as_dict(), "by_seed": dict(asked.by_seed), "also": list(asked.also)}
        if self.reference is None:
            told |= {"kl_token_mean_nats": None, "kl_sequence_sum_nats": None}
        return told

    def _provenance(self, policy: Policy) -> dict[str, Any]:
        shared = {"data_sha256": self.rows_sha256, "num_prompts": len(self.prompts), "seeds": self.seeds}
        return provenance_of(policy, self.config, self.compute, **shared)


def _joined(parts: Sequence[RolloutGroup]) -> RolloutGroup:
    """The answers of all seeds to one prompt."""
    return RolloutGroup(
        tuple(rollout for part in parts for rollout in part.rollouts),
        tuple(score for part in parts for score in part.scores),
        tuple(components for part in parts for components in part.components),
        tuple(failure for part in parts for failure in part.failures),
    )


def _mean(groups: Sequence[RolloutGroup]) -> float:
    by_prompt = [np.nanmean(group.scores) for group in groups if not all(map(math.isnan, group.scores))]
    return float(np.mean(by_prompt)) if by_prompt else math.nan


def _gains(asked: Sequence[_Asked], seed: int) -> list[dict[str, Any]]:
    first, found = asked[0].result, []
    for after in asked[1:]:
        difference = gain(first, after.result, seed)
        pairs = [(b, a) for b, a in zip(first.scores_by_prompt, after.result.scores_by_prompt, strict=True) if not math.isnan(b + a)]
        p_value = permutation_p_value([b for b, _ in pairs], [a for _, a in pairs], seed=seed)
        weights = [one.provenance["weights_sha256"] for one in (first, after.result)]
        told = {"excludes_zero": difference.excludes_zero, "p_value": p_value, "weights_sha256": weights}
        found.append({**asdict(difference), **told, "by": first.score})
    return _with_holm(found)


def _wins(before: _Asked, after: _Asked, opponents: Opponents, config: EvaluateConfig, seed: int) -> list[WinRate]:
    names, settings = (before.result.name, after.result.name), {"confidence": config.confidence, "seed": seed}
    shares = shares_by_scores([group.scores for group in before.groups], [group.scores for group in after.groups])
    found = [win_rate(*names, config.score, shares, **settings)]
    if before.learned_PG:
        found.append(win_rate(*names, "reward_model", shares_by_scores(before.learned_PG, after.learned_PG), **settings))
    if opponents.judge is not None:
        judged = shares_by_judge(before.groups, after.groups, opponents.judge, opponents.judge_name)
        counts = {"num_unjudged": judged.num_unjudged, "num_pairs": judged.num_pairs}
        found.append(win_rate(*names, "judge", judged.shares, **settings, **counts))
    return found


def _with_holm(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``p_holm`` over the comparisons by the same measure; NaN, and none of the family, where there is no p."""
    told = []
    for measure in dict.fromkeys(entry["by"] for entry in comparisons):
        family = [entry for entry in comparisons if entry["by"] == measure]
        adjusted = iter(holm([entry["p_value"] for entry in family if not math.isnan(entry["p_value"])]))
        told += [{**entry, "p_holm": math.nan if math.isnan(entry["p_value"]) else next(adjusted)} for entry in family]
    return told


def _notes(asked: Sequence[_Asked], seeds: Sequence[int], wins: Sequence[WinRate]) -> list[str]:
    notes = ["Intervals: bootstrap over prompts; differences are paired over prompts. They say nothing about another training seed."]
    notes += [
        f"{', '.join(one.also)}: the same weights as {one.result.name}, so shown once, under that name, and not compared with it."
        for one in asked
        if one.also
    ]
    if len(asked) > 2:
        notes.append(
            f"{len(asked) - 1} comparisons with {asked[0].result.name} were made on the same prompts: by chance alone one of them looks "
            "better more often than its own interval says. Read p_holm (Holm 1979), which holds for all of them together."
        )
    if len(seeds) == 1:
        notes.append(f"One sampling seed ({seeds[0]}); more with --num-seeds.")
    notes += [
        f"The judge gave no verdict in {found.num_unjudged} of {found.num_pairs} pairs of {found.before} and {found.after}: left out."
        for found in wins
        if found.num_unjudged
    ]
    if any(found.by == "reward_model" for found in wins):
        notes.append("A reward model that a policy was trained on is no independent judge of it.")
    return notes


def _without_folders(path: str) -> str:
    local = Path(path).expanduser()
    return local.name if local.exists() else path
