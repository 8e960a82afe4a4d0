"""The command lines of bench/RESULTS.md are read as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import seeds

ROOT = Path(__file__).parents[2]
LINES = re.findall(r"`python -m bench\.seeds (.*?)`", (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_results_is_understood(line, monkeypatch, capsys):
    seen = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(seeds.subprocess, "run", lambda command, **_: seen.append(command))
    monkeypatch.setattr(seeds, "_rows", lambda config: [])
    assert seeds.main([*line.split(), "output=/nowhere"]) == 0
    assert capsys.readouterr().out.startswith("| run |")
    assert seen
    for override in (word for word in line.split() if "=" in word):
        assert all(override in command for command in seen)


def test_there_are_such_lines():
    assert len(LINES) >= 3
