"""Where the reward comes from and where it goes: the checks `rewards` and `score`. Axes: B sequences, T tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tether.algorithms.advantages import annotate
from tether.algorithms.experience import Experience
from tether.config import ActorCriticConfig
from tether.run.learner import OnlineLearner
from tether.run.rows import RolloutRow
from tether.types import RolloutGroup

from .prepare import Round
from .verdict import Check, Outcome, judged

__all__ = ["rewards", "score"]

_SCORE = 1e-4  # reward units, relative beyond 1: float32 sums over an answer
_MANY = 0.1  # unscored share above which a reader should know

_ADVICE = (
    "the reward does not land where the answer ends: the score belongs on the last trained token (column prompt + answer - 1; one past it "
    "is a pad and is masked away), and -beta * KL on every trained token, once"
)


# -- rewards -----------------------------------------------------------------------------------------------------------------


def rewards(groups: Sequence[RolloutGroup], problem: str) -> Check:
    """What the reward parts said of these answers, and whether there is anything to learn from it."""
    if problem:
        return Check("rewards", Outcome.FAIL, problem, advice="the run would stop here: repair the verifier or its data")
    scores = [value for group in groups for value in group.scores]
    scored = [value for value in scores if not math.isnan(value)]
    unscored = 1 - len(scored) / len(scores)
    if not scored:
        advice = "no reward part applies to any answer: look at the columns and patterns that the parts ask for"
        return Check("rewards", Outcome.FAIL, f"none of {len(scores)} answers has a score", unscored, advice=advice)
    parts = "; ".join(_part_line(name, groups) for name in dict.fromkeys(name for g in groups for c in g.components for name in c))
    said = f"mean {statistics.fmean(scored):.3g}, {min(scored):.3g} to {max(scored):.3g}; {len(scores) - len(scored)} of {len(scores)} " \
           f"unscored; {parts}"  # fmt: skip
    advice = _worth_a_look(groups, scored, unscored)
    return Check("rewards", Outcome.WARN if advice else Outcome.PASS, said, unscored, advice=advice)


def _part_line(name: str, groups: Sequence[RolloutGroup]) -> str:
    values = [c[name] for group in groups for c in group.components if not math.isnan(c.get(name, math.nan))]
    if not values:
        return f"{name}: never applies"
    return f"{name}: {statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def _worth_a_look(groups: Sequence[RolloutGroup], scored: Sequence[float], unscored: float) -> str:
    """A sentence, or nothing."""
    several = [group for group in groups if len(group.scores) > 1]
    dead = sum(len({value for value in group.scores if not math.isnan(value)}) < 2 for group in several)
    if len(set(scored)) == 1:
        return f"all answers score {scored[0]:.3g}: if that stays so there is nothing to learn; look at an answer, or start from more SFT"
    if several and dead > len(several) / 2:
        return f"{dead} of {len(several)} groups have equal scores and teach nothing: more answers a prompt, or easier (harder) prompts"
    if unscored > _MANY:
        return f"{unscored:.0%} of the answers have no score and are left out of the gradient"
    return ""


# -- score -------------------------------------------------------------------------------------------------------------------


def score(learner: OnlineLearner, found: Round) -> Check:
    """Token rewards are -beta k1 on every trained token plus the score on the last, and reach the advantages so.

    Measured on the run's own rows and function ``annotate``, with a made-up KL because the true one is 0 at step 0. What is expected
    is put together from the rows by their lengths, not from a mask.
    """
    experience = _with_made_up_kl(found.experience)
    expected = _expected(learner, found.rows, experience)
    problem, worst = _compare(learner, found.rows, experience, expected)
    cut = sum(not row.terminated for row in found.rows)
    where = "-beta KL + score" if learner.config.kl.where == "reward" else "the score (the KL acts in the loss)"
    said = f"rewards of {len(found.rows)} answers ({cut} cut) add up to {where}, the score on the last trained token; off by {worst:.2g}"
    return judged("score", worst, _SCORE, problem or said, _ADVICE)


def _with_made_up_kl(experience: Experience) -> Experience:
    generator = torch.Generator().manual_seed(0)
    noise_BT = torch.randn(experience.mask_BT.shape, generator=generator).to(experience.old_logprobs_BT)
    return replace(experience, ref_logprobs_BT=torch.where(experience.mask_BT, experience.old_logprobs_BT - noise_BT, 0.0))


def _spans(rows: Sequence[RolloutRow]) -> list[slice]:
    """The columns of each answer, from the lengths of prompt and answer."""
    return [slice(len(row.query_ids), len(row.query_ids) + len(row.response_ids)) for row in rows]


def _expected(learner: OnlineLearner, rows: Sequence[RolloutRow], experience: Experience) -> list[Tensor]:
    """One vector of token rewards per answer, float64."""
    beta = learner.controller.beta if learner.config.kl.where == "reward" else 0.0
    assert experience.ref_logprobs_BT is not None
    k1_BT = (experience.old_logprobs_BT - experience.ref_logprobs_BT).double()
    wanted = []
    for number, (row, span) in enumerate(zip(rows, _spans(rows), strict=True)):
        rewards_T = -beta * k1_BT[number, span]
        rewards_T[-1] += row.score
        wanted.append(rewards_T)
    return wanted


def _compare(learner: OnlineLearner, rows: Sequence[RolloutRow], experience: Experience, expected: Sequence[Tensor]) -> tuple[str, float]:
    """(sentence about the worst place or nothing, worst difference) by the family of the advantage."""
    config, beta = learner.config, learner.controller.beta
    spans = _spans(rows)
    if isinstance(config, ActorCriticConfig):
        # With lambda = gamma = 1 and values 0 the advantage is the reward to go: its differences are the token rewards.
        plain = {"lam": 1.0, "gamma": 1.0, "lam_alpha": None, "critic_lam": None, "whiten_advantages": False}
        zeros = replace(experience, old_values_BT=torch.zeros_like(experience.old_logprobs_BT),
                        bootstrap_values_B=torch.zeros_like(experience.scores_B))  # fmt: skip
        got_BT = annotate(zeros, config.model_copy(update=plain), beta).advantages_BT.double()
        return _worst_place(rows, spans, got_BT, [_to_go(wanted) for wanted in expected], differences=True)
    got_BT = annotate(experience, config, beta).advantages_BT.double()
    if config.advantage == "reinforce_pp":
        flat = torch.cat([_to_go(wanted) for wanted in expected])
        spread = flat.std(unbiased=False).clamp(min=1e-8)
        return _worst_place(rows, spans, got_BT, [(_to_go(wanted) - flat.mean()) / spread for wanted in expected])
    # One number per answer: that of its whole reward, on every trained token alike.
    sums_B = torch.stack([wanted.sum() for wanted in expected]).to(experience.scores_B)
    whole = annotate(replace(experience, scores_B=sums_B, ref_logprobs_BT=experience.old_logprobs_BT), config, beta).advantages_BT.double()
    per_row = [whole[number, span][:1].expand(span.stop - span.start) for number, span in enumerate(spans)]
    return _worst_place(rows, spans, got_BT, per_row)


def _to_go(rewards_T: Tensor) -> Tensor:
    return rewards_T.flip(0).cumsum(0).flip(0)


def _worst_place(
    rows: Sequence[RolloutRow], spans: Sequence[slice], got_BT: Tensor, wanted: Sequence[Tensor], *, differences: bool = False
) -> tuple[str, float]:
    """Inside the answers ``got`` must be ``wanted``, elsewhere 0. ``differences``: name the place in token rewards, not sums to go."""
    outside_BT = got_BT.clone()
    worst, sentence = 0.0, ""
    for number, (row, span, wanted_T) in enumerate(zip(rows, spans, wanted, strict=True)):
        got_T = got_BT[number, span]
        outside_BT[number, span] = 0
        one_T, other_T = (_steps(got_T), _steps(wanted_T)) if differences else (got_T, wanted_T)
        gap_T = (one_T - other_T).abs() / other_T.abs().clamp(min=1)
        place = int(gap_T.argmax())
        if float(gap_T[place]) > max(worst, _SCORE):
            which = "the last" if place == len(gap_T) - 1 else f"number {place + 1} of {len(gap_T)}"
            what = "reward" if differences else "advantage"
            sentence = (
                f"row {number} ({row.group}), score {row.score:.3g}: the {what} of trained token {which} is {float(one_T[place]):.3g}, "
                f"expected {float(other_T[place]):.3g}"
            )
        worst = max(worst, float(gap_T[place]))
    if float(outside_BT.abs().max()) > max(worst, _SCORE):
        number, column = divmod(int(outside_BT.abs().argmax()), outside_BT.shape[1])
        sentence = f"row {number}, column {column} is no trained token and has advantage {float(outside_BT[number, column]):.3g}"
    return sentence, max(worst, float(outside_BT.abs().max()))


def _steps(to_go_T: Tensor) -> Tensor:
    return to_go_T - torch.cat([to_go_T[1:], to_go_T.new_zeros(1)])
