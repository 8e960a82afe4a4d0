"""Running moments."""

import math

import pytest
import torch

from tether import maths

NAN = float("nan")
X = torch.tensor([[1.0, 3.0, NAN]])
MASK = torch.tensor([[True, True, False]])


def test_moments_by_hand():
    seen = maths.moments(X, MASK)
    assert (seen.count, seen.mean, seen.squares) == (2, 2, 2)
    assert (seen.variance, seen.sample_std) == (1, pytest.approx(1.414214, abs=1e-6))


def test_merge_by_hand():
    # 1, 3 and 8: mean 4, deviations -3, -1, 4
    merged = maths.moments(X, MASK) + maths.moments(torch.tensor([8.0]), torch.tensor([True]))
    assert (merged.count, merged.mean, merged.squares) == pytest.approx((3, 4, 26))


def test_nothing_seen_is_nan_and_neutral():
    empty = maths.moments(X, torch.zeros_like(MASK))
    assert empty == maths.Moments() == empty + empty
    assert math.isnan(empty.variance)
    assert math.isnan(empty.sample_std)
    assert math.isnan(maths.moments(torch.tensor([7.0]), torch.tensor([True])).sample_std)
    seen = maths.moments(X, MASK)
    assert empty + seen == seen + empty == seen


def test_whiten_with_by_hand():
    seen = maths.moments(X, MASK)
    assert maths.whiten_with(X, MASK, seen)[0].tolist() == pytest.approx([-1, 1, 0])
    sample = maths.whiten_with(X, MASK, seen, ddof=1, eps=0.0)
    assert sample[0].tolist() == pytest.approx([-0.707107, 0.707107, 0], abs=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_number_seen_whitens_to_zero(ddof):
    one = torch.tensor([[True, False, False]])
    assert maths.whiten_with(X, one, maths.moments(X, one), ddof=ddof, eps=0.0).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("row", [[0.3] * 6, [0.1 + 0.2, 0.3], [0.0, 0.0], [-7.1] * 9])
def test_rounding_is_no_spread(row, dtype, eps):
    x = torch.tensor([row], dtype=dtype)
    live = torch.ones_like(x, dtype=torch.bool)
    assert maths.whiten_with(x, live, maths.moments(x, live), eps=eps).tolist() == [[0.0] * len(row)]
