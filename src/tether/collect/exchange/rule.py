"""From judgements to comparisons: one stated rule, pure functions.

The votes of a pair (a, b) are the live judgements of its item that are no skips; a ranking of three or more answers votes on every pair of
them. With n votes, of which n_a for a and n_b for b, the rest ties:

    chosen = the answer with more votes;  soft_label = (n_chosen + (n - n_a - n_b) / 2) / n;  agreement = n_chosen / n

    margin (option) = max(0, mean over the votes of: strength value of a vote for chosen, less that of a vote against, 0 for a tie)

n_a = n_b is a tie. Every pair that gives no row is counted under its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.errors import ConfigError

__all__ = ["COLUMNS", "Decision", "Rule", "Votes", "decide", "pair_votes"]

COLUMNS = (
    "prompt", "chosen", "rejected", "margin", "strength", "num_judgements", "agreement", "soft_label", "item_id", "prompt_id", "chosen_by",
    "annotators", "chosen_shown_first", "votes_chosen", "votes_rejected",
)  # fmt: skip
"""Of every exported row, in this order. ``annotators``: the ids of those who voted; ``chosen_shown_first``: the share of them that was
shown the chosen answer before (left of) the rejected one; ``votes_chosen`` and ``votes_rejected``: two counts each, the votes for that
answer of those who saw it first (left) and of those who saw it second."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Options of the export.

    ``split``: items of which prompts ("train", "held_out", "all"). ``ties``: "leave_out", or "both_orders": two rows, one each way, with
    soft label 0.5. ``both_bad``: a vote that both are bad counts as a tie ("as_tie"), or more than half such votes leave the pair out.
    ``margin``: "none" (0), or "strength" with the values ``slight`` and ``much``; a preference without a strength counts as slight.
    ``min_agreement``: pairs with less are left out, but no ties, which have no chosen answer and go by ``ties``. ``gold``: test questions
    too. ``without``: annotators (ids) whose word does not count.
    """

    split: Literal["train", "held_out", "all"] = "train"
    ties: Literal["leave_out", "both_orders"] = "leave_out"
    both_bad: Literal["leave_out", "as_tie"] = "leave_out"
    margin: Literal["none", "strength"] = "none"
    slight: float = 1.0
    much: float = 2.0
    min_agreement: float = 0.0
    gold: bool = False
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        words = {
            "split": ("train", "held_out", "all"), "ties": ("leave_out", "both_orders"), "both_bad": ("leave_out", "as_tie"),
            "margin": ("none", "strength"),
        }  # fmt: skip
        problems = [
            f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
            for name, known in words.items()
            if getattr(self, name) not in known
        ]
        if not 0 <= self.slight <= self.much < 1e30:
            problems.append(f"slight and much must be numbers with 0 <= slight <= much, got {self.slight} and {self.much}")
        if not 0 <= self.min_agreement <= 1:
            problems.append(f"min_agreement must be a share from 0 to 1, got {self.min_agreement}")
        if problems:
            raise ConfigError(problems, "the rule of the export")


@dataclass(slots=True)
class Votes:
    """The votes on one pair of answers; ``strengths_a``: how much better, of the votes for a; ``sides_a``: of the votes for a, those that
    saw it first and those that saw it second; ``num_a_first``: votes of those who were shown a before b, ties too."""

    num_a: int = 0
    num_b: int = 0
    num_tie: int = 0
    num_both_bad: int = 0
    strengths_a: list[Strength | None] = field(default_factory=list)
    strengths_b: list[Strength | None] = field(default_factory=list)
    annotators: list[str] = field(default_factory=list)
    sides_a: list[int] = field(default_factory=lambda: [0, 0])
    sides_b: list[int] = field(default_factory=lambda: [0, 0])
    num_a_first: int = 0

    @property
    def total(self) -> int:
        return self.num_a + self.num_b + self.num_tie + self.num_both_bad


@dataclass(frozen=True, slots=True)
class Decision:
    """What the votes on a pair come to. ``first_chosen``: answer a is the better one.

    ``strength``: the commoner one among the votes for the chosen answer, slight where both are as common; None where nobody was asked.
    ``annotators``: who voted; ``chosen_shown_first``: the share of them that was shown the chosen answer before the rejected one;
    ``votes_chosen`` and ``votes_rejected``: the votes for that answer, of those who saw it first and of those who saw it second.
    """

    first_chosen: bool
    margin: float
    strength: Strength | None
    num_judgements: int
    agreement: float
    soft_label: float
    annotators: tuple[str, ...] = ()
    chosen_shown_first: float = 0.0
    votes_chosen: tuple[int, int] = (0, 0)
    votes_rejected: tuple[int, int] = (0, 0)

    @property
    def other_way(self) -> Decision:
        """A tie as its second row: the other answer is called the chosen one."""
        return replace(
            self, first_chosen=not self.first_chosen, chosen_shown_first=1 - self.chosen_shown_first,
            votes_chosen=self.votes_rejected, votes_rejected=self.votes_chosen,
        )  # fmt: skip


def pair_votes(item: Item, judgements: Iterable[Judgement]) -> dict[tuple[str, str], Votes]:
    """(answer a, answer b), in the item's order -> their votes."""
    votes = {pair: Votes() for pair in combinations(item.answers, 2)}
    for judgement in judgements:
        if judgement.choice is Choice.RANKED:
            _add_ranking(votes, judgement)
        elif judgement.choice is not Choice.SKIP:
            (pair,) = votes
            _add_vote(votes[pair], pair, judgement, judgement.choice)
    return votes


