"""Takes a look: fixed held-out prompts, drawn with the same randomness at every look. Axes: B sequences, T tokens."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from tether.backends.compute import Compute
from tether.data.batches import pad_examples
from tether.data.packing import microbatches
from tether.maths.kl import kl_k1
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.rewards.rubric import Rubric
from tether.rollout.rollouter import collect
from tether.rollout.sampler import Sampler
from tether.run.checks.look import Answer, Look
from tether.run.checks.texts import correlation, distinctness, pooled_share, repeat_share
from tether.text.chat import sampled_example
from tether.types import Prompt, Rollout, Sampling, StopReason

__all__ = ["Panel"]

_PANEL_STEP = 0  # training steps count from 1, so the panel's randomness never meets theirs


@dataclass(frozen=True)
class Panel:
    """What is asked at every look, and what judges the answers. ``score`` None: there is no independent score."""

    prompts: Sequence[Prompt]
    num_samples: int
    sampling: Sampling
    sampler: Sampler
    proxy: Rubric
    score: Rubric | None
    compute: Compute
    seed: int

    def identity(self) -> str:
        """Changes with what makes two looks incomparable: prompts, samples, sampling, parts of both scores, seed."""
        rubrics = [self.proxy] if self.score is None else [self.proxy, self.score]
        parts = [[(name, weight) for name, weight, _ in rubric.parts] for rubric in rubrics]
        asked = [[p.prompt_id, p.question] for p in self.prompts]
        told = [asked, self.num_samples, asdict(self.sampling), parts, self.seed]
        return hashlib.sha256(json.dumps(told).encode("utf-8", "replace")).hexdigest()

    def look(self, step: int, policy: Policy, reference: Reference) -> Look:
        """Sample, score, and read the policy on its own answers. Trains nothing and draws from no generator that training draws from."""
        groups = collect(
            self.prompts,
            self.sampler,
            self.sampling,
            policy.format,
            num_samples=self.num_samples,
            run_seed=self.seed,
            step=_PANEL_STEP,
        )
        rollouts = [rollout for group in groups for rollout in group]
        ids = [rollout.completion.token_ids for rollout in rollouts]
        kl, entropy = self._read(policy, reference, rollouts)
        lengths = [float(len(row)) for row in ids]
        columns = {
            "proxy": _flat_scores(self.proxy, groups),
            "score": [math.nan] * len(rollouts) if self.score is None else _flat_scores(self.score, groups),
            "length": lengths,
            "entropy": [total / length for total, length in zip(entropy, lengths, strict=True)],
            "repeat": [repeat_share(row) for row in ids],
            "distinct": distinctness(ids),
            "kl_sequence": kl,
        }
        values = {name: _mean(column) for name, column in columns.items()}
        values |= dict(zip(("length_p10", "length_p50", "length_p90"), np.quantile(lengths, (0.1, 0.5, 0.9)).tolist(), strict=True))
        values |= {
            "entropy": sum(entropy) / sum(lengths),
            "kl_token": sum(kl) / sum(lengths),
            "pooled": pooled_share(ids),
            "eos": _mean([float(r.completion.stop_reason is StopReason.STOP) for r in rollouts]),
            "truncated": _mean([float(r.truncated) for r in rollouts]),
            "reward_length": correlation(columns["proxy"], lengths),
        }
        answers = (_answer(*row) for row in zip(rollouts, columns["proxy"], columns["score"], strict=True))
        return Look(step, {name: self._by_prompt(column) for name, column in columns.items()}, values, tuple(answers))

    def _by_prompt(self, column: Sequence[float]) -> tuple[float, ...]:
        n = self.num_samples
        return tuple(_mean(column[i : i + n]) for i in range(0, len(column), n))

    @torch.no_grad()
    def _read(self, policy: Policy, reference: Reference, rollouts: Sequence[Rollout]) -> tuple[list[float], list[float]]:
        """(summed k1, summed entropy) of every answer, in nats."""
        batch = pad_examples([sampled_example(r.prompt_ids, r.completion.token_ids) for r in rollouts], policy.format.pad_id)
        batch = batch.to(self.compute.device)
        kl, entropy = [0.0] * len(rollouts), [0.0] * len(rollouts)
        for micro in microbatches(batch.attention_mask_BT.sum(-1).tolist(), self.compute.token_budget):
            part = batch.rows(micro)
            with self.compute.autocast():
                output = policy.forward_response(part, self.sampling.temperature, entropy=True)
                ref_BT = reference.logprobs(part, self.sampling.temperature)
            assert output.entropy_BT is not None
            sums_B2 = torch.stack([kl_k1(output.logprobs_BT, ref_BT).sum(-1), output.entropy_BT.sum(-1)], -1)
            for row, (k1, nats) in zip(micro, sums_B2.tolist(), strict=True):
                kl[row], entropy[row] = k1, nats
        return kl, entropy


def _flat_scores(rubric: Rubric, groups: Sequence[Sequence[Rollout]]) -> list[float]:
    return [score for group in rubric.score(groups) for score in group.scores]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _answer(rollout: Rollout, proxy: float, score: float) -> Answer:
    done = rollout.completion
    return Answer(rollout.prompt.question, rollout.text, proxy, score, len(done.token_ids), str(done.stop_reason))
