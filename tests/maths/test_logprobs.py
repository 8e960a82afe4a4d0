"""Log-probabilities, filtering and sampling."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether import maths
from tether.maths import logprobs as logprobs_module

NAN = float("nan")
LOGITS = torch.tensor([[[2.0, 1.0, 0.0]]])
LIVE = torch.tensor([[True]])
FIRST = torch.tensor([[0]])


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.142932), (1.0, -0.407606)])
def test_case_B1_temperature_divides_the_logits(temperature, expected):
    logprobs = maths.token_logprobs(LOGITS, FIRST, LIVE, temperature)
    assert float(logprobs) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.3, 0.5, 1.0, 1.7])
def test_case_B1_unchanged_policy_has_ratio_one(temperature):
    logits = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(1))
    trainer = maths.token_logprobs(logits, tokens, torch.ones_like(tokens).bool(), temperature)
    filtered = maths.filter_logits(logits.flatten(0, 1), temperature)
    sampler = filtered.logprobs_NV.gather(-1, tokens.view(-1, 1)).view(3, 5)
    assert (trainer - sampler).exp().sub(1).abs().max() < 1e-6


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, NAN])
def test_case_B1_greedy_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        maths.token_logprobs(LOGITS, FIRST, LIVE, temperature)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        maths.filter_logits(LOGITS[0], temperature)


def test_case_B2_temperature_is_not_applied_after_the_softmax():
    assert float(maths.token_logprobs(LOGITS, FIRST, LIVE, 0.5)) != pytest.approx(-0.815212, abs=0.1)
    flat = maths.selected_logprobs(LOGITS[0], FIRST[0], 0.5)
    assert float(flat) == pytest.approx(-0.142932, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "length", "expected"),
    [
        ([7, 8, 9, 0, 0], 3, [1, 1, 1, 0, 0]),
        ([7, 2, 0, 0, 0], 2, [1, 1, 0, 0, 0]),
        ([7, 8, 9, 4, 5], 5, [1, 1, 1, 1, 1]),
        ([0, 0, 0, 0, 0], 0, [0, 0, 0, 0, 0]),
    ],
)
def test_case_A2_mask_comes_from_generated_lengths(row, length, expected):
    mask = maths.response_mask_from_lengths(torch.tensor([length]), len(row))
    assert mask.int().tolist() == [expected]


def test_case_A2_a_length_past_the_columns_is_refused():
    with pytest.raises(ValueError, match=r"\[0, 5\]"):
        maths.response_mask_from_lengths(torch.tensor([6]), 5)


def _logits_for(logprobs: list[float]) -> torch.Tensor:
    """Logits [1, S, 2] whose token 0 has the given log-probability at each position."""
    p = torch.tensor(logprobs, dtype=torch.float64).exp()
    return torch.stack([p.log(), (1 - p).log()], -1)[None]


def test_case_A6_mask_is_aligned_with_the_targets():
    # tokens t0 t1 t2 t3, mask on t2 only; log-probabilities of t1, t2, t3 are -.1, -.2, -.3.
    logits = _logits_for([-0.1, -0.2, -0.3, -9.0])
    ids = torch.zeros(1, 4, dtype=torch.long)
    mask = torch.tensor([[False, True, False]])  # completion columns t1, t2, t3
    assert float(maths.shift_logprobs(logits, ids, mask, 1).sum()) == pytest.approx(-0.2)


@pytest.mark.parametrize(("bit", "change"), [(0, -0.1), (1, -0.2), (2, -0.3)])
def test_case_A6_flipping_a_bit_changes_the_sum_by_that_token(bit, change):
    logits = _logits_for([-0.1, -0.2, -0.3, -9.0])
    ids = torch.zeros(1, 4, dtype=torch.long)
    mask = torch.tensor([[True, True, True]])
    flipped = mask.clone()
    flipped[0, bit] = False
    difference = maths.shift_logprobs(logits, ids, mask, 1).sum()
    difference = difference - maths.shift_logprobs(logits, ids, flipped, 1).sum()
    assert float(difference) == pytest.approx(change)


def test_shift_refuses_a_length_that_does_not_add_up():
    with pytest.raises(ValueError, match="must equal 4 ids"):
        maths.shift_logprobs(torch.zeros(1, 4, 2), torch.zeros(1, 4).long(), torch.ones(1, 3).bool(), 2)


def test_last_live_index_ignores_gaps_and_marks_empty_rows():
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()
    assert maths.last_live_index(mask).tolist() == [1, 2, -1]


def test_case_M2_nan_logits_at_pads_leave_no_trace():
    logits = torch.tensor([[[2.0, 1.0, 0.0], [NAN, NAN, NAN]]], requires_grad=True)
    tokens, mask = torch.tensor([[0, -100]]), torch.tensor([[True, False]])
    out = maths.token_logprobs(logits, tokens, mask) + maths.token_entropy(logits, mask)
    assert out[0, 1] == 0
    out.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_case_M2_live_nan_logits_are_reported(bad):
    logits = torch.zeros(2, 2, 3)
    logits[1, 0, 2] = bad
    with pytest.raises(maths.NonFiniteError, match=r"row 1, column 0"):
        maths.token_logprobs(logits, torch.zeros(2, 2).long(), torch.ones(2, 2).bool())
    with pytest.raises(maths.NonFiniteError, match=r"row 1, column 0"):
        maths.token_entropy(logits, torch.ones(2, 2).bool())


def test_an_impossible_token_is_allowed_unless_it_was_drawn():
    logits = torch.tensor([[[0.0, -math.inf, 0.0]]], requires_grad=True)
    logprobs = maths.token_logprobs(logits, FIRST, LIVE)
    entropy = maths.token_entropy(logits, LIVE)
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))
    (logprobs + entropy).sum().backward()
    assert torch.isfinite(logits.grad).all()
    with pytest.raises(maths.NonFiniteError, match="-inf"):
        maths.token_logprobs(logits, torch.tensor([[1]]), LIVE)


def test_chunks_change_neither_values_nor_gradients(monkeypatch):
    logits = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    tokens = torch.randint(6, (3, 4), generator=torch.Generator().manual_seed(5))
    mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(6)) > 0.3

    def outcome():
        x = logits.clone().requires_grad_()
        total = maths.token_logprobs(x, tokens, mask, 0.7).sum() + maths.token_entropy(x, mask, 0.7).sum()
        total.backward()
        return total.item(), x.grad

    whole, whole_grad = outcome()
    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", 12)  # two positions at a time
    chunked, chunked_grad = outcome()
    assert chunked == pytest.approx(whole, rel=1e-14)
    torch.testing.assert_close(chunked_grad, whole_grad, rtol=1e-13, atol=1e-15)


def test_gradients_against_finite_differences():
    logits = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    logits.requires_grad_()
    tokens, mask = torch.tensor([[1, 0, 3]]), torch.tensor([[True, False, True]])
    assert torch.autograd.gradcheck(lambda x: maths.token_logprobs(x, tokens, mask, 0.8), logits)
    assert torch.autograd.gradcheck(lambda x: maths.token_entropy(x, mask, 0.8), logits)


def test_bfloat16_logits_are_scored_in_float32():
    logits = torch.tensor([[[2.0, 1.0, 0.0]]], dtype=torch.bfloat16)
    logprobs = maths.token_logprobs(logits, FIRST, LIVE)
    assert logprobs.dtype == torch.float32
    assert float(logprobs) == pytest.approx(-0.407606, abs=1e-6)


def test_top_k_keeps_ties_and_top_p_keeps_at_least_one():
    tied = torch.tensor([[1.0, 3.0, 1.0, 0.0]])
    assert maths.filter_logits(tied, top_k=2).keep_NV.tolist() == [[True, True, True, False]]
    assert maths.filter_logits(tied, top_p=1e-6).keep_NV.tolist() == [[False, True, False, False]]


def test_top_p_by_hand_and_identity_of_the_kept_mass():
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    filtered = maths.filter_logits(logits, top_p=0.6)
    assert filtered.keep_NV.tolist() == [[True, True, False]]
    assert float(filtered.log_kept_mass_N) == pytest.approx(math.log(0.8))
    assert filtered.logprobs_NV[0].exp().tolist() == pytest.approx([0.625, 0.375, 0.0])


def test_disabled_filters_allocate_no_mask():
    filtered = maths.filter_logits(torch.zeros(2, 5))
    assert filtered.keep_NV.all()
    assert filtered.keep_NV.stride() == (0, 0)
    assert filtered.log_kept_mass_N.tolist() == [0, 0]


@pytest.mark.parametrize("settings_", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_filters_out_of_range_are_refused(settings_):
    with pytest.raises(ValueError, match="top_k"):
        maths.filter_logits(torch.zeros(1, 3), **settings_)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.2, 0), (0.25, 1), (0.7, 1), (0.999999, 1), (1.0, 1)]
)
def test_inverse_cdf_by_hand(uniform, token):
    logits = torch.tensor([[0.25, 0.75, 0.0]]).log()
    assert maths.inverse_cdf_sample(logits, torch.tensor([uniform])).tolist() == [token]


def test_inverse_cdf_skips_leading_impossible_tokens():
    logits = torch.tensor([[-math.inf, -math.inf, 0.0, -math.inf]])
    for uniform in (0.0, 0.5, 1.0):
        assert maths.inverse_cdf_sample(logits, torch.tensor([uniform])).tolist() == [2]


def test_inverse_cdf_frequencies_are_the_probabilities():
    n = 10_000
    logits = torch.tensor([0.1, 0.0, 0.6, 0.3]).log().expand(n, -1)
    drawn = maths.inverse_cdf_sample(logits, (torch.arange(n) + 0.5) / n)
    assert torch.bincount(drawn, minlength=4).tolist() == pytest.approx([1000, 0, 6000, 3000], abs=2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-40, 40, width=32), min_size=2, max_size=30),
    st.floats(0, 1, width=32),
    st.integers(0, 6),
    st.floats(0.05, 1),
)
def test_a_filtered_token_is_never_drawn(logits, uniform, top_k, top_p):
    filtered = maths.filter_logits(torch.tensor([logits]), 1.0, top_k, top_p)
    token = maths.inverse_cdf_sample(filtered.logprobs_NV, torch.tensor([uniform]))
    assert filtered.keep_NV[0, token]


def test_uniforms_outside_the_unit_interval_are_refused():
    with pytest.raises(ValueError, match="uniforms"):
        maths.inverse_cdf_sample(torch.zeros(1, 2), torch.tensor([1.5]))


def test_flat_entropy_by_hand():
    entropy = maths.entropy_from_logits(torch.tensor([[0.0, 0, 0, 0], [0.0, -math.inf, -math.inf, 0]]))
    assert entropy.tolist() == pytest.approx([1.386294, 0.693147], abs=1e-6)


def test_chunks_without_gradients_give_the_same_values(monkeypatch):
    logits = torch.tensor([[2.0, 1, 0], [0, 0, 0], [0, 1, 2]], dtype=torch.float64)
    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", 3)  # one position at a time
    scored = maths.selected_logprobs(logits, torch.tensor([0, 1, 0]))
    assert scored.tolist() == pytest.approx([-0.407606, -1.098612, -2.407606], abs=1e-6)


def test_a_mask_without_columns_has_no_last_position():
    assert maths.last_live_index(torch.zeros(2, 0).bool()).tolist() == [-1, -1]


def test_top_p_is_measured_on_what_top_k_left():
    # .4 and .3 are left: .571 and .429 of their sum, so the first alone reaches .5 (of the whole it would not)
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    filtered = maths.filter_logits(logits, top_k=2, top_p=0.5)
    assert filtered.keep_NV.tolist() == [[True, False, False, False]]
    assert float(filtered.log_kept_mass_N) == pytest.approx(math.log(0.4))
