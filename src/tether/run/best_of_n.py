"""Best of n by a proxy: what proxy and gold come to against n, with intervals over prompts, and the best answers as demonstrations.

Axes: P prompts, N samples of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tether.errors import DataError
from tether.maths.best_of_n import bon_kl_bound, bon_unbiased
from tether.records.texts import Text
from tether.report.charts import Callout, Chart, chart
from tether.stats import Interval, bootstrap_mean, paired_bootstrap

__all__ = ["COLUMNS", "Pool", "ScoredSample", "as_text", "best_of_n", "curve_charts", "prompt_as_row", "sft_rows", "table_rows"]

COLUMNS = ("n", "proxy", "gold", "KL bound, nats", "win rate bound")


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """One answer. ``gold`` NaN: not known. ``cut``: by the token budget."""

    text: str
    proxy: float
    gold: float = math.nan
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """All answers to one prompt."""

    prompt_id: str
    prompt: Text
    samples: tuple[ScoredSample, ...]


def best_of_n(pools: Sequence[Pool], *, seed: int = 0, confidence: float = 0.95) -> dict[str, Any]:
    """Plain JSON: one row per n in 1, 2, 4, ... up to the smallest number of samples that a prompt has, that number included.

    Expected score of the best of n, unbiased over all subsets of n of each prompt's samples (WebGPT; Gao et al. 2210.10760), averaged over
    prompts; bootstrap over prompts. ``kl_bound`` is an upper bound on KL(best-of-n || policy), not the KL. Samples without a proxy score
    are left out and counted; gold is given where every scored sample has it, or else a note says how many have none. Raises DataError where
    no prompt has a scored sample.
    """
    scored = [[sample for sample in pool.samples if math.isfinite(sample.proxy)] for pool in pools]
    live = [samples for samples in scored if samples]
    if not live:
        raise DataError("best-of-n: no prompt has an answer with a proxy score")
    most = min(map(len, live))
    without_gold = sum(not math.isfinite(sample.gold) for samples in live for sample in samples)
    proxies = [torch.tensor([sample.proxy for sample in samples], dtype=torch.float64) for samples in live]
    golds = [torch.tensor([sample.gold for sample in samples], dtype=torch.float64) for samples in live]

    def by_prompt(values: Sequence[torch.Tensor], n: int) -> list[float]:
        return [bon_unbiased(proxy_N, value_N, n) for proxy_N, value_N in zip(proxies, values, strict=True)]

    def interval(values: Sequence[float]) -> dict[str, Any]:
        return _told(bootstrap_mean(values, seed=seed, confidence=confidence))

    gold_by_n = {} if without_gold else {n: by_prompt(golds, n) for n in _tries(most)}
    rows = [
        {
            "n": n,
            "proxy": interval(by_prompt(proxies, n)),
            "gold": interval(gold_by_n[n]) if gold_by_n else None,
            "kl_bound": bon_kl_bound(n),
            "win_rate_bound": n / (n + 1),
        }
        for n in _tries(most)
    ]
    answers = sum(map(len, live))
    return {
        "rows": rows,
        "prompts": len(live),
        "samples_per_prompt": [min(map(len, live)), max(map(len, live))],
        "unscored_samples": sum(len(pool.samples) for pool in pools) - answers,
        "samples_without_gold": without_gold,
        "prompts_without_a_score": len(pools) - len(live),
        "confidence": confidence,
        "seed": seed,
        "notes": [_KL_NOTE, *(_over_optimised(gold_by_n, seed, confidence) if gold_by_n else [_no_gold(without_gold, answers)])],
    }


def _tries(most: int) -> list[int]:
    """Example: 12 -> [1, 2, 4, 8, 12]."""
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def _told(interval: Interval) -> dict[str, Any]:
    low, high = (value if math.isfinite(value) else None for value in (interval.low, interval.high))
    return {"estimate": interval.estimate, "low": low, "high": high}


_KL_NOTE = "KL bound: log n - (n - 1) / n nats, an upper bound on KL(best-of-n || policy); exact only if no two answers score the same."


def _no_gold(without: int, answers: int) -> str:
    if without == answers:
        return "No gold score: the proxy at its own maximum always rises, and says nothing of whether the answers are better."
    return (
        f"Gold is not shown: {without} of {answers} scored answers have no gold score, and a curve of the others alone would be of other "
        "answers than the proxy's. Score them, or leave their prompts out."
    )


def _over_optimised(gold_by_n: Mapping[int, Sequence[float]], seed: int, confidence: float) -> list[str]:
    """A sentence where gold falls after its highest n by more than chance: paired over prompts, Bonferroni for the choice of that n."""
    best, last = max(gold_by_n, key=lambda n: math.fsum(gold_by_n[n])), max(gold_by_n)
    if best == last:
        return []
    level = 1 - (1 - confidence) / (len(gold_by_n) - 1)
    fall = paired_bootstrap(gold_by_n[last], gold_by_n[best], seed=seed, confidence=level)
    if not fall.low > 0:
        return []
    return [
        f"Gold is highest at n = {best} and {fall.estimate:.4g} [{fall.low:.4g}, {fall.high:.4g}] lower at n = {last} (paired over "
        f"prompts, {_percent(confidence)} for all choices of the best n together): past that the proxy is over-optimised."
    ]


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def prompt_as_row(prompt: Text) -> str | list[dict[str, str]]:
    """As rows of files hold it."""
    return prompt if isinstance(prompt, str) else [asdict(turn) for turn in prompt]


def sft_rows(pools: Sequence[Pool], provenance: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Rejection sampling: a demonstration per prompt, its best answer by the proxy that ended by itself and is not blank, with where it
    comes from; and the number of prompts that have none. Of equal scores the first answer is taken.
    """
    rows = []
    for pool in pools:
        usable = [i for i, s in enumerate(pool.samples) if math.isfinite(s.proxy) and not s.cut and s.text.strip()]
        if not usable:
            continue
        best = max(usable, key=lambda i: (pool.samples[i].proxy, -i))
        sample = pool.samples[best]
        told = {"method": "best-of-n", "n": len(usable), "sample_index": best, "proxy": sample.proxy}
        told |= {"gold": sample.gold} if math.isfinite(sample.gold) else {}
        completion = sample.text if isinstance(pool.prompt, str) else [{"role": "assistant", "content": sample.text}]
        row = {"prompt_id": pool.prompt_id, "prompt": prompt_as_row(pool.prompt), "completion": completion}
        rows.append({**row, "provenance": {**told, **provenance}})
    return rows, len(pools) - len(rows)


