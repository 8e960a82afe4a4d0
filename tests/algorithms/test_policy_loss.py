"""The policy-gradient function as wired: every surrogate and correction by hand, its reductions, its sums."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch

from tether.algorithms.policy_gradient import policy_loss, step_counts
from tether.config import ActorCriticConfig, CriticFreeConfig, rl_kind
from tether.config.presets import ACTOR_CRITIC, CRITIC_FREE

KINDS = [*ACTOR_CRITIC, *CRITIC_FREE]
SURROGATES = ["ppo_clip", "gspo", "gspo_token", "cispo", "gmpo"]
DATA = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": 10}}
NO_TETHER = {"where": "loss", "estimator": "k2", "beta": 0.0}
log = math.log


def config_of(**settings):
    return CriticFreeConfig.model_validate({**DATA, "kl": NO_TETHER, "aggregation": "token_mean", **settings})


def padded(rows, filler=math.nan):
    """Rows of one or two numbers as float64 [B, 3]: column 0 is the prompt, pads hold NaN."""
    return torch.tensor([[filler, *row, *[filler] * (2 - len(row))] for row in rows], dtype=torch.float64)


MASK = torch.tensor([[0, 1, 1], [0, 1, 0]], dtype=torch.bool)
OLD = padded([[-1, -1], [-1]])
ADVANTAGES = padded([[1, 1], [-1]], filler=0.0)


def run(config, log_ratios, advantages=ADVANTAGES, ref=OLD, beta=0.0, **more):
    """The sums, and d(policy sum)/d(log pi) at live tokens."""
    new = (OLD + padded(log_ratios)).requires_grad_()
    loss = policy_loss(new, OLD, ref, advantages, MASK, config, beta, **more)
    (gradient,) = torch.autograd.grad(loss.policy, new)
    assert torch.all(gradient[~MASK] == 0)
    return replace(loss, policy=loss.policy.detach()), gradient[MASK].tolist()


# Answer 0 (advantage 1): ratios 1.5 and 1. Answer 1 (advantage -1): ratio .5.
MOVED = [[log(1.5), 0.0], [log(0.5)]]
ROOT = 1.5**0.5  # ratio of answer 0, the geometric mean


@pytest.mark.parametrize(
    ("settings", "total", "gradient"),
    [
        ({}, -1.2 - 1 + 0.8, [0, -1, 0]),
        ({"eps_high": 0.6}, -1.5 - 1 + 0.8, [-1.5, -1, 0]),
        ({"eps_low": "off"}, -1.2 - 1 + 0.5, [0, -1, 0.5]),
        ({"eps_low": "off", "eps_high": "off"}, -1.5 - 1 + 0.5, [-1.5, -1, 0.5]),
        # normalisers: 1/L of the row, 1, 1/budget
        ({"aggregation": "seq_mean_token_mean"}, -2.2 / 2 + 0.8, [0, -0.5, 0]),
        ({"aggregation": "seq_mean_token_sum"}, -2.2 + 0.8, [0, -1, 0]),
        ({"aggregation": "token_sum_norm"}, (-2.2 + 0.8) / 10, [0, -0.1, 0]),
        # weights 1.28, 1, .5, detached, times log pi
        (
            {"surrogate": "cispo", "eps_low": "off", "eps_high": 0.28},
            -1.28 * (log(1.5) - 1) + 1 + 0.5 * (log(0.5) - 1),
            [-1.28, -1, 0.5],
        ),
        ({"surrogate": "cispo", "eps_low": 0.2, "eps_high": 0.28}, -1.28 * (log(1.5) - 1) + 1 + 0.8 * (log(0.5) - 1), [-1.28, -1, 0.8]),
        # one ratio per answer: 1.224745 and .5
        ({"surrogate": "gspo", "eps_low": "off", "eps_high": "off"}, -2 * ROOT + 0.5, [-ROOT, -ROOT, 0.5]),
        ({"surrogate": "gspo", "aggregation": "seq_mean_token_mean"}, -1.2 + 0.8, [0, 0, 0]),
        ({"surrogate": "gspo", "aggregation": "seq_mean_token_mean", "eps_high": 0.3}, -ROOT + 0.8, [-ROOT / 2, -ROOT / 2, 0]),
        ({"surrogate": "gspo_token", "aggregation": "seq_mean_token_mean", "eps_high": 0.3}, -ROOT + 0.8, [-ROOT / 2, -ROOT / 2, 0]),
        # log-ratios .405 and 0 -> .4 and 0: exp(.2); -.693 -> -.4
        (
            {"surrogate": "gmpo", "eps_low": 0.4, "eps_high": 0.4, "aggregation": "seq_mean_token_mean"},
            -math.exp(0.2) + math.exp(-0.4),
            [0, -math.exp(0.2) / 2, 0],
        ),
        (
            {"surrogate": "gmpo", "eps_low": "off", "eps_high": "off", "aggregation": "seq_mean_token_mean"},
            -ROOT + 0.5,
            [-ROOT / 2, -ROOT / 2, 0.5],
        ),
    ],
    ids=lambda value: "-".join(f"{v}" for v in value.values()) if isinstance(value, dict) else "",
)
def test_surrogates_by_hand(settings, total, gradient):
    loss, found = run(config_of(**settings), MOVED)
    assert float(loss.policy) == pytest.approx(total)
    assert found == pytest.approx(gradient)


def test_dual_clip_bounds_what_a_negative_advantage_can_cost():
    rising = [[0.0, 0.0], [log(4)]]
    loss, gradient = run(config_of(dual_clip=3.0), rising)
    assert (float(loss.policy), gradient) == (pytest.approx(-2 + 3), pytest.approx([-1, -1, 0]))
    assert loss.stats.dual_clip == 1
    loss, gradient = run(config_of(), rising)
    assert (float(loss.policy), gradient) == (pytest.approx(-2 + 4), pytest.approx([-1, -1, 4]))


def test_advantages_may_differ_within_an_answer_where_the_surrogate_is_per_token():
    advantages = padded([[1, -2], [3]], filler=0.0)
    for surrogate in ("ppo_clip", "gspo_token", "cispo"):
        _, gradient = run(config_of(surrogate=surrogate), [[0.0, 0.0], [0.0]], advantages)
        assert gradient == pytest.approx([-1, 2, -3])


# -- reductions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("token_mean", [1, 1, 1]),
        ("seq_mean_token_mean", [0.5, 0.5, 1]),
        ("seq_mean_token_sum", [1, 1, 1]),
        ("token_sum_norm", [0.1, 0.1, 0.1]),
    ],
)
def test_at_ratio_one_every_surrogate_is_the_plain_policy_gradient(surrogate, aggregation, weights):
    advantages = padded([[0.7, 0.7], [-1.3]], filler=0.0)
    _, gradient = run(config_of(surrogate=surrogate, aggregation=aggregation), [[0.0, 0.0], [0.0]], advantages)
    plain = [-w * a for w, a in zip(weights, (0.7, 0.7, -1.3), strict=True)]
    assert gradient == pytest.approx(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_at_ratio_one_every_preset_is_the_plain_policy_gradient_of_its_advantages(kind):
    config = resolved(kind, kl={"beta": 0.0})
    batch = random_batch()
    new = batch["old"].clone().requires_grad_()
    advantages = batch["per_row"] if kind in CRITIC_FREE else batch["advantages"]
    policy = policy_loss(new, batch["old"], batch["ref"], advantages, batch["mask"], config, 0.0).policy
    (gradient,) = torch.autograd.grad(policy / step_counts(batch["mask"], config).policy, new)
    live, lengths = batch["mask"].double(), batch["mask"].sum(-1, keepdim=True)
    weight = {
        "token_mean": live / live.sum(),
        "seq_mean_token_mean": live / lengths / len(live),
        "seq_mean_token_sum": live / len(live),
        "token_sum_norm": live / len(live) / 10,
    }[config.aggregation]
    assert torch.allclose(gradient, -weight * advantages, atol=1e-12)


def test_gspo_and_its_token_form_agree_where_the_advantage_is_one_per_answer():
    both = [run(config_of(surrogate=s, eps_low=0.1, eps_high=0.3, aggregation="seq_mean_token_mean"), MOVED) for s in SURROGATES[1:3]]
    assert float(both[0][0].policy) == pytest.approx(float(both[1][0].policy))
    assert both[0][1] == pytest.approx(both[1][1])


# -- the tether in the loss ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "values", "gradient"),
    [
        # log ref - log pi: .5 at ratio 1.5, 0, -.5 at ratio .5
        ("k2", [0.125, 0, 0.125], [-0.5, 0, 0.5]),
        ("k3", [math.expm1(0.5) - 0.5, 0, math.expm1(-0.5) + 0.5], [1 - math.exp(0.5), 0, 1 - math.exp(-0.5)]),
        (
            "k3_corrected",
            [1.5 * (math.expm1(0.5) - 0.5), 0, 0.5 * (math.expm1(-0.5) + 0.5)],
            [1.5 * (math.expm1(0.5) - 0.5 + 1 - math.exp(0.5)), 0, 0.5 * (math.expm1(-0.5) + 0.5 + 1 - math.exp(-0.5))],
        ),
    ],
)
def test_the_kl_in_the_loss_by_hand(estimator, values, gradient):
    ref = OLD + padded(MOVED) + padded([[0.5, 0.0], [-0.5]])
    config = config_of(kl={"where": "loss", "estimator": estimator, "beta": 0.1})
    loss, found = run(config, MOVED, torch.zeros_like(OLD), ref, beta=0.1)
    assert float(loss.policy) == pytest.approx(0.1 * sum(values))
    assert loss.kl == pytest.approx(sum(values))
    assert found == pytest.approx([0.1 * x for x in gradient])


def test_the_kl_in_the_reward_leaves_no_trace_in_the_loss():
    config = config_of(kl={"where": "reward", "estimator": "k1", "beta": 0.1})
    loss, gradient = run(config, MOVED, torch.zeros_like(OLD), OLD - 0.3, beta=0.1)
    assert (float(loss.policy), loss.kl, gradient) == (0, 0, [0, 0, 0])


# -- a sampler that is not the trainer ---------------------------------------------------------------------------------------

SAMPLER = OLD - padded([[log(3), log(0.5)], [log(1.2)]])  # weights 3, .5 and 1.2


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token_truncate", [1.4, 0.6, 1.2]),
        ("token_mask", [0, 0, 1.2]),
        ("seq_truncate", [1.4, 1.4, 1.2]),  # 3 * .5 = 1.5
        ("seq_mask", [0, 0, 1.2]),
        ("seq_geo_filter_token_weight", [3, 0.5, 1.2]),  # judged by 1.5 ** .5 = 1.22
    ],
)
def test_sampler_weights_by_hand(mode, weights):
    tether = {"where": "loss", "estimator": "k2", "beta": 0.1}
    config = config_of(sampler_correction={"mode": mode, "low": 0.6, "high": 1.4}, kl=tether)
    ref = OLD - padded([[0.2, 0.2], [0.2]])
    loss, gradient = run(config, [[0.0, 0.0], [0.0]], ref=ref, beta=0.1, sampler_logprobs_BT=SAMPLER)
    signed = [-weights[0], -weights[1], weights[2]]
    assert float(loss.policy) == pytest.approx(sum(signed) + 3 * 0.1 * 0.02)  # the KL term is not weighed
    assert gradient == pytest.approx([x + 0.1 * 0.2 for x in signed])
    assert loss.correction.weights == pytest.approx(sum(weights))
    assert loss.correction.squares == pytest.approx(sum(w * w for w in weights))
    assert loss.correction.zeros == weights.count(0)


def test_an_open_bound_does_not_bind():
    config = config_of(sampler_correction={"mode": "token_mask", "low": "off", "high": "off"})
    assert run(config, [[0.0, 0.0], [0.0]], sampler_logprobs_BT=SAMPLER)[1] == pytest.approx([-3, -0.5, 1.2])


@pytest.mark.parametrize(("delta", "kept"), [(0.3, 0), (0.5, 1)])
def test_bad_answers_that_the_policy_has_left_behind_are_dropped(delta, kept):
    """sampler - current is .4 nats a token in both rows; only the row with a negative advantage may go."""
    config = config_of(sampler_correction={"sequence_mask_delta": delta})
    sampler = OLD + padded([[0.4, 0.4], [0.4]])
    loss, gradient = run(config, [[0.0, 0.0], [0.0]], sampler_logprobs_BT=sampler)
    assert gradient == pytest.approx([-1, -1, kept])
    assert loss.correction.zeros == 1 - kept


def test_the_sign_of_an_answer_is_that_of_its_mean_advantage():
    """Advantages per token (ppo, reinforce_pp): (-3, 1) is a bad answer, (1) a good one, whatever its last token earned."""
    config = config_of(sampler_correction={"sequence_mask_delta": 0.3})
    advantages = padded([[-3, 1], [1]], filler=0.0)
    sampler = OLD + padded([[0.4, 0.4], [0.4]])
    assert run(config, [[0.0, 0.0], [0.0]], advantages, sampler_logprobs_BT=sampler)[1] == pytest.approx([0, 0, -1])


def test_a_correction_without_sampler_numbers_is_an_error():
    with pytest.raises(ValueError, match="needs sampler_logprobs_BT"):
        run(config_of(sampler_correction={"mode": "token_mask"}), MOVED)


# -- entropy and values -------------------------------------------------------------------------------------------------------


def test_entropy_and_values_join_the_total_over_tokens():
    config = ActorCriticConfig.model_validate({**DATA, "entropy_coef": 0.1, "value_coef": 0.5, "aggregation": "seq_mean_token_mean"})
    entropy, values = padded([[2.0, 1.0], [3.0]]), padded([[1.0, 0.0], [0.5]])
    old_values, returns = padded([[0.0, 0.0], [0.5]]), padded([[2.0, 1.0], [0.0]])
    loss, _ = run(config, MOVED, entropy_BT=entropy, values_BT=values, old_values_BT=old_values, returns_BT=returns)
    # 1/2 max((1 - 2)^2, (.2 - 2)^2), 1/2 (0 - 1)^2, 1/2 (.5 - 0)^2
    assert float(loss.value) == pytest.approx(1.62 + 0.5 + 0.125)
    assert (float(loss.entropy), loss.value_clipped) == (6.0, 1.0)
    counts = step_counts(MASK, config)
    assert (counts.policy, counts.tokens) == (2, 3)
    policy = (-2.2 / 2 + 0.8) / 2
    assert float(loss.total(config, counts)) == pytest.approx(policy - 0.1 * 2 + 0.5 * 2.245 / 3)
    assert float(loss.value_term(counts, config)) == pytest.approx(0.5 * 2.245 / 3)


def test_critic_free_totals_have_no_value_term():
    config = config_of(entropy_coef=0.1)
    loss, _ = run(config, MOVED, entropy_BT=padded([[2.0, 1.0], [3.0]]))
    assert float(loss.total(config, step_counts(MASK, config))) == pytest.approx(-1.4 / 3 - 0.1 * 2)


# -- clip shares --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "any_low_high"),
    [
        ({}, (2, 1, 1)),
        ({"eps_low": "off"}, (1, 0, 1)),
        ({"surrogate": "gspo", "eps_high": 0.3}, (1, 1, 0)),  # answer 0 has ratio 1.22, inside
        ({"surrogate": "gspo"}, (3, 1, 2)),  # both of its tokens count
        ({"surrogate": "gspo_token"}, (3, 1, 2)),
        ({"surrogate": "cispo", "eps_low": "off", "eps_high": 0.28}, (1, 0, 1)),
        ({"surrogate": "gmpo", "eps_low": 0.4, "eps_high": 0.4}, (2, 1, 1)),  # |log 1.5| = .405
        ({"surrogate": "gmpo", "eps_low": 0.7, "eps_high": 0.41}, (0, 0, 0)),
    ],
    ids=str,
)
def test_clip_shares_are_those_of_the_ratio_that_is_clipped(settings, any_low_high):
    stats = run(config_of(**settings), MOVED)[0].stats
    assert (stats.clip_any, stats.clip_low, stats.clip_high, stats.count) == (*any_low_high, 3)
    assert stats.approx_kl_k1 == pytest.approx(-log(0.75))  # always of tokens


def test_ratios_of_gspo_are_those_of_answers():
    stats = run(config_of(surrogate="gspo"), MOVED)[0].stats
    assert (stats.ratio_min, stats.ratio_max) == (pytest.approx(0.5), pytest.approx(ROOT))
    assert stats.ratio_sum == pytest.approx(2 * ROOT + 0.5)


# -- sums ---------------------------------------------------------------------------------------------------------------------


def resolved(kind, **settings):
    return rl_kind(kind).model_validate({**DATA, "kind": kind, **settings})


def random_batch(rows=6, width=7):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    mask = torch.arange(width) < torch.tensor([7, 3, 5, 2, 6, 2])[:, None]
    mask[:, 0] = False
    mask[0, 3] = False  # a gap
    old = -1 - draw(rows, width).abs()
    batch = {"mask": mask, "old": old, "ref": old + 0.3 * draw(rows, width), "new": old + 0.3 * draw(rows, width)}
    batch |= {name: draw(rows, width) for name in ("advantages", "values", "old_values", "returns")}
    batch["per_row"] = torch.where(mask, draw(rows, 1), 0.0)
    batch["advantages"] = torch.where(mask, batch["advantages"], 0.0)
    return batch | {"entropy": draw(rows, width).abs(), "sampler": old + 0.1 * draw(rows, width)}


def sums(batch, config, index):
    part = {name: value[index] for name, value in batch.items()}
    return policy_loss(
        part["new"], part["old"], part["ref"], part["per_row"], part["mask"], config, 0.3,
        sampler_logprobs_BT=part["sampler"], entropy_BT=part["entropy"], values_BT=part["values"],
        old_values_BT=part["old_values"], returns_BT=part["returns"],
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_sums_do_not_depend_on_the_split_into_microbatches(kind):
    correction = {"mode": "token_truncate", "sequence_mask_delta": 0.01}
    config = resolved(kind, kl={"beta": 0.3}, entropy_coef=0.01, sampler_correction=correction)
    batch = random_batch()
    whole = sums(batch, config, slice(None))
    counts = step_counts(batch["mask"], config)
    for split in ([[0], [1, 2, 3], [4, 5]], [[5, 1], [0, 3], [2, 4]]):
        parts = [sums(batch, config, index) for index in split]
        total = sum(float(part.total(config, counts)) for part in parts)
        assert total == pytest.approx(float(whole.total(config, counts)), abs=1e-12)
        assert sum(part.kl for part in parts) == pytest.approx(whole.kl)
        stats = parts[0].stats + parts[1].stats + parts[2].stats
        assert asdict(stats) == pytest.approx(asdict(whole.stats))
        for name in ("weights", "squares", "zeros"):
            assert sum(getattr(part.correction, name) for part in parts) == pytest.approx(getattr(whole.correction, name))


@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_the_step_are_those_of_the_whole_batch(kind):
    config, mask = resolved(kind), random_batch()["mask"]
    tokens = float(mask.sum())
    assert step_counts(mask, config).tokens == tokens == 18
    assert step_counts(mask, config).policy == (tokens if config.aggregation == "token_mean" else 6)
