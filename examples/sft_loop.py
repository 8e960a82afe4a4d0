"""Supervised fine-tuning by hand, on a model made on the spot. Runs in seconds: python examples/sft_loop.py

The loss is the mean cross-entropy over response tokens: the prompt is read, never imitated.
The full loop is tether/run/sft.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tether.data.batches import TextBatch, pad_examples
from tether.maths import masked_sum
from tether.models.policy import Policy
from tether.models.tiny import make_tiny
from tether.types import Message

DEMONSTRATIONS = [
    ("What is the colour of the sky?", "It is blue."),
    ("What is the capital of France?", "Paris."),
    ("Count to five.", "1 2 3 4 5."),
    ("Say hello to the world.", "Hello, world."),
]
TEMPERATURE = 1.0  # of the log-probabilities; the same number goes into sampling


def make_batch(policy: Policy) -> TextBatch:
    """Chat template to ids: `response_mask_BT` is True on the answer and its end token, False on everything
    else."""
    rows = [
        policy.format.example((Message("user", question),), answer) for question, answer in DEMONSTRATIONS
    ]
    return pad_examples(rows, policy.format.pad_id)


def sft_loss(policy: Policy, batch: TextBatch, num_tokens: float) -> torch.Tensor:
    """-sum of log pi(token t | tokens < t) over response tokens, divided by the tokens of the WHOLE
    optimiser step."""
    logprobs_BT = policy.forward_response(batch, TEMPERATURE).logprobs_BT
    return -masked_sum(logprobs_BT, batch.response_mask_BT) / num_tokens


@torch.no_grad()
def greedy(policy: Policy, question: str, max_new_tokens: int = 24) -> str:
    """The most likely answer, by repeated forward passes (tether.rollout keeps a key-value cache instead)."""
    ids = policy.format.prompt_ids((Message("user", question),))
    answer: list[int] = []
    while len(answer) < max_new_tokens and not (answer and answer[-1] in policy.format.eos_ids):
        logits_V = policy.model(input_ids=torch.tensor([ids + answer])).logits[0, -1]
        answer.append(int(logits_V.argmax()))
    return policy.format.decode(answer)


def main(steps: int = 80, seed: int = 0) -> list[float]:
    """Trains and prints; returns the loss of every step, in nats per token."""
    with tempfile.TemporaryDirectory() as scratch:
        policy = Policy.load(make_tiny(Path(scratch) / "tiny", seed))
    optimiser = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
    batch = make_batch(policy)
    num_tokens = float(batch.response_mask_BT.sum())
    losses: list[float] = []
    for step in range(1, steps + 1):
        total = 0.0
        for rows in ([0, 1], [2, 3]):  # two microbatches, one optimiser step: sums add up, means would not
            loss = sft_loss(policy, batch.rows(rows), num_tokens)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(total)
        if step == 1 or step % 20 == 0:
            print(f"step {step:3d}   loss {total:.3f} nats per token")
    for question, answer in DEMONSTRATIONS:
        print(f"{question}  wanted: {answer}  got: {greedy(policy, question)}")
    return losses


if __name__ == "__main__":
    main()
