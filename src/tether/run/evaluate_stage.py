"""The last stage: the start and every trained policy on the same held-out prompts, written to evaluation.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tether.data.load import load_rows
from tether.errors import RunError
from tether.files import refuse_altered, sealed, write_atomic
from tether.models.reference import Reference
from tether.records import read_prompts
from tether.report.evaluation import GainRecord
from tether.rewards.build import build_part, build_rubric
from tether.rewards.rubric import Rubric
from tether.run.context import Context, load_policy, load_scorer, sampler_for
from tether.run.evaluate import EvaluatedPolicy, evaluate_policy, gain, proxy_gain
from tether.run.folder import set_aside
from tether.run.made_from import stage_hashes
from tether.run.provenance import provenance_of
from tether.run.scorer import scorer_loader

__all__ = ["evaluate_stage"]


def _finished(target: Path) -> dict[str, Any] | None:
    """What an earlier evaluation wrote. Raises RunError where it cannot be read."""
    if not target.exists():
        return None
    try:
        done = json.loads(target.read_text(encoding="utf-8"))
        refuse_altered(done, target)
        done.pop("sha256", None)
    except (ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{target} is damaged ({error}): delete it and resume, which evaluates again") from error
    return done


def evaluate_stage(context: Context, start: Path, policies: Mapping[str, Path], reward_model: Path | None) -> dict[str, Any] | None:
    config = context.config.evaluate
    if config is None:
        return None
    made_from = stage_hashes(context.config)["evaluate"]
    target = context.folder.path / "evaluation.json"
    done = _finished(target)
    rows = load_rows(config.prompts.path, config.prompts.split, config.prompts.limit)
    if done is not None and (done.get("made_from"), done.get("prompts_sha256")) == (made_from, rows.sha256):
        context.observer.message(f"evaluate: finished before, reused from {target}")
        return done
    if done is not None:
        kept = set_aside(target)
        context.observer.message(f"evaluate: settings, prompts or policies changed, so it is made anew; the one before is kept as {kept}")
    prompts = read_prompts(rows.rows, rows.source)
    score = Rubric([(config.score, 1.0, build_part(config.score, dict(config.score_params)))])
    scorer = load_scorer(context, reward_model)
    load = scorer_loader(context.compute)
    proxies = {name: build_rubric(stage.rewards, reward_model=scorer, load=load) for name, stage in context.config.rl.items()}
    reference = Reference.frozen_copy(load_policy(context, start), context.compute.dtype)
    recorder = context.recorder("evaluate", 1 + len(policies))
    results: list[EvaluatedPolicy] = []
    for name, path in {"start": start, **policies}.items():
        policy = load_policy(context, path)
        sampler = sampler_for(context, policy, config.sampling.max_rows)
        used = proxies if name == "start" else {stage: proxy for stage, proxy in proxies.items() if stage == name}
        own_reference = None if name == "start" else reference
        seed = context.config.seed
        found = evaluate_policy(name, policy, own_reference, sampler, prompts, score, used, config, context.compute, seed)
        made = provenance_of(policy, config, context.compute, data_sha256=rows.sha256, num_prompts=len(prompts), seeds=[seed])
        results.append(replace(found, provenance=made))
        context.observer.step("evaluate", len(results), {})
    gains = [gain(results[0], result, context.config.seed) for result in results[1:]]
    evaluation = {
        "made_from": made_from,
        "prompts_sha256": rows.sha256,
        "policies": [r.as_dict() for r in results],
        "gains": [_gain_row(found) for found in gains],
        "proxy_gains": [_gain_row(found) for r in results[1:] if (found := proxy_gain(results[0], r, context.config.seed)) is not None],
    }
    evaluation = json.loads(json.dumps(evaluation))  # what a reader finds: names as text, tuples as lists
    write_atomic(target, json.dumps(sealed(evaluation), indent=2) + "\n")
    for result, found in zip(results[1:], gains, strict=True):
        recorder.message(_in_words(results[0], result, found))
    recorder.finish({"prompts": len(prompts)})
    return evaluation


def _gain_row(found: GainRecord) -> dict[str, Any]:
    return {**asdict(found), "excludes_zero": found.excludes_zero}


def _in_words(before: EvaluatedPolicy, after: EvaluatedPolicy, found: GainRecord) -> str:
    """The result of a stage in two sentences, with units."""
    kl = after.kl_sequence_interval_nats
    return (
        f"{after.name}: held-out {after.score} {before.mean:z.3f} -> {after.mean:z.3f}, gain {found.difference:+z.3f} "
        f"[{found.low:+z.3f}, {found.high:+z.3f}] ({found.confidence:z.0%} paired bootstrap over {found.num_prompts} prompts). "
        f"KL(policy || reference) {after.kl_token_mean_nats:z.4f} nats per token, {after.kl_sequence_sum_nats:z.3f} nats per sequence"
        f"{'' if kl is None else f' [{kl[0]:z.3f}, {kl[1]:z.3f}]'}."
    )
