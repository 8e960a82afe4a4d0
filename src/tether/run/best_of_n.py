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
from tether.report.charts import Callout, Chart, chart
from tether.stats import Interval, bootstrap_mean
from tether.types import Message

__all__ = ["Pool", "ScoredSample", "as_text", "best_of_n", "curve_charts", "sft_rows"]

Text = str | tuple[Message, ...]


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
    are left out and counted; gold is given where every scored sample has it. Raises DataError where no prompt has a scored sample.
    """
    scored = [[sample for sample in pool.samples if math.isfinite(sample.proxy)] for pool in pools]
    live = [samples for samples in scored if samples]
    if not live:
        raise DataError("best-of-n: no prompt has an answer with a proxy score")
    most = min(map(len, live))
    has_gold = all(math.isfinite(sample.gold) for samples in live for sample in samples)
    proxies = [torch.tensor([sample.proxy for sample in samples], dtype=torch.float64) for samples in live]
    golds = [torch.tensor([sample.gold for sample in samples], dtype=torch.float64) for samples in live] if has_gold else None

    def interval(values: Sequence[torch.Tensor], n: int) -> Interval:
        by_prompt = [bon_unbiased(proxy_N, value_N, n) for proxy_N, value_N in zip(proxies, values, strict=True)]
        return bootstrap_mean(by_prompt, seed=seed, confidence=confidence)

    rows = [
        {
            "n": n,
            "proxy": _told(interval(proxies, n)),
            "gold": None if golds is None else _told(interval(golds, n)),
            "kl_bound": bon_kl_bound(n),
            "win_rate_bound": n / (n + 1),
        }
        for n in _tries(most)
    ]
    return {
        "rows": rows,
        "prompts": len(live),
        "samples_per_prompt": [min(map(len, live)), max(map(len, live))],
        "unscored_samples": sum(len(pool.samples) for pool in pools) - sum(map(len, live)),
        "prompts_without_a_score": len(pools) - len(live),
        "confidence": confidence,
        "seed": seed,
        "notes": _notes(rows, has_gold),
    }


def _tries(most: int) -> list[int]:
    """Example: 12 -> [1, 2, 4, 8, 12]."""
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def _told(interval: Interval) -> dict[str, Any]:
    low, high = (value if math.isfinite(value) else None for value in (interval.low, interval.high))
    return {"estimate": interval.estimate, "low": low, "high": high}


def _notes(rows: Sequence[Mapping[str, Any]], has_gold: bool) -> list[str]:
    notes = ["KL bound: log n - (n - 1) / n nats, an upper bound on KL(best-of-n || policy); exact only if no two answers score the same."]
    if not has_gold:
        return [*notes, "No gold score: the proxy at its own maximum always rises, and says nothing of whether the answers are better."]
    best = max(rows, key=lambda row: row["gold"]["estimate"])
    last = rows[-1]
    ends = last["gold"]["high"], best["gold"]["low"]
    if best["n"] != last["n"] and None not in ends and ends[0] < ends[1]:  # else it may be chance
        fall = best["gold"]["estimate"] - last["gold"]["estimate"]
        notes.append(f"Gold is highest at n = {best['n']} and {fall:.4g} lower at n = {last['n']}: past that the proxy is over-optimised.")
    return notes


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
        prompt = pool.prompt if isinstance(pool.prompt, str) else [asdict(turn) for turn in pool.prompt]
        told = {"method": "best-of-n", "n": len(usable), "sample_index": best, "proxy": sample.proxy}
        told |= {"gold": sample.gold} if math.isfinite(sample.gold) else {}
        completion = sample.text if isinstance(pool.prompt, str) else [{"role": "assistant", "content": sample.text}]
        rows.append({"prompt_id": pool.prompt_id, "prompt": prompt, "completion": completion, "provenance": {**told, **provenance}})
    return rows, len(pools) - len(rows)


def curve_charts(found: Mapping[str, Any]) -> list[Chart]:
    """Scores against the KL bound, and against log2 n."""
    rows = found["rows"]
    names = [name for name in ("proxy", "gold") if rows[0][name] is not None]

    def drawn(title: str, x_label: str, x: Sequence[float]) -> Chart:
        series: dict[str, list[tuple[float, float]]] = {}
        for name in names:
            for what, key in (("", "estimate"), (", 95 % low", "low"), (", 95 % high", "high")):
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


def as_text(found: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    head = ("n", "proxy", "gold", "KL bound, nats", "win rate bound")
    body = [
        (
            str(row["n"]),
            _cell(row["proxy"]),
            _cell(row["gold"]),
            f"{row['kl_bound']:z.4f}",
            f"{row['win_rate_bound']:z.4f}",
        )
        for row in found["rows"]
    ]
    widths = [max(len(row[k]) for row in (head, *body)) for k in range(len(head))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *body)]
    fewest, most = found["samples_per_prompt"]
    counted = f"{found['prompts']} prompts, {fewest if fewest == most else f'{fewest} to {most}'} scored answers each"
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
