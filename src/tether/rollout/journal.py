"""A sampler that keeps what is finished: after a crash in the middle of a rollout only the unfinished part is drawn again.

Requests are answered in chunks, each by one call of the sampler behind; a finished chunk is one line on the disk. What a chunk returns
depends on its own requests, the weights and the contract alone, so a run that was interrupted draws exactly what it would have drawn.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import remove
from ..types import Completion, Request, Sampling, StopReason
from .sampler import Sampler

__all__ = ["JournalledSampler"]


class JournalledSampler:
    """``sampler`` with a journal in ``folder``, one file per policy version. State: the files.

    ``identity``: what else the answers follow from (settings, data, code); another one finds nothing. ``chunk_rows``: answers per chunk.
    """

    def __init__(self, sampler: Sampler, folder: Path, identity: str, chunk_rows: int) -> None:
        self._sampler, self._folder, self._identity, self._chunk_rows = sampler, folder, identity, chunk_rows
        self.version = sampler.version

    def refresh(self, version: int) -> None:
        """Publish: what earlier weights said is of no more use."""
        self._sampler.refresh(version)
        self.version = version
        if self._folder.is_dir():
            for path in self._folder.glob("rollouts-*.jsonl"):
                if path != self._path():
                    remove(path)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Completions chunk by chunk: from the journal where it has them, else drawn and kept."""
        known = self._known()
        for chunk in _chunks(requests, self._chunk_rows):
            name = self._name(chunk, sampling)
            if name not in known:
                drawn = list(self._sampler.generate(chunk, sampling))
                self._keep(name, drawn)
                yield from drawn
            else:
                yield from (_completion(row, sampling) for row in known[name])

    def _path(self) -> Path:
        return self._folder / f"rollouts-{self.version:08d}.jsonl"

    def _name(self, chunk: Sequence[Request], sampling: Sampling) -> str:
        told = [self._identity, self.version, asdict(sampling), [asdict(request) for request in chunk]]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def _known(self) -> dict[str, list[Any]]:
        """Whole lines of the journal; one that a crash cut is left out."""
        if not self._path().is_file():
            return {}
        known: dict[str, list[Any]] = {}
        for line in self._path().read_bytes().splitlines(keepends=True):
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if isinstance(record, dict) and record.get("sha256") == _digest(record.get("rows")):
                known[record["chunk"]] = record["rows"]
        return known

    def _keep(self, name: str, drawn: Sequence[Completion]) -> None:
        rows = [_row(completion) for completion in drawn]
        record = {"chunk": name, "rows": rows, "sha256": _digest(rows)}
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._path().open("ab") as file:
            file.write(b"\n" if _cut(self._path()) else b"")
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _chunks(requests: Sequence[Request], rows: int) -> Iterator[list[Request]]:
    """Requests in order, so many that their answers fit ``rows`` (one request at least)."""
    chunk: list[Request] = []
    for request in requests:
        if chunk and sum(r.num_samples for r in chunk) + request.num_samples > rows:
            yield chunk
            chunk = []
        chunk.append(request)
    if chunk:
        yield chunk


def _cut(path: Path) -> bool:
    """True where the last line has no end."""
    data = path.read_bytes()
    return bool(data) and not data.endswith(b"\n")


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _row(c: Completion) -> list[Any]:
    return [c.prompt_id, c.sample_index, list(c.token_ids), list(c.sampler_logprobs), list(c.versions), str(c.stop_reason)]


def _completion(row: list[Any], sampling: Sampling) -> Completion:
    name, index, ids, logprobs, versions, reason = row
    return Completion(name, index, tuple(ids), tuple(logprobs), tuple(versions), StopReason(reason), sampling)
