"""Policy, value, reward-model and preference losses: against sums written out over single numbers; gradients by
central differences, with what a paper holds constant held constant.
"""

from __future__ import annotations

import itertools
import math

import pytest

AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"]


def mean(xs):
    xs = list(xs)
    return math.fsum(xs) / len(xs)


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x):
    return math.exp(-softplus(-x))


def live_cells(mask):
    return [(b, t) for b, row in enumerate(mask) for t, alive in enumerate(row) if alive]


def filled(mask, value):
    return [[value(b, t) if alive else 0.0 for t, alive in enumerate(row)] for b, row in enumerate(mask)]


def aggregate(value, mask, aggregation, norm_len=None):
    cells, rows = live_cells(mask), sum(map(any, mask))
    weight = {
        "token_mean": lambda b: 1 / len(cells),
        "seq_mean_token_mean": lambda b: 1 / (rows * sum(mask[b])),
        "seq_mean_token_sum": lambda b: 1 / rows,
        "token_sum_norm": lambda b: 1 / (len(mask) * norm_len),
    }[aggregation]
    return math.fsum(weight(b) * value(b, t) for b, t in cells)


def clip(x, low, high):
    return min(max(x, low), high)


class Policy:
    """One draw of what every policy loss reads."""

    def __init__(self, draw, spread=0.6):
        self.mask, self.new = draw.mask(), draw.matrix(-4, 0)
        self.old = [[x + draw.number(-spread, spread) for x in row] for row in self.new]
        self.tokens, self.rows = draw.matrix(), draw.row(draw.rows)
        self.inputs = {"logprobs": draw.junk(self.new, self.mask), "old_logprobs": draw.junk(self.old, self.mask),
                       "mask": self.mask}  # fmt: skip
        self.by_token = {"advantages": draw.junk(self.tokens, self.mask)}
        self.by_row = {"advantages": draw.junk(self.rows, [any(row) for row in self.mask])}

    def log_ratio(self, b, t):
        return self.new[b][t] - self.old[b][t]

    def ratio(self, b, t):
        return math.exp(self.log_ratio(b, t))

    def sequence(self, b):
        gaps = [self.log_ratio(b, t) for t, alive in enumerate(self.mask[b]) if alive]
        return math.exp(mean(gaps)) if gaps else 1.0


