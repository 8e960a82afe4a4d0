"""Known mistakes of RLHF code, each as one edit of `src/tether/maths`: the classics the tests must catch."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` stands exactly once in `file`; replaced by `new` it is the mistake `why` describes."""

    name: str
    file: str
    old: str
    new: str
    why: str


MUTANTS = [
    # --- advantages ---
    Mutant(
        "sample std for population", "advantages.py",
        "int(std == StdKind.SAMPLE)).clamp(min=1)", "1).clamp(min=1)",
        "wrong ddof: TRL, verl and OpenRLHF use the sample std where the paper's listings use the population",
    ),
    Mutant(
        "population std for sample", "advantages.py",
        "int(std == StdKind.SAMPLE)).clamp(min=1)", "0).clamp(min=1)", "wrong ddof the other way: the option has no effect",
    ),
    Mutant(
        "eps inside the root", "advantages.py",
        "else torch.sqrt(var_B) + eps", "else torch.sqrt(var_B + eps)", "two conventions of eps that differ near ties",
    ),
    Mutant(
        "leave-one-out with oneself", "advantages.py",
        "stats.count_B / (stats.count_B - 1).clamp(min=1)", "stats.count_B / stats.count_B.clamp(min=1)",
        "baseline including oneself: (G-1)/G of the gradient",
    ),
    Mutant(
        "singleton keeps its raw reward", "advantages.py",
        "centred_B = torch.where(alive_B, live_B - mean_B, 0.0)",
        "centred_B = torch.where(alive_B, live_B - mean_B, torch.where(count_B == 1, live_B, 0.0))",
        "verl emits the raw reward of a group of one",
    ),
    Mutant(
        "rounding is a spread", "advantages.py",
        "(spread_B > rounding_B)", "(spread_B > 0)", "[.1 + .2, .3] becomes +-1 (trl#3857)",
    ),
    Mutant(
        "unscorable rows count", "advantages.py",
        "count_B = total(scorable_B.to(live_B.dtype))", "count_B = total(torch.ones_like(live_B))",
        "a NaN reward scored as 0: a broken verifier is trained on",
    ),
    Mutant(
        "groups by place", "advantages.py",
        "group_B = torch.unique(group_ids_B, return_inverse=True)[1]\n    num_groups",
        "group_B = torch.unique_consecutive(group_ids_B, return_inverse=True)[1]\n    num_groups",
        "tiled prompts cut as consecutive groups (prime PR#600)",
    ),
    Mutant(
        "leave-one-out std", "advantages.py",
        "var_B = stats.squares_B / (stats.count_B",
        "others_B = (stats.count_B - 1).clamp(min=1)\n"
        "    loo_B = stats.squares_B - stats.centred_B.square() * stats.count_B / others_B\n"
        "    var_B = loo_B.clamp(min=0) / (stats.count_B",
        "std of the others is 0 at near ties: advantages of a million (nemo#1518)",
    ),
    Mutant(
        "advantages keep a gradient", "advantages.py",
        "rewards_B = full_precision(rewards_B).detach()\n    scorable_B", "rewards_B = full_precision(rewards_B)\n    scorable_B",
        "no detach of advantages",
    ),
    Mutant(
        "batch std keeps a gradient", "advantages.py",
        "kept_N = full_precision(x_B.detach())[keep_B]", "kept_N = full_precision(x_B)[keep_B]", "no detach of the scale",
    ),
    Mutant(
        "batch std without a guard", "advantages.py",
        "scale_B = torch.where(stats.alive_B, _std_over(rewards_B, stats.scorable_B, ddof) + eps, 1.0)",
        "scale_B = _std_over(rewards_B, stats.scorable_B, ddof) + eps", "0 / 0 when all rewards are equal and eps is 0",
    ),
    Mutant(
        "batch std of the centred", "advantages.py",
        "_std_over(rewards_B, stats.scorable_B, ddof)", "_std_over(stats.centred_B, stats.scorable_B, ddof)",
        "spread between the prompts left out of the batch std",
    ),
    Mutant(
        "opo without lengths", "advantages.py",
        "weights_B * stats.centred_B", "stats.centred_B", "the length-weighted baseline weighs nothing",
    ),
    Mutant(
        "remax keeps NaN", "advantages.py",
        "return torch.where(difference_B.isnan(), 0.0, difference_B)", "return difference_B", "NaN reaches the loss",
    ),
    Mutant(
        "remax in half precision", "advantages.py",
        "full_precision(rewards_B.detach()) - full_precision(greedy_rewards_B.detach())",
        "full_precision((rewards_B - greedy_rewards_B).detach())", "difference taken in bfloat16",
    ),
    Mutant(
        "gdpo not normalised over the batch", "advantages.py",
        "_standardise_over((z_BK * weights_K.to(z_BK.dtype)).sum(-1), scorable_B, ddof, eps)",
        "(z_BK * weights_K.to(z_BK.dtype)).sum(-1)", "second normalisation forgotten",
    ),
    Mutant(
        "process rewards of the past", "advantages.py",
        "at_end_BT.flip(-1).cumsum(-1).flip(-1)", "at_end_BT.cumsum(-1)", "credit flows forward instead of back",
    ),
    Mutant(
        "reinforce++ whitens pads", "advantages.py",
        "return whiten(reward_to_go(rewards_BT, mask_BT, gamma), mask_BT, ddof=ddof, eps=eps)",
        "return whiten(reward_to_go(rewards_BT, mask_BT, gamma), torch.ones_like(mask_BT), ddof=ddof, eps=eps)",
        "whitening including pads",
    ),
    Mutant(
        "overlong without a floor", "advantages.py", ".clamp(-1, 0)", ".clamp(max=0)", "penalty grows without bound past the limit",
    ),
    Mutant(
        "unscorable scores zero", "advantages.py",
        "return torch.where(absent_BK.all(-1), torch.nan, total_B)", "return total_B",
        "a failed verifier becomes the reward 0",
    ),
    Mutant(
        "alive share for dead share", "advantages.py",
        "1 - float(keep_P.double().mean())", "float(keep_P.double().mean())", "metric upside down",
    ),
    # --- returns ---
    Mutant(
        "missing bootstrap", "returns.py",
        "return torch.where(needed_B, bootstrap_B.to(like_BT.dtype).detach(), zeros_B)", "return zeros_B",
        "a row cut at the length limit treated as terminal, as all peers do",
    ),
    Mutant(
        "bootstrap of terminated rows", "returns.py",
        "return torch.where(needed_B, bootstrap_B.to(like_BT.dtype).detach(), zeros_B)",
        "return bootstrap_B.to(like_BT.dtype).detach()", "value after the end of an episode",
    ),
    Mutant(
        "gap is a step of zero", "returns.py",
        "torch.where(live_B, delta_B + gamma * lam * trace_B, trace_B)",
        "torch.where(live_B, delta_B + gamma * lam * trace_B, gamma * lam * trace_B)",
        "OpenRLHF: interior gaps as zero-valued steps",
    ),
    Mutant(
        "trace cut at a gap", "returns.py",
        "torch.where(live_B, delta_B + gamma * lam * trace_B, trace_B)", "live_B * (delta_B + gamma * lam * trace_B)",
        "no credit across a tool call (open-instruct)",
    ),
    Mutant(
        "value read in a pad", "returns.py",
        "next_value_B = torch.where(live_B, live_values_BT[:, t], next_value_B)", "next_value_B = live_values_BT[:, t]",
        "next value taken from a gap, and the bootstrap lost in the pads",
    ),
    Mutant(
        "reward-to-go stops at gaps", "returns.py",
        "torch.where(mask_BT[:, t], live_BT[:, t] + gamma * running_B, running_B)",
        "live_BT[:, t] + gamma * running_B", "reward-to-go without gap skip: gaps discount",
    ),
    Mutant(
        "score one past the last token", "returns.py",
        "last_BT = mask_BT & (columns_T == last_live_index(mask_BT)[:, None])",
        "last_BT = columns_T == last_live_index(mask_BT)[:, None] + 1", "TRL PPO: score on the pad (trl#3750)",
    ),
    Mutant(
        "score on the last column", "returns.py",
        "(columns_T == last_live_index(mask_BT)[:, None])", "(columns_T == mask_BT.shape[1] - 1)",
        "score lost for every padded row",
    ),
    Mutant(
        "kl rewarded", "returns.py", "select(-beta * kl_BT, mask_BT)", "select(beta * kl_BT, mask_BT)", "KL sign in the reward",
    ),
    Mutant(
        "trace runs through an end", "returns.py",
        "next_value_B, trace_B = next_value_B.masked_fill(done_B, 0), trace_B.masked_fill(done_B, 0)",
        "next_value_B = next_value_B.masked_fill(done_B, 0)", "packed episodes leak credit into each other",
    ),
    Mutant(
        "an end in a pad counts", "returns.py",
        "done_B = dones_BT[:, t] & mask_BT[:, t]", "done_B = dones_BT[:, t]", "garbage in pads cuts the bootstrap",
    ),
    Mutant(
        "returns without values", "returns.py",
        "select(advantages_BT + live_values_BT, mask_BT)", "advantages_BT", "value targets are advantages",
    ),
    Mutant("gamma missing in the trace", "returns.py", "gamma * lam * trace_B", "lam * trace_B", "discount forgotten"),
    Mutant(
        "value of now for value of next", "returns.py",
        "gamma * next_value_B - live_values_BT[:, t]", "gamma * live_values_BT[:, t] - next_value_B", "temporal difference reversed",
    ),
    Mutant("vapo lambda below zero", "returns.py", "(alpha * lengths_B).clamp(min=1)", "(alpha * lengths_B)", "short rows"),
    Mutant(
        "decoupled returns of the policy", "returns.py",
        "GAEResult(policy.advantages_BT, critic.returns_BT)", "policy", "critic learns with the lambda of the policy",
    ),
    # --- masked ---
    Mutant(
        "multiply by the mask", "masked.py",
        "return torch.where(mask_BT, x_BT, torch.zeros((), dtype=x_BT.dtype, device=x_BT.device))",
        "return x_BT * mask_BT.to(x_BT.dtype)", "NaN * 0 is NaN (verl PR#6361)",
    ),
    Mutant("variance ignores ddof", "masked.py", "/ (count - ddof)", "/ count", "sample vs population"),
    Mutant(
        "whitening includes pads", "masked.py",
        "mean, var = masked_mean(live_BT, mask_BT), masked_var(live_BT, mask_BT, ddof)",
        "mean, var = live_BT.mean(), live_BT.var(correction=ddof)", "statistics of zeros",
    ),
    Mutant(
        "whitening of NaN pads", "masked.py",
        "live_BT = full_precision(select(x_BT, mask_BT))\n    if int(", "live_BT = full_precision(x_BT)\n    if int(",
        "selected after the arithmetic: the gradient of every live position is NaN",
    ),
    Mutant(
        "whitening keeps the mean", "masked.py",
        "select((live_BT - mean) / torch.sqrt(var + eps), mask_BT)", "select(live_BT / torch.sqrt(var + eps), mask_BT)",
        "the flag that reads both ways: all advantages positive",
    ),
    Mutant(
        "rounding is whitened", "masked.py", "or not has_spread(live_BT, mask_BT)", "", "equal rewards whitened to noise",
    ),
    Mutant(
        "scale-only loses the mean", "masked.py",
        "select(whiten(x_BT, mask_BT, ddof=ddof, eps=eps) + masked_mean(x_BT, mask_BT), mask_BT)",
        "whiten(x_BT, mask_BT, ddof=ddof, eps=eps)", "shift_mean read the other way",
    ),
    Mutant(
        "token mean over rows", "masked.py",
        "return float(mask_BT.sum())", "return float(mask_BT.any(-1).sum())", "wrong denominator: long answers weigh more",
    ),
    Mutant(
        "mean of means", "masked.py",
        "case Aggregation.TOKEN_MEAN | Aggregation.SEQ_MEAN_TOKEN_SUM:\n            return live_BT.sum()",
        "case Aggregation.TOKEN_MEAN | Aggregation.SEQ_MEAN_TOKEN_SUM:\n"
        "            return live_BT.sum() / mask_BT.sum().clamp(min=1) * mask_BT.any(-1).sum()",
        "each micro-batch divided by its own tokens (twinkle#292, trl PR#6024)",
    ),
    Mutant(
        "empty rows counted", "masked.py", "empty_rows == EmptyRows.EXCLUDE else", "empty_rows == EmptyRows.COUNT else",
        "the loss shrinks when truncated rows are masked (TRL grpo)",
    ),
    Mutant("budget forgotten", "masked.py", "return live_BT.sum() / norm_len", "return live_BT.sum() / mask_BT.shape[1]",
           "verl: the constant of Dr.GRPO is the padded width"),
    Mutant(
        "length includes pads", "masked.py",
        "lengths_B = mask_BT.sum(-1).clamp(min=1)", "lengths_B = mask_BT.shape[1]", "mean over the padded width",
    ),
    Mutant(
        "infinity passes", "masked.py",
        "bad = mask_BT & ~torch.isfinite(x_BT)", "bad = mask_BT & torch.isnan(x_BT)", "only NaN is looked for",
    ),
    Mutant("the check never fires", "masked.py", "if not bool(bad.any()):", "if True:", "live NaN hidden"),
    Mutant(
        "reductions in half precision", "masked.py",
        "return x if x.dtype == torch.float64 else x.float()", "return x", "sums in bfloat16 stall",
    ),
    # --- kl ---
    Mutant(
        "k1 reversed", "kl.py",
        "return full_precision(logprobs) - full_precision(ref_logprobs)",
        "return full_precision(ref_logprobs) - full_precision(logprobs)", "log-ratio without a direction",
    ),
    Mutant(
        "k3 reversed", "kl.py",
        "log_ref_over_policy = full_precision(ref_logprobs) - full_precision(logprobs)",
        "log_ref_over_policy = full_precision(logprobs) - full_precision(ref_logprobs)",
        "k3 direction: the estimator measures another quantity",
    ),
    Mutant("k2 without its half", "kl.py", ".square() / 2", ".square()", "twice the KL"),
    Mutant(
        "k3 without its linear term", "kl.py",
        "torch.expm1(_within_range(log_ref_over_policy)) - log_ref_over_policy",
        "torch.expm1(_within_range(log_ref_over_policy))", "may be negative",
    ),
    Mutant(
        "k3 cancels", "kl.py",
        "torch.expm1(_within_range(log_ref_over_policy)) - log_ref_over_policy",
        "(_within_range(log_ref_over_policy).exp() - log_ref_over_policy).float().to(log_ref_over_policy.dtype) - 1",
        "exp - 1 without expm1 loses small differences",
    ),
    Mutant(
        "full kl reversed", "kl.py",
        "(logprobs_NV.exp() * log_ratio_NV)", "(ref_logprobs_NV.exp() * -log_ratio_NV)", "KL(ref || policy)",
    ),
    Mutant(
        "kl overflows", "kl.py",
        "return log_ratio.clamp(max=_exp_limit(log_ratio))", "return log_ratio", "exp of a large log-ratio is infinite",
    ),
    Mutant(
        "adaptive kl unclipped", "kl.py",
        "return min(max(kl / target - 1, -0.2), 0.2)", "return kl / target - 1", "beta explodes after one bad batch",
    ),
    Mutant("horizon without the batch", "kl.py", "* num_sequences / horizon)", "/ horizon)", "adaptation hundreds of times too slow"),
    Mutant(
        "controller reversed", "kl.py",
        "return beta * (1 + _clipped_error(beta, kl, target) * num_sequences",
        "return beta * (1 - _clipped_error(beta, kl, target) * num_sequences", "less tether the farther the policy",
    ),
    Mutant("target_kl without its factor", "kl.py", "approx_kl <= factor * target", "approx_kl <= target", "stops too early"),
    Mutant("NaN does not stop", "kl.py", "return not approx_kl <= factor * target", "return approx_kl > factor * target",
           "NaN compares false"),
    Mutant("bits for nats", "kl.py", "token_mean / math.log(2)", "token_mean * math.log(2)", "unit"),
    Mutant(
        "sequence sum is a token mean", "kl.py",
        "aggregate(kl_BT, mask_BT, Aggregation.SEQ_MEAN_TOKEN_SUM)", "aggregate(kl_BT, mask_BT, Aggregation.TOKEN_MEAN)",
        "target 6 nats per sequence compared with nats per token",
    ),
    # --- log-probabilities ---
    Mutant(
        "temperature multiplies", "logprobs.py",
        "else live_NV / temperature, -1)", "else live_NV * temperature, -1)", "temperature multiply",
    ),
    Mutant(
        "temperature after the softmax", "logprobs.py",
        "torch.log_softmax(live_NV if temperature == 1 else live_NV / temperature, -1)",
        "torch.log_softmax(live_NV, -1) / temperature", "prime PR#697",
    ),
    Mutant(
        "unshifted logits", "logprobs.py", "logits_BSV[:, prompt_len - 1 : -1]", "logits_BSV[:, prompt_len:]",
        "each token scored by the position after it: 11 nats",
    ),
    Mutant(
        "bf16 log-softmax", "logprobs.py",
        "live_NV = full_precision(select(logits_NV, mask_N[:, None].expand_as(logits_NV)))",
        "live_NV = select(logits_NV, mask_N[:, None].expand_as(logits_NV))", ".1 nats of error",
    ),
    Mutant(
        "top-p exclusive", "logprobs.py",
        "kept_NV = (mass_before_NV < top_p)", "kept_NV = (probs_NV.cumsum(-1) <= top_p)",
        "the token that crosses p is dropped, and sometimes all",
    ),
    Mutant(
        "top-k drops ties", "logprobs.py",
        "scaled_NV >= scaled_NV.topk(top_k, -1)", "scaled_NV > scaled_NV.topk(top_k, -1)", "one token too few",
    ),
    Mutant(
        "top-p of the whole", "logprobs.py",
        "keep_NV = _keep_top_p(torch.where(keep_NV, scaled_NV, -torch.inf), top_p)",
        "keep_NV = keep_NV & _keep_top_p(scaled_NV, top_p)", "top-p measured before top-k",
    ),
    Mutant(
        "filtered not renormalised", "logprobs.py",
        "kept_NV - log_kept_mass_N[:, None]", "kept_NV", "log-probabilities of another distribution",
    ),
    Mutant("entropy negative", "logprobs.py", "select(-(logprobs_NV.exp()", "select((logprobs_NV.exp()", "sign"),
    Mutant(
        "last token is the count", "logprobs.py",
        "(columns_T * mask_BT).amax(-1) - 1", "mask_BT.sum(-1) - 1", "wrong with left padding and gaps (trl#2778)",
    ),
    Mutant("length mask off by one", "logprobs.py", "< lengths_B[:, None]", "<= lengths_B[:, None]", "one pad trained on"),
    Mutant("uniform on the edge", "logprobs.py", "target_N1, right=True)", "target_N1, right=False)",
           "a token of probability zero is drawn"),
    # --- ratio and clip ---
    Mutant(
        "ratio direction", "_ratio.py",
        "full_precision(select(logprobs_BT, mask_BT)) - full_precision(old_BT)",
        "full_precision(old_BT) - full_precision(select(logprobs_BT, mask_BT))", "old / new",
    ),
    Mutant(
        "clip side swapped", "_ratio.py",
        "((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))",
        "((advantages < 0) & (ratio > 1 + eps_high)) | ((advantages > 0) & (ratio < 1 - eps_low))",
        "min became max: the objective is optimistic",
    ),
    Mutant(
        "clipped whatever the sign", "_ratio.py",
        "((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))",
        "(ratio > 1 + eps_high) | (ratio < 1 - eps_low)", "a bad step can no longer be undone",
    ),
    Mutant(
        "clip widths swapped", "_ratio.py",
        "torch.full_like(ratio, 1 + eps_high), torch.full_like(ratio, 1 - eps_low)",
        "torch.full_like(ratio, 1 + eps_low), torch.full_like(ratio, 1 - eps_high)", "clip-higher clips lower",
    ),
    Mutant(
        "advantages attached", "_ratio.py",
        "full_precision(select(advantages_BT, mask_BT)).detach()", "full_precision(select(advantages_BT, mask_BT))",
        "no detach of advantages",
    ),
    Mutant(
        "old log-probabilities attached", "_ratio.py",
        "select(old_logprobs_BT, mask_BT).detach()", "select(old_logprobs_BT, mask_BT)", "the gradient cancels",
    ),
    Mutant(
        "sequence ratio is a product", "_ratio.py",
        "select(log_ratio_BT, mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)", "select(log_ratio_BT, mask_BT).sum(-1)",
        "GSPO sum instead of mean",
    ),
    Mutant(
        "sequence ratio over the width", "_ratio.py",
        ".sum(-1) / mask_BT.sum(-1).clamp(min=1)", ".sum(-1) / mask_BT.shape[1]", "pads dilute the mean",
    ),
    # --- policy losses ---
    Mutant(
        "dual clip for all", "policy_loss.py",
        "(advantages_BT < 0) & (ratio_BT > dual_clip)", "(ratio_BT > dual_clip)", "positive advantages cut too",
    ),
    Mutant("objective minimised", "policy_loss.py", "select(-objective_BT, mask_BT)", "select(objective_BT, mask_BT)", "sign"),
    Mutant(
        "cispo cap of TRL", "policy_loss.py", "max=1 + eps_high)", "max=eps_high)", "absolute cap: every weight <= .28",
    ),
    Mutant(
        "cispo weight attached", "policy_loss.py",
        "exp_within_range(log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach())",
        "exp_within_range(log_ratio(logprobs_BT, old_logprobs_BT, mask_BT))", "no stop-gradient",
    ),
    Mutant(
        "kl subtracted", "policy_loss.py",
        "kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, estimator)\n    return TetheredSurrogate(surrogate.losses_BT + beta",
        "kl_tokens(logprobs_BT, ref_logprobs_BT, mask_BT, estimator)\n    return TetheredSurrogate(surrogate.losses_BT - beta",
        "KL sign in the loss (Logic-RL#58, RAGEN#58)",
    ),
    Mutant(
        "corrected kl with a fixed ratio", "policy_loss.py",
        "return select(ratio_BT * kl_tokens", "return select(ratio_BT.detach() * kl_tokens", "half of the gradient is missing",
    ),
    Mutant("entropy minimised", "policy_loss.py", "select(-coef * full", "select(coef * full", "bonus becomes a penalty"),
    Mutant(
        "approx kl reversed", "policy_loss.py",
        "kl_k3(torch.zeros_like(live_N), live_N)", "kl_k3(live_N, torch.zeros_like(live_N))", "KL(new || old) from old samples",
    ),
    Mutant("approx k1 sign", "policy_loss.py", '"approx_kl_k1": -live_N', '"approx_kl_k1": live_N', "sign"),
    Mutant(
        "every clip is beneficial", "policy_loss.py",
        '"clip_beneficial": low_N | high_N', '"clip_beneficial": below_N | above_N', "two clip fractions under one name",
    ),
    Mutant("merged minimum is a maximum", "policy_loss.py", "min(self.ratio_min", "max(self.ratio_min", "metric over microbatches"),
    # --- sequence losses ---
    Mutant(
        "gspo-token attached", "sequence_loss.py",
        "sequence_ratio(log_ratio_BT.detach(), mask_BT)", "sequence_ratio(log_ratio_BT, mask_BT)", "no stop-gradient on s",
    ),
    Mutant(
        "gmpo clips both signs", "sequence_loss.py",
        "(sign_B1 > 0) & (log_ratio_BT > log_eps_high)", "(log_ratio_BT > log_eps_high)", "clip whatever the sign",
    ),
    Mutant(
        "gmpo sides swapped", "sequence_loss.py",
        "sign_B1 = torch.sign(advantages_B)", "sign_B1 = -torch.sign(advantages_B)", "clip side swapped",
    ),
    # --- value ---
    Mutant("value clip optimistic", "value_loss.py", "(bounded_BT > squared_BT)", "(bounded_BT < squared_BT)", "max became min"),
    Mutant("value loss doubled", "value_loss.py", "select(squared_BT / 2, mask_BT)", "select(squared_BT, mask_BT)", "missing 1/2"),
    Mutant(
        "value clipped around zero", "value_loss.py",
        "(old_BT + (live_BT - old_BT).clamp(-clip, clip) - returns_BT)", "(live_BT.clamp(-clip, clip) - returns_BT)",
        "clips the value instead of its change",
    ),
    Mutant(
        "explained variance inverted", "value_loss.py",
        "masked_var(residual_BT, mask_BT) / masked_var(returns_BT, mask_BT)",
        "masked_var(returns_BT, mask_BT) / masked_var(residual_BT, mask_BT)", "fraction upside down",
    ),
    # --- importance ---
    Mutant(
        "mismatch reversed", "importance.py",
        "return full_precision(select(trainer_BT, mask_BT)) - full_precision(select(sampler_BT, mask_BT))",
        "return full_precision(select(sampler_BT, mask_BT)) - full_precision(select(trainer_BT, mask_BT))", "sampler / trainer",
    ),
    Mutant(
        "mask truncates", "importance.py",
        "weights_BT = kept_within(token_BT, token_BT)", "weights_BT = token_BT.clamp(low, high)", "MIS became TIS",
    ),
    Mutant(
        "geometric is a product", "importance.py",
        "sum_B1 / mask_BT.sum(-1, keepdim=True).clamp(min=1)", "sum_B1", "long rows are always dropped",
    ),
    Mutant(
        "good rows dropped", "importance.py",
        "(advantages_B < 0) & (seq_kl_B > delta)", "(advantages_B > 0) & (seq_kl_B > delta)", "sign of the advantage",
    ),
    Mutant("mismatch k1 sign", "importance.py", "float(-live_N.mean())", "float(live_N.mean())", "KL(trainer || sampler)"),
    Mutant(
        "weights attached", "importance.py",
        "trainer_BT, sampler_BT = trainer_BT.detach(), sampler_BT.detach()\n", "\n", "the correction is differentiated",
    ),
    # --- reward models ---
    Mutant("softplus sign", "reward_loss.py", "losses_B = softplus(-z_B)", "losses_B = softplus(z_B)", "learns the rejected"),
    Mutant(
        "naive log sigmoid", "reward_loss.py",
        "losses_B = softplus(-z_B)", "losses_B = -torch.log(torch.sigmoid(z_B))", "infinite 800 apart",
    ),
    Mutant("margin sign", "reward_loss.py", "rejected_B - margin", "rejected_B + margin", "margin lowers the demand"),
    Mutant(
        "centering the difference", "reward_loss.py",
        "center_coef * (chosen_B + rejected_B).square()", "center_coef * (chosen_B - rejected_B).square()",
        "the wrong thing is kept small",
    ),
    Mutant(
        "ece on [0, 1]", "reward_loss.py",
        "confidence_B = torch.maximum(p_B, 1 - p_B)\n    bin_B = ((confidence_B - 0.5) * 2 * bins)",
        "confidence_B = p_B\n    bin_B = (confidence_B * bins)", "the label is always 'chosen wins': meaningless",
    ),
    Mutant(
        "a tie is a loss", "reward_loss.py",
        "accuracy=float(torch.where(level_B, 0.5, right_B)[decided_B].mean())", "accuracy=float(right_B[decided_B].mean())",
        "accuracy of equal scores 0",
    ),
    Mutant(
        "plackett-luce from the worst", "reward_loss.py",
        "ordered_K.flip(0).logcumsumexp(0).flip(0)", "ordered_K.logcumsumexp(0)", "who is still in the race",
    ),
    Mutant(
        "pairs weigh prompts", "reward_loss.py",
        "torch.stack([softplus(-gaps_N).mean() for gaps_N in _ranked_gaps(ranked_scores)])",
        "torch.cat([softplus(-gaps_N) for gaps_N in _ranked_gaps(ranked_scores)])", "InstructGPT 3.5: overfits",
    ),
    Mutant(
        "davidson without its root", "reward_loss.py",
        "log_nu + (first + second) / 2", "log_nu + (first + second)", "a constant in the scores changes the ties",
    ),
    # --- preference losses ---
    Mutant("dpo softplus sign", "preference_loss.py", "plain_B = softplus(-z_B)", "plain_B = softplus(z_B)", "learns the rejected"),
    Mutant(
        "length-normalised dpo", "preference_loss.py",
        "return dpo_loss(log_ratio_margin(pairs), beta)", "return dpo_loss(mean_log_ratio_margin(pairs), beta)",
        "another loss under the name of DPO",
    ),
    Mutant(
        "reference added", "preference_loss.py",
        "full_precision(pairs.chosen_logprobs_B) - full_precision(pairs.ref_chosen_logprobs_B).detach()",
        "full_precision(pairs.chosen_logprobs_B) + full_precision(pairs.ref_chosen_logprobs_B).detach()", "sign",
    ),
    Mutant("ipo target", "preference_loss.py", "margin_B - 1 / (2 * beta)", "margin_B - 1 / beta", "factor 2"),
    Mutant(
        "ipo by tokens", "preference_loss.py",
        "return ipo_loss(log_ratio_margin(pairs), beta)", "return ipo_loss(mean_log_ratio_margin(pairs), beta)",
        "TRL divides by length under the name of the paper's loss",
    ),
    Mutant("simpo margin sign", "preference_loss.py", "(chosen_B - rejected_B) - gamma))", "(chosen_B - rejected_B) + gamma))", "sign"),
    Mutant(
        "sums for averages", "preference_loss.py",
        "return chosen_B / chosen_lengths_B, rejected_B / rejected_lengths_B", "return chosen_B, rejected_B", "SimPO without length",
    ),
    Mutant("orpo odds sign", "preference_loss.py", "softplus(-log_odds_ratio_B)", "softplus(log_odds_ratio_B)", "sign"),
    Mutant(
        "orpo probability ratio", "preference_loss.py",
        "(chosen_B - _log1mexp(chosen_B)) - (rejected_B - _log1mexp(rejected_B))", "chosen_B - rejected_B",
        "ratio of probabilities instead of odds",
    ),
    Mutant("kto reference point negative", "preference_loss.py", ".detach().mean().clamp(min=0)", ".detach().mean()", "a KL is >= 0"),
    Mutant(
        "kto one-sided", "preference_loss.py",
        "signed_B = torch.where(desirable_B, margin_B, -margin_B)", "signed_B = margin_B", "bad answers rewarded",
    ),
    Mutant(
        "kto reference point attached", "preference_loss.py",
        "full_precision(mismatched_log_ratios_N).detach()", "full_precision(mismatched_log_ratios_N)", "no detach of z0",
    ),
    Mutant("robust dpo biased", "preference_loss.py", "1 - 2 * label_smoothing", "1", "denominator forgotten"),
    # --- counting ---
    Mutant(
        "pass@k biased", "best_of_n.py",
        "return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)",
        "return 1 - (1 - num_correct / num_samples) ** k", "Chen 2021: never by (1 - c/n)^k",
    ),
    Mutant("best of n ties high", "best_of_n.py", "key=lambda i: (scores[i], -i)", "key=lambda i: (scores[i], i)", "tie rule"),
    Mutant(
        "best of n with replacement", "best_of_n.py",
        "math.comb(rank, n - 1) / total * gold[i]", "((rank + 1) ** n - rank**n) / num_samples**n * gold[i]", "biased estimator",
    ),
    Mutant("best of n kl is log n", "best_of_n.py", "return math.log(n) - (n - 1) / n", "return math.log(n)", "bound too wide"),
    Mutant(
        "abstention is a no", "best_of_n.py",
        "counts_RP = voted_RPV.sum(-1)", "counts_RP = torch.ones_like(voted_RPV).sum(-1)", "a silent judge votes against",
    ),
    Mutant(
        "merge without the cross term", "moments.py",
        "self.squares + other.squares + delta**2 * self.count * other.count / count", "self.squares + other.squares",
        "variance between shards lost",
    ),
    Mutant("merge averages means", "moments.py", "delta * other.count / count", "delta / 2", "mean of means"),
    Mutant(
        "shard whitens by its own count", "moments.py",
        "seen.squares / (seen.count - ddof)", "seen.squares / max(1, float(mask_BT.sum()))", "ranks disagree",
    ),
    Mutant("adam without bias correction", "optimisers.py", "1 - beta1**t", "1", "first steps ten times too small"),
    Mutant(
        "adam eps of the other style", "optimisers.py",
        "AdamEps(style) == AdamEps.TORCH", "AdamEps(style) == AdamEps.TENSORFLOW", "Huang 2023: other first steps",
    ),
    Mutant(
        "unique share for repeated share", "text_stats.py",
        "1 - len(set(text)) / len(text)", "len(set(text)) / len(text)", "metric upside down",
    ),
    Mutant(
        "every full row is truncated", "text_stats.py",
        "(lengths_B >= max_new_tokens) & ~ended_B", "lengths_B >= max_new_tokens", "an EOS at the limit is an end",
    ),
    Mutant(
        "a weight of the token for one of the prefix", "importance.py",
        "exp_within_range(log_ratio_BT.cumsum(-1))", "exp_within_range(log_ratio_BT)", "KL of stale answers biased",
    ),
    Mutant(
        "stale KL divided by tokens that the sampler drew", "importance.py",
        "float(total / weights_BT.double().sum())", "float(total / mask_BT.sum())", "mean over another policy's tokens",
    ),
    Mutant(
        "soft label of the other side", "reward_loss.py",
        "losses_B = q_B * losses_B + (1 - q_B) * softplus(z_B)", "losses_B = (1 - q_B) * losses_B + q_B * softplus(z_B)",
        "three of four votes count as one",
    ),
    Mutant(
        "smoothing away from the label", "reward_loss.py",
        "(1 - label_smoothing) * labels_B + label_smoothing * (1 - labels_B)", "(1 - label_smoothing) * labels_B", "probability lost",
    ),
    Mutant(
        "a tie is what is left of one win", "tie_loss.py",
        "torch.log(-torch.expm1(-2 * eta)) + first_B + second_B", "torch.log(-torch.expm1(-2 * eta)) + first_B", "P(tie) not symmetric",
    ),
    Mutant(
        "davidson of the whole gap", "tie_loss.py",
        "torch.stack([gap_B / 2, -gap_B / 2, log_nu_B])", "torch.stack([gap_B, -gap_B, log_nu_B])", "odds of a win squared",
    ),
    Mutant(
        "update KL of another policy's tokens unweighted", "policy_loss.py",
        "weights_BT[mask_BT] * x_N for name", "x_N for name", "a mean under the sampler, called one under the old policy",
    ),
    Mutant("beta multiplies", "bandits.py", "torch.softmax(ref_probs_A.log() + rewards_A / beta, -1)",
           "torch.softmax(ref_probs_A.log() + rewards_A * beta, -1)", "larger beta must tether more"),
]  # fmt: skip
