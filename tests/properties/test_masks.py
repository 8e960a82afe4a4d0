"""For EVERY public masked function: what stands in a pad leaves no trace, a live NaN is reported by row and column.

Axes: B sequences, T tokens, V vocabulary. A new function with a mask must enter a table below.
"""

import dataclasses
import inspect
from collections.abc import Callable

import pytest
import torch

from tether import maths
from tether.maths import Aggregation, ImportanceMode, KLEstimator

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]]).bool()
ROWS = MASK.any(-1)
ENDED = torch.tensor([True, False, True, False])
IDS = torch.zeros(4, dtype=torch.long)
TOKENS = torch.tensor([[0, 1, -100, 2], [2, 0, 1, 99], [-1, -1, -1, -1], [7, 0, 0, 1]])


@dataclasses.dataclass(frozen=True)
class Masked:
    """A function of named inputs, [B, T] unless told; `reported` is the name in the message where it differs."""

    call: Callable
    tokens: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    reported: str | None = None
    bad: tuple[float, ...] = (NAN, INF, -INF)


LOGPROBS = ("logprobs", "old_logprobs")


def _completion(logits, mask):
    """`shift_logprobs` of a one-token prompt; the last position scores nothing and holds NaN."""
    logits = torch.cat([logits, torch.full_like(logits[:, :1], NAN)], 1)
    ids = torch.cat([torch.zeros(4, 1).long(), TOKENS], 1)
    return maths.shift_logprobs(logits, ids, mask, 1)


def _aggregations(function):
    return {
        f"{function.__name__} {aggregation}": Masked(
            lambda mask, x, a=aggregation: function(x, mask, a, 4 if a == Aggregation.TOKEN_SUM_NORM else None), ("x",)
        )
        for aggregation in Aggregation
    }


def _estimators(name, call, tokens, rows=()):
    return {f"{name} {e}": Masked(lambda mask, e=e, **inputs: call(mask, e, **inputs), tokens, rows) for e in KLEstimator}


