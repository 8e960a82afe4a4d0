"""Break the mathematics in known ways and see that the tests notice: `python tests/mutants/run.py [--jobs N] [NAME ...]`.

Each mutant lives in a copy of the package under a temporary folder; the repository is never edited. One process per
mutant, forked from one that has torch loaded, with the copy first on its path. A control without a mutation must pass.
Prints a table; exits 1 if a mutant survives, breaks at import, or the control fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tether"
sys.path.insert(0, str(Path(__file__).resolve().parent))

from catalogue import MUTANTS, Mutant  # noqa: E402

# What to run for a file, fastest and most likely first: the first failure ends it. The golden cases close every list.
_POLICY = ["maths/test_policy_loss", "maths/test_cases", "properties/test_policy_losses", "properties/test_gradients",
           "properties/test_kl", "properties/test_masks"]  # fmt: skip
TESTS = {
    "advantages.py": ["maths/test_advantages", "maths/test_cases", "properties/test_advantages"],
    "returns.py": ["maths/test_returns", "maths/test_cases", "properties/test_returns", "properties/test_masks"],
    "masked.py": ["maths/test_masked", "maths/test_cases", "properties/test_counting", "properties/test_masks"],
    "moments.py": ["maths/test_moments", "properties/test_counting"],
    "kl.py": ["maths/test_kl", "properties/test_kl"],
    "logprobs.py": ["maths/test_logprobs", "properties/test_gradients"],
    "_ratio.py": _POLICY,
    "policy_loss.py": _POLICY,
    "sequence_loss.py": _POLICY,
    "value_loss.py": ["maths/test_value_loss", "properties/test_gradients"],
    "importance.py": ["maths/test_importance", "properties/test_kl", "properties/test_policy_losses"],
    "reward_loss.py": ["maths/test_reward_loss", "properties/test_preferences"],
    "tie_loss.py": ["maths/test_tie_loss"],
    "preference_loss.py": ["maths/test_preference_loss", "properties/test_preferences", "properties/test_gradients"],
    "best_of_n.py": ["maths/test_small_worlds", "maths/test_best_of_n", "properties/test_counting"],
    "optimisers.py": ["maths/test_small_worlds"],
    "text_stats.py": ["maths/test_small_worlds", "maths/test_text_stats", "properties/test_counting"],
    "bandits.py": ["maths/test_small_worlds", "maths/test_bandits"],
}  # fmt: skip


class Outcome(NamedTuple):
    """`verdict`: killed, survived, broken (no test failed, yet the run did) or passed (the control); `by`: the first failing test."""

    name: str
    verdict: str
    by: str


class _Witness:
    """A pytest plugin: which test failed first, and whether the tests imported the copy and nothing else."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.first = tree, ""

    def pytest_sessionstart(self) -> None:
        import hypothesis

        # No shrinking: the first counterexample kills.
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", parent=hypothesis.settings.default, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_finish(self) -> None:
        maths = sys.modules.get("tether.maths")
        if maths is not None and not str(maths.__file__).startswith(str(self.tree)):
            raise RuntimeError(f"the tests import {maths.__file__}, not the copy in {self.tree}")

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid.removeprefix("tests/")


def mutated(mutant: Mutant, source: str) -> str:
    """The file with its mistake; the old text must stand in it exactly once."""
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"stale mutant {mutant.name!r}: its old text stands {found} times in {mutant.file}")
    return source.replace(mutant.old, mutant.new)


CONTROL = Mutant("control", "", "", "", "every test passes without a mutation")


def stages(mutant: Mutant) -> list[list[str]]:
    """What to run one after the other until a test fails: the mirror of the file, its laws, the golden cases."""
    if mutant == CONTROL:
        return [["tests/maths", "tests/properties", "tests/golden"]]
    first, *rest = [f"tests/{name}.py" for name in TESTS[mutant.file]]
    return [[first], *([rest] if rest else []), ["tests/golden"]]


def attempt(mutant: Mutant) -> Outcome:
    """Run in a forked child: the copy is first on the path, and `tether` is not imported yet."""
    assert "tether" not in sys.modules
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        shutil.copytree(PACKAGE, tree / "tether", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant != CONTROL:
            target = tree / "tether" / "maths" / mutant.file
            target.write_text(mutated(mutant, target.read_text(encoding="utf-8")), encoding="utf-8")
        return _judge(mutant, tree)


def _judge(mutant: Mutant, tree: Path) -> Outcome:
    import pytest

    sys.dont_write_bytecode = True
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)
    os.chdir(ROOT)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=120", "--no-header", "--tb=line"]
    for files in stages(mutant):
        witness, said = _Witness(tree), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = pytest.main([*options, *files], plugins=[witness])
        if code == pytest.ExitCode.TESTS_FAILED and witness.first and mutant != CONTROL:
            return Outcome(mutant.name, "killed", witness.first)
        if code != pytest.ExitCode.OK:
            return Outcome(mutant.name, "broken", witness.first or said.getvalue()[-1500:])
    return Outcome(mutant.name, "passed" if mutant == CONTROL else "survived", "")


def run(mutants: list[Mutant], jobs: int) -> Iterator[Outcome]:
    """Outcomes in order, as they come; the parent loads torch, which every child needs, and never `tether`."""
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(attempt, [CONTROL, *mutants])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("names", nargs="*", help="only mutants whose name or file contains one of these")
    arguments = parser.parse_args()
    wanted = [m for m in MUTANTS if not arguments.names or any(n in m.name or n in m.file for n in arguments.names)]
    outcomes = []
    for outcome in run(wanted, arguments.jobs):
        outcomes.append(outcome)
        print(f"{outcome.verdict:9} {outcome.name:36} {outcome.by}", flush=True)
    bad = [outcome for outcome in outcomes if outcome.verdict not in ("killed", "passed")]
    killed = sum(outcome.verdict == "killed" for outcome in outcomes)
    print(f"{killed} of {len(wanted)} mutants killed; {len(bad)} to look at")
    return 1 if bad or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
