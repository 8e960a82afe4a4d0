"""A reward model that can be read: a weighted sum of named features, fitted to comparisons by Bradley-Terry with L2.

score = sum_k w_k (f_k - mean_k) / std_k, with mean and std over the answers it was fitted to: their scores have mean 0, and a weight is
the log-odds that one standard deviation of its feature is worth. The fit is convex, so the data alone decide it. Saved as JSON; torch is
imported by the fit only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tether.clusters import cluster_covariance
from tether.errors import ConfigError, DataError, ModelError
from tether.files import write_atomic
from tether.records import refuse_bad_rows
from tether.records.texts import prompt_key
from tether.rewards.features import Feature, answer_text, feature_from, measure
from tether.rewards.seen import prompt_hashes
from tether.types import Comparison, Failure, Rollout, Score

__all__ = ["DEFAULT_FEATURES", "LinearPart", "LinearRewardModel", "fit_linear", "load_linear", "pair_features"]

KIND, VERSION = "tether-linear-reward", 1
DEFAULT_FEATURES = ("log_length", "bullet_share", "question_marks", "type_token_ratio", "hedges")


@dataclass(frozen=True, slots=True)
class LinearRewardModel:
    """Features with weight, standard error, mean and std, in one order. ``fitted_to`` says to what: pairs, prompts and their hashes,
    accuracy there."""

    features: tuple[Feature, ...]
    weights: tuple[float, ...]
    standard_errors: tuple[float, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]
    l2: float
    fitted_to: Mapping[str, Any] = field(default_factory=dict)

    def contributions(self, text: str) -> dict[str, float]:
        """What each feature adds to the score of an answer."""
        return dict(zip((f.name for f in self.features), self._terms(measure(self.features, text)), strict=True))

    def score(self, text: str) -> float:
        """Log-odds against the average answer of the fit."""
        return sum(self._terms(measure(self.features, text)))

    def _terms(self, values: Sequence[float]) -> list[float]:
        return [w * (v - mean) / std for w, v, mean, std in zip(self.weights, values, self.means, self.stds, strict=True)]

    def table(self) -> str:
        """The weights for a reader, the heaviest first."""
        order = sorted(range(len(self.features)), key=lambda k: -abs(self.weights[k]))
        width = max(len(feature.name) for feature in self.features)
        lines = [f"{'feature':<{width}}  {'weight':>8} {'95 % interval':>18}  {'mean':>8} {'std':>8}"]
        for k in order:
            w, half = self.weights[k], 1.96 * self.standard_errors[k]
            interval = f"[{w - half:z.3f}, {w + half:z.3f}]"
            lines.append(f"{self.features[k].name:<{width}}  {w:>8.3f} {interval:>18}  {self.means[k]:>8.3g} {self.stds[k]:>8.3g}")
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Write it as JSON, whole or not at all."""
        numbers = zip(self.features, self.weights, self.standard_errors, self.means, self.stds, strict=True)
        told = [{**f.as_dict(), "weight": w, "standard_error": e, "mean": m, "std": s} for f, w, e, m, s in numbers]
        text = json.dumps({"kind": KIND, "version": VERSION, "l2": self.l2, "features": told, "fitted_to": dict(self.fitted_to)}, indent=2)
        return write_atomic(Path(path), text + "\n")


