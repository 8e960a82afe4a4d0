"""Log-probabilities, importance weights, KL, returns: against sums written out over single numbers."""

from __future__ import annotations

import itertools
import math

import pytest

V = 5


def log_softmax(z, temperature=1.0):
    scaled = [x / temperature for x in z]
    top = max(scaled)
    total = top + math.log(math.fsum(math.exp(x - top) for x in scaled))
    return [x - total for x in scaled]


def live_cells(mask):
    return [(b, t) for b, row in enumerate(mask) for t, alive in enumerate(row) if alive]


def filled(mask, value):
    return [[value(b, t) if alive else 0.0 for t, alive in enumerate(row)] for b, row in enumerate(mask)]


def mean(xs):
    xs = list(xs)
    return math.fsum(xs) / len(xs)


def row_lengths(mask):
    return [sum(row) for row in mask]


def test_token_logprobs(draw, agrees, slopes):
    mask, temperature = draw.mask(), draw.number(0.3, 2)
    logits = [[draw.row(V, -6, 6) for _ in row] for row in mask]
    tokens = [[draw.random.randrange(V) if alive else 10**6 for alive in row] for row in mask]
    weights = draw.matrix()

    def logprob(b, t):
        return log_softmax(logits[b][t], temperature)[tokens[b][t]]

    def entropy(b, t):
        return -math.fsum(math.exp(x) * x for x in log_softmax(logits[b][t], temperature))

    def weighted():
        return math.fsum(weights[b][t] * logprob(b, t) for b, t in live_cells(mask))

    gradient = slopes(weighted, logits, mask)
    agrees(
        "token_logprobs",
        {"logits": draw.junk(logits, mask), "tokens": tokens, "mask": mask, "temperature": temperature,
         "weights": draw.junk(weights, mask)},
        {"logprobs": filled(mask, logprob), "entropy": filled(mask, entropy)},
        {"grad_logits_of_weighted_sum": gradient},
    )  # fmt: skip


def test_logprob_shift(draw, agrees):
    prompt, mask = draw.random.randint(1, 3), draw.mask()
    width = prompt + draw.columns
    ids = [[draw.random.randrange(V) for _ in range(width)] for _ in mask]
    logits = [[draw.row(V, -40, 40) for _ in range(width)] for _ in mask]
    expected = filled(mask, lambda b, t: log_softmax(logits[b][prompt + t - 1])[ids[b][prompt + t]])
    inputs = {"logits": logits, "input_ids": ids, "completion_mask": mask, "prompt_len": prompt}
    agrees("logprob_shift", inputs, {"logprobs": expected})


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.7), (2, 1.0), (3, 0.6), (99, 0.05), (1, 1.0)])
def test_filtered_logprobs(draw, agrees, top_k, top_p):
    logits, temperature = draw.row(draw.random.randint(1, 12), -4, 4), draw.number(0.5, 1.5)
    plain = log_softmax(logits, temperature)
    order = sorted(range(len(logits)), key=lambda a: -logits[a])
    kept = order[: top_k or len(order)]
    mass, total, chosen = 0.0, sum(math.exp(plain[a]) for a in kept), []
    for a in kept:
        if mass < top_p:
            chosen.append(a)
        mass += math.exp(plain[a]) / total
    log_mass = math.log(math.fsum(math.exp(plain[a]) for a in chosen))
    agrees(
        "filtered_logprobs",
        {"logits": logits, "temperature": temperature, "top_k": top_k, "top_p": top_p},
        {
            "keep": [a in chosen for a in range(len(logits))],
            "logprobs": [plain[a] - log_mass if a in chosen else -math.inf for a in range(len(logits))],
            "unfiltered_logprobs": plain,
            "log_kept_mass": log_mass,
        },
    )


def inside(x, low, high):
    return (low is None or x >= low) and (high is None or x <= high)


