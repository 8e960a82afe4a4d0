"""Bradley-Terry reward model: train on judged pairs, measure on prompts that were held out."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from tether.backends.compute import Compute
from tether.backends.local import LocalWorker
from tether.backends.memory_guard import one_pass
from tether.clusters import effective_number, wilson_clusters
from tether.config import RewardModelConfig
from tether.data.batches import pad_examples
from tether.data.cursor import Cursor
from tether.data.groups import TokenizedGroup, bootstrap_weight
from tether.data.packing import microbatches
from tether.errors import DataError
from tether.maths.masked import NonFiniteError, require_finite
from tether.maths.reward_loss import bt_loss, pair_metrics
from tether.maths.tie_loss import davidson_loss, rao_kupper_loss
from tether.metrics import MetricSums
from tether.models.reward import RewardModel
from tether.run.evidence import example_tensors
from tether.run.guard import StepGuard
from tether.run.keeper import NO_KEEPER, Keeper, Plain
from tether.run.recorder import Recorder
from tether.text.chat import TokenizedExample

__all__ = ["HeldOut", "num_steps", "score_examples", "split_by_prompt", "train_reward_model"]

T = TypeVar("T")


@dataclass(frozen=True)
class HeldOut:
    """Figures on held-out pairs before the scores are normalised. Accuracy over the ``num_decided`` pairs whose label is not .5, with its
    Wilson interval, where pairs of one prompt are not taken for independent: ``effective_pairs`` independent ones would tell as much. nll
    as in training; calibration error on confidence in [.5, 1]; ``head_std``: mean standard deviation over heads of a difference of
    scores, None with one head.
    """

    num_pairs: int
    accuracy: float
    low: float
    high: float
    nll: float
    ece: float
    mean_margin: float
    score_mean: float
    score_std: float
    brier: float
    num_decided: int
    head_std: float | None = None
    tie_parameter: float | None = None
    num_prompts: int | None = None
    effective_pairs: float | None = None


class TieParameter(nn.Module):
    """The logarithm of the tie parameter of a run; its name makes it learn at the rate of the score head."""

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__()
        ties = config.ties
        self.score_ties = nn.Parameter(torch.tensor(0.0 if ties is None else math.log(ties.parameter)))
        self.score_ties.requires_grad_(ties is not None and ties.learned)

    @property
    def value(self) -> float:
        """nu or eta."""
        return math.exp(float(self.score_ties.detach()))


def num_steps(num_groups: int, config: RewardModelConfig) -> int:
    """Optimiser steps of the stage, over so many pairs (prompts where batch_by = "prompts")."""
    return config.epochs * math.ceil(num_groups / config.batch_size)


def split_by_prompt(pairs: Sequence[T], keys: Sequence[str], share: float, seed: int) -> tuple[list[T], list[T]]:
    """(training, held out): the prompts with the smallest hashes of (seed, prompt) are held out, with all their pairs."""

    def rank(key: str) -> bytes:
        return hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=8).digest()

    ordered = sorted(set(keys), key=rank)
    held = set(ordered[: max(1, round(share * len(ordered)))])
    if len(held) == len(ordered):
        raise DataError(f"the comparisons have {len(ordered)} distinct prompt(s): at least 2 are needed to hold some out")
    training = [pair for pair, key in zip(pairs, keys, strict=True) if key not in held]
    return training, [pair for pair, key in zip(pairs, keys, strict=True) if key in held]


def train_reward_model(
    model: RewardModel,
    groups: Sequence[TokenizedGroup],
    held_out: Sequence[TokenizedGroup],
    config: RewardModelConfig,
    compute: Compute,
    recorder: Recorder,
    seed: int,
    keeper: Keeper = NO_KEEPER,
) -> HeldOut:
    """Train ``model`` in place, one group (a pair, or all pairs of a prompt) a unit of the batch, and measure it on ``held_out``.

    Scores come out as learned, in log-odds; see ``normalise_scores``.
    """
    if config.heads > 1:
        model.grow_heads(config.heads, seed)
    ties = TieParameter(config).to(compute.device)
    rates = {"head_names": ("score",), "head_learning_rate": config.head_learning_rate}
    worker = LocalWorker([model, ties], config.optim, recorder.num_steps, **rates)
    cursor = Cursor(len(groups), seed)
    guard = StepGuard(compute, [model], config.optim.max_skipped_steps, folder=recorder.folder, stage=recorder.stage)
    done = keeper.attach({"worker": worker, "cursor": Plain(cursor.state, cursor.go_to), "guard": guard, "metrics": recorder})
    loss = _Loss(config, ties, seed)
    for step in range(done + 1, recorder.num_steps + 1):
        chosen = cursor.next_within_epoch(config.batch_size)
        recorder.step(step, _step(model, [groups[index] for index in chosen], loss, worker, compute, guard, step))
        keeper.after_step(step)
    if config.ties is not None:
        model.tie_model, model.tie_parameter = config.ties.model, ties.value
    measured = guard.memory.repeat(
        lambda: measure(model, held_out, loss, replace(compute, token_budget=guard.memory.token_budget)), worker.discard
    )
    model.sync_heads()
    return measured


class _Pairs:
    """The scores of a pass, pair by pair and head by head: N = pairs x heads, head by head."""

    def __init__(self, groups: Sequence[TokenizedGroup], scores_RM: Tensor) -> None:
        sizes = [len(group.answers) for group in groups]
        # Rows of a pass are the first answers of all groups, then the second ones, and so on.
        row = {(g, k): n for n, (k, g) in enumerate((k, g) for k in range(max(sizes)) for g, size in enumerate(sizes) if k < size)}
        self.told = [(g, pair) for g, group in enumerate(groups) for pair in group.pairs]
        device = scores_RM.device
        first = torch.tensor([row[g, pair.first] for g, pair in self.told], device=device)
        second = torch.tensor([row[g, pair.second] for g, pair in self.told], device=device)
        heads = scores_RM.shape[1]
        self.first_N, self.second_N = scores_RM[first].T.flatten(), scores_RM[second].T.flatten()
        self.labels_N = scores_RM.new_tensor([pair.label for _, pair in self.told]).repeat(heads)
        self.margins_N = scores_RM.new_tensor([pair.margin for _, pair in self.told]).repeat(heads)

    @property
    def gap_N(self) -> Tensor:
        """Without the margin."""
        return (self.first_N - self.second_N).detach()


class _Loss:
    """What a pass adds up. ``ties`` is not used without a model of ties."""

    def __init__(self, config: RewardModelConfig, ties: TieParameter, seed: int) -> None:
        self.config, self.ties, self.seed = config, ties, seed

    def per_pair(self, pairs: _Pairs) -> Tensor:
        """Loss of every pair and head. Raises NonFiniteError with the group as its row."""
        try:
            return self._per_pair(pairs)
        except NonFiniteError as error:
            raise NonFiniteError(error.name, pairs.told[error.row % len(pairs.told)][0], error.column, error.value) from error

    def _per_pair(self, pairs: _Pairs) -> Tensor:
        config = self.config
        if config.ties is None:
            labels_N = 1.0 if bool((pairs.labels_N == 1).all()) else pairs.labels_N
            return bt_loss(pairs.first_N, pairs.second_N, pairs.margins_N, config.centering, config.label_smoothing, labels_N)
        by_kind = rao_kupper_loss if config.ties.model == "rao_kupper" else davidson_loss
        for name, scores_N in (("chosen_scores", pairs.first_N), ("rejected_scores", pairs.second_N)):
            require_finite(name, scores_N, torch.ones_like(scores_N, dtype=torch.bool))
        gap_N = pairs.first_N - pairs.second_N - torch.where(pairs.labels_N == 0.5, 0.0, pairs.margins_N)
        losses_N = by_kind(gap_N, pairs.labels_N, self.ties.score_ties, config.label_smoothing)
        return losses_N + config.centering * (pairs.first_N + pairs.second_N).square()

    def nll(self, gap_B: Tensor, labels_B: Tensor) -> Tensor:
        """-log P of what was said, by the model that is fitted: without margin, smoothing and centering."""
        if self.config.ties is None:
            return bt_loss(gap_B, torch.zeros_like(gap_B), labels=labels_B)
        by_kind = rao_kupper_loss if self.config.ties.model == "rao_kupper" else davidson_loss
        return by_kind(gap_B, labels_B, self.ties.score_ties)

    def weights(self, groups: Sequence[TokenizedGroup], pairs: _Pairs, heads: int) -> Tensor:
        """Of every pair and head: 1 / pairs of its prompt, times the bootstrap weight of the prompt where there are several heads."""
        share = [1 / len(groups[g].pairs) for g, _ in pairs.told]
        if heads == 1:
            return pairs.first_N.new_tensor(share)
        drawn = [bootstrap_weight(self.seed, head, groups[g].key) / heads for head in range(heads) for g, _ in pairs.told]
        return pairs.first_N.new_tensor(share).repeat(heads) * pairs.first_N.new_tensor(drawn)


def _step(
    model: RewardModel,
    groups: Sequence[TokenizedGroup],
    loss: _Loss,
    worker: LocalWorker,
    compute: Compute,
    guard: StepGuard,
    number: int,
) -> dict[str, float]:
    started = time.perf_counter()

    def one(micro: Sequence[int], metrics: MetricSums) -> None:
        part = [groups[index] for index in micro]
        with one_pass(micro, _tokens(part)):
            scores_RM = _scores(model, part, compute)
            pairs = _Pairs(part, scores_RM)
            losses_N = loss.per_pair(pairs) * loss.weights(part, pairs, scores_RM.shape[1])
            worker.accumulate(losses_N.sum() / len(groups))
        _count(metrics, part, pairs, losses_N.detach(), scores_RM.detach())

    def passes(metrics: MetricSums) -> None:
        for micro in _passes(groups, guard.memory.token_budget):
            one(micro, metrics)
        if loss.config.ties is not None:
            metrics.add("tie_parameter", loss.ties.value)

    def batch() -> dict[str, Tensor]:
        pad_id, most = model.format.pad_id, max(len(group.answers) for group in groups)
        nth = [[group.answers[k] for group in groups if k < len(group.answers)] for k in range(most)]
        names = ["chosen_", "rejected_"] if most == 2 else [f"answer{k}_" for k in range(most)]
        return {k: v for name, rows in zip(names, nth, strict=True) for k, v in example_tensors(rows, pad_id, name).items()}

    metrics = guard.step(number, worker, passes, batch)
    tokens = sum(len(group.answers) * group.longest for group in groups)
    metrics.add("tokens_per_second", tokens / (time.perf_counter() - started))
    return metrics.means()


def _count(metrics: MetricSums, groups: Sequence[TokenizedGroup], pairs: _Pairs, losses_N: Tensor, scores_RM: Tensor) -> None:
    gap_N, favoured_N = pairs.gap_N, (pairs.labels_N - 0.5).sign()
    right_N = 0.5 + 0.5 * (gap_N * favoured_N).sign()
    heads = scores_RM.shape[1]
    metrics.add("loss", float(losses_N.sum()), len(groups))
    decided = int((favoured_N != 0).sum())
    metrics.add("pair_accuracy", float(right_N[favoured_N != 0].sum()), decided)
    metrics.add("pair_margin", float(gap_N.sum()), len(gap_N))
    metrics.add("score_mean", float(scores_RM.sum()) / heads, len(scores_RM))
    if heads > 1:
        metrics.add("head_std", float(scores_RM.std(-1, correction=0).sum()), len(scores_RM))


def _size(group: TokenizedGroup) -> int:
    """A pair counts its longer side, K answers K / 2 times the longest, so that passes of pairs are what they are without rankings."""
    return math.ceil(len(group.answers) * group.longest / 2)


def _passes(groups: Sequence[TokenizedGroup], token_budget: int) -> list[list[int]]:
    """Groups, by index, that go through the model together."""
    return microbatches([_size(group) for group in groups], max(token_budget // 2, 1))


def _tokens(groups: Sequence[TokenizedGroup]) -> int:
    """Tokens of a pass over all answers, as the budget counts them."""
    return 2 * len(groups) * max(map(_size, groups))


def _scores(model: RewardModel, groups: Sequence[TokenizedGroup], compute: Compute) -> Tensor:
    """Scores of all answers in one pass, in the order that ``_Pairs`` expects, one column a head."""
    most = max(len(group.answers) for group in groups)
    return _score_rows(model, [group.answers[k] for k in range(most) for group in groups if k < len(group.answers)], compute)


def _score_rows(model: RewardModel, examples: Sequence[TokenizedExample], compute: Compute) -> Tensor:
    batch = pad_examples(examples, model.format.pad_id).to(compute.device)
    with compute.autocast():
        return model.score_batch_by_head(batch).float()


@torch.no_grad()
def measure(model: RewardModel, groups: Sequence[TokenizedGroup], loss: _Loss, compute: Compute) -> HeldOut:
    """Held-out figures of the raw scores; a tie of scores counts one half."""
    by_head: list[Tensor] = []
    parts: list[_Pairs] = []
    spreads: list[Tensor] = []
    micros = _passes(groups, compute.token_budget)
    for micro in micros:
        part = [groups[index] for index in micro]
        with one_pass(micro, _tokens(part)):
            by_head.append(_scores(model, part, compute))
        parts.append(_Pairs(part, by_head[-1].mean(-1, keepdim=True)))
        spreads.append(_Pairs(part, by_head[-1]).gap_N.view(by_head[-1].shape[1], -1).std(0, correction=0))
    first_B, second_B = torch.cat([pairs.first_N for pairs in parts]), torch.cat([pairs.second_N for pairs in parts])
    labels_B = torch.cat([pairs.labels_N for pairs in parts])
    figures = pair_metrics(first_B, second_B, 10, labels_B)
    keys = [groups[index].key for micro in micros for index in micro for _ in groups[index].pairs]
    right_D, keys_D = _right((first_B - second_B).tolist(), labels_B.tolist(), keys)
    interval = wilson_clusters(right_D, keys_D)
    scores_R = torch.cat([scores_RM.mean(-1) for scores_RM in by_head])
    return HeldOut(
        num_pairs=len(labels_B),
        accuracy=figures.accuracy,
        low=interval.low,
        high=interval.high,
        nll=float(loss.nll(first_B - second_B, labels_B).mean()),
        ece=figures.ece,
        mean_margin=figures.mean_margin,
        score_mean=float(scores_R.mean()),
        score_std=float(scores_R.std()),
        brier=figures.brier,
        num_decided=len(right_D),
        head_std=None if loss.config.heads == 1 else float(torch.cat(spreads).mean()),
        tie_parameter=None if loss.config.ties is None else loss.ties.value,
        num_prompts=len(set(keys_D)),
        effective_pairs=effective_number(right_D, keys_D),
    )


def _right(gap_B: Sequence[float], labels_B: Sequence[float], keys_B: Sequence[str]) -> tuple[list[float], list[str]]:
    """Of the decided pairs: 1, 0, or one half for equal scores, and the prompt."""
    decided = [at for at, label in enumerate(labels_B) if label != 0.5]
    right = [0.5 if gap_B[at] == 0 else float((gap_B[at] > 0) == (labels_B[at] > 0.5)) for at in decided]
    return right, [keys_B[at] for at in decided]


@torch.no_grad()
def score_examples(model: RewardModel, examples: Sequence[TokenizedExample], compute: Compute) -> list[float]:
    """Raw scores of rows of tokens, in order."""
    scores = [0.0] * len(examples)
    for micro in microbatches([len(example.token_ids) for example in examples], compute.token_budget):
        for index, score in zip(micro, _score_rows(model, [examples[i] for i in micro], compute).mean(-1).tolist(), strict=True):
            scores[index] = score
    return scores
