"""What a run means, in sentences and in one table. Plain text throughout; the template escapes it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tether.clusters import told_over
from tether.config.presets import TITLES
from tether.metrics import REGISTRY
from tether.report.charts import number
from tether.report.direct import held_out_sentences, trained_sentence
from tether.report.history import LET_PASS
from tether.report.judges import judges
from tether.report.plain import nested, percent
from tether.report.read import Alert, EvaluationRecord, GainRecord, PolicyRecord, RunRecord, StageRecord
from tether.rewards.simulated_rater import MAX_POINTS

__all__ = ["PolicyRow", "band", "hashes", "policy_rows", "score_meaning", "summary"]

_MOST_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One line of the comparison of policies; ``verdict``: what the interval of the gain says, '' for the
    start.
    """

    name: str
    cells: tuple[str, ...]
    verdict: str


POLICY_COLUMNS = (
    "held-out score",
    "gain over the start",
    "KL, nats per token",
    "KL, nats per sequence",
    "length, tokens",
    "truncated",
    "training reward, held-out prompts",
)


def summary(run: RunRecord) -> list[tuple[str, tuple[str, ...]]]:
    """(heading, sentences), the most important first; headings without anything to say are left out."""
    parts = [
        ("Alarms", _alarms(run)),
        ("What was trained", _trained(run)),
        ("Held-out score", _scores(run)),
        ("The tether", _tether(run)),
        ("Reward model", _reward_model(run)),
        ("Preference loss", (text for stage in run.direct_stages for text in held_out_sentences(stage.short, stage))),
        ("Who judged", judges(run)),
        ("Watch", _watch(run)),
    ]
    found = [(heading, tuple(sentences)) for heading, sentences in parts]
    return [(heading, sentences) for heading, sentences in found if sentences]


def policy_rows(run: RunRecord) -> list[PolicyRow]:
    """The start and every online stage; dashes where a stage was not evaluated."""
    evaluated = {policy.name: policy for policy in run.evaluation.policies} if run.evaluation else {}
    waiting = [name for stage in (*run.rl_stages, *run.direct_stages) if (name := stage.short) not in evaluated]
    rows = [_policy_row(run, policy) for policy in evaluated.values()]
    return rows + [
        PolicyRow(name, ("not evaluated", *["–"] * (len(POLICY_COLUMNS) - 1)), "") for name in waiting
    ]


def hashes(run: RunRecord) -> list[tuple[str, str]]:
    """Every checksum that the run recorded: configuration, data, and models where a stage names theirs."""
    found = [("config.json", run.config_sha256)] if run.config_text else []
    for stage in run.stages:
        found += [(f"{stage.name}: {path}", value) for path, value in _checksums(stage.summary)]
    if run.evaluation and run.evaluation.prompts_sha256:
        found.append(("held-out prompts", run.evaluation.prompts_sha256))
    for policy in run.evaluation.policies if run.evaluation else ():
        found += [(f"evaluated {policy.name}: {path}", value) for path, value in _checksums(policy.provenance)]
    return found


def band(healthy: tuple[float | None, float | None] | None) -> str:
    """A healthy band in words; '' without one."""
    if healthy is None:
        return ""
    low, high = healthy
    if low is None or high is None:
        return f"at least {low:g}" if low is not None else f"at most {high:g}"
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def score_meaning(score: str) -> str:
    """The unit of the independent score."""
    return {"plainspoken": f"points, 0 to {MAX_POINTS:g}", "exact": "share of correct answers, 0 to 1"}.get(
        score, score
    )


# -- sentences ---------------------------------------------------------------------------------------


def _trained(run: RunRecord) -> Iterator[str]:
    if run.state != "finished":
        yield f"This run is {run.state}: what follows is what it has logged so far."
    yield f"The start model is {nested(run.config, 'model', 'path') or 'unknown'}."
    sft = run.stage("sft")
    if sft is not None:
        count, source = sft.summary.get("demonstrations", "the"), nested(run.config, "sft", "data", "path")
        result = "the result is the start and the reference of everything below" if sft.done else "this is not finished"
        yield f"It was first fine-tuned on {count} demonstrations ({source}); {result}."
    for stage in run.rl_stages:
        yield _online_sentence(stage.short, nested(run.config, "rl", stage.short), stage)
    for stage in run.direct_stages:
        yield trained_sentence(stage.short, nested(run.config, "direct", stage.short), stage)


