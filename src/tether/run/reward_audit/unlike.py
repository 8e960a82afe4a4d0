"""Texts unlike those that a reward model was trained on, where its scores are extrapolation.

Two measures, both fitted to training texts of the model when the audit asks (nothing of this is stored, or changes how a model is trained):

    states   Mahalanobis distance of the mean hidden state over an answer's tokens, x, from those of training answers:
             (x - m)' S^-1 (x - m), each unit in its standard deviations, for a few of them are a hundred times larger than the others, and
             S shrunk towards the identity (Lee et al. 1807.03888; pooled over tokens as in Ren et al. 2209.15558; shrinkage of Ledoit and
             Wolf 2004). What the model itself finds strange.
    words    mean of -log p(token) over an answer, p = .9 frequency among training answers + .1 / vocabulary. What is worded strangely,
             whatever the model makes of it.

Each has a limit that 2.5 % of in-distribution answers lie beyond (the order statistic that keeps this on average: split conformal, Vovk et
al. 2005), so that at most 5 % of them are called unlike.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tether.clusters import wilson_clusters
from tether.data.batches import pad_examples
from tether.data.groups import Cut, cut_example
from tether.data.packing import microbatches
from tether.models.reward import RewardModel
from tether.models.trunk import hidden_states
from tether.records.texts import answer_like
from tether.run.reward_audit.judged import Judged, interval_dict
from tether.run.reward_audit.training_texts import AnswerTo, TrainingTexts
from tether.run.reward_audit.variations import STRANGE
from tether.stats import Interval
from tether.text.chat import TokenizedExample

__all__ = ["ALARM", "Likeness", "unlike"]

Array = NDArray[np.float64]
ALARM = 0.05
"""Most in-distribution answers that are called unlike, for both measures together."""
_KEPT = 0.9  # of a token's probability from its frequency; the rest is uniform
_SELF_CHECK = 48  # strange answers of a kind


@dataclass(frozen=True)
class Likeness:
    """Both measures with their limits, fitted to answers of the training."""

    model: RewardModel
    mean_H: Array
    precision_HH: Array
    surprises_V: Array
    limits: tuple[float, float]
    token_budget: int

    @classmethod
    def fit(cls, model: RewardModel, known: TrainingTexts, token_budget: int) -> Likeness:
        """Mean, covariance and frequencies from ``known.fit``, limits from ``known.limit``."""
        states_NH, rows = _read(model, known.fit, token_budget)
        mean_H, precision_HH = states_NH.mean(0), precision(states_NH)
        counts = Counter(token for row in rows for token in row)
        size = max(model.tokenizer.get_vocab().values()) + 1
        frequency_V = np.zeros(size)
        frequency_V[list(counts)] = np.array(list(counts.values())) / sum(counts.values())
        surprises_V = -np.log(_KEPT * frequency_V + (1 - _KEPT) / size)
        unlimited = cls(model, mean_H, precision_HH, surprises_V, (math.inf, math.inf), token_budget)
        states_N, words_N = unlimited.measure(known.limit)
        limits = (conformal_limit(states_N, ALARM / 2), conformal_limit(words_N, ALARM / 2))
        return cls(model, mean_H, precision_HH, surprises_V, limits, token_budget)

    def measure(self, texts: Sequence[AnswerTo]) -> tuple[Array, Array]:
        """(states, words) of every text."""
        states_NH, rows = _read(self.model, texts, self.token_budget)
        apart_NH = states_NH - self.mean_H
        words = [float(self.surprises_V[list(row)].mean()) for row in rows]
        return squared_distances(apart_NH, self.precision_HH), np.array(words)

    def beyond(self, texts: Sequence[AnswerTo]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which texts lie beyond the limit of states, and of words."""
        states_N, words_N = self.measure(texts)
        return states_N > self.limits[0], words_N > self.limits[1]


