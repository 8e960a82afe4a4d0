"""The same text scored in other company, in other words, and answers that nobody should prefer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.run.reward_audit.figures import mean_interval, share_interval
from tether.run.reward_audit.judged import interval_dict
from tether.run.reward_audit.scorer import Audited, score_all
from tether.run.reward_audit.variations import PARAPHRASES, PROBES, paraphrase, probe_texts
from tether.types import Comparison

__all__ = ["TOLERANCE", "invariances", "paraphrases", "probes"]

Array = NDArray[np.float64]
TOLERANCE = 1e-5
"""Largest difference of two scores of one text, in units of score (of their standard deviation where that is above 1)."""
_MOST = 64  # texts or pairs that are scored once more


def invariances(audited: Audited, pairs: Sequence[Comparison], scores_2B: Array, token_budget: int) -> list[dict[str, Any]]:
    """What must not matter, on the first pairs: the order of the two answers, the texts beside a text in a batch, the padding that a long
    one brings."""
    some = pairs[:_MOST]
    prompts, answers = [p.prompt for p in some] * 2, [*(p.chosen for p in some), *(p.rejected for p in some)]
    before = np.concatenate([scores_2B[: len(some)], scores_2B[len(pairs) : len(pairs) + len(some)]])
    swapped = score_all(audited, prompts, [*(p.rejected for p in some), *(p.chosen for p in some)], token_budget).scores
    alone = [score_all(audited, [prompt], [answer], token_budget).scores[0] for prompt, answer in zip(prompts, answers, strict=True)]
    longest = max(range(len(answers)), key=lambda i: len(repr((prompts[i], answers[i]))))
    padded = [
        score_all(audited, [prompt, prompts[longest]], [answer, answers[longest]], 10**9).scores[0]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    allowed = TOLERANCE * max(1.0, float(scores_2B.std()))
    found = (
        ("order of the two answers", np.concatenate([swapped[len(some) :], swapped[: len(some)]])),
        ("batch composition", np.array(alone)),
        ("padding", np.array(padded)),
    )
    told = []
    for name, again in found:
        difference = float(np.abs(again - before).max())
        told.append({"name": name, "texts": len(before), "largest": difference, "allowed": allowed, "holds": difference <= allowed})
    return told


def paraphrases(
    audited: Audited, pairs: Sequence[Comparison], scores_2B: Array, cluster: Sequence[int], token_budget: int, seed: int
) -> list[dict[str, Any]]:
    """Shift of the score of a chosen answer that was rewritten, in standard deviations of all scores; and preferences that turned over."""
    spread = float(scores_2B.std()) or 1.0
    told = []
    for name in PARAPHRASES:
        rewritten = [paraphrase(name, pair.chosen) for pair in pairs]
        touched = [at for at, text in enumerate(rewritten) if text != pairs[at].chosen]
        if not touched:
            nothing = dict.fromkeys(("mean", "mean_absolute", "largest", "turned", "mean_interval", "turned_interval"))
            told.append({"name": name, "texts": 0, "refused": 0, **nothing})
            continue
        scored = np.array(score_all(audited, [pairs[at].prompt for at in touched], [rewritten[at] for at in touched], token_budget).scores)
        taken = ~np.isnan(scored)
        at = np.array(touched)[taken]
        shift = (scored[taken] - scores_2B[at]) / spread
        rejected = scores_2B[at + len(pairs)]
        turned = np.sign(scored[taken] - rejected) != np.sign(scores_2B[at] - rejected)
        known, prompts = len(at) > 0, [cluster[k] for k in at]
        told.append(
            {
                "name": name,
                "texts": len(at),
                "refused": int((~taken).sum()),
                "mean": float(shift.mean()) if known else None,
                "mean_absolute": float(np.abs(shift).mean()) if known else None,
                "largest": float(np.abs(shift).max()) if known else None,
                "turned": float(turned.mean()) if known else None,
                "mean_interval": interval_dict(mean_interval(shift, prompts, seed)) if known else None,
                "turned_interval": interval_dict(share_interval(turned.astype(float), prompts)) if known else None,
            }
        )
    return told


def probes(
    audited: Audited, pairs: Sequence[Comparison], scores_2B: Array, cluster: Sequence[int], token_budget: int, seed: int
) -> list[dict[str, Any]]:
    """How often a probe scores above the chosen answer (equal: one half), over pairs that chosen won; see ``variations.Probe``."""
    decided = [at for at, pair in enumerate(pairs) if pair.label > 0.5]
    own = [pairs[at] for at in decided]
    chosen, rejected = scores_2B[decided], scores_2B[np.array(decided, dtype=int) + len(pairs)]
    beaten, prompts = _beats(rejected, chosen), [cluster[at] for at in decided]
    told = []
    for name, probe in PROBES.items():
        scored = np.array(score_all(audited, [pair.prompt for pair in own], probe_texts(name, own), token_budget).scores)
        wins = _beats(scored, chosen)
        share = share_interval(wins, prompts)
        rise = mean_interval(wins - beaten, prompts, seed) if probe.over == "rejected" else None
        told.append(
            {
                "name": name,
                "over": probe.over,
                "wins": interval_dict(share),
                "refused": int(np.isnan(scored).sum()),
                "rise": None if rise is None else interval_dict(rise),
            }
        )
    return told


def _beats(one_B: Array, other_B: Array) -> Array:
    return np.where(np.isnan(one_B), np.nan, np.where(one_B == other_B, 0.5, (one_B > other_B).astype(float)))
