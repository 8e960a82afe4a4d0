"""Value loss and explained variance."""

import math

import pytest
import torch

from tether import maths

NAN = float("nan")


def _one(value: float, old: float, target: float, clip: float | None):
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    old_values, returns = torch.tensor([[old]]).double(), torch.tensor([[target]]).double()
    out = maths.value_loss(values, old_values, returns, torch.ones(1, 1, dtype=torch.bool), clip)
    return (
        out.losses_BT.item(),
        torch.autograd.grad(out.losses_BT.sum(), values)[0].item(),
        bool(out.clipped_BT),
    )


def test_by_hand():
    assert _one(1.0, 0.0, 2.0, None) == pytest.approx((0.5, -1.0, False))
    assert _one(1.0, 0.0, 2.0, 0.2) == pytest.approx((1.62, 0.0, True))
    assert _one(1.0, 0.0, -2.0, 0.2) == pytest.approx((4.5, 3.0, False))
    assert _one(0.1, 0.0, 2.0, 0.2) == pytest.approx((1.805, -1.9, False))


def test_case_M2_pads_are_ignored_and_live_nan_is_reported():
    values = torch.tensor([[1.0, NAN]], requires_grad=True)
    other, mask = torch.tensor([[0.0, NAN]]), torch.tensor([[True, False]])
    out = maths.value_loss(values, other, other, mask, 0.2)
    out.losses_BT.sum().backward()
    assert out.losses_BT[0].tolist() == pytest.approx([0.5, 0])
    assert values.grad.tolist() == [[1.0, 0.0]]
    with pytest.raises(maths.NonFiniteError, match="old_values is nan"):
        maths.value_loss(torch.ones(1, 2), other, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool))


def test_explained_variance_by_hand():
    mask = torch.ones(1, 2, dtype=torch.bool)
    returns = torch.tensor([[1.0, 3.0]])
    assert maths.explained_variance(torch.tensor([[1.0, 2.0]]), returns, mask) == pytest.approx(0.75)
    assert maths.explained_variance(returns, returns, mask) == 1
    assert math.isnan(maths.explained_variance(returns, torch.ones(1, 2), mask))
    assert math.isnan(maths.explained_variance(returns, returns, torch.zeros_like(mask)))


def test_negative_clip_is_refused():
    with pytest.raises(ValueError, match="clip"):
        _one(1.0, 0.0, 0.0, -0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returns_that_differ_by_rounding_alone_explain_nothing(dtype):
    live = torch.ones(1, 6, dtype=torch.bool)
    returns = torch.full((1, 6), 0.3, dtype=dtype)  # their float32 variance is 9e-16, not 0
    assert math.isnan(maths.explained_variance(torch.zeros(1, 6, dtype=dtype), returns, live))
