"""Runs on the same held-out prompts against each other: is one really better, and was it bought with KL? No torch here.

    print(as_text(compare(["runs/a", "runs/b"])))     or ["runs/a:ppo", "runs/a:grpo"]

Runs of one recipe (the same configuration but for name and seed) are one group. The first group is what the others are held against.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tether.errors import RunError
from tether.files import json_ready, refuse_altered
from tether.stats import Interval, holm, paired_bootstrap, permutation_p_value

__all__ = ["Compared", "Comparison", "Evaluated", "Group", "as_json", "as_text", "compare"]

_KL_MARGIN = 1.25  # KL of two runs of one recipe differs by about a fifth between seeds
_NOT_RECIPE = ("name", "output", "seed", "checkpoint", "report_to", "checks")  # may differ between runs of one recipe


@dataclass(frozen=True)
class Evaluated:
    """One policy as its run evaluated it. ``conditions``: what must be equal for scores to be comparable. KL in nats per answer. ``start``
    and ``weights``: SHA-256, "" where it was not recorded."""

    folder: Path
    run: str
    policy: str
    seed: int | None
    recipe: str
    conditions: Mapping[str, Any]
    code: Mapping[str, Any]
    scores_by_prompt: tuple[float, ...]
    mean: float
    kl: float
    start: str
    weights: str
    confidence: float


@dataclass(frozen=True)
class Group:
    """The seeds of one recipe. ``scores_by_prompt``: mean over the seeds, NaN where any could not be scored."""

    label: str
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]
    means: tuple[float, ...]
    kl: float
    scores_by_prompt: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score over the seeds."""
        return float(np.mean(self.means))


@dataclass(frozen=True)
class Comparison:
    """One group against the first. ``p_holm`` is over all comparisons made; ``words`` is the answer."""

    before: str
    after: str
    difference: float
    low: float
    high: float
    confidence: float
    num_prompts: int
    p_value: float
    p_holm: float
    kl_before: float
    kl_after: float
    verdict: str
    words: str


