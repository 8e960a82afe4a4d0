"""What an audit comes to: flags for what a person should look at, and sentences for a reader in a hurry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tether.stats import holm

__all__ = ["flags_of", "sentences_of"]

_EMPTY_WINS = 0.25
"""An answer without content that beats a good one more often than this, by the low end of its interval, is found out."""
_LENGTH_EXPLAINS = 0.8
_ECE = 0.05
"""Calibration errors below are not worth a flag, however certain."""


def flags_of(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each with what it is called and a sentence."""
    return [{"name": name, "text": text} for name, text in _flags(found)]


def _flags(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    length = found["length"]["length_only"]
    better = length["model_minus_it"]
    if not better["low"] > 0:
        yield (
            "no better than length",
            f"{_length_sentence(found)} One number, the length of the answer, does as well or better.",
        )
    if length["explained"] is not None and length["explained"] > _LENGTH_EXPLAINS:
        yield "explained by length", f"Log length alone explains {_percent(length['explained'])} of the differences of its scores."
    for check in found["invariances"]:
        if not check["holds"]:
            yield (
                check["name"],
                f"The score of a text changes by up to {check['largest']:.3g} with {check['name']} (allowed {check['allowed']:.1g}): "
                "scores of one text in two batches cannot be compared.",
            )
    calibration = found["calibration"]
    if calibration["ece_low"] > max(_ECE, calibration["ece_by_chance"]):
        yield (
            "not calibrated",
            f"Calibration error {calibration['ece']:z.3f} [{calibration['ece_low']:z.3f}, {calibration['ece_high']:z.3f}], where chance "
            f"alone gives up to {calibration['ece_by_chance']:z.3f}: its confidence is not how often it is right.",
        )
    yield from _probe_flags(found)


def _probe_flags(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for probe in found["probes"]:
        wins, rise = probe["wins"], probe["rise"]
        if not wins["units"]:
            continue
        limit = {"nothing": _EMPTY_WINS, "chosen": 0.5}.get(probe["over"])
        if limit is not None and wins["low"] > limit:
            yield f"probe: {probe['name']}", f"The probe '{probe['name']}' beats the chosen answer in {_share(wins)} of pairs."
        if rise is not None and rise["low"] > 0.05:
            yield (
                f"probe: {probe['name']}",
                f"'{probe['name']}' beats the chosen answer in {_share(wins)} of pairs, {_percent(rise['estimate'])} "
                f"[{_percent(rise['low'])}, {_percent(rise['high'])}] more often than the rejected answer as it was.",
            )


def sentences_of(found: Mapping[str, Any]) -> list[str]:
    """In plain words, the most important first."""
    return list(_sentences(found))


def _sentences(found: Mapping[str, Any]) -> Iterator[str]:
    data, accuracy = found["data"], found["accuracy"]
    yield (
        f"It prefers the answer that the judges preferred in {_share(accuracy)} of {accuracy['units']} decided pairs of {data['prompts']} "
        f"prompts (95 % Wilson interval); a coin toss gives 50 %."
    )
    yield from _about_ceiling(found)
    yield _length_sentence(found)
    everything = found["length"]["all_features"]
    if everything["explained"] is not None:
        yield (
            f"Length alone explains {_percent(found['length']['length_only']['explained'])} of the differences of its scores, all named "
            f"features together {_percent(everything['explained'])}; the rest is what it sees beyond them, or noise."
        )
    calibration = found["calibration"]
    yield (
        f"Calibration error {calibration['ece']:z.3f} [{calibration['ece_low']:z.3f}, {calibration['ece_high']:z.3f}] in ten bins; "
        f"a perfectly calibrated model stays below {calibration['ece_by_chance']:z.3f} on so many pairs in 95 of 100 cases."
    )
    yield _form_sentence(found)
    if data["left_out_seen_in_training"]:
        yield f"{data['left_out_seen_in_training']} pairs of prompts that it was trained on were left out."
    if data["texts_cut"]:
        yield f"{data['texts_cut']} texts were longer than it reads and were cut by the rule stored with it."
    if data["refused"]:
        yield f"{data['refused']} pairs were left out because it refuses one of their texts: {data['refusal']}"
    outside = found["outside"]
    if outside:
        yield (
            f"Unlike its training: {outside['longer']} of {outside['texts']} texts are longer and {outside['shorter']} shorter than any of "
            f"those ({outside['tokens'][0]} to {outside['tokens'][1]} tokens), {outside['score_above']} scores lie above and "
            f"{outside['score_below']} below those it gave to held-out answers then."
        )
    yield from data["notes"]


def _about_ceiling(found: Mapping[str, Any]) -> Iterator[str]:
    ceiling, accuracy = found["ceiling"], found["accuracy"]
    if ceiling is None:
        return
    low, high = ceiling["low"], ceiling["high"]
    told = f"{_percent(low)}" if low == high else f"{_percent(low)} to {_percent(high)}"
    middle = (low + high) / 2
    way = (accuracy["estimate"] - 0.5) / (middle - 0.5) if middle > 0.5 else None
    share = "" if way is None else f"it is {_percent(way)} of the way from a coin toss to there"
    where = (
        "its interval reaches that: the judgements cannot show that a better model exists"
        if accuracy["high"] >= low
        else "it stays below that"
    )
    yield f"Agreement of the raters allows an accuracy of {told}; {where}{'; ' + share if share else ''}."


def _length_sentence(found: Mapping[str, Any]) -> str:
    length = found["length"]["length_only"]
    accuracy, better = length["accuracy"], length["model_minus_it"]
    gap = f"{100 * better['estimate']:+z.1f} points [{100 * better['low']:+z.1f}, {100 * better['high']:+z.1f}]"
    if better["low"] > 0:
        verdict = "it is better than length alone"
    elif better["high"] < 0:
        verdict = "it is worse than length alone"
    else:
        verdict = "its accuracy is within noise of length alone"
    return f"A model of length alone reaches {_share(accuracy)} on these pairs; the difference is {gap}: {verdict}."


def _form_sentence(found: Mapping[str, Any]) -> str:
    form = [one for one in found["form"] if one["name"] != "label"]
    if not form:
        return "The two answers of a pair never differ in length or form, so nothing is known of a bias for these."
    adjusted = dict(zip((one["name"] for one in form), holm([one["p_value"] for one in form]), strict=True))
    certain = [one for one in form if adjusted[one["name"]] < 0.05]
    if not certain:
        return "Given the label, neither length nor markup moves its preference by more than noise (Holm over all of them)."
    told = ", ".join(f"{one['name']} {one['value']:+z.2f} [{one['low']:+z.2f}, {one['high']:+z.2f}]" for one in certain)
    return f"Given the label, its preference leans on (log-odds per standard deviation of the difference, Holm below .05): {told}."


def _share(interval: Mapping[str, Any]) -> str:
    if interval["estimate"] is None:
        return "unknown"
    return f"{_percent(interval['estimate'])} [{_percent(interval['low'])}, {_percent(interval['high'])}]"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:z.1f} %"