def _add_vote(votes: Votes, pair: tuple[str, str], judgement: Judgement, choice: Choice) -> None:
    a_first = judgement.shown.index(pair[0]) < judgement.shown.index(pair[1])
    votes.annotators.append(judgement.annotator)
    votes.num_a_first += a_first
    if choice is Choice.FIRST:
        votes.num_a += 1
        votes.strengths_a.append(judgement.strength)
        votes.sides_a[not a_first] += 1
    elif choice is Choice.SECOND:
        votes.num_b += 1
        votes.strengths_b.append(judgement.strength)
        votes.sides_b[a_first] += 1
    elif choice is Choice.TIE:
        votes.num_tie += 1
    else:
        votes.num_both_bad += 1


def _add_ranking(votes: dict[tuple[str, str], Votes], judgement: Judgement) -> None:
    tier = {answer: at for at, answers in enumerate(judgement.ranking) for answer in answers}
    for (a, b), pair in votes.items():
        choice = Choice.TIE if tier[a] == tier[b] else Choice.FIRST if tier[a] < tier[b] else Choice.SECOND
        _add_vote(pair, (a, b), judgement, choice)


def decide(votes: Votes, rule: Rule) -> Decision | str:
    """The decision, or the reason why the pair gives no row: "no judgement", "both bad", "tie", "below min_agreement"."""
    if not votes.total:
        return "no judgement"
    if rule.both_bad == "leave_out" and 2 * votes.num_both_bad > votes.total:
        return "both bad"
    tie = votes.num_a == votes.num_b
    if tie and rule.ties == "leave_out":
        return "tie"
    first = votes.num_a >= votes.num_b
    chosen, rejected = (votes.strengths_a, votes.strengths_b) if first else (votes.strengths_b, votes.strengths_a)
    agreement = len(chosen) / votes.total
    if not tie and agreement < rule.min_agreement:
        return "below min_agreement"
    told = Decision(
        first_chosen=True,
        margin=0.0 if tie else _margin(chosen, rejected, votes.total, rule),
        strength=None if tie else _common(chosen),
        num_judgements=votes.total,
        agreement=agreement,
        soft_label=(len(chosen) + (votes.total - len(chosen) - len(rejected)) / 2) / votes.total,
        annotators=tuple(votes.annotators),
        chosen_shown_first=votes.num_a_first / votes.total,
        votes_chosen=(votes.sides_a[0], votes.sides_a[1]),
        votes_rejected=(votes.sides_b[0], votes.sides_b[1]),
    )
    return told if first else told.other_way


def _margin(chosen: Sequence[Strength | None], rejected: Sequence[Strength | None], total: int, rule: Rule) -> float:
    if rule.margin == "none":
        return 0.0
    value = {None: rule.slight, Strength.SLIGHT: rule.slight, Strength.MUCH: rule.much}
    return max(0.0, (sum(value[one] for one in chosen) - sum(value[one] for one in rejected)) / total)


def _common(strengths: Sequence[Strength | None]) -> Strength | None:
    counts = Counter(strength for strength in strengths if strength is not None)
    if not counts:
        return None
    return Strength.MUCH if counts[Strength.MUCH] > counts[Strength.SLIGHT] else Strength.SLIGHT