def surrogate(ratio, advantage, low, high, dual=None):
    objective = min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    return -max(objective, dual * advantage) if dual and advantage < 0 else -objective


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("dual", [None, 1.5])
def test_ppo_policy_loss(draw, agrees, slopes, aggregation, dual):
    p, norm = Policy(draw), 7 if aggregation == "token_sum_norm" else None

    def loss():
        return aggregate(lambda b, t: surrogate(p.ratio(b, t), p.tokens[b][t], 0.2, 0.28, dual), p.mask, aggregation, norm)

    cells = [(p.ratio(b, t), p.tokens[b][t]) for b, t in live_cells(p.mask)]
    gaps, ratios = [math.log(r) for r, _ in cells], [r for r, _ in cells]
    low, high = [r < 0.8 and a < 0 for r, a in cells], [r > 1.28 and a > 0 for r, a in cells]
    stats = {
        "approx_kl_k1": -mean(gaps),
        "approx_kl_k2": mean(g * g / 2 for g in gaps),
        "approx_kl_k3": mean(math.expm1(g) - g for g in gaps),
        "clip_any": mean(not 0.8 <= r <= 1.28 for r in ratios),
        "clip_low": mean(low),
        "clip_high": mean(high),
        "clip_beneficial": mean(map(max, low, high)),
        "dual_clip": mean(dual is not None and a < 0 and r > dual for r, a in cells),
        "ratio_mean": mean(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ess_token": sum(ratios) ** 2 / (len(ratios) * sum(r * r for r in ratios)),
    }
    inputs = {**p.inputs, **p.by_token, "eps_low": 0.2, "eps_high": 0.28, "dual_clip": dual,
              "aggregation": aggregation, "norm_len": norm}  # fmt: skip
    expected = ({"loss": loss(), "stats": stats}, {"grad_logprobs": slopes(loss, p.new, p.mask)})
    agrees("ppo_policy_loss", inputs, *expected)
    agrees("ppo_policy_loss", {name: value for name, value in inputs.items() if value is not None}, *expected)


def test_overflowing_ratio_is_finite_and_its_gradient_is_cut(agrees):
    inputs = {"logprobs": [[150.0, -1.0]], "old_logprobs": [[-150.0, -1.0]], "advantages": [[1.0, 1.0]],
              "mask": [[1, 1]], "eps_low": 0.2, "eps_high": 0.2, "aggregation": "token_mean"}  # fmt: skip
    agrees("ppo_policy_loss", inputs, {"loss": -1.1, "grad_logprobs": [[0, -0.5]]})


@pytest.mark.parametrize("aggregation", AGGREGATIONS[:3])
def test_microbatch_invariance(draw, agrees, slopes, aggregation):
    p = Policy(draw)
    splits = [1] * (draw.rows - 2) + [min(2, draw.rows)] if draw.rows > 1 else [1]

    def value(b, t):
        return surrogate(p.ratio(b, t), p.tokens[b][t], 0.2, 0.2)

    def loss():
        return aggregate(value, p.mask, aggregation)

    starts = list(itertools.accumulate(splits, initial=0))
    parts = [[row if a <= b < z else [False] * len(row) for b, row in enumerate(p.mask)]
             for a, z in itertools.pairwise(starts)]  # fmt: skip
    means = [aggregate(value, part, aggregation) if any(map(any, part)) else math.nan for part in parts]
    inputs = {**p.inputs, **p.by_token, "eps_low": 0.2, "eps_high": 0.2, "aggregation": aggregation, "splits": splits}
    expected = {"loss": loss(), "wrong_mean_of_micro_means": mean(means)}
    agrees("microbatch_invariance", inputs, expected, {"grad_logprobs": slopes(loss, p.new, p.mask)})


@pytest.mark.parametrize("width", [None, 0.2])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_value_loss(draw, agrees, slopes, width, scale):
    mask, values, returns = draw.mask(), draw.matrix(-scale, scale), draw.matrix(-scale, scale)
    old = [[x + scale * draw.number(-0.5, 0.5) for x in row] for row in values]

    def loss():
        def value(b, t):
            plain = (values[b][t] - returns[b][t]) ** 2
            if width is None:
                return plain / 2
            bounded = old[b][t] + clip(values[b][t] - old[b][t], -width, width)
            return max(plain, (bounded - returns[b][t]) ** 2) / 2

        return aggregate(value, mask, "token_mean")

    def clipped(b, t):
        if width is None or abs(values[b][t] - old[b][t]) <= width:
            return False
        bounded = old[b][t] + clip(values[b][t] - old[b][t], -width, width)
        return (bounded - returns[b][t]) ** 2 > (values[b][t] - returns[b][t]) ** 2

    def variance(xs):
        return mean((x - mean(xs)) ** 2 for x in xs)

    cells = live_cells(mask)
    total = variance([returns[b][t] for b, t in cells])
    residual = variance([returns[b][t] - old[b][t] for b, t in cells])
    inputs = {"values": draw.junk(values, mask), "old_values": draw.junk(old, mask),
              "returns": draw.junk(returns, mask), "mask": mask, "clip": width, "aggregation": "token_mean"}  # fmt: skip
    expected = {"loss": loss(), "clipfrac": mean(clipped(b, t) for b, t in cells),
                "explained_variance": 1 - residual / total if len(cells) > 1 else math.nan}  # fmt: skip
    agrees("value_loss", inputs, expected, {"grad_values": slopes(loss, values, mask)}, single=scale == 1)


def test_entropy_bonus(draw, agrees, slopes):
    mask = draw.mask()
    logits = [[draw.row(4, -5, 5) for _ in row] for row in mask]

    def entropy():
        def value(b, t):
            weights = [math.exp(x) for x in logits[b][t]]
            return -math.fsum(w / sum(weights) * math.log(w / sum(weights)) for w in weights)

        return aggregate(value, mask, "token_mean")

    def term():
        return -0.05 * entropy()

    inputs = {"logits": draw.junk(logits, mask), "mask": mask, "coef": 0.05}
    gradient = {"grad_logits_of_loss_term": slopes(term, logits, mask)}
    agrees("entropy_bonus", inputs, {"entropy": entropy(), "loss_term": term()}, gradient)


def test_gspo_loss(draw, agrees, slopes):
    p = Policy(draw)

    def loss():
        return aggregate(lambda b, t: surrogate(p.sequence(b), p.rows[b], 0.1, 0.15), p.mask, "seq_mean_token_mean")

    def cut(b):
        s, a = p.sequence(b), p.rows[b]
        return any(p.mask[b]) and ((a > 0 and s > 1.15) or (a < 0 and s < 0.9))

    rows = range(draw.rows)
    expected = {"loss": loss(), "seq_ratio": list(map(p.sequence, rows)), "clipped_beneficial": list(map(cut, rows))}
    inputs = {**p.inputs, **p.by_row, "eps_low": 0.1, "eps_high": 0.15}
    agrees("gspo_loss", inputs, expected, {"grad_logprobs": slopes(loss, p.new, p.mask)})


def test_gspo_token_loss(draw, agrees, slopes):
    p = Policy(draw)
    frozen, start = [p.sequence(b) for b in range(draw.rows)], [list(row) for row in p.new]

    def loss():
        def value(b, t):
            return surrogate(frozen[b] * math.exp(p.new[b][t] - start[b][t]), p.tokens[b][t], 0.1, 0.15)

        return aggregate(value, p.mask, "seq_mean_token_mean")

    inputs = {**p.inputs, **p.by_token, "eps_low": 0.1, "eps_high": 0.15}
    agrees("gspo_token_loss", inputs, {"loss": loss()}, {"grad_logprobs": slopes(loss, p.new, p.mask)})


@pytest.mark.parametrize("low", [None, 0.1])
@pytest.mark.parametrize("aggregation", AGGREGATIONS[:3])
def test_cispo_loss(draw, agrees, slopes, low, aggregation):
    p = Policy(draw)
    weights = filled(p.mask, lambda b, t: clip(p.ratio(b, t), -math.inf if low is None else 1 - low, 1.28))

    def loss():
        return aggregate(lambda b, t: -weights[b][t] * p.tokens[b][t] * p.new[b][t], p.mask, aggregation)

    inputs = {**p.inputs, **p.by_token, "eps_high": 0.28, "eps_low": low, "aggregation": aggregation}
    agrees("cispo_loss", inputs, {"loss": loss(), "weights": weights}, {"grad_logprobs": slopes(loss, p.new, p.mask)})


def test_gmpo_loss(draw, agrees, slopes):
    p = Policy(draw, spread=1.0)

    def coefficient(b):
        gaps = [p.log_ratio(b, t) for t, alive in enumerate(p.mask[b]) if alive]
        bounded = [min(g, 0.4) if p.rows[b] > 0 else max(g, -0.3) for g in gaps]
        return math.exp(mean(bounded)) if gaps else 1.0

    def loss():
        return aggregate(lambda b, t: -coefficient(b) * p.rows[b], p.mask, "seq_mean_token_mean")

    inputs = {**p.inputs, **p.by_row, "log_eps_low": 0.3, "log_eps_high": 0.4}
    expected = {"loss": loss(), "seq_coef": [coefficient(b) for b in range(draw.rows)]}
    agrees("gmpo_loss", inputs, expected, {"grad_logprobs": slopes(loss, p.new, p.mask)})


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_grpo_loss(draw, agrees, slopes, corrected, aggregation):
    p, ref = Policy(draw), draw.matrix(-4, 0)
    norm = 9 if aggregation == "token_sum_norm" else None

    def kl(b, t):
        gap = ref[b][t] - p.new[b][t]
        return (math.expm1(gap) - gap) * (p.ratio(b, t) if corrected else 1.0)

    def loss():
        def value(b, t):
            return surrogate(p.ratio(b, t), p.rows[b], 0.2, 0.2) + 0.04 * kl(b, t)

        return aggregate(value, p.mask, aggregation, norm)

    inputs = {**p.inputs, **p.by_row, "ref_logprobs": draw.junk(ref, p.mask), "eps_low": 0.2, "eps_high": 0.2,
              "beta": 0.04, "aggregation": aggregation, "norm_len": norm, "kl_is_correction": corrected}  # fmt: skip
    expected = {"loss": loss(), "kl": aggregate(kl, p.mask, aggregation, norm)}
    agrees("grpo_loss", inputs, expected, {"grad_logprobs": slopes(loss, p.new, p.mask)})


@pytest.mark.parametrize("scale", [1.0, 800.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bt_loss(draw, agrees, slopes, scale, smoothing):
    n = draw.rows
    chosen, rejected = draw.row(n, -scale, scale), draw.row(n, -scale, scale)
    margins, center = draw.random.choice([draw.row(n, 0, 1), draw.number(0, 1), 0]), draw.random.choice([0.0, 0.01])

    def loss():
        def pair(k):
            z = chosen[k] - rejected[k] - (margins[k] if isinstance(margins, list) else margins)
            both = (1 - smoothing) * softplus(-z) + smoothing * softplus(z)
            return both + center * (chosen[k] + rejected[k]) ** 2

        return mean(map(pair, range(n)))

    inputs = {"chosen": chosen, "rejected": rejected, "margin": margins, "center_coef": center, "label_smoothing": smoothing}
    gradients = {"grad_chosen": slopes(loss, chosen), "grad_rejected": slopes(loss, rejected)}
    agrees("bt_loss", inputs, {"loss": loss()}, gradients)


def test_reward_model_extras(draw, agrees, slopes):
    first, second, eta, nu = draw.number(-8, 8), draw.number(-8, 8), draw.number(0, 2), draw.number(0.1, 2)
    wins, loses = sigmoid(first - second - eta), sigmoid(second - first - eta)
    weights = [math.exp(first), math.exp(second), nu * math.exp((first + second) / 2)]
    expected = {"rao_kupper": [wins, loses, 1 - wins - loses], "davidson": [w / sum(weights) for w in weights]}
    agrees("tie_models", {"s_i": first, "s_j": second, "rao_kupper_eta": eta, "davidson_nu": nu}, expected)
    scores = draw.row(draw.random.randint(1, 6), -5, 5)
    ranking = draw.random.sample(range(len(scores)), len(scores))

    def nll():
        tails = [ranking[k:] for k in range(len(ranking))]
        return math.fsum(math.log(math.fsum(math.exp(scores[a]) for a in tail)) - scores[tail[0]] for tail in tails)

    agrees("plackett_luce", {"scores": scores, "ranking": ranking}, {"nll": nll()}, {"grad": slopes(nll, scores)})
    ranked = [draw.row(draw.random.randint(2, 5), -3, 3) for _ in range(3)]
    losses = [[softplus(lose - win) for win, lose in itertools.combinations(row, 2)] for row in ranked]
    agrees("instructgpt_rm_loss", {"ranked_rewards": ranked},
           {"loss": mean(map(mean, losses)), "flattened_pair_mean": mean(itertools.chain(*losses))})  # fmt: skip


def test_linear_bt_fit_is_where_the_gradient_vanishes(draw, agrees):
    features, l2 = [draw.row(2) for _ in range(8)], draw.number(0.05, 1)
    w = [0.0, 0.0]
    for _ in range(20000):  # plain gradient descent
        pull = [sigmoid(-(w[0] * d[0] + w[1] * d[1])) for d in features]
        slope = [l2 * w[k] - mean(p * d[k] for p, d in zip(pull, features, strict=True)) for k in range(2)]
        w = [w[k] - 0.3 * slope[k] for k in range(2)]
        if max(map(abs, slope)) < 1e-14:
            break
    agrees("linear_bt_fit", {"feature_diff": features, "l2": l2}, {"weights": w})


def test_pair_metrics(draw, agrees):
    n = draw.random.randint(1, 30)
    chosen, rejected = draw.row(n, -4, 4), draw.row(n, -4, 4)
    rejected[0] = chosen[0]
    probs = [sigmoid(c - r) for c, r in zip(chosen, rejected, strict=True)]
    right = [0.5 if c == r else float(c > r) for c, r in zip(chosen, rejected, strict=True)]
    sure = [max(p, 1 - p) for p in probs]
    bins = [min(9, int((s - 0.5) * 20)) for s in sure]
    ece = sum(abs(sum(r - s for r, s, k in zip(right, sure, bins, strict=True) if k == b)) for b in range(10)) / n
    expected = {"accuracy": mean(right), "nll": mean(-math.log(p) for p in probs), "ece": ece,
                "brier": mean((1 - p) ** 2 for p in probs),
                "mean_margin": mean(c - r for c, r in zip(chosen, rejected, strict=True))}  # fmt: skip
    agrees("pair_metrics", {"chosen": chosen, "rejected": rejected, "bins": 10}, expected)


KINDS = {
    "dpo": lambda h, c, r, b, e, g: softplus(-b * h),
    "cdpo": lambda h, c, r, b, e, g: (1 - e) * softplus(-b * h) + e * softplus(b * h),
    "robust": lambda h, c, r, b, e, g: ((1 - e) * softplus(-b * h) - e * softplus(b * h)) / (1 - 2 * e),
    "hinge": lambda h, c, r, b, e, g: max(0.0, 1 - b * h),
    "ipo": lambda h, c, r, b, e, g: (h - 1 / (2 * b)) ** 2,
    "simpo": lambda h, c, r, b, e, g: softplus(-(b * (c - r) - g)),
    "orpo": lambda h, c, r, b, e, g: -c + b * softplus(math.log(math.expm1(-c)) - math.log(math.expm1(-r))),
}


@pytest.mark.parametrize("kind", [*KINDS, "ipo_avg"])
def test_preference_loss(draw, agrees, slopes, kind):
    n, beta = draw.rows, draw.number(0.05, 1.5)
    smoothing, gamma = (0.1 if kind in ("cdpo", "robust") else 0.0), (0.5 if kind == "simpo" else 0.0)
    chosen, rejected, ref_c, ref_r = (draw.row(n, -60, -1) for _ in range(4))
    len_c, len_r = ([float(draw.random.randint(1, 30)) for _ in range(n)] for _ in range(2))

    def loss(k):
        ratio_c, ratio_r = chosen[k] - ref_c[k], rejected[k] - ref_r[k]
        if kind == "ipo_avg":
            return KINDS["ipo"](ratio_c / len_c[k] - ratio_r / len_r[k], 0, 0, beta, 0, 0)
        return KINDS[kind](ratio_c - ratio_r, chosen[k] / len_c[k], rejected[k] / len_r[k], beta, smoothing, gamma)

    def total():
        return math.fsum(map(loss, range(n)))

    won = [beta * (c - r) for c, r in zip(chosen, ref_c, strict=True)]
    lost = [beta * (c - r) for c, r in zip(rejected, ref_r, strict=True)]
    inputs = {"kind": kind, "policy_chosen": chosen, "policy_rejected": rejected, "ref_chosen": ref_c, "ref_rejected": ref_r,
              "len_chosen": len_c, "len_rejected": len_r, "beta": beta, "label_smoothing": smoothing, "gamma": gamma}  # fmt: skip
    expected = {"losses": list(map(loss, range(n))), "chosen_rewards": won, "rejected_rewards": lost,
                "accuracy": mean(0.5 if w == x else float(w > x) for w, x in zip(won, lost, strict=True))}  # fmt: skip
    gradients = {"grad_sum_policy_chosen": slopes(total, chosen), "grad_sum_policy_rejected": slopes(total, rejected)}
    agrees("preference_loss", inputs, expected, gradients, single=not kind.startswith("ipo"))


def test_kto_loss(draw, agrees, slopes):
    ratios, other = draw.row(draw.rows, -20, 20), draw.row(draw.rows + 1, -20, 20)
    good = [draw.random.random() < 0.5 for _ in ratios]
    z0 = max(0.0, mean(other))

    def loss(k):
        margin = 0.2 * (ratios[k] - z0)
        return 1.2 * (1 - sigmoid(margin)) if good[k] else 0.7 * (1 - sigmoid(-margin))

    def total():
        return math.fsum(map(loss, range(len(ratios))))

    inputs = {"logratios": ratios, "desirable": good, "mismatched_logratios": other, "beta": 0.2,
              "desirable_weight": 1.2, "undesirable_weight": 0.7}  # fmt: skip
    expected = {"z0": z0, "losses": list(map(loss, range(len(ratios))))}
    agrees("kto_loss", inputs, expected, {"grad_sum_logratios": slopes(total, ratios)})
