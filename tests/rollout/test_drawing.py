"""One token a row: exact log-probabilities, inverse CDF, filters. Axes: R rows, V vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tether.maths.logprobs import filter_logits
from tether.rollout.drawing import draw
from tether.types import Sampling


def test_worked_example() -> None:
    logits = torch.tensor([[0.25, 0.75]]).log().expand(3, 2)
    drawn = draw(logits, torch.tensor([0.2, 0.3, 0.999], dtype=torch.float64), Sampling(1))
    assert drawn.tokens_R.tolist() == [0, 1, 1]
    np.testing.assert_allclose(drawn.logprobs_R, [-1.386294, -0.287682, -0.287682], atol=1e-6)


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.142932), (1.0, -0.407606)])
def test_temperature_divides_before_the_softmax(temperature: float, expected: float) -> None:
    drawn = draw(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.01]), Sampling(1, temperature))
    assert drawn.tokens_R.item() == 0
    assert drawn.logprobs_R.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "sampling", [Sampling(1), Sampling(1, 0.7), Sampling(1, 0.0), Sampling(1, 0.7, 9, 0.9)], ids=str
)
def test_narrow_logits_are_those_of_their_cast_and_nothing_is_written_over(sampling: Sampling) -> None:
    torch.manual_seed(0)
    narrow = torch.randn(8, 5000).bfloat16()
    wide, uniforms = narrow.float(), torch.rand(8, dtype=torch.float64)
    twins = narrow.clone(), wide.clone()
    drawn, expected = draw(narrow, uniforms, sampling), draw(wide, uniforms, sampling)
    assert torch.equal(drawn.tokens_R, expected.tokens_R)
    assert torch.equal(drawn.logprobs_R, expected.logprobs_R)
    assert drawn.logprobs_R.dtype == torch.float32
    assert torch.equal(narrow, twins[0])
    assert torch.equal(wide, twins[1])


@pytest.mark.parametrize("vocabulary", [1, 2, 255, 256, 257, 5000])
def test_every_token_has_its_interval(vocabulary: int) -> None:
    torch.manual_seed(0)
    logits_V = torch.randn(vocabulary)
    cdf_V = logits_V.double().softmax(-1).cumsum(-1)
    middles_V = cdf_V - logits_V.double().softmax(-1) / 2
    drawn = draw(logits_V.expand(vocabulary, vocabulary), middles_V, Sampling(1))
    assert drawn.tokens_R.tolist() == list(range(vocabulary))
    np.testing.assert_allclose(drawn.logprobs_R, logits_V.log_softmax(-1), atol=2e-6)


@pytest.mark.parametrize("u", [1e-16, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(u: float) -> None:
    logits = torch.full((1, 700), -torch.inf)
    logits[0, 300] = 0.0
    logits[0, 310] = -60.0
    drawn = draw(logits, torch.tensor([u], dtype=torch.float64), Sampling(1))
    assert drawn.tokens_R.item() == 300


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "sampling", [Sampling(1), Sampling(1, 0.0), Sampling(1, 1.0, 3), Sampling(1, 1.0, 0, 0.5)], ids=str
)
@pytest.mark.parametrize("vocabulary", [10, 6000])
def test_rows_that_are_not_finite_say_so_alone(bad: float, sampling: Sampling, vocabulary: int) -> None:
    logits = torch.randn(2, vocabulary)
    logits[1, 4] = bad
    drawn = draw(logits, torch.tensor([0.5, 0.5]), sampling)
    assert drawn.logprobs_R.isfinite().tolist() == [True, False]


@pytest.mark.parametrize("top_k", [0, 1, 50, 1023, 1024, 3000])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999, 1.0])
@pytest.mark.parametrize("spread", [0.1, 4.0])
def test_filters_by_candidates_equal_the_full_sort(top_k: int, top_p: float, spread: float) -> None:
    if top_k == 0 and top_p == 1.0:
        pytest.skip("no filter")
    torch.manual_seed(0)
    logits = torch.randn(4, 5000) * spread
    sampling = Sampling(1, 0.9, top_k, top_p)
    exact = filter_logits(logits, 0.9, top_k, top_p).logprobs_NV
    for u in (0.001, 0.37, 0.9, 0.999):
        drawn = draw(logits, torch.full((4,), u, dtype=torch.float64), sampling)
        expected = exact.gather(-1, drawn.tokens_R[:, None])[:, 0]
        np.testing.assert_allclose(drawn.logprobs_R, expected, atol=2e-5)


def test_ties_at_the_edge_of_top_k_are_all_kept() -> None:
    logits = torch.zeros(64, 6000)
    logits[:, :3] = 5.0
    u = torch.linspace(0.01, 0.99, 64, dtype=torch.float64)
    drawn = draw(logits, u, Sampling(1, 1.0, 2))
    assert set(drawn.tokens_R.tolist()) == {0, 1, 2}
    np.testing.assert_allclose(drawn.logprobs_R, -np.log(3), atol=1e-6)
