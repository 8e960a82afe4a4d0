"""A user's own run, checked before a night is spent on it: `tether conformance --config run.toml`. See docs/selfcheck.md.

It stands in `run` and not in `conformance`, which needs nothing but the mathematics: what is checked here is the run's own learner,
sampler and rubric. `prepare` builds a stage as the pipeline does, `passes`, `credit` and `gradients` hold the checks, `check` says in
which order and what follows from what, `verdict` puts it into words.
"""

from .check import check_config
from .prepare import Limits
from .verdict import Check, ConfigVerdict, Outcome, StageVerdict, as_json, as_text

__all__ = ["Check", "ConfigVerdict", "Limits", "Outcome", "StageVerdict", "as_json", "as_text", "check_config"]
