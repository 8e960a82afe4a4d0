"""The stage direct.NAME: rows to units, units to a trained policy beside the start. Also what ``tether.dpo`` prepares its rows with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tether.clusters import told_over
from tether.config import DirectConfig
from tether.data.judged import JudgedUnits, judged_answers, judged_pairs, with_mismatched
from tether.data.lengths import LengthReport
from tether.errors import DataError
from tether.models.adapters import LoraSpec
from tether.records import read_comparisons, read_feedback, refuse_bad_rows
from tether.rollout.plain import position_limit
from tether.run.context import Context, build_stage, load_policy
from tether.run.direct import HeldOutPreference, kto_weights_of, num_steps, train_direct
from tether.run.reward_model import split_by_prompt
from tether.run.sources import comparison_rows
from tether.text.chat import ChatFormat
from tether.types import Comparison, Feedback

__all__ = ["PreparedUnits", "direct_stage", "held_out_sentence", "prepare_units"]


@dataclass(frozen=True)
class PreparedUnits:
    """What a stage trains on and measures itself on; ``report``: what the length limit did; ``num_margins``: rows with a margin or a
    label below 1, which direct losses do not read."""

    training: JudgedUnits
    held_out: JudgedUnits | None
    report: LengthReport
    num_margins: int = 0

    def __str__(self) -> str:
        noun = "pairs" if self.training.liked is None else "answers"
        held = 0 if self.held_out is None else len(self.held_out)
        margins = f"; margins and labels of {self.num_margins} rows are for a reward model and not read here" if self.num_margins else ""
        return f"{self.report}; {len(self.training)} {noun} to train on, {held} held out{margins}"


def prepare_units(
    records: Sequence[Comparison] | Sequence[Feedback],
    config: DirectConfig,
    format: ChatFormat,
    source: str,
    seed: int,
    positions: int | None = None,
) -> PreparedUnits:
    """Tokenise, limit, and split by prompt. Comparisons for pairs; for kto judged answers, matched with others inside each side.

    ``positions``: most tokens that the model takes. Raises DataError for rows within max_length that it does not.
    """
    _refuse_undecided(records, source)
    if config.kind == "kto":
        units, report = judged_answers([r for r in records if isinstance(r, Feedback)], format, config.max_length, source)
    else:
        units, report = judged_pairs([r for r in records if isinstance(r, Comparison)], format, config.max_length, source)
    longest = max(len(row.token_ids) for row in (*units.first, *units.second))
    if positions is not None and longest > positions:
        raise DataError(
            f"{source}: rows of up to {longest} tokens exceed the {positions} positions of the model; set max_length = {positions}"
        )
    training, held_out = _split(units, config, source, seed)
    if config.kind == "kto":
        training = with_mismatched(training, config.max_length, source, seed)
        held_out = held_out and with_mismatched(held_out, config.max_length, f"{source}, held-out part", seed)
    num_margins = sum(isinstance(record, Comparison) and (record.margin != 0 or record.label != 1) for record in records)
    return PreparedUnits(training, held_out, report, num_margins)


def _refuse_undecided(records: Sequence[Comparison] | Sequence[Feedback], source: str) -> None:
    """A direct loss takes `chosen` to be the better answer."""
    undecided = {
        number: f"`label` is {record.label:g}: `chosen` is not the better answer; drop the row, or swap the two and take 1 - label."
        for number, record in enumerate(records, start=1)
        if isinstance(record, Comparison) and record.label <= 0.5
    }
    refuse_bad_rows(undecided, source, len(records))


def _split(units: JudgedUnits, config: DirectConfig, source: str, seed: int) -> tuple[JudgedUnits, JudgedUnits | None]:
    """By prompt; at least one prompt on either side, for kto two, because its answers are matched with those to other prompts."""
    if config.held_out_share == 0:
        return units, None
    prompts, least = len(set(units.keys)), 2 if config.kind == "kto" else 1
    held = max(least, round(config.held_out_share * prompts))
    if prompts - held < least:
        raise DataError(
            f"{source}: held_out_share = {config.held_out_share} of {prompts} prompts leaves {max(prompts - held, 0)} to train on, and "
            f"{config.kind} needs {least} there and {least} held out; add prompts, or change held_out_share (0 holds none out)"
        )
    training, held_out = split_by_prompt(range(len(units)), units.keys, held / prompts, seed)
    return units.take(training), units.take(held_out)


def direct_stage(context: Context, name: str, start: Path) -> Path:
    """Train a policy from ``start`` with the settings of [direct.NAME]; its folder holds a plain model."""
    config = context.config.direct[name]
    stage = f"direct.{name}"

    def build(folder: Path) -> dict[str, Any]:
        lora = None if context.config.model.lora is None else LoraSpec(**context.config.model.lora.model_dump())
        policy = load_policy(context, start, lora=lora)
        source = comparison_rows(config.data)
        rows = source.rows
        records = read_feedback(rows.rows, rows.source) if config.kind == "kto" else read_comparisons(rows.rows, rows.source)
        positions = position_limit(policy.config.get_text_config().to_dict())
        units = prepare_units(records, config, policy.format, rows.source, context.config.seed, positions)
        recorder = context.recorder(stage, num_steps(len(units.training), config))
        recorder.message(f"{stage}: {source.told}{units}")
        if config.kind == "kto":
            recorder.message(f"{stage}: weights of liked and disliked answers: {kto_weights_of(units.training, config)}")
        keeper = context.keeper(recorder, config, rows.sha256)
        held_out = train_direct(policy, units.training, units.held_out, config, context.compute, recorder, context.config.seed, keeper)
        keeper.close()
        if held_out is not None:
            recorder.message(f"{stage}: {held_out_sentence(held_out)}")
        policy.save(folder)
        summary = {
            "last_step": recorder.last,
            "held_out": None if held_out is None else asdict(held_out),
            "training_units": len(units.training),
            "cuts": asdict(units.report),
            "data_sha256": rows.sha256,
            "weights_sha256": policy.weights_fingerprint(),
        }
        recorder.finish(summary)
        return summary

    return build_stage(context, stage, build)


def held_out_sentence(held: HeldOutPreference) -> str:
    """The held-out figures in one sentence, with units."""
    over = told_over(held.num_units, "pairs or answers", held.num_prompts, held.effective_units)
    return (
        f"held-out accuracy of implied rewards {held.accuracy_before:z.3f} -> {held.accuracy:z.3f} [{held.low:z.3f}, {held.high:z.3f}] "
        f"(95 % Wilson interval over {over}, none of them trained on), margin {held.margin_before:z.3f} -> "
        f"{held.margin:z.3f}; log-probability of chosen {held.chosen_change:+z.2f}, of rejected {held.rejected_change:+z.2f} nats per "
        "sequence against the start"
    )
