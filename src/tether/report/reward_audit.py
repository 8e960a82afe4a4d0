"""The audit of a reward model as one self-contained page, from the dictionary that its JSON file holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tether.report.charts import Chart, chart
from tether.report.page import render_document
from tether.report.plain import percent

__all__ = ["audit_text", "render_reward_audit"]

Table = tuple[str, Sequence[str], Sequence[Sequence[str]], str]


def render_reward_audit(found: Mapping[str, Any]) -> str:
    """The page. Nothing in it is loaded from elsewhere, and no text of the data can become markup."""
    values = {
        "title": f"Audit of {found['model']}",
        "subtitle": f"Reward model audit on {found['data']['source']}, {found['data']['pairs']} pairs",
        "flags": found["flags"],
        "sentences": found["sentences"],
        "tables": tables(found),
        "charts": [_calibration_chart(found)],
        "hashes": [("reward model", found["model_sha256"] or "no model of a file"), ("pairs", found["data"]["sha256"] or "not a file")],
    }
    return render_document(values["title"], "plain.html", values)


def audit_text(found: Mapping[str, Any]) -> str:
    """The same for a terminal."""
    lines = [f"Audit of {found['model']} on {found['data']['source']}", ""]
    lines += [f"  {sentence}" for sentence in found["sentences"]]
    lines += ["", "Flags" if found["flags"] else "No flags"]
    lines += [f"  {flag['name']}: {flag['text']}" for flag in found["flags"]]
    for title, columns, rows, note in tables(found):
        lines += ["", title]
        widths = [max(len(str(row[k])) for row in (columns, *rows)) for k in range(len(columns))]
        for row in (columns, *rows):
            lines.append(("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))).rstrip())
        lines += [f"  {note}"] if note else []
    return "\n".join(lines)


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Every table as (title, columns, rows, what to know)."""
    made = [_figures(found), _length(found), _form(found), *_position(found), _invariances(found), _paraphrases(found), _probes(found)]
    return [*made, *_unlike(found), *_slices(found)]


def _figures(found: Mapping[str, Any]) -> Table:
    calibration = found["calibration"]
    ece = {"estimate": calibration["ece"], "low": calibration["ece_low"], "high": calibration["ece_high"]}
    ceiling = found["ceiling"]
    against = [("agreement with single judgements, share", _interval(ceiling["against"]))] if ceiling and ceiling["against"] else []
    limit = [("ceiling, share", f"{_number(ceiling['low'])} to {_number(ceiling['high'])}")] if ceiling else []
    rows = [
        ("accuracy, share of decided pairs", _interval(found["accuracy"])),
        *against,
        *limit,
        ("negative log-likelihood, nats per pair", _interval(found["nll_interval"])),
        ("Brier score, 0 to 1", _interval(found["brier_interval"])),
        ("calibration error in ten bins, share", _interval(ece)),
    ]
    note = f"Scores are read as log-odds, {found['log_odds_per_unit']:.4g} a unit: that factor is stored with the model (1 if none is)."
    return ("Held-out figures", ("figure", "value"), rows, note)


def _length(found: Mapping[str, Any]) -> Table:
    figures = ("accuracy", "model_minus_it", "agreement_interval", "explained_interval")
    rows = [
        (what, *(_interval(one[name]) for name in figures))
        for what, one in (("length only", found["length"]["length_only"]), ("all features", found["length"]["all_features"]))
    ]
    columns = ("linear model of", "its accuracy, share", "model minus it", "same preference, share", "of the scores explained, R^2")
    longer = _interval(found["length"]["prefers_longer"])
    note = f"Fitted to the other prompts of these pairs. It prefers the longer answer in {longer}."
    return ("Beside linear models", columns, rows, note)


def _form(found: Mapping[str, Any]) -> Table:
    rows = [(one["name"], _coefficient(one), f"{one['p_value']:.2g}") for one in found["form"]]
    note = (
        "Logistic regression of the model's preference on the label and on differences of form, in log-odds per standard deviation of each "
        "difference: 0 is no lean. The label: from a tie to certainly chosen. The model reads one answer at a time, so it has no position "
        "to prefer."
    )
    return ("What the preference leans on, given the label", ("difference", "log-odds", "p"), rows, note)


def _position(found: Mapping[str, Any]) -> list[Table]:
    told = found["position"]
    if "missing" in told:
        return []
    rows = [
        ("judgements prefer the answer shown first, share", _interval(told["first_won"])),
        ("judges: log-odds of being preferred, shown first +1, second -1", _coefficient(told["judges"])),
        ("model: log-odds of agreeing, preferred answer shown first +1, second -1", _coefficient(told["model"])),
    ]
    note = (
        f"From {told['judgements']} decided judgements ({told['source']}). Judges: 0 is no lean to a side. Model: it cannot see sides, so "
        "below 0 part of the labels was decided by the side, and above 0 the texts give the side away."
    )
    return [("Position on the judges' page", ("figure", "value"), rows, note)]


