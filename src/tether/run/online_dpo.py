"""Online DPO: from scored rollouts to an updated policy through pairs of the policy's own answers (2402.04792).

    best and worst answer of each group -> old and reference passes -> epochs of minibatches of pairs -> perhaps a new reference

A ``Learner`` like ``run.learner.OnlineLearner``. Axes: B sequences, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tether.algorithms.direct_preference import LossSum, PairSums, PreferenceSpec, pair_loss, sequence_sums
from tether.algorithms.experience import Experience, as_groups
from tether.backends.compute import Compute
from tether.backends.local import StepReport
from tether.backends.memory_guard import one_pass
from tether.config import OnlineDPOConfig
from tether.data.batches import TextBatch
from tether.data.packing import minibatches
from tether.errors import ConfigError
from tether.maths.masked import NonFiniteError, masked_sum
from tether.metrics import MetricSums
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.run.describe import describe_sampled, warn_of_negative_kl
from tether.run.direct import describe_preference
from tether.run.evidence import text_tensors
from tether.run.learner import check_first_ratio, packed_rows
from tether.run.rounds import RoundLearner
from tether.run.rows import RolloutRow, drawn_logprobs, sampler_logprobs
from tether.state import State

__all__ = ["Chosen", "OnlineDPOLearner", "best_against_worst"]

_Passes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Chosen:
    """Row numbers of the pairs of a round, the groups that gave none, and the mean reward gap of the pairs."""

    pairs: tuple[tuple[int, int], ...]
    num_groups: int
    gaps: tuple[float, ...]


def best_against_worst(rows: Sequence[RolloutRow], min_gap: float) -> Chosen:
    """One pair a group: its best answer against its worst, the earlier one where rewards are equal.

    A group gives none where the two differ by ``min_gap`` or less, are the same tokens, or where it has a single scored answer.
    Example: rewards a: 1, 0; b: 2, 2 and min_gap 0 -> one pair of two groups.
    """
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.group, []).append(number)
    pairs: list[tuple[int, int]] = []
    for members in groups.values():
        best, worst = max(members, key=lambda n: rows[n].score), min(members, key=lambda n: rows[n].score)
        if rows[best].score - rows[worst].score > min_gap and rows[best].response_ids != rows[worst].response_ids:
            pairs.append((best, worst))
    return Chosen(tuple(pairs), len(groups), tuple(rows[best].score - rows[worst].score for best, worst in pairs))


@dataclass(frozen=True)
class _Plan:
    """Pairs of every pass, and the rows in no pair. Fixed before the old log-probabilities are computed, in the passes of the first
    update, so that the two can be compared."""

    epochs: tuple[tuple[_Passes, ...], ...]  # epoch -> minibatch -> microbatch -> pairs
    others: _Passes  # microbatch -> rows


class OnlineDPOLearner(RoundLearner[OnlineDPOConfig]):
    """Online DPO on one policy. State: that of the rounds, and the reference where it is refreshed.

    A round: pairs, old and reference passes, epochs of minibatches of pairs. Without a pair nothing is updated.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Reference,
        config: OnlineDPOConfig,
        compute: Compute,
        *,
        seed: int = 0,
        total_rounds: int | None = None,
        folder: Path | None = None,
        stage: str = "",
    ) -> None:
        if config.refresh_reference and reference.follows_policy:
            raise ConfigError(
                f"refresh_reference = {config.refresh_reference}: the reference is the policy with its adapters off, which never changes; "
                "set 0, or train without LoRA"
            )
        super().__init__(policy, reference, config, compute, seed=seed, total_rounds=total_rounds, folder=folder, stage=stage)
        self._spec = PreferenceSpec.online(config)

    @property
    def beta(self) -> float:
        """Strength of the tether (per nat)."""
        return self.config.beta

    def _learn(self, rows: Sequence[RolloutRow], texts: TextBatch, part_weights: Sequence[float]) -> MetricSums:
        metrics = MetricSums()
        started = time.perf_counter()
        chosen = best_against_worst(rows, self.config.min_gap)
        metrics.add("tie_share", float(chosen.num_groups - len(chosen.pairs)), float(chosen.num_groups))
        plan = self._plan(texts, chosen)
        experience = self._experience(rows, texts, plan, chosen, metrics)
        metrics.add("annotate_seconds", time.perf_counter() - started)
        describe_sampled(metrics, experience, sampler_logprobs(experience.old_logprobs_BT, texts.response_mask_BT, rows), self.beta)
        warn_of_negative_kl(experience)
        started = time.perf_counter()
        if chosen.pairs:
            metrics.add("pair_gap", sum(chosen.gaps), len(chosen.gaps))
            self._update(texts, experience, plan, chosen, metrics)
        else:
            metrics.update({"optimiser_steps": 0.0, "skipped_steps": 0.0})
        metrics.add("update_seconds", time.perf_counter() - started)
        return metrics

    def _round_ended(self) -> None:
        """Iterative DPO: after so many rounds the policy of this moment becomes the reference."""
        if self.config.refresh_reference and self._round % self.config.refresh_reference == 0:
            self.reference = Reference.frozen_copy(self.policy, self.compute.dtype)

    def state(self) -> State:
        """That of the rounds, and the weights of a reference that is refreshed."""
        rounds = super().state()
        kept = self.reference.weights() if self.config.refresh_reference else {}
        return State({**rounds.tensors, **{f"reference/{name}": tensor for name, tensor in kept.items()}}, rounds.values)

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        kept = {name.removeprefix("reference/"): tensor for name, tensor in state.tensors.items() if name.startswith("reference/")}
        super().restore(State({name: t for name, t in state.tensors.items() if not name.startswith("reference/")}, state.values))
        if self.config.refresh_reference:
            self.reference.load_weights(kept)

    # -- the round's frozen facts --------------------------------------------------------------------------------------------

    def _plan(self, texts: TextBatch, chosen: Chosen) -> _Plan:
        generator = self._shuffler()
        lengths = texts.lengths()
        pair_lengths = _pair_lengths(lengths, chosen)
        budget = self.guard.memory.token_budget
        epochs = []
        for _ in range(self.config.epochs):
            steps = minibatches(len(pair_lengths), min(self.config.minibatches, max(1, len(pair_lengths))), generator)
            epochs.append(tuple(packed_rows(step, pair_lengths, max(budget // 2, 1)) for step in steps))
        paired = {row for pair in chosen.pairs for row in pair}
        return _Plan(tuple(epochs), packed_rows([r for r in range(len(lengths)) if r not in paired], lengths, budget))

    @torch.no_grad()
    def _experience(
        self, rows: Sequence[RolloutRow], texts: TextBatch, plan: _Plan, chosen: Chosen, metrics: MetricSums
    ) -> Experience:
        mask_BT = texts.response_mask_BT
        old_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
        ref_BT = old_BT.clone()
        in_pairs = [(micro, _sides(micro, chosen)) for step in plan.epochs[0] for micro in step]
        for units, micro in (*in_pairs, *((others, others) for others in plan.others)):
            part = texts.rows(micro)
            index, width = torch.tensor(micro, device=mask_BT.device), part.token_ids_BT.shape[1]
            with one_pass(units, part.token_ids_BT.numel()), self.compute.autocast():
                output = self.policy.forward_response(part, self.config.sampling.temperature, entropy=True)
                ref_BT[index, :width] = self.reference.logprobs(part, self.config.sampling.temperature)
            assert output.entropy_BT is not None
            old_BT[index, :width] = output.logprobs_BT
            metrics.add("entropy", float(masked_sum(output.entropy_BT, part.response_mask_BT)), float(part.response_mask_BT.sum()))
        return Experience(
            mask_BT,
            old_BT.new_tensor([row.score for row in rows]),
            as_groups([row.group for row in rows]).to(mask_BT.device),
            torch.tensor([row.terminated for row in rows], device=mask_BT.device),
            old_BT,
            ref_BT,
            drawn_logprobs_BT=drawn_logprobs(mask_BT, rows) if self.config.rollouts_ahead else None,
        )

    # -- the update ----------------------------------------------------------------------------------------------------------

    def _update(self, texts: TextBatch, experience: Experience, plan: _Plan, chosen: Chosen, metrics: MetricSums) -> None:
        pair_lengths, memory = _pair_lengths(texts.lengths(), chosen), self.guard.memory
        for number, step in enumerate(step for epoch in plan.epochs for step in epoch):

            def attempt(step: _Passes = step, first: bool = number == 0) -> None:
                fitting = tuple(part for micro in step for part in packed_rows(micro, pair_lengths, max(memory.token_budget // 2, 1)))
                report = self._optimiser_step(texts, experience, fitting, chosen, metrics, check_ratio=first)
                metrics.update({"grad_norm": report.grad_norm, "learning_rate": report.learning_rate})
                metrics.update({"skipped_steps": float(not report.applied), "optimiser_steps": float(report.applied)})
                self.guard.judge(report, self._round + 1, lambda: text_tensors(texts) | {"scores": experience.scores_B})

            if number == 0:
                attempt()  # where it does not fit the round begins again, old log-probabilities included
            else:
                memory.repeat(attempt, self.worker.discard)

    def _optimiser_step(
        self, texts: TextBatch, experience: Experience, step: _Passes, chosen: Chosen, metrics: MetricSums, *, check_ratio: bool
    ) -> StepReport:
        num_pairs = sum(len(micro) for micro in step)

        def one(micro: tuple[int, ...]) -> LossSum:
            rows = _sides(micro, chosen)
            with one_pass(micro, len(rows) * max(texts.rows(rows).lengths())):
                loss = self._microbatch(texts, experience, rows, metrics, check_ratio=check_ratio)
                self.worker.accumulate(loss.total / num_pairs)
            return loss.detached()

        try:
            losses = [one(micro) for micro in step]
        except NonFiniteError as error:
            return self.worker.refuse(str(error))
        describe_preference(metrics, losses)
        return self.worker.step()

    def _microbatch(
        self, texts: TextBatch, experience: Experience, rows: tuple[int, ...], metrics: MetricSums, *, check_ratio: bool
    ) -> LossSum:
        """Some pairs in one pass: all chosen rows first, then all rejected ones."""
        part, num = texts.rows(rows), len(rows) // 2
        with self.compute.autocast():
            logprobs_BT = self.policy.forward_response(part, self.config.sampling.temperature).logprobs_BT
        index, width = torch.tensor(rows, device=logprobs_BT.device), logprobs_BT.shape[1]
        if check_ratio:
            old_BT = experience.old_logprobs_BT[index, :width]
            check_first_ratio(logprobs_BT, old_BT, part.response_mask_BT, self.compute.dtype, metrics)
        both = sequence_sums(logprobs_BT, part.response_mask_BT)
        assert experience.ref_logprobs_BT is not None
        start_B = sequence_sums(experience.ref_logprobs_BT[index, :width], part.response_mask_BT).logprobs_B
        chosen = PairSums(both.logprobs_B[:num], both.lengths_B[:num])
        rejected = PairSums(both.logprobs_B[num:], both.lengths_B[num:])
        return pair_loss(chosen, rejected, start_B[:num], start_B[num:], self._spec)


def _pair_lengths(lengths: Sequence[int], chosen: Chosen) -> list[int]:
    """The longer side of every pair."""
    return [max(lengths[best], lengths[worst]) for best, worst in chosen.pairs]


def _sides(pairs: Sequence[int], chosen: Chosen) -> tuple[int, ...]:
    """Rows of these pairs: the chosen ones, then the rejected ones."""
    return (*(chosen.pairs[pair][0] for pair in pairs), *(chosen.pairs[pair][1] for pair in pairs))
