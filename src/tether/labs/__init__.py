"""Small worlds with exact answers, each run in seconds on a CPU with the functions that training uses.

    LABS      the list: name, summary, module, options
    run_lab   run one by name
    result    what a lab returns: tables, curves, figures, notes
    show      a result as text or JSON
    plot      a result as a picture

Replays of textbook programs, rule for rule, beside the correct version of the same idea: reward_model, ppo_bandit, grpo_bandit (with
the C library's random numbers in glibc), ppo_tabular, ce_vs_ppo, entropy. Experiments whose right outcome is known: kl_bandit,
group_size, length_hacking, rule_reward, no_std, over_optimisation, best_of_n.

Naming the labs imports no torch; a lab is imported when it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType

from tether.errors import ConfigError
from tether.labs.result import LabResult

__all__ = ["LABS", "Lab", "Option", "run_lab"]

OptionValue = int | float | str | None


@dataclass(frozen=True)
class Option:
    """One keyword of a lab's ``run``. ``kind``: the type of its value; ``default`` None: not given."""

    name: str
    kind: type[int] | type[float] | type[str]
    default: OptionValue
    help: str


@dataclass(frozen=True)
class Lab:
    """One lab: what it asks, the module that answers, and what can be set."""

    name: str
    summary: str
    module: str
    options: tuple[Option, ...] = ()


_SEED = Option("seed", int, 0, "seed of the draws")

_LABS = (
    Lab("reward-model", "Bradley-Terry on four named features, and pairs that contradict a weight", "reward_model",
        (Option("contradict", int, None, "so many extra pairs that prefer the less safe answer"),)),
    Lab("ppo-bandit", "why the ratio is there: four actions, both sides of the clip", "ppo_bandit"),
    Lab("grpo-bandit", "the group as its own baseline, with the C library's random numbers", "grpo_bandit",
        (Option("seed", int, 42, "seed of rand()"), Option("seeds", int, 1000, "other streams to average over"))),
    Lab("ppo-tabular", "a complete PPO on two decisions", "ppo_tabular", (Option("seed", int, 19, "seed of the draws"),)),
    Lab("ce-vs-ppo", "the gradient of cross-entropy inside that of PPO", "ce_vs_ppo"),
    Lab("entropy", "an entropy bonus beside padding that holds NaN", "entropy",
        (Option("coef", float, 0.1, "coefficient of the bonus"),)),
    Lab("kl-bandit", "both directions of KL, and the optima they lead to", "kl_bandit",
        (Option("max_steps", int, 400, "most exact-gradient steps"),)),
    Lab("group-size", "how many samples per prompt, and what the group mean costs", "group_size",
        (Option("seeds", int, 400, "runs"), Option("steps", int, 20, "updates of a run"), _SEED)),
    Lab("length-hacking", "a reward paid by the token, with and without a tether", "length_hacking",
        (Option("model", str, None, "also on this language model: tiny, smollm2 or a folder"),
         Option("steps", int, 6, "updates of the language model"), Option("beta", float, 5.0, "its tether"), _SEED)),
    Lab("rule-reward", "sums with one right answer: groups that teach nothing", "rule_reward",
        (Option("seeds", int, 40, "runs"), Option("group_size", int, 8, "answers per prompt"), Option("steps", int, 50, "updates"), _SEED)),
    Lab("no-std", "what dividing by the group's standard deviation does", "no_std",
        (Option("seeds", int, 1000, "runs"), Option("steps", int, 60, "updates of a run"), _SEED)),
    Lab("over-optimisation", "a proxy reward rises while the gold reward falls", "over_optimisation",
        (Option("seeds", int, 20, "worlds"), Option("pool", int, 2048, "samples of best-of-n"), _SEED)),
    Lab("best-of-n", "best of n without training, its gain and its KL bound", "best_of_n",
        (Option("samples", int, 64, "samples in a pool"), Option("repetitions", int, 400, "pools"), _SEED)),
)  # fmt: skip

LABS: Mapping[str, Lab] = MappingProxyType({lab.name: lab for lab in _LABS})


def run_lab(name: str, **options: OptionValue) -> LabResult:
    """Run the lab called ``name``. Raises ConfigError for a name or an option that does not exist, or a value of another type.

    Example: ``run_lab("reward-model", contradict=5)``.
    """
    if name not in LABS:
        raise ConfigError(f"lab: there is no {name!r}{_nearest(name, list(LABS))}; known: {', '.join(LABS)}")
    lab = LABS[name]
    if problems := [problem for key, value in options.items() if (problem := _problem(lab, key, value))]:
        raise ConfigError(problems)
    return import_module(f"tether.labs.{lab.module}").run(**options)


def _problem(lab: Lab, key: str, value: OptionValue) -> str:
    option = next((option for option in lab.options if option.name == key), None)
    if option is None:
        known = [option.name for option in lab.options]
        listed = f"known: {', '.join(known)}" if known else "this lab has none"
        return f"lab.{lab.name}.{key}: no such option{_nearest(key, known)}; {listed}"
    accepted = (int, float) if option.kind is float else option.kind
    left_out = value is None and option.default is None
    if left_out or (isinstance(value, accepted) and not isinstance(value, bool)):
        return ""
    return f"lab.{lab.name}.{key}: {value!r}; expected {option.kind.__name__} ({option.help})"


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""
