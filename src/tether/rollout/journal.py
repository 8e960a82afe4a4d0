"""A sampler that keeps what is finished: after a crash in the middle of a rollout only the unfinished part is drawn again.

Requests are answered in chunks, each by one call of the sampler behind; a finished chunk is one line on the disk. An answer is handed on
the moment it is finished, so that it can be scored while the rest of its chunk is drawn. What a chunk returns depends on its own requests,
the weights and the contract alone, so a run that was interrupted draws exactly what it would have drawn.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import remove
from ..state import State
from ..types import Completion, Request, Sampling, StopReason
from .sampler import RestingSampler, Sampler

__all__ = ["JournalledSampler"]

_LOG = logging.getLogger(__name__)


class JournalledSampler:
    """``sampler`` with a journal in ``folder``, one file per policy version. State: the files, and a hash over all answers given.

    ``identity``: what else the answers follow from (settings, data, code); another one finds nothing. ``chunk_rows``: answers per chunk.
    A journal that cannot be written costs the safety of the present rollout, never the run: that is said once.
    """

    def __init__(self, sampler: Sampler, folder: Path, identity: str, chunk_rows: int) -> None:
        self._sampler, self._folder, self._identity, self._chunk_rows = sampler, folder, identity, chunk_rows
        self.version = sampler.version
        self._answers_sha256 = ""
        self._failed = False

    def refresh(self, version: int) -> None:
        """Publish: what earlier weights said is of no more use."""
        self._sampler.refresh(version)
        self.version = version
        if self._folder.is_dir():
            for path in self._folder.glob("rollouts-*.jsonl"):
                if path != self._path():
                    remove(path)

    def rest(self) -> None:
        """See ``RestingSampler``."""
        if isinstance(self._sampler, RestingSampler):
            self._sampler.rest()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Completions chunk by chunk: from the journal where it has them, else as they are drawn; a chunk is kept when it is whole."""
        known = self._known()
        for chunk in _chunks(requests, self._chunk_rows):
            name = self._name(chunk, sampling)
            if name in known:
                answers = [_completion(row, sampling) for row in known[name]]
                yield from answers
            else:
                answers = []
                for answer in self._sampler.generate(chunk, sampling):
                    answers.append(answer)
                    yield answer
                self._keep(name, answers)
            self._answers_sha256 = _digest([self._answers_sha256, [_row(answer) for answer in answers]])

    def state(self) -> State:
        """A hash over every answer given so far, token ids and log-probabilities: two runs that agree in it drew the same."""
        return State(values={"answers_sha256": self._answers_sha256})

    def restore(self, state: State) -> None:
        """Go on from ``state``."""
        self._answers_sha256 = str(state.values["answers_sha256"])

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
        try:
            lines = self._path().read_bytes().split(b"\n")
        except OSError:
            return {}
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and record.get("sha256") == _digest(record.get("rows")):
                known[record["chunk"]] = record["rows"]
        return known

    def _keep(self, name: str, drawn: Sequence[Completion]) -> None:
        rows = [_row(completion) for completion in drawn]
        record = {"chunk": name, "rows": rows, "sha256": _digest(rows)}
        try:
            self._append(json.dumps(record).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                _LOG.warning("%s cannot be written (%s): a crash in the middle of a rollout would lose its answers", self._path(), error)
            self._failed = True

    def _append(self, line: bytes) -> None:
        """One whole line on the disk. A rest that a crash left before it gets an end of its own, and is known by its missing hash."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._path().open("ab") as file:
            file.write((b"" if _ends_whole(self._path()) else b"\n") + line)
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


def _ends_whole(path: Path) -> bool:
    """True where the file is empty or its last line has an end."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _row(c: Completion) -> list[Any]:
    return [c.prompt_id, c.sample_index, list(c.token_ids), list(c.sampler_logprobs), list(c.versions), str(c.stop_reason)]


def _completion(row: list[Any], sampling: Sampling) -> Completion:
    name, index, ids, logprobs, versions, reason = row
    return Completion(name, index, tuple(ids), tuple(logprobs), tuple(versions), StopReason(reason), sampling)