@pytest.mark.parametrize(
    "mode", ["token_truncate", "token_mask", "seq_truncate", "seq_mask", "seq_geo_mask", "seq_geo_filter_token_weight"]
)
@pytest.mark.parametrize(("low", "high"), [(0.8, 1.25), (None, 1.5), (0.9, None), (None, None)])
def test_is_weights(draw, agrees, mode, low, high):
    mask, old, roll = draw.mask(), draw.matrix(-3, 0), draw.matrix(-3, 0)

    def weight(b, t):
        gaps = [old[b][s] - roll[b][s] for s, alive in enumerate(mask[b]) if alive]
        token, product = math.exp(old[b][t] - roll[b][t]), math.exp(math.fsum(gaps))
        geometric = math.exp(math.fsum(gaps) / len(gaps))
        ends = (-math.inf if low is None else low, math.inf if high is None else high)
        return {
            "token_truncate": min(max(token, ends[0]), ends[1]),
            "token_mask": token if inside(token, low, high) else 0.0,
            "seq_truncate": min(max(product, ends[0]), ends[1]),
            "seq_mask": product if inside(product, low, high) else 0.0,
            "seq_geo_mask": geometric if inside(geometric, low, high) else 0.0,
            "seq_geo_filter_token_weight": token if inside(geometric, low, high) else 0.0,
        }[mode]

    inputs = {"old_logprobs": draw.junk(old, mask), "rollout_logprobs": draw.junk(roll, mask), "mask": mask, "mode": mode}
    expected = {"weights": filled(mask, weight)}
    agrees("is_weights", {**inputs, "lo": low, "hi": high}, expected)
    absent = {name: value for name, value in (("lo", low), ("hi", high)) if value is not None}
    agrees("is_weights", {**inputs, **absent}, expected)


def test_mismatch_and_sequence_mask(draw, agrees):
    mask, old, roll = draw.mask(), draw.matrix(-30, 0), draw.matrix(-30, 0)
    gaps = [roll[b][t] - old[b][t] for b, t in live_cells(mask)]
    data = {"rollout_logprobs": draw.junk(roll, mask), "mask": mask}
    expected = {
        "k1": mean(gaps),
        "k3": mean(math.expm1(-g) + g for g in gaps),
        "max_abs": max(map(abs, gaps)),
        "ppl_ratio": math.exp(mean(gaps)),
    }
    agrees("mismatch_kl", {"old_logprobs": draw.junk(old, mask), **data}, expected)
    advantages, delta = draw.row(draw.rows), 0.5
    rows = [[roll[b][t] - old[b][t] for t, alive in enumerate(row) if alive] for b, row in enumerate(mask)]
    kl = [mean(row) if row else 0.0 for row in rows]
    keep = [not (a < 0 and k > delta) for a, k in zip(advantages, kl, strict=True)]
    inputs = {"logprobs": draw.junk(old, mask), "sampling_logprobs": draw.junk(roll, mask), "mask": mask,
              "advantages": draw.junk(advantages, [any(row) for row in mask]), "delta": delta}  # fmt: skip
    agrees("off_policy_sequence_mask", inputs, {"keep": keep, "seq_kl": kl})


ESTIMATORS = {
    "k1": lambda p, r: p - r,
    "k2": lambda p, r: (p - r) ** 2 / 2,
    "k3": lambda p, r: math.expm1(r - p) - (r - p),
}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_kl_token_and_units(draw, agrees, slopes, kind):
    mask, policy, ref = draw.mask(), draw.matrix(-12, 0), draw.matrix(-12, 0)

    def value(b, t):
        return ESTIMATORS[kind](policy[b][t], ref[b][t])

    def total():
        return math.fsum(value(b, t) for b, t in live_cells(mask))

    size, rows = len(live_cells(mask)), sum(map(any, mask))
    data = {"logprobs": draw.junk(policy, mask), "ref_logprobs": draw.junk(ref, mask), "mask": mask}
    agrees(
        "kl_token",
        {**data, "kind": kind},
        {"values": filled(mask, value), "token_mean": total() / size, "seq_sum_mean": total() / rows},
        {"grad_sum": slopes(total, policy, mask)},
        single=kind != "k3",  # exp(12) of both signs
    )
    if kind == "k1":
        by_row = [mean(value(b, t) for t in range(draw.columns) if mask[b][t]) for b in range(draw.rows) if any(mask[b])]
        units = {"seq_sum_mean_nats": total() / rows, "token_mean_nats": total() / size,
                 "mean_of_row_means_nats": mean(by_row), "token_mean_bits": total() / size / math.log(2)}  # fmt: skip
        agrees("kl_units", data, units)


def exact_kl(z, w):
    return math.fsum(math.exp(p) * (p - q) for p, q in zip(log_softmax(z), log_softmax(w), strict=True))


