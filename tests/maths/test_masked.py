"""Selection, masked statistics, aggregation."""

import pickle

import pytest
import torch

from tether import maths
from tether.maths import Aggregation, EmptyRows

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[1.0, 3.0], [5.0, NAN], [INF, NAN]])
MASK = torch.tensor([[True, True], [True, False], [False, False]])


@pytest.mark.parametrize(
    ("aggregation", "norm_len", "total", "count"),
    [
        (Aggregation.TOKEN_MEAN, None, 9.0, 3.0),
        (Aggregation.SEQ_MEAN_TOKEN_MEAN, None, 7.0, 2.0),
        (Aggregation.SEQ_MEAN_TOKEN_SUM, None, 9.0, 2.0),
        (Aggregation.TOKEN_SUM_NORM, 4, 2.25, 3.0),
    ],
)
def test_aggregation_by_hand(aggregation, norm_len, total, count):
    assert float(maths.aggregate_sum(X, MASK, aggregation, norm_len)) == total
    assert maths.aggregate_count(MASK, aggregation) == count
    assert float(maths.aggregate(X, MASK, aggregation, norm_len)) == pytest.approx(total / count)


def test_empty_rows_count_only_when_asked():
    assert maths.aggregate_count(MASK, Aggregation.SEQ_MEAN_TOKEN_MEAN, EmptyRows.COUNT) == 3.0
    assert maths.aggregate_count(MASK, Aggregation.SEQ_MEAN_TOKEN_MEAN) == 2.0


def test_token_sum_norm_needs_its_budget():
    with pytest.raises(ValueError, match="norm_len"):
        maths.aggregate_sum(X, MASK, Aggregation.TOKEN_SUM_NORM)


def test_nothing_live_is_an_error_for_a_mean_and_zero_for_a_sum():
    empty = torch.zeros_like(MASK)
    assert float(maths.aggregate_sum(X, empty, Aggregation.SEQ_MEAN_TOKEN_MEAN)) == 0
    with pytest.raises(ValueError, match="no live token"):
        maths.aggregate(X, empty, Aggregation.TOKEN_MEAN)
    with pytest.raises(ValueError, match="no live position"):
        maths.masked_mean(X, empty)


def test_pads_have_gradient_exactly_zero():
    x = torch.tensor([[2.0, NAN], [INF, 4.0]], requires_grad=True)
    mask = torch.tensor([[True, False], [False, True]])
    maths.masked_sum(x.square(), mask).backward()
    assert x.grad.tolist()[0][0] == 4.0
    clean = torch.tensor([[2.0, NAN]], requires_grad=True)
    (grad,) = torch.autograd.grad(maths.masked_mean(clean, torch.tensor([[True, False]])), clean)
    assert grad.tolist() == [[1.0, 0.0]]


def test_non_finite_error_names_the_place_and_survives_pickling():
    with pytest.raises(maths.NonFiniteError, match=r"values is nan at row 1, column 1") as caught:
        maths.require_finite("values", X, torch.ones_like(MASK))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.name, again.row, again.column) == ("values", 1, 1)
    assert str(again) == str(caught.value)
    assert isinstance(again, ValueError)


def test_mean_and_variance_by_hand():
    x, mask = torch.tensor([[2.0, 4.0, NAN]]), torch.tensor([[True, True, False]])
    assert float(maths.masked_mean(x, mask)) == 3
    assert float(maths.masked_var(x, mask)) == 1
    assert float(maths.masked_var(x, mask, ddof=1)) == 2


def test_whitened_has_mean_zero_and_variance_one():
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 100
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.3
    out = maths.whiten(x, mask)
    assert float(maths.masked_mean(out, mask)) == pytest.approx(0, abs=1e-12)
    assert float(maths.masked_var(out, mask)) == pytest.approx(1, rel=1e-6)
    assert out[~mask].eq(0).all()


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_live_token_whitens_to_zero(ddof):
    x, mask = torch.tensor([[7.0, NAN]]), torch.tensor([[True, False]])
    assert maths.whiten(x, mask, ddof=ddof).tolist() == [[0.0, 0.0]]
    assert maths.scale_only_whiten(x, mask, ddof=ddof).tolist() == [[7.0, 0.0]]


