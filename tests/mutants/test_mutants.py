"""The catalogue of known mistakes fits the code; and (slow) the tests catch every one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import run  # noqa: E402
from catalogue import MUTANTS, Mutant  # noqa: E402


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_old_text_stands_exactly_once_and_the_mutant_is_python(mutant: Mutant):
    source = (run.PACKAGE / "maths" / mutant.file).read_text(encoding="utf-8")
    changed = run.mutated(mutant, source)
    assert changed != source
    compile(changed, mutant.file, "exec")
    assert all((ROOT / file).exists() for files in run.stages(mutant) for file in files)


def test_a_stale_mutant_fails_loudly():
    with pytest.raises(ValueError, match="stands 0 times"):
        run.mutated(Mutant("gone", "kl.py", "no such text", "", ""), "x = 1")
    with pytest.raises(ValueError, match="stands 2 times"):
        run.mutated(Mutant("twice", "kl.py", "x", "", ""), "x = x")


def test_there_are_enough_and_no_name_twice():
    assert len(MUTANTS) >= 50
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_mutant_is_killed():
    command = [sys.executable, str(HERE / "run.py"), "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
