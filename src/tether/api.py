"""The Python entrance: whole runs of PPO or GRPO on your own prompts and reward, and the single update that many people want.

    policy = tether.Policy.load("path/to/model")
    tether.grpo(policy, prompts=["What is 2 + 3?"], reward=lambda prompt, answer: float("5" in answer), steps=10)

A reward is any callable ``(prompt: Prompt, answer: str) -> float | None`` (None: not applicable), or a
:class:`~tether.models.reward.RewardModel`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from pydantic import ValidationError

from tether.api_direct import check_policy, python_compute, refuse_given
from tether.backends.compute import Compute
from tether.config import ActorCriticConfig, OnlineDPOConfig, explain, rl_kind
from tether.errors import ConfigError, DataError
from tether.events import EventLog
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.reward import RewardModel
from tether.models.snapshot import Snapshot
from tether.models.value import Critic
from tether.records import prompt_from_row
from tether.rewards.learned import LearnedPart
from tether.rewards.rubric import RewardPart, Rubric
from tether.rollout.local import LocalSampler
from tether.rollout.plain import position_limit
from tether.rollout.proof import WeightProof
from tether.run.learner import OnlineLearner
from tether.run.observer import Observer, Quiet
from tether.run.online_dpo import OnlineDPOLearner
from tether.run.recorder import Recorder
from tether.run.rl import Learner, OnlineRun
from tether.run.rl import rl as run_rl
from tether.run.rows import RolloutRow
from tether.run.scorer import RunScorer
from tether.types import Failure, Message, Prompt, Rollout, Score

__all__ = ["PolicyUpdater", "RewardFunction", "grpo", "ppo", "rl", "update_policy"]

RewardFunction = Callable[[Prompt, str], float | None]

_LARGEST = float(torch.finfo(torch.float32).max)  # scores are float32 from here on
_NOT_FROM_IDS = {"remax": "the score of the greedy answer", "gdpo": "the score of every reward part"}


@dataclass(frozen=True)
class _FunctionPart:
    """A user's function as a reward part; an exception is a failure of the verifier, never a zero."""

    function: RewardFunction
    early_workers: int = 0
    name: str = "reward"

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        """One score per rollout."""
        return [self._one(rollout) for rollout in rollouts]

    def _one(self, rollout: Rollout) -> Score | Failure:
        try:
            value = self.function(rollout.prompt, rollout.text)
        except Exception as error:  # the boundary named in style.md 31: a broken verifier is data
            return Failure("reward function", f"{type(error).__name__}: {error}")
        if value is None:
            return Score(None)
        try:
            number = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= _LARGEST:
            wanted = "return a finite number (float32), or None where the reward does not apply"
            return Failure("reward function", f"it returned {value!r:.60} ({type(value).__name__}); {wanted}")
        return Score(number)


def rl(
    policy: Policy,
    prompts: Iterable[str | Sequence[Message] | Prompt],
    reward: RewardFunction | RewardModel | Sequence[RewardPart],
    *,
    algorithm: str = "grpo",
    seed: int = 0,
    log: str | Path | None = None,
    observer: Observer | None = None,
    reward_workers: int = 0,
    **settings: Any,
) -> dict[str, float]:
    """Train ``policy`` in place with an online algorithm (``tether algorithms`` lists them), tethered to its weights at the call.

    ``reward_workers``: for a reward function that waits (on a judge, a sandbox) and may be called from threads: so many calls run at once
    while other answers are still generated. 0: it is called afterwards, one answer at a time. The scores are the same.
    With ``rollouts_ahead=1`` it is always called from another thread, while the policy is updated: it must not read the policy.
    ``settings`` are the fields of that algorithm's section ``[rl.NAME]`` (``steps``, ``kl={"beta": .05}``, ...) and ``compute={...}``.
    Returns the metrics of the last step; with ``log`` every step is appended to that .jsonl. Raises ConfigError for wrong settings.
    """
    check_policy(policy)
    config, compute = _settings(algorithm, dict(settings))
    if isinstance(prompts, str | bytes | Mapping):
        raise TypeError(f"prompts: expected a list of prompts, got one {type(prompts).__name__}; write [...] around it")
    asked = [_as_prompt(prompt, index) for index, prompt in enumerate(prompts)]
    if not asked:
        raise ValueError("prompts is empty: give at least one")
    rubric = _rubric(reward, compute, reward_workers)
    learner = _learner(policy, None, config, compute, seed)
    snapshot = Snapshot(policy, compute.dtype) if config.rollouts_ahead else None
    drawn_by, ends = policy if snapshot is None else snapshot.policy, policy.format.eos_ids
    sampler = LocalSampler(drawn_by.model, ends, policy.format.pad_id, compute.dtype, config.sampling.max_rows, snapshot=snapshot)
    proof = WeightProof(policy, sampler, compute.dtype, compute.autocast)
    with TemporaryDirectory() as scratch:
        events = EventLog(log if log is not None else Path(scratch) / "events.jsonl")
        recorder = Recorder(events, observer or Quiet(), f"rl.{config.kind}", config.steps)
        try:
            return run_rl(OnlineRun(learner, sampler, rubric, asked, seed, proof, snapshot), recorder)
        finally:
            events.close()


