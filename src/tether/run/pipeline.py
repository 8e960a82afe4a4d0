"""A whole run: the stages that the configuration names, in order, each from files to files.

Every stage reads its inputs from a folder and leaves a folder that plain transformers can load, so any of them can be run, replaced or
inspected alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tether.algorithms.policy_gradient import OnlineConfig
from tether.backends.compute import Compute, resolve_compute
from tether.config import DataSource, PPOConfig, RunConfig
from tether.data.lengths import (
    LengthPolicy,
    comparison_pairs,
    demonstration_examples,
    limit_examples,
    limit_pairs,
    limit_prompts,
)
from tether.data.load import load_prompts, load_rows
from tether.data.overlap import refuse_overlap
from tether.events import EventLog
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy, ValueHead
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.models.value import Critic, critic_from_reward_model
from tether.records import read_comparisons, read_demonstrations, read_prompts
from tether.rewards.build import build_part, build_rubric
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.run.evaluate import EvaluatedPolicy, Gain, evaluate_policy, gain
from tether.run.folder import RunFolder, sha256_text, write_atomic
from tether.run.learner import OnlineLearner
from tether.run.observer import Observer, Quiet
from tether.run.recorder import Recorder
from tether.run.reward_model import num_steps as reward_model_steps
from tether.run.reward_model import split_by_prompt, train_reward_model
from tether.run.rl import OnlineRun, rl
from tether.run.sft import num_steps as sft_steps
from tether.run.sft import sft
from tether.text.chat import Text
from tether.types import Prompt

__all__ = ["RunResult", "run"]


@dataclass(frozen=True)
class RunResult:
    """Where everything is. ``evaluation`` is what evaluation.json holds, or None without an [evaluate] section."""

    folder: Path
    report: Path
    evaluation: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Context:
    config: RunConfig
    folder: RunFolder
    log: EventLog
    observer: Observer
    compute: Compute

    def recorder(self, stage: str, num_steps: int) -> Recorder:
        return Recorder(self.log, self.observer, stage, num_steps)


def run(config: RunConfig, *, observer: Observer | None = None, fresh: bool = False) -> RunResult:
    """Run the stages of ``config``, reusing those already finished in its folder; write the report.

    Raises the errors of the stages (ConfigError, DataError, ModelError, ...), and RunError when the folder holds another run.
    """
    folder = RunFolder(config, fresh=fresh)
    log = EventLog(folder.path / "events.jsonl")
    log.write("run_started", name=config.name, config_sha256=sha256_text(folder.config_text))
    context = _Context(config, folder, log, observer or Quiet(), resolve_compute(config.compute))
    try:
        _say_what_is_used(context)
        start = _sft_stage(context)
        reward_model = _reward_model_stage(context, start)
        policies = {name: _rl_stage(context, name, start, reward_model) for name in config.rl}
        evaluation = _evaluate_stage(context, start, policies, reward_model)
        report = _report(context)
        log.write("run_finished")
    except KeyboardInterrupt:
        log.write("interrupted")
        raise
    finally:
        log.close()
    return RunResult(folder.path, report, evaluation)


def _say_what_is_used(context: _Context) -> None:
    dtype = str(context.compute.dtype).removeprefix("torch.")
    context.observer.message(
        f"{context.folder.path}: {context.compute.device}, {dtype} products over float32 weights, seed {context.config.seed}"
    )
    if context.config.model.trust_remote_code:
        context.log.write("message", stage="run", text="model.trust_remote_code is on: code inside the model folder runs")
        context.observer.message("WARNING: model.trust_remote_code is on: code inside the model folder runs")


# -- stages ------------------------------------------------------------------------------------------------------------------


def _stage(context: _Context, name: str, made_from: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Reuse a finished stage, or build it in a clean folder and mark it finished."""
    folder = context.folder.stage(name)
    if context.folder.finished(name, made_from) is not None:
        context.observer.message(f"{name}: finished before, reused from {folder}")
        return folder
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    context.folder.finish(name, made_from, build(folder))
    return folder


def _made_from(context: _Context, section: Any, *inputs: Path) -> str:
    """What a stage depends on: its section, the model, the seed, and the stages before it."""
    before = [json.loads((path / "stage.json").read_text())["made_from"] for path in inputs if (path / "stage.json").exists()]
    return sha256_text(
        json.dumps(
            [
                section.model_dump(mode="json"),
                context.config.model.model_dump(mode="json"),
                context.config.compute.model_dump(mode="json"),
                context.config.seed,
                before,
            ]
        )
    )


def _load_policy(context: _Context, path: Path | str, *, value_head: ValueHead = ValueHead.NONE, lora: LoraSpec | None = None) -> Policy:
    model = context.config.model
    policy = Policy.load(
        path,
        value_head=value_head,
        lora=lora,
        local_files_only=model.local_files_only,
        trust_remote_code=model.trust_remote_code,
        seed=context.config.seed,
    )
    return policy.to(context.compute.device)


