"""Direct preference optimisation on a file: one pass of the start over the data, then steps of a loss on pairs or judged answers.

    start sums (frozen, no graph) -> per step: sums of the policy -> loss sum / units of the step -> optimiser -> record -> watch

The start reads the rows in the very passes that the first epoch makes, so that implied rewards are exactly 0 before the first update (up
to rounding, where training needs smaller passes than reading did).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tether.algorithms.direct_preference import (
    LossSum,
    PairSums,
    PreferenceSpec,
    PreferenceStats,
    answer_loss,
    balanced_weights,
    pair_loss,
    sequence_sums,
)
from tether.backends.compute import Compute
from tether.backends.local import LocalWorker
from tether.backends.memory_guard import one_pass
from tether.clusters import effective_number, wilson_clusters
from tether.config import DirectConfig
from tether.data.batches import pad_examples
from tether.data.cursor import Cursor
from tether.data.judged import JudgedUnits
from tether.data.packing import microbatches
from tether.errors import DataError
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.run.displacement import DisplacementWatch
from tether.run.evidence import example_tensors
from tether.run.guard import StepGuard
from tether.run.keeper import NO_KEEPER, Keeper, Plain
from tether.run.recorder import Recorder
from tether.text.chat import TokenizedExample

__all__ = ["HeldOutPreference", "UnitSums", "describe_preference", "kto_weights_of", "num_steps", "start_sums", "train_direct", "unit_sums"]


@dataclass(frozen=True)
class HeldOutPreference:
    """Held-out units (pairs; kto: answers) before and after. ``low``, ``high``: 95 % Wilson interval of ``accuracy`` over ``num_prompts``
    prompts, for units of one prompt are not independent: ``effective_units`` independent ones would tell as much.

    Accuracy and margin are of implied rewards, so that before training, where all are 0, accuracy is one half for losses with a reference.
    ``*_change``: mean log pi - log pi_start of the answers, nats per sequence.
    """

    num_units: int
    accuracy_before: float
    accuracy: float
    low: float
    high: float
    margin_before: float
    margin: float
    chosen_change: float
    rejected_change: float
    num_prompts: int | None = None
    effective_units: float | None = None


@dataclass(frozen=True)
class UnitSums:
    """Summed log-probabilities of the two rows of N units, no graph."""

    first_N: Tensor
    second_N: Tensor

    def take(self, indices: Sequence[int]) -> UnitSums:
        """Of those units in that order."""
        index = torch.tensor(list(indices), device=self.first_N.device)
        return UnitSums(self.first_N[index], self.second_N[index])


def num_steps(num_units: int, config: DirectConfig) -> int:
    """Optimiser steps of the stage; the last batch of an epoch may be smaller."""
    return config.epochs * math.ceil(num_units / config.batch_size)


def kto_weights_of(units: JudgedUnits, config: DirectConfig) -> tuple[float, float]:
    """Weights of liked and disliked answers; (1, 1) for pairs. Raises DataError where one label is missing."""
    if units.liked is None:
        return 1.0, 1.0
    liked = sum(units.liked)
    if liked in (0, len(units)):
        found = "liked" if liked else "disliked"
        raise DataError(f"all {len(units)} answers to train on are {found}; kto needs both kinds: add the other")
    return config.kto_weights or balanced_weights(liked, len(units) - liked)


def train_direct(
    policy: Policy,
    units: JudgedUnits,
    held_out: JudgedUnits | None,
    config: DirectConfig,
    compute: Compute,
    recorder: Recorder,
    seed: int,
    keeper: Keeper = NO_KEEPER,
) -> HeldOutPreference | None:
    """Train ``policy`` in place; its weights at the call are the reference. Returns what held-out units say, if there are any."""
    spec, weights = PreferenceSpec.direct(config), kto_weights_of(units, config)
    worker = LocalWorker([policy], config.optim, recorder.num_steps)
    guard = StepGuard(compute, [policy], config.optim.max_skipped_steps, folder=recorder.folder, stage=recorder.stage)

    def fitting() -> Compute:
        return replace(compute, token_budget=guard.memory.token_budget)

    start = guard.memory.repeat(lambda: start_sums(policy, units, config.batch_size, fitting(), seed), worker.discard)
    held_start = None
    if held_out is not None:
        held_start = guard.memory.repeat(lambda: unit_sums(policy, held_out, fitting()), worker.discard)
    cursor, watch = Cursor(len(units), seed), DisplacementWatch()
    parts = {"worker": worker, "cursor": Plain(cursor.state, cursor.go_to), "guard": guard, "metrics": recorder, "displacement": watch}
    done = keeper.attach(parts)  # after the start was read: the weights may now become those of a checkpoint
    step_of = _Step(policy, worker, compute, spec, weights, guard)
    for step in range(done + 1, recorder.num_steps + 1):
        chosen = cursor.next_within_epoch(config.batch_size)
        metrics = step_of.run(step, units.take(chosen), start.take(chosen))
        recorder.step(step, metrics)
        if found := watch.see(metrics.get("chosen_logprob", math.nan), metrics.get("implied_margin", math.nan)):
            recorder.warning("displacement", step, str(found))
        keeper.after_step(step)
    if held_out is None or held_start is None:
        return None
    end = guard.memory.repeat(lambda: unit_sums(policy, held_out, fitting()), worker.discard)
    return _held_out(held_out, held_start, end, spec)


# -- the frozen start --------------------------------------------------------------------------------------------------------


def start_sums(policy: Policy, units: JudgedUnits, batch_size: int, compute: Compute, seed: int) -> UnitSums:
    """What the policy as it is now says of every unit, batch by batch in the order of the first epoch."""
    cursor = Cursor(len(units), seed)
    first_N = torch.zeros(len(units), device=compute.device)
    second_N = torch.zeros_like(first_N)
    while cursor.epoch == 0:
        batch = cursor.next_within_epoch(batch_size)
        sums = unit_sums(policy, units.take(batch), compute)
        first_N[batch], second_N[batch] = sums.first_N, sums.second_N
    return UnitSums(first_N, second_N)


@torch.no_grad()
def unit_sums(policy: Policy, units: JudgedUnits, compute: Compute) -> UnitSums:
    """Both rows of every unit without a graph, in the passes that an optimiser step over these units makes."""
    first_N = torch.zeros(len(units), device=compute.device)
    second_N = torch.zeros_like(first_N)
    if units.liked is None:
        for micro in _pair_passes(units, compute):
            part = units.take(micro)
            with one_pass(micro, _tokens(part.first, part.second)):
                chosen, rejected = _pair_sums(policy, part, compute)
            first_N[micro], second_N[micro] = chosen.logprobs_B, rejected.logprobs_B
    else:
        for rows, sums_N in ((units.first, first_N), (units.second, second_N)):
            for micro in _row_passes(rows, compute):
                sums_N[micro] = _one_side(policy, rows, micro, compute)
    return UnitSums(first_N, second_N)


# -- one optimiser step ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """The parts that every optimiser step uses."""

    policy: Policy
    worker: LocalWorker
    compute: Compute
    spec: PreferenceSpec
    weights: tuple[float, float]
    guard: StepGuard

    def run(self, number: int, units: JudgedUnits, start: UnitSums) -> dict[str, float]:
        """Optimiser step ``number`` over ``units``; its metrics."""
        started = time.perf_counter()

        def passes(metrics: MetricSums) -> None:
            losses = self._pairs(units, start) if units.liked is None else self._answers(units, start, metrics)
            describe_preference(metrics, losses)

        def batch() -> dict[str, Tensor]:
            pad_id = self.policy.format.pad_id
            rows = example_tensors(units.first, pad_id, "first_") | example_tensors(units.second, pad_id, "second_")
            return rows | {"start_first": start.first_N, "start_second": start.second_N}

        metrics = self.guard.step(number, self.worker, passes, batch)
        tokens = sum(len(row.token_ids) for row in (*units.first, *units.second))
        metrics.add("tokens_per_second", tokens / (time.perf_counter() - started))
        return metrics.means()

    def _pairs(self, units: JudgedUnits, start: UnitSums) -> list[LossSum]:
        def one(micro: Sequence[int]) -> LossSum:
            part, known = units.take(micro), start.take(micro)
            with one_pass(micro, _tokens(part.first, part.second)):
                chosen, rejected = _pair_sums(self.policy, part, self.compute)
                loss = pair_loss(chosen, rejected, known.first_N, known.second_N, self.spec)
                self.worker.accumulate(loss.total / len(units))
            return loss.detached()

        return [one(micro) for micro in _pair_passes(units, self._fitting())]

    def _answers(self, units: JudgedUnits, start: UnitSums, metrics: MetricSums) -> list[LossSum]:
        """KTO: the reference point once, from all mismatched rows of the step, then the answers."""
        assert units.liked is not None
        mismatched_N = self._mismatched(units) - start.second_N
        metrics.add("kto_z0", max(0.0, float(mismatched_N.mean())))

        def one(micro: Sequence[int]) -> LossSum:
            part = units.take(micro)
            with one_pass(micro, _tokens(part.first)):
                sums = _row_sums(self.policy, part.first, self.compute)
                liked_B = torch.tensor(part.liked, device=self.compute.device)
                loss = answer_loss(sums, start.take(micro).first_N, liked_B, mismatched_N, self.spec, self.weights)
                self.worker.accumulate(loss.total / len(units))
            return loss.detached()

        return [one(micro) for micro in _row_passes(units.first, self._fitting())]

    @torch.no_grad()
    def _mismatched(self, units: JudgedUnits) -> Tensor:
        sums_N = torch.zeros(len(units), device=self.compute.device)
        for micro in _row_passes(units.second, self._fitting()):
            sums_N[micro] = _one_side(self.policy, units.second, micro, self.compute)
        return sums_N

    def _fitting(self) -> Compute:
        """The machine with the passes that memory allows."""
        return replace(self.compute, token_budget=self.guard.memory.token_budget)


def describe_preference(metrics: MetricSums, losses: Sequence[LossSum]) -> PreferenceStats:
    """The numbers of one optimiser step: sums over its microbatches, divided once. Returns the summed statistics."""
    stats = losses[0].stats
    for loss in losses[1:]:
        stats = stats + loss.stats
    metrics.add("loss", sum(float(loss.total.detach()) for loss in losses), stats.num_units)
    metrics.add("implied_accuracy", stats.correct, stats.num_units)
    if stats.num_chosen:
        metrics.add("implied_reward_chosen", stats.reward_chosen, stats.num_chosen)
        metrics.add("chosen_logprob", stats.chosen_change, stats.num_chosen)
    if stats.num_rejected:
        metrics.add("implied_reward_rejected", stats.reward_rejected, stats.num_rejected)
        metrics.add("rejected_logprob", stats.rejected_change, stats.num_rejected)
    if not math.isnan(stats.margin):
        metrics.add("implied_margin", stats.margin)
    return stats


# -- passes through the model ------------------------------------------------------------------------------------------------


def _pair_passes(units: JudgedUnits, compute: Compute) -> list[list[int]]:
    """Pairs per pass; both sides go together, so that the budget holds for two rows a pair."""
    lengths = [max(len(one.token_ids), len(two.token_ids)) for one, two in zip(units.first, units.second, strict=True)]
    return microbatches(lengths, max(compute.token_budget // 2, 1))


def _row_passes(rows: Sequence[TokenizedExample], compute: Compute) -> list[list[int]]:
    return microbatches([len(row.token_ids) for row in rows], compute.token_budget)


def _tokens(*sides: Sequence[TokenizedExample]) -> int:
    """Padded tokens of a pass over these rows."""
    rows = [len(row.token_ids) for side in sides for row in side]
    return len(rows) * max(rows)


def _row_sums(policy: Policy, rows: Sequence[TokenizedExample], compute: Compute) -> PairSums:
    batch = pad_examples(rows, policy.format.pad_id).to(compute.device)
    with compute.autocast():
        logprobs_BT = policy.forward_response(batch, 1.0).logprobs_BT
    return sequence_sums(logprobs_BT, batch.response_mask_BT)


def _one_side(policy: Policy, rows: Sequence[TokenizedExample], micro: Sequence[int], compute: Compute) -> Tensor:
    """Summed log-probabilities of a pass over single rows that makes no gradient."""
    part = [rows[index] for index in micro]
    with one_pass(micro, _tokens(part)):
        return _row_sums(policy, part, compute).logprobs_B


def _pair_sums(policy: Policy, units: JudgedUnits, compute: Compute) -> tuple[PairSums, PairSums]:
    """Both sides in one pass: chosen rows first, then rejected."""
    both, num = _row_sums(policy, [*units.first, *units.second], compute), len(units)
    return PairSums(both.logprobs_B[:num], both.lengths_B[:num]), PairSums(both.logprobs_B[num:], both.lengths_B[num:])


# -- held out ----------------------------------------------------------------------------------------------------------------


def _held_out(units: JudgedUnits, start: UnitSums, end: UnitSums, spec: PreferenceSpec) -> HeldOutPreference:
    before, after = _stats(units, start, start, spec), _stats(units, end, start, spec)
    right_N = _right(units, start, end, spec)
    interval = wilson_clusters(right_N, units.keys)
    return HeldOutPreference(
        len(units),
        before.correct / before.num_units,
        after.correct / after.num_units,
        interval.low,
        interval.high,
        before.margin,
        after.margin,
        after.chosen_change / after.num_chosen if after.num_chosen else math.nan,
        after.rejected_change / after.num_rejected if after.num_rejected else math.nan,
        len(set(units.keys)),
        effective_number(right_N, units.keys),
    )


def _right(units: JudgedUnits, start: UnitSums, end: UnitSums, spec: PreferenceSpec) -> list[float]:
    """1, 0 or one half of every unit, as ``correct`` counts them; the reference point of kto stays that of all units."""
    mismatched_N = end.second_N - start.second_N
    return [_stats(units.take([n]), end.take([n]), start.take([n]), spec, mismatched_N).correct for n in range(len(units))]


@torch.no_grad()
def _stats(
    units: JudgedUnits, sums: UnitSums, start: UnitSums, spec: PreferenceSpec, mismatched_N: Tensor | None = None
) -> PreferenceStats:
    def side(sums_N: Tensor, rows: Sequence[TokenizedExample]) -> PairSums:
        return PairSums(sums_N, sums_N.new_tensor([row.num_live for row in rows]))

    first = side(sums.first_N, units.first)
    if units.liked is None:
        return pair_loss(first, side(sums.second_N, units.second), start.first_N, start.second_N, spec).stats
    liked_N = torch.tensor(units.liked, device=sums.first_N.device)
    mismatched_N = sums.second_N - start.second_N if mismatched_N is None else mismatched_N
    return answer_loss(first, start.first_N, liked_N, mismatched_N, spec).stats
