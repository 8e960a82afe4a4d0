"""Importance weights and mismatch."""

import math

import pytest
import torch

from tether import maths
from tether.maths import ImportanceMode, KLEstimator, kl_units, off_policy_kl, prefix_weights

NAN = float("nan")
OLD = torch.tensor([[math.log(3.0), math.log(0.5), NAN]])
SAMPLER = torch.tensor([[0.0, 0.0, NAN]])
MASK = torch.tensor([[True, True, False]])


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        (ImportanceMode.TOKEN_TRUNCATE, None, 2.0, [2.0, 0.5, 0]),
        (ImportanceMode.TOKEN_TRUNCATE, 0.8, 2.0, [2.0, 0.8, 0]),
        (ImportanceMode.TOKEN_MASK, None, 2.0, [0.0, 0.5, 0]),
        (ImportanceMode.SEQ_TRUNCATE, None, 1.2, [1.2, 1.2, 0]),
        (ImportanceMode.SEQ_MASK, None, 2.0, [1.5, 1.5, 0]),
        (ImportanceMode.SEQ_MASK, None, 1.4, [0, 0, 0]),
        (ImportanceMode.SEQ_GEO_MASK, 0.5, 1.3, [1.5**0.5, 1.5**0.5, 0]),
        (ImportanceMode.SEQ_GEO_FILTER_TOKEN_WEIGHT, 0.5, 1.3, [3.0, 0.5, 0]),
    ],
)
def test_weights_by_hand(mode, low, high, expected):
    assert maths.is_weights(OLD, SAMPLER, MASK, mode, low, high)[0].tolist() == pytest.approx(expected)


def test_equal_policies_have_weight_one_and_no_mismatch():
    for mode in ImportanceMode:
        assert maths.is_weights(OLD, OLD, MASK, mode, 0.999, 1.001)[0].tolist() == [1, 1, 0]
    mismatch = maths.mismatch_kl(OLD, OLD, MASK)
    assert (mismatch.k1, mismatch.k3, mismatch.max_abs, mismatch.ppl_ratio) == (0, 0, 0, 1)


def test_weights_are_detached():
    old = torch.zeros(1, 1, requires_grad=True)
    weights = maths.is_weights(old, torch.zeros(1, 1), torch.ones(1, 1).bool(), ImportanceMode.TOKEN_MASK)
    assert not weights.requires_grad


def test_a_missing_sampler_logprob_is_an_error_not_weight_one():
    with pytest.raises(maths.NonFiniteError, match="sampler_logprobs is nan at row 0, column 2"):
        maths.is_weights(torch.zeros(1, 3), SAMPLER, torch.ones(1, 3).bool(), ImportanceMode.TOKEN_MASK)


def test_empty_bounds_are_refused():
    with pytest.raises(ValueError, match="bounds are empty"):
        maths.is_weights(OLD, SAMPLER, MASK, ImportanceMode.TOKEN_MASK, 2.0, 1.0)


def test_mismatch_by_hand():
    out = maths.mismatch_kl(torch.tensor([[-1.0]]), torch.tensor([[-0.5]]), torch.ones(1, 1).bool())
    assert (out.k1, out.max_abs) == (0.5, 0.5)
    assert out.k3 == pytest.approx(0.106531, abs=1e-6)
    assert out.ppl_ratio == pytest.approx(1.648721, abs=1e-6)


def test_effective_sample_size_by_hand():
    live = torch.ones(1, 2, dtype=torch.bool)
    assert maths.effective_sample_size(torch.tensor([[1.0, 0.0]]), live) == 0.5
    assert maths.effective_sample_size(torch.tensor([[2.0, 2.0]]), live) == 1
    assert math.isnan(maths.effective_sample_size(torch.zeros(1, 2), live))


def test_only_negative_rows_far_off_policy_are_dropped():
    logprobs = torch.tensor([[-2.0], [-2.0], [-1.1], [NAN]])
    sampler = torch.tensor([[-1.0], [-1.0], [-1.0], [NAN]])
    mask = torch.tensor([[True], [True], [True], [False]])
    out = maths.off_policy_sequence_mask(logprobs, sampler, torch.tensor([-1.0, 1.0, -1.0, NAN]), mask, 0.5)
    assert out.keep_B.tolist() == [False, True, True, True]
    assert out.seq_kl_B.tolist() == pytest.approx([1, 1, 0.1, 0])


def test_a_mismatch_over_nothing_is_refused():
    with pytest.raises(ValueError, match="no live position"):
        maths.mismatch_kl(OLD, SAMPLER, torch.zeros_like(MASK))


def test_geometric_mask_drops_a_row_outside_on_either_side():
    for low, high in ((1.3, None), (None, 1.2)):
        out = maths.is_weights(OLD, SAMPLER, MASK, ImportanceMode.SEQ_GEO_MASK, low, high)
        assert out.tolist() == [[0, 0, 0]]


# -- answers of another policy -------------------------------------------------------------------------------------------------


def test_prefix_weights_multiply_up_to_the_token():
    old, sampler = torch.log(torch.tensor([[3.0, 0.5, NAN]])), torch.zeros(1, 3)
    weights = prefix_weights(old, sampler, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[3.0, 1.5, 0.0]]))


def test_off_policy_kl_of_the_docstring():
    old, ref, sampler = (torch.log(torch.tensor([x])) for x in ([0.5, 0.4], [0.25, 0.4], [0.25, 0.8]))
    found = off_policy_kl(old, ref, sampler, torch.ones(1, 2, dtype=torch.bool))
    assert float(found.rows_B[0]) == pytest.approx(2 * math.log(2))
    assert found.seq_sum_mean_nats == pytest.approx(2 * math.log(2))
    assert found.token_mean_nats == pytest.approx(2 * math.log(2) / 3)


def test_off_policy_kl_with_equal_policies_is_the_plain_one_and_empty_rows_count_nowhere():
    generator = torch.Generator().manual_seed(3)
    old, ref = -torch.rand(3, 4, generator=generator), -torch.rand(3, 4, generator=generator)
    mask = torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])
    for estimator in KLEstimator:
        found, plain = off_policy_kl(old, ref, old, mask, estimator), kl_units(old, ref, mask, estimator)
        assert found.seq_sum_mean_nats == pytest.approx(float(plain.seq_sum_mean_nats))
        assert found.token_mean_nats == pytest.approx(float(plain.token_mean_nats))
    with pytest.raises(ValueError, match="no live position"):
        off_policy_kl(old, ref, old, torch.zeros(3, 4, dtype=torch.bool))
