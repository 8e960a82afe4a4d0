"""`tether best-of-n`: scored samples from a model or from a file, to a curve, a picture and a data set."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tether.backends.compute import Compute, resolve_compute
from tether.config import ComputeConfig, EvaluateConfig, ModelConfig, explain
from tether.data.load import load_rows
from tether.errors import ConfigError, DataError
from tether.files import overwritten, write_atomic
from tether.records import file_sha256, prompt_from_row, read_prompts, refuse_bad_rows, write_jsonl
from tether.records.texts import prompt_key
from tether.rewards.build import build_part
from tether.rewards.learned import LearnedPart
from tether.rewards.linear import LinearPart
from tether.rewards.rubric import RewardPart, Rubric
from tether.rewards.seen import stored_hashes, was_seen
from tether.rollout.local import LocalSampler
from tether.run.best_of_n import COLUMNS, Pool, ScoredSample, best_of_n, curve_charts, prompt_as_row, sft_rows, table_rows
from tether.run.candidates import find_candidates
from tether.run.evaluate import ask
from tether.run.scorer import RunScorer, load_reward_model
from tether.types import Prompt, RolloutGroup

__all__ = ["BestOfNRequest", "best_of_n_command", "read_samples"]


@dataclass(frozen=True)
class BestOfNRequest:
    """Words of the command line. Either ``model`` with ``prompts``, where ``proxy`` is a reward model and ``gold`` a score by name; or
    ``samples``, a file where ``proxy`` and ``gold`` are columns."""

    proxy: str | None = None
    gold: str | None = None
    model: str | None = None
    prompts: str | None = None
    samples: str | None = None
    num_samples: int = 16
    max_new_tokens: int = 64
    temperature: float = 1.0
    limit: int | None = None
    gold_params: Mapping[str, Any] | None = None
    seed: int = 0
    output: Path | None = None
    plot: Path | None = None
    write_samples: Path | None = None
    write_sft: Path | None = None


def best_of_n_command(request: BestOfNRequest, say: Callable[[str], None] = lambda text: None) -> tuple[dict[str, Any], list[Path]]:
    """The curve, and the files that were written. Raises ConfigError for what cannot be asked, before anything is drawn."""
    _refuse_contradictions(request)
    pools, origin, notes = _drawn(request, say) if request.model is not None else (*read_samples(request), [])
    found = best_of_n(pools, seed=request.seed)
    found |= {"notes": [*found["notes"], *notes], "origin": origin}
    written: list[Path] = []
    if request.output is not None:
        written.append(write_atomic(request.output, json.dumps(found, indent=2, allow_nan=False) + "\n"))
    if request.plot is not None:
        written.append(write_atomic(request.plot, _picture(found, request.plot)))
    if request.write_samples is not None:
        write_jsonl(request.write_samples, [row for pool in pools for row in _sample_rows(pool)])
        written.append(request.write_samples)
    if request.write_sft is not None:
        rows, without = sft_rows(pools, origin)
        if not rows:
            raise DataError("best-of-n: no prompt has a finished answer with a score, so there are no demonstrations to write")
        write_jsonl(request.write_sft, rows)
        told = f"; {without} prompts have no answer that is scored, finished and not blank" if without else ""
        say(f"{request.write_sft}: {len(rows)} demonstrations, the best finished answer of each prompt by the proxy{told}")
        written.append(request.write_sft)
    return found, written


def _refuse_contradictions(request: BestOfNRequest) -> None:
    problems = []
    if (request.model is None) == (request.samples is None):
        problems.append("name a MODEL to sample from, or a file of scored answers with --samples FILE; one of the two")
    if request.model is not None and request.prompts is None:
        problems.append("--prompts: which prompts should the model answer?")
    if request.samples is not None:
        usual = BestOfNRequest()
        idle = {
            "--prompts": request.prompts,
            "--gold-param": request.gold_params,
            "--write-samples": request.write_samples,
            "--num-samples": request.num_samples != usual.num_samples,
            "--max-new-tokens": request.max_new_tokens != usual.max_new_tokens,
            "--temperature": request.temperature != usual.temperature,
        }
        problems += [f"{option} has no effect with --samples; leave it out" for option, given in idle.items() if given]
    elif request.gold_params and request.gold is None:
        problems.append("--gold-param has no effect without --gold; name the score that it is a setting of")
    if request.proxy is None:
        problems.append("--proxy: a reward model (a folder, or the JSON of a linear one); with --samples, the column of its scores")
    if request.num_samples < 1:
        problems.append(f"--num-samples {request.num_samples}: must be at least 1")
    if request.seed < 0:
        problems.append(f"--seed {request.seed}: must be at least 0")
    if request.plot is not None and request.plot.suffix not in (".svg", ".html"):
        problems.append(f"--plot {request.plot}: expected a file that ends in .svg or .html")
    files = {
        "--output": request.output, "--plot": request.plot, "--write-samples": request.write_samples, "--write-sft": request.write_sft
    }  # fmt: skip
    problems += overwritten(files, (request.model, request.prompts, request.samples, request.proxy))
    for path in files.values():
        if path is not None and not path.absolute().parent.is_dir():
            problems.append(f"{path}: the folder {path.absolute().parent} does not exist")
    if problems:
        raise ConfigError(problems, "best-of-n")


def _drawn(request: BestOfNRequest, say: Callable[[str], None]) -> tuple[list[Pool], dict[str, Any], list[str]]:
    """Answers of the model to every prompt, scored by proxy and gold; where they come from; and what to know of them."""
    assert request.model is not None
    assert request.prompts is not None
    assert request.proxy is not None
    evaluate = _settings(request)
    compute = resolve_compute(ComputeConfig())
    loaded = load_rows(request.prompts, limit=request.limit)
    prompts = read_prompts(loaded.rows, loaded.source)
    gold = None if request.gold is None else build_part(request.gold, dict(request.gold_params or {}))
    proxy, proxy_sha256, seen = _proxy(request.proxy, compute)
    candidates = find_candidates([request.model], ModelConfig())
    if len(candidates) != 1:
        names = ", ".join(candidate.label for candidate in candidates)
        raise ConfigError(f"best-of-n: {request.model} stands for several policies ({names}); name the folder of one")
    policy = candidates[0].load().to(compute.device)
    sampler = LocalSampler(policy.model, policy.format.eos_ids, policy.format.pad_id, compute.dtype, evaluate.sampling.max_rows)
    say(f"{candidates[0].label}: {len(prompts)} prompts x {request.num_samples} answers")
    groups = ask(policy, sampler, prompts, Rubric([("proxy", 1.0, proxy)]), evaluate, request.seed)
    golds = None if gold is None else Rubric([("gold", 1.0, gold)]).score([group.rollouts for group in groups])
    gold_PG = [None] * len(groups) if golds is None else [group.scores for group in golds]
    pools = [_pool(prompt, group, gold_G) for prompt, group, gold_G in zip(prompts, groups, gold_PG, strict=True)]
    origin = {
        "policy": candidates[0].label,
        "policy_sha256": policy.weights_fingerprint(),
        "proxy_model": request.proxy,
        "proxy_sha256": proxy_sha256,
        "gold_score": request.gold,
        "prompts_sha256": loaded.sha256,
        "temperature": request.temperature,
        "max_new_tokens": request.max_new_tokens,
        "sampling_seed": request.seed,
    }
    known = sum(was_seen(prompt.text, seen) for prompt in prompts)
    notes = [f"The proxy was trained on {known} of these {len(prompts)} prompts: its scores there are not held out. Ask about others."]
    return pools, origin, notes if known else []


def _settings(request: BestOfNRequest) -> EvaluateConfig:
    sampling = {"max_new_tokens": request.max_new_tokens, "temperature": request.temperature}
    told = {"prompts": {"path": request.prompts}, "samples_per_prompt": request.num_samples, "sampling": sampling}
    try:
        return EvaluateConfig.model_validate(told)
    except ValidationError as error:
        raise ConfigError(explain(error, EvaluateConfig), "the settings of best-of-n") from None


def _proxy(name: str, compute: Compute) -> tuple[RewardPart, str, frozenset[str]]:
    """What scores, its SHA-256, and hashes of the prompts that it was trained on."""
    if name.endswith(".json"):
        try:
            part = LinearPart(name)
        except ValueError as error:
            raise ConfigError(f"--proxy {name}: {error}") from error
        return part, file_sha256(Path(name)), stored_hashes(part.model.fitted_to)
    model = load_reward_model(name)
    return LearnedPart(RunScorer(model, compute)), model.weights_fingerprint(), stored_hashes(model.fitted_to)


def _pool(prompt: Prompt, group: RolloutGroup, golds: Sequence[float] | None) -> Pool:
    samples = tuple(
        ScoredSample(rollout.text, proxy, math.nan if golds is None else golds[at], rollout.truncated)
        for at, (rollout, proxy) in enumerate(zip(group.rollouts, group.scores, strict=True))
    )
    return Pool(prompt.prompt_id, prompt.text, samples)


def _sample_rows(pool: Pool) -> list[dict[str, Any]]:
    """What ``read_samples`` reads; a score that is missing is null."""
    return [
        {
            "prompt_id": pool.prompt_id,
            "prompt": prompt_as_row(pool.prompt),
            "completion": sample.text,
            "proxy": sample.proxy if math.isfinite(sample.proxy) else None,
            "gold": sample.gold if math.isfinite(sample.gold) else None,
            "cut": sample.cut,
        }
        for sample in pool.samples
    ]


def read_samples(request: BestOfNRequest) -> tuple[list[Pool], dict[str, Any]]:
    """One row an answer: `prompt` (and `prompt_id`), `completion`, the columns of the scores, optionally `cut`. A null is "not scored".

    Rows of one prompt are one pool, in order. Raises DataError with all rows that cannot be read.
    """
    assert request.samples is not None
    assert request.proxy is not None
    loaded = load_rows(request.samples, limit=request.limit)
    pools: dict[str, tuple[Prompt, list[ScoredSample]]] = {}
    problems: dict[int, str] = {}
    for number, row in enumerate(loaded.rows, start=1):
        try:
            if isinstance(row, DataError):
                raise row
            prompt = prompt_from_row(row, number - 1)
            key = str(row["prompt_id"]) if row.get("prompt_id") is not None else prompt_key(prompt.text)
            first, samples = pools.setdefault(key, (prompt, []))
            if prompt_key(first.text) != prompt_key(prompt.text):
                raise DataError(f"prompt_id {key!r:.40} has another prompt here than before.")
            samples.append(_sample(row, request.proxy, request.gold))
        except DataError as error:
            problems[number] = str(error)
    refuse_bad_rows(problems, loaded.source, len(loaded.rows))
    columns = {"proxy_column": request.proxy, "gold_column": request.gold}
    origin = {"samples": Path(request.samples).name, "samples_sha256": loaded.sha256, **columns}
    return [Pool(key, prompt.text, tuple(samples)) for key, (prompt, samples) in pools.items()], origin


def _sample(row: Mapping[str, Any], proxy: str, gold: str | None) -> ScoredSample:
    completion = row.get("completion")
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], Mapping):
        completion = completion[0].get("content")
    if not isinstance(completion, str):
        raise DataError(f"`completion` must be text or one assistant turn, got {completion!r:.40}.")
    cut = row.get("cut")
    if not isinstance(cut, bool | None):
        raise DataError(f"`cut` must be true, false or left out, got {cut!r:.40}.")
    return ScoredSample(completion, _score(row, proxy), math.nan if gold is None else _score(row, gold), bool(cut))


def _score(row: Mapping[str, Any], name: str) -> float:
    if name not in row:
        raise DataError(f"no column `{name}`; the row has {', '.join(list(row)[:12])}.")
    value = row[name]
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
        raise DataError(f"`{name}` must be a finite number, or null where there is no score, got {value!r:.40}.")
    return float(value)


def _picture(found: Mapping[str, Any], path: Path) -> str:
    from tether.report.page import render_document, render_svg

    charts = curve_charts(found)
    if path.suffix == ".svg":
        return render_svg(charts[0])
    note = f"Intervals: {100 * found['confidence']:g} %, bootstrap over prompts."
    values = {
        "title": "Best of n",
        "subtitle": f"{found['prompts']} prompts; {_where_from(found['origin'])}",
        "flags": [],
        "sentences": found["notes"],
        "charts": charts,
        "tables": [("Expected score of the best of n", COLUMNS, table_rows(found), note)],
        "hashes": [(name, value) for name, value in found["origin"].items() if name.endswith("sha256") and value],
    }
    return render_document("Best of n", "plain.html", values)


def _where_from(origin: Mapping[str, Any]) -> str:
    if "policy" in origin:
        return f"answers of {origin['policy']}, picked by {origin['proxy_model']}, gold {origin['gold_score'] or 'unknown'}"
    return f"answers of {origin['samples']}, picked by column {origin['proxy_column']}, gold {origin['gold_column'] or 'unknown'}"
