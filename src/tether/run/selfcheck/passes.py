"""Checks that take forward passes and no gradient: tokens, repeatable, pads, ratio, reference, sampler. Axes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tether.data.batches import TextBatch
from tether.maths.kl import kl_units
from tether.run import learner as trainer
from tether.run.learner import OnlineLearner
from tether.run.rows import RolloutRow
from tether.types import RolloutGroup

from .prepare import Round, in_float32
from .verdict import Check, Outcome, judged

__all__ = ["outputs", "pads", "ratio", "reference", "repeatable", "sampler", "tokens"]

# Bounds in nats. Two passes over the same rows run the same kernels: rounding alone may differ, and mostly nothing does.
_REPEATABLE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
_REFERENCE = {torch.float32: 1e-5, torch.bfloat16: 1e-3}
_PADS = 1e-4  # always measured in float32: another width means other kernels
# The sampler is another program with other kernels; bfloat16 figures are those of the registry (`tether metrics`).
_SAMPLER_MAX = {torch.float32: 1e-3, torch.bfloat16: 1.0}
_SAMPLER_MEAN = {torch.float32: 1e-4, torch.bfloat16: 6e-2}

_FEW = 8  # rows of a check that runs them one by one
_EXTRA_COLUMNS = 7


# -- tokens ------------------------------------------------------------------------------------------------------------------


def tokens(learner: OnlineLearner, texts: TextBatch, rows: Sequence[RolloutRow], groups: Sequence[RolloutGroup]) -> Check:
    """The trained tokens are the sampled ids and nothing else: end token in, prompt out, at most one beginning token."""
    problems = [*_unlike_rollouts(rows, groups), *_row_problems(learner, texts, rows)]
    ended = sum(row.terminated for row in rows)
    said = f"{sum(len(row.response_ids) for row in rows)} trained tokens of {len(rows)} answers are the ids that were sampled; "
    said += f"{ended} end tokens among them" if ended else "no answer ended by itself, so no end token was seen: allow more tokens"
    if not problems:
        return Check("tokens", Outcome.PASS, said)
    advice = (
        "the mask of the trained tokens is wrong, or text was decoded and encoded again: train on the sampled ids, with the mask made of "
        "their number and never of pad or end ids"
    )
    return Check("tokens", Outcome.FAIL, f"{len(problems)} problems, first: {problems[0]}", float(len(problems)), advice=advice)


def _unlike_rollouts(rows: Sequence[RolloutRow], groups: Sequence[RolloutGroup]) -> Iterator[str]:
    drawn = {(rollout.prompt_ids, rollout.completion.token_ids) for group in groups for rollout in group.rollouts}
    for number, row in enumerate(rows):
        if drawn and (row.query_ids, row.response_ids) not in drawn:
            yield f"row {number} ({row.group}) is none of the sampled answers"


def _row_problems(learner: OnlineLearner, texts: TextBatch, rows: Sequence[RolloutRow]) -> Iterator[str]:
    format = learner.policy.format
    begin = format.tokenizer.bos_token_id
    for number, row in enumerate(rows):
        name = f"row {number} ({row.group})"
        first, end = len(row.query_ids), len(row.query_ids) + len(row.response_ids)
        live = texts.response_mask_BT[number].nonzero().flatten().tolist()
        read = texts.token_ids_BT[number][texts.attention_mask_BT[number]].tolist()
        early, late = [column for column in live if column < first], [column for column in live if column >= end]
        if early:
            yield f"{name} trains {len(early)} tokens of its prompt (columns {early[0]} to {early[-1]}, the answer begins at {first})"
        if late:
            yield f"{name} trains {len(late)} columns after its answer, from column {late[0]}"
        if missing := sorted({*range(first, end)} - {*live}):
            last = ", its end token among them" if row.terminated and missing[-1] == end - 1 else ""
            yield f"{name} leaves out {len(missing)} of its {end - first} sampled tokens{last}"
        if read != [*row.query_ids, *row.response_ids]:
            yield f"{name} is read as {len(read)} ids that are not its prompt and its sampled answer"
        if row.terminated and row.response_ids[-1] not in format.eos_ids:
            yield f"{name} ended by itself, but its last token {row.response_ids[-1]} is no end token"
        if any(token in format.eos_ids for token in row.response_ids[: -1 if row.terminated else None]):
            yield f"{name} goes on after an end token"
        if begin is not None and row.query_ids[:2] == (begin, begin):
            yield f"{name} begins with two beginning tokens ({begin}): the template writes one and the tokenizer adds another"


# -- the model by itself -----------------------------------------------------------------------------------------------------


def repeatable(learner: OnlineLearner, texts: TextBatch) -> Check:
    """The same rows twice give the same log-probabilities (and values): no dropout, nothing random."""
    few = texts.rows(range(min(_FEW, texts.num_rows)))
    gap = _distance(outputs(learner, few), outputs(learner, few))
    advice = (
        "something in the forward pass is random, most often dropout that is on: set every dropout of the model's config to 0 (Tether does "
        "so on load), also in layers of your own"
    )
    bound = _REPEATABLE[learner.compute.dtype]
    return judged("repeatable", gap, bound, f"two passes over the same rows differ by at most {gap:.2g} nats", advice)


def pads(learner: OnlineLearner, texts: TextBatch) -> Check:
    """Log-probabilities of a row depend on that row: not on columns of padding, not on the rows beside it. In float32."""
    few = texts.rows(range(min(_FEW, texts.num_rows)))
    with in_float32(learner):
        together = outputs(learner, few)
        wide = [x_BT[:, : few.token_ids_BT.shape[1]] for x_BT in outputs(learner, _widened(few))]
        padding = _distance(together, wide)
        company = 0.0
        for number in range(few.num_rows):
            alone = few.rows([number])
            width = alone.token_ids_BT.shape[1]
            company = max(company, _distance([x_BT[number : number + 1, :width] for x_BT in together], outputs(learner, alone)))
    said = f"{_EXTRA_COLUMNS} more columns of padding change {padding:.2g} nats, the rows beside a row {company:.2g}"
    advice = (
        "a live token looks at pads or at other rows: check the attention mask and position ids of this architecture (left padding needs "
        "positions from the mask), layers that normalise over the batch, and experts with a capacity"
    )
    return judged("pads", max(padding, company), _PADS, said, advice)


def _widened(texts: TextBatch) -> TextBatch:
    """More columns of padding, filled with ids that occur in the rows: only the attention mask says that they are pads."""
    ids_BT, no_BT = texts.token_ids_BT, torch.zeros_like(texts.attention_mask_BT[:, :1]).expand(-1, _EXTRA_COLUMNS)
    filler_BT = ids_BT.flip(0)[:, :1].expand(-1, _EXTRA_COLUMNS)
    attention_BT, response_BT = (torch.cat([mask_BT, no_BT], 1) for mask_BT in (texts.attention_mask_BT, texts.response_mask_BT))
    return TextBatch(torch.cat([ids_BT, filler_BT], 1), attention_BT, response_BT)


# -- four identities of log-probabilities ------------------------------------------------------------------------------------


def ratio(learner: OnlineLearner, found: Round) -> Check:
    """Before the first update every ratio new / old is 1: the passes of the update against those that made the old ones."""
    worst = 0.0
    for micro in (micro for step in found.plan.epochs[0] for micro in step):
        part = found.batch.rows(micro)
        new_BT = learner._forward(part.text, entropy=learner.config.entropy_coef > 0).logprobs_BT.detach()
        worst = max(worst, _largest(new_BT - part.old_logprobs_BT, part.text.response_mask_BT))
    advice = (
        "the update does not see the model that made the old log-probabilities: look for a temperature that one of the two passes lacks, "
        "dropout, another precision, or weights that changed in between"
    )
    bound = trainer.RATIO_TOLERANCE[learner.compute.dtype]
    one = ", so every ratio is 1" if worst <= bound else ""
    return judged("ratio", worst, bound, f"before the first update max |new - old| is {worst:.2g} nats{one}", advice)


def reference(learner: OnlineLearner, found: Round) -> Check:
    """Policy and reference are one model at step 0: KL(policy || reference) is 0 token by token and over the answer."""
    old_BT, mask_BT = found.experience.old_logprobs_BT, found.experience.mask_BT
    ref_BT = _reference_logprobs(learner, found)
    worst = _largest(old_BT - ref_BT, mask_BT)
    units = kl_units(old_BT, ref_BT, mask_BT)
    said = (
        f"at step 0 max |policy - reference| is {worst:.2g} nats; KL {float(units.token_mean_nats):.2g} per token, "
        f"{float(units.seq_sum_mean_nats):.2g} per answer"
    )
    advice = (
        "the reference is not the model that the policy starts from, so the tether pulls elsewhere from the first step: load both from the "
        "same folder, and with LoRA switch the adapter off for the reference (its B starts at 0)"
    )
    return judged("reference", worst, _REFERENCE[learner.compute.dtype], said, advice)


@torch.no_grad()
def _reference_logprobs(learner: OnlineLearner, found: Round) -> Tensor:
    """Those of the round; read here where the run's own rounds leave that pass out."""
    if found.experience.ref_logprobs_BT is not None:
        return found.experience.ref_logprobs_BT
    ref_BT = torch.zeros_like(found.experience.old_logprobs_BT)
    for micro in (micro for step in found.plan.epochs[0] for micro in step):
        part = found.batch.rows(micro).text
        with learner.compute.autocast():
            ref_BT[list(micro), : part.token_ids_BT.shape[1]] = learner.reference.logprobs(part, learner.config.sampling.temperature)
    return ref_BT