FUNCTIONS = {
    "masked_sum": Masked(lambda mask, x: maths.masked_sum(x, mask), ("x",)),
    "masked_mean": Masked(lambda mask, x: maths.masked_mean(x, mask), ("x",)),
    "masked_var": Masked(lambda mask, x: maths.masked_var(x, mask, 1), ("x",)),
    "whiten": Masked(lambda mask, x: maths.whiten(x, mask), ("x",)),
    "scale_only_whiten": Masked(lambda mask, x: maths.scale_only_whiten(x, mask), ("x",)),
    "moments": Masked(lambda mask, x: maths.moments(x, mask), ("x",)),
    "whiten_with": Masked(lambda mask, x: maths.whiten_with(x, mask, maths.Moments(5.0, 0.5, 3.0)), ("x",)),
    **_aggregations(maths.aggregate),
    **_aggregations(maths.aggregate_sum),
    "token_logprobs": Masked(
        lambda mask, logits: maths.token_logprobs(logits, TOKENS, mask, 0.7), (), (), ("logits",),
        "log-probabilities of logits", (NAN, INF),
    ),
    "token_entropy": Masked(
        lambda mask, logits: maths.token_entropy(logits, mask, 0.7), (), (), ("logits",), "entropy of logits", (NAN, INF)
    ),
    "shift_logprobs": Masked(
        lambda mask, logits: _completion(logits, mask), (), (), ("logits",), "log-probabilities of logits", (NAN, INF)
    ),
    **_estimators(
        "kl_tokens", lambda mask, e, logprobs, ref_logprobs: maths.kl_tokens(logprobs, ref_logprobs, mask, e),
        ("logprobs", "ref_logprobs"),
    ),
    "kl_units": Masked(
        lambda mask, logprobs, ref_logprobs: maths.kl_units(logprobs, ref_logprobs, mask), ("logprobs", "ref_logprobs")
    ),
    **{
        f"is_weights {mode}": Masked(
            lambda mask, old_logprobs, sampler_logprobs, m=mode: maths.is_weights(
                old_logprobs, sampler_logprobs, mask, m, 0.1, 9.0
            ),
            ("old_logprobs", "sampler_logprobs"),
        )
        for mode in ImportanceMode
    },
    "prefix_weights": Masked(
        lambda mask, old_logprobs, sampler_logprobs: maths.prefix_weights(old_logprobs, sampler_logprobs, mask),
        ("old_logprobs", "sampler_logprobs"),
    ),
    **_estimators(
        "off_policy_kl",
        lambda mask, e, old_logprobs, ref_logprobs, sampler_logprobs: maths.off_policy_kl(
            old_logprobs, ref_logprobs, sampler_logprobs, mask, e
        ),
        ("old_logprobs", "ref_logprobs", "sampler_logprobs"),
    ),
    "effective_sample_size": Masked(lambda mask, weights: maths.effective_sample_size(weights, mask), ("weights",)),
    "mismatch_kl": Masked(
        lambda mask, old_logprobs, sampler_logprobs: maths.mismatch_kl(old_logprobs, sampler_logprobs, mask),
        ("old_logprobs", "sampler_logprobs"),
    ),
    "off_policy_sequence_mask": Masked(
        lambda mask, logprobs, sampler_logprobs, advantages: maths.off_policy_sequence_mask(
            logprobs, sampler_logprobs, advantages, mask, 0.1
        ),
        ("logprobs", "sampler_logprobs"), ("advantages",),
    ),
    **_estimators(
        "shaped_rewards",
        lambda mask, e, old_logprobs, ref_logprobs, scores: maths.shaped_rewards(
            scores, old_logprobs, ref_logprobs, mask, 0.3, e
        ),
        ("old_logprobs", "ref_logprobs"), ("scores",),
    ),
    "reward_to_go": Masked(lambda mask, rewards: maths.reward_to_go(rewards, mask, 0.9), ("rewards",)),
    "gae": Masked(
        lambda mask, rewards, values: maths.gae(rewards, values, mask, 0.9, 0.8, torch.ones(4).bool()),
        ("rewards", "values"),
    ),
    "gae truncated": Masked(
        lambda mask, rewards, values, bootstrap_values: maths.gae(
            rewards, values, mask, 0.9, 0.8, torch.zeros(4).bool(), bootstrap_values
        ),
        ("rewards", "values"), ("bootstrap_values",),
    ),
    "gae packed": Masked(
        lambda mask, rewards, values: maths.gae(
            rewards, values, mask, 0.9, 0.8, torch.zeros(4).bool(), None,
            torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 0, 1]]).bool(),
        ),
        ("rewards", "values"),
    ),
    "decoupled_gae": Masked(
        lambda mask, rewards, values: maths.decoupled_gae(
            rewards, values, mask, 0.9, torch.full((4,), 0.8), 1.0, torch.ones(4).bool()
        ),
        ("rewards", "values"),
    ),
    "reinforce_pp_advantages": Masked(
        lambda mask, old_logprobs, ref_logprobs, scores: maths.reinforce_pp_advantages(
            scores, old_logprobs, ref_logprobs, mask, 0.1
        ),
        ("old_logprobs", "ref_logprobs"), ("scores",),
    ),
    "ppo_surrogate": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.ppo_surrogate(logprobs, old_logprobs, advantages, mask),
        (*LOGPROBS, "advantages"),
    ),
    "ppo_surrogate dual": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.ppo_surrogate(
            logprobs, old_logprobs, advantages, mask, INF, INF, 1.01
        ),
        (*LOGPROBS, "advantages"),
    ),
    "policy_stats": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.policy_stats(
            logprobs, old_logprobs, advantages, mask, dual_clip=2.0
        ),
        (*LOGPROBS, "advantages"),
    ),
    "cispo": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.cispo(logprobs, old_logprobs, advantages, mask, 0.1, 0.1),
        (*LOGPROBS, "advantages"),
    ),
    **_estimators(
        "grpo_loss",
        lambda mask, e, logprobs, old_logprobs, ref_logprobs, advantages: maths.grpo_loss(
            logprobs, old_logprobs, ref_logprobs, advantages, mask, estimator=e
        ),
        (*LOGPROBS, "ref_logprobs", "advantages"),
    ),
    **_estimators(
        "grpo_loss_ratio_corrected",
        lambda mask, e, logprobs, old_logprobs, ref_logprobs, advantages: maths.grpo_loss_ratio_corrected(
            logprobs, old_logprobs, ref_logprobs, advantages, mask, estimator=e
        ),
        (*LOGPROBS, "ref_logprobs", "advantages"),
    ),
    "ratio_corrected_kl": Masked(
        lambda mask, logprobs, old_logprobs, ref_logprobs: maths.ratio_corrected_kl(
            logprobs, old_logprobs, ref_logprobs, mask
        ),
        (*LOGPROBS, "ref_logprobs"),
    ),
    "entropy_bonus": Masked(lambda mask, entropy: maths.entropy_bonus(entropy, mask, 0.1), ("entropy",)),
    "gspo": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.gspo(logprobs, old_logprobs, advantages, mask, 0.1, 0.1),
        LOGPROBS, ("advantages",),
    ),
    "gspo_token": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.gspo_token(
            logprobs, old_logprobs, advantages, mask, 0.1, 0.1
        ),
        (*LOGPROBS, "advantages"),
    ),
    "gmpo": Masked(
        lambda mask, logprobs, old_logprobs, advantages: maths.gmpo(logprobs, old_logprobs, advantages, mask),
        LOGPROBS, ("advantages",),
    ),
    "value_loss": Masked(
        lambda mask, values, old_values, returns: maths.value_loss(values, old_values, returns, mask),
        ("values", "old_values", "returns"),
    ),
    "value_loss clipped": Masked(
        lambda mask, values, old_values, returns: maths.value_loss(values, old_values, returns, mask, 0.2),
        ("values", "old_values", "returns"),
    ),
    "explained_variance": Masked(
        lambda mask, old_values, returns: maths.explained_variance(old_values, returns, mask), ("old_values", "returns")
    ),
}  # fmt: skip