def unlike(audited: RewardModel, judged: Judged, known: TrainingTexts, token_budget: int, seed: int) -> dict[str, Any]:
    """How many audited answers are unlike the training's, how the model does on their pairs, and what share of strange texts is noticed."""
    likeness = Likeness.fit(audited, known, token_budget)
    pairs = judged.pairs
    texts = [(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    states, words = likeness.beyond(texts)
    either = states | words
    share = wilson_clusters(either.astype(float), [number for number in judged.cluster for _ in range(2)])
    either_B = either[0::2] | either[1::2]
    shown = pairs[:_SELF_CHECK]
    answers = {name: [texts[n % len(texts)] for n in range(len(shown))] for name, texts in STRANGE.items()}
    answers["random tokens"] = _random_answers(audited, len(shown), seed)
    checks = []
    for name, own in answers.items():
        strange = [(pair.prompt, answer_like(pair.prompt, text)) for pair, text in zip(shown, own, strict=True)]
        by_states, by_words = likeness.beyond(strange)
        noticed = [float(found.mean()) for found in (by_states | by_words, by_states, by_words)]
        checks.append({"name": name, "texts": len(shown), "noticed": noticed[0], "by_states": noticed[1], "by_words": noticed[2]})
    return {
        "source": known.source,
        "fitted": len(known.fit),
        "limit_from": known.limit_from,
        "limit_texts": len(known.limit),
        "same_texts": len(set(known.limit) & set(texts)),
        "alarm": ALARM,
        "texts": len(texts),
        "beyond": interval_dict(share),
        "by_states": int(states.sum()),
        "by_words": int(words.sum()),
        "accuracy": {name: interval_dict(_accuracy(judged, own)) for name, own in (("like", ~either_B), ("unlike", either_B))},
        "strange": checks,
    }


def _accuracy(judged: Judged, own_B: NDArray[np.bool_]) -> Interval:
    known = own_B & ~np.isnan(judged.right_B)
    if not known.any():
        return Interval(math.nan, math.nan, math.nan, 0.95, 0)
    return wilson_clusters(judged.right_B[known], np.asarray(judged.cluster)[known])


@torch.no_grad()
def _read(model: RewardModel, texts: Sequence[AnswerTo], token_budget: int) -> tuple[Array, list[tuple[int, ...]]]:
    """Mean hidden state over the answer's tokens [N, H], and these tokens, as the model reads them after its own cut."""
    examples = [_example(model, prompt, answer) for prompt, answer in texts]
    states_NH = np.zeros((len(examples), model.head.in_features))
    for micro in microbatches([len(example.token_ids) for example in examples], token_budget):
        batch = pad_examples([examples[n] for n in micro], model.format.pad_id).to(model.device)
        found = hidden_states(model.trunk, batch, model.device)
        for row, n in enumerate(micro):
            places = found.place_BT[row][batch.response_mask_BT[row]]
            states_NH[n] = found.states_NH[places].double().mean(0).cpu().numpy()
    rows = [tuple(token for token, live in zip(one.token_ids, one.response_mask, strict=True) if live) for one in examples]
    return states_NH, rows


def _example(model: RewardModel, prompt: Any, answer: Any) -> TokenizedExample:
    example = model.format.example(prompt, answer)
    if len(example.token_ids) <= model.max_length:
        return example
    cut = cut_example(example, model.max_length, Cut.LEFT if model.truncation == "left" else Cut.RIGHT)
    return cut if any(cut.response_mask) else cut_example(example, model.max_length, Cut.LEFT)


def squared_distances(apart_NH: Array, precision_HH: Array) -> Array:
    """x' P x of every row."""
    return np.einsum("nh,hk,nk->n", apart_NH, precision_HH, apart_NH)


def precision(rows_NH: Array) -> Array:
    """S^-1 in the rows' own units, with S shrunk where every column has the standard deviation 1: a few large columns do not drown the
    others."""
    std_H = rows_NH.std(0)
    scale_H = 1 / np.maximum(std_H, 1e-6 * max(float(std_H.max()), 1e-12))
    return np.linalg.inv(shrunk_covariance(rows_NH * scale_H)).astype(np.float64) * np.outer(scale_H, scale_H)


def shrunk_covariance(rows_NH: Array) -> Array:
    """(1 - a) S + a (tr S / H) I with the a that brings it nearest to the true covariance on average (Ledoit and Wolf 2004, 10.1016/
    S0047-259X(03)00096-4): invertible however few rows there are. A thousandth of the mean variance is added, for dead directions."""
    centred = rows_NH - rows_NH.mean(0)
    n, h = centred.shape
    sample = centred.T @ centred / n
    level = float(np.trace(sample)) / h
    apart = float(np.square(sample - level * np.eye(h)).sum())
    noise = float((np.square(centred).sum(1) ** 2).sum()) / n**2 - float(np.square(sample).sum()) / n
    a = 1.0 if apart <= 0 else min(max(noise / apart, 0.0), 1.0)
    return (1 - a) * sample + (a + 1e-3) * max(level, 1e-12) * np.eye(h)


def conformal_limit(values: Array, share: float) -> float:
    """The value that a new one like these exceeds in at most ``share`` of cases: the ceil((n + 1)(1 - share))-th smallest; infinite where
    n is too small for any."""
    rank = math.ceil((len(values) + 1) * (1 - share))
    return math.inf if rank > len(values) else float(np.sort(values)[rank - 1])


def _random_answers(model: RewardModel, count: int, seed: int) -> list[str]:
    draw, size = random.Random(seed), len(model.tokenizer)
    return [str(model.tokenizer.decode([draw.randrange(size) for _ in range(30)], skip_special_tokens=True)) for _ in range(count)]
