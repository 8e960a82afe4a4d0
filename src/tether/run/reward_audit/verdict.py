"""What an audit comes to: flags for what a person should look at, and sentences for a reader in a hurry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from tether.clusters import told_over
from tether.stats import holm

__all__ = ["flags_of", "sentences_of"]

_EMPTY_WINS = 0.25
"""An answer without content that beats a good one more often than this, by the low end of its interval, is found out."""
_LENGTH_EXPLAINS = 0.8
_ECE = 0.05
"""Calibration errors below are not worth a flag, however certain."""
_LEAN = 0.02
"""Judges who prefer the answer shown first more (or less) often than half by less than this are not worth a flag."""


def flags_of(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each with what it is called, and what was found and what to do about it."""
    return [{"name": name, "text": text} for name, text in _flags(found)]


def _flags(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _coin_flag(found)
    length = found["length"]["length_only"]
    better = length["model_minus_it"]
    if not better["low"] > 0:
        if length["accuracy"]["low"] > 0.5:
            advice = (
                "As far as these pairs can tell, one number, the length of the answer, does as well. Do not train on it: get more pairs, "
                "or pairs whose answers are alike in length; a reward of length alone would be cheaper."
            )
        else:
            advice = "Length alone is not surely better than a coin here, so this does not speak for length: audit it on more pairs."
        yield "no better than length", f"{_length_sentence(found)} {advice}"
    if _known(length["explained"]) and length["explained_interval"]["low"] > _LENGTH_EXPLAINS:
        yield (
            "explained by length",
            f"Log length alone explains {_share(length['explained_interval'])} of the differences of its scores. A policy trained on it "
            "will learn to write longer or shorter, not better: get pairs whose answers are alike in length.",
        )
    for check in found["invariances"]:
        if not check["holds"]:
            yield (
                check["name"],
                f"The score of a text changes by up to {check['largest']:.3g} with {check['name']} (allowed {check['allowed']:.1g}): "
                "scores of one text in two batches cannot be compared. Look for dropout that is on, batch normalisation, or a padding side "
                "that the model does not know.",
            )
    calibration = found["calibration"]
    if calibration["ece_low"] > max(_ECE, calibration["ece_by_chance"]):
        yield (
            "not calibrated",
            f"Calibration error {calibration['ece']:z.3f} [{calibration['ece_low']:z.3f}, {calibration['ece_high']:z.3f}], where chance "
            f"alone gives up to {calibration['ece_by_chance']:z.3f}: its confidence is not how often it is right. Order answers by it, "
            "but do not read its scores as probabilities; fewer epochs or label smoothing make a model less sure.",
        )
    yield from _position_flags(found)
    yield from _unlike_flag(found)
    yield from _probe_flags(found)


def _coin_flag(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    accuracy = found["accuracy"]
    if accuracy["low"] > 0.5:
        return
    told = f"It prefers the answer that the judges preferred in {_share(accuracy)} of {accuracy['units']} decided pairs"
    if accuracy["high"] >= 0.5:
        yield (
            "not distinguishable from a coin",
            f"{told}, and a coin toss gives 50 %. Do not train on it. Audit it on more pairs, to know whether it is better; train it on "
            "more pairs or for more epochs; and look at the data: do the judges agree with each other (`tether collect stats`), and are "
            "chosen and rejected what their names say?",
        )
    else:
        yield (
            "worse than a coin",
            f"{told}, surely less than a coin toss: it has learned the opposite. Look whether chosen and rejected are swapped, in these "
            "pairs or in those that it was trained on.",
        )


def _probe_flags(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for probe in found["probes"]:
        wins, rise = probe["wins"], probe["rise"]
        if not wins["units"]:
            continue
        limit = {"nothing": _EMPTY_WINS, "chosen": 0.5}.get(probe["over"])
        if limit is not None and wins["low"] > limit:
            yield (
                f"probe: {probe['name']}",
                f"The probe '{probe['name']}' beats the chosen answer in {_share(wins)} of pairs. A policy that is trained on it will find "
                "this: add pairs in which such an answer loses, or a rule beside the reward (docs/rewards.md).",
            )
        if rise is not None and rise["low"] > 0.05:
            yield (
                f"probe: {probe['name']}",
                f"'{probe['name']}' beats the chosen answer in {_share(wins)} of pairs, {_percent(rise['estimate'])} "
                f"[{_percent(rise['low'])}, {_percent(rise['high'])}] more often than the rejected answer as it was. Add pairs in which "
                "such an answer loses, or a rule beside the reward (docs/rewards.md).",
            )


def _position_flags(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    told = found["position"]
    if "missing" in told:
        return
    first, model = told["first_won"], told["model"]
    if first["low"] > 0.5 + _LEAN or first["high"] < 0.5 - _LEAN:
        yield (
            "judges lean to a side",
            f"The answer that was shown first was preferred in {_share(first)}: part of these labels says where an answer stood, not how "
            "good it is. Draw the sides at random for every judgement, show pairs to two people in both orders, and see `tether collect "
            "stats` for who leans.",
        )
    if model["low"] > 0 and model["p_value"] < 0.01:
        yield (
            "the texts tell the side",
            f"It agrees more often with judgements for the answer that was shown first ({_log_odds(model)}), which it cannot see: "
            "something in the texts gives the side away, as where one model's answers always stood on one side. Draw the sides at random.",
        )


def _unlike_flag(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    told = found["unlike"]
    if "missing" not in told and told["beyond"]["low"] > 2 * told["alarm"]:
        yield (
            "unlike its training",
            f"{_share(told['beyond'])} of the {told['texts']} answers are unlike those that it was trained on, where at most "
            f"{_percent(told['alarm'])} of answers like these would be: its scores there are extrapolation. Have people judge some of "
            "these answers, and train on them too.",
        )


def sentences_of(found: Mapping[str, Any]) -> list[str]:
    """In plain words, the most important first."""
    return list(_sentences(found))


def _sentences(found: Mapping[str, Any]) -> Iterator[str]:
    data, accuracy = found["data"], found["accuracy"]
    over = told_over(accuracy["units"], "decided pairs", data["decided_prompts"], found["effective_pairs"])
    yield f"It prefers the answer that the judges preferred in {_share(accuracy)} of {over} (95 % Wilson interval); a coin toss gives 50 %."
    yield from _about_ceiling(found)
    yield _length_sentence(found)
    everything = found["length"]["all_features"]
    if _known(everything["explained"]):
        yield (
            f"Length alone explains {_share(found['length']['length_only']['explained_interval'])} of the differences of its scores, all "
            f"named features together {_share(everything['explained_interval'])} (R^2); the rest is what it sees beyond them, or noise."
        )
    calibration = found["calibration"]
    yield (
        f"Calibration error {calibration['ece']:z.3f} [{calibration['ece_low']:z.3f}, {calibration['ece_high']:z.3f}] in ten bins; "
        f"a perfectly calibrated model stays below {calibration['ece_by_chance']:z.3f} on so many pairs in 95 of 100 cases."
    )
    yield _form_sentence(found)
    yield _position_sentence(found)
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
    yield _unlike_sentence(found)
    yield from data["notes"]


def _about_ceiling(found: Mapping[str, Any]) -> Iterator[str]:
    ceiling = found["ceiling"]
    if ceiling is None:
        if found["no_ceiling"]:
            yield f"How good a model could be at most is not known: {found['no_ceiling']}."
        return
    low, high, single = ceiling["low"], ceiling["high"], ceiling["against"]
    accuracy = single or found["accuracy"]
    told = _percent(low) if low == high else f"{_percent(low)} to {_percent(high)}"
    middle = ceiling["estimate"] or (low + high) / 2
    way = (accuracy["estimate"] - 0.5) / (middle - 0.5) if middle > 0.5 else None
    share = "" if way is None else f"it is {_percent(way)} of the way from a coin toss to there"
    where = (
        "its interval reaches that: the judgements cannot show that a better model exists"
        if accuracy["high"] >= low
        else "it stays below that"
    )
    if single:
        yield f"It agrees with a single judgement in {_share(single)} of {single['units']} decided ones, which is what a ceiling is about."
    yield f"Agreement of the raters ({ceiling['source']}) allows an accuracy of {told}; {where}{'; ' + share if share else ''}."
    if not single:
        yield (
            "That is its accuracy on the labels of the pairs. Where several people made one, it is easier to agree with than the single "
            "judgement that a ceiling is about: audit the database, or an export with `votes_chosen` and `votes_rejected`."
        )


def _position_sentence(found: Mapping[str, Any]) -> str:
    told = found["position"]
    if "missing" in told:
        return f"Whether labels follow the side on which an answer was shown cannot be told: {told['missing']}."
    judges, model = told["judges"], told["model"]
    lean = "; this is within noise of half" if judges["low"] <= 0 <= judges["high"] else ""
    if model["high"] < 0:
        verdict = "it agrees less with judgements for the answer shown first, so the side decided part of the labels"
    elif model["low"] > 0:
        verdict = "it agrees more with judgements for the answer shown first, so the texts give the side away"
    else:
        verdict = "its errors do not depend on the side by more than noise"
    return (
        f"The answer shown first was preferred in {_share(told['first_won'])} of {told['judgements']} judgements ({told['source']}), "
        f"{_log_odds(judges)}{lean}. The model cannot see sides; {verdict} ({_log_odds(model)})."
    )


def _unlike_sentence(found: Mapping[str, Any]) -> str:
    told = found["unlike"]
    if "missing" in told:
        return f"Whether these answers are like those of its training is judged by their lengths and scores at most: {told['missing']}."
    same = ""
    if told["same_texts"]:
        same = f" ({told['same_texts']} of them set the limit themselves)"
    return (
        f"{_share(told['beyond'])} of the {told['texts']} answers{same} are unlike those of its training, by its hidden states or by their "
        f"words; of answers like those of its training, at most {_percent(told['alarm'])} are."
    )


def _log_odds(one: Mapping[str, Any]) -> str:
    low, high = (f"{one[end]:+z.2f}" if _known(one[end]) else "–" for end in ("low", "high"))
    return f"log-odds {one['value']:+z.2f} [{low}, {high}]"


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
    if not _known(interval["estimate"]):
        return "unknown"
    return f"{_percent(interval['estimate'])} [{_percent(interval['low'])}, {_percent(interval['high'])}]"


def _percent(value: float | None) -> str:
    return f"{100 * value:z.1f} %" if _known(value) else "unknown"


def _known(value: float | None) -> TypeGuard[float]:
    """A number; not None or NaN, which stand for what cannot be told, and no end of an interval without one."""
    return value is not None and math.isfinite(value)
