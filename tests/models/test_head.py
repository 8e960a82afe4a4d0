"""The fused head: log-probabilities and entropies of plain softmax, their gradients, in chunks, without logits of all positions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tether.maths.logprobs import CHUNK_ELEMENTS
from tether.models import head as heads
from tether.models.head import chosen_logprobs, is_fused


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(heads, "CHUNK_ELEMENTS", 40)  # 3 positions of 13 tokens: chunks of 3, 3 and 1
    monkeypatch.setitem(heads._PIECE, "cpu", 26)  # in pieces of 2 and 1


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(7, 5, generator=generator, dtype=dtype, requires_grad=True)
    weight_VH = torch.randn(13, 5, generator=generator, dtype=dtype, requires_grad=True)
    return hidden_NH, weight_VH, torch.tensor([0, 12, 3, 3, 7, 1, 9])


def plain(hidden_NH, weight_VH, tokens_N, temperature):
    logp_NV = ((hidden_NH @ weight_VH.T) / temperature).log_softmax(-1)
    return logp_NV.gather(-1, tokens_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_are_those_of_a_softmax(temperature):
    hidden_NH, weight_VH, tokens_N = inputs()
    chosen_N, entropy_N = chosen_logprobs(weight_VH, hidden_NH, tokens_N, temperature, entropy=True)
    expected = plain(hidden_NH, weight_VH, tokens_N, temperature)
    assert torch.allclose(chosen_N, expected[0], rtol=1e-12)
    assert torch.allclose(entropy_N, expected[1], rtol=1e-12)
    alone_N, nothing = chosen_logprobs(weight_VH, hidden_NH, tokens_N, temperature, entropy=False)
    assert torch.equal(alone_N, chosen_N)
    assert nothing is None


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("read", [lambda c, e: c, lambda c, e: e, lambda c, e: c * 2 + e.square()], ids=["chosen", "entropy", "both"])
def test_gradients_agree_with_finite_differences(temperature, read):
    hidden_NH, weight_VH, tokens_N = inputs()

    def function(hidden_NH, weight_VH):
        return read(*chosen_logprobs(weight_VH, hidden_NH, tokens_N, temperature, entropy=True))

    assert torch.autograd.gradcheck(function, (hidden_NH, weight_VH))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_float32_products_go_over_some_columns_at_a_time(temperature, monkeypatch):
    monkeypatch.setattr(heads, "_COLUMNS", 4)  # of 13: 4, 4, 4 and 1
    results = []
    for dtype in (torch.float32, torch.float64):
        hidden_NH, weight_VH, tokens_N = inputs()
        narrow = [x.detach().to(dtype).requires_grad_() for x in (hidden_NH, weight_VH)]
        chosen_N, entropy_N = chosen_logprobs(narrow[1], narrow[0], tokens_N, temperature, entropy=True)
        (chosen_N * 2 + entropy_N.square()).sum().backward()
        results.append([x.double() for x in (chosen_N, entropy_N, narrow[0].grad, narrow[1].grad)])
    for float32, float64 in zip(*results, strict=True):
        torch.testing.assert_close(float32, float64, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_needs_no_gradient_gets_none(frozen):
    hidden_NH, weight_VH, tokens_N = inputs()
    both = [hidden_NH, weight_VH]
    both[frozen] = both[frozen].detach()
    chosen_logprobs(both[1], both[0], tokens_N, 1.0, entropy=False)[0].sum().backward()
    assert both[frozen].grad is None
    assert both[1 - frozen].grad is not None


def test_autocast_is_no_further_from_the_truth_than_torchs_own():
    hidden_NH, weight_VH, tokens_N = inputs(torch.float32)
    truth = plain(hidden_NH.detach().double(), weight_VH.detach().double(), tokens_N, 1.0)[0]
    with torch.autocast("cpu", torch.bfloat16):
        ours_N = chosen_logprobs(weight_VH, hidden_NH, tokens_N, 1.0, entropy=False)[0]
        theirs_N = nn.functional.linear(hidden_NH, weight_VH).float().log_softmax(-1).gather(-1, tokens_N[:, None])[:, 0]
    assert ours_N.dtype == torch.float32
    far, theirs = ((x_N - truth).abs().max().item() for x_N in (ours_N, theirs_N))
    assert far <= theirs + 1e-6
    (gradient,) = torch.autograd.grad(ours_N.sum(), weight_VH)
    assert gradient.dtype == torch.float32


def test_nothing_of_the_size_of_all_logits_is_kept():
    hidden_NH, weight_VH, tokens_N = inputs()
    hidden_NH, tokens_N = hidden_NH.repeat(50, 1), tokens_N.repeat(50)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        chosen_logprobs(weight_VH, hidden_NH, tokens_N, 1.0, entropy=True)
    assert max(kept) <= max(hidden_NH.numel(), weight_VH.numel()) < len(tokens_N) * len(weight_VH)


@pytest.mark.parametrize("room", [0, 2 * 3 * 13, 2 * 7 * 13], ids=["none kept", "one chunk kept", "all kept"])
@pytest.mark.parametrize("entropy", [False, True])
def test_logits_that_wait_change_no_bit(room, entropy, monkeypatch):
    def gradients():
        hidden_NH, weight_VH, tokens_N = inputs(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            chosen_N, entropy_N = chosen_logprobs(weight_VH, hidden_NH, tokens_N, 0.7, entropy=entropy)
        (chosen_N.sum() if entropy_N is None else chosen_N.sum() + entropy_N.square().sum()).backward()
        return hidden_NH.grad, weight_VH.grad

    monkeypatch.setattr(heads, "KEPT_BYTES", 0)
    expected = gradients()
    monkeypatch.setattr(heads, "KEPT_BYTES", room)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        got = gradients()
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    assert sum(x.nbytes for x in kept if x.ndim == 2 and x.shape[1] == 13) == room


@pytest.mark.parametrize("vocabulary", [384, 32_000, 49_152, 151_936, 2**25])
def test_chunks_cover_every_position_once_and_none_is_a_small_rest(vocabulary, monkeypatch):
    monkeypatch.setattr(heads, "CHUNK_ELEMENTS", CHUNK_ELEMENTS)
    most = max(1, CHUNK_ELEMENTS // vocabulary)
    for count in (*range(0, 3000, 7), 1024):
        chunks = heads._chunks(count, vocabulary)
        sizes = [own.stop - own.start for own in chunks]
        assert [own.start for own in chunks] == [sum(sizes[:number]) for number in range(len(sizes))]
        assert sum(sizes) == count
        assert len(sizes) <= -(-count // most)
        assert all(size <= 1.25 * most + 16 for size in sizes)
        assert not sizes or min(sizes) > max(sizes) - 16 * len(sizes)


def test_chunks_of_a_group(monkeypatch):
    monkeypatch.setattr(heads, "CHUNK_ELEMENTS", CHUNK_ELEMENTS)
    assert heads._chunks(1024, 49_152) == [slice(0, 352), slice(352, 704), slice(704, 1024)]


def test_a_temperature_of_zero_is_refused():
    hidden_NH, weight_VH, tokens_N = inputs()
    with pytest.raises(ValueError, match="temperature must be above 0"):
        chosen_logprobs(weight_VH, hidden_NH, tokens_N, 0.0, entropy=False)


def test_a_head_with_more_than_a_matrix_takes_the_other_path():
    hooked = nn.Linear(5, 13, bias=False)
    hooked.register_forward_hook(lambda *args: None)
    assert is_fused(nn.Linear(5, 13, bias=False))
    assert not is_fused(nn.Linear(5, 13))
    assert not is_fused(hooked)
