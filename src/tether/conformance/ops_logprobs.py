"""Operations on log-probabilities and on the mismatch between sampler and trainer. Axes as in tether.maths."""

from __future__ import annotations

from dataclasses import asdict

from tether import maths

from .inputs import Inputs, Outputs, by_name, gradient


def token_logprobs(i: Inputs) -> Outputs:
    logits, mask = i.leaf("logits"), i.bools("mask")
    tempered = i.given(i.number, "temperature")
    logprobs = maths.token_logprobs(logits, i.ints("tokens"), mask, **tempered)
    weighted = (logprobs * maths.select(i.floats("weights"), mask)).sum()
    return {
        "logprobs": logprobs,
        "entropy": maths.token_entropy(logits, mask, **tempered),
        "grad_logits_of_weighted_sum": gradient(weighted, logits)[0],
    }


def logprob_shift(i: Inputs) -> Outputs:
    logprobs = maths.shift_logprobs(
        i.floats("logits"),
        i.ints("input_ids"),
        i.bools("completion_mask"),
        i.whole("prompt_len"),
        **i.given(i.number, "temperature"),
    )
    return {"logprobs": logprobs}


def filtered_logprobs(i: Inputs) -> Outputs:
    logits, tempered = i.floats("logits")[None], i.given(i.number, "temperature")
    truncation = i.given(i.whole, "top_k") | i.given(i.number, "top_p")
    filtered = maths.filter_logits(logits, **tempered, **truncation)
    return {
        "keep": filtered.keep_NV[0],
        "logprobs": filtered.logprobs_NV[0],
        "unfiltered_logprobs": maths.filter_logits(logits, **tempered).logprobs_NV[0],
        "log_kept_mass": filtered.log_kept_mass_N[0],
    }


def is_weights(i: Inputs) -> Outputs:
    old, sampler, mask = i.floats("old_logprobs"), i.floats("rollout_logprobs"), i.bools("mask")
    mode, bounds = i.choice("mode", maths.ImportanceMode), i.given(i.number, low="lo", high="hi")
    return {"weights": maths.is_weights(old, sampler, mask, mode, **bounds)}


def mismatch_kl(i: Inputs) -> Outputs:
    old, sampler = i.floats("old_logprobs"), i.floats("rollout_logprobs")
    return asdict(maths.mismatch_kl(old, sampler, i.bools("mask")))


def off_policy_sequence_mask(i: Inputs) -> Outputs:
    result = maths.off_policy_sequence_mask(
        i.floats("logprobs"),
        i.floats("sampling_logprobs"),
        i.floats("advantages"),
        i.bools("mask"),
        i.number("delta"),
    )
    return {"keep": result.keep_B, "seq_kl": result.seq_kl_B}


OPERATIONS = by_name(
    token_logprobs, logprob_shift, filtered_logprobs, is_weights, mismatch_kl, off_policy_sequence_mask
)