def _sft_stage(context: _Context) -> Path:
    """The start of everything after: the model itself, or the model after SFT."""
    base = resolve_model(context.config.model.path, local_files_only=context.config.model.local_files_only)
    config = context.config.sft
    if config is None:
        return base

    def build(folder: Path) -> dict[str, Any]:
        policy = _load_policy(context, base)
        rows = load_rows(config.data.path, config.data.split, config.data.limit)
        demonstrations = read_demonstrations(rows.rows, rows.source)
        limited = limit_examples(demonstration_examples(demonstrations, policy.format, rows.source), config.max_length, rows.source)
        recorder = context.recorder("sft", sft_steps(len(limited.examples), config))
        recorder.message(f"sft: {limited.report}")
        if context.config.compute.activation_checkpointing:
            policy.enable_activation_checkpointing()
        last = sft(policy, limited.examples, config, context.compute, recorder, context.config.seed)
        policy.save(folder)
        summary = {
            "loss": last["loss"],
            "demonstrations": len(limited.examples),
            "cuts": asdict(limited.report),
            "data_sha256": rows.sha256,
            "weights_sha256": policy.weights_fingerprint(),
        }
        recorder.finish(summary)
        return summary

    return _stage(context, "sft", _made_from(context, config), build)


def _reward_model_stage(context: _Context, start: Path) -> Path | None:
    config = context.config.reward_model
    if config is None:
        return None

    def build(folder: Path) -> dict[str, Any]:
        backbone = start if config.path is None else resolve_model(config.path, local_files_only=context.config.model.local_files_only)
        model = RewardModel.from_base(backbone, seed=context.config.seed).to(context.compute.device)
        rows = load_rows(config.data.path, config.data.split, config.data.limit)
        comparisons = read_comparisons(rows.rows, rows.source)
        limited = limit_pairs(comparison_pairs(comparisons, model.format, rows.source), config.max_length, rows.source)
        keys = [repr(comparisons[index].prompt) for index in limited.kept]
        training, held_out = split_by_prompt(limited.pairs, keys, config.held_out_share, context.config.seed)
        recorder = context.recorder("reward_model", reward_model_steps(len(training), config))
        recorder.message(f"reward_model: {limited.report}; {len(training)} pairs to train on, {len(held_out)} held out")
        result = train_reward_model(model, training, held_out, config, context.compute, recorder, context.config.seed)
        model.save(folder)
        summary = {
            "held_out": asdict(result),
            "training_pairs": len(training),
            "cuts": asdict(limited.report),
            "data_sha256": rows.sha256,
            "weights_sha256": model.weights_fingerprint(),
        }
        recorder.finish(summary)
        return summary

    return _stage(context, "reward_model", _made_from(context, config, start), build)


def _rl_stage(context: _Context, name: str, start: Path, reward_model: Path | None) -> Path:
    config = context.config.rl[name]
    stage = f"rl.{name}"
    inputs = [start] + ([reward_model] if reward_model else [])

    def build(folder: Path) -> dict[str, Any]:
        rows = load_rows(config.prompts.path, config.prompts.split, config.prompts.limit)
        prompts = read_prompts(rows.rows, rows.source)
        if config.max_prompt_tokens is not None:
            prompts = _within_limit(context, prompts, config, start, rows.source)
        learner = _learner(context, config, start, reward_model)
        rubric = build_rubric(config.rewards, reward_model=_scorer(context, reward_model))
        recorder = context.recorder(stage, config.steps)
        sampler = _sampler(context, learner.policy, config.sampling.max_rows)
        last = rl(OnlineRun(learner, sampler, rubric, prompts, context.config.seed), recorder)
        learner.policy.save(folder)
        summary = {
            "last_step": last,
            "beta": learner.controller.beta,
            "data_sha256": rows.sha256,
            "weights_sha256": learner.policy.weights_fingerprint(),
        }
        recorder.finish(summary)
        return summary

    return _stage(context, stage, _made_from(context, config, *inputs), build)


def _within_limit(context: _Context, prompts: Sequence[Prompt], config: OnlineConfig, start: Path, source: str) -> list[Prompt]:
    """Apply max_prompt_tokens: an error that names the rows, or fewer prompts and a message that counts them."""
    assert config.max_prompt_tokens is not None
    format = _load_policy(context, start).format
    limited = limit_prompts(
        [format.prompt_ids(p.text) for p in prompts], config.max_prompt_tokens, LengthPolicy(config.long_prompts), source
    )
    context.observer.message(f"{source}: {limited.report}")
    return [prompts[index] for index in limited.kept]


