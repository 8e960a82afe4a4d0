"""What the stages that read preferences train on: rows of files as `tether.data.load` reads them, or a database of judgements.

The answers of a database become rows by the rule of `tether.collect.exchange.rule`; the hash of these rows is the hash of the data, so that
a run is not resumed on other judgements unawares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from tether.collect.recognise import is_database
from tether.config import DirectConfig, JudgedSource, RewardModelConfig, RolloutConfig, RunConfig, SFTConfig
from tether.data.load import Rows, load_rows, rows_sha256
from tether.errors import ConfigError, DataError
from tether.records import read_comparisons, read_demonstrations, read_feedback, read_judgements
from tether.types import Comparison, Demonstration, Feedback, Ranking

__all__ = [
    "SourceRows", "answer_rows", "comparison_rows", "data_path", "load_comparisons", "load_demonstrations", "load_feedback",
    "load_judgements", "stage_rows", "stage_sections",
]


TrainingSection = SFTConfig | RewardModelConfig | RolloutConfig | DirectConfig
_COLUMNS = ("prompt", "chosen", "rejected", "margin")


@dataclass(frozen=True, slots=True)
class SourceRows:
    """``note``: how many pairs of a database gave rows and why the others did not; "" for files."""

    rows: Rows
    note: str = ""

    @property
    def told(self) -> str:
        """The note as the beginning of a message."""
        return f"{self.note}; " if self.note else ""


def comparison_rows(source: JudgedSource, columns: Sequence[str] = ()) -> SourceRows:
    """Rows with `prompt`, `chosen`, `rejected`; of a database also `margin`, `label` where it is asked for, and further ``columns`` of its
    export.

    Raises errors of files and databases, and ConfigError.
    """
    if not is_database(source.path):
        return SourceRows(_from_file(source))
    return _from_database(source, columns)


def answer_rows(source: JudgedSource) -> SourceRows:
    """Demonstrations: of a database `prompt` and `completion`, each answer that was chosen at least once and rejected never, once."""
    if not is_database(source.path):
        return SourceRows(_from_file(source))
    pairs = _from_database(source, every=True)
    rejected = {repr((row["prompt"], row["rejected"])) for row in pairs.rows.rows if isinstance(row, dict)}
    best: dict[str, dict[str, Any]] = {}
    for row in pairs.rows.rows:
        assert isinstance(row, dict)
        key = repr((row["prompt"], row["chosen"]))
        if key not in rejected:
            best.setdefault(key, {"prompt": row["prompt"], "completion": row["chosen"]})
    rows = list(islice(best.values(), source.limit))
    if not rows:
        raise DataError(f"{pairs.rows.source}: no answer was chosen without being rejected elsewhere ({pairs.note})")
    return SourceRows(Rows(list(rows), pairs.rows.source, rows_sha256(rows), "database"), f"{len(rows)} chosen answers; {pairs.note}")


def stage_sections(config: RunConfig) -> dict[str, TrainingSection]:
    """The sections of the stages that train, by stage name."""
    alone = {"sft": config.sft, "reward_model": config.reward_model}
    named = {f"rl.{name}": rl for name, rl in config.rl.items()} | {f"direct.{name}": direct for name, direct in config.direct.items()}
    return {name: section for name, section in (alone | named).items() if section is not None}


def data_path(section: TrainingSection) -> str:
    """Where the rows of a stage are read from."""
    return section.prompts.path if isinstance(section, RolloutConfig) else section.data.path


def stage_rows(section: TrainingSection) -> Rows:
    """The rows that a stage is trained on, as they are now."""
    if isinstance(section, RolloutConfig):
        return load_rows(section.prompts.path, section.prompts.split, section.prompts.limit)
    return (answer_rows if isinstance(section, SFTConfig) else comparison_rows)(section.data).rows


def load_comparisons(source: JudgedSource) -> list[Comparison]:
    """Every row as a comparison."""
    found = comparison_rows(source).rows
    return read_comparisons(found.rows, found.source)


def load_judgements(source: JudgedSource) -> list[Comparison | Ranking]:
    """Every row as a comparison or a ranking: what a reward model is fitted to."""
    found = comparison_rows(source).rows
    return read_judgements(found.rows, found.source)


def load_feedback(source: JudgedSource) -> list[Feedback]:
    """Every row as judged answers; a comparison gives two."""
    found = comparison_rows(source).rows
    return read_feedback(found.rows, found.source)


def load_demonstrations(source: JudgedSource) -> list[Demonstration]:
    """Every row as a demonstration."""
    found = answer_rows(source).rows
    return read_demonstrations(found.rows, found.source)


def _from_file(source: JudgedSource) -> Rows:
    if source.judgements is not None:
        raise ConfigError(f"judgements has no effect on {source.path}, which is no database of judgements; drop the section")
    return load_rows(source.path, source.split, source.limit)


def _from_database(source: JudgedSource, columns: Sequence[str] = (), *, every: bool = False) -> SourceRows:
    """The comparisons, the first ``limit`` of them unless ``every`` is asked for."""
    from tether.collect.exchange.export import ExportReport, export_rows
    from tether.collect.exchange.rule import Rule
    from tether.collect.store import Store

    if urlsplit(source.path).password:
        raise ConfigError("the URL holds a password, and a run keeps its configuration: put it into ~/.pgpass or PGPASSWORD instead")
    options = {} if source.judgements is None else source.judgements.model_dump(exclude={"labels"})
    shares = source.judgements is not None and source.judgements.labels == "share"
    rule = Rule(**{"split": source.split, **options})
    report = ExportReport()
    with Store.open(source.path) as store:
        place = store.place
        exported = export_rows(store, rule, report)
        rows = [{name: row[name] for name in (*_COLUMNS, *columns)} | ({"label": row["soft_label"]} if shares else {}) for row in exported]
    kept = rows if every else rows[: source.limit]
    if not kept:
        raise DataError(f"{place} [{source.split}]: no comparisons ({report})")
    return SourceRows(Rows(list(kept), f"{place} [{source.split}]", rows_sha256(kept), "database"), str(report))
