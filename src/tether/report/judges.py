"""Who judged: the raters that a file of comparisons names, and what the held-out score is."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

from tether.report.plain import nested
from tether.report.read import RunRecord
from tether.rewards.simulated_rater import RATER_NAME

__all__ = ["annotators_of", "judges", "raters_of"]

_MOST_NAMES = 12
_LARGEST_DATA_FILE = 64 * 2**20  # bytes looked through for names of raters


def judges(run: RunRecord) -> Iterator[str]:
    judged = [(nested(run.config, "reward_model", "data"), run.stage("reward_model"))]
    judged += [(nested(run.config, "direct", stage.short, "data"), stage) for stage in run.direct_stages]
    for source, (data, stage) in {str(nested(data, "path")): (data, stage) for data, stage in judged if nested(data, "path")}.items():
        if told := _of_database(source, data):
            yield told
            continue
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


_ANNOTATORS = """
SELECT annotators.annotator_id, annotators.name, COUNT(*) FROM tether_judgements AS judgements
JOIN tether_annotators AS annotators ON annotators.annotator_id = judgements.annotator_id
JOIN tether_items AS items ON items.item_id = judgements.item_id JOIN tether_prompts AS prompts ON prompts.prompt_id = items.prompt_id
WHERE judgements.withdrawn_at IS NULL AND judgements.choice <> 'skip' AND (items.gold IS NULL OR :gold)
AND (:split = 'all' OR prompts.held_out = (:split = 'held_out'))
GROUP BY annotators.annotator_id, annotators.name ORDER BY COUNT(*) DESC, annotators.name
"""


def annotators_of(path: Path, split: str = "train", gold: bool = False) -> list[tuple[str, str, int]] | None:
    """(id, name, judgements) of everybody who judged pairs of the split in a SQLite database of `tether collect`, who judged most first;
    None where it is no such database, or cannot be read. Read with the standard library, so that a report needs no extra.
    """
    try:
        if not path.is_file():
            return None
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(_ANNOTATORS, {"split": split, "gold": gold}).fetchall()
    except (sqlite3.Error, OSError, ValueError):
        return None


def _of_database(source: str, data: Mapping[str, Any]) -> str:
    """"" for what is no database."""
    if source.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
        return "The comparisons come from a PostgreSQL database, which knows who judged them: `tether collect stats` tells."
    rule = nested(data, "judgements") or {}
    path = Path(source.removeprefix("sqlite:///")).expanduser()
    people = annotators_of(path, str(nested(data, "split") or "train"), bool(rule.get("gold")))
    if people is None:
        return ""
    out = {str(name) for name in rule.get("without") or ()}
    without = sorted(out & {word for who, name, _ in people for word in (who, name)})
    named = [f"{name} ({count})" for who, name, count in people if not out & {who, name}]
    shown = ", ".join(named[:_MOST_NAMES]) + (f" and {len(named) - _MOST_NAMES} others" if len(named) > _MOST_NAMES else "")
    left = f"; {', '.join(without)} left out" if without else ""
    return (
        f"The comparisons come from {source}. As it is now, {len(named)} annotators judged them, with so many judgements each: {shown}"
        f"{left}. `tether collect stats {source}` tells what these are worth."
    )


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
