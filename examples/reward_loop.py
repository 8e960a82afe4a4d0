"""A Bradley-Terry reward model by hand, on a model made on the spot: python examples/reward_loop.py (seconds)

From pairs (chosen, rejected) to one score per answer; accuracy is measured on prompts that training never
saw. The comparisons here are made by a written rule (an answer that says "please" wins): no person judged
them. The full loop is tether/run/reward_model.py.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tether.data.batches import pad_examples
from tether.maths import bt_loss, pair_metrics
from tether.models.reward import RewardModel
from tether.models.tiny import make_tiny
from tether.types import Message

VERBS = ("say", "write", "count", "answer", "read")
NOUNS = ("a word", "the number", "a sentence", "the name", "a question", "the sum")


@dataclass(frozen=True)
class Pair:
    """Two answers to one question; the rule prefers `chosen`."""

    question: str
    chosen: str
    rejected: str


def make_pairs() -> tuple[list[Pair], list[Pair]]:
    """(training, held out): every fifth question is held out, with all its pairs."""
    questions = [f"How do I ask someone to {verb} {noun}?" for verb, noun in itertools.product(VERBS, NOUNS)]
    pairs = [Pair(q, f"{q[25:-1]}, please.", f"{q[25:-1]}, now.") for q in questions]
    return [p for i, p in enumerate(pairs) if i % 5], pairs[::5]


def score_pairs(model: RewardModel, pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of both sides in one pass, read at the last token that the attention mask holds."""
    texts = [(p.question, p.chosen) for p in pairs] + [(p.question, p.rejected) for p in pairs]
    rows = [model.format.example((Message("user", question),), answer) for question, answer in texts]
    scores_2B = model.score_batch(pad_examples(rows, model.format.pad_id))
    return scores_2B[: len(pairs)], scores_2B[len(pairs) :]


@torch.no_grad()
def held_out_accuracy(model: RewardModel, pairs: list[Pair]) -> float:
    """Share of pairs whose chosen answer scores higher; a tie counts one half."""
    chosen_B, rejected_B = score_pairs(model, pairs)
    return pair_metrics(chosen_B, rejected_B).accuracy


def main(steps: int = 30, seed: int = 0) -> tuple[list[float], float]:
    """Trains and prints; returns the loss of every step (nats per pair) and the held-out accuracy."""
    with tempfile.TemporaryDirectory() as scratch:
        model = RewardModel.from_base(make_tiny(Path(scratch) / "tiny", seed), seed=seed)
    training, held_out = make_pairs()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(1, steps + 1):
        chosen = [training[i] for i in torch.randperm(len(training), generator=generator)[:8].tolist()]
        chosen_B, rejected_B = score_pairs(model, chosen)
        # The loss sees differences only; the centering term keeps the scores themselves near 0.
        loss = bt_loss(chosen_B, rejected_B, center_coef=0.01).sum() / len(chosen)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if step == 1 or step % 10 == 0:
            print(f"step {step:3d}   loss {losses[-1]:.3f} nats per pair")
    accuracy = held_out_accuracy(model, held_out)
    print(f"held-out accuracy {accuracy:.0%} of {len(held_out)} pairs (a coin toss: 50 %)")
    return losses, accuracy


if __name__ == "__main__":
    main()
