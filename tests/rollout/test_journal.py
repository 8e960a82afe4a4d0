"""The journal hands answers on as they finish, and keeps whole chunks alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tether.rollout import ScriptedSampler
from tether.rollout.journal import JournalledSampler
from tether.types import Completion, Request, Sampling

SAMPLING = Sampling(4)
REQUESTS = [Request(name, (1, 2), 2, key) for key, name in enumerate("abc")]


class Counting:
    """A scripted sampler that says how many answers it has drawn."""

    version = 0

    def __init__(self) -> None:
        self.drawn = 0

    def refresh(self, version: int) -> None:
        self.version = version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        for completion in ScriptedSampler(lambda request, index: (request.key, index)).generate(requests, sampling):
            self.drawn += 1
            yield completion


def journal(folder: Path, sampler: Counting, chunk_rows: int = 4) -> JournalledSampler:
    return JournalledSampler(sampler, folder, "settings", chunk_rows)


def lines(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.glob("rollouts-*.jsonl"))


def test_an_answer_is_handed_on_the_moment_it_is_finished(tmp_path: Path) -> None:
    sampler = Counting()
    answers = journal(tmp_path, sampler).generate(REQUESTS, SAMPLING)
    seen = []
    for number, answer in enumerate(answers, 1):
        assert sampler.drawn == number
        assert lines(tmp_path) == (number - 1) // 4  # a chunk is kept once all of it was handed on
        seen.append(answer)
    assert lines(tmp_path) == 2
    again = Counting()
    assert list(journal(tmp_path, again).generate(REQUESTS, SAMPLING)) == seen
    assert again.drawn == 0


@pytest.mark.parametrize("taken", [1, 3, 4, 5])
def test_who_stops_in_a_chunk_finds_the_chunks_before_it(tmp_path: Path, taken: int) -> None:
    answers = journal(tmp_path, Counting()).generate(REQUESTS, SAMPLING)
    for _ in range(taken):
        next(answers)
    del answers
    again = Counting()
    whole = journal(tmp_path, again)
    drawn = list(whole.generate(REQUESTS, SAMPLING))
    assert again.drawn == (6 if taken <= 4 else 2)
    other = journal(tmp_path / "other", Counting())
    assert list(other.generate(REQUESTS, SAMPLING)) == drawn
    assert other.state() == whole.state()
