"""A reward that pays by the length. Axis: L lengths 1..cap, in tokens. Rewards without unit, KL in nats per answer.

The world is solved in closed form; with ``model`` the same reward trains a real language model, with and without the tether.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from tether.events import read_events
from tether.labs.result import Curve, Figure, LabResult, Panel, Table
from tether.maths import kl_full, length_hack, reverse_kl_optimum
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.types import Rollout, Score

__all__ = ["run"]

HAZARD, ALPHA, CAP, PEAK = 0.2, 0.1, 64, 8
BETAS = (math.inf, 5.0, 2.0, 1.0, 0.7, 0.5, 0.45, 0.4, 0.3, 0.2, 0.0)
PROMPTS = ("Name a colour.", "What is the capital of France?", "Say hello.", "Give one example of a fruit.")
LABEL = {False: "without tether", True: "with tether"}

NOTES = (
    "The reference stops after each token with hazard 0.2 (mean 5); at 64 tokens an answer is cut. The proxy pays 0.1 per token. "
    "True quality: L / 8 up to 8 tokens, then 1 - (L - 8) / 24: a tent with its peak at 8 (our choice of curve).",
    "The best policy is the reference tilted by exp(0.1 L / beta). Below the critical beta = 0.1 / -log(0.8) a token earns more than it "
    "costs, and only the cap ends an answer.",
    "The proxy rises all the way while true quality peaks at a weak tether and falls below that of the start. No tether is worst, a "
    "weak one is best, and an infinite one keeps the start.",
)
MODEL_NOTE = (
    "The model was trained by GRPO: advantages only centred (dividing by the std would hide the size of the reward), the sum over the "
    "tokens of an answer, k3 times the ratio as the tether. Few steps, so look at the direction and not at the end."
)


@dataclass(frozen=True)
class _Row:
    """One beta: the best policy's mean length (with the cap and without), true quality, distance and share at the cap."""

    beta: float
    mean_length: float
    uncapped_length: float
    quality: float
    kl: float
    share_cut: float


