"""DPO by hand, on a model made on the spot. Runs in seconds: python examples/dpo_loop.py

From comparisons straight to a policy: no reward model, no sampling. The frozen start reads every answer once; from then on the loss asks
that the policy raise the chosen answer above the rejected one, measured from the start. That difference is the tether: there is no KL term.
The comparisons are made by a written rule (an answer that says "please" wins): no person judged them.
Axes: B pairs, T tokens. The full loop is tether/run/direct.py.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tether.data.batches import TextBatch, pad_examples
from tether.maths import dpo_loss, select
from tether.models.policy import Policy
from tether.models.tiny import make_tiny
from tether.types import Message

VERBS = ("say", "write", "count", "answer")
NOUNS = ("a word", "the number", "a sentence", "the sum")
BATCH = 8


@dataclass(frozen=True)
class Pair:
    """Two answers to one question; the rule prefers `chosen`."""

    question: str
    chosen: str
    rejected: str


def make_pairs() -> tuple[list[Pair], list[Pair]]:
    """(training, held out): every fourth question is held out."""
    asked = [f"{verb} {noun}" for verb, noun in itertools.product(VERBS, NOUNS)]
    pairs = [Pair(f"How do I ask someone to {what}?", f"{what}, please.", f"{what}, now!") for what in asked]
    return [pair for i, pair in enumerate(pairs) if i % 4], pairs[::4]


def as_batch(policy: Policy, pairs: list[Pair]) -> TextBatch:
    """2B rows: all chosen answers, then all rejected ones."""
    texts = [(p.question, p.chosen) for p in pairs] + [(p.question, p.rejected) for p in pairs]
    rows = [policy.format.example((Message("user", question),), answer) for question, answer in texts]
    return pad_examples(rows, policy.format.pad_id)


def answer_logprobs(policy: Policy, batch: TextBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi(answer | question) of both sides, nats: the SUM over the tokens of the answer, the end token included."""
    logprobs_BT = policy.forward_response(batch, temperature=1.0).logprobs_BT
    sums_2B = select(logprobs_BT, batch.response_mask_BT).sum(-1)
    chosen_B, rejected_B = sums_2B.chunk(2)
    return chosen_B, rejected_B


@dataclass(frozen=True)
class Known:
    """A set of pairs with what the frozen start says of them. Nothing else of the start is needed again."""

    pairs: list[Pair]
    start_chosen_B: torch.Tensor
    start_rejected_B: torch.Tensor

    def take(self, index_B: torch.Tensor) -> Known:
        return Known([self.pairs[i] for i in index_B.tolist()], self.start_chosen_B[index_B], self.start_rejected_B[index_B])


@torch.no_grad()
def look(policy: Policy, pairs: list[Pair]) -> Known:
    """The start's one pass over the data."""
    return Known(pairs, *answer_logprobs(policy, as_batch(policy, pairs)))


def log_ratios(policy: Policy, known: Known) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi - log pi_start of both sides: implied rewards are beta times these, and 0 before the first step."""
    chosen_B, rejected_B = answer_logprobs(policy, as_batch(policy, known.pairs))
    return chosen_B - known.start_chosen_B, rejected_B - known.start_rejected_B


def main(steps: int = 40, seed: int = 0, beta: float = 0.1) -> tuple[list[float], float, float]:
    """Trains and prints; returns the loss of every step (nats per pair), the held-out accuracy of implied rewards, and how far the
    policy went on held-out answers: the mean size of log pi - log pi_start, nats per answer."""
    with tempfile.TemporaryDirectory() as scratch:
        policy = Policy.load(make_tiny(Path(scratch) / "tiny", seed))
    training, held_out = (look(policy, pairs) for pairs in make_pairs())
    optimiser = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(1, steps + 1):
        batch = training.take(torch.randperm(len(training.pairs), generator=generator)[:BATCH])
        chosen_B, rejected_B = log_ratios(policy, batch)
        loss = dpo_loss(chosen_B - rejected_B, beta).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if step == 1 or step % 10 == 0:
            # Watch the chosen side: it may fall while the loss does, too ("displacement").
            sides = f"chosen {float(chosen_B.detach().mean()):+.2f}, rejected {float(rejected_B.detach().mean()):+.2f} nats per answer"
            print(f"step {step:3d}   loss {losses[-1]:.3f} nats per pair   against the start: {sides}")
    with torch.no_grad():
        chosen_B, rejected_B = log_ratios(policy, held_out)
    accuracy = float((chosen_B > rejected_B).float().mean())
    distance = float(torch.cat([chosen_B, rejected_B]).abs().mean())
    print(f"held-out accuracy {accuracy:.0%} of {len(held_out.pairs)} pairs; distance from the start {distance:.2f} nats per answer")
    return losses, accuracy, distance


if __name__ == "__main__":
    main()
