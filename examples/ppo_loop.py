"""PPO with a KL tether by hand, on a model made on the spot. Runs in seconds: python examples/ppo_loop.py

Three kinds of log-probabilities of the same tokens appear, and are never mixed: `logprobs` of the weights
being trained, `old_logprobs` of the weights that sampled, `ref_logprobs` of the frozen reference. (What a
sampler itself reports is a fourth; this script samples with the trained model and computes the old ones
from it.)
Axes: B answers, T tokens, V vocabulary. The full loop is tether/run/rl.py with tether/run/learner.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tether.data.batches import TextBatch, pad_examples
from tether.maths import (
    gae,
    inverse_cdf_sample,
    kl_units,
    masked_sum,
    ppo_surrogate,
    shaped_rewards,
    value_loss,
    whiten,
)
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.tiny import make_tiny
from tether.text.chat import TokenizedExample, sampled_example
from tether.types import Message

QUESTIONS = ("Say a word.", "Write a sentence.", "What is the sea?", "Count to ten.")
ANSWERS_PER_QUESTION, MAX_NEW_TOKENS, TEMPERATURE = 8, 12, 1.0
GAMMA, LAMBDA, CLIP, VALUE_COEF, EPOCHS = 1.0, 0.95, 0.2, 0.1, 2


def reward(answer: str) -> float:
    """A rule: the letter e, up to six times. Any function of the text can stand here."""
    return min(answer.count("e"), 6) / 6


@torch.no_grad()
def sample(policy: Policy, question: str, generator: torch.Generator) -> list[TokenizedExample]:
    """Answers by repeated forward passes. An answer ends with an end token, which it keeps, or with the
    budget."""
    prompt_ids = policy.format.prompt_ids((Message("user", question),))
    ids_BT = torch.tensor([prompt_ids] * ANSWERS_PER_QUESTION)
    answers: list[list[int]] = [[] for _ in range(ANSWERS_PER_QUESTION)]
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
    """What one update reads. Everything here is fixed before its first optimiser step."""

    batch: TextBatch
    scores_B: torch.Tensor
    old_logprobs_BT: torch.Tensor
    ref_logprobs_BT: torch.Tensor
    old_values_BT: torch.Tensor


@torch.no_grad()
def collect(policy: Policy, reference: Reference, generator: torch.Generator) -> Round:
    """Sample, score, and look at the answers with the old policy, its value head and the reference."""
    rows = [row for question in QUESTIONS for row in sample(policy, question, generator)]
    texts = [
        policy.format.decode([i for i, live in zip(row.token_ids, row.response_mask, strict=True) if live])
        for row in rows
    ]
    batch = pad_examples(rows, policy.format.pad_id)
    old = policy.forward_response(batch, TEMPERATURE, values=True)
    assert old.values_BT is not None
    scores_B = torch.tensor([reward(text) for text in texts])
    return Round(batch, scores_B, old.logprobs_BT, reference.logprobs(batch, TEMPERATURE), old.values_BT)


def advantages_and_returns(data: Round, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rewards are -beta (log pi_old - log pi_ref), plus the score on the last token; then GAE.

    The task is "answer within 12 tokens", so a cut answer is over as well: every row counts as terminated.
    Where the budget is not part of the task, a cut row needs the value of the state it was cut in
    (`bootstrap_values_B`).
    """
    mask_BT = data.batch.response_mask_BT
    rewards_BT = shaped_rewards(data.scores_B, data.old_logprobs_BT, data.ref_logprobs_BT, mask_BT, beta)
    terminated_B = torch.ones(len(data.scores_B), dtype=torch.bool)
    result = gae(rewards_BT, data.old_values_BT, mask_BT, GAMMA, LAMBDA, terminated_B)
    return whiten(result.advantages_BT, mask_BT), result.returns_BT


def update(policy: Policy, optimiser: torch.optim.Optimizer, data: Round, beta: float) -> None:
    """A few passes over one round. Before the first step the ratio is 1 everywhere, because old and new
    weights are the same."""
    mask_BT = data.batch.response_mask_BT
    num_tokens = mask_BT.sum()
    advantages_BT, returns_BT = advantages_and_returns(data, beta)
    for epoch in range(EPOCHS):
        new = policy.forward_response(data.batch, TEMPERATURE, values=True)
        assert new.values_BT is not None
        surrogate = ppo_surrogate(new.logprobs_BT, data.old_logprobs_BT, advantages_BT, mask_BT, CLIP, CLIP)
        if epoch == 0:
            assert torch.allclose(surrogate.ratio_BT[mask_BT], torch.ones(int(num_tokens)), atol=1e-4)
        values = value_loss(new.values_BT, data.old_values_BT, returns_BT, mask_BT, CLIP)
        loss = (
            masked_sum(surrogate.losses_BT, mask_BT) + VALUE_COEF * masked_sum(values.losses_BT, mask_BT)
        ) / num_tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()


def main(steps: int = 25, seed: int = 0, beta: float = 0.02) -> tuple[list[float], float]:
    """Trains and prints; returns the mean reward of every step, and the last KL to the reference in nats
    per sequence."""
    with tempfile.TemporaryDirectory() as scratch:
        policy = Policy.load(make_tiny(Path(scratch) / "tiny", seed), value_head="shared")
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
        if step == 1 or step % 5 == 0:
            tether = f"KL {units.token_mean_nats:.3f} nats per token, {kl:.2f} nats per sequence"
            print(f"step {step:3d}   reward {rewards[-1]:.3f}   {tether}")
        update(policy, optimiser, data, beta)
    return rewards, kl


if __name__ == "__main__":
    main()
