"""Supervised fine-tuning: the mean cross-entropy over response tokens, one global denominator per optimiser step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from tether.backends.compute import Compute
from tether.backends.local import LocalWorker
from tether.backends.memory_guard import one_pass
from tether.config import SFTConfig
from tether.data.batches import pad_examples
from tether.data.cursor import Cursor
from tether.data.packing import microbatches
from tether.errors import DataError
from tether.maths.masked import masked_sum, require_finite
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.run.evidence import text_tensors
from tether.run.guard import StepGuard
from tether.run.keeper import NO_KEEPER, Keeper, Plain
from tether.run.recorder import Recorder
from tether.text.chat import TokenizedExample

__all__ = ["num_steps", "sft"]


def num_steps(num_examples: int, config: SFTConfig) -> int:
    """Optimiser steps of the stage; the last batch of an epoch may be smaller."""
    return config.epochs * math.ceil(num_examples / config.batch_size)


def sft(
    policy: Policy,
    examples: Sequence[TokenizedExample],
    config: SFTConfig,
    compute: Compute,
    recorder: Recorder,
    seed: int,
    keeper: Keeper = NO_KEEPER,
) -> dict[str, float]:
    """Train ``policy`` in place on tokenised demonstrations; returns the metrics of the last step."""
    if not examples:
        raise DataError("no demonstration is left to train on: check sft.max_length and the data file")
    worker = LocalWorker([policy], config.optim, recorder.num_steps)
    cursor = Cursor(len(examples), seed)
    guard = StepGuard(compute, [policy], config.optim.max_skipped_steps, folder=recorder.folder, stage=recorder.stage)
    done = keeper.attach({"worker": worker, "cursor": Plain(cursor.state, cursor.go_to), "guard": guard, "metrics": recorder})
    for step in range(done + 1, recorder.num_steps + 1):
        chosen = cursor.next_within_epoch(config.batch_size)
        recorder.step(step, _step(policy, [examples[index] for index in chosen], worker, compute, guard, step))
        keeper.after_step(step)
    return recorder.last


def _step(
    policy: Policy, examples: Sequence[TokenizedExample], worker: LocalWorker, compute: Compute, guard: StepGuard, number: int
) -> dict[str, float]:
    started = time.perf_counter()
    batch = pad_examples(examples, policy.format.pad_id).to(compute.device)
    num_tokens = float(batch.response_mask_BT.sum())
    lengths = batch.attention_mask_BT.sum(-1).tolist()

    def one(micro: Sequence[int], metrics: MetricSums) -> None:
        part = batch.rows(micro)
        with one_pass(micro, part.token_ids_BT.numel()):
            with compute.autocast():
                logprobs_BT = policy.forward_response(part, 1.0).logprobs_BT
            require_finite("logprobs", logprobs_BT, part.response_mask_BT)
            loss_sum = -masked_sum(logprobs_BT, part.response_mask_BT)
            worker.accumulate(loss_sum / num_tokens)
        metrics.add("loss", float(loss_sum.detach()), float(part.response_mask_BT.sum()))

    def passes(metrics: MetricSums) -> None:
        for micro in microbatches(lengths, guard.memory.token_budget):
            one(micro, metrics)

    metrics = guard.step(number, worker, passes, lambda: text_tensors(batch))
    metrics.add("tokens_per_second", sum(lengths) / (time.perf_counter() - started))
    return metrics.means()