def test_scale_only_keeps_the_mean():
    out = maths.scale_only_whiten(torch.tensor([[1.0, 5.0]]), torch.ones(1, 2, dtype=torch.bool))
    assert out[0].tolist() == pytest.approx([2.0, 4.0])


def test_shards_whitened_with_merged_moments_equal_the_whole():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(3)) > 0.4
    mask[:2] = False  # a shard without a live token
    shards = [slice(0, 2), slice(2, 3), slice(3, 6)]
    seen = sum((maths.moments(x[s], mask[s]) for s in shards), maths.Moments())
    parts = torch.cat([maths.whiten_with(x[s], mask[s], seen) for s in shards])
    torch.testing.assert_close(parts, maths.whiten(x, mask), rtol=0, atol=1e-12)


def test_moments_do_not_cancel_at_a_large_offset():
    x = torch.tensor([[1e8, 1e8 + 2]], dtype=torch.float64)
    one = maths.moments(x[:, :1], torch.ones(1, 1, dtype=torch.bool))
    two = maths.moments(x[:, 1:], torch.ones(1, 1, dtype=torch.bool))
    assert (one + two).variance == 1.0


def test_half_precision_is_reduced_in_float32():
    x = torch.full((1, 4096), 1.001, dtype=torch.bfloat16)
    total = maths.masked_sum(x, torch.ones(1, 4096, dtype=torch.bool))
    assert total.dtype == torch.float32
    assert float(total) == 4096.0  # bfloat16 1.001 is 1; a bfloat16 sum would stall


def test_a_sample_variance_needs_two_positions():
    with pytest.raises(ValueError, match="more than 1 live positions, found 1"):
        maths.masked_var(X[1:2], MASK[1:2], ddof=1)


def test_nothing_live_scales_to_zero():
    assert maths.scale_only_whiten(X, torch.zeros_like(MASK)).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("row", [[0.3] * 6, [0.1 + 0.2, 0.3], [0.0, 0.0], [-7.1] * 9])
def test_rounding_is_no_spread(row, dtype, eps):
    x = torch.tensor([[*row, NAN]], dtype=dtype)
    mask = torch.tensor([[True] * len(row) + [False]])
    assert not maths.has_spread(x, mask)
    assert maths.whiten(x, mask, eps=eps).tolist() == [[0.0] * (len(row) + 1)]
    assert maths.scale_only_whiten(x, mask, eps=eps)[0, :-1].tolist() == pytest.approx(row, rel=1e-6)


def test_a_small_spread_beside_rounding_is_a_spread():
    x, live = torch.tensor([[-1e-20, 1e-20]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    assert maths.has_spread(x, live)
    assert maths.whiten(x, live, eps=0.0)[0].tolist() == pytest.approx([-1, 1])
    assert not maths.has_spread(x, ~live)


def test_whitened_nan_pads_leave_the_gradient_finite():
    x = torch.tensor([[1.0, 3.0, 8.0, NAN, INF]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, True, False, False]])
    for function in (maths.whiten, maths.scale_only_whiten):
        (gradient,) = torch.autograd.grad(function(x, mask)[0, 0], x)
        assert torch.isfinite(gradient).all()
        assert gradient[0, 3:].tolist() == [0, 0]
    # d (x_0 - m) / s dx_0 with deviations -3, -1, 4 and variance 26 / 3: (1 - 1/3) / s - 9 / (3 s^3)
    scale = (26 / 3) ** 0.5
    (gradient,) = torch.autograd.grad(maths.whiten(x, mask, eps=0.0)[0, 0], x)
    assert float(gradient[0, 0]) == pytest.approx(2 / (3 * scale) - 3 / scale**3)