def test_kl_full_and_expectations(draw, agrees, slopes):
    n = draw.random.randint(2, 7)
    logits = [draw.row(n, -5, 5) for _ in range(draw.rows)]
    ref = [draw.row(n, -5, 5) for _ in range(draw.rows)]

    def total():
        return math.fsum(map(exact_kl, logits, ref))

    expected = {"kl": list(map(exact_kl, logits, ref)), "reverse_direction_kl": list(map(exact_kl, ref, logits))}
    inputs = {"logits": logits, "ref_logits": ref}
    agrees("kl_full", inputs, expected, {"grad_logits_of_sum": slopes(total, logits)})
    z, w = logits[0], ref[0]
    frozen = [math.exp(x) for x in log_softmax(z)]
    start, q = log_softmax(z), log_softmax(w)

    def loss(per_outcome):
        return lambda: math.fsum(p * per_outcome(a, x) for a, (p, x) in enumerate(zip(frozen, log_softmax(z), strict=True)))

    k = ESTIMATORS
    losses = {f"Egrad_{name}_as_loss": loss(lambda a, x, f=f: f(x, q[a])) for name, f in k.items()}
    losses["Egrad_k3_times_ratio_as_loss"] = loss(lambda a, x: math.exp(x - start[a]) * k["k3"](x, q[a]))
    for name in ("k1", "k3"):
        losses[f"Egrad_{name}_in_reward"] = loss(lambda a, x, f=k[name]: f(start[a], q[a]) * x)
    losses["grad_kl"] = lambda: exact_kl(z, w)
    losses["grad_forward_kl_ref_pi"] = lambda: exact_kl(w, z)
    values = {f"E_{name}": loss(lambda a, x, f=f: f(x, q[a]))() for name, f in k.items()} | {"kl": exact_kl(z, w)}
    gradients = {name: slopes(f, z) for name, f in losses.items()}
    agrees("kl_expectations", {"logits": z, "ref_logits": w}, values, gradients, single=False)


def test_kl_sequence_gradient(draw, agrees, slopes):
    n, m = draw.random.randint(2, 4), draw.random.randint(2, 4)
    first, ref_first = draw.row(n), draw.row(n)
    second, ref_second = [draw.row(m) for _ in range(n)], [draw.row(m) for _ in range(n)]

    def kl():
        return math.fsum(
            math.exp(p + s) * (p + s - log_softmax(ref_first)[a] - log_softmax(ref_second[a])[c])
            for a, p in enumerate(log_softmax(first))
            for c, s in enumerate(log_softmax(second[a]))
        )

    frozen = [math.exp(x) for x in log_softmax(first)]

    def partial():  # early tokens do not know that they choose later states
        later = math.fsum(p * exact_kl(s, r) for p, s, r in zip(frozen, second, ref_second, strict=True))
        return exact_kl(first, ref_first) + later

    agrees(
        "kl_sequence_gradient",
        {"first_logits": first, "second_logits": second, "ref_first_logits": ref_first, "ref_second_logits": ref_second},
        {"kl": kl()},
        {"grad_first": slopes(kl, first), "grad_second": slopes(kl, second),
         "token_level_partial_grad_first": slopes(partial, first)},
    )  # fmt: skip


def test_controllers(draw, agrees):
    kls, sizes = draw.row(7, -1, 20), [draw.random.randint(1, 512) for _ in range(7)]
    paths = {"betas": [], "betas_ziegler_paper": [], "betas_ppo_paper": []}
    code = ziegler = ppo = 0.2
    for kl, n in zip(kls, sizes, strict=True):
        error = max(-0.2, min(0.2, kl / 6 - 1))
        code, ziegler = code * (1 + error * n / 10000), ziegler * (1 + 0.1 * error)
        ppo = ppo / 2 if kl < 4 else ppo * 2 if kl > 9 else ppo
        for name, beta in zip(paths, (code, ziegler, ppo), strict=True):
            paths[name].append(beta)
    agrees("adaptive_kl", {"init": 0.2, "target": 6, "horizon": 10000, "kls": kls, "n_steps": sizes, "k_beta": 0.1}, paths)
    approx = draw.row(6, 0, 0.035)
    stop = next((k for k, kl in enumerate(approx) if kl > 0.03), None)
    expected = {"stop_at": stop, "steps_applied": 6 if stop is None else stop}
    agrees("target_kl_stop", {"approx_kls": approx, "target_kl": 0.02, "factor": 1.5}, expected)
    agrees("target_kl_stop", {"approx_kls": approx, "target_kl": 0.02}, expected)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_shaped_rewards_and_reward_to_go(draw, agrees, kind):
    mask, old, ref = draw.mask(), draw.matrix(-4, 0), draw.matrix(-4, 0)
    scores, gamma = draw.row(draw.rows, -1e3, 1e3), draw.number(0.5, 1)

    def reward(b, t):
        last = not any(mask[b][t + 1 :])
        return -0.3 * ESTIMATORS[kind](old[b][t], ref[b][t]) + (scores[b] if last else 0.0)

    inputs = {"score": draw.junk(scores, [any(row) for row in mask]), "old_logprobs": draw.junk(old, mask),
              "ref_logprobs": draw.junk(ref, mask), "mask": mask, "beta": 0.3, "kind": kind}  # fmt: skip
    agrees("shaped_rewards", inputs, {"rewards": filled(mask, reward)})
    rewards = draw.matrix(-1e3, 1e3)

    def to_go(b, t):
        later = [s for s in range(t, draw.columns) if mask[b][s]]
        return math.fsum(gamma**k * rewards[b][s] for k, s in enumerate(later))

    inputs = {"rewards": draw.junk(rewards, mask), "mask": mask, "gamma": gamma}
    agrees("reward_to_go", inputs, {"returns": filled(mask, to_go)}, single=False)


