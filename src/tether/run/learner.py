"""From scored rollouts to an updated policy: the half of an online step that trains.

``run.rl`` collects and scores, then calls :meth:`OnlineLearner.learn`; ``tether.update_policy`` calls the same method with ids and
scores that came from anywhere. Axes: B sequences, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tether.algorithms.advantages import annotate
from tether.algorithms.experience import Experience, as_groups
from tether.algorithms.kl_control import KLController
from tether.algorithms.policy_gradient import LossSum, OnlineConfig, StepCounts, corrects_sampler, policy_loss, step_counts
from tether.backends.compute import Compute
from tether.backends.local import StepReport
from tether.backends.memory_guard import one_pass
from tether.config import ActorCriticConfig
from tether.data.batches import PolicyBatch, TextBatch
from tether.data.packing import microbatches, minibatches
from tether.errors import RatioError
from tether.maths.kl import exceeds_target_kl
from tether.maths.masked import NonFiniteError, masked_sum, require_finite
from tether.metrics import MetricSums
from tether.models.policy import Policy, ResponseOutput
from tether.models.reference import Reference
from tether.models.value import Critic
from tether.run.describe import describe_round, describe_step, sampled_kl, warn_of_negative_kl
from tether.run.evidence import text_tensors
from tether.run.rounds import RoundLearner
from tether.run.rows import RolloutRow, drawn_logprobs, part_tensors, policy_batch, sampler_logprobs
from tether.state import State

__all__ = ["RATIO_TOLERANCE", "OnlineLearner", "check_first_ratio", "packed_rows"]

# Largest |new - old| log-probability (nats) allowed before the first update of a round. Both passes run the same microbatches
# through the same weights, so float32 differs by nothing or by rounding; bfloat16 may round a kernel's sums differently.
RATIO_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class _Plan:
    """Which rows make an optimiser step, and which of those one pass: fixed before the old log-probabilities are computed, so that the
    first pass of the update repeats exactly the computation that made them."""

    epochs: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]  # epoch -> minibatch -> microbatch -> rows
    lengths: Sequence[int]  # columns of each row
    prompts: Sequence[Hashable]  # what rows of one prompt have in common


class OnlineLearner(RoundLearner[OnlineConfig]):
    """Any algorithm over the policy-gradient function, on one policy. State: that of the rounds, and beta.

    A round: old, reference and value passes (each where something reads it); advantages; epochs of minibatches; the KL controller.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Reference,
        config: OnlineConfig,
        compute: Compute,
        *,
        critic: Critic | None = None,
        seed: int = 0,
        total_rounds: int | None = None,
        folder: Path | None = None,
        stage: str = "",
    ) -> None:
        super().__init__(
            policy,
            reference,
            config,
            compute,
            beside=[] if critic is None else [critic],
            head_names=("value_head",) if critic is None else ("value_head", "critic"),
            head_learning_rate=config.value_learning_rate if isinstance(config, ActorCriticConfig) else None,
            seed=seed,
            total_rounds=total_rounds,
            folder=folder,
            stage=stage,
        )
        self.critic = critic
        self.controller = KLController.from_config(config.kl)
        self.old_from_update = _reads_policy_once(config)
        """Whether the old log-probabilities of a round are those of its one update, which saves a pass."""

    def _learn(self, rows: Sequence[RolloutRow], texts: TextBatch, part_weights: Sequence[float]) -> MetricSums:
        metrics = MetricSums()
        started = time.perf_counter()
        plan = self._plan(texts, [row.query_ids for row in rows])
        experience = self._experience(rows, texts, plan, metrics, part_weights)
        annotated = annotate(experience, self.config, self.controller.beta)
        batch = policy_batch(texts, experience, annotated, rows, needs_sampler=corrects_sampler(self.config.sampler_correction))
        metrics.add("annotate_seconds", time.perf_counter() - started)
        started = time.perf_counter()
        self._update(batch, plan, metrics)
        metrics.add("update_seconds", time.perf_counter() - started)
        told_BT = sampler_logprobs(experience.old_logprobs_BT, texts.response_mask_BT, rows)
        describe_round(metrics, experience, annotated, told_BT, self.controller.beta)
        if experience.ref_logprobs_BT is not None:
            warn_of_negative_kl(experience)
            self._advance_controller(experience)
        return metrics

    @property
    def beta(self) -> float:
        """Strength of the tether in force (reward per nat)."""
        return self.controller.beta

    def state(self) -> State:
        """That of the rounds, and beta (the reference is the start, and never changes)."""
        rounds = super().state()
        return State(rounds.tensors, {**rounds.values, "beta": self.controller.beta})

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        super().restore(state)
        self.controller = replace(self.controller, beta=float(state.values["beta"]))

    # -- the round's frozen facts --------------------------------------------------------------------------------------------

    def _plan(self, texts: TextBatch, prompts: Sequence[Hashable]) -> _Plan:
        generator = self._shuffler()
        lengths = texts.lengths()
        epochs: list[tuple[tuple[tuple[int, ...], ...], ...]] = []
        for _ in range(self.config.epochs):
            steps: list[tuple[tuple[int, ...], ...]] = []
            for step_rows in minibatches(len(lengths), min(self.config.minibatches, len(lengths)), generator):
                steps.append(packed_rows(step_rows, lengths, self.guard.memory.token_budget, prompts))
            epochs.append(tuple(steps))
        return _Plan(tuple(epochs), lengths, prompts)

    @torch.no_grad()
    def _experience(
        self, rows: Sequence[RolloutRow], texts: TextBatch, plan: _Plan, metrics: MetricSums, part_weights: Sequence[float]
    ) -> Experience:
        mask_BT = texts.response_mask_BT
        old_BT = torch.zeros(mask_BT.shape, dtype=torch.float32, device=mask_BT.device)
        ref_BT = old_BT.clone() if self.config.kl.reference_pass else None
        values_BT = old_BT.clone()
        bootstrap_B = old_BT.new_zeros(len(rows))
        with_values = isinstance(self.config, ActorCriticConfig)
        for micro in (micro for step in plan.epochs[0] for micro in step):
            index = torch.tensor(micro, device=mask_BT.device)
            part = texts.rows(micro)
            width = part.token_ids_BT.shape[1]
            with one_pass(micro, part.token_ids_BT.numel()):
                if ref_BT is not None:
                    with self.compute.autocast():
                        ref_BT[index, :width] = self.reference.logprobs(part, self.config.sampling.temperature)
                if self.old_from_update:
                    continue
                output = self._forward(part, entropy=True)
                require_finite("old_logprobs", output.logprobs_BT, part.response_mask_BT)
            _add_entropy(metrics, output, part)
            old_BT[index, :width] = output.logprobs_BT
            if with_values:
                assert output.values_BT is not None
                assert output.end_values_B is not None
                values_BT[index, :width] = output.values_BT
                cut_B = torch.tensor([not rows[row].terminated for row in micro], device=mask_BT.device)
                bootstrap_B[index] = torch.where(cut_B, output.end_values_B, 0.0)
        parts_BK, weights_K = part_tensors(rows, part_weights, bootstrap_B)
        baselines = [row.baseline_score for row in rows]
        return Experience(
            mask_BT,
            bootstrap_B.new_tensor([row.score for row in rows]),
            as_groups([row.group for row in rows]).to(mask_BT.device),
            torch.tensor([row.terminated for row in rows], device=mask_BT.device),
            old_BT,
            ref_BT,
            values_BT if with_values else None,
            bootstrap_B if with_values else None,
            None if None in baselines else bootstrap_B.new_tensor(baselines),
            parts_BK,
            weights_K,
            drawn_logprobs(mask_BT, rows) if self.config.rollouts_ahead else None,
        )

    @property
    def _pretrains_value(self) -> bool:
        """True in the first rounds, where only the value function learns."""
        return isinstance(self.config, ActorCriticConfig) and self._round < self.config.value_pretrain_steps

    def _forward(self, part: TextBatch, *, entropy: bool = False) -> ResponseOutput:
        """One pass of the policy, and of the critic where it is a model of its own; values whenever PPO needs them."""
        shared = isinstance(self.config, ActorCriticConfig) and self.critic is None
        with self.compute.autocast():
            output = self.policy.forward_response(part, self.config.sampling.temperature, entropy=entropy, values=shared)
            if self.critic is None:
                return output
            values_BT, end_values_B = self.critic.forward_values_and_ends(part)
            return replace(output, values_BT=values_BT, end_values_B=end_values_B)

    # -- the update ----------------------------------------------------------------------------------------------------------

    def _update(self, batch: PolicyBatch, plan: _Plan, metrics: MetricSums) -> None:
        stopped = False
        for number, step in enumerate(step for epoch in plan.epochs for step in epoch):
            go_on = self._try_step(batch, step, metrics) if number == 0 else self._fitted_step(batch, step, plan, metrics)
            if stopped := not go_on:
                break
        metrics.add("stopped_early", float(stopped))

    def _try_step(self, batch: PolicyBatch, step: tuple[tuple[int, ...], ...], metrics: MetricSums, *, first: bool = True) -> bool:
        """An optimiser step, or its refusal. False when no further one may follow."""
        try:
            return self._optimiser_step(batch, step, metrics, check_ratio=first)
        except NonFiniteError as error:
            if self.old_from_update:
                raise  # nothing of this round is known: it is skipped
            self._judge(self.worker.refuse(str(error)), batch, metrics)
            return True

    def _fitted_step(self, batch: PolicyBatch, step: tuple[tuple[int, ...], ...], plan: _Plan, metrics: MetricSums) -> bool:
        """A later optimiser step, in smaller passes than planned where memory has since asked for that."""
        memory = self.guard.memory

        def attempt() -> bool:
            fitting = tuple(part for micro in step for part in packed_rows(micro, plan.lengths, memory.token_budget, plan.prompts))
            return self._try_step(batch, fitting, metrics, first=False)

        return memory.repeat(attempt, self.worker.discard)

    def _judge(self, report: StepReport, batch: PolicyBatch, metrics: MetricSums) -> None:
        metrics.add("grad_norm", report.grad_norm)
        metrics.add("learning_rate", report.learning_rate)
        metrics.add("skipped_steps", 0.0 if report.applied else 1.0)
        metrics.add("optimiser_steps", 1.0 if report.applied else 0.0)
        self.guard.judge(report, self._round + 1, lambda: _tensors(batch))

    def _optimiser_step(self, batch: PolicyBatch, step: tuple[tuple[int, ...], ...], metrics: MetricSums, *, check_ratio: bool) -> bool:
        """One optimiser step over its microbatches; False when target_kl forbids it (nothing is applied then)."""
        rows = [row for micro in step for row in micro]
        counts = step_counts(batch.text.response_mask_BT[rows], self.config)
        losses = [self._pass(batch, micro, counts, metrics, check_ratio=check_ratio) for micro in step]
        stats = losses[0].stats
        for loss in losses[1:]:
            stats = stats + loss.stats
        if self.config.target_kl is not None and exceeds_target_kl(stats.means().approx_kl_k3, self.config.target_kl):
            self.worker.discard()
            return False
        describe_step(metrics, losses, stats, counts, self.config)
        self._judge(self.worker.step(), batch, metrics)
        return True

    def _pass(self, batch: PolicyBatch, micro: tuple[int, ...], counts: StepCounts, metrics: MetricSums, *, check_ratio: bool) -> LossSum:
        """Forward and backward of one microbatch. Nothing of its graph outlives it (backends.local, ``accumulate``)."""
        part = batch.rows(micro)
        with one_pass(micro, part.text.token_ids_BT.numel()):
            loss = self._microbatch(part, metrics, check_ratio=check_ratio)
            if self.old_from_update:
                batch.old_logprobs_BT[list(micro), : part.old_logprobs_BT.shape[1]] = part.old_logprobs_BT
            self.worker.accumulate(loss.value_term(counts, self.config) if self._pretrains_value else loss.total(self.config, counts))
        return loss.detached()

    def _microbatch(self, batch: PolicyBatch, metrics: MetricSums, *, check_ratio: bool) -> LossSum:
        """The loss of some rows. Where the old log-probabilities come from the update, they are filled in here."""
        with_entropy = self.config.entropy_coef > 0
        output = self._forward(batch.text, entropy=with_entropy or self.old_from_update)
        mask_BT = batch.text.response_mask_BT
        if self.old_from_update:
            batch.old_logprobs_BT.copy_(output.logprobs_BT.detach())
            _add_entropy(metrics, output, batch.text)
        if check_ratio:
            check_first_ratio(output.logprobs_BT, batch.old_logprobs_BT, mask_BT, self.compute.dtype, metrics)
        return policy_loss(
            output.logprobs_BT,
            batch.old_logprobs_BT,
            batch.ref_logprobs_BT,
            batch.advantages_BT,
            mask_BT,
            self.config,
            self.controller.beta,
            sampler_logprobs_BT=batch.sampler_logprobs_BT,
            entropy_BT=output.entropy_BT if with_entropy else None,
            values_BT=output.values_BT,
            old_values_BT=batch.old_values_BT,
            returns_BT=batch.returns_BT,
        )

    def _advance_controller(self, experience: Experience) -> None:
        self.controller = self.controller.observed(sampled_kl(experience).seq_sum_mean_nats, len(experience.scores_B))