def _online_sentence(name: str, config: Any, stage: StageRecord) -> str:
    kind, rewards = str(nested(config, "kind") or ""), nested(config, "rewards")
    algorithm = TITLES.get(kind, (kind, ""))[0] or "an online stage"
    parts = [_weighted(part) for part in rewards] if isinstance(rewards, list) else ["unknown"]
    done = max((points[-1][0] for points in stage.curves.values() if points), default=0)
    where = nested(config, "kl", "where") or "preference loss"  # of online DPO
    beta = nested(config, "kl", "beta") if nested(config, "kl") else nested(config, "beta")
    tether = "there was no tether (beta 0)" if beta == 0 else f"the KL acts in the {where} with beta {beta} per nat"
    return (
        f"{name}: {algorithm}, {done} of {stage.num_steps or done} steps on prompts of "
        f"{nested(config, 'prompts', 'path')}; reward: {', '.join(parts)}; {tether}."
    )


def _weighted(part: Any) -> str:
    kind, weight = nested(part, "kind"), nested(part, "weight")
    return f"{weight:g} × {kind}" if isinstance(weight, int | float) else str(kind)


def _scores(run: RunRecord) -> Iterator[str]:
    if run.evaluation is None or not run.evaluation.policies:
        yield "Not evaluated (yet): there is no evaluation.json."
        return
    start = run.evaluation.policies[0]
    yield (
        f"Independent score {start.score} ({score_meaning(start.score)}) on {start.num_prompts} held-out "
        f"prompts, {_counted(start.samples_per_prompt, 'answer')} each; every policy gets the same prompts and "
        "randomness."
    )
    yield f"{start.name}: {number(start.mean)}, {_interval(start.confidence, start.low, start.high)}."
    for policy in run.evaluation.policies[1:]:
        gain = run.evaluation.gain_of(policy.name)
        if gain is not None:
            interval = _interval(gain.confidence, gain.low, gain.high)
            yield (
                f"{policy.name}: {number(start.mean)} → {number(policy.mean)}; gain "
                f"{gain.difference:+z.4g}, paired {interval} over {gain.num_prompts} prompts, "
                f"which {_verdict(gain)}."
            )


def _tether(run: RunRecord) -> Iterator[str]:
    for policy in run.evaluation.policies[1:] if run.evaluation else ():
        yield (
            f"KL({policy.name} || reference), k1 on its own held-out answers: "
            f"{number(policy.kl_token)} nats per token, {number(policy.kl_sequence)} nats per sequence{_kl_interval(policy)}"
            f"{_below_zero(policy.kl_sequence)}."
        )
    for stage in run.rl_stages if run.evaluation is None else ():
        token, sequence = number(stage.last("kl_k1_token")), number(stage.last("kl_k1_sequence"))
        if "kl_k1_token" not in stage.curves:
            yield f"KL({stage.short} || reference) was not measured in the steps (kl.reference_pass = false); see the looks of the checks."
            continue
        yield (
            f"KL({stage.short} || reference), k1 at the last logged step, on training prompts: "
            f"{token} nats per token, {sequence} nats per sequence."
        )


def _kl_interval(policy: PolicyRecord) -> str:
    if policy.kl_interval is None:
        return ""
    low, high = policy.kl_interval
    return f" ({_interval(policy.confidence, low, high)} over prompts)"


def _below_zero(kl: float) -> str:
    return " (a KL is never negative: this is the chance of the answers that were drawn)" if kl < 0 else ""


def _reward_model(run: RunRecord) -> Iterator[str]:
    stage = run.stage("reward_model")
    held = nested(stage.summary, "held_out") if stage else None
    if stage is None or not isinstance(held, Mapping):
        return
    accuracy, low, high = (percent(held.get(key)) for key in ("accuracy", "low", "high"))
    decided = held.get("num_decided", held.get("num_pairs"))
    over = told_over(decided, "pairs", held.get("num_prompts"), held.get("effective_pairs"))
    interval = f"95 % Wilson interval {low} to {high}"
    yield f"It prefers the chosen answer in {accuracy} of {over}, all held out ({interval}); a coin toss gives 50 %."
    if stage.summary.get("training_pairs"):
        yield f"It was fitted to {stage.summary['training_pairs']} pairs."


