"""Who judged: the raters that a file of comparisons names, and what the held-out score is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from tether.report.plain import nested
from tether.report.read import RunRecord
from tether.rewards.simulated_rater import RATER_NAME

__all__ = ["judges", "raters_of"]

_LARGEST_DATA_FILE = 64 * 2**20  # bytes looked through for names of raters


def judges(run: RunRecord) -> Iterator[str]:
    judged = [(nested(run.config, "reward_model", "data", "path"), run.stage("reward_model"))]
    judged += [(nested(run.config, "direct", stage.short, "data", "path"), stage) for stage in run.direct_stages]
    for source, stage in {str(source): stage for source, stage in judged if source}.items():
        raters = raters_of(source, str(stage.summary.get("data_sha256", "")) if stage else "")
        if raters:
            yield f"The comparisons ({source}) name as their judge: {'; '.join(raters)}."
        else:
            yield f"The comparisons come from {source}; who judged them is not recorded."
        if raters and all("simulated" in rater.lower() for rater in raters):
            yield "That is a written rule with stated noise: no person judged them."
    score = run.evaluation.policies[0].score if run.evaluation and run.evaluation.policies else ""
    if score == "plainspoken":
        yield f"The held-out score is the noiseless rule of {RATER_NAME}."
        yield "The rule does not see whether an answer is true."
    elif score:
        yield f"The held-out score '{score}' is computed by a rule; no person judged it."


def raters_of(source: str, sha256: str) -> list[str]:
    """Who the rows of a comparison file name in their ``rater`` column, if the file is still the one that
    was trained on.
    """
    file = (
        resources.files("tether") / "recipes_data" / source.removeprefix("tether:")
        if source.startswith("tether:")
        else Path(source)
    )
    try:
        if not file.is_file() or (isinstance(file, Path) and file.stat().st_size > _LARGEST_DATA_FILE):
            return []
        data = file.read_bytes()
    except (OSError, ValueError):
        return []
    if hashlib.sha256(data).hexdigest() != sha256:
        return []
    return sorted({name for line in data.decode("utf-8", "replace").splitlines() if (name := _rater(line))})


def _rater(line: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(row.get("rater") or "") if isinstance(row, dict) else ""
