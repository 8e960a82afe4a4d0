"""Bradley-Terry reward model: train on comparisons, measure on prompts that were held out."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from tether.backends.compute import Compute
from tether.backends.local import LocalWorker
from tether.backends.memory_guard import one_pass
from tether.config import RewardModelConfig
from tether.data.batches import pad_examples
from tether.data.cursor import Cursor
from tether.data.lengths import TokenizedPair
from tether.data.packing import microbatches
from tether.errors import DataError
from tether.maths.reward_loss import bt_loss, pair_metrics
from tether.metrics import MetricSums
from tether.models.reward import RewardModel
from tether.run.evidence import example_tensors
from tether.run.guard import StepGuard
from tether.run.keeper import NO_KEEPER, Keeper, Plain
from tether.run.recorder import Recorder
from tether.stats import wilson

__all__ = ["HeldOut", "num_steps", "split_by_prompt", "train_reward_model"]

T = TypeVar("T")


@dataclass(frozen=True)
class HeldOut:
    """Accuracy on held-out pairs with its Wilson interval; calibration error on confidence in [.5, 1]."""

    num_pairs: int
    accuracy: float
    low: float
    high: float
    nll: float
    ece: float
    mean_margin: float
    score_mean: float
    score_std: float


def num_steps(num_pairs: int, config: RewardModelConfig) -> int:
    """Optimiser steps of the stage."""
    return config.epochs * math.ceil(num_pairs / config.batch_size)


def split_by_prompt(pairs: Sequence[T], keys: Sequence[str], share: float, seed: int) -> tuple[list[T], list[T]]:
    """(training, held out): the prompts with the smallest hashes of (seed, prompt) are held out, with all their pairs."""

    def rank(key: str) -> bytes:
        return hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=8).digest()

    ordered = sorted(set(keys), key=rank)
    held = set(ordered[: max(1, round(share * len(ordered)))])
    if len(held) == len(ordered):
        raise DataError(f"the comparisons have {len(ordered)} distinct prompt(s): at least 2 are needed to hold some out")
    training = [pair for pair, key in zip(pairs, keys, strict=True) if key not in held]
    return training, [pair for pair, key in zip(pairs, keys, strict=True) if key in held]


def train_reward_model(
    model: RewardModel,
    pairs: Sequence[TokenizedPair],
    held_out: Sequence[TokenizedPair],
    config: RewardModelConfig,
    compute: Compute,
    recorder: Recorder,
    seed: int,
    keeper: Keeper = NO_KEEPER,
) -> HeldOut:
    """Train ``model`` in place, measure it on ``held_out``, and give its scores mean 0 and std 1 there (Ziegler et al. 2019)."""
    worker = LocalWorker([model], config.optim, recorder.num_steps, head_names=("score",), head_learning_rate=config.head_learning_rate)
    cursor = Cursor(len(pairs), seed)
    guard = StepGuard(compute, [model], config.optim.max_skipped_steps, folder=recorder.folder, stage=recorder.stage)
    done = keeper.attach({"worker": worker, "cursor": Plain(cursor.state, cursor.go_to), "guard": guard, "metrics": recorder})
    for step in range(done + 1, recorder.num_steps + 1):
        chosen = cursor.next_within_epoch(config.batch_size)
        recorder.step(step, _step(model, [pairs[index] for index in chosen], config, worker, compute, guard, step))
        keeper.after_step(step)
    result = guard.memory.repeat(
        lambda: measure(model, held_out, replace(compute, token_budget=guard.memory.token_budget)), worker.discard
    )
    if result.score_std > 0:
        model.normalise(result.score_mean, result.score_std)
    return result


def _step(
    model: RewardModel,
    pairs: Sequence[TokenizedPair],
    config: RewardModelConfig,
    worker: LocalWorker,
    compute: Compute,
    guard: StepGuard,
    number: int,
) -> dict[str, float]:
    started = time.perf_counter()
    lengths = [max(len(p.chosen.token_ids), len(p.rejected.token_ids)) for p in pairs]

    def passes(metrics: MetricSums) -> None:
        for micro in microbatches(lengths, max(guard.memory.token_budget // 2, 1)):
            part = [pairs[index] for index in micro]
            with one_pass(micro, _tokens(part)):
                chosen_B, rejected_B = _scores(model, part, compute)
                margins_B = chosen_B.new_tensor([p.margin for p in part])
                losses_B = bt_loss(chosen_B, rejected_B, margins_B, config.centering, config.label_smoothing)
                worker.accumulate(losses_B.sum() / len(pairs))
            gap_B = (chosen_B - rejected_B).detach()
            metrics.add("loss", float(losses_B.detach().sum()), len(part))
            metrics.add("pair_accuracy", float((gap_B > 0).sum()) + 0.5 * float((gap_B == 0).sum()), len(part))
            metrics.add("pair_margin", float(gap_B.sum()), len(part))
            metrics.add("score_mean", float((chosen_B + rejected_B).detach().sum()), 2 * len(part))

    def batch() -> dict[str, torch.Tensor]:
        pad_id = model.format.pad_id
        chosen = example_tensors([p.chosen for p in pairs], pad_id, "chosen_")
        return chosen | example_tensors([p.rejected for p in pairs], pad_id, "rejected_")

    metrics = guard.step(number, worker, passes, batch)
    metrics.add("tokens_per_second", 2 * sum(lengths) / (time.perf_counter() - started))
    return metrics.means()


def _tokens(pairs: Sequence[TokenizedPair]) -> int:
    """Padded tokens of a pass over both sides."""
    return 2 * len(pairs) * max(max(len(p.chosen.token_ids), len(p.rejected.token_ids)) for p in pairs)


def _scores(model: RewardModel, pairs: Sequence[TokenizedPair], compute: Compute) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of both sides in one pass: chosen rows first, then rejected."""
    examples = [p.chosen for p in pairs] + [p.rejected for p in pairs]
    batch = pad_examples(examples, model.format.pad_id).to(compute.device)
    with compute.autocast():
        scores_2B = model.score_batch(batch).float()
    return scores_2B[: len(pairs)], scores_2B[len(pairs) :]


@torch.no_grad()
def measure(model: RewardModel, pairs: Sequence[TokenizedPair], compute: Compute) -> HeldOut:
    """Held-out figures of the raw scores; a tie counts one half."""
    lengths = [max(len(p.chosen.token_ids), len(p.rejected.token_ids)) for p in pairs]
    chosen, rejected = [], []
    for micro in microbatches(lengths, max(compute.token_budget // 2, 1)):
        part = [pairs[index] for index in micro]
        with one_pass(micro, _tokens(part)):
            c_B, r_B = _scores(model, part, compute)
        chosen.append(c_B)
        rejected.append(r_B)
    chosen_B, rejected_B = torch.cat(chosen), torch.cat(rejected)
    figures = pair_metrics(chosen_B, rejected_B, 10)
    interval = wilson(round(figures.accuracy * len(pairs)), len(pairs))
    both_2B = torch.cat([chosen_B, rejected_B])
    return HeldOut(
        len(pairs),
        figures.accuracy,
        interval.low,
        interval.high,
        figures.nll,
        figures.ece,
        figures.mean_margin,
        float(both_2B.mean()),
        float(both_2B.std()),
    )