def _learner(context: _Context, config: OnlineConfig, start: Path, reward_model: Path | None) -> OnlineLearner:
    lora = None if context.config.model.lora is None else LoraSpec(**context.config.model.lora.model_dump())
    shared = isinstance(config, PPOConfig) and config.critic == "shared"
    policy = _load_policy(context, start, value_head=ValueHead.SHARED if shared else ValueHead.NONE, lora=lora)
    reference = Reference.adapter_off(policy) if lora else Reference.frozen_copy(policy)
    if context.config.compute.activation_checkpointing:
        policy.enable_activation_checkpointing()
    critic = None
    if isinstance(config, PPOConfig) and config.critic == "separate":
        critic = Critic.load(start).to(context.compute.device)
    elif isinstance(config, PPOConfig) and config.critic == "reward_model":
        assert reward_model is not None
        critic = critic_from_reward_model(RewardModel.load(reward_model)).to(context.compute.device)
    return OnlineLearner(policy, reference, config, context.compute, critic=critic, seed=context.config.seed)


class _AutocastScorer:
    """A reward model as the rubric sees it, in the precision of this run."""

    def __init__(self, model: RewardModel, compute: Compute) -> None:
        self._model, self._compute = model, compute
        self.score_offset = model.score_offset

    def score_texts(self, prompts: Sequence[Text], completions: Sequence[Text], *, token_budget: int) -> list[float]:
        """Raw scores."""
        with self._compute.autocast():
            return self._model.score_texts(prompts, completions, token_budget=token_budget)


def _scorer(context: _Context, folder: Path | None) -> _AutocastScorer | None:
    if folder is None:
        return None
    return _AutocastScorer(RewardModel.load(folder).to(context.compute.device).requires_grad_(False), context.compute)


def _sampler(context: _Context, policy: Policy, max_rows: int) -> LocalSampler:
    return LocalSampler(policy.model, policy.format.eos_ids, policy.format.pad_id, context.compute.dtype, max_rows)


# -- evaluation and report ---------------------------------------------------------------------------------------------------


def _evaluate_stage(context: _Context, start: Path, policies: Mapping[str, Path], reward_model: Path | None) -> dict[str, Any] | None:
    config = context.config.evaluate
    if config is None:
        return None
    rows = load_rows(config.prompts.path, config.prompts.split, config.prompts.limit)
    prompts = read_prompts(rows.rows, rows.source)
    for source in _training_sources(context.config):
        refuse_overlap([p.text for p in load_prompts(source)], [p.text for p in prompts])
    score = Rubric([(config.score, 1.0, build_part(config.score, dict(config.score_params)))])
    scorer = _scorer(context, reward_model)
    proxies = {name: build_rubric(rl_config.rewards, reward_model=scorer) for name, rl_config in context.config.rl.items()}
    reference = Reference.frozen_copy(_load_policy(context, start))
    recorder = context.recorder("evaluate", 1 + len(policies))
    results: list[EvaluatedPolicy] = []
    for name, path in {"start": start, **policies}.items():
        policy = _load_policy(context, path)
        sampler = _sampler(context, policy, config.sampling.max_rows)
        used = proxies if name == "start" else {name: proxies[name]}
        results.append(
            evaluate_policy(
                name,
                policy,
                None if name == "start" else reference,
                sampler,
                prompts,
                score,
                used,
                config,
                context.compute,
                context.config.seed,
            )
        )
        context.observer.step("evaluate", len(results), {})
    gains = [gain(results[0], result, context.config.seed) for result in results[1:]]
    evaluation = {
        "prompts_sha256": rows.sha256,
        "policies": [r.as_dict() for r in results],
        "gains": [{**asdict(g), "excludes_zero": g.excludes_zero} for g in gains],
    }
    write_atomic(context.folder.path / "evaluation.json", json.dumps(evaluation, indent=2) + "\n")
    for result, found in zip(results[1:], gains, strict=True):
        recorder.message(_in_words(results[0], result, found))
    recorder.finish({"prompts": len(prompts)})
    return evaluation


def _in_words(before: EvaluatedPolicy, after: EvaluatedPolicy, found: Gain) -> str:
    """The result of a stage in two sentences, with units."""
    return (
        f"{after.name}: held-out {after.score} {before.mean:.3f} -> {after.mean:.3f}, gain {found.difference:+.3f} "
        f"[{found.low:+.3f}, {found.high:+.3f}] ({found.confidence:.0%} paired bootstrap over {found.num_prompts} prompts). "
        f"KL(policy || reference) {after.kl_token_mean_nats:.4f} nats per token, {after.kl_sequence_sum_nats:.3f} nats per sequence."
    )


def _training_sources(config: RunConfig) -> Sequence[DataSource]:
    return [rl_config.prompts for rl_config in config.rl.values()]


def _report(context: _Context) -> Path:
    from tether.report.page import write_report

    return write_report(context.folder.path)
