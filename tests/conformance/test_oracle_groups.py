"""Group advantages, best-of-n, text statistics, small worlds: against plain arithmetic, brute force or simulation of the
definition.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest


def mean(xs):
    xs = list(xs)
    return math.fsum(xs) / len(xs)


def std(xs, ddof=0):
    return math.sqrt(math.fsum((x - mean(xs)) ** 2 for x in xs) / (len(xs) - ddof))


def rewards_of(draw, n, scale=1.0, unscorable=True):
    """Rewards with repeats, so that some groups are dead, and some NaN."""
    values = [scale * x for x in (0.0, 1.0, draw.number(-1, 1))]
    rewards = [draw.random.choice(values) for _ in range(n)]
    return [math.nan if unscorable and draw.random.random() < 0.15 else r for r in rewards]


def group_of(i, rewards, ids):
    return [r for r, g in zip(rewards, ids, strict=True) if g == ids[i] and not math.isnan(r)]


def per_row(rewards, ids, rule):
    """rule(reward, scorable rewards of the group); 0 for NaN, singletons and groups without spread."""
    out = []
    for i, reward in enumerate(rewards):
        group = group_of(i, rewards, ids)
        dead = math.isnan(reward) or len(group) < 2 or max(group) == min(group)
        out.append(0.0 if dead else rule(reward, group))
    return out


def standardised(ddof, eps):
    return lambda reward, group: (reward - mean(group)) / (std(group, ddof) + eps)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("eps", [1e-4, 1e-8])
def test_grpo_and_rloo(draw, agrees, scale, eps):
    n = draw.rows * 2
    rewards, ids = rewards_of(draw, n, scale), draw.groups(n)
    data = {"rewards": rewards, "group_ids": ids}
    for kind, ddof in (("population", 0), ("sample", 1)):
        inputs = {**data, "std": kind, "eps": eps}
        agrees("grpo_advantages", {**inputs, "eps_mode": "add"}, {"advantages": per_row(rewards, ids, standardised(ddof, eps))})

        def root(reward, group, ddof=ddof):
            return (reward - mean(group)) / math.sqrt(std(group, ddof) ** 2 + eps)

        agrees("grpo_advantages", {**inputs, "eps_mode": "var"}, {"advantages": per_row(rewards, ids, root)})
    centred = per_row(rewards, ids, lambda reward, group: reward - mean(group))
    agrees("grpo_advantages", {**data, "std": "none", "eps": eps}, {"advantages": centred})
    others = per_row(rewards, ids, lambda reward, group: reward - (sum(group) - reward) / (len(group) - 1))
    agrees("rloo_advantages", data, {"advantages": others}, single=scale < 10)


@pytest.mark.parametrize("ddof", [0, 1])
def test_batch_std_and_opo(draw, agrees, ddof):
    n = draw.rows * 2
    rewards, ids = rewards_of(draw, n, 3.0), draw.groups(n)
    seen = [r for r in rewards if not math.isnan(r)]
    if len(seen) > ddof:
        expected = per_row(rewards, ids, lambda r, group: (r - mean(group)) / (std(seen, ddof) + 1e-4))
        inputs = {"rewards": rewards, "group_ids": ids, "ddof": ddof, "eps": 1e-4}
        agrees("grpo_batch_std_advantages", inputs, {"advantages": expected})
    lengths = [draw.random.randint(1, 2000) for _ in rewards]
    expected = []
    for i, reward in enumerate(rewards):
        group = [(r, length) for r, g, length in zip(rewards, ids, lengths, strict=True)
                 if g == ids[i] and not math.isnan(r)]  # fmt: skip
        alive = not math.isnan(reward) and len({r for r, _ in group}) > 1
        base = math.fsum(r * length for r, length in group) / max(1, sum(length for _, length in group))
        expected.append(reward - base if alive else 0.0)
    agrees("opo_advantages", {"rewards": rewards, "group_ids": ids, "lengths": lengths}, {"advantages": expected})


def whitened(cells, ddof, eps):
    values = list(cells.values())
    if len(values) <= max(1, ddof):
        return dict.fromkeys(cells, 0.0)
    return {key: (x - mean(values)) / math.sqrt(std(values, ddof) ** 2 + eps) for key, x in cells.items()}


def spread_out(mask, cells):
    return [[cells.get((b, t), 0.0) for t in range(len(row))] for b, row in enumerate(mask)]


@pytest.mark.parametrize("ddof", [0, 1])
def test_reinforce_pp(draw, agrees, ddof):
    mask, old, ref, scores = draw.mask(), draw.matrix(-4, 0), draw.matrix(-4, 0), draw.row(draw.rows)
    cells = {}
    for b, row in enumerate(mask):
        live = [t for t, alive in enumerate(row) if alive]
        for place, t in enumerate(live):
            later = [-0.1 * (old[b][s] - ref[b][s]) + (scores[b] if s == live[-1] else 0.0) for s in live[place:]]
            cells[b, t] = math.fsum(0.9**k * r for k, r in enumerate(later))
    inputs = {"score": scores, "old_logprobs": draw.junk(old, mask), "ref_logprobs": draw.junk(ref, mask),
              "mask": mask, "beta": 0.1, "gamma": 0.9, "ddof": ddof, "eps": 1e-8}  # fmt: skip
    agrees("reinforce_pp_advantages", inputs, {"advantages": spread_out(mask, whitened(cells, ddof, 1e-8))})
    rewards, ids = rewards_of(draw, draw.rows), draw.groups(draw.rows)
    centred = per_row(rewards, ids, lambda r, group: r - mean(group))
    cells = {(b, t): centred[b] for b, row in enumerate(mask) for t, alive in enumerate(row)
             if alive and not math.isnan(rewards[b])}  # fmt: skip
    expected = whitened(cells, ddof, 1e-8) if any(centred) else {}
    inputs = {"score": rewards, "group_ids": ids, "mask": mask, "ddof": ddof, "eps": 1e-8}
    agrees("reinforce_pp_baseline_advantages", inputs, {"advantages": spread_out(mask, expected)})


def test_remax_and_mixed_reward(draw, agrees):
    rewards, greedy = rewards_of(draw, 6), rewards_of(draw, 6)
    expected = [0.0 if math.isnan(r - g) else r - g for r, g in zip(rewards, greedy, strict=True)]
    agrees("remax_advantages", {"rewards": rewards, "greedy_rewards": greedy}, {"advantages": expected})
    table, weights = [rewards_of(draw, 3) for _ in range(5)] + [[math.nan] * 3], draw.row(3)
    totals = [[w * r for w, r in zip(weights, row, strict=True) if not math.isnan(r)] for row in table]
    agrees("mixed_reward", {"rewards": table, "weights": weights}, {"total": [sum(t) if t else math.nan for t in totals]})


@pytest.mark.parametrize("ddof", [0, 1])
def test_several_rewards(draw, agrees, ddof):
    n, k = draw.rows * 2, draw.random.randint(1, 3)
    table, ids, weights = [rewards_of(draw, k) for _ in range(n)], draw.groups(n), draw.row(k, 0.1, 1)
    columns = [per_row([row[c] for row in table], ids, standardised(ddof, 1e-4)) for c in range(k)]
    sums = [math.fsum(w * column[b] for w, column in zip(weights, columns, strict=True)) for b in range(n)]
    scorable = [not all(map(math.isnan, row)) for row in table]
    sums = [s if ok else math.nan for s, ok in zip(sums, scorable, strict=True)]
    expected = per_row(sums, [0] * n, standardised(ddof, 1e-4))
    inputs = {"rewards": table, "group_ids": ids, "weights": weights, "eps": 1e-4}
    agrees("gdpo_advantages", {**inputs, "ddof": ddof}, {"advantages": expected})
    totals = [math.fsum(w * r for w, r in zip(weights, row, strict=True) if not math.isnan(r)) for row in table]
    totals = [x if ok else math.nan for x, ok in zip(totals, scorable, strict=True)]
    kind = "sample" if ddof else "population"
    expected = per_row(totals, ids, standardised(ddof, 1e-4))
    agrees("sum_then_normalize_advantages", {**inputs, "std": kind}, {"advantages": expected})


@pytest.mark.parametrize("ddof", [0, 1])
def test_process_advantages(draw, agrees, ddof):
    mask = draw.mask()
    ends = [sorted(draw.random.sample(range(draw.columns), draw.random.randint(0, min(3, draw.columns)))) for _ in mask]
    steps = [draw.row(len(row)) for row in ends]
    flat = [r for row in steps for r in row]
    spread = std(flat, ddof) if len(flat) > 1 else 0.0
    z = [[(r - mean(flat)) / spread if spread else 0.0 for r in row] for row in steps]
    expected = [[math.fsum(s for s, end in zip(z[b], ends[b], strict=True) if end >= t) if alive else 0.0
                 for t, alive in enumerate(row)] for b, row in enumerate(mask)]  # fmt: skip
    inputs = {"step_rewards": steps, "step_end_index": ends, "mask": mask, "ddof": ddof}
    agrees("process_advantages", inputs, {"advantages": expected})


def test_overlong_penalty_and_dynamic_sampling(draw, agrees):
    limit, cache = draw.random.randint(10, 30000), draw.random.randint(1, 9)
    lengths = [0, limit - cache - 1, limit - cache, limit - cache + 1, limit - 1, limit, limit + 1]
    expected = [0.0 if n <= limit - cache else (limit - cache - n) / cache if n <= limit else -1.0 for n in lengths]
    agrees("overlong_penalty", {"lengths": lengths, "max_len": limit, "cache": cache}, {"penalty": expected})
    table = [rewards_of(draw, draw.columns) for _ in range(draw.rows)]
    keep = [len({r for r in row if not math.isnan(r)}) > 1 for row in table]
    agrees("dynamic_sampling", {"rewards": table}, {"keep": keep, "dead_fraction": keep.count(False) / len(keep)})


@pytest.mark.parametrize("size", [2, 3, 4])
def test_pg_expectation(draw, agrees, slopes, size):
    logits, rewards = draw.row(3), draw.row(3, -1, 1)

    def probs():
        return [math.exp(z) / sum(map(math.exp, logits)) for z in logits]

    frozen = probs()

    def expected_loss(advantage):
        def loss():
            now, total = probs(), 0.0
            for drawn in itertools.product(range(3), repeat=size):
                weight = math.prod(frozen[a] for a in drawn)
                group = [rewards[a] for a in drawn]
                total += weight * mean(advantage(rewards[a], group) * math.log(now[a]) for a in drawn)
            return total

        return slopes(loss, logits)

    def true():
        return math.fsum(p * r for p, r in zip(probs(), rewards, strict=True))

    def unit(reward, group):
        return (reward - mean(group)) / std(group) if len(set(group)) > 1 else 0.0

    gradients = {"true_grad": slopes(true, logits), "rloo": slopes(true, logits),
                 "mean_baseline": [(size - 1) / size * g for g in slopes(true, logits)],
                 "std_normalised": expected_loss(unit)}  # fmt: skip
    agrees("pg_expectation", {"logits": logits, "rewards": rewards, "group_size": size}, {}, gradients)


def test_best_of_n(draw, agrees):
    scores = [*rewards_of(draw, 6), 0.5]
    best = max(s for s in scores if not math.isnan(s))
    agrees("bon_select", {"scores": scores}, {"index": scores.index(best)})
    size, n = draw.random.randint(1, 7), draw.random.randint(1, 4)
    raw = [draw.random.randint(1, 9) for _ in range(size)]
    probs, rewards = [w / sum(raw) for w in raw], [float(draw.random.randint(0, 3)) for _ in range(size)]
    policy = [0.0] * size
    for drawn in itertools.product(range(size), repeat=n):
        top = max(rewards[a] for a in drawn)
        tied = [a for a in range(size) if rewards[a] == top]  # a tie is shared by reference probability
        for a in tied:
            policy[a] += math.prod(probs[b] for b in drawn) * probs[a] / sum(probs[b] for b in tied)
    kl = math.fsum(p * math.log(p / q) for p, q in zip(policy, probs, strict=True) if p > 0)
    expected = {"policy": policy, "exact_kl": kl, "bound": math.log(n) - (n - 1) / n, "win_rate_bound": n / (n + 1)}
    agrees("bon_kl", {"ref_probs": probs, "rewards": rewards, "n": n}, expected)
    proxy, gold = draw.row(size), draw.row(size, -1e3, 1e3)
    k = draw.random.randint(1, size)
    winners = [gold[max(subset, key=lambda a: proxy[a])] for subset in itertools.combinations(range(size), k)]
    agrees("bon_unbiased", {"proxy": proxy, "gold": gold, "n": k}, {"value": mean(winners)})


def test_pass_at_k_and_votes(draw, agrees):
    n = draw.random.randint(1, 10)
    c, k = draw.random.randint(0, n), draw.random.randint(1, n)
    hits = [any(a < c for a in subset) for subset in itertools.combinations(range(n), k)]
    agrees("pass_at_k", {"n": n, "c": c, "k": k}, {"value": float(Fraction(sum(hits), len(hits)))})
    agrees("pass_at_k", {"n": 5000, "c": 7, "k": 3000}, {"value": float(1 - Fraction(math.comb(4993, 3000), math.comb(5000, 3000)))})
    votes = [[[draw.random.choice([0.0, 1.0, math.nan]) for _ in range(3)] for _ in range(2)] for _ in range(draw.rows)]
    weights, expected = draw.row(2, 0.1, 2), []
    for response in votes:
        voted = [(w, [v for v in p if not math.isnan(v)]) for w, p in zip(weights, response, strict=True)]
        voted = [(w, v) for w, v in voted if v]
        total = sum(w for w, _ in voted)
        expected.append(sum(w * mean(v) for w, v in voted) / total if voted else math.nan)
    agrees("principle_vote", {"votes": votes, "principle_weights": weights}, {"reward": expected})


def test_text_statistics(draw, agrees):
    texts = [[draw.random.randint(0, 2) for _ in range(draw.random.randint(0, 9))] for _ in range(5)]
    n = draw.random.randint(1, 3)
    grams = [[tuple(text[k : k + n]) for k in range(max(0, len(text) - n + 1))] for text in texts]
    pooled = [gram for text in grams for gram in text]
    top = max((pooled.count(gram) for gram in pooled), default=0)
    shares = [1 - len(set(text)) / len(text) if text else 0.0 for text in grams]
    expected = {"repeat_share": shares, "pooled_top_share": top / len(pooled) if pooled else 0.0}
    agrees("ngram_metrics", {"token_lists": texts, "n": n}, expected)
    mask, limit = draw.mask(), draw.random.randint(1, draw.columns)
    ids = [[draw.random.randint(0, 2) for _ in row] for row in mask]
    live = [[token for token, alive in zip(row, m, strict=True) if alive] for row, m in zip(ids, mask, strict=True)]
    ended = [bool(row) and row[-1] == 2 for row in live]
    cut = [len(row) >= limit and not end for row, end in zip(live, ended, strict=True)]
    expected = {"eos_rate": mean(ended), "truncated_rate": mean(cut), "mean_length": mean(map(len, live))}
    agrees("eos_length", {"ids": ids, "mask": mask, "eos_id": 2, "max_new_tokens": limit}, expected)


def test_kl_bandit_optimum(draw, agrees):
    n, beta = draw.random.randint(2, 6), draw.number(0.1, 3)
    raw, rewards = draw.row(n, 0.1, 1), draw.row(n)
    ref = [x / sum(raw) for x in raw]
    tilted = [q * math.exp(r / beta) for q, r in zip(ref, rewards, strict=True)]
    low, high = max(rewards), max(rewards) + beta * n  # lambda, by bisection on sum beta ref / (lambda - R) = 1
    for _ in range(300):
        middle = (low + high) / 2
        gaps = [middle - r for r in rewards]
        over = min(gaps) <= 0 or math.fsum(beta * q / g for q, g in zip(ref, gaps, strict=True)) > 1
        low, high = (middle, high) if over else (low, middle)
    expected = {"reverse_kl_optimum": [x / sum(tilted) for x in tilted], "value_reverse": beta * math.log(sum(tilted)),
                "forward_kl_optimum": [beta * q / (high - r) for q, r in zip(ref, rewards, strict=True)]}  # fmt: skip
    agrees("kl_bandit_optimum", {"rewards": rewards, "ref_probs": ref, "beta": beta}, expected)


def test_length_hack(draw, agrees):
    hazard, reward = draw.number(0.05, 0.9), draw.number(0, 0.5)
    critical = reward / -math.log(1 - hazard)
    for beta in (critical * 1.5 + 0.01, critical * 0.5 + 1e-6):
        survival = (1 - hazard) * math.exp(reward / beta)
        length = 1 / (1 - survival) if survival < 1 else math.inf
        expected = {"beta_critical": critical, "mean_length_optimum": length, "ref_mean_length": 1 / hazard}
        agrees("length_hack", {"ref_hazard": hazard, "reward_per_token": reward, "beta": beta}, expected)


@pytest.mark.parametrize("kind", ["bon", "rl"])
def test_overoptimisation_law(draw, agrees, kind):
    a, b = draw.number(0.3, 2), draw.number(0.1, 0.5)
    kls = sorted(draw.row(draw.random.randint(3, 8), 0.05, 30))

    def gold(d):
        return d * (a - b * d) if kind == "bon" else d * (a - b * math.log(d))

    low, high = 1e-6, 1e12  # the peak by ternary search of log d
    for _ in range(400):
        third = (math.log(high) - math.log(low)) / 3
        one, two = low * math.exp(third), high * math.exp(-third)
        low, high = (one, high) if gold(one) < gold(two) else (low, two)
    inputs = {"kind": kind, "alpha": a, "beta": b, "kls": kls}
    expected = {"gold": [gold(math.sqrt(kl)) for kl in kls], "fit": [a, b], "peak_gold": gold(low)}
    agrees("overoptimisation_law", inputs, expected, single=False)
    agrees("overoptimisation_law", inputs, {}, {"peak_d": low})


def test_adam_eps_styles(draw, agrees):
    grads, eps = draw.row(6), 1e-3
    paths = {"torch": [], "tensorflow": []}
    for name, path in paths.items():
        theta = m = v = 0.0
        for t, g in enumerate(grads, start=1):
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            if name == "torch":
                theta -= 0.01 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.99**t)) + eps)
            else:  # alpha_t m / (sqrt v + eps): the text of algorithm 1's last remark
                theta -= 0.01 * math.sqrt(1 - 0.99**t) / (1 - 0.9**t) * m / (math.sqrt(v) + eps)
            path.append(theta)
    agrees("adam_eps_styles", {"grads": grads, "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": eps}, paths)


def test_memory(agrees):
    inputs = {"params": 7 * 10**9, "lora_params": 10**7, "layers": 32, "kv_heads": 8, "head_dim": 128, "tokens": 1000,
              "vocab": 32000, "seq": 512, "batch": 2, "hidden": 4096, "heads": 32}  # fmt: skip
    expected = {"policy_full": 112_000_000_000, "frozen_bf16": 14_000_000_000, "policy_lora": 14_160_000_000,
                "kv": 131_072_000, "logits": 320_000_000, "act_layer_flash": 142_606_336,
                "act_layer_full": 226_492_416, "act_layer_checkpoint": 8_388_608}  # fmt: skip
    agrees("memory", inputs, expected)