@dataclass(frozen=True)
class _TokenPay:
    """The proxy as a reward part: ``alpha`` for every token that the policy drew, end token included."""

    alpha: float
    name: str = "tokens"

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout."""
        return [Score(self.alpha * len(rollout.completion.token_ids)) for rollout in rollouts]


def run(
    model: str | None = None,
    steps: int = 6,
    beta: float = 5.0,
    learning_rate: float = 3e-5,
    max_new_tokens: int = 32,
    samples_per_prompt: int = 4,
    seed: int = 0,
) -> LabResult:
    """The closed form over beta; with ``model`` (smollm2, tiny, a folder) also GRPO on it, ``steps`` steps with ``beta`` and with 0."""
    rows = [_optimum(value) for value in BETAS]
    courses: dict[bool, list[dict[str, float]]] = {}
    if model is not None:
        settings = {
            "steps": steps,
            "prompts_per_step": len(PROMPTS),
            "samples_per_prompt": samples_per_prompt,
            "sampling": {"max_new_tokens": max_new_tokens},
            "optim": {"learning_rate": learning_rate},
            "compute": {"threads": torch.get_num_threads()},  # as it is: a lab leaves the process as it found it
            "std": "none",
            "aggregation": "seq_mean_token_sum",
        }
        courses = {tethered: _train(model, beta if tethered else 0.0, settings, seed) for tethered in (True, False)}
    tables, panels = (_closed_form_table(rows),), (_closed_form_panel(rows),)
    return LabResult(
        name="length-hacking",
        question="What becomes of a policy whose reward pays by the length, with a tether and without?",
        tables=tables + ((_model_table(str(model), beta, courses),) if courses else ()),
        panels=panels + ((_model_panel(courses),) if courses else ()),
        notes=NOTES + ((MODEL_NOTE, _critical_note(courses[True][0])) if courses else ()),
        figures=_figures(rows, courses),
    )


# ---- The closed form -------------------------------------------------------------------------------------------------------


def _lengths() -> Tensor:
    return torch.arange(1, CAP + 1, dtype=torch.float64)


def _reference() -> Tensor:
    """P(L) = h (1 - h)^(L - 1), the rest of the mass at the cap."""
    probs_L = HAZARD * (1 - HAZARD) ** (_lengths() - 1)
    probs_L[-1] = (1 - HAZARD) ** (CAP - 1)
    return probs_L


def _quality() -> Tensor:
    lengths_L = _lengths()
    return torch.where(lengths_L <= PEAK, lengths_L / PEAK, 1 - (lengths_L - PEAK) / (3 * PEAK))


def _optimum(beta: float) -> _Row:
    lengths_L, reference_L = _lengths(), _reference()
    if beta == 0:
        policy_L = torch.zeros_like(reference_L)
        policy_L[-1] = 1.0
    else:
        policy_L = reverse_kl_optimum(ALPHA * lengths_L, reference_L, beta)
    uncapped = 1 / HAZARD if math.isinf(beta) else length_hack(HAZARD, ALPHA, beta).mean_length_optimum if beta else math.inf
    kl = max(0.0, float(kl_full(policy_L.log(), reference_L.log())))  # rounding at beta = inf
    return _Row(beta, float(policy_L @ lengths_L), uncapped, float(policy_L @ _quality()), kl, float(policy_L[-1]))


def _closed_form_table(rows: list[_Row]) -> Table:
    critical = length_hack(HAZARD, ALPHA, 1.0).beta_critical
    return Table(
        f"Best policy for each beta (critical beta {critical:.4f})",
        ("beta", "mean length", "without a cap", "proxy", "true quality", "KL", "at the cap"),
        tuple((r.beta, r.mean_length, r.uncapped_length, ALPHA * r.mean_length, r.quality, r.kl, r.share_cut) for r in rows),
        ("g", ".2f", ".2f", ".3f", ".3f", ".3f", ".1%"),
    )


def _closed_form_panel(rows: list[_Row]) -> Panel:
    kls = tuple(row.kl for row in rows)
    return Panel(
        "Proxy and true quality of the best policy",
        "KL(policy || reference), nats",
        "per answer",
        (
            Curve("proxy (0.1 per token)", kls, tuple(ALPHA * row.mean_length for row in rows)),
            Curve("true quality", kls, tuple(row.quality for row in rows)),
        ),
    )


def _figures(rows: list[_Row], courses: dict[bool, list[dict[str, float]]]) -> dict[str, Figure]:
    closed_form: dict[str, Figure] = {
        "beta": ["inf" if math.isinf(row.beta) else row.beta for row in rows],
        "beta_critical": length_hack(HAZARD, ALPHA, 1.0).beta_critical,
        "mean_length": [row.mean_length for row in rows],
        "mean_length_uncapped": ["inf" if math.isinf(row.uncapped_length) else row.uncapped_length for row in rows],
        "true_quality": [row.quality for row in rows],
        "kl": [row.kl for row in rows],
        "share_at_cap": [row.share_cut for row in rows],
    }
    if courses:
        closed_form["model"] = {LABEL[key]: _lists(course) for key, course in courses.items()}
    return closed_form


# ---- A real language model -------------------------------------------------------------------------------------------------


def _train(model: str, beta: float, settings: dict[str, object], seed: int) -> list[dict[str, float]]:
    """GRPO from the model's own weights, for ``ALPHA`` per token; the metrics of every step."""
    from tether.api import grpo  # as a user would; only this part of the labs needs a trainer

    policy = Policy.load(resolve_model(model))
    tie = {"where": "loss", "estimator": "k3_corrected", "beta": beta}
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "events.jsonl"
        grpo(policy, PROMPTS, [_TokenPay(ALPHA)], seed=seed, log=log, kl=tie, **settings)
        return [event["metrics"] for event in read_events(log) if event["kind"] == "step"]


def _model_table(model: str, beta: float, courses: dict[bool, list[dict[str, float]]]) -> Table:
    start, *_ = courses[True]
    rows = [("start", "", start), (LABEL[True], f"{beta:g}", courses[True][-1]), (LABEL[False], "0", courses[False][-1])]
    return Table(
        f"{model} after {len(courses[True]) - 1} updates, {ALPHA:g} per token",
        ("policy", "beta", "mean length", "truncated", "KL per answer (k1)", "KL per token (k3)"),
        tuple((name, tie, m["response_length"], m["truncated_share"], m["kl_k1_sequence"], m["kl_k3_token"]) for name, tie, m in rows),
        ("", "", ".1f", ".1%", ".3f", ".5f"),
    )


def _critical_note(start: dict[str, float]) -> str:
    """The critical beta, if the model stopped with one hazard: answers that ended / tokens drawn."""
    hazard = (1 - start["truncated_share"]) / start["response_length"]
    if not 0 < hazard < 1:
        return "At the start no answer ended within the budget: there is no hazard to estimate a critical beta from."
    critical = length_hack(hazard, ALPHA, 1.0).beta_critical
    return f"At the start {hazard:.3f} of the tokens ended an answer; with that as a hazard the critical beta would be {critical:.2f}."


def _model_panel(courses: dict[bool, list[dict[str, float]]]) -> Panel:
    curves = tuple(
        Curve(LABEL[key], tuple(map(float, range(len(course)))), _column(course, "response_length")) for key, course in courses.items()
    )
    return Panel("Mean length of the answers of the model", "updates", "tokens", curves)


def _column(course: list[dict[str, float]], name: str) -> tuple[float, ...]:
    return tuple(float(metrics[name]) for metrics in course)


def _lists(course: list[dict[str, float]]) -> dict[str, Figure]:
    names = ("response_length", "truncated_share", "kl_k1_sequence", "kl_k3_token")
    return {name: list(_column(course, name)) for name in names}
