"""GRPO by hand, on a model made on the spot. Runs in seconds: python examples/grpo_loop.py

No value function: several answers to one question are compared with each other, and the group's mean is the
baseline. The KL to the frozen reference acts in the loss, as k3 times the importance ratio, whose gradient
is that of KL(policy || reference).
Axes: B answers, T tokens, V vocabulary. The full loop is tether/run/rl.py with tether/run/learner.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tether.data.batches import TextBatch, pad_examples
from tether.maths import (
    Aggregation,
    aggregate,
    broadcast_to_tokens,
    dead_groups,
    grpo_advantages,
    grpo_loss_ratio_corrected,
    inverse_cdf_sample,
    kl_units,
)
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.tiny import make_tiny
from tether.text.chat import TokenizedExample, sampled_example
from tether.types import Message

QUESTIONS = ("Say a word.", "Write a sentence.", "What is the sea?", "Count to ten.")
GROUP, MAX_NEW_TOKENS, TEMPERATURE = 8, 12, 1.0
CLIP, EPOCHS = 0.2, 2


def reward(answer: str) -> float:
    """A rule: the letter e, up to six times. Any function of the text can stand here."""
    return min(answer.count("e"), 6) / 6


@torch.no_grad()
def sample(policy: Policy, question: str, generator: torch.Generator) -> list[TokenizedExample]:
    """A group of answers by repeated forward passes. An answer ends with an end token, which it keeps, or
    with the budget."""
    prompt_ids = policy.format.prompt_ids((Message("user", question),))
    ids_BT = torch.tensor([prompt_ids] * GROUP)
    answers: list[list[int]] = [[] for _ in range(GROUP)]
    for _ in range(MAX_NEW_TOKENS):
        logits_BV = policy.model(input_ids=ids_BT).logits[:, -1] / TEMPERATURE
        tokens_B = inverse_cdf_sample(logits_BV, torch.rand(len(answers), generator=generator))
        for answer, token in zip(answers, tokens_B.tolist(), strict=True):
            if not (answer and answer[-1] in policy.format.eos_ids):
                answer.append(token)
        ids_BT = torch.cat([ids_BT, tokens_B[:, None]], dim=1)
    return [sampled_example(prompt_ids, answer) for answer in answers]  # exactly the ids that were drawn


@dataclass(frozen=True)
class Round:
    """What one update reads. `group_ids_B` says which rows answer the same question."""

    batch: TextBatch
    scores_B: torch.Tensor
    group_ids_B: torch.Tensor
    old_logprobs_BT: torch.Tensor
    ref_logprobs_BT: torch.Tensor


@torch.no_grad()
def collect(policy: Policy, reference: Reference, generator: torch.Generator) -> Round:
    """Sample, score, and look at the answers with the old policy and the reference."""
    rows = [row for question in QUESTIONS for row in sample(policy, question, generator)]
    texts = [
        policy.format.decode([i for i, live in zip(row.token_ids, row.response_mask, strict=True) if live])
        for row in rows
    ]
    batch = pad_examples(rows, policy.format.pad_id)
    group_ids_B = torch.arange(len(QUESTIONS)).repeat_interleave(GROUP)
    old_logprobs_BT = policy.forward_response(batch, TEMPERATURE).logprobs_BT
    scores_B = torch.tensor([reward(text) for text in texts])
    return Round(batch, scores_B, group_ids_B, old_logprobs_BT, reference.logprobs(batch, TEMPERATURE))


def update(policy: Policy, optimiser: torch.optim.Optimizer, data: Round, beta: float) -> None:
    """A few passes over one round. A group without spread in its scores has advantage 0: it teaches
    nothing."""
    mask_BT = data.batch.response_mask_BT
    advantages_BT = broadcast_to_tokens(grpo_advantages(data.scores_B, data.group_ids_B), mask_BT)
    for _ in range(EPOCHS):
        logprobs_BT = policy.forward_response(data.batch, TEMPERATURE).logprobs_BT
        parts = grpo_loss_ratio_corrected(
            logprobs_BT, data.old_logprobs_BT, data.ref_logprobs_BT, advantages_BT, mask_BT, CLIP, CLIP, beta
        )
        # One denominator: the live tokens of the whole step. Long and short answers weigh by their tokens.
        loss = aggregate(parts.losses_BT, mask_BT, Aggregation.TOKEN_MEAN)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()


def main(steps: int = 25, seed: int = 0, beta: float = 0.02) -> tuple[list[float], float]:
    """Trains and prints; returns the mean reward of every step, and the last KL to the reference in nats
    per sequence."""
    with tempfile.TemporaryDirectory() as scratch:
        policy = Policy.load(make_tiny(Path(scratch) / "tiny", seed))
    reference = Reference.frozen_copy(policy)
    optimiser = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    rewards: list[float] = []
    kl = 0.0
    for step in range(1, steps + 1):
        data = collect(policy, reference, generator)
        units = kl_units(data.old_logprobs_BT, data.ref_logprobs_BT, data.batch.response_mask_BT)
        kl = units.seq_sum_mean_nats
        rewards.append(float(data.scores_B.mean()))
        dead, groups = dead_groups(data.scores_B, data.group_ids_B)
        if step == 1 or step % 5 == 0:
            tether = f"KL {kl:.2f} nats per sequence"
            print(f"step {step:3d}   reward {rewards[-1]:.3f}   dead groups {dead} of {groups}   {tether}")
        update(policy, optimiser, data, beta)
    return rewards, kl


if __name__ == "__main__":
    main()
