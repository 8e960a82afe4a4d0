"""All of an audit as one dictionary of plain values, with what it comes to in sentences and what should be looked at as flags."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.clusters import effective_number
from tether.errors import ConfigError, DataError
from tether.files import json_ready, overwritten, write_atomic
from tether.rewards.features import BUILT_IN, MARKUP
from tether.run.reward_audit.figures import (
    Coefficient,
    calibration,
    correct,
    cross_validated,
    explained_interval,
    explained_share,
    logistic,
    mean_interval,
    share_interval,
)
from tether.run.reward_audit.judged import Judged, interval_dict, nll
from tether.run.reward_audit.pairs import AuditPairs, Ceiling, load_pairs
from tether.run.reward_audit.position import against_single_judgements, position
from tether.run.reward_audit.scorer import Audited, load_audited, score_all
from tether.run.reward_audit.slices import check_slices
from tether.run.reward_audit.slices import slices as made_slices
from tether.run.reward_audit.stress import invariances, paraphrases, probes
from tether.run.reward_audit.training_texts import training_texts
from tether.run.reward_audit.unlike import unlike
from tether.run.reward_audit.verdict import flags_of, sentences_of

__all__ = ["AuditRequest", "audit_reward", "parse_ceiling", "reward_audit_command"]

Array = NDArray[np.float64]
FORM = ("log_length", *MARKUP)
"""What the preference is regressed on."""
ALL = tuple(name for name in BUILT_IN if name != "length")
"""What the scores are explained by."""


@dataclass(frozen=True)
class AuditRequest:
    """Words of the command line. ``ceiling``: accuracy that agreement of the raters allows, as X or LOW:HIGH; None: what a database says of
    its own. ``split``: None is train, of a database held_out."""

    model: str
    data: str
    split: str | None = None
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
    problems = overwritten({"--output": page, "the figures beside --output,": page.with_suffix(".json")}, (request.model, request.data))
    for option, value, least in (("--seed", request.seed, 0), ("--token-budget", request.token_budget, 1)):
        problems += [f"{option} {value}: must be at least {least}"] if value < least else []
    if problems:
        raise ConfigError(problems, "reward audit")
    audited = load_audited(request.model)
    pairs = load_pairs(request.data, request.split, request.limit, audited.fitted_to, request.seed)
    options = {"slices": request.slices, "seed": request.seed, "token_budget": request.token_budget}
    found = audit_reward(audited, pairs, ceiling=ceiling, **options)
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
    """Plain JSON: figures, tables, ``sentences``, ``flags``. ``ceiling`` stands before that of ``given``. Raises DataError where the model
    takes too few pairs to say anything."""
    check_slices(given, slices)
    cut_before, pairs = audited.num_cut, given.pairs
    scored = score_all(audited, [p.prompt for p in pairs] * 2, [*(p.chosen for p in pairs), *(p.rejected for p in pairs)], token_budget)
    scores = np.array(scored.scores)
    kept = np.flatnonzero(~np.isnan(scores[: len(pairs)] + scores[len(pairs) :]))
    judged = Judged.of(audited, given, scores, kept)
    decided_prompts = len({at for at, label in zip(judged.cluster, judged.label_B, strict=True) if label != 0.5})
    if decided_prompts < 2:
        reasons = "; ".join(list(dict.fromkeys(scored.refused.values()))[:2])
        needs = f"an audit needs decided pairs of at least two prompts, got {decided_prompts} with one that the model takes; give more"
        raise DataError(f"{given.source}: {needs}" + (f". {reasons}" if reasons else ""))
    found: dict[str, Any] = {
        "model": audited.name,
        "model_sha256": audited.sha256,
        "data": {
            "source": given.source,
            "sha256": given.sha256,
            "pairs": len(judged.pairs),
            "prompts": len(set(judged.cluster)),
            "decided_prompts": decided_prompts,
            "ties": int(np.count_nonzero(judged.label_B == 0.5)),
            "left_out_seen_in_training": given.num_seen,
            "refused": len(pairs) - len(kept),
            "refusal": next(iter(scored.refused.values()), None),
            "texts_cut": audited.num_cut - cut_before,
            "notes": list(given.notes),
        },
        "log_odds_per_unit": audited.log_odds_per_unit,
        "score_offset": audited.score_offset,
        "accuracy": interval_dict(share_interval(judged.right_B, judged.cluster)),
        "effective_pairs": _effective(judged),
        "ceiling": _ceiling(judged, given, ceiling),
        "no_ceiling": given.no_ceiling if ceiling is None else "",
        "nll": float(np.mean(losses := nll(judged.gap_B, judged.label_B))),
        "nll_interval": interval_dict(mean_interval(losses, judged.cluster, seed)),
        "brier": float(np.mean(squares := _brier(judged.gap_B, judged.label_B))),
        "brier_interval": interval_dict(mean_interval(squares, judged.cluster, seed)),
        "calibration": asdict(calibration(judged.gap_B, judged.label_B, judged.cluster, seed)),
        "length": _length(judged, seed),
        "form": [asdict(one) for one in _form(judged)],
        "invariances": invariances(audited, judged.pairs, judged.scores_2B, token_budget),
        "paraphrases": paraphrases(audited, judged.pairs, judged.scores_2B, judged.cluster, token_budget, seed),
        "probes": probes(audited, judged.pairs, judged.scores_2B, judged.cluster, token_budget, seed),
        "position": position(judged),
        "outside": _outside(audited, judged),
        "unlike": _unlike(audited, judged, token_budget, seed),
        "slices": made_slices(judged, slices),
        "seed": seed,
    }
    found["flags"] = flags_of(found)
    found["sentences"] = sentences_of(found)
    return json_ready(found)


def _length(judged: Judged, seed: int) -> dict[str, Any]:
    """The model beside a linear one of length alone and one of all features, both fitted to the other prompts of these very pairs."""
    told: dict[str, Any] = {}
    for name, features in (("length_only", ("log_length",)), ("all_features", ALL)):
        d_BF = judged.differences(features)
        gap_B = cross_validated(d_BF, judged.label_B, judged.cluster)
        right_B = correct(gap_B, judged.label_B)
        agree = (np.sign(gap_B) == np.sign(judged.gap_B)).astype(float)
        told[name] = {
            "accuracy": interval_dict(share_interval(right_B, judged.cluster)),
            "model_minus_it": interval_dict(mean_interval(judged.right_B - right_B, judged.cluster, seed)),
            "agreement": float(agree.mean()),
            "agreement_interval": interval_dict(share_interval(agree, judged.cluster)),
            "explained": explained_share(judged.gap_B, d_BF),
            "explained_interval": interval_dict(explained_interval(judged.gap_B, d_BF, judged.cluster, seed)),
        }
    d_B = judged.differences(("length",))[:, 0]
    longer = np.where(d_B == 0, np.nan, np.where(d_B > 0, judged.preferred_B, 1 - judged.preferred_B))
    told["prefers_longer"] = interval_dict(share_interval(longer, judged.cluster))
    return told


def _form(judged: Judged) -> list[Coefficient]:
    return logistic(FORM, judged.differences(FORM), judged.label_B, judged.preferred_B, judged.cluster)


def _outside(audited: Audited, judged: Judged) -> dict[str, Any] | None:
    """Texts unlike those of the training, as far as the model says what those were."""
    tokens, range_ = audited.fitted_to.get("tokens"), audited.fitted_to.get("scores")
    if audited.model is None or not tokens or not range_:
        return None
    model = audited.model
    texts = [(pair.prompt, answer) for pair in judged.pairs for answer in (pair.chosen, pair.rejected)]
    lengths = [min(model.num_tokens(prompt, answer), model.max_length) for prompt, answer in texts]  # after the cut, as the training's
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


def _effective(judged: Judged) -> float:
    known = ~np.isnan(judged.right_B)
    return effective_number(judged.right_B[known], np.asarray(judged.cluster)[known])


def _ceiling(judged: Judged, given: AuditPairs, asked: tuple[float, float] | None) -> dict[str, Any] | None:
    """``against``: the accuracy to hold beside it, that against single judgements where these are known."""
    ceiling = given.ceiling if asked is None else Ceiling(*asked, "--judgements-ceiling")
    return None if ceiling is None else {**asdict(ceiling), "against": against_single_judgements(judged)}


def _unlike(audited: Audited, judged: Judged, token_budget: int, seed: int) -> dict[str, Any]:
    """Only ``missing``, the reason, where the training texts are not at hand."""
    if audited.model is None:
        return {"missing": "it is no model that reads tokens"}
    known = training_texts(audited.name, audited.model, seed)
    return {"missing": known} if isinstance(known, str) else unlike(audited.model, judged, known, token_budget, seed)


def _brier(gap_B: Array, label_B: Array) -> Array:
    p_B = np.exp(-np.logaddexp(0, -gap_B))
    return label_B * (1 - p_B) ** 2 + (1 - label_B) * p_B**2