# A mean over nothing is an error; but `token_sum_norm` divides by rows, live or not.
MEANS = {"masked_mean", "masked_var", "aggregate", "kl_units", "mismatch_kl", "off_policy_kl"}

# Nothing to report: these select or read the mask; or a NaN is data to them (an unscorable row).
SELECTING = {
    "select": Masked(lambda mask, x: maths.select(x, mask), ("x",)),
    "has_spread": Masked(lambda mask, x: maths.has_spread(x, mask), ("x",)),
    "broadcast_to_tokens": Masked(lambda mask, rewards: maths.broadcast_to_tokens(rewards, mask), (), ("rewards",)),
    "reinforce_pp_baseline_advantages": Masked(
        # the reward of an empty row is no pad: the group knows it, as in every group estimator
        lambda mask: maths.reinforce_pp_baseline_advantages(torch.tensor([1.0, 0.0, 0.5, NAN]), IDS, mask)
    ),
    "process_advantages": Masked(lambda mask: maths.process_advantages([[1.0], [0.5], [], [2.0]], [[3], [2], [], [1]], mask)),
    "length_stats": Masked(lambda mask: maths.length_stats(TOKENS, mask, {1}, 3)),
    "aggregate_count": Masked(lambda mask: maths.aggregate_count(mask, Aggregation.TOKEN_MEAN)),
    "last_live_index": Masked(lambda mask: maths.last_live_index(mask)),
    "require_finite": Masked(lambda mask, x: maths.require_finite("x", x, mask), ("x",)),
}

every_function = pytest.mark.parametrize("masked", [*FUNCTIONS.values(), *SELECTING.values()], ids=[*FUNCTIONS, *SELECTING])
every_reporting = pytest.mark.parametrize("masked", FUNCTIONS.values(), ids=FUNCTIONS)


