"""Every error Tether raises on purpose, in one tree.

    TetherError
    ├── ConfigError (ValueError)        a configuration that cannot be run; lists every problem at once
    ├── DataError (ValueError)          rows that cannot be read; names file and row numbers
    ├── ModelError (ValueError)         a model folder that is not what was asked for
    │   └── MissingHeadError            a reward or value head that the checkpoint does not hold
    ├── FetchError (OSError)            the bundled model could not be obtained
    ├── RewardError (RuntimeError)      too many verifiers failed (a wrong answer is not a failure)
    ├── SamplerError (RuntimeError)     generation broke its contract
    ├── NumericsError (ArithmeticError) a value that must be finite is not; the step was not applied
    ├── DoesNotFitError (MemoryError)   a pass of one row, the smallest there is, needs more memory than there is
    ├── RatioError (AssertionError)     the policy moved before the first update of a rollout
    ├── CheckpointError (RuntimeError)  a checkpoint that cannot be written, or is not what was written
    ├── RunError (RuntimeError)         a run folder that cannot be used as asked
    ├── StoreError (RuntimeError)       a database of judgements that cannot be used as asked
    │   ├── StoreConflict               a judgement that contradicts a stored one
    │   ├── StoreDamaged                its file was changed or cut by something else; a backup is needed
    │   └── StoreFull                   its disk is full; what was acknowledged before is safe
    ├── Paused                          a check ended the run after it was saved; carries the exit status
    └── Interrupted                     a signal ended the run after it was saved; carries the exit status

Messages say what was expected, what came and what to do. All errors pickle, because workers send them home.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

__all__ = [
    "CheckpointError", "ConfigError", "DataError", "DoesNotFitError", "FetchError", "Interrupted", "MissingHeadError", "ModelError",
    "NumericsError", "Paused", "RatioError",
    "RewardError", "RunError", "SamplerError", "StoreConflict", "StoreDamaged", "StoreError", "StoreFull", "TetherError",
]


class TetherError(Exception):
    """Root of the tree: ``except TetherError`` catches what Tether raises on purpose and nothing else."""


class ConfigError(TetherError, ValueError):
    """A configuration that cannot be run.

    ``problems`` holds one sentence per problem, each naming the dotted path, the value and the remedy.
    """

    def __init__(self, problems: Sequence[str] | str, source: str = "") -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        self.source = source
        super().__init__(self.problems, source)

    def __str__(self) -> str:
        place = f" in {self.source}" if self.source else ""
        if len(self.problems) == 1:
            return f"1 problem{place}: {self.problems[0]}"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems{place}:\n{lines}"


class DataError(TetherError, ValueError):
    """Rows that cannot be used; the message names the file and the row numbers (counted from 1)."""


class ModelError(TetherError, ValueError):
    """A model folder or hub id that is not what was asked for."""


class MissingHeadError(ModelError):
    """A checkpoint without the head that was asked for: loading on would score with random weights."""


class FetchError(TetherError, OSError):
    """The bundled model could not be obtained: no network, no space, or a wrong hash."""


class RewardError(TetherError, RuntimeError):
    """Too large a share of rollouts could not be scored because a verifier broke."""


class SamplerError(TetherError, RuntimeError):
    """A sampler broke its contract, or was asked for something it cannot do."""


class NumericsError(TetherError, ArithmeticError):
    """A value that must be finite is not; the optimiser step was not applied."""


_RECOMPUTATION = {
    "off": ("", 'set compute.activation_checkpointing = "auto", '),
    "on": (", although activations are recomputed (compute.activation_checkpointing)", 'set optim.states = "int8", '),
    "impossible": (", and this model cannot recompute its activations", 'set optim.states = "int8", '),
}


class DoesNotFitError(TetherError, MemoryError):
    """A pass of ``num_units`` rows (or pairs), ``num_tokens`` tokens with padding, needs more memory than there is.

    ``recomputation`` of activations: not tried ("off"), tried ("on"), or not known to this model ("impossible").
    """

    def __init__(self, num_units: int, num_tokens: int, recomputation: Literal["off", "on", "impossible"] = "off") -> None:
        self.num_units, self.num_tokens, self.recomputation = num_units, num_tokens, recomputation
        super().__init__(num_units, num_tokens, recomputation)

    def __str__(self) -> str:
        found = f"a pass of {self.num_tokens} tokens does not fit in memory"
        if self.num_units > 1:
            return f"{found}; lower compute.token_budget to {self.num_tokens // 2}"
        known, remedy = _RECOMPUTATION[self.recomputation]
        return (
            f"{found}, and it holds a single row (or pair), which cannot be split{known}: shorten rows (max_length, max_prompt_tokens, "
            f"sampling.max_new_tokens), {remedy}train adapters ([model.lora]), or take a smaller model"
        )


class RatioError(TetherError, AssertionError):
    """The policy's log-probabilities differ from the old ones before the first update of a rollout."""


class CheckpointError(TetherError, RuntimeError):
    """A checkpoint that could not be written (the ones before it stay), or whose files are not those that were written."""


class RunError(TetherError, RuntimeError):
    """A run folder that cannot be used as asked (changed configuration, unfinished stage, locked)."""


class StoreError(TetherError, RuntimeError):
    """A database of judgements that cannot be used as asked (absent, foreign, newer, busy, or a judgement it must refuse)."""


class StoreConflict(StoreError):
    """A judgement that contradicts a stored one: another content under its id, or the annotator's second word on one item."""


class StoreDamaged(StoreError):
    """The file of a database is not what was written into it: bytes were changed, or it was cut. The message says what to do."""


class StoreFull(StoreError):
    """No space is left for the database: this write is not stored, everything that was acknowledged before is."""


class Paused(TetherError):
    """A check tripped and the run ended after its state was saved. ``findings``: one text each; ``status`` is the exit status."""

    status = 3

    def __init__(self, findings: Sequence[str], folder: str) -> None:
        self.findings, self.folder = tuple(findings), folder
        super().__init__(self.findings, folder)

    def __str__(self) -> str:
        lines = "\n".join(f"  - {finding}" for finding in self.findings)
        count = "a check" if len(self.findings) == 1 else f"{len(self.findings)} checks"
        return (
            f"paused by {count}; everything is saved, nothing was changed.\n"
            f"{lines}\nTo go on from here all the same: tether resume {self.folder} --acknowledge"
        )


class Interrupted(TetherError):
    """A signal ended the run after its state was saved. ``status`` is the exit status: 128 + the number of the signal."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)

    def __str__(self) -> str:
        return "stopped by a signal; everything up to the last finished step is saved"