def advantage(b, t, mask, rewards, values, gamma, lam, last_value, done=lambda b, t: False):
    """sum_k (gamma lam)^k delta over the live tokens from t to the end of the episode."""
    total, weight = 0.0, 1.0
    later = [s for s in range(t, len(mask[b])) if mask[b][s]]
    for s, after in itertools.zip_longest(later, later[1:]):
        if done(b, s):
            return total + weight * (rewards[b][s] - values[b][s])
        next_value = last_value[b] if after is None else values[b][after]
        total += weight * (rewards[b][s] + gamma * next_value - values[b][s])
        weight *= gamma * lam
    return total


@pytest.mark.parametrize("packed", [False, True])
def test_gae(draw, agrees, packed):
    mask, rewards, values = draw.mask(), draw.matrix(), draw.matrix()
    terminated = [draw.random.random() < 0.5 for _ in mask]
    dones = [[packed and draw.random.random() < 0.3 for _ in row] for row in mask]
    boot, gamma, lam = draw.row(draw.rows), draw.number(0.8, 1), draw.number(0, 1)
    last_value = [0.0 if end else value for end, value in zip(terminated, boot, strict=True)]

    def value(b, t):
        return advantage(b, t, mask, rewards, values, gamma, lam, last_value, lambda b, t: dones[b][t])

    inputs = {"rewards": draw.junk(rewards, mask), "values": draw.junk(values, mask), "mask": mask, "gamma": gamma,
              "lam": lam, "terminated": terminated, "dones": dones if packed else None,
              "bootstrap_values": draw.junk(boot, [not end for end in terminated])}  # fmt: skip
    returns = filled(mask, lambda b, t: value(b, t) + values[b][t])
    agrees("gae", inputs, {"advantages": filled(mask, value), "returns": returns})


def test_gae_vapo(draw, agrees):
    mask, rewards, values = draw.mask(), draw.matrix(), draw.matrix()
    lengths = [8 * n for n in row_lengths(mask)]
    lam = [1 - 1 / max(1.0, 0.05 * length) for length in lengths]
    zero = [0.0] * draw.rows

    def value(b, t):
        return advantage(b, t, mask, rewards, values, 0.9, lam[b], zero)

    def critic(b, t):
        return advantage(b, t, mask, rewards, values, 0.9, 0.7, zero) + values[b][t]

    inputs = {"rewards": draw.junk(rewards, mask), "values": draw.junk(values, mask), "mask": mask, "gamma": 0.9,
              "alpha": 0.05, "length_multiplier": 8, "lam_critic": 0.7}  # fmt: skip
    expected = {"lam_policy": lam, "advantages": filled(mask, value), "returns": filled(mask, critic)}
    agrees("gae_vapo", inputs, expected)


@pytest.mark.parametrize("shift_mean", [True, False])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_whiten(draw, agrees, shift_mean, ddof, scale):
    mask, x = draw.mask(), draw.matrix(-scale, scale)
    live = [x[b][t] for b, t in live_cells(mask)]
    center = mean(live)
    squares = math.fsum((v - center) ** 2 for v in live)
    spread = math.sqrt(squares / (len(live) - ddof) + 1e-8) if len(live) > max(1, ddof) else math.inf
    out = filled(mask, lambda b, t: (x[b][t] - center) / spread + (0.0 if shift_mean else center))
    inputs = {"x": draw.junk(x, mask), "mask": mask, "shift_mean": shift_mean, "ddof": ddof, "eps": 1e-8}
    agrees("whiten", inputs, {"out": out})


def test_running_moments(draw, agrees):
    batches = [draw.row(draw.random.randint(0, 5), -1e3, 1e3) for _ in range(4)] + [[1.0]]
    seen = [x for batch in batches for x in batch]
    squares = math.fsum((x - mean(seen)) ** 2 for x in seen)
    std = math.sqrt(squares / (len(seen) - 1)) if len(seen) > 1 else math.nan
    expected = {"count": len(seen), "mean": mean(seen), "var_population": squares / len(seen), "std_sample": std}
    agrees("running_moments", {"batches": batches}, expected)