def ppo(
    policy: Policy,
    prompts: Iterable[str | Sequence[Message] | Prompt],
    reward: RewardFunction | RewardModel | Sequence[RewardPart],
    **settings: Any,
) -> dict[str, float]:
    """PPO (Schulman et al. 2017): :func:`rl` with ``algorithm="ppo"``."""
    return rl(policy, prompts, reward, algorithm="ppo", **settings)


def grpo(
    policy: Policy,
    prompts: Iterable[str | Sequence[Message] | Prompt],
    reward: RewardFunction | RewardModel | Sequence[RewardPart],
    **settings: Any,
) -> dict[str, float]:
    """GRPO (DeepSeekMath, 2402.03300): :func:`rl` with ``algorithm="grpo"``."""
    return rl(policy, prompts, reward, algorithm="grpo", **settings)


@dataclass
class PolicyUpdater:
    """The update alone, for loops of your own: keeps optimiser, reference and beta between calls of :meth:`update`.

    ``algorithm``: any online one but remax and gdpo, which need more than a score per answer; ``settings`` as in :func:`rl`. Without
    ``reference`` the policy's present weights are copied.
    """

    policy: Policy
    algorithm: str = "ppo"
    reference: Reference | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.reference is not None and not isinstance(self.reference, Reference):
            raise TypeError(f"reference: expected a Reference, got {type(self.reference).__name__}; use Reference.frozen_copy(policy)")
        config, compute = _settings(self.algorithm, dict(self.settings))
        if (advantage := getattr(config, "advantage", "")) in _NOT_FROM_IDS:
            raise ConfigError(
                f"advantage = {advantage!r} needs {_NOT_FROM_IDS[advantage]} as well, which an update on ids does not take; "
                "use tether.rl, or another algorithm"
            )
        self._learner = _learner(self.policy, self.reference, config, compute, self.seed)

    def update(
        self,
        query_ids: Sequence[Sequence[int]],
        response_ids: Sequence[Sequence[int]],
        scores: Sequence[float],
        *,
        groups: Sequence[str] | None = None,
        terminated: Sequence[bool] | None = None,
        sampler_logprobs: Sequence[Sequence[float]] | None = None,
    ) -> dict[str, float]:
        """One round on B answers: ids as they were sampled, one score each. Returns its statistics.

        ``groups``: which prompt each row belongs to (default: rows with equal query ids). ``terminated``: False where an answer was cut
        by a length limit (default: True where it ends in one of the policy's end tokens). Raises ValueError for lengths that differ.
        """
        count = len(scores)
        if count == 0:
            raise ValueError("scores is empty: give at least one answer with its score")
        given = {
            "query_ids": query_ids,
            "response_ids": response_ids,
            "groups": groups,
            "terminated": terminated,
            "sampler_logprobs": sampler_logprobs,
        }
        for name, value in given.items():
            if value is not None and len(value) != count:
                raise ValueError(f"{name} has {len(value)} rows, scores has {count}: one row per answer")
        queries, responses = self._ids("query_ids", query_ids), self._ids("response_ids", response_ids)
        self._check_lengths(queries, responses)
        names = list(groups) if groups is not None else [repr(ids) for ids in queries]
        if self._learner.config.samples_per_prompt > 1 and len(set(names)) == count:
            raise ValueError(
                f"{self.algorithm} compares answers to one prompt, and no group has two rows: give several answers a prompt, or use ppo"
            )
        ends = set(self.policy.format.eos_ids)
        rows = [
            RolloutRow(
                queries[i],
                responses[i],
                None if sampler_logprobs is None else tuple(sampler_logprobs[i]),
                float(scores[i]),
                names[i],
                terminated[i] if terminated is not None else bool(responses[i]) and responses[i][-1] in ends,
            )
            for i in range(count)
        ]
        return self._learner.learn(rows)

    def _ids(self, name: str, rows: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The rows as whole numbers of the vocabulary; lists, arrays and tensors alike."""
        vocabulary = int(self.policy.config.get_text_config().vocab_size)
        read: list[tuple[int, ...]] = []
        for number, row in enumerate(rows):
            listed: Any = row.tolist() if hasattr(row, "tolist") else row  # pyright: ignore[reportAttributeAccessIssue]
            if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
                raise ValueError(f"{name}, row {number}: expected a list of token ids, got {type(row).__name__}")
            try:
                ids = tuple(index(token) for token in listed)
            except TypeError:
                raise ValueError(f"{name}, row {number}: token ids are whole numbers, got {listed!r:.60}") from None
            if wrong := [token for token in ids if not 0 <= token < vocabulary]:
                raise ValueError(f"{name}, row {number}: token id {wrong[0]} is outside the vocabulary of {vocabulary}")
            read.append(ids)
        return read

    def _check_lengths(self, queries: Sequence[tuple[int, ...]], responses: Sequence[tuple[int, ...]]) -> None:
        limit = position_limit(self.policy.config.get_text_config().to_dict())
        for number, (query, response) in enumerate(zip(queries, responses, strict=True)):
            if limit is not None and (count := len(query) + len(response)) > limit:
                raise ValueError(f"row {number}: {count} tokens exceed the {limit} positions of the model")

    @property
    def pretrains(self) -> bool:
        """True where the first updates train the value function alone (``value_pretrain_steps``)."""
        return getattr(self._learner.config, "value_pretrain_steps", 0) > 0

    @property
    def beta(self) -> float:
        """Strength of the tether in force (reward per nat)."""
        return self._learner.beta


def update_policy(
    policy: Policy,
    query_ids: Sequence[Sequence[int]],
    response_ids: Sequence[Sequence[int]],
    scores: Sequence[float],
    *,
    reference: Reference,
    algorithm: str = "ppo",
    **settings: Any,
) -> dict[str, float]:
    """One update and its statistics, with a fresh optimiser. For repeated updates keep a :class:`PolicyUpdater`.

    Raises ConfigError where the first update would train a value function alone (``value_pretrain_steps``, as in VAPO).
    """
    updater = PolicyUpdater(policy, algorithm, reference, settings)
    if updater.pretrains:
        raise ConfigError(
            f"{algorithm}: the first update would train the value function alone and leave the policy as it is; keep a PolicyUpdater "
            "for several updates, or pass value_pretrain_steps=0"
        )
    return updater.update(query_ids, response_ids, scores)


# ----------------------------------------------------------------------------------------------------------------------------


def _settings(algorithm: str, settings: dict[str, Any]) -> tuple[Any, Compute]:
    kind = rl_kind(algorithm)
    refuse_given(settings, {"kind": "algorithm", "prompts": "prompts", "rewards": "reward"}, algorithm)
    compute = python_compute(settings.pop("compute", {}))
    fixed = {"kind": algorithm, "prompts": {"path": "(given in Python)"}, "rewards": [{"kind": "format"}]}
    try:
        return kind.model_validate({**settings, **fixed}), compute
    except ValidationError as error:
        raise ConfigError(explain(error, kind), f"the settings of {algorithm}") from None


def _learner(policy: Policy, reference: Reference | None, config: Any, compute: Compute, seed: int) -> Learner:
    if isinstance(config, OnlineDPOConfig):
        policy.to(compute.device)
        return OnlineDPOLearner(policy, reference or Reference.frozen_copy(policy, compute.dtype), config, compute, seed=seed)
    critic = None
    if isinstance(config, ActorCriticConfig):
        if config.critic == "reward_model":
            raise ConfigError(
                "critic = 'reward_model': the Python functions have no reward_model stage; use 'shared', 'separate', or `tether run`"
            )
        if config.critic == "separate":
            critic = Critic.beside(policy.model).to(compute.device)
        else:
            policy.ensure_value_head()
    policy.to(compute.device)
    return OnlineLearner(policy, reference or Reference.frozen_copy(policy, compute.dtype), config, compute, critic=critic, seed=seed)


def _rubric(reward: Any, compute: Compute, workers: int) -> Rubric:
    if not isinstance(workers, int) or workers < 0:
        raise ValueError(f"reward_workers: expected a whole number of at least 0, got {workers!r}; 0 calls the reward after generation")
    if callable(reward) and not isinstance(reward, RewardModel):
        return Rubric([("reward", 1.0, _FunctionPart(cast("RewardFunction", reward), workers))])
    if workers:
        raise ValueError(
            f"reward_workers = {workers} is for a reward function, got {type(reward).__name__}: leave it out; a reward part says by its "
            "early_workers how many calls it takes at once, and a reward model is asked after generation"
        )
    if isinstance(reward, RewardModel):
        return Rubric([("learned", 1.0, LearnedPart(RunScorer(reward, compute), compute.token_budget))])
    parts = list(reward) if isinstance(reward, Iterable) and not isinstance(reward, str) else []
    if not parts or not all(hasattr(part, "score") and hasattr(part, "name") for part in parts):
        raise TypeError(
            f"reward: expected a function (prompt, answer) -> float, a RewardModel, or a list of reward parts; got {reward!r:.60}"
        )
    return Rubric([(part.name, 1.0, part) for part in parts])


def _as_prompt(prompt: Any, index: int) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    try:
        if isinstance(prompt, Sequence) and prompt and not isinstance(prompt, str) and all(isinstance(turn, Message) for turn in prompt):
            prompt = [{"role": turn.role, "content": turn.content} for turn in prompt]
        return replace(prompt_from_row({"prompt": prompt}, index), prompt_id=f"prompt-{index}")
    except DataError as error:
        raise DataError(f"prompts[{index}]: {error}") from None
