"""Any policies on the same held-out prompts: scores, attempts, win rates, each with its interval and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tether.backends.compute import Compute
from tether.config import EvaluateConfig, ModelConfig
from tether.data.load import load_rows
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.reward import RewardModel
from tether.records import read_prompts
from tether.rewards.build import build_part
from tether.rewards.learned import LearnedPart
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.run.candidates import Candidate, find_candidates
from tether.run.evaluate import EvaluatedPolicy, ask, gain, summarise
from tether.run.provenance import provenance_of
from tether.run.win_rate import Judge, WinRate, shares_by_judge, shares_by_scores, win_rate
from tether.stats import holm, permutation_p_value
from tether.types import Prompt, RolloutGroup

__all__ = ["Opponents", "evaluate_models", "plain"]


@dataclass(frozen=True)
class Opponents:
    """What policies are held against. ``against``: a model (the first one asked, if None). ``reference``: of the KL. ``reward_model``: a
    folder, ``judge``: a function, both for win rates beside those by the score."""

    against: str | None = None
    reference: str | None = None
    reward_model: str | None = None
    judge: Judge | None = None


@dataclass(frozen=True)
class _Asked:
    result: EvaluatedPolicy
    by_seed: Mapping[str, float]
    groups: tuple[RolloutGroup, ...]
    learned_PG: tuple[tuple[float, ...], ...]


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

    Every seed draws ``samples_per_prompt`` further answers; the prompt stays the unit of all intervals. Raises errors of models and data.
    """
    opponents, model = opponents or Opponents(), model or ModelConfig()
    first = [opponents.against] if opponents.against else []
    candidates = find_candidates([*first, *(name for name in names if name not in first)], model)
    asker = _Asker(config, compute, opponents, tuple(seeds), model)
    asked = []
    for candidate in candidates:
        say(f"{candidate.label}: {len(asker.prompts)} prompts x {config.samples_per_prompt} answers x {len(seeds)} seeds")
        asked.append(asker(candidate))
    gains = _gains(asked, seeds[0])
    wins = [found for after in asked[1:] for found in _wins(asked[0], after, opponents, config, seeds[0])]
    return plain(
        {
            "prompts": asker.source,
            "prompts_sha256": asker.rows_sha256,
            "policies": [asker.as_dict(one) for one in asked],
            "gains": gains,
            "wins": _with_holm([asdict(found) for found in wins]),
            "bootstrap_seed": seeds[0],
            "notes": list(_notes(asked, seeds, wins)),
        }
    )


class _Asker:
    """Asks one candidate after the other. State: what they share, read once."""

    def __init__(self, config: EvaluateConfig, compute: Compute, opponents: Opponents, seeds: tuple[int, ...], model: ModelConfig) -> None:
        self.config, self.compute, self.seeds = config, compute, seeds
        rows = load_rows(config.prompts.path, config.prompts.split, config.prompts.limit)
        self.prompts: list[Prompt] = read_prompts(rows.rows, rows.source)
        self.rows_sha256, self.source = rows.sha256, _without_folders(config.prompts.path)
        self.score = Rubric([(config.score, 1.0, build_part(config.score, dict(config.score_params)))])
        self.reference = None
        if opponents.reference is not None:
            (found,) = find_candidates([opponents.reference], model)
            self.reference = Reference.frozen_copy(found.load().to(compute.device))
        self.learned = None
        if opponents.reward_model is not None:
            scorer = RewardModel.load(opponents.reward_model).to(compute.device).requires_grad_(False)
            self.learned = Rubric([("reward_model", 1.0, LearnedPart(scorer))])

    def __call__(self, candidate: Candidate) -> _Asked:
        policy = candidate.load().to(self.compute.device)
        rows = self.config.sampling.max_rows
        sampler = LocalSampler(policy.model, policy.format.eos_ids, policy.format.pad_id, self.compute.dtype, rows)
        drawn = [ask(policy, sampler, self.prompts, self.score, self.config, seed) for seed in self.seeds]
        groups = tuple(_joined(parts) for parts in zip(*drawn, strict=True))
        by_seed = {str(seed): _mean(of_seed) for seed, of_seed in zip(self.seeds, drawn, strict=True)}
        result = summarise(candidate.label, policy, self.reference, groups, self.score, {}, self.config, self.compute, self.seeds[0])
        learned: tuple[tuple[float, ...], ...] = ()
        if self.learned is not None:
            with self.compute.autocast():
                learned = tuple(group.scores for group in self.learned.score([group.rollouts for group in groups]))
            result = replace(result, proxies={"reward_model": float(np.nanmean([s for scores in learned for s in scores]))})
        return _Asked(replace(result, provenance=self._provenance(policy)), by_seed, groups, learned)

    def as_dict(self, asked: _Asked) -> dict[str, Any]:
        """Plain values; without a reference there is no KL."""
        told = {**asked.result.as_dict(), "by_seed": dict(asked.by_seed)}
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
        shares, unjudged = shares_by_judge(before.groups, after.groups, opponents.judge)
        found.append(win_rate(*names, "judge", shares, **settings, num_unjudged=unjudged))
    return found


def _with_holm(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``p_holm`` over the comparisons by the same measure."""
    told = []
    for measure in dict.fromkeys(entry["by"] for entry in comparisons):
        family = [entry for entry in comparisons if entry["by"] == measure]
        adjusted = holm([entry["p_value"] for entry in family])
        told += [{**entry, "p_holm": p} for entry, p in zip(family, adjusted, strict=True)]
    return told


def _notes(asked: Sequence[_Asked], seeds: Sequence[int], wins: Sequence[WinRate]) -> list[str]:
    notes = ["Intervals: bootstrap over prompts; differences are paired over prompts. They say nothing about another training seed."]
    if len(asked) > 2:
        notes.append(
            f"{len(asked) - 1} comparisons with {asked[0].result.name} were made on the same prompts: by chance alone one of them looks "
            "better more often than its own interval says. Read p_holm (Holm 1979), which holds for all of them together."
        )
    if len(seeds) == 1:
        notes.append(f"One sampling seed ({seeds[0]}); more with --num-seeds.")
    if any(found.by == "reward_model" for found in wins):
        notes.append("A reward model that a policy was trained on is no independent judge of it.")
    return notes


def _without_folders(path: str) -> str:
    local = Path(path).expanduser()
    return local.name if local.exists() else path


def plain(value: Any) -> Any:
    """JSON values: dataclasses as objects, tuples as lists, numbers that are not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
