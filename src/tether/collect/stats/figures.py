"""The registry of figures: every number of a summary has a name, unit, what it is over, a meaning, a good band and what to do outside it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIGURES", "FigureKind"]

Band = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One kind of number. ``good``: (low, high) with None for an open end, or None where no band is meaningful."""

    name: str
    unit: str
    over: str
    meaning: str
    good: Band | None = None
    advice: str = ""


def _table(*rows: tuple[str, str, str, str, Band | None, str]) -> dict[str, FigureKind]:
    return {row[0]: FigureKind(*row) for row in rows}


_PAIRS = "pairs of people on one pair of answers, bootstrap over prompts"
_JUDGED = "judgements of two answers, bootstrap over prompts"
_DECIDED = "decided judgements of two answers"
_OVER_PROMPTS = ", Wilson's interval over prompts"

FIGURES: dict[str, FigureKind] = _table(
    # how much there is
    ("judgements", "judgements", "everything but withdrawn ones", "Judgements read, skips and test questions among them.", None, ""),
    ("annotators", "people", "everything but withdrawn ones", "People who judged.", (3, None), "With fewer than three people nobody's competence can be told from the others' mistakes."),
    ("units", "pairs of answers", "ordinary items", "Different pairs of answers that were judged.", None, ""),
    ("shared_units", "pairs of answers", "ordinary items", "Pairs of answers that two or more people judged: all agreement comes from these.", (100, None), "Raise the overlap: `tether collect simulate` says how many are needed for a wanted interval."),
    # the ceiling
    ("ceiling", "share", "decided judgements, bootstrap over prompts", "Accuracy of a perfect reward model against a single decided judgement, if quality gaps are normal. Compare a reward model's held-out accuracy with this, not with 1.", (0.65, None), "People see little difference between the answers, or the question is unclear: sharpen the guidelines, leave out careless people, or take answers that lie further apart."),
    ("ceiling_ties_half", "share", "all judgements, bootstrap over prompts", "The same on all judgements, where a tie earns one half whatever the model says.", None, ""),
    ("ceiling_least", "share", "decided judgements", "The ceiling is at least this, whatever the shape of the disagreement (1/2 + E e^2 / 2 E d).", None, ""),
    ("ceiling_most", "share", "decided judgements", "The ceiling is at most this, whatever the shape (1/2 + sqrt(E e^2) / 2 E d).", None, ""),
    ("ceiling_beta", "share", "decided judgements", "The ceiling if preference shares follow a beta distribution instead: how much the assumed shape matters.", None, ""),
    # agreement
    ("raw_agreement", "share", _PAIRS, "Two people say the same of the same pair (first, tie, second, both bad).", (0.5, None), "Look at the items with the most disagreement and say in the guidelines how to decide them."),
    ("decided_agreement", "share", _PAIRS, "Two people who both prefer one answer prefer the same one; 0.5 is a coin.", (0.65, None), "As for the ceiling."),
    ("alpha_nominal", "1", _PAIRS, "Krippendorff's alpha over the four categories, every pair in both directions: 1 is perfect, 0 is chance.", (0.2, None), "As for the ceiling; values above 0.67 are rare for preferences between answers of one model."),
    ("alpha_ordinal", "1", _PAIRS, "The same with first < tie < second (both bad as a tie): confusing a tie with a preference counts less than opposite preferences.", (0.2, None), "As for the ceiling."),
    ("fleiss_kappa", "1", _PAIRS + ", pairs of answers with the most common number of people", "Fleiss' kappa over the four categories, every pair in both directions: 1 is perfect, 0 is chance.", (0.2, None), "As for the ceiling."),
    # habits
    ("left_share", "share", _DECIDED + ", exact interval", "The answer on the left won; 0.5 without a position bias.", (0.45, 0.55), "The page balances sides, so the labels are noisier, not biased; tell people, and look at those who click one side."),
    ("left_p_value", "probability", _DECIDED, "Exact binomial test of \"left won\" being a fair coin.", None, ""),
    ("left_log_odds", "log-odds", _DECIDED + ", cluster-robust over prompts", "What standing on the left adds, from the same regression as length_log_odds.", (-0.2, 0.2), "As for left_share."),
    ("tie_share", "share", _JUDGED, "Said to be equally good.", (None, 0.3), "Answers too alike, or ties used to go on quickly: compare times, and draw answers at a higher temperature."),
    ("both_bad_share", "share", _JUDGED, "Neither should be given.", (None, 0.2), "The policy is not ready for preferences here: more demonstrations for these prompts first."),
    ("skip_share", "share", "judgements that are no test questions" + _OVER_PROMPTS, "Skipped, with a reason.", (None, 0.1), "Read the reasons."),
    ("much_share", "share", "judgements with a strength, bootstrap over prompts", "Said to be much better, not slightly.", None, ""),
    ("agreement_when_much", "share", _PAIRS, "decided_agreement where one of the two said \"much\".", None, "Should lie above agreement_when_slight; if not, strengths mean nothing here: do not weight by them."),
    ("agreement_when_slight", "share", _PAIRS, "decided_agreement where one of the two said \"slightly\".", None, ""),
    ("length_log_odds", "log-odds per log ratio", _DECIDED + ", cluster-robust over prompts", "Logistic regression of the choice on log(length of first / length of second), with the side as the other term.", (-0.3, 0.5), "Longer answers win (or lose). If they are not better, ask in the guidelines for the shortest answer that is complete, and watch the policy's length."),
    ("longer_wins", "share", _DECIDED + ", cluster-robust over prompts", "From it: an answer twice as long as the other is chosen with this chance.", (0.45, 0.6), "As for length_log_odds."),
    ("median_seconds", "s", "judgements with a time, no skips", "Median active time of a judgement.", (3, None), "Too fast to have read the answers."),
    ("hasty_share", "share", "judgements with a time, no skips, no repeats", "Too quick to have read the texts: over 200 characters a second, or under a third of what the others take for texts of that length.", (None, 0.1), "Look at the people who are named; if it is nearly everybody, pay by the hour and not by the judgement."),
    ("pause_share", "share", "judgements with a time, no skips", "With a pause in them: much longer than that person's others (beyond what 1 in 2000 normal log times reach). Harmless.", None, ""),
    # people against the rest, known answers and themselves
    ("gold_accuracy", "share", "judged test questions" + _OVER_PROMPTS, "Test questions answered as known.", (0.85, None), "Check the test questions first, then the people below 0.7."),
    ("repeat_agreement", "share", "first repeats of one person" + _OVER_PROMPTS, "People say the same again of a pair they have judged before.", (0.7, None), "Nobody can agree with others more than with themselves: the question is unclear, or people click."),
    ("repeat_agreement_swapped", "share", "first repeats with the sides swapped" + _OVER_PROMPTS, "The same where the sides were swapped in between.", (0.7, None), "Much lower than repeat_agreement: people follow the side."),
    ("unreliable_annotators", "people", "people who share pairs with others", "Agreement at or near chance: reliability surely below half of the typical person's, by an interval that holds for all people at once.", (0, 0), "Read their judgements; leave them out if they clicked: `tether collect export --without NAME`."),
    ("hasty_annotators", "people", "people with a time", "Surely more than a third of their judgements are hasty, by an interval that holds for all people at once.", (0, 0), "Ask how they work; where their agreement is near chance as well, leave them out: `tether collect export --without NAME`."),
    # contradictions
    ("cyclic_share", "share", "triples of answers to one prompt, bootstrap over prompts", "Majorities form a cycle, a over b over c over a; 0.25 for coin tosses.", None, "Compare with cyclic_expected: much above it means that quality has more than one dimension here, and one score cannot hold it."),
    ("cyclic_expected", "share", "the same triples", "Cycles that noise alone makes when every answer has one quality and the noise is that of the ceiling.", None, ""),
)  # fmt: skip
