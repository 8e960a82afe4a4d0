"""All of an audit as one dictionary of plain values, with what it comes to in sentences and what should be looked at as flags."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.errors import ConfigError, DataError
from tether.files import write_atomic
from tether.rewards.features import BUILT_IN, MARKUP, answer_text, feature_from
from tether.rewards.linear import pair_features
from tether.run.reward_audit.figures import (
    calibration,
    correct,
    cross_validated,
    explained_share,
    logistic,
    mean_interval,
    share_interval,
)
from tether.run.reward_audit.pairs import AuditPairs, load_pairs
from tether.run.reward_audit.scorer import Audited, load_audited, score_all
from tether.run.reward_audit.stress import invariances, paraphrases, probes
from tether.run.reward_audit.verdict import flags_of, sentences_of
from tether.stats import Interval

__all__ = ["AuditRequest", "audit_reward", "parse_ceiling", "reward_audit_command"]

Array = NDArray[np.float64]
FORM = ("log_length", *MARKUP)
"""What the preference is regressed on."""
ALL = tuple(name for name in BUILT_IN if name != "length")
"""What the scores are explained by."""


@dataclass(frozen=True)
class AuditRequest:
    """Words of the command line. ``ceiling``: accuracy that agreement of the raters allows, as X or LOW:HIGH."""

    model: str
    data: str
    split: str = "train"
    limit: int | None = None
    ceiling: str | None = None
    slices: tuple[str, ...] = ()
    output: Path | None = None
    seed: int = 0
    token_budget: int = 16_384


def reward_audit_command(request: AuditRequest) -> tuple[dict[str, Any], Path, Path]:
    """The audit, its page and its JSON beside the page."""
    ceiling = None if request.ceiling is None else parse_ceiling(request.ceiling)
    page = request.output or Path("reward-audit.html")
    if page.suffix != ".html" or not page.absolute().parent.is_dir():
        raise ConfigError(f"--output {page}: expected a file that ends in .html, in a folder that exists")
    audited = load_audited(request.model)
    pairs = load_pairs(request.data, request.split, request.limit, audited.fitted_to)
    found = audit_reward(
        audited, pairs, ceiling=ceiling, slices=request.slices, seed=request.seed, token_budget=request.token_budget
    )
    from tether.report.reward_audit import render_reward_audit

    write_atomic(page, render_reward_audit(found))
    data = write_atomic(page.with_suffix(".json"), json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found, page, data


def parse_ceiling(text: str) -> tuple[float, float]:
    """Example: "0.8" -> (0.8, 0.8), "0.75:0.84" -> (0.75, 0.84)."""
    try:
        low, high = (float(part) for part in (text.split(":") if ":" in text else (text, text)))
    except ValueError:
        low, high = math.nan, math.nan
    if not 0.5 <= low <= high <= 1:
        raise ConfigError(f"--judgements-ceiling {text}: expected an accuracy from 0.5 to 1, or an interval of two such as 0.75:0.84")
    return low, high


def audit_reward(
    audited: Audited,
    given: AuditPairs,
    *,
    ceiling: tuple[float, float] | None = None,
    slices: Sequence[str] = (),
    seed: int = 0,
    token_budget: int = 16_384,
) -> dict[str, Any]:
    """Plain JSON: figures, tables, ``sentences``, ``flags``. Raises DataError where the model takes too few pairs to say anything."""
    _check_slices(given.rows, slices)
    cut_before, pairs = audited.num_cut, given.pairs
    scored = score_all(audited, [p.prompt for p in pairs] * 2, [*(p.chosen for p in pairs), *(p.rejected for p in pairs)], token_budget)
    scores = np.array(scored.scores)
    kept = np.flatnonzero(~np.isnan(scores[: len(pairs)] + scores[len(pairs) :]))
    judged = _Judged.of(audited, given, scores, kept)
    if np.count_nonzero(judged.label_B != 0.5) < 2 or len(set(judged.cluster)) < 2:
        reasons = "; ".join(list(dict.fromkeys(scored.refused.values()))[:2])
        raise DataError(f"{given.source}: an audit needs at least two decided pairs of two prompts that the model takes. {reasons}")
    found: dict[str, Any] = {
        "model": audited.name,
        "data": {
            "source": given.source,
            "sha256": given.sha256,
            "pairs": len(judged.pairs),
            "prompts": len(set(judged.cluster)),
            "ties": int(np.count_nonzero(judged.label_B == 0.5)),
            "left_out_seen_in_training": given.num_seen,
            "refused": len(pairs) - len(kept),
            "refusal": next(iter(scored.refused.values()), None),
            "texts_cut": audited.num_cut - cut_before,
            "notes": list(given.notes),
        },
        "log_odds_per_unit": audited.log_odds_per_unit,
        "score_offset": audited.score_offset,
        "accuracy": _interval(share_interval(judged.right_B)),
        "ceiling": None if ceiling is None else {"low": ceiling[0], "high": ceiling[1]},
        "nll": float(np.mean(_nll(judged.gap_B, judged.label_B))),
        "brier": float(np.mean(_brier(judged.gap_B, judged.label_B))),
        "calibration": asdict(calibration(judged.gap_B, judged.label_B, judged.cluster, seed)),
        "length": _length(judged, seed),
        "form": [asdict(one) for one in logistic(FORM, judged.differences(FORM), judged.preferred_B)],
        "invariances": invariances(audited, judged.pairs, judged.scores_2B, token_budget),
        "paraphrases": paraphrases(audited, judged.pairs, judged.scores_2B, token_budget),
        "probes": probes(audited, judged.pairs, judged.scores_2B, judged.cluster, token_budget, seed),
        "outside": _outside(audited, judged),
        "slices": [*_slices(judged, slices), _by_length(judged)],
        "seed": seed,
    }
    found["flags"] = flags_of(found)
    found["sentences"] = sentences_of(found)
    return _plain(found)


@dataclass(frozen=True)
class _Judged:
    """The pairs that both have scores. ``gap_B`` in log-odds, ``scores_2B`` as the model gave them: chosen, then rejected."""

    pairs: tuple[Any, ...]
    rows: tuple[Mapping[str, Any], ...]
    scores_2B: Array
    gap_B: Array
    label_B: Array
    cluster: tuple[int, ...]

    @classmethod
    def of(cls, audited: Audited, given: AuditPairs, scores_2B: Array, kept: NDArray[np.intp]) -> _Judged:
        chosen, rejected = scores_2B[kept], scores_2B[kept + len(given.pairs)]
        pairs = tuple(given.pairs[at] for at in kept)
        numbers: dict[str, int] = {}
        cluster = tuple(numbers.setdefault(repr(pair.prompt), len(numbers)) for pair in pairs)
        label_B = np.array([pair.label for pair in pairs])
        rows = tuple(given.rows[at] for at in kept) if given.rows else ({},) * len(pairs)
        return cls(pairs, rows, np.concatenate([chosen, rejected]), (chosen - rejected) * audited.log_odds_per_unit, label_B, cluster)

    @property
    def right_B(self) -> Array:
        """Against the label; NaN for ties."""
        return correct(self.gap_B, self.label_B)

    @property
    def preferred_B(self) -> Array:
        """1 where the model prefers chosen, .5 where its scores are equal."""
        return np.where(self.gap_B == 0, 0.5, (self.gap_B > 0).astype(float))

    def differences(self, names: Sequence[str]) -> Array:
        """Chosen minus rejected, one column a feature."""
        chosen_BF, rejected_BF = pair_features([feature_from(name) for name in names], self.pairs)
        return chosen_BF - rejected_BF


def _length(judged: _Judged, seed: int) -> dict[str, Any]:
    """The model beside a linear one of length alone and one of all features, both fitted to the other prompts of these very pairs."""
    told: dict[str, Any] = {}
    for name, features in (("length_only", ("log_length",)), ("all_features", ALL)):
        d_BF = judged.differences(features)
        gap_B = cross_validated(d_BF, judged.label_B, judged.cluster)
        right_B = correct(gap_B, judged.label_B)
        agree = (np.sign(gap_B) == np.sign(judged.gap_B)).astype(float)
        told[name] = {
            "accuracy": _interval(share_interval(right_B)),
            "model_minus_it": _interval(mean_interval(judged.right_B - right_B, judged.cluster, seed)),
            "agreement": float(agree.mean()),
            "explained": explained_share(judged.gap_B, d_BF),
        }
    d_B = judged.differences(("length",))[:, 0]
    longer = np.where(d_B == 0, np.nan, (np.sign(d_B) == np.sign(judged.gap_B)).astype(float))
    told["prefers_longer"] = _interval(share_interval(longer))
    return told


def _outside(audited: Audited, judged: _Judged) -> dict[str, Any] | None:
    """Texts unlike those of the training, as far as the model says what those were."""
    tokens, range_ = audited.fitted_to.get("tokens"), audited.fitted_to.get("scores")
    if audited.model is None or not tokens or not range_:
        return None
    model = audited.model
    lengths = [model.num_tokens(p.prompt, answer) for p in judged.pairs for answer in (p.chosen, p.rejected)]
    scores = judged.scores_2B + audited.score_offset
    return {
        "texts": len(lengths),
        "longer": sum(length > tokens[1] for length in lengths),
        "shorter": sum(length < tokens[0] for length in lengths),
        "score_above": int((scores > range_[1]).sum()),
        "score_below": int((scores < range_[0]).sum()),
        "tokens": list(tokens),
        "scores": list(range_),
    }


def _check_slices(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    for column in columns:
        if all(row.get(column) is None for row in rows):
            known = sorted({name for row in rows for name in row})
            raise ConfigError(f"--slice {column}: no row has this column; known: {', '.join(known) or 'none'}")


def _slices(judged: _Judged, columns: Sequence[str]) -> list[dict[str, Any]]:
    return [_table(column, [str(row.get(column))[:40] for row in judged.rows], judged) for column in columns]


def _by_length(judged: _Judged) -> dict[str, Any]:
    words = np.array([(BUILT_IN["length"](answer_text(p.chosen)) + BUILT_IN["length"](answer_text(p.rejected))) / 2 for p in judged.pairs])
    edges = np.unique(np.quantile(words, [0.25, 0.5, 0.75]))
    place = np.searchsorted(edges, words, side="left")
    names = [f"{words[place == k].min():g} to {words[place == k].max():g}" if (place == k).any() else "" for k in range(len(edges) + 1)]
    return _table("mean words of both answers, by quartile", [names[k] for k in place], judged, order=names)


def _table(title: str, keys: Sequence[str], judged: _Judged, order: Sequence[str] | None = None) -> dict[str, Any]:
    rows = []
    for key in dict.fromkeys(order or sorted(set(keys))):
        own = np.array([k == key for k in keys])
        if not own.any():
            continue
        accuracy = share_interval(judged.right_B[own])
        nll = float(np.mean(_nll(judged.gap_B[own], judged.label_B[own])))
        rows.append({"value": key, "pairs": int(own.sum()), "accuracy": _interval(accuracy), "nll": nll})
    return {"title": title, "rows": rows}


def _nll(gap_B: Array, label_B: Array) -> Array:
    return label_B * np.logaddexp(0, -gap_B) + (1 - label_B) * np.logaddexp(0, gap_B)


def _brier(gap_B: Array, label_B: Array) -> Array:
    p_B = np.exp(-np.logaddexp(0, -gap_B))
    return label_B * (1 - p_B) ** 2 + (1 - label_B) * p_B**2


def _interval(interval: Interval) -> dict[str, Any]:
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "units": interval.num_units}


def _plain(value: Any) -> Any:
    """JSON values; numbers that are not finite are null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
