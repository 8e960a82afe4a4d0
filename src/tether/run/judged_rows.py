"""What the commands that read judged pairs without a configuration read: files, exports, dataset folders, hub ids, and databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tether.collect.exchange.tables import read_table
from tether.collect.recognise import is_database
from tether.config import JudgedSource
from tether.config.settings import JudgementsConfig
from tether.data.load import Rows, load_rows, warn_of_split
from tether.errors import DataError
from tether.records import file_sha256
from tether.run.sources import SourceRows, comparison_rows

__all__ = ["check_limit", "judged_rows"]


def judged_rows(
    path: str,
    split: str | None,
    limit: int | None,
    *,
    database_split: str,
    judgements: JudgementsConfig | None = None,
    columns: Sequence[str] = (),
) -> SourceRows:
    """The rows of a source. A database is read as by ``data.path`` of a run, with the rule ``judgements`` and further ``columns`` of its
    export; its split is ``database_split`` where none is named. A .csv file is one that `tether collect export` wrote, or one like it.

    Raises errors of files and databases, and ConfigError.
    """
    check_limit(path, limit)
    if is_database(path):
        source = JudgedSource(path=path, split=split or database_split, limit=limit, judgements=judgements)
        return comparison_rows(source, columns)
    if Path(path).suffix == ".csv":
        warn_of_split(split or "train", path)
        return SourceRows(_csv(Path(path).expanduser(), limit))
    return SourceRows(load_rows(path, split or "train", limit))


def check_limit(path: str, limit: int | None) -> None:
    """Raises DataError for a limit that leaves nothing."""
    if limit is not None and limit < 1:
        raise DataError(f"{path}: --limit must be at least 1 or left out, got {limit}.")


def _csv(path: Path, limit: int | None) -> Rows:
    rows = [_numbers(row) if isinstance(row, Mapping) else row for row in read_table(path)[:limit]]
    if not rows:
        raise DataError(f"{path}: no rows. Expected at least one; is it the right file?")
    return Rows(rows, str(path), file_sha256(path), "csv")


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A cell of CSV is text; label, and what is said of a side (chosen_..., rejected_...), are numbers where they look like one. Cells
    without a value are left out, as in a row that lacks the column."""
    told = {name: value for name, value in row.items() if value is not None or name in ("prompt", "chosen", "rejected")}
    for name, value in told.items():
        if isinstance(value, str) and (name == "label" or name.startswith(("chosen_", "rejected_"))):
            with suppress(ValueError):
                told[name] = float(value)
    return told