def curve_charts(found: Mapping[str, Any]) -> list[Chart]:
    """Scores against the KL bound, and against log2 n."""
    rows = found["rows"]
    names = [name for name in ("proxy", "gold") if rows[0][name] is not None]
    confidence = _percent(found["confidence"])

    def drawn(title: str, x_label: str, x: Sequence[float]) -> Chart:
        series: dict[str, list[tuple[float, float]]] = {}
        for name in names:
            for what, key in (("", "estimate"), (f", {confidence} low", "low"), (f", {confidence} high", "high")):
                values = [math.nan if row[name][key] is None else row[name][key] for row in rows]
                series[f"{name}{what}"] = list(zip(x, values, strict=True))
        ends = [Callout(x[-1], rows[-1][name]["estimate"], name, colour=3 * k) for k, name in enumerate(names)]
        meaning = "Expected score of the answer that the proxy likes best of n, unbiased, with bootstrap intervals over prompts."
        return chart(title, "score", meaning, series, x_label=x_label, callouts=ends)

    bounds = [row["kl_bound"] for row in rows]
    return [
        drawn("best of n against the KL bound", "log n - (n - 1)/n, nats: a bound", bounds),
        drawn("best of n", "log2 n", [math.log2(row["n"]) for row in rows]),
    ]


def table_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The cells under ``COLUMNS``."""
    return [
        (str(row["n"]), _cell(row["proxy"]), _cell(row["gold"]), f"{row['kl_bound']:z.4f}", f"{row['win_rate_bound']:z.4f}")
        for row in found["rows"]
    ]


def as_text(found: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    body = [COLUMNS, *table_rows(found)]
    widths = [max(len(row[k]) for row in body) for k in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in body]
    fewest, most = found["samples_per_prompt"]
    counted = f"{found['prompts']} prompts, {fewest if fewest == most else f'{fewest} to {most}'} scored answers each"
    counted += f"; in brackets {_percent(found['confidence'])} bootstrap intervals over prompts"
    if found["unscored_samples"]:
        counted += f"; {found['unscored_samples']} answers without a proxy score are left out"
    if found["prompts_without_a_score"]:
        counted += f"; {found['prompts_without_a_score']} prompts have none with one"
    return "\n".join([*lines, "", counted, *found["notes"]])


def _cell(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return "–"
    low, high = ("–" if interval[key] is None else f"{interval[key]:.4g}" for key in ("low", "high"))
    return f"{interval['estimate']:.4g} [{low}, {high}]"
