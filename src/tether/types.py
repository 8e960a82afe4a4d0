"""The nouns of Tether, frozen and free of torch: they cross processes and are written to files.

Legend of axes used in names throughout the package: P prompts, G samples per prompt, B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "Comparison", "Completion", "Demonstration", "Failure", "Feedback", "Message", "Prompt", "Ranking", "Request",
    "Rollout", "RolloutGroup", "Sampling", "Score", "StopReason",
]

Role = Literal["system", "user", "assistant", "tool"]


class StopReason(StrEnum):
    """Why a completion ended, as told by the engine; never inferred from token ids."""

    STOP = "stop"  # an end token or a stop rule: the answer is finished (terminal state)
    LENGTH = "length"  # the token budget ran out: the answer is cut (truncated state)
    ABORT = "abort"  # the engine gave up; not trained on


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy is asked. ``text`` is a plain string or a conversation; ``columns`` are the other fields of the row.

    ``prompt_id`` identifies the prompt in groups, in the log and in the sampler's randomness. ``origin`` is for messages: where it was
    read, "FILE, row N" with N from 1.
    """

    prompt_id: str
    text: str | tuple[Message, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        """How a message names this prompt: by its origin, else by its id."""
        return self.origin or f"prompt {self.prompt_id!r}"

    @property
    def question(self) -> str:
        """The last user turn (or the plain text): what a rule or a reader looks at."""
        if isinstance(self.text, str):
            return self.text
        return next((m.content for m in reversed(self.text) if m.role == "user"), "")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt and the answer to imitate. ``completion`` may hold several turns; only assistant turns are trained."""

    prompt: str | tuple[Message, ...]
    completion: str | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two answers to one prompt, the better one first. ``margin`` is the optional strength (score units).

    ``label`` in [0, 1]: probability that ``chosen`` is the better one, e.g. the share of raters who said so; .5 is a tie.
    """

    prompt: str | tuple[Message, ...]
    chosen: str | tuple[Message, ...]
    rejected: str | tuple[Message, ...]
    margin: float = 0.0
    label: float = 1.0


@dataclass(frozen=True, slots=True)
class Ranking:
    """K answers to one prompt in an order. ``places[k]`` is the place of ``answers[k]``, 1 for the best; equal places are a tie."""

    prompt: str | tuple[Message, ...]
    answers: tuple[str | tuple[Message, ...], ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Feedback:
    """One answer to a prompt and whether it was liked, without another answer to compare it with."""

    prompt: str | tuple[Message, ...]
    completion: str | tuple[Message, ...]
    liked: bool


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling contract: the distribution that completions were drawn from.

    ``top_k = 0`` and ``top_p = 1`` switch the filters off. Filters apply in the order temperature, top-k, top-p. Log-probabilities
    returned under this contract are of the filtered, renormalised distribution at this temperature.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        """Temperature 0: the most likely token; such completions carry no usable log-probabilities."""
        return self.temperature == 0.0

    @property
    def truncated(self) -> bool:
        """True when a filter removes tokens, so that the behaviour policy is not the plain tempered softmax."""
        return self.top_k > 0 or self.top_p < 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """``num_samples`` answers wanted to one rendered prompt. ``key`` fixes their randomness: the uniform of a token is a function
    of (key, sample index, position) alone, whatever the batch, the order or the number of workers."""

    prompt_id: str
    prompt_ids: tuple[int, ...]
    num_samples: int
    key: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer: exactly the ids that were drawn (the end token included when one was drawn).

    ``sampler_logprobs``: nats, one per token, under ``sampling``. ``versions``: policy version of every token.
    """

    prompt_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stop_reason: StopReason
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward part says of one rollout. ``value`` None means "not applicable"; ``parts`` are its named components."""

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A verifier that broke (not a wrong answer): recorded with its boundary, counted, left out of the gradient."""

    boundary: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt, one completion and its decoded text."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completion: Completion
    text: str

    @property
    def truncated(self) -> bool:
        """Cut by the token budget, as the engine reports it."""
        return self.completion.stop_reason is StopReason.LENGTH


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The G rollouts of one prompt with their scores. ``scores[g]`` is NaN where ``failures[g]`` is not None."""

    rollouts: tuple[Rollout, ...]
    scores: tuple[float, ...]
    components: tuple[Mapping[str, float], ...]
    failures: tuple[Failure | None, ...]
