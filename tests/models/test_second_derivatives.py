"""Passes with a backward of their own say that they have no second derivative; autograd would otherwise give a wrong one."""

from __future__ import annotations

import pytest
import torch

from tether.models.attention import attend
from tether.models.elementwise import _Gate, _GateDown, _Norm
from tether.models.head import chosen_logprobs


def head(x):
    return chosen_logprobs(torch.ones(7, 4, requires_grad=True), x, torch.tensor([1, 2]), 1.0, entropy=False)[0]


PASSES = {
    "attention": lambda x: attend(x.view(1, 1, 2, 4), x.view(1, 1, 2, 4), x.view(1, 1, 2, 4), None, None),
    "norm": lambda x: _Norm.apply(x, torch.ones(4, requires_grad=True), 1e-5, torch.float32),
    "gate": lambda x: _Gate.apply(x, 2 * x),
    "gate and matrix": lambda x: _GateDown.apply(x, 2 * x, torch.ones(3, 4, requires_grad=True)),
    "head": head,
}


@pytest.mark.parametrize("name", PASSES)
def test_a_second_derivative_is_refused(name):
    x = torch.arange(8.0).view(2, 4).requires_grad_()
    (first,) = torch.autograd.grad(PASSES[name](x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
