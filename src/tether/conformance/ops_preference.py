"""Operations on reward models and direct preference losses."""

from __future__ import annotations

from dataclasses import asdict

import torch

from tether import maths

from .inputs import Inputs, Outputs, by_name, gradient


def bt_loss(i: Inputs) -> Outputs:
    chosen, rejected = i.leaf("chosen"), i.leaf("rejected")
    per_pair = isinstance(i.values.get("margin"), list)
    margin = i.given(i.floats if per_pair else i.number, "margin")
    settings = i.given(i.number, "center_coef", "label_smoothing")
    loss = maths.bt_loss(chosen, rejected, **margin, **settings).mean()
    grad_chosen, grad_rejected = gradient(loss, chosen, rejected)
    return {"loss": loss, "grad_chosen": grad_chosen, "grad_rejected": grad_rejected}


def tie_models(i: Inputs) -> Outputs:
    first, second = i.floats("s_i"), i.floats("s_j")
    kupper = maths.rao_kupper(first, second, i.number("rao_kupper_eta"))
    davidson = maths.davidson(first, second, i.number("davidson_nu"))
    return {
        "rao_kupper": torch.stack([kupper.first, kupper.second, kupper.tie]),
        "davidson": torch.stack([davidson.first, davidson.second, davidson.tie]),
    }


def plackett_luce(i: Inputs) -> Outputs:
    scores = i.leaf("scores")
    nll = maths.plackett_luce_nll(scores, i.ints("ranking"))
    return {"nll": nll, "grad": gradient(nll, scores)[0]}


def instructgpt_rm_loss(i: Inputs) -> Outputs:
    ranked = i.rows("ranked_rewards")
    return {
        "loss": maths.instructgpt_rm_loss(ranked),
        "flattened_pair_mean": maths.flattened_pair_loss(ranked),
    }


def linear_bt_fit(i: Inputs) -> Outputs:
    return {"weights": maths.linear_bt_fit(i.floats("feature_diff"), i.number("l2"))}


def pair_metrics(i: Inputs) -> Outputs:
    bins = i.given(i.whole, "bins")
    return asdict(maths.pair_metrics(i.floats("chosen"), i.floats("rejected"), **bins))


def preference_loss(i: Inputs) -> Outputs:
    chosen, rejected, beta = i.leaf("policy_chosen"), i.leaf("policy_rejected"), i.number("beta")
    reference = (i.floats("ref_chosen"), i.floats("ref_rejected"))
    pairs = maths.PreferencePairs(
        chosen, rejected, *reference, i.floats("len_chosen"), i.floats("len_rejected")
    )
    kind, settings = i.choice("kind", maths.PreferenceKind), i.given(i.number, "label_smoothing", "gamma")
    losses = maths.preference_loss(pairs, kind, beta, **settings)
    grad_chosen, grad_rejected = gradient(losses.sum(), chosen, rejected)
    implied = maths.implicit_rewards(pairs, beta)
    return {
        "losses": losses,
        "grad_sum_policy_chosen": grad_chosen,
        "grad_sum_policy_rejected": grad_rejected,
        "chosen_rewards": implied.chosen_B,
        "rejected_rewards": implied.rejected_B,
        "accuracy": implied.accuracy,
    }


def kto_loss(i: Inputs) -> Outputs:
    log_ratios = i.leaf("logratios")
    result = maths.kto_loss(
        log_ratios,
        i.bools("desirable"),
        i.floats("mismatched_logratios"),
        i.number("beta"),
        **i.given(i.number, "desirable_weight", "undesirable_weight"),
    )
    grad = gradient(result.losses_B.sum(), log_ratios)[0]
    return {"z0": result.z0, "losses": result.losses_B, "grad_sum_logratios": grad}


OPERATIONS = by_name(
    bt_loss,
    tie_models,
    plackett_luce,
    instructgpt_rm_loss,
    linear_bt_fit,
    pair_metrics,
    preference_loss,
    kto_loss,
)
