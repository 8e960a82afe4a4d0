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
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from tether.collect.judgement import Choice, Item, Judgement, Strength
from tether.errors import ConfigError

__all__ = ["Decision", "Rule", "Votes", "decide", "pair_votes"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Options of the export.

    ``split``: items of which prompts ("train", "held_out", "all"). ``ties``: "leave_out", or "both_orders": two rows, one each way, with
    soft label 0.5. ``both_bad``: a vote that both are bad counts as a tie ("as_tie"), or more than half such votes leave the pair out.
    ``margin``: "none" (0), or "strength" with the values ``slight`` and ``much``; a preference without a strength counts as slight.
    ``min_agreement``: pairs with less are left out. ``gold``: test questions too. ``without``: annotators (ids) whose word does not count.
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
    """The votes on one pair of answers; ``strengths_a``: how much better, of the votes for a; ``num_a_first``: votes of those who
    were shown a before b; ``num_first_won``: votes for the one of the two that was shown first."""

    num_a: int = 0
    num_b: int = 0
    num_tie: int = 0
    num_both_bad: int = 0
    strengths_a: list[Strength | None] = field(default_factory=list)
    strengths_b: list[Strength | None] = field(default_factory=list)
    annotators: list[str] = field(default_factory=list)
    num_a_first: int = 0
    num_first_won: int = 0

    @property
    def total(self) -> int:
        return self.num_a + self.num_b + self.num_tie + self.num_both_bad


@dataclass(frozen=True, slots=True)
class Decision:
    """What the votes on a pair come to. ``first_chosen``: answer a is the better one.

    ``strength``: the commoner one among the votes for the chosen answer, slight where both are as common; None where nobody was asked.
    ``annotators``: who voted; ``chosen_shown_first``: the share of them that was shown the chosen answer before the rejected one;
    ``first_shown_won``: the share of the decided votes (no ties) that are for the answer shown first, None where no vote is decided.
    """

    first_chosen: bool
    margin: float
    strength: Strength | None
    num_judgements: int
    agreement: float
    soft_label: float
    annotators: tuple[str, ...] = ()
    chosen_shown_first: float = 0.0
    first_shown_won: float | None = None


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
    votes.num_first_won += choice is (Choice.FIRST if a_first else Choice.SECOND)
    _add_choice(votes, choice, judgement.strength)


def _add_choice(votes: Votes, choice: Choice, strength: Strength | None) -> None:
    if choice is Choice.FIRST:
        votes.num_a += 1
        votes.strengths_a.append(strength)
    elif choice is Choice.SECOND:
        votes.num_b += 1
        votes.strengths_b.append(strength)
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
    if votes.num_a == votes.num_b:
        if rule.ties == "leave_out":
            return "tie"
        agreement, sides = votes.num_a / votes.total, (_first_share(votes, True), _first_won(votes))
        return Decision(True, 0.0, None, votes.total, agreement, 0.5, tuple(votes.annotators), *sides)
    first = votes.num_a > votes.num_b
    chosen, rejected = (votes.strengths_a, votes.strengths_b) if first else (votes.strengths_b, votes.strengths_a)
    agreement = len(chosen) / votes.total
    if agreement < rule.min_agreement:
        return "below min_agreement"
    soft = (len(chosen) + (votes.total - len(chosen) - len(rejected)) / 2) / votes.total
    return Decision(
        first_chosen=first,
        margin=_margin(chosen, rejected, votes.total, rule),
        strength=_common(chosen),
        num_judgements=votes.total,
        agreement=agreement,
        soft_label=soft,
        annotators=tuple(votes.annotators),
        chosen_shown_first=_first_share(votes, first),
        first_shown_won=_first_won(votes),
    )


def _first_share(votes: Votes, a_chosen: bool) -> float:
    return (votes.num_a_first if a_chosen else votes.total - votes.num_a_first) / votes.total


def _first_won(votes: Votes) -> float | None:
    decided = votes.num_a + votes.num_b
    return votes.num_first_won / decided if decided else None


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