def _reads_policy_once(config: OnlineConfig) -> bool:
    """One optimiser step a round, and advantages that do not read the policy: no values, no KL in the reward."""
    one_step = config.epochs == config.minibatches == 1
    return one_step and not isinstance(config, ActorCriticConfig) and (config.kl.where == "loss" or config.kl.beta == 0)


def _add_entropy(metrics: MetricSums, output: ResponseOutput, part: TextBatch) -> None:
    assert output.entropy_BT is not None
    total = masked_sum(output.entropy_BT.detach(), part.response_mask_BT)
    metrics.add("entropy", float(total), float(part.response_mask_BT.sum()))


def check_first_ratio(logprobs_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, dtype: torch.dtype, metrics: MetricSums) -> None:
    """Before the first update the policy is the old policy: every ratio is 1 (algorithms.md 1.3). Raises RatioError naming the place."""
    require_finite("logprobs", logprobs_BT.detach(), mask_BT)
    gap_BT = torch.where(mask_BT, (logprobs_BT.detach() - old_BT).abs(), 0.0)
    worst, tolerance = float(gap_BT.max()), RATIO_TOLERANCE[dtype]
    metrics.add("first_ratio_error", worst)
    if not worst <= tolerance:
        row, column = divmod(int(gap_BT.argmax()), gap_BT.shape[1])
        raise RatioError(
            f"before the first update of this round the log-probability of row {row}, token {column} differs by {worst:.3g} nats from "
            f"the old one (allowed: {tolerance:g}). The two passes do not see the same model: look for dropout, a temperature that one "
            "side lacks, shifted logits, or weights that changed between the passes"
        )


def packed_rows(
    rows: Sequence[int], lengths: Sequence[int], token_budget: int, prompts: Sequence[Hashable] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Those rows in passes within the budget, answers to one prompt together. Rows that fit together stay as they are."""
    families = None if prompts is None else [prompts[row] for row in rows]
    passes = microbatches([lengths[row] for row in rows], token_budget, families)
    return tuple(tuple(rows[i] for i in micro) for micro in passes)


def _tensors(batch: PolicyBatch) -> dict[str, Tensor]:
    """A round by name, for evidence."""
    named = {
        "old_logprobs": batch.old_logprobs_BT,
        "ref_logprobs": batch.ref_logprobs_BT,
        "sampler_logprobs": batch.sampler_logprobs_BT,
        "advantages": batch.advantages_BT,
        "returns": batch.returns_BT,
        "old_values": batch.old_values_BT,
    }
    return {**text_tensors(batch.text), **{name: tensor for name, tensor in named.items() if tensor is not None}}
