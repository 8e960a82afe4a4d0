"""Attention with a backward pass of its own: the gradients of plain attention, for grouped heads, masks and pieces."""

from __future__ import annotations

import pytest
import torch

from tether.models import attention
from tether.models.attention import attend

A, H, K, L, C, D = 3, 4, 2, 3, 5, 4


def inputs(dtype=torch.float64, keys=C):
    generator = torch.Generator().manual_seed(0)
    shapes = [(A, H, L, D), (A, K, keys, D), (A, K, keys, D)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def plain(q, k, v, seen_LC, scale):
    k, v = (x.repeat_interleave(H // K, 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * scale
    return scores.masked_fill(~seen_LC, -torch.inf).softmax(-1) @ v


def prompt_then_own():
    return torch.cat([torch.ones(L, C - L, dtype=torch.bool), torch.ones(L, L, dtype=torch.bool).tril()], 1)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("masked", [True, False], ids=["prompt and own", "causal"])
@pytest.mark.parametrize("elements", [attention._ELEMENTS, 1], ids=["whole", "in pieces"])
def test_values_and_gradients_are_those_of_plain_attention(scale, masked, elements, monkeypatch):
    monkeypatch.setattr(attention, "_ELEMENTS", elements)
    q, k, v = inputs(keys=C if masked else L)
    seen_LC = prompt_then_own() if masked else torch.ones(L, L, dtype=torch.bool).tril()
    ours = attend(q, k, v, seen_LC if masked else None, scale)
    expected = plain(q, k, v, seen_LC, D**-0.5 if scale is None else scale)
    assert torch.allclose(ours, expected, rtol=1e-10)
    weights = torch.linspace(0.5, 1.5, ours.numel(), dtype=torch.float64).view_as(ours)
    got = torch.autograd.grad((ours * weights).sum(), (q, k, v))
    wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    assert all(torch.allclose(one, other, rtol=1e-10, atol=1e-12) for one, other in zip(got, wanted, strict=True))


def test_gradients_agree_with_finite_differences():
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, prompt_then_own(), None), inputs())


def test_in_bfloat16_it_is_no_further_from_the_truth_than_torchs_own():
    truth = torch.autograd.grad(plain(*(double := inputs()), prompt_then_own(), D**-0.5).sum(), double)
    far = []
    for function in (attend, lambda *args: attention._forward(*args)):
        q, k, v = inputs(torch.bfloat16)
        got = torch.autograd.grad(function(q, k, v, prompt_then_own(), None).float().sum(), (q, k, v))
        far.append(sum((one.double() - other).abs().sum().item() for one, other in zip(got, truth, strict=True)))
    assert far[0] <= 1.1 * far[1]


def test_under_autocast_it_takes_what_the_projections_give():
    q, k, v = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, prompt_then_own(), None)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32
