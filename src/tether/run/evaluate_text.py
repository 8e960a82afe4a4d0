"""An evaluation as a table for people. Every line says how many prompts it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["as_text"]


def as_text(evaluation: Mapping[str, Any]) -> str:
    """Policies, gains, win rates, notes and provenance of what ``evaluate_models`` found."""
    blocks = [
        _table(["policy", "score", "interval", "prompts", "answers", "length", "cut", "KL/answer", "weights"], _policies(evaluation)),
        _table(["policy", "k", "pass@k", "mean@k", "majority@k"], list(_attempts(evaluation))),
        _table(["against", "policy", "by", "gain", "p", "p Holm"], [_gain(row) for row in evaluation["gains"]]),
        _table(["against", "policy", "by", "win rate", "p", "p Holm"], [_win(row) for row in evaluation["wins"]]),
        "\n".join(evaluation["notes"]),
        _where_from(evaluation),
    ]
    return "\n\n".join(block for block in blocks if block)


def _policies(evaluation: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            row["name"], _number(row["mean"]), _range(row), str(row["num_prompts"]), str(row["samples_per_prompt"]),
            _number(row["response_length"]), f"{row['truncated_share']:z.0%}", _number(row["kl_sequence_sum_nats"]),
            row["provenance"]["weights_sha256"][:8],
        ]
        for row in evaluation["policies"]
    ]  # fmt: skip


def _attempts(evaluation: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in evaluation["policies"]:
        found = row["attempts"] or {}
        for k, passed in found.get("pass_at_k", {}).items():
            others = [found[name].get(k) for name in ("mean_at_k", "majority_at_k")]
            yield [row["name"], k, *(f"{_number(i['estimate'])} {_range(i)}" if i else "" for i in (passed, *others))]


def _gain(row: Mapping[str, Any]) -> list[str]:
    return [row["before"], row["after"], row["by"], f"{row['difference']:+z.4g} {_range(row)}", *_chances(row)]


def _win(row: Mapping[str, Any]) -> list[str]:
    no_verdict = f"no verdict in {row['num_unjudged']} of {row['num_pairs']} pairs" if row["num_unjudged"] else ""
    if row["rate"] is None:
        return [row["before"], row["after"], row["by"], no_verdict or "-", *_chances(row)]
    rate = f"{row['rate']:z.1%} [{row['low']:z.1%}, {row['high']:z.1%}]"
    return [row["before"], row["after"], row["by"], f"{rate}, {no_verdict}" if no_verdict else rate, *_chances(row)]


def _chances(row: Mapping[str, Any]) -> list[str]:
    return ["-" if row[name] is None else f"{row[name]:.3g}" for name in ("p_value", "p_holm")]


def _where_from(evaluation: Mapping[str, Any]) -> str:
    made = evaluation["policies"][0]["provenance"]
    sampling = ", ".join(f"{name} {value}" for name, value in made["sampling"].items())
    seeds = ", ".join(map(str, made["seeds"]))
    return (
        f"{evaluation['prompts']} (sha256 {made['data_sha256'][:8]}); score {made['score']}; {sampling}; sampling seeds {seeds}; "
        f"bootstrap seed {evaluation['bootstrap_seed']}; {made['dtype']} on {made['device']}; tether {made['tether']} (source "
        f"{made['source_sha256'][:8]}), torch {made['torch']}"
    )


def _range(row: Mapping[str, Any]) -> str:
    return f"[{_number(row['low'])}, {_number(row['high'])}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in (head, *rows))