@dataclass(frozen=True)
class Compared:
    """Everything that ``compare`` found. ``warnings`` come before the figures, ``notes`` after them."""

    score: str
    groups: tuple[Group, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def compare(runs: Sequence[str | Path], *, seed: int = 0) -> Compared:
    """``runs``: run folders, or RUN:POLICY for one policy of a run (``start`` is the policy before training). ``seed`` is of the bootstrap.

    Raises RunError for runs that were not evaluated, or not on the same prompts under the same score and sampling: it says what differs.
    """
    if not runs:
        raise RunError("compare: name at least one run folder")
    found = [one for word in runs for one in _read(str(word))]
    _refuse_unlike(found)
    groups = _grouped(found)
    if len(groups) < 2:
        told = f"are {_unit(groups[0].seeds)}s of one recipe{_told_seeds(groups[0].seeds)}" if len(groups[0].runs) > 1 else "is one policy"
        raise RunError(f"compare: {', '.join(groups[0].runs)} {told}; name a second recipe, or RUN:start")
    comparisons = _comparisons(groups, found, seed)
    return Compared(str(found[0].conditions["score"]), tuple(groups), tuple(comparisons), tuple(_notes(found)), _same_seed_warning(groups))


# -- reading -----------------------------------------------------------------------------------------------------------------


def _read(word: str) -> list[Evaluated]:
    path, colon, policy = word.rpartition(":")
    folder, wanted = (Path(path), policy) if colon and not Path(word).is_dir() else (Path(word), None)
    evaluation, config = _json(folder / "evaluation.json"), _json(folder / "config.json")
    refuse_altered(evaluation, folder / "evaluation.json")
    rows = {str(row["name"]): row for row in evaluation["policies"]}
    if wanted is not None and wanted not in rows:
        raise RunError(f"compare: {folder} evaluated no policy {wanted!r}; it has {', '.join(rows)}")
    names = [wanted] if wanted is not None else [name for name in rows if name != "start"] or ["start"]
    return [_evaluated(folder, name, rows, evaluation, config) for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "it is no finished run with an [evaluate] section" if path.parent.is_dir() else "there is no such folder"
        raise RunError(f"compare: {path} is missing: {hint}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"compare: {path} cannot be read ({error})") from error


def _evaluated(
    folder: Path, name: str, rows: Mapping[str, Mapping[str, Any]], evaluation: Mapping[str, Any], config: Mapping[str, Any]
) -> Evaluated:
    row, section = rows[name], config["evaluate"]
    made, start = row.get("provenance") or {}, (rows.get("start", {}).get("provenance") or {})
    scores = tuple(math.nan if score is None else float(score) for score in row["scores_by_prompt"])
    sampling = made.get("sampling") or {key: section["sampling"][key] for key in ("max_new_tokens", "temperature")}
    conditions = {
        "held-out prompts (sha256)": evaluation["prompts_sha256"],
        "number of prompts": len(scores),
        "score": row["score"],
        "score_params": section.get("score_params", {}),
        "samples_per_prompt": row["samples_per_prompt"],
        **{f"sampling.{key}": sampling[key] for key in ("max_new_tokens", "temperature")},
    }
    return Evaluated(
        folder=folder.resolve(),
        run=folder.resolve().name,
        policy=name,
        seed=config.get("seed"),
        recipe=_recipe(config, name),
        conditions=conditions,
        code={key: made.get(key) for key in ("source_sha256", "torch", "dtype", "device")},
        scores_by_prompt=scores,
        mean=float(row["mean"]),
        kl=float(row["kl_sequence_sum_nats"]),
        start=str(start.get("weights_sha256", "")),
        weights=str(made.get("weights_sha256", "")),
        confidence=float(row["confidence"]),
    )


def _recipe(config: Mapping[str, Any], policy: str) -> str:
    """A hash of what makes the policy, but for the seed: its own stage and those before it."""
    stages = ("rl", "direct")
    told = {key: value for key, value in config.items() if key not in (*_NOT_RECIPE, *stages, "evaluate")}
    own = {stage: (config.get(stage) or {}).get(policy) for stage in stages}
    return hashlib.sha256(json.dumps([policy if policy == "start" else "", told, own], sort_keys=True).encode()).hexdigest()


def _refuse_unlike(found: Sequence[Evaluated]) -> None:
    first = found[0]
    for other in found[1:]:
        unlike = [key for key, value in first.conditions.items() if other.conditions[key] != value]
        if unlike:
            told = "; ".join(
                f"{key}: {_short(first.conditions[key])} in {first.run}, {_short(other.conditions[key])} in {other.run}" for key in unlike
            )
            raise RunError(
                f"compare: {first.run} and {other.run} were not evaluated alike, so their scores cannot be compared. {told}. "
                "Evaluate both in one go: tether evaluate RUN_A RUN_B --prompts FILE"
            )


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def _grouped(found: Sequence[Evaluated]) -> list[Group]:
    by_recipe: dict[str, list[Evaluated]] = {}
    for one in found:
        by_recipe.setdefault(one.recipe, []).append(one)
    return [_group(members) for members in by_recipe.values()]


def _group(members: Sequence[Evaluated]) -> Group:
    members = list({(one.folder, one.policy): one for one in members}.values())  # one that is named twice counts once
    first = members[0]
    more, seeds = len(members) - 1, [one.seed for one in members]
    label = f"{first.run}:{first.policy}" + (f" and {more} more {_unit(seeds)}{'s' * (more > 1)}{_told_seeds(seeds)}" if more else "")
    scores = np.array([one.scores_by_prompt for one in members]).mean(0)
    return Group(
        label=label,
        runs=tuple(one.run for one in members),
        seeds=tuple(one.seed for one in members),
        means=tuple(one.mean for one in members),
        kl=float(np.mean([one.kl for one in members])),
        scores_by_prompt=tuple(map(float, scores)),
    )


def _unit(seeds: Sequence[int | None]) -> str:
    """What repetitions are called: seeds only where every run is known to have one of its own."""
    return "seed" if None not in seeds and len(set(seeds)) == len(seeds) else "run"


def _told_seeds(seeds: Sequence[int | None]) -> str:
    """Examples: (0, 1) -> "", (0, 0) -> " (seed 0)", (0, 1, 1) -> " (seeds 0, 1)"."""
    if _unit(seeds) == "seed":
        return ""
    known = sorted({seed for seed in seeds if seed is not None})
    return " (seeds not recorded)" if None in seeds else f" (seed{'s' * (len(known) > 1)} {', '.join(map(str, known))})"


# -- the answer --------------------------------------------------------------------------------------------------------------


def _comparisons(groups: Sequence[Group], found: Sequence[Evaluated], seed: int) -> list[Comparison]:
    first, confidence = groups[0], found[0].confidence
    measured = []
    for group in groups[1:]:
        pairs = [(b, a) for b, a in zip(first.scores_by_prompt, group.scores_by_prompt, strict=True) if not math.isnan(a + b)]
        if not pairs:
            raise RunError(f"compare: {first.label} and {group.label} have no prompt that both could be scored on")
        before, after = [b for b, _ in pairs], [a for _, a in pairs]
        interval = paired_bootstrap(before, after, confidence=confidence, seed=seed)
        measured.append((group, interval, permutation_p_value(before, after, seed=seed)))
    adjusted = holm([p for _, _, p in measured])
    starts = {one.start for one in found}
    same_start = len(starts) == 1 and starts != {""}
    told = []
    for (group, interval, p_value), p_holm in zip(measured, adjusted, strict=True):
        verdict = _verdict(interval.low, interval.high, p_holm, 1 - confidence)
        words = _words(first, group, interval, verdict, p_holm, len(measured), same_start=same_start)
        told.append(Comparison(first.label, group.label, interval.estimate, interval.low, interval.high, confidence, interval.num_units,
                               p_value, p_holm, first.kl, group.kl, verdict, words))  # fmt: skip
    return told


def _verdict(low: float, high: float, p_holm: float, level: float) -> str:
    """better, worse or not shown: the interval must exclude zero, and the claim must stand beside all others that were made."""
    if p_holm >= level or not (low > 0 or high < 0):
        return "not shown"
    return "better" if low > 0 else "worse"


def _words(first: Group, group: Group, interval: Interval, verdict: str, p_holm: float, num_comparisons: int, *, same_start: bool) -> str:
    heads = {
        "better": f"Yes, on these prompts {group.label} is better than {first.label}",
        "worse": f"No, on these prompts {group.label} is worse than {first.label}",
        "not shown": f"Not shown: {group.label} against {first.label}",
    }
    family = f", p {p_holm:.3g} after Holm's correction for {num_comparisons} comparisons" if num_comparisons > 1 else f", p {p_holm:.3g}"
    measured = (
        f"{first.mean:z.3f} -> {group.mean:z.3f}, difference {interval.estimate:+z.3f} [{interval.low:+z.3f}, {interval.high:+z.3f}] "
        f"({interval.confidence:z.0%} paired bootstrap over {interval.num_units} prompts{family})"
    )
    return " ".join([f"{heads[verdict]}: {measured}.", _kl_words(first, group, verdict, same_start=same_start), _seed_words(first, group)])


def _kl_words(first: Group, group: Group, verdict: str, *, same_start: bool) -> str:
    """Was the gain bought with KL?"""
    told = f"KL(policy || start) {first.kl:z.2f} -> {group.kl:z.2f} nats per answer"
    if not same_start:
        told += " (whether both start from the same weights is not recorded, or they do not: KLs are then against different policies)"
    if verdict == "not shown":
        return f"{told}."
    gainer, other, name = (group, first, group.label) if verdict == "better" else (first, group, first.label)
    if gainer.kl > _KL_MARGIN * max(other.kl, 0.0):
        return (
            f"{told}: the gain of {name} comes with more KL, so it may be bought with distance from the start; compare at equal KL "
            "(another beta, or an earlier step) before you call the method better."
        )
    return f"{told}: not bought with KL."


def _seed_words(first: Group, group: Group) -> str:
    if len(first.seeds) == 1 and len(group.seeds) == 1:
        return "One training seed each: the interval is over prompts, and another seed may say otherwise."
    unit = "seed" if _unit(first.seeds) == _unit(group.seeds) == "seed" else "run"
    ahead = [after > before for before in first.means for after in group.means]
    ranges = ", ".join(f"{g.label} {min(g.means):z.3f} to {max(g.means):z.3f}" for g in (first, group))
    return (
        f"Means by training {unit}: {ranges}; {group.label} is ahead in {sum(ahead)} of {len(ahead)} pairs of {unit}s. "
        f"The interval is over prompts, of the mean over {unit}s."
    )


def _same_seed_warning(groups: Sequence[Group]) -> tuple[str, ...]:
    """One sentence for all groups in which a seed occurs twice."""
    told = []
    for group in groups:
        twice = sorted({seed for seed in group.seeds if seed is not None and group.seeds.count(seed) > 1})
        names = [run for run, seed in zip(group.runs, group.seeds, strict=True) if seed in twice]
        told += [f"{', '.join(names)} (seed {', '.join(map(str, twice))})"] if twice else []
    why = "Warning: runs of one recipe with the same seed are no independent repetition"
    return (f"{why}: {'; '.join(told)}. Train with another seed=...",) if told else ()


def _notes(found: Sequence[Evaluated]) -> list[str]:
    notes = []
    for weights in dict.fromkeys(one.weights for one in found if one.weights):
        same = list(dict.fromkeys(f"{one.run}:{one.policy}" for one in found if one.weights == weights))
        if len(same) > 1:
            notes.append(f"{' and '.join(same)} have the same weights (SHA-256 {_short(weights)}): they are one policy.")
    for key, name in (("source_sha256", "Tether's source"), ("torch", "torch"), ("dtype", "precision"), ("device", "device")):
        known = {one.code[key] for one in found}
        if None in known:
            notes.append(f"{name} is not recorded for {', '.join(one.run for one in found if one.code[key] is None)}.")
        elif len(known) > 1:
            told = ", ".join(sorted(_short(value) for value in known))
            notes.append(f"{name} differs between the runs ({told}): the same policy may score otherwise.")
    return notes


# -- showing -----------------------------------------------------------------------------------------------------------------


def as_text(compared: Compared) -> str:
    """Warnings, the groups, the answers and what to keep in mind."""
    lines = [f"{'group':<40} {'seeds':<12} {compared.score:>14} {'KL/answer':>10}"]
    for group in compared.groups:
        seeds = ",".join("?" if seed is None else str(seed) for seed in group.seeds)
        lines.append(f"{group.label:<40} {seeds:<12} {group.mean:>z14.4f} {group.kl:>z10.3f}")
    return "\n\n".join([*compared.warnings, "\n".join(lines), *(comparison.words for comparison in compared.comparisons), *compared.notes])


def as_json(compared: Compared) -> str:
    """The same, every figure unrounded; NaN is null."""
    return json.dumps(json_ready(compared), indent=2, allow_nan=False)
