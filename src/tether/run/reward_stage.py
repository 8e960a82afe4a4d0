"""The stage reward_model: records to groups of judged pairs, groups to a reward model in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tether.backends.compute import Compute
from tether.clusters import told_over
from tether.config import RewardModelConfig
from tether.data.groups import Cut, TokenizedGroup, as_pairs, by_prompt, cut_example, limit_groups, tokenised_groups
from tether.data.lengths import LengthReport, demonstration_examples
from tether.data.load import load_demonstrations
from tether.errors import DataError
from tether.models.adapters import LoraSpec
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel, Truncation
from tether.records import read_judgements, refuse_bad_rows
from tether.rewards.seen import DEMONSTRATED, hash_of_key, prompt_hashes
from tether.run.context import Context, build_stage
from tether.run.reward_model import HeldOut, num_steps, score_examples, split_by_prompt, train_reward_model
from tether.run.sources import comparison_rows
from tether.run.sources import load_demonstrations as load_sft
from tether.text.chat import ChatFormat, TokenizedExample
from tether.types import Comparison, Ranking

__all__ = ["PreparedGroups", "normalise_scores", "prepare_groups", "reward_model_stage"]


@dataclass(frozen=True)
class PreparedGroups:
    """Units of the batch to train on, and those held out; ``report``: what the length limit did, in pairs."""

    training: tuple[TokenizedGroup, ...]
    held_out: tuple[TokenizedGroup, ...]
    report: LengthReport
    flattened: int = 0

    def __str__(self) -> str:
        training, held = (sum(len(group.pairs) for group in groups) for groups in (self.training, self.held_out))
        ties = sum(pair.label == 0.5 for group in (*self.training, *self.held_out) for pair in group.pairs)
        soft = sum(pair.label not in (0.5, 1.0) for group in (*self.training, *self.held_out) for pair in group.pairs)
        told = [f"ties: {ties}"] * bool(ties) + [f"labels between 0 and 1: {soft}"] * bool(soft)
        told += [f"rankings flattened to pairs: prompts with more answers weigh more ({self.flattened} rankings)"] * bool(self.flattened)
        return f"{self.report}; {training} pairs to train on, {held} held out" + "".join(f"; {text}" for text in told)


def prepare_groups(
    records: Sequence[Comparison | Ranking], config: RewardModelConfig, format: ChatFormat, source: str, seed: int
) -> PreparedGroups:
    """Tokenise, limit, split by prompt. Raises DataError naming rows that cannot be used, and where a side of the split decides nothing."""
    limited = limit_groups(tokenised_groups(records, format, source), config.max_length, Cut(config.truncation), source)
    together = config.batch_by == "prompts"
    groups = by_prompt(limited.groups) if together else as_pairs(limited.groups)
    training, held_out = split_by_prompt(groups, [group.key for group in groups], config.held_out_share, seed)
    for name, side in (("to train on", training), ("held out", held_out)):
        if all(pair.label == 0.5 for group in side for pair in group.pairs):
            raise DataError(f"{source}: every pair {name} is a tie (label .5): nothing says which answers are better")
    flattened = 0 if together else sum(isinstance(record, Ranking) and len(record.answers) > 2 for record in records)
    return PreparedGroups(tuple(training), tuple(held_out), limited.report, flattened)


def reward_model_stage(context: Context, start: Path) -> Path | None:
    """Train a reward model on top of ``start`` (or of `path`) with the settings of [reward_model]; None without that section."""
    config = context.config.reward_model
    if config is None:
        return None

    def build(folder: Path) -> dict[str, Any]:
        seed, compute = context.config.seed, context.compute
        backbone = start if config.path is None else resolve_model(config.path, local_files_only=context.config.model.local_files_only)
        lora = None if config.lora is None else LoraSpec(**config.lora.model_dump())
        model = RewardModel.from_base(backbone, seed=seed, lora=lora).to(compute.device)
        source = comparison_rows(config.data)
        rows = source.rows
        prepared = prepare_groups(read_judgements(rows.rows, rows.source), config, model.format, rows.source, seed)
        _set_limit(model, config)
        recorder = context.recorder("reward_model", num_steps(len(prepared.training), config))
        recorder.message(f"reward_model: {source.told}{prepared}")
        keeper = context.keeper(recorder, config, rows.sha256)
        result = train_reward_model(model, prepared.training, prepared.held_out, config, compute, recorder, seed, keeper)
        keeper.close()
        recorder.message(f"reward_model: {held_out_sentence(result)}")
        recorder.message(f"reward_model: {normalise_scores(model, result, config, compute)}")
        model.fitted_to = _fitted_to(model, prepared, result, rows.sha256, compute)
        if config.path is None and context.config.sft is not None:
            demonstrated = prompt_hashes(one.prompt for one in load_sft(context.config.sft.data))
            model.fitted_to[DEMONSTRATED] = demonstrated
            if told := demonstrated_sentence(prepared, demonstrated):
                recorder.message(f"reward_model: {told}")
        model.save(folder)
        summary = {
            "held_out": asdict(result),
            "training_pairs": sum(len(group.pairs) for group in prepared.training),
            "cuts": asdict(prepared.report),
            "data_sha256": rows.sha256,
            "weights_sha256": model.weights_fingerprint(),
        }
        recorder.finish(summary)
        return summary

    return build_stage(context, "reward_model", build)


def held_out_sentence(result: HeldOut) -> str:
    """Accuracy and its interval, and what else is known."""
    ties = f"; tie parameter {result.tie_parameter:z.3f}" if result.tie_parameter is not None else ""
    heads = f"; mean standard deviation over heads of a difference {result.head_std:z.3f}" if result.head_std is not None else ""
    level = f", {result.num_pairs - result.num_decided} further pairs are ties" if result.num_pairs > result.num_decided else ""
    over = told_over(result.num_decided, "pairs", result.num_prompts, result.effective_pairs)
    return (
        f"held-out accuracy {result.accuracy:z.3f} [{result.low:z.3f}, {result.high:z.3f}] "
        f"(95 % Wilson interval over {over}, none of them trained on{level}){ties}{heads}"
    )


def demonstrated_sentence(prepared: PreparedGroups, demonstrated: str) -> str:
    """What the held-out figures owe to the fine-tuning of the start, which may have read answers to the same prompts; "" for nothing."""
    held, known = {hash_of_key(group.key) for group in prepared.held_out}, set(demonstrated.split())
    if not held & known:
        return ""
    return (
        f"{len(held & known)} of the {len(held)} held-out prompts are prompts of [sft]: the start has learned answers to them, so that "
        "accuracy on new prompts may be lower"
    )


def normalise_scores(model: RewardModel, result: HeldOut, config: RewardModelConfig, compute: Compute) -> str:
    """Give the scores the mean and scale that ``config.normalise`` asks for; says in words what was done.

    Ziegler et al. 2019: mean 0 and std 1; InstructGPT: mean 0 on demonstrations. The offset is stored beside the model.
    """
    to, reference = config.normalise.to, config.normalise.reference
    mean, std, what = result.score_mean, result.score_std, f"the answers of {result.num_pairs} held-out pairs"
    if reference is not None and to != "none":
        examples = _limited(demonstration_examples(load_demonstrations(reference), model.format, reference.path), model, reference.path)
        scores = score_examples(model, examples, compute)
        mean = sum(scores) / len(scores)
        std = (sum((score - mean) ** 2 for score in scores) / max(len(scores) - 1, 1)) ** 0.5
        what = f"{len(scores)} reference answers of {reference.path}"
    if to == "none":
        return "scores are as learned, in log-odds; offset 0"
    if to == "mean_std" and not std > 0:
        return "all scores are equal: they are left as they are"
    model.normalise(mean, std if to == "mean_std" else 1.0)
    unit = f"a unit is {model.log_odds_per_unit:z.3f} in log-odds"
    return f"scores have mean 0{' and std 1' if to == 'mean_std' else ''} on {what}: offset {model.score_offset:z.3f} is added, {unit}"


def _set_limit(model: RewardModel, config: RewardModelConfig) -> None:
    model.max_length = min(config.max_length, model.max_length)
    model.truncation = Truncation(config.truncation)


def _limited(examples: Sequence[TokenizedExample], model: RewardModel, source: str) -> list[TokenizedExample]:
    """Reference answers by the rule that the model keeps."""
    if model.truncation is Truncation.ERROR:
        lengths = {number: len(example.token_ids) for number, example in enumerate(examples, start=1)}
        long = {number: length for number, length in lengths.items() if length > model.max_length}
        told = {number: f"{length} tokens, the reward model takes {model.max_length}." for number, length in long.items()}
        refuse_bad_rows(told, source, len(examples))
    return [cut_example(example, model.max_length, Cut(model.truncation)) for example in examples]


def _fitted_to(model: RewardModel, prepared: PreparedGroups, result: HeldOut, sha256: str, compute: Compute) -> dict[str, Any]:
    """What tells later whether a text is like those of the training: lengths of training texts, scores (offset added) of held-out ones."""
    lengths = sorted(len(answer.token_ids) for group in prepared.training for answer in group.answers)
    scores = sorted(score_examples(model, [answer for group in prepared.held_out for answer in group.answers], compute))
    return {
        "data_sha256": sha256,
        "training_pairs": sum(len(group.pairs) for group in prepared.training),
        "held_out_accuracy": result.accuracy,
        "tokens": [lengths[0], lengths[-1]],
        "prompts": " ".join(sorted({hash_of_key(group.key) for group in prepared.training})),
        "scores": [scores[0] + model.score_offset, scores[-1] + model.score_offset],
    }