def _coefficient(one: Mapping[str, Any]) -> str:
    """Without an end where the judgements of one prompt are all there is: these bound nothing."""
    low, high = ("–" if one[end] is None else f"{one[end]:+z.3f}" for end in ("low", "high"))
    return f"{one['value']:+z.3f} [{low}, {high}]"


def _unlike(found: Mapping[str, Any]) -> list[Table]:
    told = found["unlike"]
    if "missing" in told:
        return []
    accuracy = told["accuracy"]
    rows = [
        ("answers unlike, share", _interval(told["beyond"])),
        ("of these by hidden states, answers", str(told["by_states"])),
        ("of these by words, answers", str(told["by_words"])),
        ("accuracy where both answers are like", _interval(accuracy["like"])),
        ("accuracy where one is unlike", _interval(accuracy["unlike"])),
    ]
    note = (
        f"Fitted to {told['fitted']} training answers of {told['source']}; limits set on {told['limit_texts']} {told['limit_from']}, so "
        f"that at most {percent(told['alarm'])} of answers like these are called unlike."
    )
    strange = [
        (one["name"], str(one["texts"]), percent(one["noticed"]), percent(one["by_states"]), percent(one["by_words"]))
        for one in told["strange"]
    ]
    columns = ("put in place of the answer", "answers", "noticed", "by hidden states", "by words")
    seen = "What this would notice: answers that are certainly unlike English prose. A low share means that unlike answers can pass unseen."
    return [("Unlike its training", ("figure", "value"), rows, note), ("Would it notice?", columns, strange, seen)]


def _invariances(found: Mapping[str, Any]) -> Table:
    rows = [
        (one["name"], str(one["texts"]), f"{one['largest']:.2g}", f"{one['allowed']:.1g}", "holds" if one["holds"] else "FAILS")
        for one in found["invariances"]
    ]
    columns = ("change", "texts", "largest change of a score", "allowed", "verdict")
    return ("What must not matter", columns, rows, "In units of score, over the texts of the first pairs.")


def _paraphrases(found: Mapping[str, Any]) -> Table:
    rows = [
        (
            one["name"],
            str(one["texts"]),
            _interval(one["mean_interval"]) if one["mean_interval"] else "–",
            _number(one["mean_absolute"]),
            _number(one["largest"]),
            _interval(one["turned_interval"]) if one["turned_interval"] else "–",
        )
        for one in found["paraphrases"]
    ]
    note = "Shift of the chosen answer's score in standard deviations of all scores; turned: share of pairs that it then prefers otherwise."
    return ("The same in other words", ("rewriting", "texts", "mean", "mean size", "largest", "turned"), rows, note)


def _probes(found: Mapping[str, Any]) -> Table:
    rows = [
        (one["name"], _interval(one["wins"]), _interval(one["rise"]) if one["rise"] else "", str(one["refused"])) for one in found["probes"]
    ]
    note = "Rise: how much more often than the rejected answer as it was. Texts that the model refuses are counted and left out."
    return ("Answers that nobody should prefer", ("probe", "beats the chosen answer", "rise", "refused"), rows, note)


def _slices(found: Mapping[str, Any]) -> list[Table]:
    columns = ("value", "pairs", "prompts", "accuracy, share", "nats per pair")

    def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
        return row["value"], str(row["pairs"]), str(row["prompts"]), _interval(row["accuracy"]), _number(row["nll"])

    return [(f"By {one['title']}", columns, [cells(row) for row in one["rows"]], "") for one in found["slices"]]


def _calibration_chart(found: Mapping[str, Any]) -> Chart:
    bins = [one for one in found["calibration"]["bins"] if one["num_pairs"]]
    series = {
        "accuracy": [(one["confidence"], one["accuracy"]) for one in bins],
        "perfect": [(0.5, 0.5), (1.0, 1.0)],
        "95 % low": [(one["confidence"], one["accuracy_low"]) for one in bins],
        "95 % high": [(one["confidence"], one["accuracy_high"]) for one in bins],
    }
    meaning = "Pairs by the model's confidence, max(p, 1 - p), and how often it is right among them."
    return chart("calibration", "share", meaning, series, x_label="confidence")


def _interval(one: Mapping[str, Any]) -> str:
    return f"{_number(one['estimate'])} [{_number(one['low'])}, {_number(one['high'])}]"


def _number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:z.3f}"