def _inputs(masked: Masked, garbage: float) -> dict[str, torch.Tensor]:
    """The same live numbers every time; `garbage` in pads and empty rows."""
    generator = torch.Generator().manual_seed(0)
    shapes = {**dict.fromkeys(masked.tokens, (4, 4)), **dict.fromkeys(masked.rows, (4,))}
    shapes |= dict.fromkeys(masked.vocabulary, (4, 4, 3))
    live = {1: ROWS, 2: MASK, 3: MASK[..., None].expand(4, 4, 3)}
    return {
        name: torch.where(live[len(shape)], torch.randn(shape, generator=generator, dtype=torch.float64), garbage)
        for name, shape in shapes.items()
    }


def _outputs(result) -> list:
    """Tensors and numbers of a result, in order."""
    if dataclasses.is_dataclass(result):
        return [getattr(result, field.name) for field in dataclasses.fields(result)]
    return [result]


def _gradients(masked: Masked, inputs: dict[str, torch.Tensor]):
    attached = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    outputs = _outputs(masked.call(MASK, **attached))
    losses = [x.sum() for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if not losses:
        return {}
    # a curved sum, so that no gradient is 0 by symmetry
    total = sum((k + 1) * (x + 0.1 * x.square()) for k, x in enumerate(losses))
    found = torch.autograd.grad(total, list(attached.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(attached, found, strict=True) if gradient is not None}


def test_the_tables_name_every_public_masked_function():
    masked = {
        name
        for name in maths.__all__
        if inspect.isfunction(getattr(maths, name))
        and any("mask" in parameter for parameter in inspect.signature(getattr(maths, name)).parameters)
    }
    assert {name.split()[0] for name in [*FUNCTIONS, *SELECTING]} == masked


@every_function
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
def test_what_stands_in_a_pad_leaves_no_trace(masked, garbage):
    clean, dirty = _inputs(masked, 0.25), _inputs(masked, garbage)
    expected, actual = _outputs(masked.call(MASK, **clean)), _outputs(masked.call(MASK, **dirty))
    for before, after in zip(expected, actual, strict=True):
        if not isinstance(before, torch.Tensor):
            assert before == after
            continue
        assert torch.equal(before, after)
        if after.shape == MASK.shape:
            assert after[~MASK].eq(0).all()  # exactly 0, or False
    expected, actual = _gradients(masked, clean), _gradients(masked, dirty)
    assert expected.keys() == actual.keys()
    for name, gradient in actual.items():
        pads = ~ROWS if gradient.dim() == 1 else ~MASK
        assert gradient[pads].eq(0).all(), name
        assert torch.equal(gradient, expected[name]), name


@every_reporting
def test_a_live_number_that_is_not_finite_is_reported_by_row_and_column(masked):
    for name in (*masked.tokens, *masked.vocabulary):
        for row, column in ((0, 0), (1, 2), (3, 1)):
            for bad in masked.bad:
                inputs = _inputs(masked, NAN)
                inputs[name][row, column] = bad
                with pytest.raises(maths.NonFiniteError, match=f"row {row}, column {column}") as caught:
                    masked.call(MASK, **inputs)
                assert caught.value.name == (masked.reported or name)
    for name in masked.rows:
        for row in (0, 1, 3):
            for bad in masked.bad:
                inputs = _inputs(masked, NAN)
                inputs[name][row] = bad
                with pytest.raises(maths.NonFiniteError, match=f"^{name} is {bad} at row {row}, a live"):
                    masked.call(MASK, **inputs)


def test_an_infinite_reward_is_no_data_to_a_group():
    with pytest.raises(maths.NonFiniteError, match="rewards is inf at row 3"):
        maths.reinforce_pp_baseline_advantages(torch.tensor([1.0, 0.0, NAN, INF]), IDS, MASK)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_live_is_a_zero_or_a_clear_error(name):
    masked, nothing = FUNCTIONS[name], torch.zeros_like(MASK)
    inputs = {name: torch.full_like(x, NAN) for name, x in _inputs(masked, NAN).items()}
    if name.split()[0] in MEANS and name != "aggregate token_sum_norm":
        with pytest.raises(ValueError, match=r"no live (position|token)"):
            masked.call(nothing, **inputs)
        return
    for x in _outputs(masked.call(nothing, **inputs)):
        if isinstance(x, torch.Tensor) and x.shape == MASK.shape:
            assert x.eq(0).all()
