"""`tether reward linear`: comparisons of a file or a database to a linear reward model in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tether.errors import ConfigError
from tether.files import overwritten
from tether.records import read_comparisons
from tether.rewards.linear import DEFAULT_FEATURES, LinearRewardModel, fit_linear
from tether.run.judged_rows import judged_rows

__all__ = ["linear_command"]


def linear_command(
    data: str, output: Path, features: Sequence[str], l2: float, split: str | None = None, limit: int | None = None
) -> tuple[LinearRewardModel, Path]:
    """The fitted model and where it was written. A feature is a name, or JSON such as {"name": "thanks", "words": ["thanks"]}. Of a
    database the training split is read unless another is named.
    """
    if not l2 > 0:
        raise ConfigError(f"--l2 {l2}: must be above 0: the weights of separable data would grow without end")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: the folder {output.absolute().parent} does not exist")
    if lost := overwritten({"--output": output}, (data,)):
        raise ConfigError(lost)
    told = [_feature(word) for word in features or DEFAULT_FEATURES]
    loaded = judged_rows(data, split, limit, database_split="train").rows
    comparisons = read_comparisons(loaded.rows, loaded.source)
    rows = [row for row in loaded.rows if isinstance(row, Mapping)]
    model = fit_linear(comparisons, told, rows=rows, l2=l2, source=loaded.source)
    model = replace(model, fitted_to={**model.fitted_to, "data_sha256": loaded.sha256})
    return model, model.save(output)


def _feature(word: str) -> str | Mapping[str, Any]:
    if not word.lstrip().startswith("{"):
        return word
    try:
        return json.loads(word)
    except ValueError as error:
        raise ConfigError(f"--feature {word:.60}: neither a name nor JSON ({error})") from error