def _watch(run: RunRecord) -> Iterator[str]:
    """Signs that a number is not what it seems."""
    yield from _reward_alone(run.evaluation) if run.evaluation else ()
    yield from _warned(run)
    for stage in run.stages:
        outside = [name for name in stage.curves if _outside(name, stage.last(name))]
        if outside:
            shown = [
                f"{name} {number(stage.last(name))} (healthy: {band(REGISTRY[name].healthy)})"
                for name in outside
            ]
            yield f"{stage.name}, outside the healthy band at the last step: {', '.join(shown)}."


def _warned(run: RunRecord) -> Iterator[str]:
    """The warnings of the run; those of a stage that differ in their numbers alone are counted, the last one is shown."""
    alike: dict[tuple[str, str], list[str]] = {}
    for stage, text in run.warnings:
        alike.setdefault((stage, re.sub(r"[\d.e+-]+", "#", text)), []).append(text)
    for (stage, _), texts in list(alike.items())[:_MOST_WARNINGS]:
        yield f"{stage or 'run'} warned{f' {len(texts)} times, at last' if len(texts) > 1 else ''}: {texts[-1]}."
    if len(alike) > _MOST_WARNINGS:
        yield f"{len(alike) - _MOST_WARNINGS} further warnings are under Alerts."


def _alarms(run: RunRecord) -> Iterator[str]:
    """Every rule that tripped: how often, and what it said last."""
    by_rule: dict[tuple[str, str], list[Alert]] = {}
    for alert in run.alerts:
        if alert.kind == "alarm":
            by_rule.setdefault((alert.stage, alert.rule), []).append(alert)
    for (stage, rule), alerts in by_rule.items():
        often = f" {len(alerts)} times, at last at step {alerts[-1].step}" if len(alerts) > 1 else f" at step {alerts[-1].step}"
        yield f"{stage or 'run'}: the check {rule or 'without a name'} tripped{often}: {alerts[-1].text.rstrip('.')}."
    for moment in run.history:
        if moment.text.startswith(LET_PASS):
            yield f"On {moment.time[:16].replace('T', ' ')} {moment.text}."


def _reward_alone(evaluation: EvaluationRecord) -> Iterator[str]:
    """The training reward rose beyond its interval and the independent score did not: the policy may game the reward."""
    for policy in evaluation.policies[1:]:
        before = evaluation.policies[0].proxies.get(policy.name, math.nan)
        after, gain = policy.proxies.get(policy.name, math.nan), evaluation.gain_of(policy.name)
        proxy = evaluation.proxy_gain_of(policy.name)
        rose = after > before if proxy is None else proxy.low > 0  # None: evaluated before intervals were kept
        if rose and gain is not None and not gain.low > 0:
            yield (
                f"{policy.name}: the training reward rose on held-out prompts ({number(before)} → "
                f"{number(after)}) while the independent score did not rise beyond its interval; "
                "read the answers."
            )


# -- small pieces ----------------------------------------------------------------------------------


def _policy_row(run: RunRecord, policy: PolicyRecord) -> PolicyRow:
    gain = run.evaluation.gain_of(policy.name) if run.evaluation else None
    proxies = ", ".join(
        f"{number(value)} ({name})" if name != policy.name else number(value)
        for name, value in policy.proxies.items()
    )
    cells = (
        f"{number(policy.mean)} [{number(policy.low)}, {number(policy.high)}]",
        f"{gain.difference:+z.4g} [{number(gain.low)}, {number(gain.high)}]" if gain else "–",
        number(policy.kl_token),
        number(policy.kl_sequence),
        number(policy.response_length),
        percent(policy.truncated_share),
        proxies or "–",
    )
    return PolicyRow(policy.name, cells, _verdict(gain) if gain else "")


def _verdict(gain: GainRecord) -> str:
    if not (math.isfinite(gain.low) and math.isfinite(gain.high)):
        return "is no finite interval"
    return "excludes zero" if gain.excludes_zero else "includes zero"


def _interval(confidence: float, low: float, high: float) -> str:
    return f"{_percent(confidence)} interval [{number(low)}, {number(high)}]"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %" if math.isfinite(share) else "unknown"


def _outside(name: str, value: float) -> bool:
    healthy = REGISTRY[name].healthy if name in REGISTRY else None
    if healthy is None:
        return False
    low, high = healthy
    return math.isnan(value) or (low is not None and value < low) or (high is not None and value > high)


def _checksums(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _checksums(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, str) and path.endswith(("sha256", "fingerprint")):
        yield path, value
