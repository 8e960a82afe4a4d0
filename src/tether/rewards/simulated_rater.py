"""Plainspoken v1: a simulated rater. It is a written rule with stated noise, not a person, and nobody should
be told otherwise.

**The rule** (``noiseless``) gives an answer 0 to 10 points:

    relevant = topic * substance
    points = 10 * brevity * fresh * opening * (0.25 * finished + 0.25 * relevant + 0.5 * finished * relevant)

so half of the points need both: to finish, and to speak of the question.

| part | 1 when | otherwise |
|---|---|---|
| finished | the engine did not cut it; it ends with . ! or ? | 0 cut or trailing off; 0.4 without full stop |
| brevity | 8 to 30 words | half a cosine wave down to 0 at 0 words and at 60 words |
| topic | at least half of the question's content words occur in it (crude stems) | their share / half |
| substance | at least 5 content words that are not in the question | their number / 5 (an echo: 0) |
| fresh | no word trigram occurs twice | (1 - repeated share)^2 |
| opening | the answer starts with its matter | 0.6 after "Sure", "Certainly", "As an AI", ... |

**The noise** (``choose``): of two answers, A is preferred with probability

    P(A) = (1 - f) * sigma(d / T) + f * (1 - sigma(d / T)),   d = points(A) - points(B),

T = 1 point and f = 0.05 unless stated otherwise (Bradley-Terry with a flip rate). The draw is a function of
(seed, question, the two answers) alone, whichever is named first.

**What it cannot see**: whether an answer is true, useful or grammatical. Fluent nonsense about the topic
scores like an answer. The rule is written for English. Its noiseless score serves as an independent
evaluation; training on it is refused by the config.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, cos, exp, pi

from tether.rewards.words import content_words, count_words, repeated_share, split_words
from tether.types import Rollout, Score

__all__ = [
    "MAX_POINTS",
    "RATER_NAME",
    "Choice",
    "PlainspokenPart",
    "RaterScore",
    "RaterSettings",
    "choose",
    "noiseless",
    "preference_probability",
]

RATER_NAME = "Plainspoken v1 (simulated, not a person)"
"""Written into every comparison that this rater made."""
MAX_POINTS = 10.0
"""Upper end of the scale; the lower end is 0."""

_FEWEST_WORDS, _MOST_WORDS, _TOO_MANY_WORDS = 8, 30, 60
_ENOUGH_NEW_WORDS = 5
_NO_FULL_STOP = 0.4  # the engine says the answer ended, but it lacks the full stop
_FILLER_FACTOR = 0.6
_MAX_CHARS = 20_000  # only so much of an answer is looked at; more than 60 words score 0 anyway

_FULL_STOP = re.compile(r"[.!?][\"'”’)\]*]*$")
_TRAILS_OFF = re.compile(
    r"(\.\.|…|(^|\n)[ \t]*\(?[0-9]{1,2}[.)])[\"'”’)\]*]*$"
)  # "and so on ...", or a list that stops after "3."
_FILLER = re.compile(
    r"^\W*(sure|certainly|of course|absolutely|definitely|great question|good question"
    r"|what a (great|good) question"
    r"|as an ai|as a (large )?language model|i am an ai|i'm an ai|i'd be (happy|glad)"
    r"|i would be (happy|glad)|i'm (happy|glad)"
    r"|thank you for|thanks for)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RaterScore:
    """Points of one answer (0 to 10) and the factors they are made of (each 0 to 1)."""

    points: float
    finished: float
    brevity: float
    topic: float
    substance: float
    fresh: float
    opening: float

    def parts(self) -> dict[str, float]:
        """The factors by name, for the log."""
        return {
            "finished": self.finished,
            "brevity": self.brevity,
            "topic": self.topic,
            "substance": self.substance,
            "fresh": self.fresh,
            "opening": self.opening,
        }


@dataclass(frozen=True, slots=True)
class RaterSettings:
    """The rater's noise: ``temperature`` in points, ``flip_rate`` a probability, ``seed`` of every draw."""

    temperature: float = 1.0
    flip_rate: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0 points, got {self.temperature}")
        if not 0 <= self.flip_rate < 0.5:
            raise ValueError(f"flip_rate must be in [0, 0.5), got {self.flip_rate}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One judged pair: which answer won, the probability that the first one had, and both noiseless scores in
    points.
    """

    first_wins: bool
    probability_first: float
    first_points: float
    second_points: float


def noiseless(question: str, answer: str, finished: bool) -> RaterScore:
    """Points of ``answer`` by the written rule. ``finished`` is the engine's word: False when the token
    budget cut the answer.

    >>> answer = "Simmer the egg in boiling water for nine minutes, then cool it and peel it."
    >>> noiseless("How do I boil an egg?", answer, True).points
    10.0
    >>> noiseless("How do I boil an egg?", "", True).points
    0.0
    """
    words = split_words(answer[:_MAX_CHARS])
    asked, said = content_words(split_words(question)), content_words(words)
    enough_shared = ceil(len(asked) / 2)
    parts = {
        "finished": _finished(answer, finished),
        "brevity": _brevity(count_words(words)),
        "topic": min(1.0, len(asked & said) / enough_shared) if enough_shared else 1.0,
        "substance": min(1.0, len(said - asked) / _ENOUGH_NEW_WORDS),
        "fresh": (1.0 - repeated_share(words)) ** 2,
        "opening": _FILLER_FACTOR if _FILLER.match(answer) else 1.0,
    }
    done, relevant = parts["finished"], parts["topic"] * parts["substance"]
    matter = 0.25 * done + 0.25 * relevant + 0.5 * done * relevant
    return RaterScore(
        points=MAX_POINTS * parts["brevity"] * parts["fresh"] * parts["opening"] * matter, **parts
    )


def preference_probability(points_difference: float, settings: RaterSettings) -> float:
    """P(first preferred) for points(first) - points(second)."""
    z = points_difference / settings.temperature
    agreed = 1.0 / (1.0 + exp(-z)) if z >= 0 else exp(z) / (1.0 + exp(z))
    return (1.0 - settings.flip_rate) * agreed + settings.flip_rate * (1.0 - agreed)


def choose(
    question: str,
    first: str,
    second: str,
    *,
    first_finished: bool,
    second_finished: bool,
    settings: RaterSettings,
) -> Choice:
    """The rater's noisy choice between two answers; swapping the answers swaps the result and changes nothing
    else.
    """
    if (first, first_finished) == (second, second_finished):
        raise ValueError("the two answers are the same: there is nothing to choose")
    first_points = noiseless(question, first, first_finished).points
    second_points = noiseless(question, second, second_finished).points
    probability = preference_probability(first_points - second_points, settings)
    one, other = f"{first_finished:d}{first}", f"{second_finished:d}{second}"
    uniform = _uniform(str(settings.seed), question, *sorted((one, other)))
    first_wins = uniform < probability if one < other else uniform >= 1.0 - probability
    return Choice(
        first_wins=first_wins,
        probability_first=probability,
        first_points=first_points,
        second_points=second_points,
    )


@dataclass(frozen=True, slots=True)
class PlainspokenPart:
    """The noiseless rule as a reward part, 0 to 10 points. For evaluation only: the reward model learns from
    its noisy choices.
    """

    name: str = "plainspoken"

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        scores = [noiseless(r.prompt.question, r.text, not r.truncated) for r in rollouts]
        return [Score(value=s.points, parts=s.parts()) for s in scores]


def _finished(answer: str, finished: bool) -> float:
    text = answer[-_MAX_CHARS:].rstrip()
    if not finished or not text or _TRAILS_OFF.search(text[-40:]):
        return 0.0
    return 1.0 if _FULL_STOP.search(text[-40:]) else _NO_FULL_STOP


def _brevity(num_words: int) -> float:
    if num_words < _FEWEST_WORDS:
        return 0.5 * (1.0 - cos(pi * num_words / _FEWEST_WORDS))
    beyond = min(1.0, max(0, num_words - _MOST_WORDS) / (_TOO_MANY_WORDS - _MOST_WORDS))
    return 0.5 * (1.0 + cos(pi * beyond))


def _uniform(*parts: str) -> float:
    """A number in [0, 1) that is a function of the parts alone (blake2b; lengths are hashed too, so that
    parts cannot run together).
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return (int.from_bytes(digest.digest(), "big") >> 11) / (1 << 53)