def load_linear(path: str | Path) -> LinearRewardModel:
    """Read what ``save`` wrote. Raises ModelError for anything else."""
    try:
        told = json.loads(Path(path).read_text("utf-8"))
        if told["kind"] != KIND or told["version"] != VERSION:
            raise ValueError(f"kind {told['kind']!r}, version {told['version']!r}; expected {KIND!r}, {VERSION}")
        rows = told["features"]
        numbers = {key: tuple(float(row[key]) for row in rows) for key in ("weight", "standard_error", "mean", "std")}
        if not rows or not all(map(math.isfinite, sum(numbers.values(), ()))) or min(numbers["std"]) <= 0:
            raise ValueError("it needs features, finite numbers, and std above 0")
        own = ("name", "words", "pattern", "column")
        features = tuple(feature_from({key: row[key] for key in own if key in row}) for row in rows)
        _refuse_twins(features)
        weights, errors, means, stds = (numbers[key] for key in ("weight", "standard_error", "mean", "std"))
        return LinearRewardModel(features, weights, errors, means, stds, float(told["l2"]), dict(told["fitted_to"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ModelError(f"{path} is no linear reward model: {error}") from error


def _refuse_twins(features: Sequence[Feature]) -> None:
    """What a feature adds is told and summed by its name. Raises ConfigError."""
    names = [feature.name for feature in features]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two features are called {', '.join(twice)}: each needs a name of its own; leave one out, or name it otherwise")


def pair_features(
    features: Sequence[Feature], comparisons: Sequence[Comparison], rows: Sequence[Mapping[str, Any]] = (), source: str = "comparisons"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(chosen, rejected), one row a comparison, one column a feature. ``rows``: where features of columns are read. Raises DataError."""
    sides: list[NDArray[np.float64]] = []
    problems: dict[int, str] = {}
    for side in ("chosen", "rejected"):
        values = np.zeros((len(comparisons), len(features)))
        for at, comparison in enumerate(comparisons):
            text = answer_text(comparison.chosen if side == "chosen" else comparison.rejected)
            for k, feature in enumerate(features):
                if feature.of_text:
                    values[at, k] = feature.of(text)
                    continue
                value = rows[at].get(f"{side}_{feature.column}") if at < len(rows) else None
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    problems.setdefault(at + 1, f"`{side}_{feature.column}` must be a finite number, got {value!r:.40}.")
                    continue
                values[at, k] = value
        sides.append(values)
    refuse_bad_rows(problems, source, len(comparisons))
    return sides[0], sides[1]


def fit_linear(
    comparisons: Sequence[Comparison],
    features: Sequence[str | Mapping[str, Any]] = DEFAULT_FEATURES,
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    l2: float = 1e-3,
    source: str = "comparisons",
) -> LinearRewardModel:
    """argmin_w mean over pairs of the Bradley-Terry loss (labels and ties counted as they are) + l2 / 2 |w|^2, by Newton's method.

    Standard errors: the larger one of the inverse curvature's and of that which lets pairs of one prompt depend on each other
    (``tether.clusters.cluster_covariance``). Raises DataError without decided pairs and for features that are the same for all answers,
    ConfigError for two features of one name.
    """
    import torch

    from tether.maths.reward_loss import linear_bt_fit

    chosen_features = tuple(feature_from(told) for told in features)
    if not comparisons or not chosen_features:
        raise DataError(f"{source}: a linear reward model needs comparisons and at least one feature")
    _refuse_twins(chosen_features)
    if all(comparison.label == 0.5 for comparison in comparisons):
        raise DataError(f"{source}: every pair is a tie (label .5): nothing says which answers are better")
    chosen_BF, rejected_BF = pair_features(chosen_features, comparisons, rows, source)
    every = np.concatenate([chosen_BF, rejected_BF])
    means, stds = every.mean(0), every.std(0)
    if len(still := [feature.name for feature, std in zip(chosen_features, stds, strict=True) if not std > 1e-12]):
        raise DataError(f"{source}: {', '.join(still)} is the same for all answers and says nothing; leave it out")
    d_BF = (chosen_BF - rejected_BF) / stds
    labels_B = np.array([comparison.label for comparison in comparisons])
    weights = linear_bt_fit(torch.from_numpy(d_BF), l2, labels=torch.from_numpy(labels_B)).numpy()
    p_B = 1 / (1 + np.exp(-np.clip(d_BF @ weights, -500, 500)))
    curvature = (d_BF.T * (p_B * (1 - p_B))) @ d_BF + len(d_BF) * l2 * np.eye(len(weights))
    bread, numbers = np.linalg.inv(curvature), dict[str, int]()
    prompts = [numbers.setdefault(prompt_key(comparison.prompt), len(numbers)) for comparison in comparisons]
    over_prompts = cluster_covariance(bread, d_BF * (labels_B - p_B)[:, None], prompts) if len(numbers) > 1 else bread
    errors = np.sqrt(np.maximum(np.diag(bread), np.diag(over_prompts)))
    gap_B, decided = d_BF @ weights, labels_B != 0.5
    right = np.where(gap_B == 0, 0.5, (gap_B > 0) == (labels_B > 0.5))[decided]
    told = {
        "pairs": len(comparisons),
        "num_prompts": len(numbers),
        "source": Path(source).name,
        "accuracy_on_them": float(right.mean()),
        "prompts": prompt_hashes(comparison.prompt for comparison in comparisons),
    }
    w, e, m, s = (tuple(map(float, array)) for array in (weights, errors, means, stds))
    return LinearRewardModel(chosen_features, w, e, m, s, l2, told)


class LinearPart:
    """A linear reward model as a reward part; what every feature adds is among the components."""

    def __init__(self, path: str, name: str = "linear") -> None:
        self.model, self.name = load_linear(path), name
        if of_columns := [feature.name for feature in self.model.features if not feature.of_text]:
            raise ValueError(f"{path} reads {', '.join(of_columns)} from columns of judged rows, which a new answer does not have")

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Failure]:
        told = [self.model.contributions(rollout.text) for rollout in rollouts]
        return [Score(sum(parts.values()), parts) for parts in told]
