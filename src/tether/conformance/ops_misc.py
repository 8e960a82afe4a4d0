"""Operations on best-of-n, votes, text statistics, small worlds with closed forms, Adam and memory."""

from __future__ import annotations

from dataclasses import asdict

from tether import maths

from .inputs import Inputs, Outputs, by_name


def bon_select(i: Inputs) -> Outputs:
    return {"index": maths.bon_select(i.floats("scores"))}


def bon_unbiased(i: Inputs) -> Outputs:
    return {"value": maths.bon_unbiased(i.floats("proxy"), i.floats("gold"), i.whole("n"))}


def bon_kl(i: Inputs) -> Outputs:
    result = maths.bon_kl(i.floats("ref_probs"), i.floats("rewards"), i.whole("n"))
    return {
        "policy": result.policy_A,
        "exact_kl": result.exact_kl,
        "bound": result.kl_bound,
        "win_rate_bound": result.win_rate_bound,
    }


def pass_at_k(i: Inputs) -> Outputs:
    return {"value": maths.pass_at_k(i.whole("n"), i.whole("c"), i.whole("k"))}


def principle_vote(i: Inputs) -> Outputs:
    return {"reward": maths.principle_vote(i.floats("votes"), i.floats("principle_weights"))}


def ngram_metrics(i: Inputs) -> Outputs:
    stats = maths.ngram_stats(i.whole_rows("token_lists"), **i.given(i.whole, "n"))
    return {"repeat_share": stats.repeat_share_B, "pooled_top_share": stats.pooled_top_share}


def eos_length(i: Inputs) -> Outputs:
    ends, limit = {i.whole("eos_id")}, i.whole("max_new_tokens")
    return asdict(maths.length_stats(i.ints("ids"), i.bools("mask"), ends, limit))


def kl_bandit_optimum(i: Inputs) -> Outputs:
    rewards, ref, beta = i.floats("rewards"), i.floats("ref_probs"), i.number("beta")
    return {
        "reverse_kl_optimum": maths.reverse_kl_optimum(rewards, ref, beta),
        "forward_kl_optimum": maths.forward_kl_optimum(rewards, ref, beta),
        "value_reverse": maths.reverse_kl_value(rewards, ref, beta),
    }


def length_hack(i: Inputs) -> Outputs:
    return asdict(maths.length_hack(i.number("ref_hazard"), i.number("reward_per_token"), i.number("beta")))


def overoptimisation_law(i: Inputs) -> Outputs:
    kind = i.choice("kind", maths.OptimisationKind)
    law, kls = maths.Overoptimisation(kind, i.number("alpha"), i.number("beta")), i.floats("kls")
    gold = law.gold(kls)
    fit = maths.fit_overoptimisation(kls, gold, kind)
    return {
        "gold": gold,
        "fit": [fit.alpha, fit.beta],
        "peak_d": law.peak_distance,
        "peak_gold": law.peak_gold,
    }


def adam_eps_styles(i: Inputs) -> Outputs:
    grads, lr, settings = i.numbers("grads"), i.number("lr"), i.given(i.number, "beta1", "beta2", "eps")
    return {style.value: maths.adam_path(grads, lr, **settings, style=style) for style in maths.AdamEps}


def memory(i: Inputs) -> Outputs:
    shape = (i.whole("seq"), i.whole("batch"), i.whole("hidden"), i.whole("heads"))
    params, tokens = i.whole("params"), i.whole("tokens")
    activations = {
        f"act_layer_{kind.value}": maths.activation_bytes_per_layer(kind, *shape)
        for kind in maths.ActivationKind
    }
    return activations | {
        "policy_full": maths.static_bytes(params),
        "frozen_bf16": maths.static_bytes(0, params),
        "policy_lora": maths.static_bytes(i.whole("lora_params"), params),
        "kv": maths.kv_cache_bytes(i.whole("layers"), i.whole("kv_heads"), i.whole("head_dim"), tokens),
        "logits": maths.logits_bytes(tokens, i.whole("vocab")),
    }


OPERATIONS = by_name(
    bon_select,
    bon_unbiased,
    bon_kl,
    pass_at_k,
    principle_vote,
    ngram_metrics,
    eos_length,
    kl_bandit_optimum,
    length_hack,
    overoptimisation_law,
    adam_eps_styles,
    memory,
)
