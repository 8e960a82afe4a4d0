"""A whole run: the stages that the configuration names, in order, each from files to files.

Every stage reads its inputs from a folder and leaves a folder that plain transformers can load, so any of them can be run, replaced or
inspected alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tether.backends.compute import Compute, resolve_compute
from tether.config import ActorCriticConfig, OnlineDPOConfig, RolloutConfig, RunConfig
from tether.data.lengths import (
    LengthPolicy,
    demonstration_examples,
    limit_examples,
    limit_prompts,
)
from tether.data.load import load_rows
from tether.errors import Interrupted, Paused
from tether.events import EventLog
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy, ValueHead
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.models.value import Critic, critic_from_reward_model
from tether.records import read_demonstrations, read_prompts
from tether.rewards.build import build_rubric
from tether.run.cards import write_cards
from tether.run.checks.evidence import acknowledge as acknowledge_alarms
from tether.run.checks.stage import watch_for
from tether.run.context import (
    Context,
    build_stage,
    load_policy,
    load_scorer,
    proof_for,
    refuse_other_settings,
    sampler_for,
    snapshot_for,
)
from tether.run.direct_stage import direct_stage
from tether.run.evaluate_stage import evaluate_stage
from tether.run.folder import RunFolder, sha256_text
from tether.run.learner import OnlineLearner
from tether.run.lock import RunLock
from tether.run.memory import plans_of, too_large
from tether.run.observer import Observer, Quiet
from tether.run.online_dpo import OnlineDPOLearner
from tether.run.preflight import preflight
from tether.run.reward_stage import reward_model_stage
from tether.run.rl import OnlineRun, rl
from tether.run.scorer import scorer_loader
from tether.run.sft import num_steps as sft_steps
from tether.run.sft import sft
from tether.run.signals import StopSignal
from tether.run.sources import answer_rows
from tether.run.warnings import Warnings, warnings_of_run
from tether.run.watchdog import Watchdog
from tether.trackers import Mirror
from tether.types import Prompt

__all__ = ["RunResult", "run"]


@dataclass(frozen=True)
class RunResult:
    """Where everything is. ``evaluation`` is what evaluation.json holds, or None without an [evaluate] section."""

    folder: Path
    report: Path
    evaluation: Mapping[str, Any] | None


def run(
    config: RunConfig,
    *,
    observer: Observer | None = None,
    fresh: bool = False,
    accept_changes: bool = False,
    acknowledge: bool = False,
) -> RunResult:
    """Run the stages of ``config``; write the report. Finished stages in its folder are reused, an interrupted one goes on from its
    newest checkpoint, unless that was made from other settings, data or code (``accept_changes`` goes on all the same). ``acknowledge``:
    a person has seen the alarms of its checks, and they do not stop it again.

    Raises the errors of the stages (ConfigError, DataError, ModelError, ...), and RunError when the folder holds another run.
    """
    with warnings_of_run(observer or Quiet()) as warnings:
        compute = resolve_compute(config.compute)
        said = (observer or Quiet()).message
        with ExitStack() as held:
            if config.folder.exists():  # another process is told at once; a run that cannot start leaves no folder
                held.enter_context(RunLock(config.folder))
                preflight(config)
            else:
                preflight(config)
                held.enter_context(RunLock(config.folder))
            stop = held.enter_context(StopSignal(said))
            held.enter_context(Watchdog(config.hang_limit_s, stops=config.hang_stops))
            told = {"fresh": fresh, "accept_changes": accept_changes, "acknowledge": acknowledge}
            return _run(config, observer or Quiet(), warnings, compute, stop, **told)


def _run(
    config: RunConfig,
    observer: Observer,
    warnings: Warnings,
    compute: Compute,
    stop: StopSignal,
    *,
    fresh: bool,
    accept_changes: bool,
    acknowledge: bool,
) -> RunResult:
    folder = RunFolder(config, fresh=fresh)
    if not accept_changes:
        refuse_other_settings(config, folder)
    lost = folder.take_over()
    log = EventLog(folder.path / "events.jsonl")
    if acknowledge and (seen := acknowledge_alarms(folder.path / "alarms")):
        log.write("alarms_acknowledged", alarms=seen)
    log.begin("run_started", name=config.name, config_sha256=sha256_text(folder.config_text))
    warnings.keep_in(log)
    if lost:
        warnings.say(f"{log.path} lacks the end of {', '.join(lost)}: it was cut or removed, and what is gone is missing from the report")
    mirror = Mirror(config.report_to, config.name, folder.path, config.model_dump(mode="json"))
    log.listen(mirror)
    plans = plans_of(config, compute)
    context = Context(config, folder, log, observer, compute, warnings, stop, accept_changes, plans=plans)
    for stage, settings in folder.earlier.items():
        context.say_once(f"{stage}: an earlier Tether made it, and what is new has its default, so it is kept ({', '.join(settings)})")
    if told := too_large(plans, compute):
        warnings.say(told)
    try:
        _say_what_is_used(context)
        start = _sft_stage(context)
        reward_model = reward_model_stage(context, start)
        policies = {name: _rl_stage(context, name, start, reward_model) for name in config.rl}
        policies |= {name: direct_stage(context, name, start) for name in config.direct}
        evaluation = evaluate_stage(context, start, policies, reward_model)
        write_cards(config, folder.path)
        log.write("run_finished")  # before the report, which says so
        report = _report(context)
    except (KeyboardInterrupt, Interrupted):
        log.write("interrupted")
        raise
    except Paused:
        log.write("interrupted", reason="alarm")
        observer.message(f"The report so far: {_report(context)}")
        raise
    finally:
        context.settle()
        mirror.close()
        log.close()
    return RunResult(folder.path, report, evaluation)


def _say_what_is_used(context: Context) -> None:
    dtype = str(context.compute.dtype).removeprefix("torch.")
    context.observer.message(
        f"{context.folder.path}: {context.compute.device}, {dtype} products over float32 weights, seed {context.config.seed}"
    )
    if context.config.model.trust_remote_code:
        context.log.write("message", stage="run", text="model.trust_remote_code is on: code inside the model folder runs")
        context.observer.message("WARNING: model.trust_remote_code is on: code inside the model folder runs")


# -- stages ------------------------------------------------------------------------------------------------------------------


def _sft_stage(context: Context) -> Path:
    """The start of everything after: the model itself, or the model after SFT."""
    base = resolve_model(context.config.model.path, local_files_only=context.config.model.local_files_only)
    config = context.config.sft
    if config is None:
        return base

    def build(folder: Path) -> dict[str, Any]:
        policy = load_policy(context, base)
        source = answer_rows(config.data)
        rows = source.rows
        demonstrations = read_demonstrations(rows.rows, rows.source)
        limited = limit_examples(demonstration_examples(demonstrations, policy.format, rows.source), config.max_length, rows.source)
        recorder = context.recorder("sft", sft_steps(len(limited.examples), config))
        recorder.message(f"sft: {source.told}{limited.report}")
        keeper = context.keeper(recorder, config, rows.sha256)
        last = sft(policy, limited.examples, config, context.compute, recorder, context.config.seed, keeper)
        keeper.close()
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

    return build_stage(context, "sft", build)


def _rl_stage(context: Context, name: str, start: Path, reward_model: Path | None) -> Path:
    config = context.config.rl[name]
    stage = f"rl.{name}"

    def build(folder: Path) -> dict[str, Any]:
        rows = load_rows(config.prompts.path, config.prompts.split, config.prompts.limit)
        prompts = read_prompts(rows.rows, rows.source)
        if config.max_prompt_tokens is not None:
            prompts = _within_limit(context, prompts, config, start, rows.source)
        if isinstance(config, OnlineDPOConfig):
            learner = _online_dpo(context, config, start, stage)
        else:
            learner = _learner(context, config, start, reward_model, stage)
        rubric = build_rubric(
            config.rewards, reward_model=load_scorer(context, reward_model), load=scorer_loader(context.compute)
        )
        recorder = context.recorder(stage, config.steps)
        snapshot = snapshot_for(context, learner.policy, config)
        local = sampler_for(context, learner.policy, config.sampling.max_rows, snapshot)
        sampler = context.journalled(local, stage, config, rows.sha256)
        proof = proof_for(context, learner.policy, local)
        keeper = context.keeper(recorder, config, rows.sha256, {"answers": sampler})
        watch = watch_for(context, learner, local, rubric, recorder, keeper)
        last = rl(OnlineRun(learner, sampler, rubric, prompts, context.config.seed, proof, snapshot), recorder, keeper, watch)
        keeper.close()
        learner.policy.save(folder)
        summary = {
            "last_step": last,
            "beta": learner.beta,
            "data_sha256": rows.sha256,
            "weights_sha256": learner.policy.weights_fingerprint(),
        }
        recorder.finish(summary)
        return summary

    return build_stage(context, stage, build)


def _within_limit(context: Context, prompts: Sequence[Prompt], config: RolloutConfig, start: Path, source: str) -> list[Prompt]:
    """Apply max_prompt_tokens: an error that names the rows, or fewer prompts and a message that counts them."""
    assert config.max_prompt_tokens is not None
    format = load_policy(context, start).format
    limited = limit_prompts(
        [format.prompt_ids(p.text) for p in prompts], config.max_prompt_tokens, LengthPolicy(config.long_prompts), source
    )
    context.say_once(f"{source}: {limited.report}")
    return [prompts[index] for index in limited.kept]


def _policy_and_reference(context: Context, start: Path, value_head: ValueHead = ValueHead.NONE) -> tuple[Policy, Reference]:
    lora = None if context.config.model.lora is None else LoraSpec(**context.config.model.lora.model_dump())
    policy = load_policy(context, start, value_head=value_head, lora=lora)
    reference = Reference.adapter_off(policy) if lora else Reference.frozen_copy(policy, context.compute.dtype)
    return policy, reference


def _online_dpo(context: Context, config: OnlineDPOConfig, start: Path, stage: str) -> OnlineDPOLearner:
    parts, folder = _policy_and_reference(context, start), context.folder.path
    return OnlineDPOLearner(*parts, config, context.compute, seed=context.config.seed, folder=folder, stage=stage)


def _learner(context: Context, config: Any, start: Path, reward_model: Path | None, stage: str = "") -> OnlineLearner:
    shared = isinstance(config, ActorCriticConfig) and config.critic == "shared"
    policy, reference = _policy_and_reference(context, start, ValueHead.SHARED if shared else ValueHead.NONE)
    critic = None
    if isinstance(config, ActorCriticConfig) and config.critic == "separate":
        critic = Critic.load(start).to(context.compute.device)
    elif isinstance(config, ActorCriticConfig) and config.critic == "reward_model":
        assert reward_model is not None
        critic = critic_from_reward_model(RewardModel.load(reward_model)).to(context.compute.device)
    where = {"folder": context.folder.path, "stage": stage} if stage else {}  # a check of the learner leaves nothing behind
    return OnlineLearner(policy, reference, config, context.compute, critic=critic, seed=context.config.seed, **where)


def _report(context: Context) -> Path:
    from tether.report.page import write_report

    return write_report(context.folder.path)
