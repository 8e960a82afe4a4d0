"""Rows from files, dataset folders, the hub and the package's own small data sets."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tether.errors import DataError
from tether.records import file_sha256, read_comparisons, read_demonstrations, read_feedback, read_lines, read_prompts
from tether.types import Comparison, Demonstration, Feedback, Prompt

__all__ = [
    "Rows", "Source", "load_comparisons", "load_demonstrations", "load_feedback", "load_prompts", "load_rows", "rows_sha256",
    "warn_of_split",
]

_LOG = logging.getLogger(__name__)
_BUNDLED = "tether:"
_FORMATS = (
    "a .jsonl or .parquet file, a folder of datasets.save_to_disk, a hub id such as org/name, or "
    "tether:NAME.jsonl"
)


class Source(Protocol):
    """What a configuration says about one data set."""

    @property
    def path(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def limit(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with their origin. `sha256` is of the file; of the rows as JSON where there is no single file.

    An unreadable row is what is wrong with it; the readers of `tether.records` name it among the other bad ones.
    """

    rows: list[dict[str, Any] | DataError]
    source: str
    sha256: str
    format: str


def load_rows(path: str, split: str = "train", limit: int | None = None) -> Rows:
    """The first `limit` rows (all: None) of a data set, in file order. `split` matters for folders and hub
    ids only.
    """
    if limit is not None and limit < 1:
        raise DataError(f"{path}: limit must be at least 1 or left out, got {limit}.")
    if path.startswith(_BUNDLED):
        return _load_bundled(path, split, limit)
    local = Path(path).expanduser()
    _refuse_database(path, local)
    if local.is_dir():
        return _load_folder(local, split, limit)
    if local.exists():
        return _load_file(local, split, limit)
    if local.suffix or path.startswith((".", "/", "~")) or path.count("/") > 1 or not path.strip():
        raise DataError(f"{path}: no such file or folder (looked in {Path.cwd()}). Expected {_FORMATS}.")
    return _load_hub(path, split, limit)


def _refuse_database(path: str, local: Path) -> None:
    """Stages that train on judgements read a database before they come here; whoever comes here reads rows."""
    if not path.startswith(("postgresql://", "postgres://", "postgresql+psycopg://", "sqlite:///")):
        try:
            with open(local, "rb") as file:
                if not file.read(16).startswith(b"SQLite format 3"):
                    return
        except OSError:
            return
    place = path.partition("://")[0] + "://..." if "://" in path else path  # a URL may hold a password
    raise DataError(
        f"{place}: this is a database, and here rows of a file are read. Write its prompts first: `tether collect export DATABASE "
        "FILE.jsonl --rows prompts` (--split held_out for evaluation). [sft], [reward_model] and [direct.NAME] of a run take a database as "
        "data.path"
    )


def load_demonstrations(source: Source) -> list[Demonstration]:
    """Every row of the source as a demonstration."""
    loaded = load_rows(source.path, source.split, source.limit)
    return read_demonstrations(loaded.rows, loaded.source)


def load_comparisons(source: Source) -> list[Comparison]:
    """Every row of the source as a comparison."""
    loaded = load_rows(source.path, source.split, source.limit)
    return read_comparisons(loaded.rows, loaded.source)


def load_feedback(source: Source) -> list[Feedback]:
    """Every row of the source as judged answers; a comparison gives two."""
    loaded = load_rows(source.path, source.split, source.limit)
    return read_feedback(loaded.rows, loaded.source)


def load_prompts(source: Source) -> list[Prompt]:
    """Every row of the source as a prompt."""
    loaded = load_rows(source.path, source.split, source.limit)
    return read_prompts(loaded.rows, loaded.source)


def _load_file(path: Path, split: str, limit: int | None, source: str = "") -> Rows:
    source = source or str(path)
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{source}: the ending {path.suffix or '(none)'} is not read. Expected {_FORMATS}.")
    warn_of_split(split, source)
    rows = read_lines(path, limit) if path.suffix == ".jsonl" else _parquet_rows(path, limit)
    _refuse_none(rows, source)
    return Rows(rows=rows, source=source, sha256=file_sha256(path), format=path.suffix[1:])


def warn_of_split(split: str, source: str) -> None:
    """Of a single file there is one split, train."""
    if split != "train":
        _LOG.warning("%s: split %r has no effect, because a file has no splits; all its rows are read.", source, split)


def _parquet_rows(path: Path, limit: int | None) -> list[dict[str, Any] | DataError]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any] | DataError] = []
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                rows += _batch_rows(batch)
                if limit is not None and len(rows) >= limit:
                    break
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file ({_first_line(error)}).") from error
    return rows[:limit]


def _batch_rows(batch: Any) -> list[dict[str, Any] | DataError]:
    """Rows of a record batch; text that is not UTF-8 costs its own row only."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if len(batch) == 1:
            return [DataError(f"a text is not UTF-8 at its byte {error.start + 1}; write the file from decoded text.")]
        return [row for at in range(len(batch)) for row in _batch_rows(batch.slice(at, 1))]


def _load_bundled(path: str, split: str, limit: int | None) -> Rows:
    name = path.removeprefix(_BUNDLED)
    folder = importlib.resources.files("tether").joinpath("recipes_data")
    known = (
        sorted(item.name for item in folder.iterdir() if item.name.endswith(".jsonl"))
        if folder.is_dir()
        else []
    )
    if name not in known:
        raise DataError(
            f"{path}: no such bundled data. Known: {', '.join(_BUNDLED + item for item in known) or 'none'}."
        )
    with importlib.resources.as_file(folder.joinpath(name)) as file:
        return _load_file(file, split, limit, source=path)


def _load_folder(path: Path, split: str, limit: int | None) -> Rows:
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except Exception as error:  # the boundary to a library that raises many kinds
        raise DataError(
            f"{path}: not a folder written by datasets.save_to_disk ({_first_line(error)}). Expected "
            f"{_FORMATS}."
        ) from error
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise DataError(f"{path}: no split {split!r}. Known: {', '.join(map(str, dataset)) or 'none'}.")
        dataset = dataset[split]
    elif split != "train":
        _LOG.warning(
            "%s: split %r has no effect, because the folder has no splits; all its rows are read.",
            path,
            split,
        )
    return _dataset_rows(dataset, str(path), "folder", limit)


def _load_hub(path: str, split: str, limit: int | None) -> Rows:
    from datasets import load_dataset

    try:
        dataset = load_dataset(path, split=split)
    except Exception as error:  # the boundary to network, cache and data set scripts
        raise DataError(
            f"{path}: no such local path, and not loaded from the hub either, split {split!r} "
            f"({type(error).__name__}: {_first_line(error)}). Check the name, the network and "
            f"HF_HUB_OFFLINE. Expected {_FORMATS}."
        ) from error
    return _dataset_rows(dataset, f"{path} [{split}]", "hub", limit)


def _dataset_rows(dataset: Any, source: str, format: str, limit: int | None) -> Rows:
    rows = (dataset if limit is None else dataset.select(range(min(limit, len(dataset))))).to_list()
    _refuse_none(rows, source)
    return Rows(rows=rows, source=source, sha256=rows_sha256(rows), format=format)


def _refuse_none(rows: Sequence[object], source: str) -> None:
    if not rows:
        raise DataError(f"{source}: no rows. Expected at least one; is it the right file and split?")


def rows_sha256(rows: Iterable[dict[str, Any]]) -> str:
    """SHA-256 of rows as JSON, in hex: the hash of data that is no single file."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