def sampler(learner: OnlineLearner, found: Round) -> Check:
    """What the sampler said of its tokens against what the trainer computes for them."""
    mask_BT = found.experience.mask_BT
    gap_BT = found.batch.sampler_logprobs_BT - found.experience.old_logprobs_BT
    largest, mean = _largest(gap_BT, mask_BT), float(gap_BT.abs()[mask_BT].mean())
    max_bound, mean_bound = _SAMPLER_MAX[learner.compute.dtype], _SAMPLER_MEAN[learner.compute.dtype]
    advice = (
        "the answers were not drawn from the distribution that is trained (mean of sampler - trainer: "
        f"{float(gap_BT[mask_BT].mean()):+.2g}): look for a temperature or filter that one side lacks, logits that are off by one "
        "position, or a sampler with older weights"
    )
    # Both bounds must hold; the figure that decides is the one nearer to (or further past) its own.
    if largest / max_bound > mean / mean_bound:
        return judged("sampler", largest, max_bound, f"sampler against trainer: mean {mean:.2g} nats, max {largest:.2g} nats", advice)
    return judged("sampler", mean, mean_bound, f"sampler against trainer: max {largest:.2g} nats, mean {mean:.2g} nats", advice)


# ----------------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def outputs(learner: OnlineLearner, texts: TextBatch) -> list[Tensor]:
    """Log-probabilities of all rows in one pass, and values where the run has them."""
    output = learner._forward(texts)
    return [x_BT for x_BT in (output.logprobs_BT, output.values_BT) if x_BT is not None]


def _distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Largest difference; of numbers beyond 1 (values may be) relative to them. NaN is kept."""
    gaps = [((one - other).abs() / one.abs().clamp(min=1)).max() for one, other in zip(ones, others, strict=True)]
    return float(torch.stack(gaps).max())


def _largest(x_BT: Tensor, mask_BT: Tensor) -> float:
    return float(torch.where(mask_BT, x_BT.abs(), 0.0).max())
