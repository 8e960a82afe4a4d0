"""Reward models with planted faults, and pairs for them, that tests of the audit share."""

from __future__ import annotations

import math
import random
import re

from tether.rewards.features import answer_text
from tether.types import Comparison

GOOD, BAD = ("calm", "clear", "kind", "warm"), ("rude", "vague", "cold", "harsh")
FILL = ("the", "sea", "and", "a", "stone", "under", "many", "big", "birds", "that", "often", "help")


def quality(text: str) -> float:
    words = re.findall(r"[a-z]+", text.casefold())
    return float(sum(word in GOOD for word in words) - sum(word in BAD for word in words))


def draw_pairs(count: int, seed: int = 0) -> list[Comparison]:
    """Judged by quality with Bradley-Terry noise; longer answers are a little better."""
    draw, told = random.Random(seed), []

    def answer() -> str:
        words = [draw.choice(FILL) for _ in range(draw.randint(5, 25))] + [draw.choice((*GOOD, *BAD)) for _ in range(draw.randint(1, 4))]
        draw.shuffle(words)
        return " ".join(words).capitalize() + "."

    for i in range(count):
        one, two = answer(), answer()
        gap = quality(one) - quality(two) + 0.05 * (len(one.split()) - len(two.split()))
        one, two = (one, two) if draw.random() < 1 / (1 + math.exp(-gap)) else (two, one)
        told.append(Comparison(f"Question {i % (count // 2)}?", one, two))
    return told


class Scorer:
    """A reward model that is a function of (prompt, text), or of all texts of a batch."""

    def __init__(self, one=None, batch=None):
        self.one, self.batch = one, batch

    def score_texts(self, prompts, completions, *, token_budget):
        texts = [answer_text(completion) for completion in completions]
        return [float(self.one(p, t)) for p, t in zip(prompts, texts, strict=True)] if self.batch is None else self.batch(texts)


def names(found) -> set[str]:
    return {flag["name"] for flag in found["flags"]}


def penalised(prompt, text):
    """Quality, a little less for nothing said and for repeating oneself."""
    words = text.split()
    return quality(text) - 6.0 * (len(words) < 5) - 3.0 * (len(words) > 40) + 0.02 * len(words)
